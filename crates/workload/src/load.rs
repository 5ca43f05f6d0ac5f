//! A random load on a mounted file system: several threads create, write, truncate, link, rename
//! and remove in one small namespace, so that they contend.

use std::collections::VecDeque;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{CWD, FallocateFlags, FileType, Mode, OFlags, XattrFlags};

use floe_testkit::rng::Rng;

/// Directories of the namespace, partly nested.
const FOLDERS: u64 = 12;
/// Names in each directory.
const NAMES: u64 = 90;
/// Files that a thread keeps open, unlinked or not: an unlinked one is an orphan after a power
/// failure.
const OPEN_FILES: usize = 8;

/// Runs the load on `folder` until `stop`; returns the number of operations that succeeded.
///
/// Single operations may fail (no such file, no space, a shut-down file system); that is part of
/// the load.
pub fn run(folder: &Path, seed: u64, threads: u64, stop: &AtomicBool) -> u64 {
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let done = &done;
            scope.spawn(move || {
                let mut worker = Worker {
                    folder,
                    rng: Rng::new(seed ^ thread.wrapping_mul(0x5851_f42d_4c95_7f2d)),
                    open: VecDeque::new(),
                };
                while !stop.load(Ordering::Relaxed) {
                    if worker.operation().is_ok() {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    done.into_inner()
}

/// Opens without blocking, because a name may be a FIFO without a peer.
fn opening() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32);
    options
}

struct Worker<'a> {
    folder: &'a Path,
    rng: Rng,
    open: VecDeque<File>,
}

impl Worker<'_> {
    fn folder(&mut self) -> PathBuf {
        match self.rng.below(FOLDERS) {
            0 => self.folder.to_owned(),
            number @ 1..=6 => self.folder.join(format!("folder-{number}")),
            number => self.folder.join(format!("folder-{}/inner-{number}", number - 6)),
        }
    }

    fn name(&mut self) -> PathBuf {
        let number = self.rng.below(NAMES);
        // Long names fill directories; short ones fit inline.
        let name = match number % 3 {
            0 => format!("{number:x<120}"),
            1 => format!("name-{number}"),
            _ => number.to_string(),
        };
        self.folder().join(name)
    }

    fn operation(&mut self) -> io::Result<()> {
        match self.rng.below(30) {
            0..=1 => fs::create_dir(self.folder()),
            2 => fs::create_dir(self.name()),
            3 => fs::remove_dir(self.name()),
            4 if self.rng.chance(10) => fs::remove_dir_all(self.folder().join("name-1")),
            4..=10 => self.write(),
            11..=12 => self.truncate(),
            13..=17 => fs::remove_file(self.name()),
            18..=20 => fs::rename(self.name(), self.name()),
            21 => fs::hard_link(self.name(), self.name()),
            22 => {
                let len = if self.rng.chance(2) { 20 } else { 150 };
                symlink("t".repeat(len), self.name())
            }
            23..=24 => self.attribute(),
            25 => self.special_file(),
            26 => self.allocate(),
            27 => self.keep_open(),
            28 => fs::set_permissions(
                self.name(),
                std::os::unix::fs::PermissionsExt::from_mode(0o600 | self.rng.below(0o200) as u32),
            ),
            _ => opening().read(true).open(self.name())?.sync_all(),
        }
    }

    fn write(&mut self) -> io::Result<()> {
        let file = opening().create(true).truncate(false).write(true).open(self.name())?;
        let most = if self.rng.chance(4) { 30_000 } else { 600 };
        let mut bytes = vec![0; 1 + self.rng.index(most)];
        self.rng.fill(&mut bytes);
        // At the end, or after a hole.
        let at = if self.rng.chance(2) { file.metadata()?.len() } else { self.rng.below(200_000) };
        file.write_all_at(&bytes, at.min(400_000))
    }

    fn truncate(&mut self) -> io::Result<()> {
        let file = opening().write(true).open(self.name())?;
        let most = if self.rng.chance(2) { 100 } else { 150_000 };
        file.set_len(self.rng.below(most))
    }

    fn attribute(&mut self) -> io::Result<()> {
        let name = format!("user.number-{}", self.rng.below(4));
        if self.rng.chance(3) {
            return Ok(rustix::fs::lremovexattr(self.name(), name)?);
        }
        let len = if self.rng.chance(3) { 700 } else { 20 };
        let mut value = vec![0; 1 + self.rng.index(len)];
        // Few values, so that files share attribute blocks.
        value.fill(self.rng.below(3) as u8);
        Ok(rustix::fs::lsetxattr(self.name(), name, &value, XattrFlags::empty())?)
    }

    fn special_file(&mut self) -> io::Result<()> {
        let kinds = [FileType::Fifo, FileType::Socket, FileType::CharacterDevice];
        let kind = self.rng.pick(&kinds).copied().unwrap_or(FileType::Fifo);
        let path = self.name();
        let path = CString::new(path.as_os_str().as_encoded_bytes())?;
        let device = rustix::fs::makedev(5, self.rng.below(300) as u32);
        Ok(rustix::fs::mknodat(CWD, &path, kind, Mode::RUSR, device)?)
    }

    /// Preallocates blocks, or punches a hole.
    fn allocate(&mut self) -> io::Result<()> {
        let file = opening().write(true).open(self.name())?;
        let flags = match self.rng.below(3) {
            0 => FallocateFlags::empty(),
            1 => FallocateFlags::KEEP_SIZE,
            _ => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        };
        Ok(rustix::fs::fallocate(
            &file,
            flags,
            self.rng.below(100_000),
            1 + self.rng.below(50_000),
        )?)
    }

    /// Opens a file, sometimes unlinks it, and closes the oldest open one.
    fn keep_open(&mut self) -> io::Result<()> {
        let path = self.name();
        let file = opening().create(true).truncate(false).write(true).open(&path)?;
        file.write_all_at(b"still open", self.rng.below(50_000))?;
        self.open.push_back(file);
        if self.open.len() > OPEN_FILES {
            self.open.pop_front();
        }
        if self.rng.chance(2) { fs::remove_file(path) } else { Ok(()) }
    }
}
