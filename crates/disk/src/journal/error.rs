//! Why a journal cannot be used.

use std::io;

use floe_ext4::journal::{JournalEvent, in_words};
use floe_ext4::tx::Refusal;

/// Why a journal was not opened, or a transaction did not become durable.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file system cannot be opened at all.
    #[error("the file system cannot be opened: {0}")]
    FileSystem(#[source] Refusal),
    /// There is no journal in the file system.
    #[error("the file system has no journal")]
    Absent,
    /// A journal of a kind that is not written here.
    #[error("the journal cannot be written: {0}")]
    Unsupported(&'static str),
    /// The journal, or what it holds, is damaged. Nothing was written.
    #[error(
        "the journal cannot be recovered: {}; nothing was changed, floe repair may help",
        in_words(.0)
    )]
    Damaged(Vec<JournalEvent>),
    /// The journal of a cube, without which its lots are not as they were left.
    #[error("the journal of cube {cube} cannot be recovered: {why}")]
    Cube {
        /// Number of the cube.
        cube: u32,
        /// The fault.
        why: String,
    },
    /// More than a transaction may hold. Nothing was changed.
    #[error("{blocks} blocks of log are more than the {limit} of one transaction")]
    TooLong {
        /// Blocks of the log that it would have taken, tags and commit included.
        blocks: u64,
        /// A quarter of the log.
        limit: u32,
    },
    /// A read, write or flush failed. From a writing journal, nothing more is written.
    #[error("{doing}: {source}")]
    Io {
        /// The step that failed.
        doing: &'static str,
        /// The device's answer.
        source: io::Error,
    },
    /// An earlier error ended the journal: what was not durable by then is lost, and nothing is written any more.
    #[error("the journal ended after an error: {why}")]
    Aborted {
        /// The first error.
        why: String,
    },
}

impl JournalError {
    /// Wraps the error of a device, with the step that met it.
    pub(crate) fn io(doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}

#[cfg(test)]
mod tests {
    use floe_ext4::journal::RecoveryFault;

    use super::*;

    #[test]
    fn no_debug_form_reaches_a_user() {
        let fault = RecoveryFault::EndsEarly { sequence: 7 };
        let text = JournalError::Damaged(vec![JournalEvent::RecoveryFailed(fault)]).to_string();
        assert!(!text.contains("EndsEarly") && text.contains("transaction 7"), "{text}");
    }
}
