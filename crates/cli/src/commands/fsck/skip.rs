//! Skips the check of a file system that claims to be clean, as e2fsck does without `-f`.

use std::io::Write;
use std::path::Path;

use floe_blockdev::ReadBlocks;
use floe_check::checks::superblock::fields;
use floe_check::open::Opened;
use floe_check::problem::Weight;
use floe_check::reader::Reader;
use floe_check::{CheckOptions, JournalUse, Problem, Volume, recovery};
use floe_format::ext::superblock::Superblock;
use floe_format::features::{Compat, Incompat};
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
        let asked =
            options.force || extras.unshare_blocks || options.bad_blocks() || self.names_a_backup();
        if asked || (extras.journal_only && repairs) {
            return Ok(None);
        }
        let Some(mut clean) = self.clean_by_its_records(front, out)? else {
            return self.without_a_replay(front, out);
        };
        if repairs && clean.needs_recovery {
            if options.undo.is_some() {
                // A failed replay makes a check due; two repairs would need two undo files.
                return Ok(None);
            }
            // As for e2fsck, a check is due where transactions are damaged.
            if !self.is_sound_so_far(JournalUse::Replay) {
                return Ok(None);
            }
            let replayed =
                self.repair(front, Extras { journal_only: true, ..extras }, None, out)?;
            // The log may have held entries of the orphan list, and other totals.
            let after = self.clean_by_its_records(front, out)?;
            match after.filter(|_| replayed == Outcome::CLEAN) {
                Some(after) => clean = after,
                None => return Ok(None),
            }
        }
        writeln!(out, "{}", clean.line)?;
        if clean.needs_recovery && !repairs {
            writeln!(out, "The journal holds transactions that were not replayed.")?;
        }
        Ok(Some(Outcome::CLEAN))
    }

    /// The end of a run that was to replay the journal, and must not.
    fn without_a_replay(
        &self,
        front: &Front,
        out: &mut impl Write,
    ) -> anyhow::Result<Option<Outcome>> {
        if !self.extras().journal_only || !self.is_sound_so_far(JournalUse::Ignore) {
            return Ok(None);
        }
        writeln!(
            out,
            "{}: -n replays no journal, and journal_only asks for nothing else",
            front.name
        )?;
        Ok(Some(Outcome::CLEAN))
    }

    /// The journal of -j. As for e2fsck, the option means nothing to a file system with a journal of its own.
    pub(super) fn external_journal(&self) -> Option<&Path> {
        let has_own = |sb: &Superblock| {
            !sb.features().compat.contains(Compat::HAS_JOURNAL) || sb.journal_inum != 0
        };
        let named = self.options.journal.as_deref()?;
        (!self.opened().is_some_and(|opened| has_own(&opened.superblock))).then_some(named)
    }

    /// The file system by the superblock that counts: the primary one, that of -b, or a backup.
    fn opened(&self) -> Option<Opened> {
        let device = self.source.open().ok()?;
        floe_check::open::open(&device, self.source.which()).ok()
    }

    /// Whether -b names another superblock than the primary one.
    fn names_a_backup(&self) -> bool {
        let opens_primary = || self.opened().is_some_and(|opened| opened.used_backup.is_none());
        self.options.superblock.is_some() && !opens_primary()
    }

    /// Whether superblock, descriptors and journal have no fault that can be seen without a check; with
    /// [`JournalUse::Replay`], none of its transactions either.
    fn is_sound_so_far(&self, journal: JournalUse) -> bool {
        let options = CheckOptions {
            journal,
            superblock: self.source.which(),
            now_seconds: clock::now().now_seconds,
            ..CheckOptions::default()
        };
        let Ok(device) = self.source.open() else { return false };
        floe_check::open::open(&device, options.superblock)
            .is_ok_and(|opened| is_sound(&device, opened, &options))
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
        if !is_sound(&device, opened.clone(), &options) {
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

/// Whether superblock, descriptors and journal have no fault that can be seen without a check. As e2fsck, which looks at them before it
/// skips a check: Linux would not mount a file system whose journal is lost, whatever its superblock says.
fn is_sound(device: &dyn ReadBlocks, opened: Opened, options: &CheckOptions<'_>) -> bool {
    let recovery = recovery::recover(device, &opened, options);
    let (volume, mut found) = Volume::new(device, opened, options.now_seconds);
    found.0.extend(recovery.found.0);
    fields::check(&volume, &mut found);
    found.0.iter().all(|problem| {
        // Whether it was unmounted is judged by the rules for skipping.
        problem.row().weight <= Weight::Remark
            || matches!(problem, Problem::NotCleanlyUnmounted { .. })
    })
}
