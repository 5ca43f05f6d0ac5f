//! Runs on file systems whose parts become durable apart from each other, because each has a journal: recorded, and judged after
//! every crash, and after every crash of the recovery that follows.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use floe_blockdev::{Crash, MemDevice, Overlay, ReadBlocks, Recorder, Trace, WriteBlocks};
use floe_check::{CheckOptions, check};
use floe_disk::journal::{Dependencies, take_over};
use floe_disk::recovery::recover;
use floe_ext4::fs::FileSystem;
use floe_ext4::journal;
use floe_format::GroupNr;
use floe_testkit::crash::{Effort, each_state, tears};
use floe_testkit::{Image, oracle, tool};

use crate::journal_ops::{Mounted, Tree, unmount};
use crate::traced::located;

/// The parts of a file system, by name, and how their trees are read.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) names: Vec<String>,
    pub(crate) of: fn(&dyn ReadBlocks, &[String]) -> Result<Vec<Tree>>,
    pub(crate) dependencies: Dependencies,
}

impl Parts {
    pub(crate) fn on(&self, device: &dyn ReadBlocks) -> Result<Vec<Tree>> {
        (self.of)(device, &self.names)
    }
}

/// A recorded run.
pub(crate) struct Run {
    /// The image before it.
    pub(crate) image: Vec<u8>,
    pub(crate) trace: Trace,
    parts: Parts,
    /// Bytes at which backups of the superblock begin.
    backups: Vec<u64>,
    /// By part: what there was after each change of it, and how many events had ended when that began.
    history: Vec<Vec<(usize, Tree)>>,
    /// By part: numbers of events, and the state that was acknowledged by then.
    acknowledged: Vec<Vec<(usize, usize)>>,
}

pub(crate) struct Recording<'r, D: WriteBlocks> {
    pub(crate) mounted: Mounted<D>,
    recorder: &'r Recorder<MemDevice>,
    parts: Parts,
    history: Vec<Vec<(usize, Tree)>>,
    acknowledged: Vec<Vec<(usize, usize)>>,
}

impl<'r, D: WriteBlocks> Recording<'r, D> {
    pub(crate) fn new(recorder: &'r Recorder<MemDevice>, device: D, parts: &Parts) -> Self {
        let mounted = Mounted::new(device).unwrap();
        mounted.journal.set_dependencies(parts.dependencies);
        let now = parts.on(&mounted.journal).unwrap();
        let history = now.into_iter().map(|tree| vec![(0, tree)]).collect();
        let acknowledged = vec![vec![(0, 0)]; parts.names.len()];
        Self { mounted, recorder, parts: parts.clone(), history, acknowledged }
    }

    pub(crate) fn act(&mut self, act: impl FnOnce(&mut Mounted<D>)) {
        let began = self.recorder.trace().events.len();
        act(&mut self.mounted);
        let now = self.parts.on(&self.mounted.journal).unwrap();
        for (known, tree) in self.history.iter_mut().zip(now) {
            if known.last().unwrap().1 != tree {
                known.push((began, tree));
            }
        }
    }

    /// An fsync of a part has ended.
    pub(crate) fn acknowledge(&mut self, part: usize) {
        let state = self.history[part].len() - 1;
        let events = self.recorder.trace().events.len();
        self.acknowledged[part].push((events, state));
    }

    pub(crate) fn end(mut self, image: &[u8]) -> Run {
        self.mounted.sync();
        (0..self.history.len()).for_each(|part| self.acknowledge(part));
        unmount(self.mounted).unwrap();
        let (trace, backups) = (self.recorder.trace(), backups(self.recorder));
        let Self { parts, history, acknowledged, .. } = self;
        Run { image: image.to_vec(), trace, parts, backups, history, acknowledged }
    }
}

/// Bytes at which backups of the superblock begin.
pub(crate) fn backups(device: &dyn ReadBlocks) -> Vec<u64> {
    let fs = FileSystem::open(device).unwrap();
    let geo = fs.geometry();
    let backups = (1..geo.group_count).filter_map(|group| geo.superblock_of(GroupNr(group)));
    backups.map(|block| geo.offset_bytes(block)).collect()
}

/// Whether a crash tore a sector, the superblock or a backup of it: none of these is expected of devices (docs/journal.md).
pub(crate) fn cannot_be(trace: &Trace, crash: &Crash, backups: &[u64]) -> bool {
    crate::journal_ops::cannot_be(trace, crash)
        || backups.iter().any(|at| tears(trace, crash, *at..at + 1024))
}

pub(crate) fn options() -> CheckOptions<'static> {
    CheckOptions { threads: 1, ..CheckOptions::default() }
}

/// A check finds nothing but orphans, which the next mount deletes.
pub(crate) fn sound(device: &dyn ReadBlocks) -> Result<()> {
    let report = check(device, &options())?;
    let others: Vec<_> =
        report.found.iter().filter(|one| !one.row().id.contains("orphan")).collect();
    ensure!(others.is_empty(), "{others:?}");
    Ok(())
}

pub(crate) fn e2fsck_finds_nothing(device: &MemDevice) -> Result<()> {
    if tool::missing() {
        return Ok(());
    }
    let image = Image::of(&device)?;
    let verdict = oracle::run(image.path(), &["-fn"])?;
    ensure!(verdict.clean() && verdict.problems.is_empty(), "{}", verdict.text);
    Ok(())
}

/// Whether no two logs would write the same block home: then whoever replays them may begin with any.
pub(crate) fn logs_are_apart(device: &dyn ReadBlocks) -> Result<()> {
    let fs = FileSystem::open(device)?;
    let geo = fs.geometry();
    let found = journal::find_cubes(device, &fs.superblock, geo, fs.space.groups.descs());
    let logs = found.usable.into_iter().map(|own| own.journal).chain([located(device)]);
    let mut owners = BTreeMap::new();
    for (log, journal) in logs.enumerate() {
        let staged = Overlay::new(device, geo.block_size);
        let pass = journal::replay_into(&staged, geo, &journal, None);
        ensure!(!pass.failed, "{:?}", pass.events);
        let size = geo.block_size as usize;
        let ranges = staged.staged_ranges();
        for at in ranges.into_iter().flat_map(|range| (range.start..range.end).step_by(size)) {
            let other = owners.insert(at, log);
            ensure!(other.is_none(), "log {log} and log {other:?} have block {}", at / size as u64);
        }
    }
    Ok(())
}

impl Run {
    pub(crate) fn cannot_be(&self, crash: &Crash) -> bool {
        cannot_be(&self.trace, crash, &self.backups)
    }

    pub(crate) fn judge(&self, device: &dyn ReadBlocks, ended: usize) -> Result<()> {
        for (part, found) in self.parts.on(device)?.into_iter().enumerate() {
            let after = self.acknowledged[part].iter().take_while(|(events, _)| *events <= ended);
            let least = after.last().map_or(0, |(_, state)| *state);
            let history = &self.history[part];
            let mut possible = history[least..].iter().take_while(|(began, _)| *began <= ended);
            ensure!(
                possible.any(|(_, tree)| *tree == found),
                "{}: neither state {least} nor a later one: {:?}",
                self.parts.names[part],
                found.keys()
            );
        }
        Ok(())
    }

    /// Every `one_in`-th state, recovered; every `deep`-th of those recoveries is cut off everywhere, too.
    pub(crate) fn explore(&self, effort: Effort, one_in: usize, deep: usize) -> Result<usize> {
        let (mut at, mut nested) = (0, 0);
        let states = each_state(&self.trace, &self.image, effort, |device, crash| {
            at += 1;
            if at % one_in != 0 || self.cannot_be(crash) {
                return Ok(());
            }
            if self.parts.dependencies == Dependencies::Awaited {
                logs_are_apart(&device)?;
            }
            if at % one_in.saturating_mul(deep) == 0 {
                nested += self.cut_recovery_off(&device, crash.issued)?;
            }
            if at % (one_in * 5) == 0 {
                // With all journals in memory.
                sound(&device).context("checked before recovery")?;
                let taken = device.clone();
                take_over(&taken, &Default::default())?;
                self.judge(&taken, crash.issued).context("taken over")?;
            }
            recover(&device)?;
            self.judge(&device, crash.issued)?;
            let device = unmount(Mounted::new(device)?)?;
            self.judge(&device, crash.issued).context("mounted again")?;
            let report = check(&device, &options())?;
            ensure!(report.is_clean(), "{:?}", report.found);
            if at % (one_in * 9) == 0 {
                e2fsck_finds_nothing(&device)?;
            }
            Ok(())
        })?;
        Ok(states + nested)
    }

    fn cut_recovery_off(&self, crashed: &MemDevice, ended: usize) -> Result<usize> {
        let crashed = crashed.to_vec();
        let recorder = Recorder::new(MemDevice::new(crashed.clone()));
        recover(&recorder)?;
        let trace = recorder.trace();
        let effort = Effort { random_per_epoch: 1, seed: 5 };
        each_state(&trace, &crashed, effort, |device, crash| {
            if cannot_be(&trace, crash, &self.backups) {
                return Ok(());
            }
            recover(&device)?;
            self.judge(&device, ended)?;
            sound(&device)
        })
        .context("while recovery was cut off")
    }
}
