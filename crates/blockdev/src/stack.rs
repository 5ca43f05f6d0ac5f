//! The devices and files that lie below and above a block device, as `/sys` lists them.
//!
//! A loop device keeps its bytes in a file, a partition in its disk, a device-mapper or RAID device
//! in its members. Programs that write by different names write to the same bytes, so claims and
//! lists of users follow these layers. `/sys` gives the place of a partition and of a loop device,
//! but not that of a device-mapper target: its bytes may be anywhere in its members.

use std::ffi::OsString;
use std::fmt;
use std::fs::{self, Metadata};
use std::ops::Range;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// `/sys` counts the sizes and starts of devices in these units, whatever their sectors are.
const SYS_SECTOR_BYTES: u64 = 512;

/// Number of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// The device of that driver.
    pub minor: u32,
}

impl DeviceNumber {
    pub(crate) fn of(device: u64) -> Self {
        Self { major: major(device), minor: minor(device) }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }

    /// Its folder in `/sys`.
    pub(crate) fn folder(self) -> PathBuf {
        PathBuf::from(format!("/sys/dev/block/{self}"))
    }

    /// Its node in `/dev`. The kernel writes a slash in a name as an exclamation mark.
    fn node(self) -> Option<PathBuf> {
        let folder = fs::canonicalize(self.folder()).ok()?;
        let name = folder.file_name()?.to_str()?.replace('!', "/");
        Some(Path::new("/dev").join(name))
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// A regular file or a block device, whatever names it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    File { dev: u64, ino: u64 },
    Block(DeviceNumber),
}

impl Node {
    /// The number of a block device.
    pub(crate) const fn device(self) -> Option<DeviceNumber> {
        match self {
            Self::Block(device) => Some(device),
            Self::File { .. } => None,
        }
    }
}

impl From<&Metadata> for Node {
    fn from(metadata: &Metadata) -> Self {
        if metadata.file_type().is_block_device() {
            Self::Block(DeviceNumber::of(metadata.rdev()))
        } else {
            Self::File { dev: metadata.dev(), ino: metadata.ino() }
        }
    }
}

/// A file or device that holds bytes of the device that was asked about.
#[derive(Clone, Debug)]
pub(crate) struct Layer {
    pub(crate) node: Node,
    pub(crate) path: PathBuf,
    /// The bytes of the node that may be those asked about.
    pub(crate) bytes: Range<u64>,
    /// Whether all of `bytes` belong to the device that was asked about. Otherwise, other devices
    /// may have a part of them.
    pub(crate) exact: bool,
    /// Whether the layer above is a loop device, for which the kernel claims nothing.
    pub(crate) under_loop: bool,
}

/// A loop device with a file or device below it.
#[derive(Clone, Debug)]
pub(crate) struct LoopDevice {
    pub(crate) device: DeviceNumber,
    /// Its node, such as `/dev/loop0`.
    pub(crate) node: PathBuf,
    /// Its bytes in the file.
    pub(crate) bytes: Range<u64>,
    pub(crate) read_only: bool,
}

/// Deepest stack of devices that is followed, as a guard against loops in `/sys`.
const MOST_LAYERS: usize = 64;

/// The file or device at `path` itself, and all that lie below it.
pub(crate) fn layers(path: &Path, bytes: Range<u64>) -> std::io::Result<Vec<Layer>> {
    let node = Node::from(&fs::metadata(path)?);
    let top = Layer { node, path: path.to_owned(), bytes, exact: true, under_loop: false };
    Ok(from_top(top))
}

/// The block device with this number, and all that lie below it; `None` if it is no block device.
pub(crate) fn layers_of_device(device: DeviceNumber) -> Option<Vec<Layer>> {
    device.folder().exists().then_some(())?;
    in_device(device, 0..u64::MAX, true, false).pop().map(from_top)
}

/// A layer and all that lie below it.
fn from_top(top: Layer) -> Vec<Layer> {
    let mut found = vec![top];
    let mut next = 0;
    while let Some(layer) = found.get(next).filter(|_| next < MOST_LAYERS) {
        let below = below(layer);
        found.extend(below);
        next += 1;
    }
    found
}

/// The layers directly below one.
fn below(layer: &Layer) -> Vec<Layer> {
    let Node::Block(device) = layer.node else { return Vec::new() };
    let folder = device.folder();
    if folder.join("partition").exists() {
        let disk = text_of(&folder.join("../dev")).and_then(|text| DeviceNumber::parse(&text));
        let start = sectors_of(&folder.join("start"));
        let Some((disk, start)) = disk.zip(start) else { return Vec::new() };
        let bytes = shifted(&layer.bytes, start, bytes_of(device));
        return in_device(disk, bytes, layer.exact, false);
    }
    if let Some((file, place)) = backing_of(&folder, device) {
        let Ok(metadata) = fs::metadata(&file) else { return Vec::new() };
        let bytes = shifted(&layer.bytes, place.start, Some(place.end - place.start));
        let (node, exact) = (Node::from(&metadata), layer.exact);
        return vec![Layer { node, path: file, bytes, exact, under_loop: true }];
    }
    let members = names_in(&folder.join("slaves")).into_iter();
    let members = members.filter_map(|name| {
        DeviceNumber::parse(&text_of(&folder.join("slaves").join(name).join("dev"))?)
    });
    members.flat_map(|member| in_device(member, 0..u64::MAX, false, false)).collect()
}

fn in_device(device: DeviceNumber, bytes: Range<u64>, exact: bool, under_loop: bool) -> Vec<Layer> {
    let path = device.node().unwrap_or_default();
    vec![Layer { node: Node::Block(device), path, bytes, exact, under_loop }]
}

/// The file below a loop device, and the place of the device in it.
fn backing_of(folder: &Path, device: DeviceNumber) -> Option<(PathBuf, Range<u64>)> {
    // Only attached loop devices have this file. The kernel ends it with a newline.
    let mut name = fs::read(folder.join("loop/backing_file")).ok()?;
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    let start = text_of(&folder.join("loop/offset"));
    let start = start.and_then(|text| text.trim().parse().ok()).unwrap_or(0u64);
    // The size of the device is that of the file less the offset, or the limit that was set.
    let end = bytes_of(device).map_or(u64::MAX, |size| start.saturating_add(size));
    Some((PathBuf::from(OsString::from_vec(name)), start..end))
}

/// The loop devices over a file or device whose bytes overlap a range of it, sorted by name.
pub(crate) fn loops_on(node: Node, bytes: &Range<u64>) -> Vec<LoopDevice> {
    let found = names_in(Path::new("/sys/block")).into_iter().filter_map(|name| {
        let folder = Path::new("/sys/block").join(&name);
        // Most block devices are no loop devices: their number is not read.
        folder.join("loop/backing_file").exists().then_some(())?;
        let device = DeviceNumber::parse(&text_of(&folder.join("dev"))?)?;
        let (file, place) = backing_of(&folder, device)?;
        let on_this = Node::from(&fs::metadata(file).ok()?) == node && overlap(&place, bytes);
        let read_only = text_of(&folder.join("ro")).is_some_and(|text| text.trim() == "1");
        let node = Path::new("/dev").join(&name);
        on_this.then_some(LoopDevice { device, node, bytes: place, read_only })
    });
    found.collect()
}

/// The partitions of a whole disk that overlap a range of it.
pub(crate) fn partitions(device: DeviceNumber, bytes: &Range<u64>) -> Vec<DeviceNumber> {
    let folder = device.folder();
    let found = names_in(&folder).into_iter().filter_map(|name| {
        let folder = folder.join(name);
        folder.join("partition").exists().then_some(())?;
        let part = DeviceNumber::parse(&text_of(&folder.join("dev"))?)?;
        let start = sectors_of(&folder.join("start"))?;
        let end = start.saturating_add(bytes_of(part).unwrap_or(u64::MAX));
        overlap(&(start..end), bytes).then_some(part)
    });
    found.collect()
}

/// The devices that have this one as a member, by name.
pub(crate) fn holders(device: DeviceNumber) -> Vec<(String, Option<DeviceNumber>)> {
    let folder = device.folder().join("holders");
    let number = |name: &OsString| DeviceNumber::parse(&text_of(&folder.join(name).join("dev"))?);
    let names = names_in(&folder).into_iter();
    names.map(|name| (name.to_string_lossy().into_owned(), number(&name))).collect()
}

/// The node of a device in `/dev`.
pub(crate) fn node_of(device: DeviceNumber) -> Option<PathBuf> {
    device.node()
}

/// A range of a device, as a range of what it lies on, where it begins at `start`.
fn shifted(bytes: &Range<u64>, start: u64, size_bytes: Option<u64>) -> Range<u64> {
    let end = bytes.end.min(size_bytes.unwrap_or(u64::MAX));
    start.saturating_add(bytes.start)..start.saturating_add(end)
}

/// Whether two ranges have a byte in common.
pub(crate) fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

fn bytes_of(device: DeviceNumber) -> Option<u64> {
    sectors_of(&device.folder().join("size"))
}

/// A count of sectors in a file of `/sys`, in bytes.
fn sectors_of(file: &Path) -> Option<u64> {
    text_of(file)?.trim().parse::<u64>().ok()?.checked_mul(SYS_SECTOR_BYTES)
}

fn text_of(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok()
}

/// The names in a folder, sorted.
fn names_in(folder: &Path) -> Vec<OsString> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<OsString> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_overlap_where_they_share_a_byte() {
        assert!(overlap(&(0..u64::MAX), &(5..6)));
        assert!(overlap(&(0..6), &(5..9)));
        assert!(!overlap(&(0..5), &(5..9)));
        assert_eq!(shifted(&(0..u64::MAX), 100, Some(50)), 100..150);
        assert_eq!(shifted(&(10..20), 100, Some(50)), 110..120);
        assert_eq!(shifted(&(10..u64::MAX), 100, None), 110..u64::MAX);
    }

    #[test]
    fn a_file_is_its_only_layer() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let found = layers(file.path(), 0..10).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].bytes.clone(), found[0].exact), (0..10, true));
        assert!(layers(Path::new("/nonexistent/image"), 0..1).is_err());
    }
}
