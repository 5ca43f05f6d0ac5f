//! Skips the check of a file system that claims to be clean, as e2fsck does without `-f`.

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::PathBuf;

use floe_blockdev::ReadBlocks;
use floe_check::checks::group::descriptor;
use floe_check::checks::superblock::fields;
use floe_check::open::Opened;
use floe_check::passes::inodes;
use floe_check::problem::{Object, Weight};
use floe_check::reader::Reader;
use floe_check::{CheckOptions, JournalUse, Problem, Volume, recovery};
use floe_format::InodeNr;
use floe_format::ext::superblock::Superblock;
use floe_format::features::{Compat, Incompat};
use floe_format::native::identity::Identity;
use floe_format::native::is_locked;
use floe_repair::Skip;

use super::{Fsck, Mode};
use crate::e2fsck::due::{self, Circumstances};
use crate::e2fsck::front::Front;
use crate::e2fsck::summary::{self, Free};
use crate::exit::Outcome;
use crate::input::{block_devices, clock};

/// The work of a run.
pub(super) enum Ahead {
    /// None: the file system claims to be clean, and no check is due.
    Ended(Outcome),
    /// The journal is to be replayed, or orphans are to be finished. The rules are applied again then.
    Recovery {
        /// Without a check, as e2fsck does.
        finishes_orphans: bool,
    },
    /// A check.
    Check,
}

/// A file system whose superblock claims that it is clean.
struct CleanByItsRecords {
    /// The message printed instead of a check.
    line: String,
    /// Its journal needs recovery.
    needs_recovery: bool,
    /// It may have orphans that are finished without a check.
    finishes_orphans: bool,
}

/// Output that the judge of a recovery shares with the run around it.
struct Shared<'o, W>(&'o RefCell<W>);

impl<W: Write> Write for Shared<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

impl Fsck<'_> {
    /// Skips the check if the file system claims to be clean and no check is due.
    pub(super) fn ahead(&self, front: &Front, out: &mut impl Write) -> anyhow::Result<Ahead> {
        let options = &self.options;
        let extras = self.extras();
        let repairs = matches!(self.mode, Mode::Yes | Mode::Preen | Mode::Ask);
        let asked =
            options.force || extras.unshare_blocks || options.bad_blocks() || self.names_a_backup();
        if asked || (extras.journal_only && repairs) {
            return Ok(Ahead::Check);
        }
        // The system may have open files on its root, and the superblock of a native file system has no list.
        let finishes = self.mode == Mode::Preen && !front.root;
        let clean = match self.source.open() {
            Ok(device) => self.clean_by_its_records(&device, front, finishes, out)?,
            Err(_) => None,
        };
        let Some(clean) = clean else {
            let ended = self.without_a_replay(front, out)?;
            return Ok(ended.map_or(Ahead::Check, Ahead::Ended));
        };
        if repairs && (clean.needs_recovery || clean.finishes_orphans) {
            // A check has undo files for all that follows.
            return Ok(match options.undo {
                Some(_) => Ahead::Check,
                None => Ahead::Recovery { finishes_orphans: clean.finishes_orphans },
            });
        }
        writeln!(out, "{}", clean.line)?;
        if clean.needs_recovery && !repairs {
            writeln!(out, "The journal holds transactions that were not replayed.")?;
        }
        Ok(Ahead::Ended(Outcome::CLEAN))
    }

    /// Replays the journal and finishes orphans; goes on with a check if one is due then. The log is read once.
    pub(super) fn recover(
        &self,
        front: &Front,
        finishes_orphans: bool,
        out: &mut impl Write,
    ) -> anyhow::Result<Outcome> {
        let (out, line) = (RefCell::new(out), RefCell::new(None));
        let is_enough = |recovered: Result<&dyn ReadBlocks, &str>| {
            let mut out = Shared(&out);
            let clean = match recovered {
                Ok(device) => self.clean_by_its_records(device, front, false, &mut out),
                Err(why) => {
                    let told = writeln!(out, "{}: orphans stay: {why}: checking", front.name);
                    told.map(|()| None).map_err(Into::into)
                }
            };
            // Where the reason cannot be told, the account cannot be either, which is noticed.
            let clean = clean.ok().flatten();
            if clean.is_none() {
                front.tell(0.0);
            }
            *line.borrow_mut() = clean.map(|clean| clean.line);
            line.borrow().is_some()
        };
        let skip = Skip { finishes_orphans, is_enough: &is_enough };
        let outcome = self.repair(front, None, Some(&skip), &mut Shared(&out))?;
        let out = &mut Shared(&out);
        match line.take() {
            Some(line) if outcome == Outcome::CLEAN => writeln!(out, "{line}")?,
            Some(_) => {}
            None => {
                front.tell(1.0);
                self.afterwards(front, outcome, out)?;
            }
        }
        Ok(outcome)
    }

    /// The end of a run that was to replay the journal, and must not.
    fn without_a_replay(
        &self,
        front: &Front,
        out: &mut impl Write,
    ) -> anyhow::Result<Option<Outcome>> {
        if !self.extras().journal_only || !self.is_sound_so_far() {
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
    ///
    /// # Errors
    /// None is named, and several devices could be the journal.
    pub(super) fn external_journal(&self) -> anyhow::Result<Option<PathBuf>> {
        let has_own = |sb: &Superblock| {
            !sb.features().compat.contains(Compat::HAS_JOURNAL) || sb.journal_inum != 0
        };
        let named = self.options.journal.as_deref();
        if named.is_some() && self.opened().is_some_and(|opened| has_own(&opened.superblock)) {
            return Ok(None);
        }
        block_devices::journal_of(&self.source, named)
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

    /// Whether superblock, descriptors and journal have no fault that can be seen without a check.
    fn is_sound_so_far(&self) -> bool {
        let options = CheckOptions {
            journal: JournalUse::Ignore,
            superblock: self.source.which(),
            now_seconds: clock::now().now_seconds,
            ..CheckOptions::default()
        };
        let Ok(device) = self.source.open() else { return false };
        floe_check::open::open(&device, options.superblock)
            .is_ok_and(|opened| is_sound(&device, opened, &options))
    }

    /// The message printed instead of a check; `None`: a check is needed. With `finishes`, not because of orphans.
    fn clean_by_its_records(
        &self,
        device: &dyn ReadBlocks,
        front: &Front,
        finishes: bool,
        out: &mut impl Write,
    ) -> anyhow::Result<Option<CleanByItsRecords>> {
        let Ok(reader) = Reader::open(device, None, None) else { return Ok(None) };
        let superblock = &reader.superblock;
        if !Superblock::checksum_ok(&reader.superblock_bytes)
            || reader.geometry.inodes_count != superblock.inodes_count
        {
            return Ok(None);
        }
        let clock = clock::now();
        let mends = self.mode != Mode::No;
        let mut at = Circumstances::new(&self.conf, clock, mends);
        at.finishes_orphans = finishes && Identity::of(superblock).is_none();
        if let Some(reason) = due::reason(superblock, &at, || due::backups_differ(&reader)) {
            writeln!(out, "{}: {}: checking", front.name, reason.text())?;
            return Ok(None);
        }
        let options = CheckOptions {
            // Whoever replays it finds the damage of the log.
            journal: if mends { JournalUse::Ignore } else { JournalUse::Read },
            now_seconds: clock.now_seconds,
            ..CheckOptions::default()
        };
        let Ok(opened) = floe_check::open::open(device, options.superblock) else {
            return Ok(None);
        };
        if let Some(group) = due::with_impossible_count(&opened.geometry, &opened.groups) {
            writeln!(out, "{}: a count of {group} is impossible: checking", front.name)?;
            return Ok(None);
        }
        if !is_sound(device, opened.clone(), &options) {
            return Ok(None);
        }
        // In a native file system that was unmounted, the log of a cube may wait for its repair.
        let needs_recovery =
            superblock.features().incompat.contains(Incompat::RECOVER) || is_locked(superblock);
        let announcement = due::announcement(superblock, &at);
        let free = match mends {
            true => Free::of_groups(&opened.geometry, &opened.groups),
            false => Free::of_superblock(superblock),
        };
        let line = summary::clean_line(&front.name, superblock, free, &announcement);
        let finishes_orphans =
            at.finishes_orphans && (needs_recovery || superblock.may_have_orphans());
        Ok(Some(CleanByItsRecords { line, needs_recovery, finishes_orphans }))
    }
}

/// Whether superblock, descriptors and journal have no fault that can be seen without a check. As e2fsck, which looks at them before it
/// skips a check: Linux would not mount a file system whose journal is lost, whatever its superblock says.
fn is_sound(device: &dyn ReadBlocks, opened: Opened, options: &CheckOptions<'_>) -> bool {
    let recovery = recovery::recover(device, &opened, options);
    let (volume, mut found) = Volume::new(device, opened, options.now_seconds);
    found.0.extend(recovery.found.0);
    fields::check(&volume, &mut found);
    descriptor::check(&volume, &mut found);
    if volume.has_compat(Compat::HAS_JOURNAL) && volume.superblock.journal_inum != 0 {
        let journal = InodeNr(volume.superblock.journal_inum);
        found.0.extend(inodes::look_at(&volume, journal).0.into_iter().filter(prevents_a_mount));
    }
    found.0.iter().all(|problem| match problem {
        // Whether it was unmounted is judged by the rules for skipping.
        Problem::NotCleanlyUnmounted { .. } => true,
        _ => problem.row().weight <= Weight::Remark,
    })
}

/// Whether Linux does not load the inode of the journal, or does not find the log by it, because of a finding. Others wait for a check,
/// such as a wrong number of sectors; a map of blocks was followed as Linux does when the log was looked for.
fn prevents_a_mount(of_journal: &Problem) -> bool {
    of_journal.row().object == Object::Extent
        || matches!(
            of_journal,
            Problem::InodeChecksumBad { .. }
                | Problem::SpecialInodeExtraSizeBad { .. }
                | Problem::SpecialInodeAttributeBlockBad { .. }
                | Problem::SpecialInodeAttributesBad { .. }
                | Problem::SpecialInodeFlagBad { .. }
        )
}
