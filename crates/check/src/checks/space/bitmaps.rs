//! Check: the bitmaps on the disk and the counts agree with what is in use.
//!
//! Reads: the bitmaps.  Keeps: free counts.  Emits: differences as ranges, padding, checksums, counts
//! of groups and of the file system.
//! Does not verify: that what claims a block may do so (`passes/inodes.rs`, shared blocks).

use std::ops::Range;

use floe_exec::{Accumulator, Pool, take_back};
use floe_format::ext::bitmap;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr};

use crate::evidence::bits;
use crate::evidence::block_set::BlockSet;
use crate::evidence::claims::Claims;
use crate::evidence::fingerprint::PartialSums;
use crate::evidence::inode_facts::{Facts, InodeFacts};
use crate::problem::{Findings, Problem, Sink};
use crate::saved::{Decoder, Encoder, Fault, Saved};
use crate::scan::read_ahead;
use crate::volume::Volume;

/// Groups that one unit of work checks: bitmaps of a flexible group lie side by side, so that one
/// read brings many.
pub const GROUPS_PER_UNIT: u32 = 64;
/// Bytes read at once at most (but at least one block).
const READ_BYTES: u32 = 32 << 10;
const WORD_BITS: u32 = u64::BITS;

/// Contents of the bitmaps, and the problems in them.
#[derive(Debug, Default)]
pub struct Bitmaps {
    /// Findings.
    pub found: Findings,
    /// Terms that bitmaps subtract from the fingerprints of groups whose evidence is not kept.
    pub sums: PartialSums,
    free_clusters: u64,
    free_inodes: u64,
}

/// Checks the bitmaps and counts of the groups `wanted`. `claims` holds all clusters in use, static metadata
/// included. `dirs` has the number of directories of each group whose facts are not kept.
pub fn check_where(
    volume: &Volume<'_>,
    facts: &InodeFacts,
    claims: &Claims,
    dirs: &[u32],
    pool: &Pool,
    wanted: impl Fn(GroupNr) -> bool + Sync,
) -> Bitmaps {
    let count = volume.geometry.group_count;
    let units: Vec<Range<u32>> = (0..count)
        .step_by(GROUPS_PER_UNIT as usize)
        .map(|first| first..count.min(first.saturating_add(GROUPS_PER_UNIT)))
        .filter(|unit| unit.clone().any(|group| wanted(GroupNr(group))))
        .collect();
    let all = pool.run(&units, |work: &mut Work, unit| {
        let cx = Cx { volume, facts, used: claims.used(), dirs };
        let groups = unit.clone().map(GroupNr).filter(|group| wanted(*group));
        // Told of all of them, a device works at many at a time.
        let blocks = groups.clone().flat_map(|group| volume.bitmaps_read(group)).flatten();
        read_ahead::announce(volume, blocks, &mut work.ahead);
        for group in groups {
            let before = work.found.0.len();
            cx.check_blocks(group, work);
            cx.check_inodes(group, work);
            if volume.is_group_absent(group) {
                // The finding about the missing group covers these findings.
                work.found.0.truncate(before);
            }
        }
    });
    let Work { found, sums, free_clusters, free_inodes, .. } = all;
    Bitmaps { found, sums, free_clusters, free_inodes }
}

impl Accumulator for Bitmaps {
    fn merge(&mut self, other: Self) {
        let Self { found, sums, free_clusters, free_inodes } = other;
        self.found.merge(found);
        self.sums.merge(sums);
        // A part that somebody made up may say anything.
        self.free_clusters = self.free_clusters.saturating_add(free_clusters);
        self.free_inodes = self.free_inodes.saturating_add(free_inodes);
    }
}

impl Saved for Bitmaps {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self { found, sums, free_clusters, free_inodes } = self;
        found.save(to);
        sums.save(to);
        free_clusters.save(to);
        free_inodes.save(to);
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let (found, sums) = (Saved::load(from)?, Saved::load(from)?);
        Ok(Self { found, sums, free_clusters: Saved::load(from)?, free_inodes: Saved::load(from)? })
    }
}

impl Bitmaps {
    /// Puts what some units say `now` in the place of what they said `before`; sums stay.
    pub fn replace(&mut self, before: Self, now: Self) {
        take_back(&mut self.found.0, before.found.0);
        self.found.merge(now.found);
        // A device that reads otherwise every time may break this, but no check.
        let exchange = |all: u64, before: u64, now: u64| (all + now).saturating_sub(before);
        self.free_clusters = exchange(self.free_clusters, before.free_clusters, now.free_clusters);
        self.free_inodes = exchange(self.free_inodes, before.free_inodes, now.free_inodes);
    }

    /// Judges the totals; comes back with the number of clusters in use.
    pub fn settle(self, volume: &Volume<'_>, found: &mut Findings) -> u64 {
        judge_totals(volume, &self, found);
        found.merge(self.found);
        volume.geometry.clusters_count().saturating_sub(self.free_clusters)
    }
}

fn judge_totals(volume: &Volume<'_>, all: &Bitmaps, found: &mut Findings) {
    let (superblock, geometry) = (&volume.superblock, &volume.geometry);
    let counted = all.free_clusters << geometry.cluster_bits;
    let stored = superblock.free_blocks_count();
    if stored != counted {
        found.push(Problem::FreeBlockTotalWrong { stored, counted });
    }
    // At most the number of inodes, which is 32 bits.
    let (stored, counted) = (superblock.free_inodes_count, all.free_inodes as u32);
    if stored != counted {
        found.push(Problem::FreeInodeTotalWrong { stored, counted });
    }
}

/// One worker's share.
#[derive(Debug, Default)]
struct Work {
    found: Findings,
    free_clusters: u64,
    free_inodes: u64,
    blocks: Window,
    inodes: Window,
    /// Room to list bitmaps that will be read.
    ahead: Vec<BlockNr>,
    /// The expected block bitmap of one group, as words.
    expected: Vec<u64>,
    /// Terms that the bitmaps of groups without kept evidence subtract.
    sums: PartialSums,
}

impl Accumulator for Work {
    fn merge(&mut self, other: Self) {
        let Self {
            found,
            free_clusters,
            free_inodes,
            blocks: _,
            inodes: _,
            ahead: _,
            expected: _,
            sums,
        } = other;
        self.found.merge(found);
        self.free_clusters += free_clusters;
        self.free_inodes += free_inodes;
        self.sums.merge(sums);
    }
}

/// Adjacent bitmap blocks that were read together.
#[derive(Debug, Default)]
struct Window {
    bytes: Vec<u8>,
    run: BlockRun,
}

impl Window {
    /// The bitmap in `block` of `group`; blocks of following groups that lie right behind it are
    /// read with it. `None` if it cannot be read.
    fn read(
        &mut self,
        volume: &Volume<'_>,
        group: GroupNr,
        place: impl Fn(&GroupDesc) -> BlockNr,
    ) -> Option<&[u8]> {
        let block = place(&volume.group(group));
        if !volume.geometry.contains(block) {
            return None;
        }
        if block < self.run.start || block >= self.run.end() {
            let most = u64::from((READ_BYTES / volume.geometry.block_size).max(1));
            let behind = volume.groups.get(group.0 as usize..).unwrap_or(&[]);
            let adjacent = behind
                .iter()
                .zip(block.0..volume.geometry.blocks_count.min(block.0 + most))
                .take_while(|(desc, at)| place(desc).0 == *at)
                .count();
            self.run = BlockRun::new(block, adjacent as u64);
            if volume.read_run(self.run, &mut self.bytes).is_err() {
                self.run = BlockRun::new(block, 1);
                if volume.read_block(block, &mut self.bytes).is_err() {
                    self.run = BlockRun::default();
                    return None;
                }
            }
        }
        let size = volume.geometry.block_size as usize;
        let at = (block.0 - self.run.start.0) as usize * size;
        self.bytes.get(at..at + size)
    }
}

/// Differences of one bitmap.
#[derive(Debug, Default)]
struct Differences {
    /// Ranges that are marked but not in use.
    leaked: Vec<Range<u32>>,
    /// Ranges that are in use but not marked.
    missing: Vec<Range<u32>>,
}

/// Compares `bits` bits, and counts those expected to be set.
fn compare(
    bits: u32,
    disk: impl Fn(u32) -> u64,
    expected: impl Fn(u32) -> u64,
) -> (Differences, u32) {
    let mut differences = Differences::default();
    let mut used = 0;
    for word in 0..bits.div_ceil(WORD_BITS) {
        let start = word * WORD_BITS;
        let mask = if bits - start >= WORD_BITS { u64::MAX } else { (1 << (bits - start)) - 1 };
        let (disk, expected) = (disk(word) & mask, expected(word) & mask);
        used += expected.count_ones();
        if disk != expected {
            add_bits(&mut differences.leaked, start, disk & !expected);
            add_bits(&mut differences.missing, start, expected & !disk);
        }
    }
    (differences, used)
}

/// As [`compare`]: bits of a bitmap on the disk with `clusters` of `used` from `first` on, for which there
/// is room in `expected`. Most bitmaps are right, which a look at all words at once tells.
fn compare_with(
    used: &BlockSet,
    first: u64,
    clusters: u32,
    disk: &[u8],
    expected: &mut [u64],
) -> (Differences, u32) {
    if first.is_multiple_of(WORD_BITS.into()) && clusters.is_multiple_of(WORD_BITS) {
        let count = used.words(first, expected);
        let words = disk.as_chunks().0;
        let differ = |all, (raw, word): (&[u8; 8], &u64)| all | (u64::from_le_bytes(*raw) ^ word);
        if words.len() >= expected.len() && words.iter().zip(&*expected).fold(0, differ) == 0 {
            return (Differences::default(), count);
        }
    }
    let expected = |word: u32| used.word(first + u64::from(word * WORD_BITS));
    compare(clusters, |word| disk_word(disk, word), expected)
}

/// Adds the set bits of a word that begins at bit `start`, joining adjacent ones.
fn add_bits(ranges: &mut Vec<Range<u32>>, start: u32, bits: u64) {
    let mut rest = bits;
    while rest != 0 {
        let from = rest.trailing_zeros();
        let len = (!(rest >> from)).trailing_zeros();
        let range = start + from..start + from + len;
        match ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => ranges.push(range),
        }
        rest &= u64::MAX.checked_shl(from + len).unwrap_or(0);
    }
}

/// The 64 bits of a bitmap on the disk.
fn disk_word(bytes: &[u8], word: u32) -> u64 {
    let at = word as usize * 8;
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u64::from_le_bytes(*raw))
}

struct Cx<'a> {
    volume: &'a Volume<'a>,
    facts: &'a InodeFacts,
    used: &'a BlockSet,
    dirs: &'a [u32],
}

impl Cx<'_> {
    /// Subtracts what a block bitmap marks from what is claimed; metadata is claimed here.
    fn sum_blocks(&self, group: GroupNr, first: u64, bytes: &[u8], sums: &mut PartialSums) {
        let (Some(tables), clusters) =
            (&self.volume.tables, self.volume.geometry.clusters_of(group))
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

    /// Subtracts what an inode bitmap marks from what is in use.
    fn sum_inodes(&self, group: GroupNr, bytes: &[u8], sums: &mut PartialSums) {
        if let Some(tables) = &self.volume.tables {
            let marked = (0..).map(|word| disk_word(bytes, word));
            let marked = tables.inode_bits(marked, self.volume.geometry.inodes_per_group);
            sums.inodes.add(group.0, marked.wrapping_neg());
        }
    }

    fn check_blocks(&self, group: GroupNr, work: &mut Work) {
        let geometry = &self.volume.geometry;
        let desc = self.volume.group(group);
        let clusters = geometry.clusters_of(group);
        let first = u64::from(group.0) * u64::from(geometry.clusters_per_group);
        if self.volume.block_bitmap_computed(group) {
            let used = self.check_computed_blocks(group, first, clusters, work);
            self.judge_free_clusters(group, clusters - used, work);
            return;
        }
        let kept = self.volume.claim_scope.contains(group);
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
        if differences.is_empty() && geometry.features.metadata_csum() {
            let expected = bitmap::checksum(self.volume.seed, bytes, geometry.clusters_per_group);
            let stored = desc.block_bitmap_csum;
            if !bitmap::checksum_fits(stored, expected, geometry.desc_size) {
                let expected = bitmap::checksum_cut(expected, geometry.desc_size);
                work.found.push(Problem::BlockBitmapChecksumBad { group, block, stored, expected });
            }
        }
        self.judge_free_clusters(group, clusters - used, work);
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
        let kept = self.volume.claim_scope.contains(group);
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
        if stored != counted {
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

    /// Fills `expected` with the computed inode bitmap of a group; says how many are directories.
    fn expect_inodes(&self, group: GroupNr, expected: &mut Vec<u64>) -> u32 {
        let geometry = &self.volume.geometry;
        let per_group = geometry.inodes_per_group;
        expected.clear();
        expected.resize(per_group.div_ceil(WORD_BITS) as usize, 0);
        let start = group.0 * per_group + 1;
        let mut dirs = 0;
        for (first, chunk) in self.facts.chunks_of(group) {
            // An unreadable inode may be in use.
            let counts = |facts: Facts| facts.is_used() || facts.is_bad();
            let base = (first.0 - start) as usize;
            let Some((usual, others)) = chunk.facts.usual() else {
                for (at, facts) in (base..).zip(chunk.facts.iter()) {
                    if counts(facts) {
                        bits::set(expected, at, at + 1);
                        dirs += u32::from(facts.is_dir());
                    }
                }
                continue;
            };
            // Nearly all are alike: set at once, and the others corrected.
            if counts(usual) {
                let len = chunk.facts.len();
                bits::set(expected, base, base + len);
                // At most the inodes of a group.
                dirs += if usual.is_dir() { (len - others.len()) as u32 } else { 0 };
            }
            for &(at, facts) in others {
                let at = base + usize::from(at);
                if counts(facts) {
                    bits::set(expected, at, at + 1);
                    dirs += u32::from(facts.is_dir());
                } else {
                    bits::clear(expected, at, at + 1);
                }
            }
        }
        // Reserved inodes count as used, whatever they hold.
        let reserved = geometry.first_inode.0.saturating_sub(start).min(per_group);
        bits::set(expected, 0, reserved as usize);
        dirs
    }

    fn check_inodes(&self, group: GroupNr, work: &mut Work) {
        let geometry = &self.volume.geometry;
        let desc = self.volume.group(group);
        let inodes = geometry.inodes_per_group;
        let mut expected = std::mem::take(&mut work.expected);
        let kept = self.volume.scope.contains(group);
        let dirs = if kept {
            self.expect_inodes(group, &mut expected)
        } else {
            expected.clear();
            self.dirs.get(group.0 as usize).copied().unwrap_or(0)
        };
        let expected_word = |word: u32| expected.get(word as usize).copied().unwrap_or(0);
        let uninit = self.volume.inode_bitmap_computed(group);
        let used = if uninit {
            let (differences, used) = compare(inodes, |_| 0, expected_word);
            if let Some(range) = differences.missing.first() {
                let inode = geometry.inode_at(group, range.start);
                work.found.push(Problem::InodeUsedInUninitGroup { group, inode });
            }
            self.report_inodes(group, &differences, &mut work.found);
            used
        } else {
            self.compare_inodes(group, &desc, expected_word, work)
        };
        work.expected = expected;
        let counted = inodes - used;
        work.free_inodes += u64::from(counted);
        let stored = desc.free_inodes_count;
        if stored != counted {
            work.found.push(Problem::GroupFreeInodeCountWrong { group, stored, counted });
        }
        let (stored, counted) = (desc.used_dirs_count, dirs);
        if stored != counted {
            work.found.push(Problem::GroupDirectoryCountWrong { group, stored, counted });
        }
    }

    /// Compares an inode bitmap on the disk; comes back with the number of inodes in use.
    fn compare_inodes(
        &self,
        group: GroupNr,
        desc: &GroupDesc,
        expected: impl Fn(u32) -> u64,
        work: &mut Work,
    ) -> u32 {
        let geometry = &self.volume.geometry;
        let (inodes, block) = (geometry.inodes_per_group, desc.inode_bitmap);
        let Some(bytes) = work.inodes.read(self.volume, group, |desc| desc.inode_bitmap) else {
            if geometry.contains(block) {
                work.found.push(Problem::UnreadableBitmap { group, block, kind: "inode" });
            }
            if !self.volume.scope.contains(group) {
                work.sums.doubtful.insert(group.0);
            }
            return compare(inodes, &expected, &expected).1;
        };
        let disk = |word: u32| disk_word(bytes, word);
        let (differences, used) = if self.volume.scope.contains(group) {
            compare(inodes, disk, expected)
        } else {
            self.sum_inodes(group, bytes, &mut work.sums);
            compare(inodes, disk, disk)
        };
        self.report_inodes(group, &differences, &mut work.found);
        if bitmap::first_clear_padding(bytes, inodes).is_some() {
            work.found.push(Problem::InodeBitmapPaddingClear { group });
        }
        if differences.is_empty() && geometry.features.metadata_csum() {
            let expected = bitmap::checksum(self.volume.seed, bytes, inodes);
            let stored = desc.inode_bitmap_csum;
            if !bitmap::checksum_fits(stored, expected, geometry.desc_size) {
                let expected = bitmap::checksum_cut(expected, geometry.desc_size);
                work.found.push(Problem::InodeBitmapChecksumBad { group, block, stored, expected });
            }
        }
        used
    }

    fn report_inodes(&self, group: GroupNr, differences: &Differences, found: &mut Findings) {
        let inode = |at: u32| -> InodeNr { self.volume.geometry.inode_at(group, at) };
        for range in &differences.leaked {
            let (inode, len) = (inode(range.start), range.end - range.start);
            found.push(match len {
                1 => Problem::InodeBitmapLeakedInode { group, inode },
                _ => Problem::InodeBitmapLeakedRange { group, inode, len },
            });
        }
        for range in &differences.missing {
            let (inode, len) = (inode(range.start), range.end - range.start);
            found.push(match len {
                1 => Problem::InodeBitmapMissingInode { group, inode },
                _ => Problem::InodeBitmapMissingRange { group, inode, len },
            });
        }
    }
}

impl Differences {
    fn is_empty(&self) -> bool {
        self.leaked.is_empty() && self.missing.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cross_words_and_end_with_the_group() {
        let disk = [u64::MAX << 60, 0b1111, 0];
        let (differences, used) =
            compare(130, |word| disk[word as usize], |word| u64::from(word == 2) << 1);
        assert_eq!(differences.leaked.first(), Some(&(60..68)));
        assert_eq!(differences.missing.first(), Some(&(129..130)));
        assert_eq!(used, 1);
        let (differences, used) = compare(128, |_| u64::MAX, |_| 0);
        assert_eq!(differences.leaked.first(), Some(&(0..128)));
        assert_eq!(used, 0);
    }
}

#[cfg(test)]
mod laws {
    use super::*;

    floe_exec::accumulator_laws!(
        Work,
        (0u32..9, 0u64..99),
        |all: &mut Work, (group, free): (u32, u64)| {
            let group = GroupNr(group);
            all.found.push(Problem::BlockBitmapPaddingClear { group });
            all.free_clusters += free;
            all.free_inodes += free / 2;
        },
        |all: Work| (crate::report::in_order(all.found), all.free_clusters, all.free_inodes)
    );
}

#[cfg(test)]
mod laws_of_shards {
    use super::*;
    use crate::saved::tests::same;

    floe_exec::accumulator_laws!(
        Bitmaps,
        (0u32..9, 0u64..99),
        |all: &mut Bitmaps, (group, free): (u32, u64)| {
            all.found.push(Problem::BlockBitmapPaddingClear { group: GroupNr(group) });
            all.sums.clusters.add(group, free.into());
            all.free_clusters += free;
            all.free_inodes += free / 2;
        },
        |all: Bitmaps| same(all, |all: Bitmaps| {
            let counts = (all.free_clusters, all.free_inodes);
            (crate::report::in_order(all.found), all.sums.to_bytes(), counts)
        })
    );
}
