//! Check: what the blocks listed in the bad-block inode hit.
//! Reads: the map of inode 1.  Keeps: nothing.  Emits: `Badblocks*`, `*OnBadBlock`,
//! `BadBlockOwnerUnknown`, `BadBlockListUnreadable`.
//! Does not verify: the inode itself, and its claims (`checks/system_files/reserved_inodes.rs`).

use std::collections::{BTreeMap, HashSet};

use floe_format::ext::indirect::pointers;
use floe_format::ext::inode::{Inode, InodeFlags};
use floe_format::{BlockNr, GroupNr, InodeNr, LogicalBlock};

use crate::problem::{Findings, Problem, Sink};
use crate::volume::Volume;
use floe_ext4::inode_table::read_inode;

/// Checks the list of bad blocks; costs one inode where there is none. Comes back with the blocks of
/// inode tables that are listed, sorted.
pub fn check(volume: &Volume<'_>, found: &mut Findings) -> Vec<BlockNr> {
    let inode = InodeNr::BAD_BLOCKS;
    // An inode that cannot be read is reported by the inode pass.
    let Some(raw) = read_inode(inode, volume.device, &volume.geometry, &volume.groups) else {
        return Vec::new();
    };
    let Some(list) = Inode::decode(&raw) else { return Vec::new() };
    if list.base.block == [0; 60] || list.flags().contains(InodeFlags::EXTENTS) {
        return Vec::new();
    }
    let mut walk = Walk { volume, found, nodes: HashSet::new(), listed: BTreeMap::new() };
    for (index, word) in pointers(&list.base.block).enumerate() {
        if let Some((logical, level)) = volume.geometry.indirect().root_slot(index) {
            walk.pointer(word, logical, level);
        }
    }
    let Walk { nodes, listed, .. } = walk;
    judge(volume, &nodes, &listed, found)
}

struct Walk<'a> {
    volume: &'a Volume<'a>,
    found: &'a mut Findings,
    /// Indirect blocks; each is read once, so that the walk ends.
    nodes: HashSet<BlockNr>,
    /// Blocks listed as bad.
    listed: BTreeMap<BlockNr, LogicalBlock>,
}

impl Walk<'_> {
    fn pointer(&mut self, word: u32, logical: LogicalBlock, level: u32) {
        let (inode, block) = (InodeNr::BAD_BLOCKS, BlockNr(u64::from(word)));
        if word == 0 {
            return;
        }
        if !self.volume.geometry.contains(block) {
            self.found.push(Problem::BadblocksInodeBlockOutOfRange { inode, logical, block });
            return;
        }
        if level == 0 {
            self.listed.insert(block, logical);
            return;
        }
        if self.volume.is_metadata(block) {
            self.found.push(Problem::BadblocksInodeIndirectOnMetadata { inode, block });
        }
        if !self.nodes.insert(block) {
            self.found.push(Problem::BadblocksInodeIndirectBlockBad { inode, block });
            return;
        }
        let mut bytes = Vec::new();
        if self.volume.read_block(block, &mut bytes).is_err() {
            self.found.push(Problem::BadBlockListUnreadable { inode, block });
            return;
        }
        let form = self.volume.geometry.indirect();
        let span = form.span_blocks(level - 1);
        for (index, word) in (0..).zip(pointers(form.body(&bytes))) {
            self.pointer(word, LogicalBlock(logical.0 + index * span), level - 1);
        }
    }
}

/// Says what each listed block hits. The groups are walked once, whatever the length of the list.
fn judge(
    volume: &Volume<'_>,
    nodes: &HashSet<BlockNr>,
    listed: &BTreeMap<BlockNr, LogicalBlock>,
    found: &mut Findings,
) -> Vec<BlockNr> {
    let geometry = &volume.geometry;
    let inode = InodeNr::BAD_BLOCKS;
    let mut explained = HashSet::new();
    let mut in_tables = Vec::new();
    for (group, desc) in (0..).map(GroupNr).zip(&volume.groups) {
        if listed.is_empty() {
            break;
        }
        let mut hit = |block: BlockNr, problem: Problem| {
            if listed.contains_key(&block) && explained.insert(block) {
                found.push(problem);
            }
        };
        if let Some(block) = geometry.superblock_of(group) {
            hit(
                block,
                match group.0 {
                    0 => Problem::PrimarySuperblockOnBadBlock { block },
                    _ => Problem::BackupSuperblockOnBadBlock { group, block },
                },
            );
        }
        let descs = geometry.group_desc_run(group);
        for block in (descs.start.0..descs.end().0).map(BlockNr) {
            hit(
                block,
                match group.0 {
                    0 => Problem::PrimaryDescriptorsOnBadBlock { group, block },
                    _ => Problem::BackupDescriptorsOnBadBlock { group, block },
                },
            );
        }
        let block = desc.block_bitmap;
        hit(block, Problem::GroupBlockBitmapOnBadBlock { group, block });
        let block = desc.inode_bitmap;
        hit(block, Problem::GroupInodeBitmapOnBadBlock { group, block });
        // A bad block of an inode table only takes the inodes in it, but it must not be the list's.
        let table = desc.inode_table.0;
        let end = table.saturating_add(u64::from(geometry.inode_table_blocks));
        let of_table = listed.range(BlockNr(table)..BlockNr(end)).map(|(&block, _)| block);
        in_tables.extend(of_table);
        if group.0 == 0 && listed.contains_key(&desc.inode_table) {
            let block = desc.inode_table;
            found.push(Problem::BadblocksListContainsItself { inode, block });
        }
    }
    in_tables.sort_unstable();
    explained.extend(in_tables.iter().copied());
    for (&block, _) in listed.iter().filter(|(block, _)| !explained.contains(block)) {
        if nodes.contains(&block) {
            found.push(Problem::BadblocksInodeIndirectBlockBad { inode, block });
        } else if volume.is_metadata(block) && geometry.cluster_blocks == 1 {
            found.push(Problem::BadBlockOwnerUnknown { block });
        }
    }
    in_tables
}
