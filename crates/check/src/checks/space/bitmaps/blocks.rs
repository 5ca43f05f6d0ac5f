//! Check: the block bitmap of a group and its count of free clusters agree with what is claimed.

use floe_format::ext::bitmap;
use floe_format::ext::group_desc::FLAG_BLOCK_UNINIT;
use floe_format::{BlockNr, GroupNr};

use super::compare::{Differences, compare, compare_with, disk_word};
use super::{Cx, WORD_BITS, Work};
use crate::evidence::fingerprint::PartialSums;
use crate::problem::{Findings, Problem, Sink};

impl Cx<'_> {
    /// Subtracts what a block bitmap marks from what is claimed; metadata is claimed here.
    fn sum_blocks(&self, group: GroupNr, first: u64, bytes: &[u8], sums: &mut PartialSums) {
        let (Some(tables), clusters) =
            (&self.volume.mode.tables, self.volume.geometry.clusters_of(group))
        else {
            return;
        };
        let metadata = self.volume.metadata.runs_in(first, u64::from(clusters));
        let claimed = metadata.flat_map(|(start, len)| tables.pieces(start, len));
        let claimed = claimed.map(|(_, piece)| tables.of_clusters(&piece));
        let marked = (0..).map(|word| disk_word(bytes, word));
        let marked = tables.cluster_bits(marked, clusters);
        sums.clusters.add(group.0, claimed.fold(marked.wrapping_neg(), u128::wrapping_add));
    }

    pub(super) fn check_blocks(&self, group: GroupNr, work: &mut Work) {
        let geometry = &self.volume.geometry;
        let desc = self.volume.group(group);
        let clusters = geometry.clusters_of(group);
        let first = u64::from(group.0) * u64::from(geometry.clusters_per_group);
        if self.volume.block_bitmap_computed(group) || self.is_still_unwritten(group, first) {
            let used = self.check_computed_blocks(group, first, clusters, work);
            self.judge_free_clusters(group, clusters - used, work);
            return;
        }
        let kept = self.volume.mode.claim_scope.contains(group);
        let block = desc.block_bitmap;
        let bytes = work.blocks.read(self.volume, group, |desc| desc.block_bitmap);
        let Some(bytes) = bytes else {
            // A place outside the file system was reported with the descriptor.
            if geometry.contains(block) {
                let kind = "block";
                work.found.push(Problem::UnreadableBitmap { group, block, kind });
            }
            if !kept {
                work.sums.doubtful.insert(group.0);
            }
            self.count_free_clusters(group, first, clusters, work);
            return;
        };
        let disk = |word: u32| disk_word(bytes, word);
        let (differences, used) = if kept {
            work.expected.resize(clusters.div_ceil(WORD_BITS) as usize, 0);
            compare_with(self.used, first, clusters, bytes, &mut work.expected)
        } else {
            self.sum_blocks(group, first, bytes, &mut work.sums);
            compare(clusters, disk, disk)
        };
        self.report_blocks(group, first, &differences, &mut work.found);
        if bitmap::first_clear_padding(bytes, clusters).is_some() {
            work.found.push(Problem::BlockBitmapPaddingClear { group });
        }
        let is_judged = self.volume.judges_counts() && geometry.features.metadata_csum();
        if differences.is_empty() && is_judged {
            let expected = bitmap::checksum(self.volume.seed, bytes, geometry.clusters_per_group);
            let stored = desc.block_bitmap_csum;
            if !bitmap::checksum_fits(stored, expected, geometry.desc_size) {
                let expected = bitmap::checksum_cut(expected, geometry.desc_size);
                work.found.push(Problem::BlockBitmapChecksumBad { group, block, stored, expected });
            }
        }
        self.judge_free_clusters(group, clusters - used, work);
    }

    /// Whether a group had no block bitmap when the backup in use was made, and holds nothing but its metadata.
    fn is_still_unwritten(&self, group: GroupNr, first: u64) -> bool {
        if !self.volume.was_unwritten(group, FLAG_BLOCK_UNINIT) {
            return false;
        }
        if !self.volume.mode.claim_scope.contains(group) {
            // Sums prove it.
            return true;
        }
        let clusters = self.volume.geometry.clusters_of(group);
        let computed = self.volume.computed_block_bitmap(group);
        let computed = |word: u32| computed.get(word as usize).copied().unwrap_or(0);
        let used = |word: u32| self.used.word(first + u64::from(word * WORD_BITS));
        compare(clusters, computed, used).0.is_empty()
    }

    /// Judges a group whose block bitmap was never written, so that it counts as computed: the group's
    /// metadata alone. Comes back with the number of clusters in use.
    fn check_computed_blocks(
        &self,
        group: GroupNr,
        first: u64,
        clusters: u32,
        work: &mut Work,
    ) -> u32 {
        let kept = self.volume.mode.claim_scope.contains(group);
        let nothing = match kept {
            true => self.used.is_clear_in(first, u64::from(clusters)),
            false => self.volume.metadata.is_clear_in(first, u64::from(clusters)),
        };
        if nothing {
            return 0;
        }
        let computed = self.volume.computed_block_bitmap(group);
        let disk = |word: u32| computed.get(word as usize).copied().unwrap_or(0);
        let (differences, used) = if kept {
            compare(clusters, disk, |word| self.used.word(first + u64::from(word * WORD_BITS)))
        } else {
            // Where claims are not kept the sums prove that there are none beside metadata.
            let mut metadata = vec![0; computed.len()];
            self.volume.mark_metadata(first, first, u64::from(clusters), &mut metadata);
            compare(clusters, disk, |word| metadata.get(word as usize).copied().unwrap_or(0))
        };
        if !kept && !differences.is_empty() {
            work.sums.doubtful.insert(group.0);
        }
        if let Some(range) = differences.missing.first() {
            let block = self.block_at(first, range.start);
            work.found.push(Problem::BlockUsedInUninitGroup { group, block });
        }
        self.report_blocks(group, first, &differences, &mut work.found);
        used
    }

    fn count_free_clusters(&self, group: GroupNr, first: u64, clusters: u32, work: &mut Work) {
        let word = |word: u32| self.used.word(first + u64::from(word * WORD_BITS));
        let (_, used) = compare(clusters, word, word);
        self.judge_free_clusters(group, clusters - used, work);
    }

    fn judge_free_clusters(&self, group: GroupNr, counted: u32, work: &mut Work) {
        work.free_clusters += u64::from(counted);
        let stored = self.volume.group(group).free_blocks_count;
        if stored != counted && self.volume.judges_counts() {
            work.found.push(Problem::GroupFreeBlockCountWrong { group, stored, counted });
        }
    }

    /// The first block of a cluster, by its index in the group whose first cluster is `first`.
    fn block_at(&self, first: u64, cluster: u32) -> BlockNr {
        let geometry = &self.volume.geometry;
        let blocks = (first + u64::from(cluster)) << geometry.cluster_bits;
        BlockNr(geometry.first_data_block.0 + blocks)
    }

    fn report_blocks(
        &self,
        group: GroupNr,
        first: u64,
        differences: &Differences,
        found: &mut Findings,
    ) {
        for range in &differences.leaked {
            let block = self.block_at(first, range.start);
            let len = (u64::from(range.end - range.start)) << self.volume.geometry.cluster_bits;
            found.push(if range.len() == 1 {
                Problem::BlockBitmapLeakedBlock { group, block }
            } else {
                Problem::BlockBitmapLeakedRange { group, block, len }
            });
        }
        for range in &differences.missing {
            let block = self.block_at(first, range.start);
            let len = (u64::from(range.end - range.start)) << self.volume.geometry.cluster_bits;
            found.push(if range.len() == 1 {
                Problem::BlockBitmapMissingBlock { group, block }
            } else {
                Problem::BlockBitmapMissingRange { group, block, len }
            });
        }
    }
}
