//! Options and results of a repair.

use std::path::Path;

use floe_blockdev::{Overlay, ReadBlocks, UnreadablePage};
use floe_check::cube::CubeScope;
use floe_check::report::JournalState;
use floe_check::{CheckError, CheckOptions, Problem, Report};
use floe_disk::journal::JournalError;
use floe_format::{BlockNr, GroupNr};

use crate::deed::{Deed, Reason};
use crate::extras::Extras;
use crate::failure::Failure;
use crate::moves::{Left, MoveLog, Moves};
use crate::shared_owners::SharedBlocks;

/// Options of a repair.
#[derive(Clone, Copy)]
pub struct RepairOptions<'a> {
    /// Options of the examinations. `now_seconds` also dates everything that a repair writes.
    pub check: CheckOptions<'a>,
    /// Bytes of staged blocks kept in memory; the rest goes to a temporary file.
    pub staging_bytes: u64,
    /// Memory limit of the repair in bytes. To stay below it, the repair uses fewer threads and
    /// leaner structures, keeps blocks in the temporary file, and examines by fingerprints, which
    /// rules out some repairs; it fails if even that is not enough. The staged result is the same.
    /// `None`: no limit.
    pub memory_bytes: Option<u64>,
    /// Folder of the temporary file; `None`: the system's default.
    pub scratch: Option<&'a Path>,
    /// Random bytes for a missing UUID.
    pub random: [u8; 16],
    /// Optional work besides repairs.
    pub extras: Extras,
    /// Policy for blocks that several inodes claim.
    pub shared_blocks: SharedBlocks,
    /// Allows unreadable blocks to be overwritten, and their content to be given up. Otherwise they
    /// and everything that depends on them stay untouched, because a copy of the device may recover
    /// them.
    pub overwrite_unreadable: bool,
    /// Changes to the bad block list, made once the file system has no other damage.
    pub bad_blocks: Option<&'a BadBlocks>,
    /// Whether the clock is trusted, so that the time of the check may be stored.
    pub clock_believed: bool,
    /// Between two rounds, re-read only inodes near the edited ones, if those make up at most this
    /// percentage of all; 0: always re-read everything. The staged result does not depend on it,
    /// and the examination that finds nothing more to do reads everything anyway.
    pub rescan_percent: u32,
    /// The device shows the lots of this cube alone: see [`crate::cube`].
    pub cube: Option<&'a CubeScope>,
}

/// Ends a repair behind recovery if no check is due, as `e2fsck -p` does after a crash.
pub struct Skip<'a> {
    /// Orphans are finished as a mount does. Otherwise the file system is judged with them.
    pub finishes_orphans: bool,
    /// Judges the file system after recovery: `true` if no check is due. `Err`: the orphans could not be finished, for this reason, so
    /// that a check is due.
    pub is_enough: &'a dyn Fn(Result<&dyn ReadBlocks, &str>) -> bool,
}

/// A requested change of the bad block list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadBlocks {
    /// Blocks to add; those outside the file system are ignored.
    pub blocks: Vec<BlockNr>,
    /// Whether to drop the old list first.
    pub replace: bool,
}

impl Default for RepairOptions<'_> {
    fn default() -> Self {
        Self {
            check: CheckOptions::default(),
            staging_bytes: 256 << 20,
            memory_bytes: None,
            scratch: None,
            random: [0; 16],
            extras: Extras::default(),
            shared_blocks: SharedBlocks::default(),
            overwrite_unreadable: false,
            bad_blocks: None,
            clock_believed: true,
            rescan_percent: 25,
            cube: None,
        }
    }
}

/// Files that moved into their cubes, or stayed where another system has put them.
pub struct Moving<'d> {
    /// How they are written: after all that was staged before.
    pub writes: Option<Moves<&'d dyn ReadBlocks>>,
    /// Why none could be moved, where that is so.
    pub refused: Option<String>,
    /// Findings of files that stay, each with the reason.
    pub left: Vec<Left>,
}

impl<'d> Moving<'d> {
    pub(super) fn of(moves: MoveLog<'d>, is_kept: bool) -> Self {
        let left = moves.take_left();
        let (writes, refused) = moves.into_moving(is_kept);
        Self { writes, refused, left }
    }
}

/// A staged repair.
pub struct Repair<'d> {
    /// The file system after the repair.
    pub staged: Overlay<&'d dyn ReadBlocks>,
    /// The device of the external journal after the repair, if one was given: to be written after
    /// the file system.
    pub staged_journal: Option<Overlay<&'d dyn ReadBlocks>>,
    /// Files that moved into their cubes.
    pub moves: Moving<'d>,
    /// Report of the first examination, after journal recovery.
    pub before: Report,
    /// Report of the last examination.
    pub after: Report,
    /// The changes made, in order.
    pub deeds: Vec<Deed>,
    /// Damage that is left, and why.
    pub left: Vec<(Problem, Reason)>,
    /// The finding at which an unattended repair halted. The only staged change is then the error
    /// flag of the file system.
    pub halted: Option<Problem>,
    /// Result of journal recovery.
    pub journal: JournalState,
    /// The check was skipped ([`Skip`]): only the journal was replayed, and orphans finished.
    pub skipped: bool,
    /// Number of examinations.
    pub rounds: u32,
    /// Number of inode table chunks that each partial examination re-read.
    pub rescans: Vec<u32>,
}

/// Why a repair could not be planned.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    /// The file system could not be examined.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// Staging failed.
    #[error("cannot stage the repair: {0}")]
    Stage(#[from] Failure),
    /// The repair would exceed its memory limit.
    #[error("{phase} needs {need_bytes} bytes of memory, but the limit is {budget_bytes}")]
    OverBudget {
        /// The next step; "start" before the first.
        phase: &'static str,
        /// Bytes that would suffice, as far as known.
        need_bytes: u64,
        /// The limit in bytes.
        budget_bytes: u64,
    },
    /// No free run can hold a bitmap or inode table that has no valid location. Without it the
    /// repair would drop names of files that may still exist.
    #[error(
        "{group} has no room for its {what}, which needs {blocks} contiguous free blocks; \
         nothing was written"
    )]
    NoRoom {
        /// The group.
        group: GroupNr,
        /// "block bitmap", "inode bitmap" or "inode table".
        what: &'static str,
        /// Contiguous blocks that it needs.
        blocks: u64,
    },
    /// Replaying the journal would give up an unreadable block, and without replay the file system
    /// is inconsistent.
    #[error("{what}: {block}; nothing was written")]
    HiddenFromJournal {
        /// Message about the block.
        what: &'static str,
        /// The block.
        block: UnreadablePage,
    },
    /// Journals of cubes hold changes (`docs/journal.md`), and cannot be recovered: a later recovery could write older images
    /// over what is repaired.
    #[error("the journals of its cubes hold changes: {0}; nothing was written")]
    Locked(#[source] JournalError),
    /// The user ended it; nothing is staged.
    #[error("ended on request; nothing was written")]
    Quit,
}

impl Repair<'_> {
    /// Whether the staged file system is clean.
    pub fn is_clean(&self) -> bool {
        self.after.is_clean()
    }

    /// Whether files were moved into their cubes.
    pub fn moves_files(&self) -> bool {
        self.deeds.iter().any(|deed| deed.edit.moves_files())
    }

    /// Whether there is anything to write.
    pub fn changes(&self) -> bool {
        !self.staged.is_empty()
    }

    /// Whether any damage was repaired, beyond the updates of every run.
    pub fn repaired(&self) -> bool {
        if self.halted.is_some() {
            return false;
        }
        self.deeds.iter().any(|deed| !deed.extra)
            || matches!(self.journal, JournalState::Replayed { .. })
    }
}
