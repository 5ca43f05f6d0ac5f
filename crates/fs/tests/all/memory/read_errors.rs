//! One read of the device fails, each in turn, in each kind of call: that call says so, and the same call succeeds when it is made
//! again.

use anyhow::{Context, Result, bail, ensure};
use floe_blockdev::{FailsAt, MemDevice, RequestKind, Strike};
use floe_fs::{Disk, FsError, Limits, Live, MemFs, Store};
use floe_testkit::tool;

use super::acts::{Act, find, run, same, tree};
use super::crash::Tree;
use super::cubes::with_cubes;
use super::live::{Base, NOW, base_of};

/// A call that is made beside others that change nothing.
#[derive(Debug)]
enum Call {
    Act(Act),
    List(&'static str),
    /// The attributes of a name, and extended ones.
    Look(&'static str),
    Content(&'static str),
}

fn calls() -> Vec<Call> {
    let path = |path: &str| path.to_owned();
    let acts = [
        Act::Create(path("a/new")),
        Act::Mkdir(path("a/new")),
        Act::Symlink(path("a/new"), 100),
        Act::Link(path("a/name-07"), path("b/new")),
        Act::Unlink(path("a/name-11")),
        Act::Rmdir(path("b/e")),
        Act::Rename(path("a/name-13"), path("b/g")),
        Act::Rename(path("b/d"), path("a/d")),
        Act::Chmod(path("a/name-17"), 0o600),
        Act::Times(path("a/name-17"), 1000),
        Act::Write(path("b/g"), 100, 3000),
        Act::Truncate(path("b/g"), 1500),
        Act::Attribute(path("b/g"), 1, Some(20)),
        Act::Attribute(path("b/g"), 0, None),
        Act::Fsync(path("b")),
    ];
    let reads = [Call::List("a"), Call::Look("b/g"), Call::Content("b/g"), Call::Look("a/name-29")];
    acts.into_iter().map(Call::Act).chain(reads).collect()
}

impl Call {
    /// Makes it. The answer is what a program sees of it.
    fn make<S: Store>(&self, store: &S) -> Result<String, FsError> {
        Ok(match self {
            Self::Act(act) => {
                run(store, 99, act)?;
                String::new()
            }
            Self::List(path) => {
                let mut names = Vec::new();
                store.list(find(store, path)?, 0, &mut |listed| {
                    names.push(String::from_utf8_lossy(listed.name).into_owned());
                    true
                })?;
                names.join(" ")
            }
            Self::Look(path) => {
                let inode = find(store, path)?;
                let (found, more) = (store.attributes(inode)?, store.extended_attributes(inode)?);
                format!("{found:?} {more:?}")
            }
            Self::Content(path) => {
                let mut bytes = vec![0; 10_000];
                let len = store.read(find(store, path)?, 0, &mut bytes)?;
                format!("{:?}", &bytes[..len])
            }
        })
    }
}

/// The outcome of a call while a request fails.
enum Outcome {
    /// There are not so many requests.
    None,
    /// It is no read.
    Write,
    /// The answers of two tries, and the content of the disk afterwards.
    Read { first: Result<String, FsError>, second: Option<Result<String, FsError>>, left: Tree },
}

fn tried(before: &[u8], call: &Call, at: u64) -> Result<Outcome> {
    let device = MemDevice::new(before.to_vec());
    let failing = FailsAt::new(&device, at, Strike::Once);
    let (disk, volume) = Disk::open(&failing)?;
    let files = disk.files_of(&volume)?;
    let memory = MemFs::new(Live::new(&disk, &files, volume, NOW)?, Limits::default());
    failing.arm(true);
    let first = call.make(&memory);
    let struck = failing.struck();
    failing.arm(false);
    let second = first.is_err().then(|| call.make(&memory));
    // A waiting change meets the failure on its way to the disk, where that is its first read.
    failing.arm(true);
    let synced = memory.sync();
    let struck = struck.or(failing.struck());
    failing.arm(false);
    if struck.is_some_and(|struck| struck.kind != RequestKind::Read) {
        return Ok(Outcome::Write);
    }
    synced.context("sync")?;
    let left = tree(&memory);
    let (live, lost) = memory.finish()?;
    lost.context("lost")?;
    live.finish(NOW)?;
    disk.close()?;
    Ok(struck.map_or(Outcome::None, |_| Outcome::Read { first, second, left }))
}

/// Directories of several blocks, a file with a hole and an attribute.
fn filled(before: &[u8]) -> Vec<u8> {
    let device = MemDevice::new(before.to_vec());
    let path = |path: &str| path.to_owned();
    let mut acts = vec![Act::Mkdir(path("a")), Act::Mkdir(path("b")), Act::Mkdir(path("b/d"))];
    acts.extend((0..40).map(|number| Act::Create(format!("a/name-{number:02}"))));
    acts.extend((0..40).map(|number| {
        Act::Symlink(format!("a/a-name-that-fills-blocks-of-a-directory-{number:02}"), 5)
    }));
    acts.extend([
        Act::Mkdir(path("b/e")),
        Act::Create(path("b/g")),
        Act::Write(path("b/g"), 0, 2000),
        Act::Write(path("b/g"), 5000, 2000),
        Act::Attribute(path("b/g"), 0, Some(200)),
        Act::Sync,
    ]);
    super::live::mounted(&device, Limits::default(), |memory| {
        for (turn, act) in (0..).zip(&acts) {
            match run(memory, turn, act) {
                Err(FsError::Exists) => {}
                done => done.with_context(|| format!("{act:?}"))?,
            }
        }
        Ok(())
    })
    .unwrap();
    device.to_vec()
}

/// Lets each read of a call fail, or one in `step`; returns how many there were.
fn fail_each(before: &[u8], call: &Call, from: u64, step: usize) -> Result<u64> {
    let device = MemDevice::new(before.to_vec());
    let wanted = super::live::mounted(&device, Limits::default(), |memory| {
        let answer = match call.make(memory) {
            // Another cube.
            Err(FsError::CrossProject) => return Ok(None),
            answer => answer?,
        };
        memory.sync()?;
        Ok(Some((answer, tree(memory))))
    })?;
    let Some((answer, wanted)) = wanted else { return Ok(0) };
    let mut count = 0;
    for at in (from..).step_by(step) {
        let outcome = tried(before, call, at).with_context(|| format!("request {at}"))?;
        let (first, second, left) = match outcome {
            Outcome::None => break,
            Outcome::Write => continue,
            Outcome::Read { first, second, left } => (first, second, left),
        };
        count += 1;
        match (&first, &second) {
            (Ok(seen), None) => ensure!(*seen == answer, "request {at}: {seen}"),
            (Err(FsError::Unreadable { .. } | FsError::Io { .. }), Some(Ok(seen))) => {
                ensure!(*seen == answer, "request {at}, then: {seen}");
            }
            _ => bail!("request {at}: {first:?}, then {second:?}"),
        }
        same(&left, &wanted).map_err(anyhow::Error::msg).with_context(|| format!("{at}"))?;
    }
    Ok(count)
}

#[test]
fn a_read_that_fails_once_costs_one_call() {
    if tool::missing() {
        return;
    }
    let bases = [base_of(Base::Stock), base_of(Base::Native), with_cubes()];
    for (base, before) in bases.iter().enumerate() {
        let before = filled(before);
        let mut count = 0;
        // Samples, more of a stock file system.
        let step = if base == 0 { 3 } else { 9 };
        for (number, call) in (0..).zip(calls()) {
            let from = number % step as u64;
            count += fail_each(&before, &call, from, step).unwrap_or_else(|error| {
                panic!("base {base}, {call:?}: {error:#}");
            });
        }
        assert!(count > 10, "{count} reads");
    }
}
