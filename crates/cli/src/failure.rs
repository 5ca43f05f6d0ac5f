//! What to say when a file system could not be looked at.

use std::fmt::Write;
use std::path::Path;

use floe_blockdev::{IDENTIFY_BYTES, ReadBlocks, identify};
use floe_check::checkpoint::Refusal;
use floe_check::reader::{Reader, ReaderError};
use floe_check::{CheckError, Problem};
use floe_format::BlockNr;
use floe_report::human;

/// Bytes that are searched for backup superblocks at unusual places.
const SCANNED_BYTES: u64 = 512 << 20;
/// Backups that are listed.
const SHOWN_BACKUPS: usize = 8;

/// An error of the checker, for a person: what was found instead, and what to try. `memory_option` asks
/// for a budget of memory.
pub(crate) fn of_check(
    error: &CheckError,
    device: &dyn ReadBlocks,
    name: &str,
    memory_option: &str,
) -> String {
    match error {
        CheckError::NoSuperblock { problems, backups } => {
            let mut text = format!("{name}: no usable ext2, ext3 or ext4 superblock");
            // That none was found is said already.
            let causes = problems.iter().filter(|problem| **problem != Problem::SuperblockUnusable);
            for problem in causes {
                // Writing to a String cannot fail.
                let _ = write!(text, "\n  {problem}");
            }
            text.push_str(&instead(device, backups));
            text
        }
        CheckError::UnknownFeatures { names } => format!(
            "{name}: the file system uses features that this version does not know: {}.\n  Judging \
             it by old rules could be wrong, so nothing was judged. Nothing was changed.",
            names.join(", ")
        ),
        CheckError::Fatal { problem } => {
            let row = problem.row();
            format!("{name}: {problem}\n  {}\n  See: floe explain {}", row.meaning, row.id)
        }
        CheckError::Stopped => format!("{name}: stopped"),
        CheckError::Checkpoint(refusal) => {
            format!("{name}: not checked. The checkpoint cannot be used: {refusal}")
        }
        CheckError::OverBudget { phase, need_bytes, budget_bytes } => {
            over_budget(name, phase, *need_bytes, *budget_bytes, memory_option)
        }
        CheckError::Read { what, source } => {
            let text = format!("{name}: cannot read {what}: {source}");
            let is_cut = source.kind() == std::io::ErrorKind::UnexpectedEof;
            let advice = if is_cut { &instead(device, &[]) } else { UNREADABLE_ADVICE };
            text + advice
        }
    }
}

/// What to do about a superblock that a sound device could not hide.
const UNREADABLE_ADVICE: &str = "\n  Copy the device to a sound one (ddrescue) and look at the copy; or \
                                 name a backup superblock with -b.";

/// What an error means for a checkpoint, and what to do about it.
pub(crate) fn of_checkpoint(error: &CheckError, file: &Path) -> String {
    let file = file.display();
    match error {
        CheckError::Stopped => format!(
            "; {file} has what was found so far.\n  To go on there, give the same command again."
        ),
        CheckError::Checkpoint(Refusal::NotOurs) => format!(
            "\n  {file} was left as it is. Name another file for the checkpoint, which need not exist."
        ),
        CheckError::Checkpoint(Refusal::OtherFileSystem { .. }) => format!(
            "\n  {file} was left as it is. Name another file, or give \
             --checkpoint-restart to throw that check away."
        ),
        CheckError::Checkpoint(Refusal::OtherOptions { .. }) => format!(
            "\n  {file} was left as it is. Give the same options as then to go on, \
             or --checkpoint-restart to begin anew."
        ),
        CheckError::Checkpoint(Refusal::File { .. }) => format!("\n  The file is {file}."),
        _ => String::new(),
    }
}

/// Memory is short; `phase` would have come next.
fn over_budget(
    name: &str,
    phase: &str,
    need_bytes: u64,
    budget_bytes: u64,
    memory_option: &str,
) -> String {
    let (need, budget) = (human::size(need_bytes), human::size(budget_bytes));
    // What will do, in whole units.
    let enough = need_bytes.div_ceil(1 << 20);
    if phase == "start" {
        return format!(
            "{name}: the leanest way to check this file system takes about {need} of memory, and \
             {budget} are allowed.\n  Nothing was checked. Try: {memory_option}{enough}M"
        );
    }
    format!(
        "{name}: {phase} would take about {need} of memory, and {budget} are allowed: there is more \
         than the descriptors told.\n  The check was ended, and nothing is known of the file system. \
         Try: {memory_option}{enough}M"
    )
}

/// Likewise, of a repair.
pub(crate) fn of_repair_over_budget(
    name: &str,
    phase: &str,
    need_bytes: u64,
    budget_bytes: u64,
    memory_option: &str,
) -> String {
    let (need, budget) = (human::size(need_bytes), human::size(budget_bytes));
    let what = if phase == "start" { "the leanest way to examine this file system" } else { phase };
    format!(
        "{name}: {what} takes about {need} of memory, and {budget} are allowed; nothing was \
         written.\n  Try: {memory_option}{}M",
        need_bytes.div_ceil(1 << 20)
    )
}

/// An error of the reader, likewise.
pub(crate) fn of_reader(error: &ReaderError, device: &dyn ReadBlocks, name: &str) -> String {
    match error {
        ReaderError::NoMagic { .. } | ReaderError::Geometry(_) => {
            format!("{name}: {error}{}", instead(device, &Reader::backups(device)))
        }
        _ => format!("{name}: {error}"),
    }
}

/// What the device looks like, and backups that are good.
fn instead(device: &dyn ReadBlocks, backups: &[(BlockNr, u32)]) -> String {
    let mut text = String::new();
    let size_bytes = device.size_bytes();
    if size_bytes == 0 {
        return "\n  It is empty.".to_owned();
    }
    if size_bytes < 2048 {
        let _ = write!(text, "\n  It has only {size_bytes} bytes.");
    }
    let len = size_bytes.min(IDENTIFY_BYTES as u64) as usize;
    let mut head = vec![0; len];
    let content = device.read_at(0, &mut head).ok().and_then(|()| identify(&head));
    if let Some(content) = content {
        let _ = write!(text, "\n  This looks like {}", content.name);
        match content.advice {
            Some(advice) => {
                let _ = write!(text, "; {advice}.");
            }
            None => text.push('.'),
        }
    }
    let scanned = if backups.is_empty() { Reader::scan(device, SCANNED_BYTES) } else { Vec::new() };
    let backups = if backups.is_empty() { &scanned } else { backups };
    if let Some(&(block, block_size)) = backups.first() {
        text.push_str("\n  Backup superblocks that look good:");
        for (block, block_size) in backups.iter().take(SHOWN_BACKUPS) {
            let _ = write!(text, "\n    block {} of {block_size} bytes", block.0);
        }
        let _ = write!(text, "\n  Try: --superblock {} --block-size {block_size}", block.0);
    } else if size_bytes >= 2048 {
        let searched = human::size(size_bytes.min(SCANNED_BYTES));
        let _ = write!(text, "\n  No backup superblock was found in {searched}.");
    }
    text
}
