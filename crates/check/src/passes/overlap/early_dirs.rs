//! Evidence of directory blocks that were judged before all inodes were read.

use floe_exec::{Accumulator, append};
use floe_format::ext::inode::FileType;
use floe_format::{BlockNr, InodeNr};

use crate::checks::context::directory::{DirCx, DirEvidence};
use crate::checks::directory::plain_entries::{self, Others, Plain};
use crate::evidence::dir_index::DirIndex;
use crate::evidence::dirs::DirRun;
use crate::evidence::htree::Leaf;
use crate::evidence::inode_facts::Facts;
use crate::evidence::published_facts::{EarlyCursor, PublishedFacts};
use crate::problem::Sink;
use crate::report::EarlyCounts;
use crate::scan::directory_blocks::{BlockScan, DirBlock, ReadRoom, read_runs};

/// Bytes of proofs that a worker puts off, at most; blocks beyond are left to the directory pass.
pub(super) const MOST_DELAYED_BYTES: usize = 64 << 10;

/// The evidence of judged blocks. It names directories by inode until `EarlyDirs::certify`,
/// because their ranks are unknown until all directories were found.
#[derive(Debug, Default)]
pub struct EarlyDirs {
    evidence: DirEvidence,
    /// Plain blocks that name inodes which were not read then.
    delayed: Vec<Delayed>,
    delayed_bytes: usize,
    /// Single blocks, of runs that count as judged, which are left to the directory pass.
    left: Vec<DirRun>,
    /// Blocks of each outcome.
    pub counts: EarlyCounts,
    /// Room of a worker.
    room: Room,
}

#[derive(Debug, Default)]
struct Room {
    asked: Vec<(InodeNr, u8)>,
    /// Plain blocks of each run of the batch.
    plain: Vec<u32>,
    /// The others: index of the run, and the block.
    odd: Vec<(usize, DirRun)>,
}

/// The evidence of a plain block, valid if the inodes that it names have the types that it states.
#[derive(Debug)]
struct Delayed {
    /// The block, as a run.
    block: DirRun,
    /// The inode that `..` names.
    dotdot: Option<InodeNr>,
    /// Smallest and largest hash of a leaf.
    hashes: Option<(u32, u32)>,
    /// All inodes that it names, with the types that entries give them; that of `..` is the first.
    named: Box<[(InodeNr, u8)]>,
}

impl Delayed {
    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.named)
    }
}

impl Accumulator for EarlyDirs {
    fn merge(&mut self, other: Self) {
        let Self { evidence, delayed, delayed_bytes, left, counts, room: _ } = other;
        self.evidence.merge(evidence);
        append(&mut self.delayed, delayed);
        self.delayed_bytes += delayed_bytes;
        append(&mut self.left, left);
        let EarlyCounts { plain, delayed, left } = counts;
        self.counts.plain += plain;
        self.counts.delayed += delayed;
        self.counts.left += left;
    }
}

/// The facts of other inodes that were published so far.
struct Early<'a>(EarlyCursor<'a>);

impl Others for Early<'_> {
    #[inline]
    fn facts(&mut self, inode: InodeNr, named_as: u8) -> Facts {
        self.0.get(inode, named_as)
    }
    #[inline]
    fn is_kept(&self) -> bool {
        self.0.is_kept()
    }
    #[inline]
    fn rank(&self, dir: InodeNr) -> Option<u32> {
        Some(dir.0)
    }
}

impl BlockScan for EarlyDirs {
    fn room(&mut self) -> &mut ReadRoom {
        self.evidence.room()
    }
    fn sink(&mut self) -> &mut impl Sink {
        self.evidence.sink()
    }
}

impl EarlyDirs {
    /// Reads the blocks of some runs and judges them. A run of which any block was judged is marked so;
    /// its other blocks are listed, and left to the directory pass like all blocks of other runs.
    pub fn judge(&mut self, cx: &DirCx<'_>, published: &PublishedFacts, runs: &mut [DirRun]) {
        self.room.plain.clear();
        self.room.plain.resize(runs.len(), 0);
        read_runs(
            cx.volume,
            runs,
            || None,
            &|_| true,
            self,
            |all, index, at, bytes| {
                let (Some(run), Ok(at)) = (runs.get(index), u32::try_from(at)) else { return };
                let block = BlockNr(run.block.0.saturating_add(at.into()));
                let logical = run.logical.saturating_add(at);
                let single = DirRun { block, logical, len_blocks: 1, judged: false, ..*run };
                if bytes.is_some_and(|bytes| all.judge_block(cx, published, &single, bytes)) {
                    all.room.plain[index] += 1;
                } else {
                    all.room.odd.push((index, single));
                }
            },
        );
        for (run, plain) in runs.iter_mut().zip(&self.room.plain) {
            run.judged = *plain > 0;
        }
        self.counts.left += self.room.odd.len() as u64;
        let of_judged = self.room.odd.drain(..).filter(|(index, _)| runs[*index].judged);
        self.left.extend(of_judged.map(|(_, single)| single));
    }

    /// Judges one block; whether it is plain, as far as is known.
    fn judge_block(
        &mut self,
        cx: &DirCx<'_>,
        published: &PublishedFacts,
        run: &DirRun,
        bytes: &[u8],
    ) -> bool {
        let block = DirBlock {
            dir: run.dir,
            rank: run.dir.0,
            generation: run.generation,
            logical: run.logical,
            block: run.block,
            flags: run.flags,
            bytes,
        };
        let (scope, geometry) = (&cx.volume.mode.scope, &cx.volume.geometry);
        self.evidence.met.go_to(cx.region_of(block.block));
        let mut met = std::mem::take(&mut self.evidence.met);
        let asked = std::mem::take(&mut self.room.asked);
        let mut others = Early(EarlyCursor::new(published, scope, geometry, &mut met, asked));
        let plain = plain_entries::judge(cx, &mut others, &block, &mut self.evidence);
        let Early(EarlyCursor { asked, unproved, .. }) = others;
        self.evidence.met = met;
        let is_plain = match plain {
            Some(plain) if unproved => self.delay(cx, run, plain, &asked),
            Some(plain) => {
                plain.note(cx, &block, &mut self.evidence);
                self.counts.plain += 1;
                true
            }
            None => false,
        };
        self.room.asked = asked;
        if let Some(backpointers) = cx.volume.backpointers.as_ref().filter(|_| is_plain) {
            backpointers.note_block(block.dir, bytes);
        }
        is_plain
    }

    /// Puts the proof of a block off until all inodes were read; `false` if there is no room for it.
    fn delay(
        &mut self,
        cx: &DirCx<'_>,
        run: &DirRun,
        plain: Plain,
        asked: &[(InodeNr, u8)],
    ) -> bool {
        let (dotdot, hashes) = plain.withdraw(&mut self.evidence);
        // Where there are sums, facts are kept of few inodes, and nearly nothing is to be proved.
        if cx.volume.mode.tables.is_some() || self.delayed_bytes >= MOST_DELAYED_BYTES {
            return false;
        }
        let delayed = Delayed { block: *run, dotdot, hashes, named: asked.into() };
        self.delayed_bytes += delayed.bytes();
        self.delayed.push(delayed);
        self.counts.delayed += 1;
        true
    }

    /// Delayed certification, when all inodes were read: proves what was put off, and gives directories
    /// their ranks. Comes back with what judged blocks leave, and with the single blocks that are left
    /// to the directory pass.
    pub(crate) fn certify(self, cx: &DirCx<'_>) -> (DirEvidence, Vec<DirRun>) {
        let Self { mut evidence, delayed, mut left, .. } = self;
        settle_ranks(cx, &mut evidence);
        for delayed in delayed {
            if delayed.is_proved(cx) {
                delayed.note(cx, &mut evidence);
            } else {
                if let Some(backpointers) = &cx.volume.backpointers {
                    backpointers.spoil();
                }
                left.push(delayed.block);
            }
        }
        left.sort_unstable_by_key(|run| (run.block, run.dir, run.logical));
        // Room for reading is not kept: the directory pass has its own.
        evidence.room = crate::checks::context::directory::Room::default();
        (evidence, left)
    }
}

/// Replaces inodes of directories by their ranks, in evidence that was made before these were known.
pub fn settle_ranks(cx: &DirCx<'_>, evidence: &mut DirEvidence) {
    // Only blocks of directories that have a rank ran ahead.
    let (mut children, mut parents) = (Ranks::of(cx.index), Ranks::of(cx.index));
    let (named, links) = (&mut evidence.named, &mut evidence.links);
    let mut settle = |(child, parent): &mut (u32, u32)| {
        let ranks = children.get(*child).zip(parents.get(*parent));
        if let Some(ranks) = ranks {
            (*child, *parent) = ranks;
        }
        ranks.is_some()
    };
    // Nearly always all are known, so that nothing moves up.
    if let Some(first) = named.iter_mut().position(|pair| !settle(pair)) {
        let mut rest = named.split_off(first);
        rest.retain_mut(|pair| {
            // As the directory pass counts a name of what is no directory after all.
            let is_known = settle(pair);
            if !is_known && cx.volume.keeps(InodeNr(pair.0)) {
                links.add(InodeNr(pair.0));
            }
            is_known
        });
        named.append(&mut rest);
    }
    let mut ranks = Ranks::of(cx.index);
    evidence.dotdots.retain_mut(|(dir, _)| ranks.settle(dir));
    evidence.htree.nodes.retain_mut(|node| ranks.settle(&mut node.rank));
    evidence.htree.leaves.retain_mut(|leaf| ranks.settle(&mut leaf.rank));
}

/// Ranks that are remembered.
const REMEMBERED: usize = 64;

/// Looks up ranks of directories, which are often asked for in order: the lists of shards are. Else a few parents are
/// asked for again and again.
struct Ranks<'a> {
    index: &'a DirIndex,
    inodes: &'a [InodeNr],
    /// The rank found last.
    last: u32,
    /// Directories with their ranks, each at the place that the end of its number gives; 0: none.
    before: [(u32, u32); REMEMBERED],
}

impl<'a> Ranks<'a> {
    fn of(index: &'a DirIndex) -> Self {
        Self { index, inodes: index.inodes(), last: 0, before: [(0, 0); REMEMBERED] }
    }

    #[inline]
    fn get(&mut self, dir: u32) -> Option<u32> {
        // The same one again, or the next one.
        match self.inodes.get(self.last as usize..).unwrap_or_default() {
            [same, ..] if same.0 == dir => return Some(self.last),
            [_, next, ..] if next.0 == dir => self.last += 1,
            _ => self.last = self.look_up(dir)?,
        }
        Some(self.last)
    }

    #[inline]
    fn look_up(&mut self, dir: u32) -> Option<u32> {
        let known = &mut self.before[dir as usize % REMEMBERED];
        if known.0 != dir || dir == 0 {
            *known = (dir, self.index.get(InodeNr(dir))?);
        }
        Some(known.1)
    }

    /// Puts the rank in the place of the inode, if there is one.
    #[inline]
    fn settle(&mut self, dir: &mut u32) -> bool {
        let known = self.get(*dir);
        *dir = known.unwrap_or_default();
        known.is_some()
    }
}

impl Delayed {
    /// Whether all that the block names is what it says.
    fn is_proved(&self, cx: &DirCx<'_>) -> bool {
        let is_there = |&(inode, named_as): &(InodeNr, u8)| {
            cx.facts.get(inode) == Facts::used(FileType::of_entry(named_as))
        };
        cx.index.get(self.block.dir).is_some() && self.named.iter().all(is_there)
    }

    /// Notes what the block leaves.
    fn note(&self, cx: &DirCx<'_>, evidence: &mut DirEvidence) {
        let Some(rank) = cx.index.get(self.block.dir) else { return };
        if let Some(dotdot) = self.dotdot {
            evidence.dotdots.push((rank, dotdot));
        }
        let entries = self.named.get(usize::from(self.dotdot.is_some())..).unwrap_or(&[]);
        for &(inode, named_as) in entries {
            evidence.entries += 1;
            let is_dir = named_as == FileType::Directory as u8;
            match cx.index.get(inode).filter(|_| is_dir) {
                Some(child) => evidence.named.push((child, rank)),
                None => evidence.links.add(inode),
            }
        }
        if let Some((min, max)) = self.hashes {
            let logical = self.block.logical;
            evidence.htree.leaves.push(Leaf { rank, logical, min, max });
        }
    }
}

#[cfg(test)]
mod laws {
    use super::*;
    use crate::evidence::dirs::DirFlags;

    /// The first block of a directory.
    fn block(dir: u32) -> DirRun {
        let (block, dir, flags) = (BlockNr(dir.into()), InodeNr(dir), DirFlags::default());
        let (generation, logical, len_blocks, judged) = (0, 0, 1, false);
        DirRun { block, dir, generation, logical, len_blocks, flags, judged }
    }

    // The records of blocks judged early, without the buffers.
    floe_exec::accumulator_laws!(
        EarlyDirs,
        (1u32..90, 0u8..3),
        |all: &mut EarlyDirs, (dir, how): (u32, u8)| {
            let named: Box<[_]> = Box::new([(InodeNr(dir), 2)]);
            match how {
                0 => {
                    all.evidence.named.push((dir, dir + 1));
                    all.counts.plain += 1;
                }
                1 => {
                    let delayed = Delayed { block: block(dir), dotdot: None, hashes: None, named };
                    all.delayed_bytes += delayed.bytes();
                    all.delayed.push(delayed);
                    all.counts.delayed += 1;
                }
                _ => {
                    all.left.push(block(dir));
                    all.counts.left += 1;
                }
            }
            all.room.asked.push((InodeNr(dir), how));
        },
        |mut all: EarlyDirs| {
            all.evidence.named.sort_unstable();
            all.left.sort_unstable_by_key(|run| run.block);
            all.delayed.sort_by_key(|delayed| delayed.block.block);
            let delayed: Vec<_> = all.delayed.iter().map(|delayed| delayed.block).collect();
            (all.evidence.named, delayed, all.delayed_bytes, all.left, all.counts)
        }
    );
}
