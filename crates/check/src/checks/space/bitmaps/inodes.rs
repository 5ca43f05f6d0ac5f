//! Check: the inode bitmap of a group and its counts agree with the inodes in use.

use floe_format::ext::bitmap;
use floe_format::ext::group_desc::{FLAG_INODE_UNINIT, GroupDesc};
use floe_format::{GroupNr, InodeNr};

use super::compare::{Differences, compare, disk_word};
use super::{Cx, WORD_BITS, Work};
use crate::evidence::bits;
use crate::evidence::fingerprint::PartialSums;
use crate::evidence::inode_facts::Facts;
use crate::problem::{Findings, Problem, Sink};

impl Cx<'_> {
    /// Subtracts what an inode bitmap marks from what is in use.
    fn sum_inodes(&self, group: GroupNr, bytes: &[u8], sums: &mut PartialSums) {
        if let Some(tables) = &self.volume.mode.tables {
            let marked = (0..).map(|word| disk_word(bytes, word));
            let marked = tables.inode_bits(marked, self.volume.geometry.inodes_per_group);
            sums.inodes.add(group.0, marked.wrapping_neg());
        }
    }

    pub(super) fn check_inodes(&self, group: GroupNr, work: &mut Work) {
        let geometry = &self.volume.geometry;
        let desc = self.volume.group(group);
        let inodes = geometry.inodes_per_group;
        let mut expected = std::mem::take(&mut work.expected);
        let kept = self.volume.mode.scope.contains(group);
        let dirs = if kept {
            self.expect_inodes(group, &mut expected)
        } else {
            expected.clear();
            self.dirs.get(group.0 as usize).copied().unwrap_or(0)
        };
        let expected_word = |word: u32| expected.get(word as usize).copied().unwrap_or(0);
        // Sums prove the same of groups whose evidence is not kept.
        let is_empty = || !kept || expected.iter().all(|word| *word == 0);
        let uninit = self.volume.inode_bitmap_computed(group)
            || self.volume.was_unwritten(group, FLAG_INODE_UNINIT) && is_empty();
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
        if !self.volume.judges_counts() {
            return;
        }
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
            if !self.volume.mode.scope.contains(group) {
                work.sums.doubtful.insert(group.0);
            }
            return compare(inodes, &expected, &expected).1;
        };
        let disk = |word: u32| disk_word(bytes, word);
        let (differences, used) = if self.volume.mode.scope.contains(group) {
            compare(inodes, disk, expected)
        } else {
            self.sum_inodes(group, bytes, &mut work.sums);
            compare(inodes, disk, disk)
        };
        self.report_inodes(group, &differences, &mut work.found);
        if bitmap::first_clear_padding(bytes, inodes).is_some() {
            work.found.push(Problem::InodeBitmapPaddingClear { group });
        }
        let is_judged = self.volume.judges_counts() && geometry.features.metadata_csum();
        if differences.is_empty() && is_judged {
            let expected = bitmap::checksum(self.volume.seed, bytes, inodes);
            let stored = desc.inode_bitmap_csum;
            if !bitmap::checksum_fits(stored, expected, geometry.desc_size) {
                let expected = bitmap::checksum_cut(expected, geometry.desc_size);
                work.found.push(Problem::InodeBitmapChecksumBad { group, block, stored, expected });
            }
        }
        used
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
