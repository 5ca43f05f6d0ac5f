//! A second look at directories: their entries that stay, for checks that need places and names.
//! The directory pass keeps neither, as almost nobody asks.

use floe_exec::{Accumulator, Pool};
use floe_format::ext::dirent::DirEntry;
use floe_format::{BlockNr, InodeNr};

use crate::checks::context::directory::DirCx;
use crate::checks::directory::dirents::{self, Position};
use crate::checks::directory::entry_rules::{self, Crossing};
use crate::checks::directory::inline_dirs;
use crate::evidence::dirs::DirRun;
use crate::evidence::ledger::{Ledger, ranges_of};
use crate::problem::{Findings, Sink};
use crate::scan::directory_blocks::{BlockScan, DirBlock, ReadRoom, scan_runs};
use crate::scan::inode_reader::InodeReader;

/// A worker's evidence and its buffers.
#[derive(Debug, Default)]
pub struct Scan<A> {
    /// The evidence that the scan collects.
    pub own: A,
    read: ReadRoom,
    salvaged: Vec<u8>,
    /// Unreadable blocks: the directory pass has reported them.
    ignored: Findings,
}

impl<A: Accumulator> Accumulator for Scan<A> {
    fn merge(&mut self, other: Self) {
        let Self { own, read: _, salvaged: _, ignored: _ } = other;
        self.own.merge(own);
    }
}

impl<A: Accumulator> BlockScan for Scan<A> {
    fn room(&mut self) -> &mut ReadRoom {
        &mut self.read
    }
    fn sink(&mut self) -> &mut impl Sink {
        &mut self.ignored
    }
}

/// Calls `each` with every entry that stays (none of `.` and `..`) of the directories that `wanted`
/// picks, which is asked for each run of blocks, and with no run for inline directories. The order is
/// that of the disk within a worker, and inline directories come last; the accumulator must not let it
/// be seen.
pub fn run<A: Accumulator>(
    cx: &DirCx<'_>,
    pool: &Pool,
    wanted: impl Fn(InodeNr, Option<&DirRun>) -> bool,
    each: impl Fn(&mut A, &DirBlock<'_>, &DirEntry<'_>) + Sync,
) -> A {
    let runs: Vec<DirRun> =
        cx.dirs.runs.iter().filter(|run| wanted(run.dir, Some(run))).copied().collect();
    let mut all = scan_runs(cx.volume, cx.index, &runs, pool, |scan: &mut Scan<A>, block| {
        look(cx, &block, scan, &each);
    });
    let mut reader = InodeReader::default();
    for &dir in cx.dirs.inline.iter().filter(|dir| wanted(**dir, None)) {
        let Some(rank) = cx.index.get(dir) else { continue };
        let Some(inode) = reader.read(cx.volume, dir) else { continue };
        inline_dirs::for_each_part(&inode, dir, rank, |block| look(cx, &block, &mut all, &each));
    }
    all.own
}

/// Picks the directory blocks whose entries name some inodes, and perhaps others; `inodes` are sorted.
/// `met` is what the directory pass noted.
pub(crate) fn naming(
    cx: &DirCx<'_>,
    met: &Ledger,
    inodes: impl IntoIterator<Item = InodeNr>,
) -> impl Fn(InodeNr, Option<&DirRun>) -> bool {
    naming_any(cx, met, ranges_of(inodes.into_iter().map(|inode| (inode.0, inode.0))))
}

/// As [`naming`]; the inodes are those of some ranges, with their first and last numbers: sorted, and
/// none overlaps the next.
pub(crate) fn naming_any(
    cx: &DirCx<'_>,
    met: &Ledger,
    inodes: Vec<(u32, u32)>,
) -> impl Fn(InodeNr, Option<&DirRun>) -> bool {
    let cx = *cx;
    let regions = met.places_of(&inodes);
    move |_, run| {
        let Some(run) = run else { return true };
        let last = BlockNr(run.block.0.saturating_add(u64::from(run.len_blocks.max(1)) - 1));
        let from = regions.partition_point(|region| *region < cx.region_of(run.block));
        regions.get(from).is_some_and(|region| *region <= cx.region_of(last))
    }
}

/// Calls `each` with every entry of a block that stays.
pub fn look<A: Accumulator>(
    cx: &DirCx<'_>,
    block: &DirBlock<'_>,
    scan: &mut Scan<A>,
    mut each: impl FnMut(&mut A, &DirBlock<'_>, &DirEntry<'_>),
) {
    let mut room = std::mem::take(&mut scan.salvaged);
    let mut position = Position::of(block);
    dirents::walk(cx, block, dirents::end_of(cx, block), &mut room, |_, entry| {
        let at = position;
        position = at.next();
        if at != Position::Other || !entry.in_use() {
            return;
        }
        let crossing = Crossing::of(cx, block, entry);
        if entry_rules::accept(cx, block, entry, crossing, None::<&mut Findings>).is_some() {
            each(&mut scan.own, block, entry);
        }
    });
    scan.salvaged = room;
}

#[cfg(test)]
mod laws {
    use super::*;
    use crate::evidence::link_counts::LinkCounts;

    // The merged evidence, without the buffers.
    floe_exec::accumulator_laws!(
        Scan<LinkCounts>,
        1u32..20,
        |all: &mut Scan<LinkCounts>, inode: u32| {
            all.own.add(InodeNr(inode));
            all.salvaged.push(1);
        },
        |all: Scan<LinkCounts>| {
            (1..20).map(|inode| all.own.get(InodeNr(inode))).collect::<Vec<_>>()
        }
    );
}
