//! `floe undo`: restores the state before a repair.

use std::io::Write;

use anyhow::{Context, bail};
use floe_blockdev::image::Format;
use floe_blockdev::{ReadBlocks, Saved, UndoFile, Use};
use floe_format::ext::superblock::Superblock;
use floe_format::words::agree;
use floe_repair::undo::{Standing, standing, undo};
use floe_report::human::{plural, size};

use crate::exit::Outcome;
use crate::input::device::{Source, image_format};
use crate::input::files::InputPath;
use crate::input::size::bytes;
use crate::message::message;
use crate::terminal::shell::quoted_path;
use crate::terminal::signals;

/// Maximum blocks without old content to list without --verbose.
const SHOWN_BLOCKS: usize = 20;

/// Restore the old content of a device from the undo file of a repair.
///
/// Also reads undo files of e2fsck -z, tune2fs -z and other e2fsprogs tools. An interrupted repair
/// can be undone like a complete one, and undoing can be repeated.
///
/// Exit codes: 0 restored, 4 restored except for blocks that were unreadable before the repair
/// overwrote them, or used since (--force), so that a check is needed, 8 failed, 16 usage error, 32
/// interrupted before anything was written.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The undo file
    file: InputPath,
    /// Block device or image file
    device: InputPath,
    /// Byte offset of the file system on the device; by default taken from the undo file
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    offset: Option<u64>,
    /// Format of the device or file; by default detected
    #[arg(long, value_name = "FORMAT", value_parser = image_format())]
    format: Option<Format>,
    /// Show the changes to be undone, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Proceed even if the undo file belongs to another file system, or this one was used since
    #[arg(long)]
    force: bool,
    /// Show every range of bytes
    #[arg(long, short)]
    verbose: bool,
}

impl Args {
    pub(crate) fn run(self, out: &mut impl Write) -> anyhow::Result<Outcome> {
        let file = UndoFile::open(&self.file)?;
        let offset = self.offset.or(file.fs_offset_bytes()).unwrap_or(0);
        let source = Source { offset, format: self.format, ..Source::whole(&self.device) };
        let name = source.name();
        if self.dry_run {
            let device = source.open()?;
            return self.show(&file, &*device, &name, out);
        }
        refuse_users(&source, &name)?;
        let interrupt = signals::end_between_writes()?;
        let (device, _) = source.open_alone()?;
        let standing = self.judge(&file, &*device, &name)?;
        match standing {
            Standing::Untouched => {
                let shown = self.file.display();
                writeln!(
                    out,
                    "{name}: holds all old content of {shown} already; nothing was written"
                )?;
                return self.tell_not_saved(&file, &name, out);
            }
            Standing::Partly | Standing::Committed => {}
            Standing::Changed { .. } | Standing::Foreign => {}
        }
        let Ok(hold) = interrupt.hold() else {
            return Ok(Outcome { cancelled: true, ..Outcome::CLEAN });
        };
        let restored = undo(&file, &*device).with_context(|| name.clone())?;
        drop(hold);
        let (bytes, stretches) = (size(restored.bytes), restored.stretches);
        let done = format!("{name}: restored {bytes} in {stretches} ranges, and verified them");
        if matches!(standing, Standing::Changed { .. } | Standing::Foreign) {
            // The undo file does not contain any later writes.
            let check =
                format!("floe check {}{}", source.place_options(), quoted_path(&self.device));
            writeln!(
                out,
                "{done}. The rest of the file system was used since and may not match the restored \
                 part. Check it: {check}"
            )?;
            self.tell_not_saved(&file, &name, out)?;
            return Ok(Outcome { damaged: true, ..Outcome::CLEAN });
        }
        let but = if file.not_saved().is_empty() { "" } else { ", except the blocks below" };
        writeln!(
            out,
            "{done}: all that the repair changed is as it was before it{but}. Changes elsewhere since then, as those of a later \
             repair, stay"
        )?;
        self.tell_not_saved(&file, &name, out)
    }

    /// Lists the blocks that cannot be restored, because they were unreadable.
    fn tell_not_saved(
        &self,
        file: &UndoFile,
        name: &str,
        out: &mut impl Write,
    ) -> anyhow::Result<Outcome> {
        let all = file.not_saved();
        if all.is_empty() {
            return Ok(Outcome::CLEAN);
        }
        let (count, block_bytes) = (all.len() as u64, u64::from(file.block_bytes()));
        writeln!(
            out,
            "{name}: {count} block{} could not be read before the repair overwrote {}: the undo file \
             lacks the old content, and the new one stays:",
            plural(count),
            if count == 1 { "it" } else { "them" },
        )?;
        let shown = if self.verbose { all.len() } else { all.len().min(SHOWN_BLOCKS) };
        for offset_bytes in &all[..shown] {
            writeln!(out, "  block {} (byte {offset_bytes})", offset_bytes / block_bytes)?;
        }
        if shown < all.len() {
            writeln!(out, "  and {} more: --verbose lists all", all.len() - shown)?;
        }
        Ok(Outcome { damaged: true, ..Outcome::CLEAN })
    }

    /// Whether undoing makes sense; prints the reason if not.
    fn judge(
        &self,
        file: &UndoFile,
        device: &dyn ReadBlocks,
        name: &str,
    ) -> anyhow::Result<Standing> {
        let standing = standing(file, device).with_context(|| name.to_owned())?;
        let file_name = self.file.display();
        let text = match standing {
            Standing::Untouched | Standing::Partly | Standing::Committed => return Ok(standing),
            Standing::Foreign => format!(
                "{name}: its superblock is neither the one before nor the one after the \
                 change that {file_name} undoes: this is another file system{}, or it was used since",
                of_uuid(file),
            ),
            Standing::Changed { blocks, first_bytes } => {
                let blocks = format!("{blocks} blocks");
                format!(
                    "{name}: the file system was used since: of what the change that {file_name} \
                     undoes left there, {} changed, the first at byte {first_bytes}, and undoing \
                     would revert that too",
                    agree(&blocks),
                )
            }
        };
        if !self.force {
            bail!("{text}. Nothing was written; --force undoes anyway");
        }
        message!("floe: warning: {text}");
        Ok(standing)
    }

    /// `--dry-run`.
    fn show(
        &self,
        file: &UndoFile,
        device: &dyn ReadBlocks,
        name: &str,
        out: &mut impl Write,
    ) -> anyhow::Result<Outcome> {
        let standing = self.judge(file, device, name)?;
        let differing = file.differing(device).with_context(|| name.to_owned())?;
        let bytes: u64 = differing.iter().map(|saved| u64::from(saved.len_bytes)).sum();
        writeln!(
            out,
            "{}: {} in {} ranges{}",
            self.file.display(),
            size(file.saved_bytes()),
            file.saved().len(),
            of_uuid(file),
        )?;
        let found = match standing {
            Standing::Untouched => "holds all of this old content already",
            Standing::Partly => "holds a partial change: an interrupted repair or undo",
            Standing::Committed => "holds the complete change",
            Standing::Changed { .. } => "holds the change, and later ones",
            Standing::Foreign => "does not belong to the undo file",
        };
        let stretches = differing.len();
        let ranges = format!("{stretches} ranges differ");
        writeln!(out, "{name}: {found}; {} in {}", size(bytes), agree(&ranges))?;
        if self.verbose {
            for Saved { offset_bytes, len_bytes, .. } in differing {
                let block = offset_bytes / u64::from(file.block_bytes());
                let bytes = format!("{len_bytes} bytes");
                let bytes = agree(&bytes);
                writeln!(out, "  {bytes} from byte {offset_bytes} (block {block})")?;
            }
        }
        writeln!(out, "Nothing was written.")?;
        self.tell_not_saved(file, name, out)
    }
}

/// Refuses a device that is in use, even if only for reading, because its readers would see the
/// bytes change.
fn refuse_users(source: &Source, name: &str) -> anyhow::Result<()> {
    if let Some(found) = source.users()?.iter().find(|found| !matches!(found, Use::Loop { .. })) {
        bail!("{name} is {found}. Undoing would write to it while in use; end that use first");
    }
    Ok(())
}

/// " of the file system UUID", from the undo file.
fn of_uuid(file: &UndoFile) -> String {
    let superblock = Superblock::decode(file.superblock_after());
    format!(" (made for {})", superblock.uuid_text())
}
