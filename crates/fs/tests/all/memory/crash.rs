//! Power that fails at every write of the whole stack: what `fsync` acknowledged is there, and nothing is half there.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use floe_blockdev::{Crash, Event, MemDevice, Recorder, SECTOR_BYTES, Trace, WriteBlocks};
use floe_disk::recovery::recover;
use floe_ext4::files::Files;
use floe_ext4::fs::FileSystem as Layout;
use floe_format::{GroupNr, InodeNr};
use floe_fs::{FsError, Image, Limits, Live, MemFs};
use floe_testkit::crash::{Effort, each_state, tears};

use super::acts::{Act, Seen, run, tree};
use super::live::{Base, base_of, judge, mounted};

pub(crate) type Tree = BTreeMap<String, Seen>;

/// A call that was made: events that had ended when it began and when it returned, and what programs saw then.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) began: usize,
    pub(crate) ended: usize,
    pub(crate) act: Act,
    pub(crate) done: bool,
    pub(crate) before: Tree,
    pub(crate) after: Tree,
}

/// A story that was told, and the writes of the device under it.
pub(crate) struct Run {
    pub(crate) trace: Trace,
    pub(crate) base: Vec<u8>,
    pub(crate) calls: Vec<Call>,
}

/// Lets a program make calls, and records what reaches the device. With `careless`, an fsync does nothing: the canary.
pub(crate) fn record(acts: &[Act], limits: Limits, careless: bool) -> Result<Run> {
    record_over(Base::Stock, acts, limits, careless)
}

/// The same over another kind of file system.
pub(crate) fn record_over(kind: Base, acts: &[Act], limits: Limits, careless: bool) -> Result<Run> {
    let base = base_of(kind);
    let recorder = Recorder::new(MemDevice::new(base.to_vec()));
    record_on(&recorder, base.to_vec(), acts, limits, |memory, turn, act| {
        let skipped = careless && matches!(act, Act::Fsync(_) | Act::Sync);
        let done = if skipped { Ok(()) } else { run(memory, turn, act) };
        if let Err(FsError::Ended(_) | FsError::Damaged { .. } | FsError::Lost { .. }) = &done {
            panic!("call {turn}, {act:?}: {done:?}");
        }
        done
    })
}

/// The same on a device that had `base` at the start, with `run` making the calls.
pub(crate) fn record_on<D: WriteBlocks>(
    recorder: &Recorder<D>,
    base: Vec<u8>,
    acts: &[Act],
    limits: Limits,
    run: impl Fn(&MemFs<Live<'_, '_, &Recorder<D>>>, u32, &Act) -> Result<(), FsError>,
) -> Result<Run> {
    record_through(recorder, recorder, base, acts, limits, run)
}

/// The same through a device over the recorder.
pub(crate) fn record_through<D: WriteBlocks, V: WriteBlocks>(
    device: V,
    recorder: &Recorder<D>,
    base: Vec<u8>,
    acts: &[Act],
    limits: Limits,
    run: impl Fn(&MemFs<Live<'_, '_, V>>, u32, &Act) -> Result<(), FsError>,
) -> Result<Run> {
    let calls = mounted(device, limits, |memory| {
        let mut calls = Vec::new();
        let mut before = tree(memory);
        for (turn, act) in (0..).zip(acts) {
            let began = recorder.count();
            let done = run(memory, turn, act);
            let (ended, after) = (recorder.count(), tree(memory));
            let (act, done) = (act.clone(), done.is_ok());
            let call = Call { began, ended, act, done, before, after: after.clone() };
            before = after;
            calls.push(call);
        }
        Ok(calls)
    })?;
    Ok(Run { trace: recorder.trace(), base, calls })
}

fn by_inode(tree: &Tree, inode: InodeNr) -> Option<&Seen> {
    tree.values().find(|seen| seen.inode == inode)
}

fn parent_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(above, _)| above)
}

/// Names in the directory with a number, and what they lead to.
fn names_of(tree: &Tree, directory: InodeNr) -> Option<BTreeMap<&str, InodeNr>> {
    let (path, _) = tree.iter().find(|(_, seen)| seen.inode == directory)?;
    let inside = tree.iter().filter(|(other, _)| *other != path && parent_of(other) == path);
    Some(inside.map(|(other, seen)| (&other[path.len() + 1..], seen.inode)).collect())
}

impl Run {
    /// Writes of certain bytes.
    pub(crate) fn count_writes(&self, of: impl Fn(&[u8]) -> bool) -> usize {
        let writes = self.trace.events.iter().filter_map(|event| match event {
            Event::Write { bytes, .. } => Some(bytes),
            Event::Flush => None,
        });
        writes.filter(|bytes| of(bytes)).count()
    }

    /// Calls that failed.
    pub(crate) fn failed(&self) -> usize {
        self.calls.iter().filter(|call| !call.done).count()
    }

    pub(crate) fn told(&self) -> Told<'_> {
        Told(&self.calls)
    }

    /// Every state of the run, recovered, judged, mounted again and checked; every `by_e2fsck`-th one by e2fsck.
    pub(crate) fn explore(&self, effort: Effort, by_e2fsck: usize) -> Result<usize> {
        let mut states = 0;
        let backups = backups_of(&self.base)?;
        each_state(&self.trace, &self.base, effort, |device, crash| {
            if cannot_be(&self.trace, crash) || tears_any(&self.trace, crash, &backups) {
                return Ok(());
            }
            states += 1;
            recover(&device)?;
            self.told().judge(&tree_of(&device)?, crash.issued)?;
            mounted(&device, Limits::default(), |_| Ok(()))?;
            judge(&device, states % by_e2fsck == 0)
        })?;
        Ok(states)
    }
}

/// The calls of a program, in their order.
#[derive(Clone, Copy)]
pub(crate) struct Told<'c>(pub(crate) &'c [Call]);

impl<'c> Told<'c> {
    /// Calls that a crash can have seen something of, from one on.
    fn possible(self, from: usize, issued: usize) -> impl Iterator<Item = &'c Call> {
        self.0[from..].iter().take_while(move |call| call.began <= issued)
    }

    /// Whether a file has content that it had after call `from`, or later, or a mixture of these: without fsync, content is
    /// written in any order.
    fn judge_content(self, found: &Seen, from: usize, issued: usize) -> Result<()> {
        let versions: Vec<&[u8]> = self
            .possible(from, issued)
            .filter_map(|call| by_inode(&call.after, found.inode))
            .map(|seen| &seen.bytes[..])
            .collect();
        let sizes = || versions.iter().map(|bytes| bytes.len());
        let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
        let size = found.bytes.len();
        ensure!((least..=most).contains(&size), "{size} bytes, not {least} to {most}");
        for (at, byte) in found.bytes.iter().enumerate() {
            let allowed = versions.iter().any(|bytes| bytes.get(at).unwrap_or(&0) == byte);
            ensure!(allowed, "byte {at} is {byte:#x}, which it never was since");
        }
        Ok(())
    }

    /// Whether an inode had a name all the time since a call.
    fn lives(self, inode: InodeNr, from: usize, issued: usize) -> bool {
        self.possible(from, issued).all(|call| by_inode(&call.after, inode).is_some())
    }

    /// Judges what a crash left.
    pub(crate) fn judge(self, found: &Tree, issued: usize) -> Result<()> {
        for (at, call) in self.0.iter().enumerate() {
            if call.began > issued {
                break;
            }
            let acknowledged = call.done && call.ended <= issued;
            match &call.act {
                Act::Fsync(path) if acknowledged => {
                    let path = format!("/{path}");
                    let seen = call.after.get(&path).context("it has a name")?;
                    self.judge_fsync(found, seen.inode, at, issued)
                        .and_then(|()| self.judge_path(found, &path, seen.inode, at, issued))
                        .with_context(|| format!("fsync of {path}, call {at}"))?;
                }
                Act::Sync if acknowledged => {
                    let all: BTreeSet<InodeNr> =
                        call.after.values().map(|seen| seen.inode).collect();
                    for inode in all {
                        self.judge_fsync(found, inode, at, issued)
                            .with_context(|| format!("sync, call {at}"))?;
                    }
                }
                Act::Rename(from, to) if call.done => {
                    self.judge_rename(found, call, (from, to), at, issued)
                        .with_context(|| format!("rename of {from} to {to}, call {at}"))?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn judge_fsync(self, found: &Tree, inode: InodeNr, at: usize, issued: usize) -> Result<()> {
        if !self.lives(inode, at, issued) {
            return Ok(());
        }
        let there = by_inode(found, inode);
        let there = there.with_context(|| format!("{inode} is lost"))?;
        if !there.state.starts_with("Directory") {
            return self.judge_content(there, at, issued);
        }
        let then = names_of(&self.0[at].after, inode).context("it is a directory")?;
        let now = names_of(found, inode).context("it is a directory")?;
        // Names that a later call gave or took.
        let touched = |name: &str| {
            self.possible(at + 1, issued).any(|call| {
                let name_in =
                    |tree| names_of(tree, inode).and_then(|names| names.get(name).copied());
                name_in(&call.before) != name_in(&call.after)
            })
        };
        for name in then.keys().chain(now.keys()) {
            let same = then.get(name) == now.get(name) || touched(name);
            ensure!(same, "{name} leads to {:?}, not {:?}", now.get(name), then.get(name));
        }
        Ok(())
    }

    /// A path that was made durable leads where it led, if no later call changed that.
    fn judge_path(
        self,
        found: &Tree,
        path: &str,
        inode: InodeNr,
        at: usize,
        issued: usize,
    ) -> Result<()> {
        let leads = |tree: &Tree| tree.get(path).map(|seen| seen.inode);
        if self.possible(at, issued).all(|call| leads(&call.after) == Some(inode)) {
            ensure!(leads(found) == Some(inode), "it leads to {:?}, not {inode}", leads(found));
        }
        Ok(())
    }

    /// A file that replaced another by rename has its content, wherever the name leads to it.
    fn judge_rename(
        self,
        found: &Tree,
        call: &Call,
        (from, to): (&str, &str),
        at: usize,
        issued: usize,
    ) -> Result<()> {
        let (from, to) = (format!("/{from}"), format!("/{to}"));
        let (Some(moved), Some(replaced)) = (call.before.get(&from), call.before.get(&to)) else {
            return Ok(());
        };
        let directory = call.before.get(parent_of(&to)).context("it has a directory")?.inode;
        let name = &to[parent_of(&to).len() + 1..];
        let leads = |tree: &Tree| names_of(tree, directory).and_then(|all| all.get(name).copied());
        let before = self.0[..at].iter().any(|call| leads(&call.after) == Some(moved.inode));
        if moved.inode == replaced.inode || before || leads(found) != Some(moved.inode) {
            return Ok(());
        }
        let there = by_inode(found, moved.inode).context("it is there")?;
        if there.state.starts_with("Regular") {
            self.judge_content(there, at, issued)?;
        }
        Ok(())
    }
}

pub(crate) fn tree_of(device: &MemDevice) -> Result<Tree> {
    let layout = Layout::open(device)?;
    let groups = layout.space.groups.descs().to_vec();
    let files = Files::new(device, layout.superblock.clone(), layout.geometry().clone(), groups);
    Ok(tree(&Image::new(&files)))
}

/// Bytes at which copies of the superblock begin, the first one aside.
pub(crate) fn backups_of(base: &[u8]) -> Result<Vec<u64>> {
    let layout = Layout::open(&MemDevice::new(base.to_vec()))?;
    let geo = layout.geometry();
    let blocks = (1..geo.group_count).filter_map(|group| geo.superblock_of(GroupNr(group)));
    Ok(blocks.map(|block| geo.offset_bytes(block)).collect())
}

/// Whether a crash tore one of these copies of the superblock, which is not expected either.
pub(crate) fn tears_any(trace: &Trace, crash: &Crash, copies: &[u64]) -> bool {
    copies.iter().any(|at| tears(trace, crash, *at..at + 1024))
}

/// Whether a crash tore a sector, or the superblock: neither is expected of devices (docs/journal.md).
pub(crate) fn cannot_be(trace: &Trace, crash: &Crash) -> bool {
    let torn_sector = crash.torn_bytes.is_some_and(|bytes| !bytes.is_multiple_of(SECTOR_BYTES));
    torn_sector || tears(trace, crash, 1024..2048)
}
