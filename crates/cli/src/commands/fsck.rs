//! `floe fsck`: e2fsck's command line, for scripts and for `fsck`.
//!
//! `-n` judges the raw disk as `e2fsck -n` does, without the changes that are still in the journal;
//! `-y` and `-p` repair.

use std::ffi::OsString;
use std::io::Write;

use floe_check::JournalUse;
use floe_check::problem::Weight;
use floe_check::reader::Reader;
use floe_format::ext::superblock::{STATE_ERROR, STATE_VALID, Superblock};
use floe_format::features::{Compat, Incompat, RoCompat};
use floe_repair::Extras;
use floe_repair::policy::{Preen, Yes};

use crate::check_run::{Run, now_seconds};
use crate::device::{InUse, Source};
use crate::exit::Outcome;
use crate::fsck_options::Options;
use crate::repair_run::RepairRun;

/// A clock that is off by less than this is not believed to be wrong (e2fsck's time fudge).
const CLOCK_SLACK_SECONDS: i64 = 24 * 60 * 60;
/// A clock before 2010 is believed to be unset: time is then not judged.
const EARLIEST_NOW_SECONDS: i64 = 1_262_322_000;

/// Damage with which `e2fsck -n` exits 0: it offers to repair it before its first pass, is told no,
/// and goes on content. `floe check` counts it: Linux refuses to mount a group with a wrong checksum,
/// for example, and a journal with data that nobody will replay may be a loss. Some that e2fsck
/// forgets are not here, since its passes may then find what they hid: stale journal fields, uninit
/// flags and unused inode counts.
const TOLERATED_BY_N: &[u32] = &[
    0x00_0016, // journal-present-without-feature
    0x00_0018, // journal-has-data-without-needs-recovery
    0x00_002e, // reserved-gdt-without-resize-inode
    0x00_002f, // resize-inode-leftover
    0x00_0030, // resize-inode-invalid
    0x00_0035, // group-descriptor-checksum-bad
    0x00_0041, // quota-inode-not-reserved
    0x00_004d, // min-extra-isize-bad
    0x00_004e, // want-extra-isize-bad
    0x00_004f, // quota-inode-number-invalid
    0x07_000e, // journal-error-recorded
];

const USAGE: &str = "\
usage: floe fsck [-n | -y | -p] [-f] [-D] [-v] [-t] [-b superblock] [-B blocksize]
                 [-j external-journal] [-z undo-file] [-E extended-options] [-C fd]
                 device

e2fsck's command line. -c, -l and -L, which change the list of bad blocks, are refused. -n leaves
out the journal, as e2fsck does. -z saves what is written over, for floe undo. -E discard is taken
and does nothing. Exit codes are e2fsck's: 0 clean, 1 repaired, 4 damage left, 8 failed, 16 wrong
command line.";

/// Check with e2fsck's command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// As for e2fsck(8)
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

/// Runs the command with the arguments behind its name.
pub(crate) fn run(arguments: &[OsString], out: &mut impl Write) -> anyhow::Result<Outcome> {
    let help = |argument: &OsString| argument == "--help" || argument == "-h";
    if arguments.len() == 1 && arguments.iter().all(help) {
        writeln!(out, "{USAGE}")?;
        return Ok(Outcome::CLEAN);
    }
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(why) => {
            eprintln!("floe fsck: {why}\n{USAGE}");
            return Ok(Outcome::USAGE);
        }
    };
    if options.version {
        eprintln!("floe fsck {}", env!("CARGO_PKG_VERSION"));
        return Ok(Outcome::CLEAN);
    }
    if options.bad_blocks {
        eprintln!(
            "floe fsck: -c, -l and -L change the list of bad blocks, which this version cannot. \
             Nothing was looked at or changed."
        );
        return Ok(Outcome::FAILED);
    }
    let asks = options.optimize_dirs
        || ["journal_only", "unshare_blocks", "bmap2extent"]
            .iter()
            .any(|name| options.has_extended(name));
    if asks && !(options.no || options.yes || options.preen) {
        eprintln!(
            "floe fsck: -D and the -E options that change the file system need -y or -p. Nothing \
             was looked at or changed."
        );
        return Ok(Outcome::FAILED);
    }
    check(&options, out)
}

/// What is done besides mending.
fn extras(options: &Options) -> Extras {
    let fixes_only = options.has_extended("fixes_only");
    Extras {
        journal_only: options.has_extended("journal_only"),
        unshare_blocks: options.has_extended("unshare_blocks"),
        to_extents: options.has_extended("bmap2extent"),
        rebuild_directories: options.optimize_dirs,
        index_directories: !fixes_only,
        shrink_extent_trees: !fixes_only && !options.has_extended("no_optimize_extents"),
    }
}

fn check(options: &Options, out: &mut impl Write) -> anyhow::Result<Outcome> {
    let source = Source {
        superblock: options.superblock,
        block_size: options.block_size,
        ..Source::whole(&options.device)
    };
    // As e2fsck: -n may look at a mounted file system; anything else must not.
    let in_use = source.mind_users(if options.no { InUse::Warn } else { InUse::Refuse })?;
    let extras = extras(options);
    let repairs = options.yes || options.preen;
    let only_journal = extras.journal_only && repairs;
    let may_skip =
        !(options.force || extras.unshare_blocks || only_journal) && options.superblock.is_none();
    let clean = may_skip.then(|| clean_by_its_records(&source)).flatten();
    // A replay that fails makes a check due: two repairs would need two undo files.
    let one_run = |clean: &CleanByItsRecords| options.undo.is_none() || !clean.needs_recovery;
    if let Some(clean) = clean.filter(one_run) {
        let replayed = if repairs && clean.needs_recovery {
            let extras = Extras { journal_only: true, ..extras };
            repair(options, &source, extras, out)?
        } else {
            Outcome::CLEAN
        };
        if replayed == Outcome::CLEAN {
            let pending = clean.needs_recovery && !repairs;
            let more = if pending { " The journal holds changes not yet in place." } else { "" };
            writeln!(out, "{}{more}", clean.line)?;
            return Ok(Outcome::CLEAN);
        }
    }
    if repairs {
        return repair(options, &source, extras, out);
    }
    let run = Run {
        source: &source,
        threads: floe_exec::default_threads(),
        journal: if options.no { JournalUse::Ignore } else { JournalUse::Replay },
        external_journal: options.journal.as_deref(),
        json: false,
        verbose: options.verbose,
        fail_on: None,
        tolerated: if options.no { TOLERATED_BY_N } else { &[] },
        in_use,
    };
    run.run(out)
}

fn repair(
    options: &Options,
    source: &Source,
    extras: Extras,
    out: &mut impl Write,
) -> anyhow::Result<Outcome> {
    let run = RepairRun {
        source,
        threads: floe_exec::default_threads(),
        external_journal: options.journal.as_deref(),
        verbose: options.verbose,
        json: false,
        dry_run: false,
        plan: None,
        shared_blocks: floe_repair::SharedBlocks::Clone,
        undo: options.undo.as_deref(),
        extras,
    };
    let outcome = if options.preen { run.run(&mut Preen, out) } else { run.run(&mut Yes, out) }?;
    // As e2fsck: a journal that was replayed is no damage that was mended.
    Ok(Outcome { repaired: outcome.repaired && !extras.journal_only, ..outcome })
}

/// A file system that claims to be clean.
struct CleanByItsRecords {
    /// What to say instead of checking it.
    line: String,
    /// Its journal holds changes that are not in place.
    needs_recovery: bool,
}

/// What to say instead of checking, if the file system claims to be clean and no check is due: the
/// rules of e2fsck (`problems/README.md`, "Full check or skip"). `None`: check.
fn clean_by_its_records(source: &Source) -> Option<CleanByItsRecords> {
    let device = source.open().ok()?;
    let reader = Reader::open(&device, None, None).ok()?;
    let superblock = &reader.superblock;
    if !Superblock::checksum_ok(&reader.superblock_bytes)
        || reader.geometry.inodes_count != superblock.inodes_count
        || check_is_due(superblock, now_seconds())
        || backups_differ(&reader)
    {
        return None;
    }
    let options = floe_check::CheckOptions {
        journal: JournalUse::Ignore,
        now_seconds: now_seconds(),
        ..floe_check::CheckOptions::default()
    };
    let opened = floe_check::open::open(&device, &options).ok()?;
    if opened.found.0.iter().any(|problem| problem.row().weight > Weight::Remark) {
        return None;
    }
    let needs_recovery = superblock.features().incompat.contains(Incompat::RECOVER);
    let line = format!(
        "{}: clean by its own records, so not checked (-f checks anyway). {} of {} inodes and {} \
         of {} blocks in use.",
        source.name(),
        superblock.inodes_count.saturating_sub(superblock.free_inodes_count),
        superblock.inodes_count,
        superblock.blocks_count().saturating_sub(superblock.free_blocks_count()),
        superblock.blocks_count(),
    );
    Some(CleanByItsRecords { line, needs_recovery })
}

fn check_is_due(superblock: &Superblock, now_seconds: i64) -> bool {
    let features = superblock.features();
    let orphans = features.compat.contains(Compat::ORPHAN_FILE)
        && features.ro_compat.contains(RoCompat::ORPHAN_PRESENT);
    let max_mounts = superblock.max_mnt_count.cast_signed();
    let lastcheck = i64::from(superblock.lastcheck) | i64::from(superblock.lastcheck_hi) << 32;
    let clock_is_sane = now_seconds >= EARLIEST_NOW_SECONDS;
    let interval = i64::from(superblock.checkinterval);
    orphans
        || superblock.state & STATE_ERROR != 0
        || superblock.state & STATE_VALID == 0
        || (max_mounts > 0 && superblock.mnt_count >= superblock.max_mnt_count)
        || (clock_is_sane && interval > 0 && lastcheck > now_seconds + CLOCK_SLACK_SECONDS)
        || (clock_is_sane && interval > 0 && now_seconds - lastcheck >= interval)
}

/// Whether the first readable backup says something else about features, sizes or identity than
/// the primary, apart from bits that Linux sets in the primary alone.
fn backups_differ(reader: &Reader<'_>) -> bool {
    let primary = &reader.superblock;
    let backup = (1..reader.geometry.group_count).find_map(|group| {
        let block = reader.geometry.superblock_of(floe_format::GroupNr(group))?;
        Reader::open_at(reader.device(), reader.geometry.offset_bytes(block)).ok()
    });
    let Some(backup) = backup.map(|backup| backup.superblock) else { return false };
    let incompat = !(Incompat::EXTENTS | Incompat::RECOVER).bits();
    let ro_compat = !(RoCompat::LARGE_FILE | RoCompat::DIR_NLINK | RoCompat::ORPHAN_PRESENT).bits();
    primary.feature_compat != backup.feature_compat
        || (primary.feature_incompat ^ backup.feature_incompat) & incompat != 0
        || (primary.feature_ro_compat ^ backup.feature_ro_compat) & ro_compat != 0
        || primary.blocks_count() != backup.blocks_count()
        || primary.inodes_count != backup.inodes_count
        || primary.uuid != backup.uuid
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn clean() -> Superblock {
        let mut superblock = Superblock::decode(&[0; 1024]);
        superblock.state = STATE_VALID;
        superblock.lastcheck = 1_799_990_000;
        superblock
    }

    #[test]
    fn a_check_is_due_as_for_e2fsck() {
        assert!(!check_is_due(&clean(), NOW));
        let with = |change: fn(&mut Superblock)| {
            let mut superblock = clean();
            change(&mut superblock);
            check_is_due(&superblock, NOW)
        };
        assert!(with(|superblock| superblock.state = 0));
        assert!(with(|superblock| superblock.state = STATE_VALID | STATE_ERROR));
        assert!(with(|superblock| (superblock.mnt_count, superblock.max_mnt_count) = (20, 20)));
        assert!(!with(|superblock| (superblock.mnt_count, superblock.max_mnt_count) = (20, 0)));
        assert!(!with(|superblock| (superblock.mnt_count, superblock.max_mnt_count) = (20, 65535)));
        assert!(with(|superblock| superblock.checkinterval = 10_000));
        assert!(!with(|superblock| superblock.checkinterval = 10_001));
        assert!(with(|superblock| {
            superblock.feature_compat = Compat::ORPHAN_FILE.bits();
            superblock.feature_ro_compat = RoCompat::ORPHAN_PRESENT.bits();
        }));
        let mut future = clean();
        future.lastcheck = 1_800_000_000 + 24 * 60 * 60 + 1;
        future.checkinterval = 1;
        assert!(check_is_due(&future, NOW));
        assert!(!check_is_due(&future, 1_000_000_000), "an unset clock proves nothing");
    }
}
