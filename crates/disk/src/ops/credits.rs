//! The most blocks that one change of names, attributes or owners, or of the content of one block, changes ("credits" of jbd2).
//!
//! Such a change cannot be divided, and a mount that lets it wait has accepted it, so the journal must have room for it whenever it
//! comes. The bound is put together from those of its parts; each operation that has it is held to it in debug builds, by every
//! test. Operations that take steps divide themselves by the room that there is ([`Op::is_half_full`]).

use floe_format::Geometry;
use floe_format::ext::xattr::value_inode::MOST_VALUE_BYTES;
use floe_format::features::{Incompat, RoCompat};

use super::staged::Op;
use crate::volume::Volume;

/// How an operation may be divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// It takes steps, or is made while nobody counts on it, as that of a cube.
    Steps,
    /// Its caller can divide it: it is refused if the journal of its cube has no room for it.
    Pieces,
    /// It cannot be divided, and changes at most [`most_of_one_change`] blocks.
    One,
}

/// Entries that the root of a map has.
const ROOT_ENTRIES: u64 = 4;
/// Quota files, and the most new owners of them that one change brings: user, group and project of a new inode.
const QUOTA_FILES: usize = 3;
/// Blocks of a quota tree on the way to an owner: four levels, and the leaf.
const QUOTA_PATH: usize = 5;

/// Blocks for one metadata block that is given or taken: itself, its bitmap, its descriptor; and in a native file system the
/// reservation file of its lot, with the bitmap of the other group in which the region lies: it is never longer than a group.
fn of_block(is_native: bool) -> usize {
    if is_native { 5 } else { 3 }
}

/// Levels of the map of a directory or a quota file below its root. They only grow, so that nodes are half full at least;
/// their blocks lie in the file system, which bounds their number.
fn map_levels(geometry: &Geometry) -> usize {
    if !geometry.features.incompat.contains(Incompat::EXTENTS) {
        return 3;
    }
    // Entries have 12 bytes.
    let half = u64::from(geometry.block_size) / 24;
    let (mut levels, mut blocks) = (0, ROOT_ENTRIES);
    while blocks < geometry.blocks_count && levels < 5 {
        (levels, blocks) = (levels + 1, blocks.saturating_mul(half));
    }
    levels
}

/// The most blocks that one change changes that cannot be divided.
pub(crate) fn most_of_one_change(geometry: &Geometry, is_native: bool) -> usize {
    let features = geometry.features;
    let block = of_block(is_native);
    let index_levels = if features.incompat.contains(Incompat::LARGEDIR) { 3 } else { 2 };
    let levels = map_levels(geometry);
    // A name: a leaf and nodes of the index are divided, and as their blocks follow each other in the file, each level of the
    // map is divided once. Each of these is a new block beside a known one.
    let name = (1 + index_levels + levels) * (block + 1);
    // Two directories whose names lie in their inodes get a block each first.
    let spilt = 2 * (block + 1);
    // Another name that goes or leads elsewhere, and `..` of two directories.
    let other_names = 3;
    // Two directories, what moves, what is replaced; the list of orphans (a block, or the superblock and the inode before).
    let inodes = 4 + 2;
    // A new inode: a bitmap and a descriptor; its first block; a block of attributes.
    let new = 2 + 2 * block;
    // An attribute that lay in an inode, whose orphan entry is one of the above; a shared block of attributes that is left.
    let attributes = 2;
    // A cube that is full takes a lot, whose reservation file is emptied, for the inode or for a block.
    let lots = if is_native { 2 * block } else { 0 };
    // An orphan file that is full gets a block: its inode, the block, and two levels of the map.
    let orphans = if is_native { 1 + block + 2 * (block + 1) } else { 0 };
    // A value of an attribute goes, which lies in an inode of its own: the inode, its bitmap and descriptor, a node of its map;
    // blocks that lie in as many groups, each with a bitmap and a descriptor.
    let value = match features.incompat.contains(Incompat::EA_INODE) {
        true => 4 + 2 * (MOST_VALUE_BYTES.div_ceil(geometry.block_size as usize) + 1),
        false => 0,
    };
    name + spilt
        + value
        + other_names
        + inodes
        + new
        + attributes
        + lots
        + orphans
        + of_quotas(geometry, block, levels)
}

/// The part of quota files: each may get an entry for a new owner beside one that is known.
fn of_quotas(geometry: &Geometry, block: usize, levels: usize) -> usize {
    if !geometry.features.ro_compat.contains(RoCompat::QUOTA) {
        return 0;
    }
    // Blocks of the trees have 1 KiB; several lie in one of the file system.
    let per_block = (geometry.block_size as usize / 1024).max(1);
    let fresh = QUOTA_PATH.div_ceil(per_block) + usize::from(per_block > 1);
    let known = 1 + QUOTA_PATH;
    // The inode, the header, the next leaf with room; nodes of the map.
    QUOTA_FILES * (3 + known + QUOTA_PATH + fresh * block + levels * (block + 1))
}

impl Volume {
    /// The most blocks that one change of names, attributes or owners, or of the content of one block, changes.
    pub fn most_of_one_change(&self) -> usize {
        most_of_one_change(self.geometry(), self.fs.is_native())
    }
}

impl Op<'_> {
    /// Whether there is room for the operation as it is.
    pub(crate) fn fits(&self) -> bool {
        let (volume, changed) = (&self.volume, &self.tx.changed);
        if self.reach == Reach::One {
            let most = volume.most_of_one_change();
            debug_assert!(changed.len() <= most, "{} blocks, {most} expected", changed.len());
        }
        // The journal of a cube that is too short for something that cannot be divided leaves it to that of inode 8.
        changed.len() <= volume.most_changed
            && (self.reach != Reach::Pieces
                || volume.fs.space.fits_journals(changed.numbers(), false))
    }
}
