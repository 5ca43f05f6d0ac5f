//! A load whose files tell how much of it is on the disk.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use rustix::fs::{AtFlags, Mode, OFlags, linkat, openat, renameat, unlinkat};

/// Bytes of a record of the log.
const RECORD_BYTES: u64 = 1000;
/// Files that a worker keeps before it removes its oldest.
const MOST_FILES: u64 = 40;

/// How far a worker has come. Each count only grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    /// Files `f0`, `f1` ... that were made, each with one fsync.
    made: u64,
    /// Those of them, from `f0` on, that were removed.
    removed: u64,
    /// Files `loose0` ... that were made without fsync.
    loose: u64,
    /// Bytes of `log`, which grows by records.
    logged_bytes: u64,
    /// Files `t0`, `t1` ... that got their name after their content, each with one fsync: of the file or of the folder.
    unnamed: u64,
    /// Number in `replaced`, which each version replaces by rename; 0: it was never made.
    version: u64,
}

/// One thread's part of the load, in a folder of its own. It works below an open folder, so that it
/// can go on in a mount that has left the tree.
pub(super) struct Worker {
    folder: OwnedFd,
    number: u64,
    /// Calls that have begun.
    pub(super) begun: State,
    /// Calls that have returned.
    pub(super) done: State,
    /// Calls that an fsync has covered.
    pub(super) durable: State,
}

impl Worker {
    /// Makes the folder of a worker below `top`.
    pub(super) fn new(top: &Path, number: u64) -> Result<Self> {
        let path = top.join(number.to_string());
        fs::create_dir(&path)?;
        let folder = File::open(&path)?;
        folder.sync_all()?;
        let (begun, done, durable) = Default::default();
        Ok(Self { folder: folder.into(), number, begun, done, durable })
    }

    /// Works until `stop`, or until a call fails.
    pub(super) fn run(&mut self, mut stop: impl FnMut() -> bool) -> io::Result<()> {
        while !stop() {
            self.make()?;
            self.append()?;
            self.replace()?;
            self.make_loose()?;
            self.make_unnamed()?;
            if self.done.made > self.done.removed + MOST_FILES {
                self.remove()?;
            }
        }
        Ok(())
    }

    fn open(&self, name: &str, flags: OFlags) -> io::Result<File> {
        let flags = flags | OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
        Ok(openat(&self.folder, name, flags, Mode::from_raw_mode(0o644))?.into())
    }

    fn sync_folder(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(&self.folder)?)
    }

    fn make(&mut self) -> io::Result<()> {
        let number = self.done.made;
        self.begun.made += 1;
        let mut file = self.open(&format!("f{number}"), OFlags::EXCL)?;
        file.write_all(&content(self.number, number))?;
        self.done.made += 1;
        file.sync_all()?;
        self.durable.made += 1;
        Ok(())
    }

    /// Every second one is made durable before it has a name, and its folder behind that.
    fn make_unnamed(&mut self) -> io::Result<()> {
        let number = self.done.unnamed;
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&self.folder, ".", flags, Mode::from_raw_mode(0o600))?;
        let mut file = File::from(file);
        file.write_all(&content(self.number, number))?;
        if number.is_multiple_of(2) {
            file.sync_all()?;
        }
        self.begun.unnamed += 1;
        linkat(&file, "", &self.folder, format!("t{number}"), AtFlags::EMPTY_PATH)?;
        self.done.unnamed += 1;
        if number.is_multiple_of(2) {
            self.sync_folder()?;
        } else {
            file.sync_all()?;
        }
        self.durable.unnamed += 1;
        Ok(())
    }

    /// Removes the oldest file, which stays open for a moment, as temporary files do.
    fn remove(&mut self) -> io::Result<()> {
        let name = format!("f{}", self.done.removed);
        let open = self.open(&name, OFlags::empty())?;
        self.begun.removed += 1;
        unlinkat(&self.folder, &name, AtFlags::empty())?;
        self.done.removed += 1;
        self.sync_folder()?;
        self.durable.removed += 1;
        drop(open);
        Ok(())
    }

    fn append(&mut self) -> io::Result<()> {
        let mut log = self.open("log", OFlags::APPEND)?;
        for _ in 0..3 {
            let from = self.done.logged_bytes;
            self.begun.logged_bytes += RECORD_BYTES;
            log.write_all(&logged(self.number, from, RECORD_BYTES))?;
            self.done.logged_bytes += RECORD_BYTES;
        }
        log.sync_data()?;
        self.durable.logged_bytes = self.done.logged_bytes;
        Ok(())
    }

    /// Every second version is renamed without an fsync before it, as careless programs do. The first one replaces
    /// nothing, so that nobody promises its content without fsync.
    fn replace(&mut self) -> io::Result<()> {
        let version = self.done.version + 1;
        let mut file = self.open("new", OFlags::TRUNC)?;
        file.write_all(&versioned(version))?;
        if version == 1 || version.is_multiple_of(2) {
            file.sync_all()?;
        }
        drop(file);
        self.begun.version = version;
        renameat(&self.folder, "new", &self.folder, "replaced")?;
        self.done.version = version;
        if version.is_multiple_of(3) {
            self.sync_folder()?;
            self.durable.version = version;
        }
        Ok(())
    }

    fn make_loose(&mut self) -> io::Result<()> {
        let number = self.done.loose;
        self.begun.loose += 1;
        let mut file = self.open(&format!("loose{number}"), OFlags::EXCL)?;
        file.write_all(&content(self.number, number))?;
        self.done.loose += 1;
        Ok(())
    }
}

/// The content of a file, 1 to 20,000 bytes.
fn content(worker: u64, number: u64) -> Vec<u8> {
    let len_bytes = 1 + number.wrapping_mul(7919) % 20_000;
    logged(worker ^ number << 8, number, len_bytes)
}

/// Bytes of a log from a place on: numbers that depend on the place.
fn logged(worker: u64, from: u64, len_bytes: u64) -> Vec<u8> {
    let byte =
        |at: u64| (at.wrapping_add(worker << 7).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    (from..from + len_bytes).map(byte).collect()
}

fn versioned(version: u64) -> Vec<u8> {
    version.to_le_bytes().repeat(512 * (1 + (version % 3) as usize))
}

/// Compares the folder of a worker below `top` with what it did: at least `least`, at most `most`.
///
/// # Errors
/// The first file that is lost, incomplete, or there although it was removed.
pub(super) fn verify(top: &Path, worker: u64, least: &State, most: &State) -> Result<()> {
    let folder = top.join(worker.to_string());
    let read = |name: &str| -> Result<Option<Vec<u8>>> {
        let mut bytes = Vec::new();
        match OpenOptions::new().read(true).open(folder.join(name)) {
            Ok(mut file) => file.read_to_end(&mut bytes).with_context(|| name.to_owned())?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| name.to_owned()),
        };
        Ok(Some(bytes))
    };
    for number in 0..most.made {
        let found = read(&format!("f{number}"))?;
        let complete = found.as_ref() == Some(&content(worker, number));
        let must_be_there = number < least.made && number >= most.removed;
        ensure!(!must_be_there || found.is_some(), "file {number} of worker {worker} is lost");
        ensure!(
            number >= least.made || complete || found.is_none(),
            "file {number} of worker {worker} is incomplete"
        );
        ensure!(
            number >= least.removed || found.is_none(),
            "file {number} of worker {worker} is there again"
        );
    }
    for number in 0..least.loose {
        let complete = read(&format!("loose{number}"))? == Some(content(worker, number));
        ensure!(complete, "file loose{number} of worker {worker} is lost or incomplete");
    }
    for number in 0..most.unnamed {
        let found = read(&format!("t{number}"))?;
        let whole = found.as_ref() == Some(&content(worker, number));
        let ok = whole || number >= least.unnamed && found.is_none();
        // The name of one that was not made durable may be there before its content.
        let ok = ok || number >= least.unnamed && !number.is_multiple_of(2);
        ensure!(ok, "file t{number} of worker {worker} is lost or incomplete");
    }
    let log = read("log")?.unwrap_or_default();
    let (len, expected) = (log.len() as u64, logged(worker, 0, log.len() as u64));
    let (from, to) = (least.logged_bytes, most.logged_bytes);
    ensure!(from <= len && len <= to, "the log of worker {worker} has {len} bytes: {from} to {to}");
    ensure!(log == expected, "the log of worker {worker} has wrong bytes");
    let Some(replaced) = read("replaced")? else {
        ensure!(least.version == 0, "`replaced` of worker {worker} is lost");
        return Ok(());
    };
    let Some(&version) = replaced.first_chunk() else {
        bail!("`replaced` of worker {worker} is empty")
    };
    let version = u64::from_le_bytes(version);
    ensure!(
        (least.version..=most.version).contains(&version) && replaced == versioned(version),
        "`replaced` of worker {worker} has version {version}, {} bytes: {} to {}",
        replaced.len(),
        least.version,
        most.version
    );
    Ok(())
}
