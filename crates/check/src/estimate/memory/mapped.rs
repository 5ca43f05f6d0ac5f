//! Estimates from the descriptors how many chunks need bits for clusters. The clusters that a group
//! uses besides its metadata form at most as many runs as clusters, and a few runs need no bits
//! (`evidence/block_set.rs`). So a group that holds hardly more than metadata needs none.
//!
//! The estimate cannot be better: a full group is one run in the end, but its inodes may be read in
//! any order and by several threads.

use std::collections::BTreeMap;

use floe_format::ext::group_desc::GroupDesc;
use floe_format::{BlockRun, Geometry, GroupNr};

use crate::evidence::block_set::{CHUNK_BITS, FEW};

/// Groups that are looked at one by one; of further ones any may take bits. A stranger's image may
/// claim any number of groups.
const MOST_GROUPS: usize = 1 << 16;

/// Clusters in use in each group, according to the descriptors seen so far.
#[derive(Debug, Default)]
pub struct Mapped {
    groups: BTreeMap<u32, Group>,
    /// Groups beyond those.
    more: u64,
    /// Where block bitmaps, inode bitmaps and inode tables ended that came before: what follows is in
    /// the same run.
    ends: [u64; 3],
}

/// Clusters of a group.
#[derive(Clone, Copy, Debug, Default)]
struct Group {
    /// In use, by its descriptor.
    used: u32,
    /// Clusters among them that hold bitmaps and tables.
    metadata: u32,
    /// The runs in which these lie, at most.
    runs: u32,
}

impl Mapped {
    /// Adds the descriptor of a group.
    pub fn add(&mut self, geometry: &Geometry, group: GroupNr, desc: &GroupDesc) {
        let used = geometry.clusters_of(group).saturating_sub(desc.free_blocks_count);
        if used > 0
            && let Some(of_group) = self.group(group)
        {
            of_group.used = used;
        }
        let table_blocks = u64::from(geometry.inode_table_blocks);
        for (kind, start, len_blocks) in [
            (0, desc.block_bitmap, 1),
            (1, desc.inode_bitmap, 1),
            (2, desc.inode_table, table_blocks),
        ] {
            let run = BlockRun::new(start, len_blocks);
            let follows = self.ends[kind] == start.0;
            self.place(geometry, run, follows);
            self.ends[kind] = run.end().0;
        }
    }

    /// A group, unless there are too many.
    fn group(&mut self, group: GroupNr) -> Option<&mut Group> {
        if self.groups.len() >= MOST_GROUPS && !self.groups.contains_key(&group.0) {
            self.more += 1;
            return None;
        }
        Some(self.groups.entry(group.0).or_default())
    }

    /// Notes a run of metadata in the groups that it lies in.
    fn place(&mut self, geometry: &Geometry, run: BlockRun, follows: bool) {
        let (mut at, mut follows) = (run.start, follows);
        while let Some(group) = geometry.group_of(at).filter(|_| at < run.end()) {
            let end = geometry.blocks_of(group).end().min(run.end());
            if let Some(of_group) = self.group(group) {
                // A cluster of several blocks may hold something else besides.
                let clusters = (end.0 - at.0) / u64::from(geometry.cluster_blocks);
                of_group.metadata =
                    of_group.metadata.saturating_add(u32::try_from(clusters).unwrap_or(u32::MAX));
                of_group.runs = of_group.runs.saturating_add(u32::from(!follows));
            }
            (at, follows) = (end, false);
        }
    }

    /// In how many chunks of `CHUNK_BITS` clusters there may be bits.
    pub fn chunks(&self, geometry: &Geometry) -> u64 {
        let per_group = u64::from(geometry.clusters_per_group.max(1));
        // Several small groups share a chunk; a large one has several.
        let of_group = per_group.div_ceil(CHUNK_BITS);
        let chunk_of = |group: u32| match of_group {
            1 => u64::from(group) * per_group / CHUNK_BITS,
            _ => u64::from(group),
        };
        let groups: Vec<_> = self.groups.iter().collect();
        let with_bits = groups
            .chunk_by(|left, right| chunk_of(*left.0) == chunk_of(*right.0))
            .filter(|groups| {
                let runs = groups.iter().map(|(nr, group)| group.runs_in(geometry, GroupNr(**nr)));
                runs.sum::<u64>() > FEW as u64
            })
            .count() as u64;
        let all = geometry.clusters_count().div_ceil(CHUNK_BITS);
        ((with_bits + self.more) * of_group).min(all)
    }
}

impl Group {
    /// The runs in which its clusters in use may lie.
    fn runs_in(&self, geometry: &Geometry, group: GroupNr) -> u64 {
        let superblock = u64::from(geometry.superblock_of(group).is_some());
        let descriptors =
            geometry.group_desc_run(group).len_blocks + geometry.reserved_gdt_run(group).len_blocks;
        let base = (superblock + descriptors) / u64::from(geometry.cluster_blocks);
        let data = u64::from(self.used).saturating_sub(u64::from(self.metadata) + base);
        u64::from(self.runs) + u64::from(superblock + descriptors > 0) + data
    }
}

#[cfg(test)]
mod tests {
    use floe_format::BlockNr;
    use floe_format::ext::superblock::Superblock;
    use floe_format::geometry::Strictness;

    use super::*;

    /// Eight groups of 32,768 blocks, whose metadata lies in the first one.
    fn geometry() -> Geometry {
        let superblock = Superblock {
            magic: floe_format::ext::superblock::MAGIC,
            rev_level: 1,
            blocks_count_lo: 8 * 32_768,
            inodes_count: 8 * 1024,
            blocks_per_group: 32_768,
            clusters_per_group: 32_768,
            inodes_per_group: 1024,
            log_block_size: 2,
            log_cluster_size: 2,
            first_ino: 11,
            inode_size: 256,
            feature_incompat: 0x242,
            feature_ro_compat: 1,
            ..Superblock::decode(&[0; 1024])
        };
        Geometry::new(&superblock, Strictness::Relaxed).unwrap()
    }

    fn chunks(data: impl Fn(u32) -> u32) -> u64 {
        let geometry = geometry();
        let mut mapped = Mapped::default();
        for group in 0..8 {
            // Block 0 is the superblock, block 1 the descriptors; a table has 64 blocks.
            let at = |first: u32, step: u32| BlockNr(u64::from(first + group * step));
            let own = if group == 0 { 2 + 16 + 8 * 64 } else { 0 };
            let backup =
                2 * u32::from(group > 0 && geometry.superblock_of(GroupNr(group)).is_some());
            let desc = GroupDesc {
                block_bitmap: at(2, 1),
                inode_bitmap: at(10, 1),
                inode_table: at(18, 64),
                free_blocks_count: 32_768 - own - backup - data(group),
                ..GroupDesc::default()
            };
            mapped.add(&geometry, GroupNr(group), &desc);
        }
        mapped.chunks(&geometry)
    }

    #[test]
    fn metadata_alone_takes_no_bits_and_data_may() {
        // The first group has four runs of metadata, as far as can be told without looking.
        assert_eq!(chunks(|_| 0), 1);
        assert_eq!(chunks(|group| if group == 3 { 30_000 } else { 0 }), 2);
        // Three clusters are three runs at most; a backup of the superblock is one.
        assert_eq!(chunks(|group| if group == 2 { 3 } else { 0 }), 1);
        assert_eq!(chunks(|group| if group == 2 { 4 } else { 0 }), 2);
        assert_eq!(chunks(|group| if group == 3 { 2 } else { 0 }), 1);
        assert_eq!(chunks(|group| if group == 3 { 3 } else { 0 }), 2);
        assert_eq!(chunks(|_| 32_000), 8);
    }
}
