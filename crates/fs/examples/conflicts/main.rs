//! Which pairs of calls that commute touch the same memory, so that two processors would have to pass it to each other:
//! `cargo xtask conflicts`, which builds this program instrumented and prints the meaning of its output.
//!
//! Each pair runs in a file system in memory of its own, over a disk that is a table: the calls that lead to the state, then
//! for each of two threads other calls elsewhere, then one call of the pair in each thread, one after the other. They
//! conflict if both touch the same line of 64 bytes and one writes it.

mod model;
mod pairs;
mod trace;

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use floe_format::InodeNr;
use floe_format::ext::inode::FileType;
use floe_fs::{
    Attributes, Caller, Change, FileSystem, FsError, Limits, MemFs, NewInode, NullDisk, Op, OpKind,
    Place, RenameMode, SeekFor, SetMode, now,
};
use floe_sync::atomic::{AtomicU64, Ordering};
use floe_sync::{Barrier, thread};

use model::{Call, Name, Outcome};
use pairs::{Pair, kind, pairs};
use trace::{Lines, Trace, conflicts};

/// Calls that lead to a state.
const DEPTH: usize = 2;
const PAGE_BYTES: usize = 4096;

type Fs = FileSystem<MemFs<NullDisk>>;

/// Where the calls of the model take place.
struct Stage {
    fs: Fs,
    directories: [InodeNr; 2],
    handles: [InodeNr; 2],
    /// A directory for each thread, for calls before those of the pair.
    elsewhere: [InodeNr; 2],
    /// The times of a file when the pair began.
    began: BTreeMap<u32, Attributes>,
}

const NAMES: [&[u8]; 3] = [b"a", b"b", b"c"];
const ATTRIBUTES: [&[u8]; 2] = [b"user.one", b"user.two"];

fn apply(fs: &Fs, kind: OpKind<'_>) -> Result<Option<Attributes>, FsError> {
    fs.apply(&Op { uid: 0, gid: 0, time: now(), kind })
}

fn make(fs: &Fs, directory: InodeNr, name: &[u8], new: NewInode<'_>) -> Result<InodeNr, FsError> {
    let place = Place { directory, name };
    let made = apply(fs, OpKind::Create { place, new })?.ok_or(FsError::NotFound)?;
    Ok(made.inode)
}

impl Stage {
    fn new() -> Result<Self, FsError> {
        let fs = FileSystem::new(MemFs::new(NullDisk::new(1 << 20, 1 << 24), Limits::default()));
        let directory =
            |name: &str| make(&fs, InodeNr::ROOT, name.as_bytes(), NewInode::directory(0o755));
        let directories = [directory("first")?, directory("second")?];
        let elsewhere = [directory("elsewhere")?, directory("somewhere")?];
        let file = |directory| make(&fs, directory, NAMES[0], NewInode::regular(0o644));
        let handles = [file(directories[0])?, file(directories[1])?];
        Ok(Self { fs, directories, handles, elsewhere, began: BTreeMap::new() })
    }

    fn begin(&mut self) -> Result<(), FsError> {
        for inode in self.handles.into_iter().chain(self.directories) {
            self.began.insert(inode.0, self.fs.attributes(inode)?);
        }
        Ok(())
    }

    fn place(&self, name: Name) -> Place<'static> {
        let directory = self.directories[usize::from(name.directory)];
        Place { directory, name: NAMES[usize::from(name.name)] }
    }

    /// Calls of each kind in the thread's own directory, so that what is done once for all is done.
    fn warm(&self, thread: usize) -> Result<(), FsError> {
        let (fs, directory) = (&self.fs, self.elsewhere[thread]);
        let place = |name: &'static [u8]| Place { directory, name };
        let inode = make(fs, directory, b"a", NewInode::regular(0o644))?;
        make(fs, directory, b"d", NewInode::directory(0o755))?;
        apply(fs, OpKind::RemoveDirectory(place(b"d")))?;
        make(fs, directory, b"d", NewInode::directory(0o755))?;
        apply(fs, OpKind::Link { inode, place: place(b"b") })?;
        let (from, to, mode) = (place(b"b"), place(b"c"), RenameMode::Replace);
        apply(fs, OpKind::Rename { from, to, mode })?;
        apply(fs, OpKind::Unlink(place(b"c")))?;
        apply(fs, OpKind::Write { inode, offset_bytes: 0, bytes: &[1; 2 * PAGE_BYTES] })?;
        self.truncate(inode, 1)?;
        fs.read(inode, 0, &mut [0; PAGE_BYTES])?;
        fs.look_up(&Caller::Judged, directory, b"a")?;
        fs.list(&Caller::Judged, directory, 0, |_| true)?;
        fs.attributes(inode).map(drop)
    }

    fn truncate(&self, inode: InodeNr, pages: usize) -> Result<(), FsError> {
        let size_bytes = Some((pages * PAGE_BYTES) as u64);
        apply(&self.fs, OpKind::Change { inode, size_bytes, change: Change::default() }).map(drop)
    }

    fn status(&self, inode: InodeNr) -> Result<Outcome, FsError> {
        let now = self.fs.attributes(inode)?;
        let before = self.began.get(&inode.0);
        let touched = before.is_none_or(|was| (was.mtime, was.ctime) != (now.mtime, now.ctime));
        let is_file = self.handles.contains(&inode);
        let pages = if is_file { now.size_bytes / PAGE_BYTES as u64 } else { 0 };
        Ok(Outcome::Status { links: now.links as u8, pages: pages as u8, touched })
    }

    fn found(&self, inode: InodeNr, is_directory: bool) -> Outcome {
        let handle = self.handles.iter().position(|handle| *handle == inode);
        Outcome::Found(handle.map_or(2 + u8::from(is_directory), |handle| handle as u8))
    }

    /// Makes a call.
    #[expect(clippy::too_many_lines, reason = "an arm for each call")]
    fn call(&self, call: Call) -> Result<Outcome, FsError> {
        let fs = &self.fs;
        let handle = |which: u8| self.handles[usize::from(which)];
        let at = |page: u8| u64::from(page) * PAGE_BYTES as u64;
        let attribute = |which: u8| ATTRIBUTES[usize::from(which)];
        match call {
            Call::Open(name) => {
                let place = self.place(name);
                let (inode, kind) = fs.resolve(&Caller::Judged, place.directory, place.name)?;
                return Ok(self.found(inode, kind == FileType::Directory));
            }
            Call::Create(name) => {
                let (place, new) = (self.place(name), NewInode::regular(0o644));
                apply(fs, OpKind::Create { place, new })?;
            }
            Call::Mkdir(name) => {
                let (place, new) = (self.place(name), NewInode::directory(0o755));
                apply(fs, OpKind::Create { place, new })?;
            }
            Call::Link(which, name) => {
                let (inode, place) = (handle(which), self.place(name));
                apply(fs, OpKind::Link { inode, place })?;
            }
            Call::Unlink(name) => drop(apply(fs, OpKind::Unlink(self.place(name)))?),
            Call::Rmdir(name) => drop(apply(fs, OpKind::RemoveDirectory(self.place(name)))?),
            Call::Rename(from, to) => {
                let (from, to) = (self.place(from), self.place(to));
                apply(fs, OpKind::Rename { from, to, mode: RenameMode::Replace })?;
            }
            Call::Stat(which) => return self.status(handle(which)),
            Call::StatDirectory(which) => {
                return self.status(self.directories[usize::from(which)]);
            }
            Call::Read(which, page) => {
                let mut bytes = [0xee; PAGE_BYTES];
                let len = fs.read(handle(which), at(page), &mut bytes)?;
                return Ok(Outcome::Bytes((len > 0).then(|| bytes[len - 1])));
            }
            Call::Write(which, page, value) => {
                let (inode, offset_bytes) = (handle(which), at(page));
                let bytes = &[value; PAGE_BYTES];
                apply(fs, OpKind::Write { inode, offset_bytes, bytes })?;
            }
            Call::Truncate(which, pages) => self.truncate(handle(which), usize::from(pages))?,
            Call::Seek(which, page) => {
                let end = fs.seek(handle(which), at(page), SeekFor::Hole)?;
                return Ok(Outcome::At((end / PAGE_BYTES as u64) as u8));
            }
            Call::List(which) => {
                let mut names = 0;
                fs.list(&Caller::Judged, self.directories[usize::from(which)], 0, |listed| {
                    let bit = NAMES.iter().position(|name| *name == listed.name);
                    names |= bit.map_or(0, |bit| 1 << bit);
                    true
                })?;
                return Ok(Outcome::Names(names));
            }
            Call::GetAttribute(which, one) => {
                let value = fs.extended_attribute(handle(which), attribute(one))?;
                return Ok(Outcome::Value(value.first().copied().unwrap_or_default()));
            }
            Call::SetAttribute(which, one, value) => {
                let (inode, name, mode) = (handle(which), attribute(one), SetMode::Any);
                apply(fs, OpKind::SetAttribute { inode, name, value: &[value], mode })?;
            }
            Call::RemoveAttribute(which, one) => {
                let (inode, name) = (handle(which), attribute(one));
                apply(fs, OpKind::RemoveAttribute { inode, name })?;
            }
            Call::Fsync(which) => fs.sync_inode(handle(which), None)?,
            Call::FsyncDirectory(which) => {
                fs.sync_inode(self.directories[usize::from(which)], None)?;
            }
            Call::Sync => fs.sync()?,
        }
        Ok(Outcome::Done)
    }

    fn outcome(&self, call: Call) -> Result<Outcome, FsError> {
        match self.call(call) {
            Err(FsError::NotFound | FsError::PastEnd | FsError::NoAttribute) => {
                Ok(Outcome::Missing)
            }
            Err(FsError::Exists) => Ok(Outcome::Exists),
            Err(FsError::IsADirectory) => Ok(Outcome::IsDirectory),
            Err(FsError::NotADirectory) => Ok(Outcome::NotDirectory),
            other => other,
        }
    }
}

/// Runs a pair. Returns the code by which it conflicts.
fn run(pair: &Pair, traces: &[Trace; 2]) -> Result<Vec<[u64; 2]>> {
    let mut stage = Stage::new()?;
    for call in &pair.before {
        stage.outcome(*call)?;
    }
    stage.begin()?;
    let (stage, barrier) = (&stage, &Barrier::new(2));
    let worker = |thread: usize| -> Result<(Outcome, Lines)> {
        let mut warm = Ok(());
        for turn in 0..2 {
            if turn == thread {
                warm = stage.warm(thread);
            }
            barrier.wait();
        }
        let mut traced = None;
        for turn in 0..2 {
            if turn == thread {
                traced = Some(traces[thread].record(|| stage.outcome(pair.calls[thread])));
            }
            barrier.wait();
        }
        warm.context("calls elsewhere")?;
        let (outcome, lines) = traced.context("no turn")?;
        Ok((outcome?, lines))
    };
    let (one, other) = thread::scope(|scope| {
        let (one, other) = (scope.spawn(|| worker(0)), scope.spawn(|| worker(1)));
        (one.join(), other.join())
    });
    let joined = |done: thread::Result<Result<(Outcome, Lines)>>| {
        done.map_err(|_| anyhow::anyhow!("a thread panicked"))?
    };
    let ((first, one), (second, other)) = (joined(one)?, joined(other)?);
    ensure!([first, second] == pair.outcomes, "the results are {first:?} and {second:?}");
    Ok(conflicts(&one, &other))
}

/// A counter that two threads share must be found.
fn canary(traces: &[Trace; 2]) -> bool {
    let counter = AtomicU64::new(0);
    let [one, other] =
        traces.each_ref().map(|trace| trace.record(|| counter.fetch_add(1, Ordering::SeqCst)).1);
    !conflicts(&one, &other).is_empty()
}

fn main() -> Result<()> {
    let traces = [Trace::new(), Trace::new()];
    ensure!(canary(&traces), "nothing is recorded: run this by `cargo xtask conflicts`");
    for pair in pairs(DEPTH) {
        let met = run(&pair, &traces).with_context(|| format!("{pair:?}"))?;
        let [one, other] = pair.calls.map(kind);
        let codes: Vec<String> = met.iter().map(|[a, b]| format!("{a:x},{b:x}")).collect();
        println!("{one}\t{other}\t{}\t{:?}\t{}", met.len(), pair, codes.join(" "));
    }
    Ok(())
}
