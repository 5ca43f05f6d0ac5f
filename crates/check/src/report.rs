//! The result of a check as one value; the crate `floe-report` writes it down.
//!
//! Nothing here depends on the number of threads, except times, which its writers keep apart.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use floe_blockdev::ReadCounts;
use floe_exec::{Counts, Policy};
use floe_format::ext::superblock::Superblock;
use floe_format::{BlockNr, Geometry, InodeNr};

use crate::estimate::memory::Plan;
use crate::evidence::totals::Totals;
use crate::problem::{Findings, Problem, Severity, Weight};
pub use crate::volume::journal::JournalState;

/// The result of a check that could look at everything it had to.
#[derive(Clone, Debug)]
pub struct Report {
    /// Findings, in order of code and place, each once: the same for any number of threads.
    pub found: Vec<Problem>,
    /// The superblock that was used.
    pub superblock: Superblock,
    /// The geometry derived from it.
    pub geometry: Geometry,
    /// The block of the superblock that was used, if it was a backup.
    pub used_backup: Option<BlockNr>,
    /// Counts of inodes and blocks.
    pub totals: Totals,
    /// Clusters in use, static metadata included.
    pub clusters_used: u64,
    /// The state of the journal.
    pub journal: JournalState,
    /// Paths of inodes that findings name, as bytes, where they could be found out.
    pub paths: BTreeMap<InodeNr, Vec<u8>>,
    /// How long each phase took, in order.
    pub phases: Vec<PhaseTime>,
    /// Measurements of the pipeline, if passes overlapped. They belong to the phase `inodes`, in
    /// which most directory blocks were judged, too.
    pub pipeline: Option<PipelineUse>,
    /// How many groups were scanned a second time, object by object, because sums did not prove them
    /// to be in order; `None` if everything was kept object by object from the start.
    pub rescanned_groups: Option<u32>,
    /// How the check was made, and what that was thought to take; `None` if none was made.
    pub plan: Option<Plan>,
}

/// How long one phase of a check took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseTime {
    /// The phase: `inodes`, `directories`.
    pub name: &'static str,
    /// Wall-clock time.
    pub time: Duration,
    /// Reads in it, if the caller counts them ([`crate::Observer::reads`]).
    pub reads: ReadCounts,
}

/// Measurements of the pipeline of a check; of the last scan, if there were two.
#[derive(Clone, Debug)]
pub struct PipelineUse {
    /// How workers were shared between the passes.
    pub policy: Policy,
    /// Locks, batches, and what each pass took.
    pub counts: Counts,
    /// Directory blocks that ran ahead of the directory pass.
    pub blocks: EarlyCounts,
}

/// How many blocks ran ahead, and what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EarlyCounts {
    /// Plain, by what was known then.
    pub plain: u64,
    /// Plain if certain inodes are what entries say, which was proved after the inode pass.
    pub delayed: u64,
    /// Left to the directory pass.
    pub left: u64,
}

/// The verdict of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Nothing to repair; there may be remarks.
    Clean,
    /// Damage was found.
    Damaged,
    /// The check had to end early; what was not looked at may be damaged or not.
    Incomplete,
}

impl Verdict {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::Damaged => "damaged",
            Self::Incomplete => "incomplete",
        }
    }
}

/// The cost of a check, as measured by its caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Wall-clock time of all.
    pub elapsed: Duration,
    /// Workers.
    pub threads: usize,
    /// Reads of the device.
    pub reads: u64,
    /// Bytes read from the device.
    pub bytes_read: u64,
    /// Largest resident memory of the process in bytes, if known.
    pub peak_memory_bytes: Option<u64>,
}

impl Report {
    /// The heaviest finding; `None` without any.
    pub fn worst(&self) -> Option<Weight> {
        self.found.iter().map(|problem| problem.row().weight).max()
    }

    /// Whether the file system is clean: nothing was found but remarks.
    pub fn is_clean(&self) -> bool {
        self.verdict() == Verdict::Clean
    }

    /// The verdict, from the heaviest finding.
    pub fn verdict(&self) -> Verdict {
        match self.worst() {
            Some(Weight::Fatal) => Verdict::Incomplete,
            Some(Weight::Damage) => Verdict::Damaged,
            Some(Weight::Remark) | None => Verdict::Clean,
        }
    }

    /// Findings of each severity, the mildest first.
    pub fn counts(&self) -> [(Severity, usize); 4] {
        let severities =
            [Severity::Cosmetic, Severity::Metadata, Severity::DataRisk, Severity::Fatal];
        severities.map(|severity| {
            let of = |problem: &&Problem| problem.row().severity == severity;
            (severity, self.found.iter().filter(of).count())
        })
    }

    /// Findings that need repair: all but remarks.
    pub fn damage_count(&self) -> usize {
        self.found.iter().filter(|problem| problem.row().weight > Weight::Remark).count()
    }

    /// The worst severity among the findings that need repair.
    pub fn worst_damage(&self) -> Option<Severity> {
        let damage = self.found.iter().filter(|problem| problem.row().weight > Weight::Remark);
        damage.map(|problem| problem.row().severity).max()
    }

    /// The inodes that findings are about.
    pub fn inodes(&self) -> BTreeSet<InodeNr> {
        inodes_about(&self.found)
    }

    /// Blocks in use, static metadata included; whole clusters.
    pub fn blocks_used(&self) -> u64 {
        let blocks = self.clusters_used.saturating_mul(u64::from(self.geometry.cluster_blocks));
        blocks.min(self.geometry.blocks_count)
    }

    /// The path of the inode that a finding is about, if it is known.
    pub fn path_of(&self, problem: &Problem) -> Option<String> {
        problem.inode().and_then(|inode| self.path(inode))
    }

    /// The path of an inode, if it is known, with bytes that are no text escaped.
    pub fn path(&self, inode: InodeNr) -> Option<String> {
        self.paths.get(&inode).map(|path| display_path(path))
    }
}

/// The inodes that findings are about.
fn inodes_about(found: &[Problem]) -> BTreeSet<InodeNr> {
    found.iter().filter_map(Problem::inode).filter(|inode| inode.0 != 0).collect()
}

/// The inodes that findings name: their paths belong in the report.
pub fn inodes_of(found: &[Problem]) -> BTreeSet<InodeNr> {
    let mut inodes = inodes_about(found);
    inodes.extend(found.iter().flat_map(Problem::others));
    inodes
}

/// Puts findings in order and drops repeated ones.
pub fn in_order(found: Findings) -> Vec<Problem> {
    let mut found = found.0;
    // Findings of one kind mostly came in order, or in a few runs that are in order.
    found.sort_by_key(Problem::index);
    for kind in found.chunk_by_mut(|left, right| left.index() == right.index()) {
        kind.sort();
    }
    found.dedup();
    found
}

/// A path for people: UTF-8 as it is, control characters and other bytes escaped.
pub fn display_path(path: &[u8]) -> String {
    let mut text = String::new();
    for chunk in path.utf8_chunks() {
        for char in chunk.valid().chars() {
            if char.is_control() || char == '\\' {
                text.extend(char.escape_default());
            } else {
                text.push(char);
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_safe_to_print() {
        assert_eq!(display_path("/ä\\b".as_bytes()), "/ä\\\\b");
        assert_eq!(display_path(b"/a\x1b[2J\xff"), "/a\\u{1b}[2J\\xff");
    }
}
