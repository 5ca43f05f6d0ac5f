//! `floe fsck`, and `fsck.ext4` and the like: e2fsck's command line, for scripts, boot and `fsck`.
//!
//! `-n` checks the raw disk without journal replay, as `e2fsck -n` does; `-y` and `-p` repair;
//! without any of them a person is asked, if there is a terminal.

use std::cell::RefCell;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};

use floe_blockdev::Use;
use floe_check::evidence::choice::LinkChoice;
use floe_check::reader::Reader;
use floe_check::{Accounting, JournalUse};
use floe_format::ext::superblock::{STATE_ERROR, Superblock};
use floe_format::features::RoCompat;
use floe_repair::policy::{Policy, Preen, Yes};
use floe_repair::{BadBlocks, Extras, Skip};
use floe_sync::atomic::AtomicBool;
use floe_sync::{Arc, Mutex};

use crate::e2fsck::conf::Conf;
use crate::e2fsck::front::Front;
use crate::e2fsck::log::{Facts, Tee};
use crate::e2fsck::options::Options;
use crate::e2fsck::policy::Configured;
use crate::e2fsck::progress::{self, Form, Lines, Switch};
use crate::e2fsck::{bad_blocks, discard, fragments, name};
use crate::exit::Outcome;
use crate::input::clock;
use crate::input::device::Source;
use crate::input::scheduling::Sharing;
use crate::message::message;
use crate::run::check::Run;
use crate::run::repair::RepairRun;
use crate::terminal::ask::Ask;
use crate::terminal::failure::with_causes;
use crate::terminal::progress::Watch;

mod skip;
mod undo;
mod usage;

use skip::Ahead;
use usage::{usage, usage_line};

/// Damage with which `e2fsck -n` exits 0: it offers a repair before pass 1, is answered no, and
/// continues as if clean. `floe check` counts such damage: Linux refuses to mount a group with a
/// wrong checksum, for example, and a journal that nobody replays may be a loss. Other problems
/// that e2fsck forgets are not listed here, because its passes may find their consequences: stale
/// journal fields, uninit flags and unused inode counts.
const TOLERATED_BY_N: &[(u32, RoCompat)] = &[
    (0x00_0016, RoCompat::empty()), // journal-present-without-feature
    (0x00_0018, RoCompat::empty()), // journal-has-data-without-needs-recovery
    (0x00_002e, RoCompat::empty()), // reserved-gdt-without-resize-inode
    (0x00_002f, RoCompat::empty()), // resize-inode-leftover
    (0x00_0030, RoCompat::empty()), // resize-inode-invalid
    (0x00_0035, RoCompat::empty()), // group-descriptor-checksum-bad
    (0x00_0041, RoCompat::empty()), // quota-inode-not-reserved
    (0x00_004d, RoCompat::empty()), // min-extra-isize-bad
    (0x00_004e, RoCompat::empty()), // want-extra-isize-bad
    // With quotas, e2fsck then finds that it cannot read the quota file.
    (0x00_004f, RoCompat::QUOTA),   // quota-inode-number-invalid
    (0x07_000e, RoCompat::empty()), // journal-error-recorded
];

/// Check with e2fsck's command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Options of e2fsck(8)
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) arguments: Vec<OsString>,
}

/// How questions are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// -n.
    No,
    /// -y.
    Yes,
    /// -p.
    Preen,
    /// Ask a person.
    Ask,
    /// Nobody can be asked, so nothing is written.
    Look,
}

/// Runs the command with `arguments`, which follow the name `program`.
pub(crate) fn run(
    program: &str,
    arguments: &[OsString],
    out: &mut impl Write,
) -> anyhow::Result<Outcome> {
    let help = |argument: &OsString| argument == "--help" || argument == "-h";
    if arguments.len() == 1 && arguments.iter().all(help) {
        write!(out, "{}", usage(program))?;
        return Ok(Outcome::CLEAN);
    }
    let options = match Options::parse(arguments) {
        Ok(options) => options,
        Err(why) => {
            message!("{program}: {why}\n{}\n{program} --help shows all.", usage_line(program));
            return Ok(Outcome::USAGE);
        }
    };
    if options.version {
        message!("{program} (Floe) {}", env!("CARGO_PKG_VERSION"));
        return Ok(Outcome::CLEAN);
    }
    let refused = |why: String| {
        message!("{program}: {why}");
        Ok(Outcome::FAILED)
    };
    // Install the handlers early: a signal may arrive as soon as the process id is known.
    let (fd, shown) = match options.progress {
        Some(fd) => (Some(fd.abs()), fd >= 0),
        None => (None, false),
    };
    let switch = Switch::new(shown)?;
    let bar: Arc<AtomicBool> = Arc::default();
    let channel = match fd.filter(|&fd| fd > 0) {
        Some(fd) => match progress::open(fd) {
            Ok(file) => Some((Form::Lines, file)),
            Err(error) => return refused(with_causes(&error)),
        },
        // Only with -C 0, or after SIGUSR1.
        None if io::stdout().is_terminal() => {
            progress::open(1).ok().map(|file| (Form::Bar(Arc::clone(&bar)), file))
        }
        None => None,
    };
    let conf = match Conf::load() {
        Ok(conf) => conf,
        Err(why) => return refused(why),
    };
    let device = match name::resolve(&options.device) {
        Ok(device) => device,
        Err(why) => return refused(why),
    };
    let facts = Facts { now_seconds: clock::now().now_seconds, device: device.clone() };
    let create = |pattern: &Option<String>| {
        pattern.as_ref().and_then(|pattern| facts.create(&conf, pattern))
    };
    let (log, problem_log) = (create(&conf.log_filename), create(&conf.problem_log_filename));
    let mut files = options.files(&device);
    let channel_file = channel.iter().map(|(_, file)| ("-C", file));
    let logs = [("log_filename", &log), ("problem_log_filename", &problem_log)];
    let logs = logs.into_iter().filter_map(|(name, log)| Some((name, log.as_ref()?)));
    logs.chain(channel_file).for_each(|(name, file)| files.stream(name, file));
    files.judge()?;
    let source = Source {
        superblock: options.superblock,
        block_size: options.block_size,
        ..Source::whole(&device)
    };
    let fsck = Fsck { program, mode: mode(&options), options, conf, device, source };
    let outputs = Outputs { problem_log, channel, switch };
    fsck.run(outputs, &mut Tee { out, log, bar })
}

fn mode(options: &Options) -> Mode {
    if options.no {
        Mode::No
    } else if options.yes {
        Mode::Yes
    } else if options.preen {
        Mode::Preen
    } else if std::env::var_os("E2FSCK_FORCE_INTERACTIVE").is_some()
        || (io::stdin().is_terminal() && io::stdout().is_terminal())
    {
        Mode::Ask
    } else {
        Mode::Look
    }
}

/// One run.
struct Fsck<'a> {
    program: &'a str,
    mode: Mode,
    options: Options,
    conf: Conf,
    device: PathBuf,
    source: Source,
}

/// Additional outputs of a run.
struct Outputs {
    problem_log: Option<File>,
    /// The file descriptor of -C.
    channel: Option<(Form, File)>,
    switch: Switch,
}

/// Other users of the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Users {
    /// None that conflict.
    None,
    /// Another program may write to it, and the run only reads.
    Writing,
    /// It is the system's root file system, still mounted read-only.
    Root,
}

impl Fsck<'_> {
    fn run(&self, outputs: Outputs, out: &mut impl Write) -> anyhow::Result<Outcome> {
        let options = &self.options;
        let writes = matches!(self.mode, Mode::Yes | Mode::Preen | Mode::Ask);
        let asks = options.optimize_dirs
            || options.bad_blocks()
            || ["journal_only", "unshare_blocks", "bmap2extent", "discard"]
                .iter()
                .any(|name| options.has_extended(name));
        if asks && self.mode == Mode::Look {
            message!(
                "{}: there is no terminal for questions, and options that change the file system \
                 besides repairs (-c, -l, -L, -D, some of -E) then need -y or -p. Nothing was \
                 looked at or changed.",
                self.program
            );
            return Ok(Outcome::FAILED);
        }
        let uses = self.source.users()?;
        let mounted = |found: &Use| matches!(found, Use::Mounted { .. });
        if options.skip_mounted && uses.iter().any(mounted) {
            writeln!(out, "{}: mounted, skipped", self.device.display())?;
            return Ok(Outcome::CLEAN);
        }
        let users = match self.users(&uses, writes) {
            Ok(users) => users,
            Err(why) => {
                message!("{}: {why}", self.program);
                return Ok(Outcome::FAILED);
            }
        };
        if options.flush {
            let file = floe_blockdev::FileDevice::open(&self.device)?;
            file.forget(0, 0);
        }
        let front = self.front(outputs, users == Users::Root);
        let wanted = match self.bad_blocks(writes)? {
            Some(wanted) => Some(wanted),
            None if options.bad_blocks() => return Ok(Outcome::FAILED),
            None => None,
        };
        match self.ahead(&front, out)? {
            Ahead::Ended(outcome) => return Ok(outcome),
            Ahead::Recovery { finishes_orphans } => {
                return self.recover(&front, finishes_orphans, out);
            }
            Ahead::Check => {}
        }
        front.tell(0.0);
        let outcome = if writes {
            self.repair(&front, wanted.as_ref(), None, out)?
        } else {
            self.check(&front, users == Users::Writing, out)?
        };
        front.tell(1.0);
        self.afterwards(&front, outcome, out)?;
        Ok(outcome)
    }

    /// Determines the users of the device; `Err`: it must not be changed, or not even be read.
    fn users(&self, uses: &[Use], writes: bool) -> Result<Users, String> {
        let at_root = |found: &Use| {
            matches!(found, Use::Mounted { mount_point, read_only: true, .. }
                if mount_point == Path::new("/"))
        };
        let read_only = |found: &Use| matches!(found, Use::Mounted { read_only: true, .. });
        let name = self.device.display();
        // Only conflicting users: a loop device alone does not conflict.
        let minds = |found: &&Use| match found {
            Use::Loop { .. } => false,
            Use::Mounted { read_only: true, .. } => writes,
            _ => true,
        };
        let Some(found) = uses.iter().find(minds) else { return Ok(Users::None) };
        if writes {
            // As at boot: the root is checked before it is remounted read-write.
            return if uses.iter().any(at_root) && uses.iter().all(read_only) {
                Ok(Users::Root)
            } else {
                Err(format!(
                    "{name} is {found}. Repairing a file system in use destroys data. Unmount it \
                     first. Nothing was looked at or changed."
                ))
            };
        }
        if self.mode == Mode::Look {
            return Err(format!(
                "{name} is {found}. It changes during the check, which would report false damage. \
                 Unmount it, or use -n to check anyway."
            ));
        }
        message!(
            "{}: warning: {name} is {found}. It changes during the check, so findings may be \
             false.",
            self.program
        );
        Ok(Users::Writing)
    }

    fn front(&self, outputs: Outputs, root: bool) -> Front {
        let Outputs { problem_log, channel, switch } = outputs;
        let report_time = if self.conf.report_time { 2 } else { 0 };
        let superblock = self.superblock();
        // Like e2fsck: the label, if there is one.
        let label = superblock.as_ref().map(Superblock::label).filter(|label| !label.is_empty());
        let label = label.map(|label| label.escape_debug().to_string());
        let name = self.options.name.clone().or(label);
        let has_errors = superblock.is_none_or(|sb| sb.state & STATE_ERROR != 0);
        let name = name.unwrap_or_else(|| self.device.display().to_string());
        let lines =
            channel.map(|(form, channel)| Mutex::new(Lines::new(form, channel, &name, switch)));
        Front {
            name,
            lines,
            check_encoding: self.options.has_extended("check_encoding"),
            brief: self.mode == Mode::Preen && !self.options.verbose,
            verbose: self.options.verbose || self.conf.report_verbose,
            timing: self.options.timing.max(report_time),
            conf: self.conf.clone(),
            problem_log: RefCell::new(problem_log),
            root,
            has_work: self.options.has_work(),
            may_cancel: self.conf.allow_cancellation && !has_errors,
        }
    }

    /// The primary superblock, if readable.
    fn superblock(&self) -> Option<Superblock> {
        let device = self.source.open().ok()?;
        Reader::open(&device, None, None).ok().map(|reader| reader.superblock)
    }

    /// The optional work besides repairs.
    fn extras(&self) -> Extras {
        let options = &self.options;
        let fixes_only =
            options.has_extended("fixes_only") || std::env::var_os("E2FSCK_FIXES_ONLY").is_some();
        let keep_trees = options.has_extended("no_optimize_extents")
            || (self.conf.no_optimize_extents && !options.has_extended("optimize_extents"));
        Extras {
            // A check that is asked for is made all the same, as by e2fsck.
            journal_only: options.has_extended("journal_only")
                && !options.force
                && !options.bad_blocks(),
            unshare_blocks: options.has_extended("unshare_blocks"),
            to_extents: options.has_extended("bmap2extent"),
            rebuild_directories: options.optimize_dirs,
            index_directories: !fixes_only,
            shrink_extent_trees: !fixes_only && !keep_trees,
        }
    }

    /// The changes to the bad block list.
    fn bad_blocks(&self, writes: bool) -> anyhow::Result<Option<BadBlocks>> {
        if !writes || !self.options.bad_blocks() {
            return Ok(None);
        }
        bad_blocks::wanted(&self.options, &self.source)
    }

    fn check(&self, front: &Front, in_use: bool, out: &mut impl Write) -> anyhow::Result<Outcome> {
        let no = self.mode == Mode::No;
        let tell = front.teller();
        let watch = Watch::telling(tell.as_ref().map(|tell| tell as _));
        let journal = self.external_journal()?;
        let run = Run {
            source: &self.source,
            threads: floe_exec::default_threads(),
            sharing: &Sharing::default(),
            journal: if no { JournalUse::Read } else { JournalUse::Replay },
            external_journal: journal.as_deref(),
            accounting: Accounting::Auto,
            links: LinkChoice::Auto,
            memory_bytes: self.options.memory_bytes,
            json: false,
            verbose: self.options.verbose,
            fail_on: None,
            tolerated: if no { TOLERATED_BY_N } else { &[] },
            in_use,
            front: Some(front),
            snapshot: None,
            monitor: None,
            watch: &watch,
            html: None,
            checkpoint: None,
            parts: None,
            cube: None,
        };
        let outcome = run.run(out)?;
        if self.mode == Mode::Look && outcome.damaged {
            writeln!(
                out,
                "{}: nothing was repaired: there is no terminal for questions. -p makes repairs that \
                 are safe unattended, -y makes all.",
                front.name
            )?;
        }
        Ok(outcome)
    }

    fn repair(
        &self,
        front: &Front,
        bad_blocks: Option<&BadBlocks>,
        skip: Option<&Skip<'_>>,
        out: &mut impl Write,
    ) -> anyhow::Result<Outcome> {
        let undo = self.undo_file()?;
        let tell = front.teller();
        let watch = Watch::telling(tell.as_ref().map(|tell| tell as _));
        let journal = self.external_journal()?;
        let run = RepairRun {
            source: &self.source,
            threads: floe_exec::default_threads(),
            sharing: &Sharing::default(),
            external_journal: journal.as_deref(),
            memory_bytes: self.options.memory_bytes,
            verbose: self.options.verbose,
            json: false,
            dry_run: false,
            plan: None,
            shared_blocks: floe_repair::SharedBlocks::Clone,
            undo: undo.as_deref(),
            // Unlike e2fsck, which drops unreadable data: see docs/safety.md.
            overwrite_unreadable: false,
            extras: self.extras(),
            bad_blocks,
            skip,
            front: Some(front),
            watch: &watch,
            html: None,
            escalation: None,
            cube: None,
        };
        let mut ask;
        let inner: &mut dyn Policy = match self.mode {
            Mode::Preen => &mut Preen,
            Mode::Ask => {
                ask = Ask::new(io::stdin().lock(), io::stderr());
                &mut ask
            }
            _ => &mut Yes,
        };
        let clock_believed = clock::now().believed && !self.conf.broken_system_clock;
        let preen = self.mode == Mode::Preen;
        let mut policy = Configured { inner, conf: &self.conf, preen, clock_believed };
        run.run(&mut policy, out)
    }

    /// Work after the check: the fragmentation list, and discarding free blocks.
    fn afterwards(
        &self,
        front: &Front,
        outcome: Outcome,
        out: &mut impl Write,
    ) -> anyhow::Result<()> {
        if self.options.has_extended("fragcheck") {
            fragments::write(out, &self.source.open()?, self.source.which())?;
        }
        let clean = !(outcome.damaged || outcome.failed || outcome.cancelled);
        let writes = matches!(self.mode, Mode::Yes | Mode::Preen | Mode::Ask);
        if self.options.has_extended("discard") && clean && writes {
            if self.options.undo.is_some() || self.extras().journal_only || front.root {
                message!(
                    "{}: nothing was discarded, because that could not be undone",
                    self.program
                );
            } else {
                discard::unused(&self.device, &front.name, out)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_blockdev::DeviceNumber;

    fn fsck(mode: Mode) -> Fsck<'static> {
        let device = PathBuf::from("/dev/sda1");
        let source = Source::whole(&device);
        let (options, conf) = (Options::default(), Conf::default());
        Fsck { program: "fsck.ext4", mode, options, conf, device, source }
    }

    fn mounted(mount_point: &str, read_only: bool) -> Use {
        let device = DeviceNumber { major: 8, minor: 1 };
        let file_system = "ext4".to_owned();
        Use::Mounted { mount_point: mount_point.into(), file_system, read_only, device }
    }

    /// As at boot: the root may be repaired while mounted read-only; no other device in use may be.
    #[test]
    fn who_may_use_the_device_meanwhile() {
        let attached = Use::Loop { device: "/dev/loop0".into(), read_only: false };
        let users = |mode: Mode, uses: &[Use]| {
            let writes = matches!(mode, Mode::Yes | Mode::Preen | Mode::Ask);
            fsck(mode).users(uses, writes).ok()
        };
        let root = [mounted("/", true)];
        for mode in [Mode::Yes, Mode::Preen, Mode::Ask] {
            assert!(users(mode, &[]) == Some(Users::None));
            assert!(users(mode, std::slice::from_ref(&attached)) == Some(Users::None));
            assert!(users(mode, &root) == Some(Users::Root));
            assert!(users(mode, &[mounted("/", true), mounted("/boot", false)]).is_none());
            assert!(users(mode, &[mounted("/", false)]).is_none());
            assert!(users(mode, &[mounted("/mnt", true)]).is_none());
            assert!(users(mode, &[Use::Claimed]).is_none());
        }
        for (uses, no, look) in [
            (vec![mounted("/mnt", true)], Some(Users::None), Some(Users::None)),
            (vec![mounted("/", false)], Some(Users::Writing), None),
            (vec![Use::Claimed], Some(Users::Writing), None),
        ] {
            assert!(users(Mode::No, &uses) == no, "{uses:?}");
            assert!(users(Mode::Look, &uses) == look, "{uses:?}");
        }
    }
}
