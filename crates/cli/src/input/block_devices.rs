//! The block devices of this machine, and the external journal of a file system among them.

use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::bail;
use floe_blockdev::{FileDevice, ReadBlocks};
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, Superblock, uuid_text};
use floe_format::features::{Compat, Incompat, RoCompat};

use crate::exit::Ended;
use crate::input::device::Source;
use crate::input::files::is_same;
use crate::message::message;

/// A block device that the kernel lists.
struct BlockDevice {
    path: PathBuf,
    /// Its number, as the superblock of a file system stores that of its journal.
    number: u32,
}

/// The paths of all block devices that the kernel lists.
pub(crate) fn paths() -> Vec<PathBuf> {
    all().into_iter().map(|device| device.path).collect()
}

fn all() -> Vec<BlockDevice> {
    let text = fs::read_to_string("/proc/partitions").unwrap_or_default();
    text.lines().skip(2).filter_map(of_line).collect()
}

/// A line of the kernel's list: major number, minor number, size and name.
fn of_line(line: &str) -> Option<BlockDevice> {
    let mut words = line.split_whitespace();
    let (major, minor): (u32, u32) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    // The kernel replaces '/' in device names by '!'.
    let path = Path::new("/dev").join(words.nth(1)?.replace('!', "/"));
    Some(BlockDevice { path, number: packed(major, minor) })
}

/// A device number in 32 bits, as Linux packs it.
const fn packed(major: u32, minor: u32) -> u32 {
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// The external journal of a file system on a block device: the one that was named, else the block device with the UUID that the
/// superblock says. `None`: the file system has none, or its journal is nowhere, which the check tells.
///
/// # Errors
/// The one that was named is the file system itself, or several devices have that UUID.
pub(crate) fn journal_of(source: &Source, named: Option<&Path>) -> anyhow::Result<Option<PathBuf>> {
    if let Some(named) = named {
        if is_same(named, &source.device) {
            return Err(Ended::usage(format!(
                "{}: its external journal is said to be the device itself; name the device that holds the journal. Nothing was changed.",
                source.name()
            )));
        }
        return Ok(Some(named.to_owned()));
    }
    let is_device =
        fs::metadata(&source.device).is_ok_and(|found| found.file_type().is_block_device());
    let Some(superblock) = Some(source).filter(|_| is_device).and_then(superblock_in) else {
        return Ok(None);
    };
    if !is_elsewhere(&superblock) {
        return Ok(None);
    }
    let wanted = superblock.journal_uuid;
    let has_uuid = wanted != [0; 16];
    let holds = |device: &BlockDevice| {
        // The number may be that of another device since, so a UUID counts more.
        (has_uuid || device.number == superblock.journal_dev)
            && journal_uuid(&device.path).is_some_and(|uuid| !has_uuid || uuid == wanted)
            && !is_below_another(&device.path)
    };
    let found: Vec<PathBuf> = all().into_iter().filter(holds).map(|device| device.path).collect();
    match found.as_slice() {
        [] => Ok(None),
        [one] => {
            message!("floe: {}: its journal is {}", source.name(), one.display());
            Ok(Some(one.clone()))
        }
        [one, other, ..] => bail!(
            "{}: its journal has the UUID {}, and so have {} and {}: name one with \
             --external-journal (-j of e2fsck). Nothing was changed.",
            source.name(),
            uuid_text(&wanted),
            one.display(),
            other.display()
        ),
    }
}

/// Whether a file system has its journal on another device.
fn is_elsewhere(superblock: &Superblock) -> bool {
    superblock.features().compat.contains(Compat::HAS_JOURNAL) && superblock.journal_inum == 0
}

/// The superblock that counts, as far as it can be found. Descriptors are only read where the primary one is not proved by its checksum,
/// or has its journal elsewhere.
fn superblock_in(source: &Source) -> Option<Superblock> {
    let device = source.open().ok()?;
    let names_none = source.superblock.is_none() && source.block_size.is_none();
    match superblock_of(&device).filter(|_| names_none) {
        Some((primary, true)) if !is_elsewhere(&primary) => Some(primary),
        _ => floe_check::open::open(&device, source.which()).ok().map(|opened| opened.superblock),
    }
}

/// The primary superblock of a file system or journal, and whether a checksum proves it.
fn superblock_of(device: &dyn ReadBlocks) -> Option<(Superblock, bool)> {
    let mut bytes = [0; 1024];
    device.read_at(OFFSET_BYTES, &mut bytes).ok()?;
    let found = Superblock::decode(&bytes);
    let has_checksum = found.features().ro_compat.contains(RoCompat::METADATA_CSUM);
    let is_proved = has_checksum && Superblock::checksum_ok(&bytes);
    (found.magic == MAGIC).then_some((found, is_proved))
}

/// The UUID of the journal that fills a device.
fn journal_uuid(path: &Path) -> Option<[u8; 16]> {
    let (outer, _) = superblock_of(&FileDevice::open(path).ok()?)?;
    let is_journal = outer.features().incompat.contains(Incompat::JOURNAL_DEV);
    is_journal.then_some(outer.uuid)
}

/// Whether another block device is made of this one (RAID 1, several paths), and shows the same bytes.
fn is_below_another(path: &Path) -> bool {
    let Some(name) = path.strip_prefix("/dev").ok().and_then(Path::to_str) else { return false };
    let holders = Path::new("/sys/class/block").join(name.replace('/', "!")).join("holders");
    fs::read_dir(holders).is_ok_and(|mut entries| entries.next().is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernels_list() {
        let device = of_line(" 259        1     500107 cciss!c0d0p1").unwrap();
        assert_eq!(device.path, Path::new("/dev/cciss/c0d0p1"));
        assert_eq!(device.number, 259 << 8 | 1);
        assert!(of_line("").is_none());
    }

    #[test]
    fn numbers_are_packed_as_linux_does() {
        assert_eq!(packed(8, 1), 0x801);
        assert_eq!(packed(7, 0x123), 0x0010_0723);
    }
}
