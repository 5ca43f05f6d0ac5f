//! Overlapping passes: directory blocks are read while inodes are still being scanned, in a
//! pipeline of two stages whose workers are assigned by a scheduling policy (docs/scheduling.md).
//!
//! Only the short path of `plain_entries` runs early. It proves that a block is plain from the
//! block itself and from the facts of the inodes that it names. If some of these inodes were not
//! read yet, the proof is completed after the scan (delayed certification). The directory pass
//! judges all other blocks as if nothing had run early. Findings are therefore the same, and so is
//! all evidence but the order of lists.

mod early_dirs;

pub use early_dirs::{EarlyDirs, settle_ranks};
use floe_exec::{
    CoreShare, Counts, Entry, Found, Limits, Pipeline, Policy, Progress, Schedule, StageId,
};
use floe_format::Geometry;
use floe_sync::{Arc, OnceLock};

use crate::checks::context::directory::{DirCx, Empty};
use crate::checks::context::inode::InodeEvidence;
use crate::checks::directory::plain_entries;
use crate::checks::inode::plain_inodes::PlainInodes;
use crate::evidence::dirs::DirRun;
use crate::evidence::inode_facts::{CHUNK_INODES, FactsChunk};
use crate::evidence::published_facts::PublishedFacts;
use crate::options::CheckOptions;
use crate::passes::inodes;
use crate::passes::registry::{DIRECTORIES, INODES};
use crate::scan::inode_tables::{self, Ahead, TablePart};
use crate::volume::Volume;

/// Inodes in use of a batch: one part of a full table, several of others.
const BATCH_INODES: u64 = 2048;
/// Directory blocks of a batch.
const BATCH_BLOCKS: u64 = 128;
/// Runs of directory blocks that wait: with all that is found in one part beside it, 100 KiB.
const MOST_RUNS: usize = 2048;

/// Room of a worker for a second kind of work, and for a block beyond the proofs that it puts off.
const WORKER_BYTES: u64 = 640 << 10;

/// The merged evidence of the workers of both stages.
#[derive(Debug)]
pub struct Overlapped {
    /// As after the inode pass; runs of directory blocks say whether they were judged.
    pub inodes: InodeEvidence,
    /// The evidence of judged directory blocks.
    pub early: EarlyDirs,
    /// Measurements of the pipeline.
    pub counts: Counts,
}

/// Whether passes overlap at all. One worker would only go to and fro between them, and without types in
/// entries no block is plain; checkpoints go from pass to pass.
pub fn wanted(volume: &Volume<'_>, options: &CheckOptions<'_>) -> bool {
    let any_plain =
        volume.mode.shortcuts && volume.has_incompat(floe_format::features::Incompat::FILETYPE);
    let in_legs = options.checkpoints.keeper.is_some();
    options.threads > 1 && options.tuning.schedule != Policy::Data && any_plain && !in_legs
}

/// Bytes of memory that overlapping takes besides, at most: places of published facts, proofs that are put
/// off, queues, and workers who have room for both kinds of work.
pub fn bytes(geometry: &Geometry, threads: usize) -> u64 {
    let chunks = u64::from(geometry.inodes_per_group.div_ceil(CHUNK_INODES))
        * u64::from(geometry.group_count);
    chunks * size_of::<OnceLock<Arc<FactsChunk>>>() as u64
        + threads as u64 * (early_dirs::MOST_DELAYED_BYTES as u64 + WORKER_BYTES)
        + MOST_RUNS as u64 * 2 * size_of::<DirRun>() as u64
}

/// A piece of an inode table, in a queue.
struct Part {
    part: TablePart,
    /// Its share of the inodes in use of its group, at least 1.
    used: u16,
}

impl Entry for Part {
    fn address(&self) -> u64 {
        u64::from(self.part.group.0) << 32 | u64::from(self.part.first)
    }
    fn elements(&self) -> u64 {
        self.used.into()
    }
}

impl Entry for DirRun {
    fn address(&self) -> u64 {
        self.block.0
    }
    fn elements(&self) -> u64 {
        self.len_blocks.into()
    }
}

type Share = (InodeEvidence, EarlyDirs);

/// Reads and checks all inodes, and plain directory blocks along with them.
pub fn run(
    volume: &Volume<'_>,
    options: &CheckOptions<'_>,
    share: Option<&CoreShare<'_>>,
) -> Overlapped {
    let published = PublishedFacts::new(&volume.geometry, &volume.mode.scope);
    let nothing = Empty::default();
    let cx = nothing.cx(volume);
    let plain = PlainInodes::of(volume);
    let phase = options.observer.progress.and_then(Progress::running);
    let common = inodes::claims_in_common(options.threads);
    let mut pipeline = Pipeline::<Share>::new();
    let limits = Limits {
        batch_elements: BATCH_BLOCKS,
        most_entries: MOST_RUNS,
        weight: DIRECTORIES.weight,
    };
    let directories =
        pipeline.stage("directories", limits, Vec::new(), |all: &mut Share, runs, _| {
            all.1.judge(&cx, &published, runs);
            all.0.dirs.runs.append(runs);
        });
    let parts = parts(volume);
    if let Some(phase) = phase {
        phase.expect(parts.len() as u64);
    }
    let limits = Limits { batch_elements: BATCH_INODES, most_entries: 1, weight: INODES.weight };
    pipeline.stage("inodes", limits, parts, |all: &mut Share, parts: &mut Vec<Part>, found| {
        let mut batch = parts.drain(..).map(|it| it.part).peekable();
        while let Some(part) = batch.next() {
            let before = (all.0.dirs.runs.len(), all.0.dirs.infos.len());
            let published = Some(&published);
            all.0.claims.join(common.as_ref());
            let mut next = || batch.peek().copied();
            let ahead = Ahead::in_order(options.threads, true, &mut next);
            inodes::scan_part(volume, plain.as_ref(), part, published, ahead, &mut all.0);
            hand_on(&cx, before, &mut all.0, directories, found);
            inodes::tell_maps(volume, phase, &mut all.0);
            if let Some(phase) = phase {
                phase.advance(1);
            }
        }
    });
    let mut schedule = Schedule::new(options.threads, options.tuning.schedule);
    schedule.cores = share;
    let outcome = pipeline.run(&schedule);
    let (mut inodes, early) = outcome.all;
    inodes.claims.settle();
    Overlapped { inodes, early, counts: outcome.counts }
}

/// The parts of all inode tables, weighed by the inodes in use that descriptors tell of.
fn parts(volume: &Volume<'_>) -> Vec<Part> {
    let per_group = volume.geometry.inodes_per_group;
    let weigh = |part: TablePart| {
        let used = per_group.saturating_sub(volume.group(part.group).free_inodes_count);
        let slots = volume.used_inodes_bound(part.group).max(1);
        let share = u64::from(used.min(slots)) * u64::from(part.count) / u64::from(slots);
        // No more than the inodes of a part.
        Part { part, used: share.max(1) as u16 }
    };
    inode_tables::table_parts(volume).into_iter().map(weigh).collect()
}

/// Hands the directory blocks that a part of a table led to on to the next stage, if they may be plain.
fn hand_on(
    cx: &DirCx<'_>,
    (runs, infos): (usize, usize),
    evidence: &mut InodeEvidence,
    directories: StageId<DirRun>,
    found: &mut Found<'_, Part>,
) {
    let (all, infos) = (&mut evidence.dirs.runs, &evidence.dirs.infos[infos..]);
    // Inodes of a part come in order, and so do its directories.
    let known = |run: &DirRun| infos.binary_search_by_key(&run.dir, |info| info.inode).is_ok();
    let mut stays = runs;
    for at in runs..all.len() {
        let run = all[at];
        if plain_entries::may_be_plain(cx, run.dir, run.flags) && known(&run) {
            found.push(directories, run);
        } else {
            all[stays] = run;
            stays += 1;
        }
    }
    all.truncate(stays);
}
