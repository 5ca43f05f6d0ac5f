//! Work about cubes, and news of them, that wait for the threads that do the one and tell the other.

use floe_format::InodeNr;
use floe_sync::{MutexGuard, PoisonError};

use super::Gates;

/// Something to be done about a cube by the thread that tends the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) cube: u32,
    /// Repair what is found.
    pub(crate) repairs: bool,
    /// Where the old content of changed blocks is saved.
    pub(crate) undo: Option<std::path::PathBuf>,
}

/// Work and news that wait for the threads that do the one and tell the other.
#[derive(Debug, Default)]
pub(super) struct Desk {
    jobs: Vec<Job>,
    /// Names whose inode or content changed although no program asked for that.
    stale: Vec<(InodeNr, Vec<u8>)>,
    /// Lines for the log.
    news: Vec<String>,
    /// Another system is to write next.
    wants_fence: bool,
}

impl Gates {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn ask_for_fence(&self) {
        self.desk().wants_fence = true;
    }

    pub(crate) fn wants_fence(&self) -> bool {
        self.desk().wants_fence
    }

    /// Leaves a line for the log.
    pub(crate) fn tell(&self, line: String) {
        self.desk().news.push(line);
    }

    /// Lines for the log since the last call.
    pub(crate) fn take_news(&self) -> Vec<String> {
        std::mem::take(&mut self.desk().news)
    }

    pub(crate) fn note_stale(&self, directory: InodeNr, name: Vec<u8>) {
        self.desk().stale.push((directory, name));
    }

    /// Names whose inode or content changed although no program asked for that, since the last call.
    pub(crate) fn take_stale(&self) -> Vec<(InodeNr, Vec<u8>)> {
        std::mem::take(&mut self.desk().stale)
    }

    pub(crate) fn add_job(&self, job: Job) {
        if let Some(gate) = self.known(job.cube) {
            gate.about().report = None;
        }
        let jobs = &mut self.desk().jobs;
        if !jobs.contains(&job) {
            jobs.push(job);
        }
    }

    pub(crate) fn next_job(&self) -> Option<Job> {
        let jobs = &mut self.desk().jobs;
        (!jobs.is_empty()).then(|| jobs.remove(0))
    }
}
