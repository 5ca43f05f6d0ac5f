//! The directory pass: every directory block, in disk order and in parallel, each entry checked
//! against what the inode pass knows of the inode that it names.

use std::ops::Range;

use floe_exec::{Accumulator, Pool, WorkItem};
use floe_format::BlockRun;

use super::overlap::EarlyDirs;
use crate::checkpoint::{Begun, Legs, Session};
use crate::checks::context::directory::{DirCx, DirEvidence};
use crate::checks::directory::{dir_holes, dirents, htree_trees, inline_dirs};
use crate::error::CheckError;
use crate::scan::directory_blocks::{DirBlock, scan_runs, scan_runs_if, scan_unit, units};

/// Reads and checks all directories block by block; after a checkpoint, only the remaining ones.
/// Adds the results `early` of blocks that were judged together with the inodes. See [`finish`].
///
/// # Errors
/// [`CheckError::Stopped`] if the caller requested it.
pub fn run(
    cx: &DirCx<'_>,
    early: EarlyDirs,
    pool: &Pool,
    session: Option<&mut Session<'_>>,
) -> Result<DirEvidence, CheckError> {
    let runs = &cx.dirs.runs;
    let each = |evidence: &mut DirEvidence, block: DirBlock<'_>| {
        if let Some(backpointers) = &cx.volume.backpointers {
            backpointers.note_block(block.dir, block.bytes);
        }
        dirents::check_block(cx, &block, evidence);
    };
    let (mut all, left) = early.certify(cx);
    all.merge(match session {
        None => scan_runs_if(cx.volume, cx.index, runs, |run| !run.judged, pool, each),
        Some(session) => {
            let mut begun = session.directories();
            if !begun.evidence.fits(cx.dirs.infos.len()) {
                // Made up by somebody: hashes fit.
                begun = Begun::default();
            }
            let units = units(runs, begun.done);
            let done =
                |count| units.get(count).map_or(runs.len(), |unit: &Range<usize>| unit.start);
            let work = |evidence: &mut DirEvidence, item: &mut WorkItem<'_, '_, Range<usize>>| {
                scan_unit(cx.volume, cx.index, runs, item, &|_| true, evidence, &each);
            };
            let place = |unit: &Range<usize>| {
                let run = &runs[unit.start];
                BlockRun::new(run.block, u64::from(run.len_blocks))
            };
            let legs = Legs::of_directories(cx.volume, pool, &done);
            session.run(&legs, begun.evidence, &units, work, |_| (), place)?
        }
    });
    all.merge(scan_runs(cx.volume, cx.index, &left, pool, each));
    all.merge(inline_dirs::run(cx, pool));
    Ok(all)
}

/// Judges what no block of a directory shows alone: holes and indexes.
pub fn finish(cx: &DirCx<'_>, all: &mut DirEvidence, pool: &Pool) {
    dir_holes::check(cx, pool, &mut all.found);
    htree_trees::check(cx, all, pool);
}
