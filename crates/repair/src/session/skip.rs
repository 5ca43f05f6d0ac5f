//! Ends a repair behind recovery: the journal is replayed, orphans are finished, and no check is due.

use floe_blockdev::{Overlay, ReadBlocks};
use floe_check::checks::system_files::orphans;
use floe_check::open::{Opened, open};
use floe_check::problem::{Findings, Weight};
use floe_check::{JournalUse, Problem};
use floe_disk::ops::finish_orphans;
use floe_format::ext::inode::Timestamp;

use super::settle::hidden_target;
use super::{RepairError, Session};
use crate::edit::{Edit, OrphanEdit};

impl Session<'_> {
    /// Finishes the orphans behind the replay, and asks whether that is enough. Returns the file system as it is then; `None`: it has
    /// to be examined, and the orphans are as they were.
    pub(super) fn recovered_is_enough(
        &mut self,
        opened: &Opened,
    ) -> Result<Option<Opened>, RepairError> {
        let Some(skip) = self.optional.skip.take().filter(|_| self.rounds == 1) else {
            return Ok(None);
        };
        let is_told = |problem: &Problem| problem.row().weight > Weight::Remark;
        // A primary superblock that came back from the log was damaged.
        let was_damaged = !self.journal.lost_primary.is_empty() || opened.used_backup.is_some();
        if was_damaged || self.journal.found.0.iter().any(is_told) {
            return Ok(None);
        }
        let finished: Overlay<&dyn ReadBlocks> =
            Overlay::new(self.staged, opened.geometry.block_size);
        let mut found = Findings::default();
        if skip.finishes_orphans && opened.superblock.may_have_orphans() {
            orphans::find(self.staged, opened, JournalUse::Replay, &mut found);
            if let Err(why) = finish(&finished, &found, self.options.check.now_seconds) {
                (skip.is_enough)(Err(&why));
                return Ok(None);
            }
        }
        if !(skip.is_enough)(Ok(&finished)) {
            return Ok(None);
        }
        finished.copy_to(self.staged).map_err(hidden_target)?;
        for problem in &found.0 {
            if let Problem::OrphanInodeProcessed { inode, .. } = *problem {
                self.note_done(problem, &Edit::Orphans(OrphanEdit::Finish(inode)));
            }
        }
        Ok(Some(open(self.staged, self.options.check.superblock)?))
    }
}

/// Finishes orphans in an overlay; `Err`: why a check is due.
fn finish(
    finished: &Overlay<&dyn ReadBlocks>,
    found: &Findings,
    now_seconds: i64,
) -> Result<(), String> {
    if let Some(damage) = found.0.iter().find(|problem| problem.row().weight > Weight::Remark) {
        return Err(damage.to_string());
    }
    let now = Timestamp { seconds: now_seconds, nanoseconds: 0 };
    finish_orphans(finished, now).map_err(|error| error.to_string())
}
