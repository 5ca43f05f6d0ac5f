//! Check: the inode that the superblock names as the orphan file can be one.
//! Reads: the inode and its first blocks.  Keeps: nothing.  Emits: `OrphanFileInodeWrong`; [`is_one`] is for
//! whoever finds an inode without a name.
//! Does not verify: the rest of the file (`checks/system_files/orphan_file.rs`).
//!
//! A wrong number must not be believed: whoever empties "the orphan file" would write over a user's file.

use floe_blockdev::ReadBlocks;
use floe_ext4::inode_table::read_inode;
use floe_ext4::map::runs::BlockMap;
use floe_format::ext::inode::{FileType, Inode};
use floe_format::ext::orphan_file::{MAGIC, OrphanBlock};
use floe_format::features::Compat;
use floe_format::{BlockNr, InodeNr};

use crate::problem::{Problem, Sink};
use crate::volume::Volume;
use crate::volume::open::Opened;

/// Blocks of a file that are looked at, at most: one with the mark of an orphan file is enough.
const BLOCKS_LOOKED_AT: u64 = 16;

/// Forgets the number if the inode cannot be the orphan file, and says so.
pub fn judge(device: &dyn ReadBlocks, opened: &mut Opened) {
    let inode = InodeNr(opened.superblock.orphan_file_inum);
    if inode.0 == 0 {
        return;
    }
    if let Some(reason) = why_wrong(device, opened, inode) {
        opened.found.push(Problem::OrphanFileInodeWrong { inode, reason });
        opened.superblock.orphan_file_inum = 0;
    }
}

/// Why an inode is no orphan file; `None` too where that cannot be seen.
fn why_wrong(device: &dyn ReadBlocks, opened: &Opened, inode: InodeNr) -> Option<&'static str> {
    let geometry = &opened.geometry;
    // Without the feature Linux does not look at the number; e2fsck releases what is there.
    let featured = geometry.features.compat.contains(Compat::ORPHAN_FILE);
    if inode.0 > geometry.inodes_count {
        return featured.then_some("there is no such inode");
    }
    if featured && geometry.is_reserved(inode) {
        return Some("the inode is reserved for something else");
    }
    let raw = read_inode(inode, device, geometry, &opened.groups)?;
    let file = Inode::decode(&raw)?;
    if file.base.links_count == 0 {
        return None;
    }
    let mut bytes = vec![0; geometry.block_size as usize];
    let read = |block: BlockNr| {
        device.read_at(geometry.offset_bytes(block), &mut bytes).ok()?;
        OrphanBlock::new(&bytes).map(|slots| slots.magic() == MAGIC)
    };
    let map = BlockMap::of(&file, device, geometry, BLOCKS_LOOKED_AT).ok()?;
    // A block that cannot be read may have the mark.
    let marked = blocks(&map).map(read).any(|marked| marked != Some(false));
    if marked {
        return None;
    }
    Some(match file.file_type() {
        _ if !featured => "the file system has none",
        Some(FileType::Regular) => "none of its first blocks has the mark of one",
        _ => "the inode is no regular file",
    })
}

fn blocks(map: &BlockMap) -> impl Iterator<Item = BlockNr> {
    (0..BLOCKS_LOOKED_AT).filter_map(|logical| map.block(logical))
}

/// Whether an inode without a name is an orphan file: its first block has the mark of one, and the checksum
/// where there are checksums, which depends on the number of the inode and of the block.
pub fn is_one(volume: &Volume<'_>, inode: InodeNr, file: &Inode<'_>) -> bool {
    if !volume.has_compat(Compat::ORPHAN_FILE) || file.file_type() != Some(FileType::Regular) {
        return false;
    }
    let Ok(map) = BlockMap::of(file, volume.device, &volume.geometry, 1) else { return false };
    let Some(block) = map.block(0) else { return false };
    let mut bytes = Vec::new();
    if volume.read_block(block, &mut bytes).is_err() {
        return false;
    }
    let seed = volume.seed.of_inode(inode, file.base.generation);
    OrphanBlock::new(&bytes).is_some_and(|slots| {
        slots.magic() == MAGIC
            && (!volume.features().metadata_csum()
                || slots.stored_checksum() == slots.compute_checksum(seed, block))
    })
}
