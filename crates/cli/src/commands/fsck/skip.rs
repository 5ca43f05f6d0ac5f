//! Skips the check of a file system that claims to be clean, as e2fsck does without `-f`.

use std::io::Write;

use floe_check::problem::Weight;
use floe_check::reader::Reader;
use floe_check::{CheckOptions, JournalUse};
use floe_format::ext::superblock::Superblock;
use floe_format::features::Incompat;
use floe_repair::Extras;

use super::{Fsck, Mode};
use crate::e2fsck::due::{self, Circumstances};
use crate::e2fsck::front::Front;
use crate::e2fsck::summary::{self, Free};
use crate::exit::Outcome;
use crate::input::clock;

/// A file system whose superblock claims that it is clean.
struct CleanByItsRecords {
    /// The message printed instead of a check.
    line: String,
    /// Its journal needs recovery.
    needs_recovery: bool,
}

impl Fsck<'_> {
    /// Skips the check if the file system claims to be clean and no check is due.
    pub(super) fn skipped(
        &self,
        front: &Front,
        out: &mut impl Write,
    ) -> anyhow::Result<Option<Outcome>> {
        let options = &self.options;
        let extras = self.extras();
        let repairs = matches!(self.mode, Mode::Yes | Mode::Preen | Mode::Ask);
        let asked = options.force
            || extras.unshare_blocks
            || options.bad_blocks()
            || options.superblock.is_some();
        if asked || (extras.journal_only && repairs) {
            return Ok(None);
        }
        let Some(clean) = self.clean_by_its_records(front, out)? else { return Ok(None) };
        let mut replayed = Outcome::CLEAN;
        if repairs && clean.needs_recovery {
            if options.undo.is_some() {
                // A failed replay makes a check due; two repairs would need two undo files.
                return Ok(None);
            }
            replayed = self.repair(front, Extras { journal_only: true, ..extras }, None, out)?;
        }
        if replayed != Outcome::CLEAN {
            return Ok(None);
        }
        writeln!(out, "{}", clean.line)?;
        if clean.needs_recovery && !repairs {
            writeln!(out, "The journal holds transactions that were not replayed.")?;
        }
        Ok(Some(Outcome::CLEAN))
    }

    /// The message printed instead of a check; `None`: a check is needed.
    fn clean_by_its_records(
        &self,
        front: &Front,
        out: &mut impl Write,
    ) -> anyhow::Result<Option<CleanByItsRecords>> {
        let Ok(device) = self.source.open() else { return Ok(None) };
        let Ok(reader) = Reader::open(&device, None, None) else { return Ok(None) };
        let superblock = &reader.superblock;
        if !Superblock::checksum_ok(&reader.superblock_bytes)
            || reader.geometry.inodes_count != superblock.inodes_count
        {
            return Ok(None);
        }
        let clock = clock::now();
        let mends = self.mode != Mode::No;
        let at = Circumstances::new(&self.conf, clock, mends);
        if let Some(reason) = due::reason(superblock, &at, || due::backups_differ(&reader)) {
            writeln!(out, "{}: {}: checking", front.name, reason.text())?;
            return Ok(None);
        }
        let options = CheckOptions {
            journal: JournalUse::Ignore,
            now_seconds: clock.now_seconds,
            ..CheckOptions::default()
        };
        let Ok(opened) = floe_check::open::open(&device, options.superblock) else {
            return Ok(None);
        };
        if opened.found.0.iter().any(|problem| problem.row().weight > Weight::Remark) {
            return Ok(None);
        }
        let needs_recovery = superblock.features().incompat.contains(Incompat::RECOVER);
        let announcement = due::announcement(superblock, &at);
        let free = match mends {
            true => Free::of_groups(&opened.geometry, &opened.groups),
            false => Free::of_superblock(superblock),
        };
        let line = summary::clean_line(&front.name, superblock, free, &announcement);
        Ok(Some(CleanByItsRecords { line, needs_recovery }))
    }
}
