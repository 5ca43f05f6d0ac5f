//! The files of a file system as they are after recovery. Nothing is judged, nothing is written.

use floe_blockdev::ReadBlocks;
use floe_ext4::files::Files;
use floe_format::ext::superblock::Superblock;
use floe_format::features::Incompat;

use crate::error::CheckError;
use crate::options::CheckOptions;
use crate::passes::recovery;
use crate::problem::{Findings, Object, Problem, Weight};
use crate::volume::open::{Opened, open};

/// Opens the file system on `device` as a check does (with a backup superblock if the primary is
/// lost, and the journal replayed into memory unless the options say otherwise), and passes its
/// files to `look`, with the problems found so far. These are never all problems.
///
/// # Errors
/// As [`crate::volume::open::open`]: there is no usable superblock, or a feature is unknown.
pub fn view<T>(
    device: &dyn ReadBlocks,
    options: &CheckOptions<'_>,
    look: impl FnOnce(&Files<'_>, &[Problem]) -> T,
) -> Result<T, CheckError> {
    let opened = open(device, options.superblock)?;
    let recovery = recovery::recover(device, &opened, options);
    let found = recovery.found;
    match recovery.overlay {
        Some(overlay) => {
            let opened = open(&overlay, options.superblock)?;
            Ok(hand_over(&overlay, opened, found, look))
        }
        None => Ok(hand_over(device, opened, found, look)),
    }
}

fn hand_over<T>(
    device: &dyn ReadBlocks,
    opened: Opened,
    mut found: Findings,
    look: impl FnOnce(&Files<'_>, &[Problem]) -> T,
) -> T {
    let Opened { superblock, geometry, groups, found: opening, .. } = opened;
    found.0.extend(opening.0);
    look(&Files::new(device, superblock, geometry, groups), &found.0)
}

/// Whether a finding of [`view`] says that the latest changes of the file system, which has this superblock after recovery, are not
/// among its files.
pub fn lacks_changes(problem: &Problem, superblock: &Superblock) -> bool {
    let row = problem.row();
    let waits = superblock.features().incompat.contains(Incompat::RECOVER);
    match problem {
        Problem::JournalTransactionCorrupt { .. }
        | Problem::JournalEndsEarly { .. }
        | Problem::JournalSuperblockLost { .. }
        | Problem::CubeJournalDamaged { .. }
        | Problem::FastCommitCorrupt { .. } => true,
        // Such as an external journal that is not there.
        _ => waits && row.object == Object::Journal && row.weight > Weight::Remark,
    }
}
