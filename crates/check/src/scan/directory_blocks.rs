//! Directory blocks: in disk order, in large reads, with the device told of what follows.

use std::ops::Range;

use floe_blockdev::{Batch, JoinLimits, PartBytes, ReadPlan};
use floe_exec::{Accumulator, Pool, WorkItem};
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::read_ahead::are_at_hand;
use crate::evidence::dir_index::DirIndex;
use crate::evidence::dirs::{DirFlags, DirRun};
use crate::problem::{Problem, Sink};
use crate::volume::Volume;

/// Bytes of one read, at most (but at least one block).
pub const READ_BYTES: u32 = 32 << 10;
/// Bytes between two directory blocks that are read along rather than skipped, on a device. Where
/// directories and one-block files alternate (half a million of each), this reads 3.8 GiB instead of 2.2, in
/// 68,000 reads instead of 505,000, and takes half the time.
const GAP_BYTES: u32 = 4 << 10;

/// Maximum gap in bytes between two directory blocks that are read together. For cached blocks
/// (`at_hand`) it is 0, because copying the gap takes longer than another read.
pub(crate) const fn gap_bytes_if(at_hand: bool) -> u32 {
    if at_hand { 0 } else { GAP_BYTES }
}

/// Whether some runs seem to be in memory.
pub(crate) fn runs_at_hand(volume: &Volume<'_>, runs: &[DirRun]) -> bool {
    are_at_hand(volume, runs, |run| run.block)
}

/// Runs of directory blocks that a worker takes at once: the plan of all reads would be larger than
/// what is kept of the directories.
pub(crate) const RUNS_PER_UNIT: usize = 128;

/// One block of a directory, or one of the two parts of an inline directory.
#[derive(Clone, Copy, Debug)]
pub struct DirBlock<'a> {
    /// The directory.
    pub dir: InodeNr,
    /// Its rank in the [`crate::evidence::dir_index::DirIndex`].
    pub rank: u32,
    /// Its `i_generation`.
    pub generation: u32,
    /// Which block of the directory.
    pub logical: u32,
    /// Where it lies; 0 in an inline directory.
    pub block: BlockNr,
    /// Flags of the directory.
    pub flags: DirFlags,
    /// The content.
    pub bytes: &'a [u8],
}

impl<'a> DirBlock<'a> {
    /// A block of a run of directory blocks. `None` if no directory owns the run.
    #[inline]
    pub fn of_run(index: &DirIndex, run: &DirRun, at: u64, bytes: &'a [u8]) -> Option<Self> {
        Some(Self {
            dir: run.dir,
            rank: index.get(run.dir)?,
            generation: run.generation,
            // A directory has at most 2^32 blocks; a run that says otherwise is cut elsewhere.
            logical: run.logical.saturating_add(u32::try_from(at).ok()?),
            block: BlockNr(run.block.0.saturating_add(at)),
            flags: run.flags,
            bytes,
        })
    }

    /// The logical block as a place.
    pub fn logical(&self) -> LogicalBlock {
        LogicalBlock(u64::from(self.logical))
    }

    /// Whether entries carry a hash.
    #[inline]
    pub fn hashed(&self) -> bool {
        self.flags.contains(DirFlags::ENCRYPTED.union(DirFlags::CASEFOLD))
    }
}

/// Where a worker plans reads of directory blocks, and what it reads.
#[derive(Debug, Default)]
pub struct ReadRoom {
    plan: ReadPlan<usize>,
    /// The plan for the runs to be read next.
    plan_ahead: ReadPlan<usize>,
    /// The first block of the runs that were prefetched before their unit of work.
    told: Option<BlockNr>,
    bytes: Vec<u8>,
}

/// The units of work of the runs from `first` on.
pub fn units(runs: &[DirRun], first: usize) -> Vec<Range<usize>> {
    let end = |first: usize| runs.len().min(first + RUNS_PER_UNIT);
    (first..runs.len()).step_by(RUNS_PER_UNIT).map(|first| first..end(first)).collect()
}

/// The interface that a scan of directory blocks requires of its accumulator.
pub trait BlockScan: Accumulator {
    /// Room for reading.
    fn room(&mut self) -> &mut ReadRoom;
    /// Where unreadable blocks are reported.
    fn sink(&mut self) -> &mut impl Sink;
}

/// Reads the blocks of `runs` in disk order, in large reads, and hands each to `each`.
pub(crate) fn scan_runs<A: BlockScan>(
    volume: &Volume<'_>,
    index: &DirIndex,
    runs: &[DirRun],
    pool: &Pool,
    each: impl Fn(&mut A, DirBlock<'_>) + Sync,
) -> A {
    scan_runs_if(volume, index, runs, |_| true, pool, each)
}

/// As [`scan_runs`], but only of those that `wanted` picks.
pub(crate) fn scan_runs_if<A: BlockScan>(
    volume: &Volume<'_>,
    index: &DirIndex,
    runs: &[DirRun],
    wanted: impl Fn(&DirRun) -> bool + Sync,
    pool: &Pool,
    each: impl Fn(&mut A, DirBlock<'_>) + Sync,
) -> A {
    let blocks = |unit: &Range<usize>| {
        let runs = runs.get(unit.clone()).unwrap_or(&[]);
        runs.iter().map(|run| u64::from(run.len_blocks)).sum()
    };
    pool.run_dealt(&units(runs, 0), blocks, |all: &mut A, item| {
        scan_unit(volume, index, runs, item, &wanted, all, &each);
    })
}

/// Reads the blocks of some of `runs`.
pub(crate) fn scan_unit<A: BlockScan>(
    volume: &Volume<'_>,
    index: &DirIndex,
    runs: &[DirRun],
    item: &mut WorkItem<'_, '_, Range<usize>>,
    wanted: &impl Fn(&DirRun) -> bool,
    all: &mut A,
    each: &(impl Fn(&mut A, DirBlock<'_>) + Sync),
) {
    let slice = runs.get(item.unit().clone()).unwrap_or(&[]);
    let next = || runs.get(item.next_unit()?.clone());
    read_runs(volume, slice, next, wanted, all, |all, nth, at, bytes| {
        let Some(run) = slice.get(nth) else { return };
        match bytes {
            Some(bytes) => {
                if let Some(block) = DirBlock::of_run(index, run, at, bytes) {
                    each(all, block);
                }
            }
            None if index.get(run.dir).is_some() => report_unreadable(run, at, all.sink()),
            None => {}
        }
    });
}

/// Reads the blocks of those `runs` that are `wanted` in disk order, in large reads, and hands each to
/// `each`: the index of its run, which block of the run it is, and its bytes unless it is unreadable. Where they are
/// not in memory, `next` says which runs will be read then: the device is told of those already.
pub(crate) fn read_runs<'r, A: BlockScan>(
    volume: &Volume<'_>,
    runs: &[DirRun],
    next: impl FnOnce() -> Option<&'r [DirRun]>,
    wanted: &impl Fn(&DirRun) -> bool,
    all: &mut A,
    mut each: impl FnMut(&mut A, usize, u64, Option<&[u8]>),
) {
    let geometry = &volume.geometry;
    let at_hand = runs_at_hand(volume, runs);
    let gap_bytes = gap_bytes_if(at_hand);
    let limits = JoinLimits {
        max_blocks: u64::from((READ_BYTES / geometry.block_size).max(1)),
        max_gap_blocks: u64::from(gap_bytes / geometry.block_size),
        end: BlockNr(geometry.blocks_count),
    };
    let ReadRoom { mut plan, mut plan_ahead, told, mut bytes } = std::mem::take(all.room());
    plan.plan(requests(runs, wanted), limits);
    // Told of all of them, a device works at many at a time, however few threads wait for it; told of the next ones
    // as well, it does not run out of work when these are through.
    let first = |runs: &[DirRun]| runs.first().map(|run| run.block);
    let mut told_next = None;
    if !at_hand {
        if told.is_none() || told != first(runs) {
            tell(volume, plan.batches().skip(1));
        }
        if let Some(next) = next() {
            plan_ahead.plan(requests(next, wanted), limits);
            tell(volume, plan_ahead.batches());
            told_next = first(next);
        }
    }
    for batch in plan.batches() {
        let outcome = batch.read(volume.device, geometry.block_size, &mut bytes, |part| {
            read_part(runs, geometry.block_size, &part, |at, bytes| {
                each(all, part.part.tag, at, bytes)
            });
        });
        if outcome.is_err() {
            for part in batch.parts {
                let blocks = part.offset_blocks..part.offset_blocks + part.run.len_blocks;
                blocks.for_each(|at| each(all, part.tag, at, None));
            }
        }
    }
    for &(_, at) in plan.refused() {
        // The inode pass lets no such run through; but nothing here depends on that.
        each(all, at, 0, None);
    }
    *all.room() = ReadRoom { plan, plan_ahead, told: told_next, bytes };
}

/// The blocks of those runs that are wanted, and which run of the list it is.
fn requests<'r>(
    runs: &'r [DirRun],
    wanted: impl Fn(&DirRun) -> bool + 'r,
) -> impl Iterator<Item = (BlockRun, usize)> + 'r {
    let wanted = runs.iter().enumerate().filter(move |(_, run)| wanted(run));
    wanted.map(|(at, run)| (BlockRun::new(run.block, u64::from(run.len_blocks)), at))
}

/// Tells the device of batches that will be read.
fn tell<'p>(volume: &Volume<'_>, batches: impl Iterator<Item = Batch<'p, usize>>) {
    let geometry = &volume.geometry;
    for batch in batches {
        let bytes = batch.run.len_blocks * u64::from(geometry.block_size);
        volume.device.will_need(geometry.offset_bytes(batch.run.start), bytes);
    }
}

fn read_part(
    runs: &[DirRun],
    block_size: u32,
    read: &PartBytes<'_, usize>,
    mut each: impl FnMut(u64, Option<&[u8]>),
) {
    let Some(run) = runs.get(read.part.tag) else { return };
    let blocks = read.bytes.chunks_exact(block_size as usize);
    for (bytes, at) in blocks.zip(read.part.offset_blocks..) {
        let place = BlockNr(run.block.0.saturating_add(at));
        let unreadable = !read.unreadable.is_empty() && read.unreadable.contains(&place);
        each(at, (!unreadable).then_some(bytes));
    }
}

/// Reports block `at` of a run as unreadable.
fn report_unreadable(run: &DirRun, at: u64, found: &mut impl Sink) {
    found.push(Problem::DirBlockReadError {
        dir: run.dir,
        logical: LogicalBlock(u64::from(run.logical).saturating_add(at)),
        block: BlockNr(run.block.0.saturating_add(at)),
    });
}
