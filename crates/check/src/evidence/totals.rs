//! Counts of inodes, for the summary and for what the superblock must announce.

use floe_exec::Accumulator;
use floe_format::Geometry;

use crate::saved::{Decoder, Encoder, Fault, Saved};

/// Counts of the inode pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Inodes in use.
    pub inodes_used: u64,
    /// Inodes by type, indexed by `FileType as usize`; index 0: undefined.
    pub by_type: [u64; 8],
    /// Blocks of data and of their maps.
    pub blocks_mapped: u64,
    /// Regular files of 2 GiB or more, with the reserved inodes in use.
    pub large_files: u64,
    /// Fragments: runs of adjacent blocks of files.
    pub fragments: u64,
    /// Inodes with more than one fragment that would fit into a group.
    pub fragmented: u64,
}

impl Totals {
    /// Notes an inode with `blocks` blocks in `fragments` fragments. A file larger than a group
    /// does not count as fragmented, as for e2fsck.
    #[inline]
    pub(crate) fn add_fragments(&mut self, fragments: u64, blocks: u64, geometry: &Geometry) {
        self.fragments += fragments;
        let fits = blocks < u64::from(geometry.blocks_per_group);
        self.fragmented += u64::from(fragments > 1 && fits);
    }
}

impl Totals {
    /// Takes back the counts of some inodes, which were added before.
    pub fn take_back(&mut self, other: &Self) {
        let less = |mine: &mut u64, theirs: u64| *mine = mine.saturating_sub(theirs);
        less(&mut self.inodes_used, other.inodes_used);
        self.by_type.iter_mut().zip(other.by_type).for_each(|(mine, theirs)| less(mine, theirs));
        less(&mut self.blocks_mapped, other.blocks_mapped);
        less(&mut self.large_files, other.large_files);
        less(&mut self.fragments, other.fragments);
        less(&mut self.fragmented, other.fragmented);
    }
}

impl Accumulator for Totals {
    fn merge(&mut self, other: Self) {
        let Self { inodes_used, by_type, blocks_mapped, large_files, fragments, fragmented } =
            other;
        self.inodes_used += inodes_used;
        self.by_type.iter_mut().zip(by_type).for_each(|(mine, theirs)| *mine += theirs);
        self.blocks_mapped += blocks_mapped;
        self.large_files += large_files;
        self.fragments += fragments;
        self.fragmented += fragmented;
    }
}

impl Saved for Totals {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self { inodes_used, by_type, blocks_mapped, large_files, fragments, fragmented } = self;
        let counts = [inodes_used, blocks_mapped, large_files, fragments, fragmented];
        counts.into_iter().chain(by_type).for_each(|count| count.save(to));
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let mut all = Self::default();
        let Self { inodes_used, by_type, blocks_mapped, large_files, fragments, fragmented } =
            &mut all;
        let counts = [inodes_used, blocks_mapped, large_files, fragments, fragmented];
        for count in counts.into_iter().chain(by_type) {
            *count = Saved::load(from)?;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod laws {
    use super::*;
    use crate::saved::tests::same;

    floe_exec::accumulator_laws!(
        Totals,
        (0usize..8, 0u64..1000),
        |all: &mut Totals, (kind, blocks): (usize, u64)| {
            all.inodes_used += 1;
            all.by_type[kind] += 1;
            all.blocks_mapped += blocks;
            all.large_files += blocks / 900;
            all.fragments += blocks % 7;
            all.fragmented += blocks % 2;
        },
        |all: Totals| same(all, |all| all)
    );
}
