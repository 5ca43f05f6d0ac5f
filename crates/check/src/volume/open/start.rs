//! File systems that begin elsewhere on a device than at its start, as all do on a disk whose partition table is lost.

use floe_blockdev::{ReadBlocks, Window};
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, Superblock};
use floe_format::geometry::Strictness;
use floe_format::{Geometry, GroupNr};

use super::{WhichSuperblock, open};

/// Partitions begin at multiples of sectors.
const SECTOR_BYTES: u64 = 512;
/// Bytes read at once.
const CHUNK_BYTES: usize = 1 << 20;
/// Type bits of a mode, and those of a directory.
const TYPE_BITS: u16 = 0xf000;
const DIRECTORY: u16 = 0x4000;

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
    let is_file_system = start.is_multiple_of(SECTOR_BYTES) && has_root(device, start, which)?;
    is_file_system.then_some(start)
}

/// Whether there is a root directory if a file system begins at `start`.
fn has_root(device: &dyn ReadBlocks, start: u64, which: WhichSuperblock) -> Option<bool> {
    let window = Window::new(device, start, None).ok()?;
    let opened = open(&window, which).ok()?;
    let table = opened.geometry.offset_bytes(opened.groups.first()?.inode_table);
    let mut mode = [0; 2];
    window.read_at(table.checked_add(u64::from(opened.geometry.inode_size))?, &mut mode).ok()?;
    Some(u16::from_le_bytes(mode) & TYPE_BITS == DIRECTORY)
}

/// The first byte in `limit_bytes` at which a file system begins, apart from the start of the device.
pub fn first_start(device: &dyn ReadBlocks, limit_bytes: u64) -> Option<u64> {
    let end = device.size_bytes().min(limit_bytes);
    let mut bytes = vec![0; CHUNK_BYTES];
    for start in (0..end).step_by(CHUNK_BYTES) {
        let len = (end - start).min(CHUNK_BYTES as u64) as usize;
        let bytes = &mut bytes[..len];
        if device.is_hole(start, len as u64) || device.read_at(start, bytes).is_err() {
            continue;
        }
        let found = (0..len)
            .step_by(SECTOR_BYTES as usize)
            .filter(|at| bytes.get(at + 0x38..at + 0x3a) == Some(&MAGIC.to_le_bytes()[..]))
            .find_map(|at| start_of(device, start + at as u64));
        if found.is_some() {
            return found;
        }
    }
    None
}
