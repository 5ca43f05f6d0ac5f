//! File systems that begin elsewhere on a device than at its start, as all do on a disk whose partition table is lost.

use floe_blockdev::{ReadBlocks, SECTOR_BYTES, Window};
use floe_ext4::superblocks::each_magic;
use floe_format::ext::inode::FileType;
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, Superblock};
use floe_format::geometry::Strictness;
use floe_format::{Geometry, GroupNr};

use super::{WhichSuperblock, open};

/// The byte at which the file system begins to which a superblock at `offset_bytes` belongs, if that is not the
/// start of the device: the superblock says in which group it lies. There must be a root directory.
pub fn start_of(device: &dyn ReadBlocks, offset_bytes: u64) -> Option<u64> {
    let mut bytes = Box::new([0; 1024]);
    device.read_at(offset_bytes, &mut *bytes).ok()?;
    let superblock = Superblock::decode(&bytes);
    if superblock.magic != MAGIC || !Superblock::checksum_ok(&bytes) {
        return None;
    }
    let geometry = Geometry::new(&superblock, Strictness::Strict).ok()?;
    let (which, place) = match superblock.block_group_nr {
        0 => (WhichSuperblock::default(), OFFSET_BYTES),
        group => {
            let block = geometry.superblock_of(GroupNr(u32::from(group)))?;
            let block_size = Some(geometry.block_size);
            (WhichSuperblock { block: Some(block), block_size }, geometry.offset_bytes(block))
        }
    };
    let start = offset_bytes.checked_sub(place).filter(|&start| start > 0)?;
    let is_file_system =
        start.is_multiple_of(SECTOR_BYTES as u64) && has_root(device, start, which)?;
    is_file_system.then_some(start)
}

/// Whether there is a root directory if a file system begins at `start`.
fn has_root(device: &dyn ReadBlocks, start: u64, which: WhichSuperblock) -> Option<bool> {
    let window = Window::new(device, start, None).ok()?;
    let opened = open(&window, which).ok()?;
    let table = opened.geometry.offset_bytes(opened.groups.first()?.inode_table);
    let mut mode = [0; 2];
    window.read_at(table.checked_add(u64::from(opened.geometry.inode_size))?, &mut mode).ok()?;
    Some(FileType::of_mode(u16::from_le_bytes(mode)) == Some(FileType::Directory))
}

/// The first byte in `limit_bytes` at which a file system begins, apart from the start of the device.
pub fn first_start(device: &dyn ReadBlocks, limit_bytes: u64) -> Option<u64> {
    let mut found = None;
    each_magic(device, limit_bytes, SECTOR_BYTES, &mut |at| {
        found = start_of(device, at);
        found.is_none()
    });
    found
}
