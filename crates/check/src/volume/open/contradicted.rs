//! Fields of a superblock that what lies on the disk contradicts. e2fsck believes them, and files are lost: it
//! empties inodes that `s_first_ino` calls reserved, and writes lists over the blocks that `s_reserved_gdt_blocks`
//! claims. Which layout the file system has is judged in `rext3.rs` beside this.

use floe_blockdev::ReadBlocks;
use floe_ext4::inode_table::read_inode;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::indirect::pointers;
use floe_format::ext::inode::{FileType, Inode};
use floe_format::ext::superblock::Superblock;
use floe_format::features::{Compat, Incompat};
use floe_format::geometry::{Geometry, Strictness};
use floe_format::{BlockNr, GroupNr, InodeNr};

use super::backups::USUAL_FIRST_INODE;
use super::{Opened, backup_groups, group_size, rext3, stray_features};

/// The word of `i_block` that names the double-indirect block.
const DOUBLE: usize = 13;
/// Number of bitmaps and inode tables of a group that must lie among the reserved descriptor blocks
/// before their count is doubted: a single one may itself be wrong.
const WITNESSES: usize = 2;

/// One in so many groups may have its bitmap elsewhere, where tables leave no room, and one in so many copies may be lost.
pub(super) const FEW: usize = 8;

/// Bytes of an inode that are usual.
const INODE_SIZES: [u16; 4] = [256, 128, 512, 1024];

/// A field, its stored value, and the superblock with the right one.
pub(super) struct Contradicted {
    pub field: &'static str,
    pub stored: u64,
    pub expected: u64,
    pub superblock: Superblock,
    /// Nothing goes wrong while the field is as it is.
    pub is_harmless: bool,
}

/// The first field that is contradicted.
pub(super) fn find(device: &dyn ReadBlocks, opened: &Opened) -> Option<Contradicted> {
    rext3::find(device, opened)
        .or_else(|| group_size::find(device, opened))
        .or_else(|| backup_groups::find(device, opened))
        .or_else(|| inode_size(device, opened))
        .or_else(|| first_inode(device, opened))
        .or_else(|| reserved_descriptors(device, opened))
        .or_else(|| stray_features::find(device, opened))
        .or_else(|| flexible_groups(device, opened))
}

/// Inodes below `s_first_ino` that are in use like any other. Every mke2fs writes 11.
fn first_inode(device: &dyn ReadBlocks, opened: &Opened) -> Option<Contradicted> {
    let stored = opened.geometry.first_inode;
    let in_use = |number: &u32| {
        let raw = read_inode(InodeNr(*number), device, &opened.geometry, &opened.groups);
        raw.as_deref().and_then(Inode::decode).is_some_and(|inode| {
            let base = &inode.base;
            base.links_count > 0 && base.dtime == 0 && inode.file_type().is_some()
        })
    };
    let end = stored.0.min(opened.geometry.inodes_per_group.saturating_add(1));
    (USUAL_FIRST_INODE.0..end).find(in_use)?;
    let first_ino = USUAL_FIRST_INODE.0;
    Some(Contradicted {
        field: "s_first_ino",
        stored: stored.0.into(),
        expected: first_ino.into(),
        superblock: Superblock { first_ino, ..opened.superblock.clone() },
        is_harmless: false,
    })
}

/// By the stored size of inodes the root is no directory, and by another one it is: that of the backups, or one by which so is the
/// first inode that is not reserved, as in every file system with a lost+found. e2fsck makes a new root.
fn inode_size(device: &dyn ReadBlocks, opened: &Opened) -> Option<Contradicted> {
    let (sb, stored) = (&opened.superblock, opened.superblock.inode_size);
    let is_directory = |number, inode_size| {
        let superblock = Superblock { inode_size, ..sb.clone() };
        let geometry = Geometry::new(&superblock, Strictness::Strict).ok()?;
        let raw = read_inode(number, device, &geometry, &opened.groups)?;
        let inode = Inode::decode(&raw)?;
        let is_used = inode.base.links_count > 0 && inode.base.dtime == 0;
        Some(is_used && inode.file_type() == Some(FileType::Directory))
    };
    let has_root = |size| is_directory(InodeNr::ROOT, size) == Some(true);
    if sb.rev_level == 0 || has_root(stored) {
        return None;
    }
    let of_copies = rext3::copies(device, opened).into_iter().map(|copy| copy.inode_size);
    let first = opened.geometry.first_inode;
    let sizes = INODE_SIZES.into_iter().filter(|size| is_directory(first, *size) == Some(true));
    let inode_size = of_copies.chain(sizes).find(|size| *size != stored && has_root(*size))?;
    Some(Contradicted {
        field: "s_inode_size",
        stored: stored.into(),
        expected: inode_size.into(),
        superblock: Superblock { inode_size, ..sb.clone() },
        is_harmless: false,
    })
}

/// Bitmaps and inode table of the first group lie among the blocks reserved for descriptors: the reserved ones end
/// earlier, where the resize inode says, or at the first of these.
fn reserved_descriptors(device: &dyn ReadBlocks, opened: &Opened) -> Option<Contradicted> {
    let geometry = &opened.geometry;
    let reserved = geometry.reserved_gdt_run(GroupNr(0));
    let desc = opened.groups.first()?;
    let inside = [desc.block_bitmap, desc.inode_bitmap, desc.inode_table]
        .into_iter()
        .filter(|&block| block >= reserved.start && block < reserved.end());
    if inside.clone().count() < WITNESSES {
        return None;
    }
    let room = inside.min()?.0 - reserved.start.0;
    let listed = listed(device, opened, reserved.start).filter(|&listed| listed <= room);
    let expected = listed.unwrap_or(room);
    let reserved_gdt_blocks = u16::try_from(expected).ok()?;
    Some(Contradicted {
        field: "s_reserved_gdt_blocks",
        stored: reserved.len_blocks,
        expected,
        superblock: Superblock { reserved_gdt_blocks, ..opened.superblock.clone() },
        is_harmless: false,
    })
}

/// Bitmaps lie where they are together by the groups of a flexible group that a backup states, and by `s_log_groups_per_flex` of the
/// primary superblock most do not. Backups are only read in the second case.
fn flexible_groups(device: &dyn ReadBlocks, opened: &Opened) -> Option<Contradicted> {
    let sb = &opened.superblock;
    if !sb.features().incompat.contains(Incompat::FLEX_BG) {
        return None;
    }
    let misplaced = |log: u8| {
        let groups = (0..).zip(&opened.groups);
        groups.filter(|(group, desc)| !is_together(&opened.geometry, *group, desc, log)).count()
    };
    let most = opened.groups.len() / 2;
    if misplaced(sb.log_groups_per_flex) <= most {
        return None;
    }
    let copies = rext3::copies(device, opened);
    let said = copies.iter().map(|copy| copy.log_groups_per_flex);
    let log_groups_per_flex = said.min_by_key(|log| misplaced(*log))?;
    (misplaced(log_groups_per_flex) * FEW < opened.groups.len()).then(|| Contradicted {
        field: "s_log_groups_per_flex",
        stored: sb.log_groups_per_flex.into(),
        expected: log_groups_per_flex.into(),
        superblock: Superblock { log_groups_per_flex, ..sb.clone() },
        is_harmless: true,
    })
}

/// Whether the block bitmap of a group lies in the first group of its flexible group.
fn is_together(geometry: &Geometry, group: u32, desc: &GroupDesc, log: u8) -> bool {
    let first = group.checked_shr(u32::from(log)).and_then(|at| at.checked_shl(u32::from(log)));
    geometry.group_of(desc.block_bitmap) == Some(GroupNr(first.unwrap_or(0)))
}

/// How many blocks from `first` on the resize inode lists one after another; `None` if that cannot be told.
fn listed(device: &dyn ReadBlocks, opened: &Opened, first: BlockNr) -> Option<u64> {
    let geometry = &opened.geometry;
    if !geometry.features.compat.contains(Compat::RESIZE_INODE) {
        return None;
    }
    let raw = read_inode(InodeNr::RESIZE, device, geometry, &opened.groups)?;
    let double = BlockNr(u64::from(Inode::decode(&raw)?.block_word(DOUBLE)?));
    if double.0 == 0 || !geometry.contains(double) {
        return None;
    }
    let mut table = vec![0; geometry.block_size as usize];
    device.read_at(geometry.offset_bytes(double), &mut table).ok()?;
    let named = pointers(&table).skip(geometry.desc_blocks as usize);
    let listed = (first.0..).zip(named).take_while(|&(block, named)| block == u64::from(named));
    Some(listed.count() as u64).filter(|&listed| listed > 0)
}
