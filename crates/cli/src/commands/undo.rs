//! `floe undo`: brings back what was there before a repair.

use std::io::Write;

use anyhow::{Context, bail};
use floe_blockdev::image::Format;
use floe_blockdev::{ReadBlocks, Saved, UndoFile, Use, uses_of};
use floe_format::ext::superblock::Superblock;
use floe_repair::undo::{Standing, standing, undo};
use floe_report::human::{plural, size};

use crate::device::{Source, image_format};
use crate::exit::Outcome;
use crate::files::InputPath;
use crate::shell::quoted_path;
use crate::signals;
use crate::size::bytes;

/// Most blocks without old content that are named unless all are asked for.
const SHOWN_BLOCKS: usize = 20;

/// Bring back what a device held before a repair, from the undo file that was written then.
///
/// Undo files of e2fsck -z, tune2fs -z and other tools of e2fsprogs are understood too. A repair
/// that was cut off can be undone as well as a complete one, and undoing can be repeated.
///
/// Exit codes: 0 the device holds what it held before, 4 it does but for blocks that the repair wrote over
/// although it could not read them, or the file system was used since (--force), so that it is to be
/// checked, 8 that was not possible, 16 wrong command line, 32 interrupted
/// before anything was written.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The undo file
    file: InputPath,
    /// Block device or image file
    device: InputPath,
    /// The file system begins this many bytes into the device; if not given, where the undo file
    /// says
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    offset: Option<u64>,
    /// The device or file is in this format; found out by its first bytes if not given
    #[arg(long, value_name = "FORMAT", value_parser = image_format())]
    format: Option<Format>,
    /// Show what would be brought back, and write nothing
    #[arg(long)]
    dry_run: bool,
    /// Go on even if the file system is not the one that the undo file was made for, or was used
    /// since
    #[arg(long)]
    force: bool,
    /// Show every stretch of bytes
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
        self.refuse_users(&name)?;
        let interrupt = signals::end_between_writes()?;
        let (device, _) = source.open_for_writing(false)?;
        let standing = self.judge(&file, &*device, &name)?;
        match standing {
            Standing::Untouched => {
                let shown = self.file.display();
                writeln!(out, "{name}: holds all bytes of {shown} already; nothing was written")?;
                return self.tell_not_saved(&file, &name, out);
            }
            Standing::Partly | Standing::Committed | Standing::Foreign => {}
        }
        let Ok(hold) = interrupt.hold() else {
            return Ok(Outcome { cancelled: true, ..Outcome::CLEAN });
        };
        let restored = undo(&file, &*device).with_context(|| name.clone())?;
        drop(hold);
        let (bytes, stretches) = (size(restored.bytes), restored.stretches);
        let done =
            format!("{name}: brought back {bytes} in {stretches} stretches, and read them again");
        if standing == Standing::Foreign {
            // What else was written since is in no undo file.
            let check =
                format!("floe check {}{}", source.place_options(), quoted_path(&self.device));
            writeln!(
                out,
                "{done}. All else is as it was found, and the two need not fit together: whoever used \
                 the file system since wrote to other places as well. Check it: {check}"
            )?;
            self.tell_not_saved(&file, &name, out)?;
            return Ok(Outcome { damaged: true, ..Outcome::CLEAN });
        }
        let but = if file.not_saved().is_empty() { "" } else { ", but for the blocks below" };
        writeln!(out, "{done}: it holds what it held before{but}")?;
        self.tell_not_saved(&file, &name, out)
    }

    /// Names the blocks that no undo file can bring back, because nobody could read them.
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
            "{name}: {count} block{} could not be read when the repair was to write over {}: the undo file \
             does not have the old content, and what the repair wrote stays:",
            plural(count),
            if count == 1 { "it" } else { "them" },
        )?;
        let shown = if self.verbose { all.len() } else { all.len().min(SHOWN_BLOCKS) };
        for offset_bytes in &all[..shown] {
            writeln!(out, "  block {} (byte {offset_bytes})", offset_bytes / block_bytes)?;
        }
        if shown < all.len() {
            writeln!(out, "  and {} more: --verbose names them all", all.len() - shown)?;
        }
        Ok(Outcome { damaged: true, ..Outcome::CLEAN })
    }

    /// Whether undoing makes sense; says why not.
    fn judge(
        &self,
        file: &UndoFile,
        device: &dyn ReadBlocks,
        name: &str,
    ) -> anyhow::Result<Standing> {
        let standing = standing(file, device).with_context(|| name.to_owned())?;
        if standing == Standing::Foreign {
            let text = format!(
                "{name}: its superblock is neither that from before nor that from after the \
                 change that {} undoes: this is another file system{}, or it was used since",
                self.file.display(),
                of_uuid(file),
            );
            if !self.force {
                bail!("{text}. Nothing was written; --force undoes all the same");
            }
            eprintln!("floe: warning: {text}");
        }
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
            "{}: {} in {} stretches{}",
            self.file.display(),
            size(file.saved_bytes()),
            file.saved().len(),
            of_uuid(file),
        )?;
        let found = match standing {
            Standing::Untouched => "holds all of these bytes already",
            Standing::Partly => "was written in part, or undone in part",
            Standing::Committed => "holds the complete change",
            Standing::Foreign => "does not belong to the undo file",
        };
        let stretches = differing.len();
        writeln!(out, "{name}: {found}; {} in {stretches} stretches differ", size(bytes))?;
        if self.verbose {
            for Saved { offset_bytes, len_bytes, .. } in differing {
                let block = offset_bytes / u64::from(file.block_bytes());
                writeln!(out, "  {len_bytes} bytes from byte {offset_bytes} (block {block})")?;
            }
        }
        writeln!(out, "Nothing was written.")?;
        self.tell_not_saved(file, name, out)
    }

    /// Refuses a device that is in use, even if only for reading: its readers would see the bytes
    /// change.
    fn refuse_users(&self, name: &str) -> anyhow::Result<()> {
        let uses = uses_of(&self.device)?;
        if let Some(found) = uses.iter().find(|found| !matches!(found, Use::Loop { .. })) {
            bail!("{name} is {found}. Undoing writes beneath it; unmount it first");
        }
        Ok(())
    }
}

/// " of the file system UUID", as the undo file has it.
fn of_uuid(file: &UndoFile) -> String {
    let superblock = Superblock::decode(file.superblock_after());
    format!(" (made for {})", superblock.uuid_text())
}
