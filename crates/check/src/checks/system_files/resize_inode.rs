//! Check: the resize inode lists the reserved descriptor blocks and their copies.
//! Reads: inode 7, its double-indirect block, reserved descriptor blocks.  Keeps: nothing.
//! Emits: `ReservedGdtWithoutResizeInode`, `ResizeInode*`.
//! Does not verify: the blocks as claims (`passes/inodes.rs`).

use std::ops::ControlFlow;

use floe_format::ext::indirect::pointers;
use floe_format::ext::inode::{FileType, Inode};
use floe_format::features::Compat;
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr};

use crate::problem::{Findings, Problem, Sink};
use crate::volume::Volume;
use floe_ext4::inode_table::read_inode;

/// The word of `i_block` that names the double-indirect block.
const DOUBLE: usize = 13;

/// Checks inode 7 and the field that goes with it.
pub fn check(volume: &Volume<'_>, found: &mut Findings) {
    let geometry = &volume.geometry;
    let has_feature = volume.has_compat(Compat::RESIZE_INODE);
    let value = volume.superblock.reserved_gdt_blocks;
    if !has_feature && value != 0 {
        found.push(Problem::ReservedGdtWithoutResizeInode { value });
    }
    let inode = InodeNr::RESIZE;
    // An inode that cannot be read is reported by the inode pass.
    let Some(raw) = read_inode(inode, volume.device, geometry, &volume.groups) else { return };
    let Some(resize) = Inode::decode(&raw) else { return };
    if !has_feature {
        if resize.base.block != [0; 60] {
            found.push(Problem::ResizeInodeLeftover { inode });
        }
    } else if let Err((block, reason)) = judge(volume, &resize) {
        found.push(Problem::ResizeInodeInvalid { inode, block, reason });
    }
}

/// The block and the reason if the inode is not as it must be.
fn judge(volume: &Volume<'_>, resize: &Inode<'_>) -> Result<(), (BlockNr, &'static str)> {
    let geometry = &volume.geometry;
    let double = BlockNr(u64::from(resize.block_word(DOUBLE).unwrap_or(0)));
    let others = (0..15).filter(|&index| index != DOUBLE);
    if let Some(other) = others.filter_map(|at| resize.block_word(at)).find(|&word| word != 0) {
        return Err((BlockNr(u64::from(other)), "it has a block beside the double-indirect one"));
    }
    if resize.base.links_count == 0 || resize.file_type() != Some(FileType::Regular) {
        return Err((double, "it is no regular file with a link"));
    }
    if double.0 == 0 || !geometry.contains(double) {
        return Err((double, "its double-indirect block is out of range"));
    }
    let (mut table, mut copies) = (Vec::new(), Vec::new());
    if volume.read_block(double, &mut table).is_err() {
        return Err((double, "its double-indirect block cannot be read"));
    }
    let table: Vec<u32> = pointers(&table).collect();
    // With 1 KiB blocks and bigalloc the superblock lies in block 1 although group 0 begins at 0.
    let first = geometry.group_desc_run(GroupNr(0)).end().0;
    let with_copies: Vec<GroupNr> = superblock_groups(volume).collect();
    // As many as e2fsck looks at: a quarter.
    let looked_at = BlockRun::new(BlockNr(first), u64::from(geometry.reserved_gdt_blocks / 4));
    let judged = volume.blocks_of(looked_at, &mut copies, |block, bytes| {
        let slot = (u64::from(geometry.desc_blocks) + block.0 - first) % table.len().max(1) as u64;
        let named = table.get(slot as usize).copied().unwrap_or(0);
        if u64::from(named) != block.0 {
            return ControlFlow::Break((block, "it does not list a reserved descriptor block"));
        }
        let Some(bytes) = bytes else {
            return ControlFlow::Break((block, "a reserved descriptor block cannot be read"));
        };
        let mut listed = pointers(bytes);
        for group in &with_copies {
            let expected = block.0 + u64::from(group.0) * u64::from(geometry.blocks_per_group);
            if listed.next().map(u64::from) != Some(expected) {
                let reason = "a reserved descriptor block does not list its copies";
                return ControlFlow::Break((block, reason));
            }
        }
        ControlFlow::Continue(())
    });
    match judged {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(fault) => Err(fault),
    }
}

/// Groups with a backup superblock. Pointers have 32 bits and a block holds few of them, so no
/// file system with a resize inode has many.
fn superblock_groups(volume: &Volume<'_>) -> impl Iterator<Item = GroupNr> {
    let geometry = &volume.geometry;
    let limit = geometry.block_size as usize / 4 + 1;
    (1..geometry.group_count).map(GroupNr).filter(|&g| geometry.has_superblock(g)).take(limit)
}
