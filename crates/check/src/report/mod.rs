//! What a check found, as one value; `human` and `json` write it down.
//!
//! Nothing here depends on the number of threads, except times, which both writers keep apart.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use floe_format::{BlockNr, InodeNr};

use crate::problem::{Problem, Severity, Weight};

pub mod human;
pub mod json;

/// Everything that a check found out.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What was checked.
    pub filesystem: Filesystem,
    /// What it holds.
    pub totals: Totals,
    /// What became of the journal.
    pub journal: Journal,
    /// All findings; [`Report::finish`] sorts them.
    pub findings: Vec<Problem>,
    /// Paths of inodes that findings name, as bytes, where they could be found out.
    pub paths: BTreeMap<InodeNr, Vec<u8>>,
    /// The parts of the check and the time each took.
    pub phases: Vec<Phase>,
}

/// What was checked: the superblock's own words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filesystem {
    /// Volume label; may be empty.
    pub label: String,
    /// UUID, with dashes.
    pub uuid: String,
    /// Names of the feature bits, as `tune2fs -O` spells them.
    pub features: Vec<String>,
    /// Bytes of a block.
    pub block_size: u32,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Inodes of the file system.
    pub inodes: u32,
    /// Block groups.
    pub groups: u32,
    /// Block of the superblock in use, counted in `block_size`.
    pub superblock: BlockNr,
    /// Whether that is a backup.
    pub from_backup: bool,
}

/// What the file system holds, as counted (never as stored).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Inodes in use.
    pub inodes_used: u64,
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, pipes and sockets.
    pub special_files: u64,
    /// Names of files, without `.` and `..`.
    pub names: u64,
    /// Blocks in use, metadata included.
    pub blocks_used: u64,
    /// Files and directories in more than one piece.
    pub fragmented: u64,
}

/// What became of the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Journal {
    /// The file system has none.
    #[default]
    None,
    /// It holds nothing that is not in place.
    Clean,
    /// It was replayed in memory: the verdict is the one after recovery.
    Replayed {
        /// Committed transactions.
        transactions: u64,
        /// Blocks they change.
        blocks: u64,
    },
    /// It holds transactions, but the raw disk was judged.
    Ignored,
    /// It holds transactions that cannot be replayed; findings say why.
    Unusable,
}

/// A part of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    /// A short name: `inodes`, `directories`.
    pub name: &'static str,
    /// Wall-clock time.
    pub took: Duration,
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

/// What a check cost, as its caller measured it.
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
    /// Sorts the findings by code and place and drops exact repetitions.
    pub fn finish(&mut self) {
        self.findings.sort_unstable();
        self.findings.dedup();
    }

    /// The worst that was found.
    pub fn verdict(&self) -> Verdict {
        match self.findings.iter().map(|problem| problem.row().weight).max() {
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
            (severity, self.findings.iter().filter(of).count())
        })
    }

    /// Findings that need repair: all but remarks.
    pub fn damage_count(&self) -> usize {
        self.findings.iter().filter(|problem| problem.row().weight > Weight::Remark).count()
    }

    /// The worst severity among the findings that need repair.
    pub fn worst_damage(&self) -> Option<Severity> {
        let damage = self.findings.iter().filter(|problem| problem.row().weight > Weight::Remark);
        damage.map(|problem| problem.row().severity).max()
    }

    /// The inodes that findings are about, for finding out their paths.
    pub fn inodes(&self) -> BTreeSet<InodeNr> {
        self.findings.iter().filter_map(Problem::inode).filter(|inode| inode.0 != 0).collect()
    }

    /// The path of an inode, if it is known, with bytes that are no text escaped.
    pub fn path(&self, inode: InodeNr) -> Option<String> {
        self.paths.get(&inode).map(|path| display_path(path))
    }
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
pub(crate) mod tests {
    use super::*;
    use floe_format::GroupNr;

    use crate::problem::Name;

    /// A report with a finding of each weight and of several objects.
    pub(crate) fn sample() -> Report {
        let mut report = Report {
            filesystem: Filesystem {
                label: "demo".into(),
                uuid: "01234567-89ab-cdef-0123-456789abcdef".into(),
                features: vec!["has_journal".into(), "extent".into()],
                block_size: 4096,
                blocks: 65536,
                inodes: 16384,
                groups: 2,
                superblock: BlockNr(0),
                from_backup: false,
            },
            totals: Totals { inodes_used: 20, files: 6, directories: 3, ..Totals::default() },
            journal: Journal::Replayed { transactions: 2, blocks: 17 },
            findings: vec![
                Problem::InodeLinkCountWrong { inode: InodeNr(12), stored: 3, counted: 2 },
                Problem::DirentInodeUnused {
                    dir: InodeNr(13),
                    logical: floe_format::LogicalBlock(0),
                    offset_bytes: 24,
                    inode_named: InodeNr(99),
                    name: Name::new(b"lost\xff\n"),
                },
                Problem::GroupFreeBlockCountWrong { group: GroupNr(1), stored: 5, counted: 6 },
                Problem::UuidMissing,
                Problem::InodeLinkCountWrong { inode: InodeNr(12), stored: 3, counted: 2 },
            ],
            ..Report::default()
        };
        report.paths.insert(InodeNr(13), b"/home/bob".to_vec());
        report.finish();
        report
    }

    #[test]
    fn the_verdict_is_the_worst_weight() {
        let mut report = sample();
        assert_eq!(report.findings.len(), 4, "repetitions are dropped");
        assert_eq!(report.verdict(), Verdict::Damaged);
        assert_eq!(report.damage_count(), 3);
        assert_eq!(report.worst_damage(), Some(Severity::DataRisk));
        report.findings.retain(|problem| problem.row().weight == Weight::Remark);
        assert_eq!(report.verdict(), Verdict::Clean);
        assert_eq!(report.worst_damage(), None);
        report.findings.push(Problem::SuperblockUnusable);
        assert_eq!(report.verdict(), Verdict::Incomplete);
    }

    #[test]
    fn paths_are_safe_to_print() {
        assert_eq!(display_path("/ä\\b".as_bytes()), "/ä\\\\b");
        assert_eq!(display_path(b"/a\x1b[2J\xff"), "/a\\u{1b}[2J\\xff");
    }
}
