//! A request of the device fails, each in turn, from the recovery at the mount to the unmount: programs get an error, journals
//! write nothing any more, nothing is half done, and the next mount has what was acknowledged.

use std::ops::Range;
use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use floe_blockdev::{
    Crash, Event, FailsAt, MemDevice, Recorder, Request, RequestKind, SECTOR_BYTES, Strike, Trace,
};
use floe_disk::recovery::recover;
use floe_ext4::fs::FileSystem as Layout;
use floe_format::native::is_locked;
use floe_fs::{Disk, FsError, Limits, Live, MemFs};
use floe_testkit::tool;

use super::acts::{Act, run, tree};
use super::crash::{Call, Run, Tree, cannot_be, tree_of};
use super::cubes::{judge_cubes, with_cubes};
use super::live::{Base, NOW, base_of, mounted};

/// The file systems on which requests fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    Stock,
    Native,
    /// Two cubes `a` and `b`, each with a journal.
    Cubes,
}

/// An image that a crash left, with changes in its journals.
struct Crashed {
    bytes: Vec<u8>,
    /// Its durable content.
    durable: Tree,
}

fn crashed(on: On) -> &'static Crashed {
    static ALL: [OnceLock<Crashed>; 3] = [const { OnceLock::new() }; 3];
    ALL[on as usize].get_or_init(|| {
        let before = match on {
            On::Stock => base_of(Base::Stock),
            On::Native => base_of(Base::Native),
            On::Cubes => with_cubes(),
        };
        let device = MemDevice::new(before.to_vec());
        let (disk, volume) = Disk::open(&device).unwrap();
        let files = disk.files().unwrap();
        let live = Live::new(&disk, &files, volume, NOW).unwrap();
        let memory = MemFs::new(live, Limits::default());
        let mut acts = vec![];
        if on != On::Cubes {
            acts.extend([Act::Mkdir("a".into()), Act::Mkdir("b".into())]);
        }
        for path in ["a/f", "a/h", "b/g", "b/i"] {
            acts.push(Act::Create(path.into()));
            acts.push(Act::Write(path.into(), 0, if path == "a/h" { 60_000 } else { 3000 }));
        }
        acts.extend([Act::Mkdir("b/e".into()), Act::Sync, Act::Create("a/k".into()), Act::Sync]);
        for (turn, act) in (0..).zip(&acts) {
            run(&memory, turn, act).unwrap_or_else(|error| panic!("{act:?}: {error}"));
        }
        Crashed { bytes: device.to_vec(), durable: tree(&memory) }
    })
}

/// The acts of programs; `None` is a checkpoint.
fn story() -> Vec<Option<Act>> {
    let path = |path: &str| path.to_owned();
    [
        Some(Act::Create(path("a/n"))),
        Some(Act::Write(path("a/n"), 0, 6000)),
        Some(Act::Fsync(path("a/n"))),
        Some(Act::Mkdir(path("b/d"))),
        Some(Act::Create(path("b/d/x"))),
        Some(Act::Write(path("b/g"), 2000, 5000)),
        Some(Act::Rename(path("a/f"), path("a/k"))),
        Some(Act::Rename(path("a/n"), path("b/d/y"))),
        Some(Act::Fsync(path("b/d"))),
        Some(Act::Truncate(path("a/h"), 700)),
        Some(Act::Attribute(path("b/i"), 1, Some(40))),
        Some(Act::Fsync(path("a/h"))),
        None,
        Some(Act::Unlink(path("b/i"))),
        Some(Act::Rmdir(path("b/e"))),
        Some(Act::Create(path("a/o"))),
        Some(Act::Write(path("a/o"), 100, 9000)),
        Some(Act::Sync),
        Some(Act::Link(path("a/o"), path("a/p"))),
        Some(Act::Symlink(path("b/s"), 100)),
        Some(Act::Fsync(path("b"))),
        Some(Act::Chmod(path("a/o"), 0o600)),
    ]
    .into()
}

/// A request that fails.
#[derive(Clone, Copy, Debug)]
struct Fault {
    on: On,
    at: u64,
    strike: Strike,
    /// Little stays in memory, so that more is read.
    forgetful: bool,
}

type Device<'r> = FailsAt<&'r Recorder<MemDevice>>;

impl Fault {
    fn limits(&self) -> Limits {
        let limits = Limits::default();
        if !self.forgetful {
            return limits;
        }
        Limits { records: 3, clean_inodes: 0, clean_names: 0, clean_bytes: 0, ..limits }
    }

    /// Whether half of a superblock arrives: that is not atomic (`docs/journal.md`), and a repair takes a backup.
    fn tears_superblock(&self, struck: Request) -> bool {
        let sectors = struck.len_bytes / SECTOR_BYTES as u64 / 2;
        let end = struck.offset_bytes + sectors * SECTOR_BYTES as u64;
        let is_half = self.strike == Strike::Half && struck.kind == RequestKind::Write;
        is_half && (1025..2048).contains(&end)
    }

    /// Whether a failed write ended the journals. Rules R3 and R10: none that is mounted writes after it failed. In a cube, others go on.
    /// Content and the backups of descriptors, which are written last, are in no log: the file alone loses something, or the unmount says
    /// that a backup is old, and all else is made durable. A device that is gone may refuse such a write first and the log later; whatever
    /// is asked of it then does not arrive.
    fn ends_journals(&self, told: &Result<()>) -> bool {
        let Err(error) = told else { return false };
        let of_data = format!("{error:#}").contains("writing data");
        self.on != On::Cubes && self.strike != Strike::ForGood && !of_data
    }

    /// Mounts, tells the story and unmounts, as the command does. Notes calls as they are made.
    fn tell(
        &self,
        recorder: &Recorder<MemDevice>,
        device: &Device<'_>,
        calls: &mut Vec<Call>,
        served: &mut bool,
    ) -> Result<()> {
        let (disk, volume) = Disk::open(device)?;
        let finished = self.serve(recorder, device, &disk, volume, calls, served);
        let closed = disk.close();
        finished.and(closed.map_err(Into::into))
    }

    fn serve<'r>(
        &self,
        recorder: &Recorder<MemDevice>,
        device: &Device<'r>,
        disk: &Disk<&Device<'r>>,
        volume: floe_disk::volume::Volume,
        calls: &mut Vec<Call>,
        served: &mut bool,
    ) -> Result<()> {
        let files = disk.files()?;
        let memory = MemFs::new(Live::new(disk, &files, volume, NOW)?, self.limits());
        *served = device.struck().is_none();
        let events = || recorder.count();
        for (turn, act) in (20..).zip(story()) {
            let Some(act) = act else {
                if let Disk::Journaled(journal) = disk {
                    // The next call says what became of it.
                    let _ = journal.checkpoint();
                }
                continue;
            };
            let began = events();
            let done = run(&memory, turn, &act);
            if let Err(FsError::Ended(why)) = &done {
                ensure!(why.contains("Input/output error"), "{act:?}: {why}");
            }
            let ended = events();
            device.arm(false);
            let after = tree(&memory);
            device.arm(true);
            let before = calls.last().map(|last| last.after.clone()).unwrap_or_default();
            calls.push(Call { began, ended, act, done: done.is_ok(), before, after });
        }
        let (live, lost) = memory.finish()?;
        live.finish(NOW)?;
        lost.map_err(Into::into)
    }

    /// Lets the request fail, and judges what is left; `false` if there are not so many requests.
    fn judge(&self, by_e2fsck: bool) -> Result<bool> {
        let base = crashed(self.on);
        let recorder = Recorder::new(MemDevice::new(base.bytes.clone()));
        let device = FailsAt::new(&recorder, self.at, self.strike);
        let tree = base.durable.clone();
        let (act, done) = (Act::Sync, true);
        let mut calls =
            vec![Call { began: 0, ended: 0, act, done, before: tree.clone(), after: tree }];
        device.arm(true);
        let mut served = false;
        let told = self.tell(&recorder, &device, &mut calls, &mut served);
        device.arm(false);
        let Some(struck) = device.struck() else {
            told.context("nothing failed")?;
            return Ok(false);
        };
        // A read that fails once costs one call, not what was accepted, nor the mount.
        let costs_little = struck.kind == RequestKind::Read && self.strike != Strike::ForGood;
        if costs_little && served {
            told.as_ref().map_err(|error| anyhow::anyhow!("after {struck:?}: {error:#}"))?;
        }
        if let Err(error) = &told {
            let why = format!("{error:#}");
            let named =
                ["Input/output error", "Unreadable"].iter().any(|cause| why.contains(cause));
            ensure!(named, "the cause is not named: {why}");
        }
        let ends_all = struck.kind == RequestKind::Flush
            || struck.kind == RequestKind::Write && self.ends_journals(&told);
        let later = device.later_changes();
        ensure!(!ends_all || later.is_empty(), "after {struck:?} it wrote {later:?}");
        let unmounted = told.is_ok();
        let run = Run { trace: recorder.trace(), base: base.bytes.clone(), calls };
        for (number, crash) in losses(&run.trace).into_iter().enumerate() {
            if cannot_be(&run.trace, &crash) {
                continue;
            }
            let left = MemDevice::new(base.bytes.clone());
            run.trace.replay(&crash, &left)?;
            // The journal of a cube ended, and the others went on.
            let has_failed = unmounted && is_locked(&Layout::open(&left)?.superblock);
            recover(&left).context("recovered")?;
            run.told().judge(&tree_of(&left)?, usize::MAX).with_context(|| format!("{crash:?}"))?;
            if unmounted && !has_failed {
                let seen = &run.calls.last().context("a call")?.after;
                super::acts::same(&tree_of(&left)?, seen).map_err(anyhow::Error::msg)?;
            }
            if self.tears_superblock(struck) {
                continue;
            }
            mounted(&left, Limits::default(), |_| Ok(())).context("mounted again")?;
            judge_cubes(&left, by_e2fsck && number == 0).with_context(|| format!("{crash:?}"))?;
        }
        Ok(true)
    }
}

/// States of the device after its last request: all that was written arrived, nothing that no flush covers, or some of it.
fn losses(trace: &Trace) -> Vec<Crash> {
    let issued = trace.events.len();
    let open: Vec<usize> = (trace.durable_until(issued)..issued)
        .filter(|index| trace.events[*index] != Event::Flush)
        .collect();
    let mut all = vec![Crash::after(issued)];
    if !open.is_empty() {
        let lose = |each: &dyn Fn(usize) -> bool| Crash {
            lost: open.iter().copied().filter(|index| each(*index)).collect(),
            ..Crash::after(issued)
        };
        all.extend([lose(&|_| true), lose(&|at| at % 2 == 0), lose(&|at| at % 3 == 1)]);
    }
    all
}

/// Lets requests fail, `step` apart; returns how many did, and adds what went wrong.
fn strike_all(
    (on, strike, forgetful): (On, Strike, bool),
    from: u64,
    step: usize,
    wrong: &mut Vec<String>,
) -> u64 {
    let mut count = 0;
    let chosen = chosen();
    for at in (from..chosen.end).step_by(step).filter(|at| *at >= chosen.start) {
        let fault = Fault { on, at, strike, forgetful };
        match fault.judge(count % 16 == 1).with_context(|| format!("{fault:?}")) {
            Ok(true) => count += 1,
            Ok(false) => break,
            Err(error) => wrong.push(format!("{error:#}")),
        }
    }
    count
}

/// The requests that may fail: `FLOE_FAULT_AT`, as in `1300..1400`, or all.
fn chosen() -> Range<u64> {
    let Ok(range) = std::env::var("FLOE_FAULT_AT") else { return 0..u64::MAX };
    let ends = range.split_once("..").map(|(from, to)| (from.parse().ok(), to.parse().ok()));
    match ends {
        Some((Some(from), Some(to))) => from..to,
        _ => panic!("FLOE_FAULT_AT={range}: not like 1300..1400"),
    }
}

const STRIKES: [Strike; 3] = [Strike::Once, Strike::Half, Strike::ForGood];

#[test]
fn a_request_that_fails_ends_in_an_error_and_a_sound_file_system() {
    if tool::missing() {
        return;
    }
    let mut wrong = Vec::new();
    for on in [On::Stock, On::Native, On::Cubes] {
        for (number, strike) in (0..).zip(STRIKES) {
            let how = (on, strike, number == 1);
            let count = strike_all(how, 5 * number, 41, &mut wrong);
            eprintln!("{on:?}, {strike:?}: {count} requests");
            assert!(count > 4, "{count}");
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}

/// Each of thousands of requests, or one in `FLOE_FAULT_STEP`, or those of `FLOE_FAULT_AT`: `cargo xtask crash`.
#[test]
#[ignore = "minutes; run by cargo xtask crash"]
fn each_request_of_the_device_may_fail() {
    let mut wrong = Vec::new();
    let step = std::env::var("FLOE_FAULT_STEP").map_or(1, |step| step.parse().unwrap());
    for on in [On::Cubes, On::Stock, On::Native] {
        for (from, strike) in (0..).zip(STRIKES) {
            for forgetful in [false, true] {
                let count = strike_all((on, strike, forgetful), from, step, &mut wrong);
                eprintln!("{on:?}, {strike:?}, forgetful {forgetful}: {count} requests");
            }
        }
    }
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
}
