//! Reading the group descriptors, from the primary table or from a backup.

use floe_blockdev::ReadBlocks;
use floe_format::ext::group_desc::{DescChecksum, FLAG_BLOCK_UNINIT, FLAG_INODE_UNINIT, GroupDesc};
use floe_format::ext::superblock::Superblock;
use floe_format::{BlockNr, Geometry, GroupNr};

use crate::problem::{Findings, Problem, Sink};
use crate::volume::is_absent;

/// Reads all descriptors. `backup` is the block of the superblock in use if it is a backup: its own
/// descriptors are read then, and nothing in them that says "never written" is believed.
pub fn read(
    device: &dyn ReadBlocks,
    superblock: &Superblock,
    geometry: &Geometry,
    backup: Option<BlockNr>,
    found: &mut Findings,
) -> Vec<GroupDesc> {
    read_with_flags(device, superblock, geometry, backup, found).0
}

/// The same, with the flags that the descriptors of a backup have: what they say was true once.
pub(super) fn read_with_flags(
    device: &dyn ReadBlocks,
    superblock: &Superblock,
    geometry: &Geometry,
    backup: Option<BlockNr>,
    found: &mut Findings,
) -> (Vec<GroupDesc>, Vec<u16>) {
    let mut flags = Vec::new();
    let per_block = geometry.descs_per_block();
    let mut groups = Vec::with_capacity(geometry.group_count as usize);
    let mut bytes = vec![0; geometry.block_size as usize];
    for index in 0..geometry.desc_blocks {
        let block = match backup {
            None => geometry.primary_desc_block(index),
            Some(superblock) => backup_desc_block(geometry, superblock, index),
        };
        let first = GroupNr(index * per_block);
        let offset = block.0.checked_mul(u64::from(geometry.block_size));
        let read = offset.is_some_and(|offset| device.read_at(offset, &mut bytes).is_ok());
        let is_there = |block| !is_absent(geometry, device.size_bytes(), block);
        if !read && is_there(block) {
            found.push(Problem::UnreadableGroupDescriptors { group: first, block });
        }
        if !read {
            bytes.fill(0);
        }
        let count = per_block.min(geometry.group_count - first.0);
        for (at, raw) in
            bytes.chunks_exact(geometry.desc_size as usize).take(count as usize).enumerate()
        {
            // At most one block of descriptors.
            let group = GroupNr(first.0 + at as u32);
            let mut desc = GroupDesc::of(raw);
            if backup.is_some() {
                flags.push(desc.flags);
                if geometry.features.group_desc_csum() {
                    desc.flags &= !(FLAG_BLOCK_UNINIT | FLAG_INODE_UNINIT);
                    desc.itable_unused = 0;
                }
            } else if read && is_there(geometry.group_start(group)) {
                judge_checksum(superblock, group, &desc, raw, found);
            }
            groups.push(desc);
        }
    }
    (groups, flags)
}

fn judge_checksum(
    superblock: &Superblock,
    group: GroupNr,
    desc: &GroupDesc,
    raw: &[u8],
    found: &mut Findings,
) {
    let Some(expected) = DescChecksum::of(superblock).compute(group, raw) else { return };
    if expected != desc.checksum {
        found.push(Problem::GroupDescriptorChecksumBad { group, stored: desc.checksum, expected });
    }
}

/// Where descriptor block `index` that goes with the superblock in block `superblock` lies: behind
/// it, or with meta_bg in the second group of the meta group.
fn backup_desc_block(geometry: &Geometry, superblock: BlockNr, index: u32) -> BlockNr {
    if index < geometry.first_meta_bg {
        return BlockNr(superblock.0.saturating_add(1 + u64::from(index)));
    }
    let first = GroupNr(index * geometry.descs_per_block());
    let second = GroupNr(first.0.saturating_add(1));
    if second.0 < geometry.group_count {
        geometry.group_desc_run(second).start
    } else {
        geometry.group_desc_run(first).start
    }
}
