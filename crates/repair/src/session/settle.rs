//! Writes the final state of the superblock, and the blocks of a replayed journal.

use floe_blockdev::{Overlay, ReadBlocks, UnreadablePage, WriteBlocks};
use floe_check::Report;
use floe_check::problem::Weight;
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, STATE_ERROR, STATE_VALID, Superblock};
use floe_format::native::identity::Identity;

use super::RepairError;
use crate::failure::Failure;
use crate::fixes::time;
use crate::plan::{Plan, plan};

/// Whether the only findings are those updated at the end.
pub(super) fn is_sound(report: &Report) -> bool {
    report.found.iter().all(|problem| {
        problem.row().weight <= Weight::Remark || matches!(plan(problem), Plan::AtTheEnd)
    })
}

/// Updates the superblock after a check: the clean flag, and the time of the check if the clock is
/// trusted. `coupled`: cubes are left entangled by another system.
pub(super) fn settle(
    sb: &mut Superblock,
    clean: bool,
    now_seconds: i64,
    clock_believed: bool,
    coupled: bool,
) {
    if clean {
        sb.state = STATE_VALID;
        // Where errors are recorded, nobody believes the orphan list: its inodes were repaired as any others.
        sb.last_orphan = 0;
    } else {
        sb.state &= !STATE_VALID;
    }
    if clock_believed {
        (sb.lastcheck, sb.lastcheck_hi) = time(now_seconds);
    }
    (sb.wtime, sb.wtime_hi) = time(now_seconds);
    sb.mnt_count = 0;
    sb.error_count = 0;
    (sb.first_error_time, sb.first_error_time_hi) = (0, 0);
    (sb.first_error_ino, sb.first_error_block, sb.first_error_line) = (0, 0, 0);
    (sb.first_error_func, sb.first_error_errcode) = ([0; 32], 0);
    (sb.last_error_time, sb.last_error_time_hi) = (0, 0);
    (sb.last_error_ino, sb.last_error_block, sb.last_error_line) = (0, 0, 0);
    (sb.last_error_func, sb.last_error_errcode) = ([0; 32], 0);
    // The seal is broken, but by nobody else.
    Identity::put_in_use(sb, coupled);
}

/// Sets the error flag in the primary superblock, if it is usable.
pub(super) fn mark_errors(staged: &Overlay<&dyn ReadBlocks>) -> Result<(), Failure> {
    let mut bytes = [0; 1024];
    if !can_be_read(staged, &mut bytes)? {
        return Ok(());
    }
    if Superblock::decode(&bytes).magic == MAGIC && Superblock::checksum_ok(&bytes) {
        edit_superblock(staged, |sb| sb.state |= STATE_ERROR)?;
    }
    Ok(())
}

/// As [`edit_superblock`], at the end of a repair. Stays as it is: an unreadable superblock that must not be overwritten, and one that
/// was not restored.
pub(super) fn settle_superblock(
    staged: &Overlay<&dyn ReadBlocks>,
    edit: impl FnOnce(&mut Superblock),
) -> Result<(), Failure> {
    let mut bytes = [0; 1024];
    if !can_be_read(staged, &mut bytes)? || Superblock::decode(&bytes).magic != MAGIC {
        return Ok(());
    }
    edit_superblock(staged, edit)
}

/// Reads the primary superblock; `false` if it is unreadable and must not be overwritten.
fn can_be_read(staged: &Overlay<&dyn ReadBlocks>, bytes: &mut [u8; 1024]) -> Result<bool, Failure> {
    match staged.read_at(OFFSET_BYTES, bytes) {
        Ok(()) => Ok(true),
        Err(error) if staged.protects() && UnreadablePage::of(&error).is_some() => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Converts the error of a journal that could not be [folded](fold) in.
pub(super) fn hidden_target(error: std::io::Error) -> RepairError {
    match UnreadablePage::of(&error) {
        Some(block) => RepairError::HiddenFromJournal {
            what: "the journal holds a newer copy of a block whose old content cannot be saved",
            block,
        },
        None => Failure::Io(error).into(),
    }
}

/// Changes the primary superblock in the staged file system.
pub(super) fn edit_superblock(
    staged: &Overlay<&dyn ReadBlocks>,
    edit: impl FnOnce(&mut Superblock),
) -> Result<(), Failure> {
    let mut bytes = [0; 1024];
    staged.read_at(OFFSET_BYTES, &mut bytes)?;
    let mut sb = Superblock::decode(&bytes);
    edit(&mut sb);
    sb.encode_with_checksum(&mut bytes);
    staged.write_at(OFFSET_BYTES, &bytes)?;
    Ok(())
}
