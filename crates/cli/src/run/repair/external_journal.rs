//! The device of an external journal, which is written behind the file system.

use std::path::PathBuf;

use anyhow::Context;
use floe_blockdev::WritableFile;
use floe_repair::Repair;
use floe_repair::commit::{CommitError, CommitOptions, Seen, UndoTarget, commit};

use super::RepairRun;
use crate::input::device::Source;
use crate::run::undo_target;

impl RepairRun<'_> {
    /// Opens and claims the external journal device.
    pub(super) fn open_journal(&self) -> anyhow::Result<Option<(WritableFile, Seen)>> {
        let Some(path) = self.external_journal else { return Ok(None) };
        let device = WritableFile::open_exclusive(path)?;
        let seen = Seen::of(&device);
        if let Some(path) = self.undo_of_journal() {
            undo_target::make_way(&path, &device).with_context(|| path.display().to_string())?;
        }
        Ok(Some((device, seen)))
    }

    /// The undo file of an external journal, beside that of the file system.
    fn undo_of_journal(&self) -> Option<PathBuf> {
        let mut path = self.undo?.as_os_str().to_owned();
        path.push(".journal");
        Some(path.into())
    }

    /// Writes the external journal device, after the replayed transactions are durable in the file
    /// system. Returns the command that undoes this, if an undo file was written.
    pub(super) fn commit_journal(
        &self,
        repair: &Repair<'_>,
        device: &WritableFile,
        seen: &Seen,
    ) -> Result<Option<String>, CommitError> {
        let (Some(staged), Some(path)) = (&repair.staged_journal, self.external_journal) else {
            return Ok(None);
        };
        let undo = self.undo_of_journal();
        let options = CommitOptions {
            seen,
            undo: undo.as_deref().map(|path| UndoTarget { path, fs_offset_bytes: 0 }),
            overwrite_unreadable: self.overwrite_unreadable,
            // The file system is already written, so an interruption in between is not possible.
            interrupt: None,
            progress: None,
        };
        let committed = commit(staged, device, &options)?;
        let undo = undo.filter(|_| committed.undo_bytes > 0);
        Ok(undo.map(|undo| Source::whole(path).undo_command(&undo)))
    }
}
