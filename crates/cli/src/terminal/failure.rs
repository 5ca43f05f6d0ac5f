//! Messages for file systems that could not be examined.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use floe_blockdev::{Content, IDENTIFY_BYTES, ReadBlocks, identify};
use floe_check::checkpoint::Refusal;
use floe_check::open::{WhichSuperblock, first_start, open};
use floe_check::reader::{Reader, ReaderError};
use floe_check::report::display_path;
use floe_check::{CheckError, Problem};
use floe_ext4::tx::Refusal as Refused;
use floe_format::BlockNr;
use floe_repair::{FileLeft, Place, Repair};
use floe_report::human;

use crate::message::message;

/// Says which files a repair leaves in other cubes (`docs/cubes.md`), and why.
pub(crate) fn tell_of_files_left(repair: &Repair<'_>, name: &str) {
    let files = "files stay in the cubes into which another system has put them";
    if let Some(why) = &repair.moves.refused {
        message!("floe: {name}: {files}: {why}");
        return;
    }
    let mut by_reason: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in repair.files_left() {
        by_reason.entry(file.why.describe().to_owned()).or_default().push(named(&file));
    }
    for (why, mut all) in by_reason {
        let more = all.len().saturating_sub(SHOWN_FILES_LEFT);
        all.truncate(SHOWN_FILES_LEFT);
        let all = all.join(", ");
        let more = if more == 0 { String::new() } else { format!(" and {more} more") };
        message!("floe: {name}: {files}: {all}{more}: {why}");
    }
}

/// A file as people find it.
fn named(file: &FileLeft) -> String {
    let inode = file.inode;
    match &file.path {
        Some((path, Place::Own)) => display_path(path),
        Some((path, Place::Directory)) => format!("{inode} (a name in {})", display_path(path)),
        None => inode.to_string(),
    }
}

/// Files of one reason that are named.
const SHOWN_FILES_LEFT: usize = 5;
/// Bytes searched for backup superblocks at unusual locations.
const SCANNED_BYTES: u64 = 512 << 20;
/// Maximum backups to list.
const SHOWN_BACKUPS: usize = 8;

/// The message of an error, with its causes. A cause that stands in the message above it is not repeated: errors of our
/// libraries name theirs, because not everybody prints a chain.
pub(crate) fn with_causes(error: &anyhow::Error) -> String {
    let mut text = String::new();
    let mut above = String::new();
    for cause in error.chain() {
        let own = cause.to_string();
        if text.is_empty() {
            text.clone_from(&own);
        } else if !above.contains(&own) {
            text.push_str(": ");
            text.push_str(&own);
        }
        above = own;
    }
    text
}

/// Describes an error of the checker: what was found instead, and what to try. `memory_option` is
/// the option for a memory limit.
pub(crate) fn of_check(
    error: &CheckError,
    device: &dyn ReadBlocks,
    name: &str,
    memory_option: &str,
) -> String {
    match error {
        CheckError::NoSuperblock { problems, backups, named } => {
            let mut text = format!("{name}: no usable ext2, ext3 or ext4 superblock");
            if let Some((block, reason)) = named {
                // Writing to a String cannot fail.
                let _ = write!(
                    text,
                    "\n  the superblock in block {} cannot be used: {reason}",
                    block.0
                );
            }
            // The headline already says that no superblock was found.
            let causes = problems.iter().filter(|problem| **problem != Problem::SuperblockUnusable);
            for problem in causes {
                // Writing to a String cannot fail.
                let _ = write!(text, "\n  {problem}");
            }
            text.push_str(&instead(device, backups));
            text
        }
        CheckError::UnknownFeatures { names, backup } => unknown_features(name, names, *backup),
        CheckError::Fatal { problem } => {
            let row = problem.row();
            format!("{name}: {problem}\n  {}\n  See: floe explain {}", row.meaning, row.id)
        }
        CheckError::Stopped => format!("{name}: stopped"),
        CheckError::Checkpoint(refusal) => {
            format!("{name}: not checked. The checkpoint cannot be used: {refusal}")
        }
        CheckError::Parts(refusal) => format!("{name}: not checked. {refusal}"),
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

/// Describes features that are not known: a later version may know them, or a bit is flipped, and then a backup helps.
fn unknown_features(name: &str, names: &[String], backup: Option<(BlockNr, u32)>) -> String {
    let mut text = format!(
        "{name}: the file system uses features that this version does not support: {}.\n  Checking \
         it by old rules could be wrong, so nothing was checked or changed.",
        names.join(", ")
    );
    if names.iter().any(|name| name == "rext3") {
        text.push_str(
            "\n  The feature bit rext3 is set, but the record of metadata regions that goes with it is not there.",
        );
    }
    if let Some((block, size)) = backup {
        // Writing to a String cannot fail.
        let _ = write!(
            text,
            "\n  The backup superblock in {block} does not have them: if a bit was flipped in the primary \
             one, give -b {} -B {size}.",
            block.0
        );
    }
    text
}

/// Advice for an unreadable superblock.
const UNREADABLE_ADVICE: &str = "\n  Copy the device to a good one (ddrescue) and check the copy, or \
                                 use a backup superblock with -b.";

/// The consequence of an error for a checkpoint, with advice.
pub(crate) fn of_checkpoint(error: &CheckError, file: &Path) -> String {
    let file = file.display();
    match error {
        CheckError::Stopped => format!(
            "; {file} holds the progress so far.\n  To resume, give the same command again."
        ),
        CheckError::Checkpoint(Refusal::NotOurs) => format!(
            "\n  {file} was not changed. Choose another checkpoint file, which need not exist."
        ),
        CheckError::Checkpoint(Refusal::OtherFileSystem { .. }) => format!(
            "\n  {file} was not changed. Choose another file, or give \
             --checkpoint-restart to discard that check."
        ),
        CheckError::Checkpoint(Refusal::OtherOptions { .. }) => format!(
            "\n  {file} was not changed. Give the same options as before to resume, \
             or --checkpoint-restart to start over."
        ),
        CheckError::Checkpoint(Refusal::File { .. }) => format!("\n  The file is {file}."),
        _ => String::new(),
    }
}

/// Describes an exceeded memory limit; `phase` would have come next.
fn over_budget(
    name: &str,
    phase: &str,
    need_bytes: u64,
    budget_bytes: u64,
    memory_option: &str,
) -> String {
    let (need, budget) = (human::size(need_bytes), human::size(budget_bytes));
    // A sufficient limit in whole units.
    let enough = need_bytes.div_ceil(1 << 20);
    if phase == "start" {
        return format!(
            "{name}: even the leanest check of this file system needs about {need} of memory, but \
             the limit is {budget}.\n  Nothing was checked. Try: {memory_option}{enough}M"
        );
    }
    format!(
        "{name}: {phase} would need about {need} of memory, but the limit is {budget}: the file \
         system holds more than its descriptors say.\n  The check was ended without a result. \
         Try: {memory_option}{enough}M"
    )
}

/// The same for a repair.
pub(crate) fn of_repair_over_budget(
    name: &str,
    phase: &str,
    need_bytes: u64,
    budget_bytes: u64,
    memory_option: &str,
) -> String {
    let (need, budget) = (human::size(need_bytes), human::size(budget_bytes));
    let what =
        if phase == "start" { "even the leanest examination of this file system" } else { phase };
    format!(
        "{name}: {what} needs about {need} of memory, but the limit is {budget}; nothing was \
         written.\n  Try: {memory_option}{}M",
        need_bytes.div_ceil(1 << 20)
    )
}

/// Describes an error of the reader.
pub(crate) fn of_reader(error: &ReaderError, device: &dyn ReadBlocks, name: &str) -> String {
    match error {
        ReaderError::NoMagic { .. } | ReaderError::Geometry(_) => {
            match open(device, WhichSuperblock::default()) {
                // With such features, fields need not mean what they mean in ext4.
                Err(error @ CheckError::UnknownFeatures { .. }) => {
                    of_check(&error, device, name, "")
                }
                _ => format!("{name}: {error}{}", instead(device, &Reader::backups(device))),
            }
        }
        _ => format!("{name}: {error}"),
    }
}

/// Describes a device whose superblock cannot be used for `refusal`, as a check of it does, where that cannot begin either.
pub(crate) fn of_superblock(
    refusal: Refused,
    device: &dyn ReadBlocks,
    name: &str,
) -> anyhow::Error {
    match open(device, WhichSuperblock::default()) {
        Err(error) => anyhow::anyhow!(of_check(&error, device, name, "--memory=")),
        Ok(_) => anyhow::Error::new(refusal).context(name.to_owned()),
    }
}

/// Describes a device on which the first file system begins elsewhere than at the start.
pub(crate) fn of_other_start(device: &dyn ReadBlocks, name: &str, start_bytes: u64) -> String {
    // A disk whose partition table is there needs no byte.
    let content = content_of(device).filter(|content| content.advice.is_some());
    let rather = content.map_or_else(|| other_start(start_bytes), |content| looks_like(&content));
    format!("{name}: no file system begins at its start{rather}")
}

/// The content of a device by its first bytes.
fn content_of(device: &dyn ReadBlocks) -> Option<Content> {
    let len = device.size_bytes().min(IDENTIFY_BYTES as u64) as usize;
    let mut head = vec![0; len];
    device.read_at(0, &mut head).ok().and_then(|()| identify(&head))
}

fn looks_like(content: &Content) -> String {
    let advice = content.advice.map(|advice| format!("; {advice}")).unwrap_or_default();
    format!("\n  This looks like {}{advice}.", content.name)
}

fn other_start(start_bytes: u64) -> String {
    format!(
        "\n  A file system begins at byte {start_bytes}, as where a partition table was lost.\n  \
         Try: --offset {start_bytes}"
    )
}

/// Describes the device's actual content, and lists valid backups.
fn instead(device: &dyn ReadBlocks, backups: &[(BlockNr, u32)]) -> String {
    let mut text = String::new();
    let size_bytes = device.size_bytes();
    if size_bytes == 0 {
        return "\n  It is empty.".to_owned();
    }
    if size_bytes < 2048 {
        let _ = write!(text, "\n  It has only {size_bytes} bytes.");
    }
    let content = content_of(device);
    text.extend(content.iter().map(looks_like));
    let scanned = if backups.is_empty() { Reader::scan(device, SCANNED_BYTES) } else { Vec::new() };
    let backups = if backups.is_empty() { &scanned } else { backups };
    if let Some(&(block, block_size)) = backups.first() {
        text.push_str("\n  Plausible backup superblocks:");
        for (block, block_size) in backups.iter().take(SHOWN_BACKUPS) {
            let _ = write!(text, "\n    block {} of {block_size} bytes", block.0);
        }
        let _ = write!(text, "\n  Try: -b {} -B {block_size}", block.0);
    } else if content.is_none_or(|content| content.advice.is_none())
        && let Some(start) = first_start(device, SCANNED_BYTES)
    {
        text.push_str(&other_start(start));
    } else if size_bytes >= 2048 {
        let searched = human::size(size_bytes.min(SCANNED_BYTES));
        let _ = write!(text, "\n  No backup superblock was found in {searched}.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("a.tar: {source}")]
    struct Outer {
        source: std::io::Error,
    }

    #[test]
    fn a_cause_is_told_once() {
        let outer = Outer { source: std::io::Error::other("it is cut off") };
        let error = anyhow::Error::new(outer).context("mkfs");
        assert_eq!(with_causes(&error), "mkfs: a.tar: it is cut off");
        let plain = anyhow::anyhow!("inner").context("outer");
        assert_eq!(with_causes(&plain), "outer: inner");
    }
}
