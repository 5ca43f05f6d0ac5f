//! Check: every block of a directory up to its last one is mapped.
//! Reads: the runs of directory blocks.  Keeps: nothing.  Emits: 0x020015.
//! Does not verify: the size of the directory, or that it has a block at all (the inode pass).

use floe_exec::Pool;
use floe_format::features::Incompat;
use floe_format::{InodeNr, LogicalBlock};

use crate::checks::context::directory::DirCx;
use crate::evidence::dirs::DirFlags;
use crate::evidence::pieces::places_in;
use crate::problem::{Problem, Sink};

/// Holes of one directory that are reported one by one; a directory with more is sparse garbage,
/// which its first holes tell as well.
const MOST_HOLES: u32 = 1000;

/// Looks for holes.
pub fn check(cx: &DirCx<'_>, pool: &Pool, found: &mut impl Sink) {
    // The kernel makes sparse directories then, and e2fsck lets them pass.
    if cx.volume.has_incompat(Incompat::LARGEDIR) && !cx.volume.has_incompat(Incompat::INLINE_DATA)
    {
        return;
    }
    let runs = &cx.dirs.runs;
    // Most directories consist of one run from logical block 0, and so have no hole.
    let parted = places_in(runs, pool, |run| run.logical > 0);
    let mut parted: Vec<InodeNr> = parted.into_iter().map(|at| runs[at].dir).collect();
    parted.sort_unstable();
    parted.dedup();
    if parted.is_empty() {
        return;
    }
    let mut pieces: Vec<(InodeNr, u64, u64)> = runs
        .iter()
        .filter(|run| !run.flags.contains(DirFlags::INLINE))
        .filter(|run| parted.binary_search(&run.dir).is_ok())
        .map(|run| (run.dir, u64::from(run.logical), u64::from(run.len_blocks)))
        .collect();
    pieces.sort_unstable();
    for of_dir in pieces.chunk_by(|one, other| one.0 == other.0) {
        check_dir(of_dir, found);
    }
}

/// The holes between the pieces of one directory, which are sorted.
fn check_dir(pieces: &[(InodeNr, u64, u64)], found: &mut impl Sink) {
    let (mut next, mut reported) = (0, 0);
    for &(dir, logical, len_blocks) in pieces {
        while next < logical && reported < MOST_HOLES {
            found.push(Problem::DirectoryHole { dir, logical: LogicalBlock(next) });
            next += 1;
            reported += 1;
        }
        next = next.max(logical.saturating_add(len_blocks));
    }
}
