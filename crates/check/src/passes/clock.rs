//! Time of the phases of a check, and what the progress shows of them.

use std::time::Instant;

use floe_blockdev::ReadCounts;
use floe_exec::Counts;

use super::registry::PASSES;
use crate::checkpoint::Session;
use crate::estimate::work;
use crate::evidence::dirs::{DirRun, Dirs};
use crate::options::CheckOptions;
use crate::report::{EarlyCounts, PhaseTime, PipelineUse};
use crate::scan::directory_blocks;
use crate::volume::Volume;

/// Times the phases, and says which one is running.
pub(super) struct Clock<'p> {
    pub(super) phases: Vec<PhaseTime>,
    pub(super) pipeline: Option<PipelineUse>,
    since: Instant,
    read: ReadCounts,
    pub(super) options: &'p CheckOptions<'p>,
}

impl<'p> Clock<'p> {
    /// The time before `first`, a phase, is over.
    pub(super) fn start(first: &'static str, options: &'p CheckOptions<'p>) -> Self {
        if let Some(progress) = options.observer.progress {
            progress.begin_round(first);
            progress.begin(first);
        }
        let read = options.observer.reads.map(|reads| reads()).unwrap_or_default();
        Self { phases: Vec::new(), pipeline: None, since: Instant::now(), read, options }
    }

    /// The descriptors say what a check that begins with nothing has to do.
    pub(super) fn plan(&self, volume: &Volume<'_>, overlap: bool) {
        if let Some(progress) = self.options.observer.progress {
            let estimates = PASSES.iter().filter_map(|pass| Some((pass.name, pass.estimate?)));
            work::plan(progress, volume, estimates, self.options.threads, overlap);
        }
    }

    /// Some parts of inode tables may have been read before.
    pub(super) fn resume(&self, volume: &Volume<'_>, session: Option<&Session<'_>>) {
        if let (Some(progress), Some(session)) = (self.options.observer.progress, session) {
            work::plan_rest(progress, volume, session.parts_done(), self.options.threads);
        }
    }

    /// Passes overlapped in the phase of the inodes.
    pub(super) fn overlapped(&mut self, counts: Counts, blocks: EarlyCounts) {
        self.pipeline = Some(PipelineUse { policy: self.options.tuning.schedule, counts, blocks });
    }

    /// The blocks of directories are known. Some of them may have been read before.
    pub(super) fn plan_directories(
        &self,
        volume: &Volume<'_>,
        dirs: &Dirs,
        session: Option<&Session<'_>>,
    ) {
        let done = session.map_or(0, Session::runs_done);
        if let Some(progress) = self.options.observer.progress {
            let rest = dirs.runs.get(done..).unwrap_or(&[]);
            let blocks = |runs: &[DirRun], judged: bool| {
                let runs = runs.iter().filter(|run| judged || !run.judged);
                runs.map(|run| u64::from(run.len_blocks)).sum::<u64>()
            };
            let blocks = (blocks(&dirs.runs, true), blocks(rest, false));
            let at_hand = directory_blocks::runs_at_hand(volume, &dirs.runs);
            let block_size = volume.geometry.block_size;
            let reads = work::directory_reads(dirs.runs.iter(), block_size, at_hand);
            work::plan_directories(progress, volume, blocks, reads, self.options.threads, rest);
        }
    }

    /// Ends the phase that began with the last call; the next one begins.
    pub(super) fn end(&mut self, name: &'static str) {
        self.end_before(
            name,
            work::PHASES.iter().skip_while(|phase| **phase != name).nth(1).copied(),
        );
    }

    /// Ends the phase that began with the last call; `next` begins.
    pub(super) fn end_before(&mut self, name: &'static str, next: Option<&'static str>) {
        let now = Instant::now();
        let read = self.options.observer.reads.map(|reads| reads()).unwrap_or_default();
        let reads = ReadCounts {
            reads: read.reads.saturating_sub(self.read.reads),
            bytes: read.bytes.saturating_sub(self.read.bytes),
        };
        self.phases.push(PhaseTime { name, time: now - self.since, reads });
        (self.since, self.read) = (now, read);
        match (self.options.observer.progress, next) {
            // The work behind the last phase of a round is not ours to time.
            (Some(progress), Some(next)) if name != LAST => progress.begin(next),
            (Some(progress), _) => progress.end(),
            (None, _) => {}
        }
    }
}

/// The phase that ends a check.
const LAST: &str = "paths";
