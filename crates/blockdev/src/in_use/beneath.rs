//! The devices and image files that a mounted file system lies on.
//!
//! A mount of a block device is found by the device's number, others (FUSE, btrfs) by the source
//! that `/proc` names, if it is a file or device; an overlay file system by its upper layer. A file
//! below a loop device lies on a mount, too, so the search goes on there.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::tables::{Mount, lines_of, unescaped};
use crate::OpenError;
use crate::claim::{Access, is_locked};
use crate::stack::{Layer, Node, layers, layers_of_device, overlap};

/// The mount through which data written to `file` (or below it, if it is a folder) reach a range of
/// the device or image at `input`. `None` if there is none that the system shows.
///
/// # Errors
/// If `input` cannot be looked up.
pub fn mount_over(
    file: impl AsFd,
    input: &Path,
    bytes: Range<u64>,
) -> Result<Option<PathBuf>, OpenError> {
    let input = layers(input, bytes).map_err(|source| OpenError::new(input, source))?;
    let mounts: Vec<Mount> =
        lines_of("/proc/self/mountinfo").iter().filter_map(|line| Mount::parse(line)).collect();
    let Some(first) = mount_of(&file, &mounts) else { return Ok(None) };
    let (mut queue, mut seen) = (vec![first], BTreeSet::new());
    while let Some(mount) = queue.pop() {
        if !seen.insert(mount.id) {
            continue;
        }
        let below = below(mount);
        if below.iter().any(|layer| input.iter().any(|other| is_shared(layer, other, mount))) {
            return Ok(Some(first.mount_point.clone()));
        }
        let files = below.into_iter().filter(|layer| matches!(layer.node, Node::File { .. }));
        let paths = files.map(|layer| layer.path).chain(mount.upper_layer());
        queue.extend(paths.filter_map(|path| mount_of(opened(&path)?, &mounts)));
    }
    Ok(None)
}

/// The mount that an open file lies on.
fn mount_of(file: impl AsFd, mounts: &[Mount]) -> Option<&Mount> {
    let facts = format!("/proc/self/fdinfo/{}", file.as_fd().as_raw_fd());
    let facts = fs::read_to_string(facts).ok()?;
    let id = facts.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    let id: u64 = id.trim().parse().ok()?;
    mounts.iter().find(|mount| mount.id == id)
}

/// Opens a name without the right to read.
fn opened(path: &Path) -> Option<File> {
    let flags = OFlags::PATH.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path).ok()
}

/// The devices and files that a mount lies on.
fn below(mount: &Mount) -> Vec<Layer> {
    if let Some(layers) = layers_of_device(mount.device) {
        return layers;
    }
    let source = Path::new(&mount.source);
    if !source.is_absolute() {
        return Vec::new();
    }
    layers(source, 0..u64::MAX).unwrap_or_default()
}

/// Whether a layer below a mount has bytes of the input. Two devices of one volume group have their
/// bytes somewhere in the same members, but not the same bytes.
fn is_shared(layer: &Layer, input: &Layer, mount: &Mount) -> bool {
    let meets = layer.node == input.node
        && (layer.exact || input.exact)
        && overlap(&layer.bytes, &input.bytes);
    // A mount of Floe locks the part of the image file that it writes, such as a partition.
    let is_ours = mount.file_system == "fuse.floe" && matches!(layer.node, Node::File { .. });
    meets && (!is_ours || is_locked(&input.path, Access::Reading, &input.bytes).unwrap_or(true))
}

impl Mount {
    /// The folder that holds new files of an overlay file system.
    fn upper_layer(&self) -> Option<PathBuf> {
        let mut options = self.options.split(|&byte| byte == b',');
        options.find_map(|option| option.strip_prefix(b"upperdir=")).map(unescaped)
    }
}
