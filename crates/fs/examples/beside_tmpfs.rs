//! Calls of the file system in memory, in process over a disk that is a table, beside the same ones of tmpfs through system
//! calls; used by `cargo xtask fs-speed`:
//!
//! ```text
//! cargo run --release -p floe-fs --example beside_tmpfs -- [THREADS [ROUNDS [FILES]]]
//! ```
//!
//! Rounds alternate. Each line has the call, the thousands of calls in a second of a thread's own processor time for Floe and
//! for tmpfs (medians of the rounds), and how many times more Floe's are. Where other programs use the processors as well, that
//! is what can be compared; a thread that waits for another uses no time.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use floe_format::InodeNr;
use floe_fs::{
    Caller, FileSystem, FsError, Limits, MemFs, NewInode, NullDisk, Op, OpKind, Place, RenameMode,
    now,
};
use floe_sync::{Barrier, thread};

/// A folder that is a tmpfs on most systems.
const TMPFS: &str = "/dev/shm";

/// The calls, in the order in which they are made.
const CALLS: [&str; 10] = [
    "create",
    "stat",
    "open",
    "overwrite 4K",
    "read 4K",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "write 4K",
];

/// The same calls of both. `name` is one of a directory's.
trait Side: Sync {
    /// A handle of a file.
    type File;
    fn create(&self, directory: usize, name: &str) -> Result<()>;
    fn stat(&self, directory: usize, name: &str) -> Result<()>;
    fn open(&self, directory: usize, name: &str) -> Result<Self::File>;
    fn write(&self, file: &Self::File, bytes: &[u8]) -> Result<()>;
    fn read(&self, file: &Self::File, into: &mut [u8]) -> Result<()>;
    fn rename(&self, directory: usize, from: &str, to: &str) -> Result<()>;
    fn unlink(&self, directory: usize, name: &str) -> Result<()>;
    fn mkdir(&self, directory: usize, name: &str) -> Result<()>;
    fn rmdir(&self, directory: usize, name: &str) -> Result<()>;
}

struct Floe {
    fs: FileSystem<MemFs<NullDisk>>,
    directories: Vec<InodeNr>,
}

impl Floe {
    fn new(threads: usize) -> Result<Self> {
        // Nothing is flushed meanwhile: the disk below is no part of what is measured.
        let limits =
            Limits { records: 1 << 24, content_bytes: 1 << 40, ..Limits::of_memory(1 << 40) };
        let fs = FileSystem::new(MemFs::new(NullDisk::new(1 << 24, 1 << 28), limits));
        let mut new = Self { fs, directories: vec![InodeNr::ROOT] };
        new.directories = (0..threads)
            .map(|number| new.make(0, &number.to_string(), NewInode::directory(0o755)))
            .collect::<Result<_>>()?;
        Ok(new)
    }

    fn apply(&self, kind: OpKind<'_>) -> Result<Option<InodeNr>, FsError> {
        let made = self.fs.apply(&Op { uid: 0, gid: 0, time: now(), kind })?;
        let Some(made) = made else { return Ok(None) };
        self.fs.forget(made.inode, 1)?;
        Ok(Some(made.inode))
    }

    fn place<'n>(&self, directory: usize, name: &'n str) -> Place<'n> {
        Place { directory: self.directories[directory], name: name.as_bytes() }
    }

    fn make(&self, directory: usize, name: &str, new: NewInode<'_>) -> Result<InodeNr> {
        let place = self.place(directory, name);
        self.apply(OpKind::Create { place, new })?.context("nothing was created")
    }
}

impl Side for Floe {
    type File = InodeNr;

    fn create(&self, directory: usize, name: &str) -> Result<()> {
        self.make(directory, name, NewInode::regular(0o644)).map(drop)
    }

    fn stat(&self, directory: usize, name: &str) -> Result<()> {
        let directory = self.directories[directory];
        self.fs.look_up(&Caller::Judged, directory, name.as_bytes())?;
        Ok(())
    }

    fn open(&self, directory: usize, name: &str) -> Result<InodeNr> {
        let directory = self.directories[directory];
        let (inode, _) = self.fs.resolve(&Caller::Judged, directory, name.as_bytes())?;
        let handle = self.fs.open();
        self.fs.close(inode, handle)?;
        Ok(inode)
    }

    fn write(&self, file: &InodeNr, bytes: &[u8]) -> Result<()> {
        self.apply(OpKind::Write { inode: *file, offset_bytes: 0, bytes })?;
        Ok(())
    }

    fn read(&self, file: &InodeNr, into: &mut [u8]) -> Result<()> {
        self.fs.read(*file, 0, into)?;
        Ok(())
    }

    fn rename(&self, directory: usize, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.place(directory, from), self.place(directory, to));
        self.apply(OpKind::Rename { from, to, mode: RenameMode::Replace })?;
        Ok(())
    }

    fn unlink(&self, directory: usize, name: &str) -> Result<()> {
        self.apply(OpKind::Unlink(self.place(directory, name)))?;
        Ok(())
    }

    fn mkdir(&self, directory: usize, name: &str) -> Result<()> {
        self.make(directory, name, NewInode::directory(0o755)).map(drop)
    }

    fn rmdir(&self, directory: usize, name: &str) -> Result<()> {
        self.apply(OpKind::RemoveDirectory(self.place(directory, name)))?;
        Ok(())
    }
}

/// Folders of tmpfs, by short paths from the current folder.
struct Tmpfs;

fn path(directory: usize, name: &str) -> String {
    format!("{directory}/{name}")
}

impl Side for Tmpfs {
    type File = fs::File;

    fn create(&self, directory: usize, name: &str) -> Result<()> {
        fs::OpenOptions::new().write(true).create_new(true).open(path(directory, name))?;
        Ok(())
    }

    fn stat(&self, directory: usize, name: &str) -> Result<()> {
        fs::metadata(path(directory, name))?;
        Ok(())
    }

    fn open(&self, directory: usize, name: &str) -> Result<fs::File> {
        Ok(fs::OpenOptions::new().read(true).write(true).open(path(directory, name))?)
    }

    fn write(&self, file: &fs::File, bytes: &[u8]) -> Result<()> {
        Ok(file.write_all_at(bytes, 0)?)
    }

    fn read(&self, file: &fs::File, into: &mut [u8]) -> Result<()> {
        Ok(file.read_exact_at(into, 0)?)
    }

    fn rename(&self, directory: usize, from: &str, to: &str) -> Result<()> {
        Ok(fs::rename(path(directory, from), path(directory, to))?)
    }

    fn unlink(&self, directory: usize, name: &str) -> Result<()> {
        Ok(fs::remove_file(path(directory, name))?)
    }

    fn mkdir(&self, directory: usize, name: &str) -> Result<()> {
        Ok(fs::create_dir(path(directory, name))?)
    }

    fn rmdir(&self, directory: usize, name: &str) -> Result<()> {
        Ok(fs::remove_dir(path(directory, name))?)
    }
}

/// Nanoseconds that this thread has used a processor.
fn used_nanoseconds() -> Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/schedstat")?;
    Ok(text.split(' ').next().context("no time")?.parse()?)
}

/// State that all threads share while they are measured.
struct Course<'a, S> {
    side: &'a S,
    barrier: Barrier,
    files: usize,
    shared: bool,
}

impl<S: Side> Course<'_, S> {
    /// Nanoseconds of each call, in the order of [`CALLS`].
    fn run(&self, thread: usize) -> Result<Vec<f64>> {
        let directory = if self.shared { 0 } else { thread };
        let name = |what: &str| -> Vec<String> {
            (0..self.files).map(|number| format!("{what}{thread}-{number:06}")).collect()
        };
        let (names, moved, folders) = (name("file"), name("moved"), name("folder"));
        let (side, mut times) = (self.side, Vec::new());
        let mut time = |calls: usize, work: &mut dyn FnMut() -> Result<()>| {
            self.barrier.wait();
            let used = used_nanoseconds()?;
            work()?;
            times.push((used_nanoseconds()? - used) as f64 / calls as f64);
            Ok::<(), anyhow::Error>(())
        };
        let (count, mut page) = (self.files, [7; 4096]);
        time(count, &mut || names.iter().try_for_each(|name| side.create(directory, name)))?;
        time(count, &mut || names.iter().try_for_each(|name| side.stat(directory, name)))?;
        time(count, &mut || {
            names.iter().try_for_each(|name| side.open(directory, name).map(drop))
        })?;
        // A few that stay open, so that pages are in processors' caches for both.
        let some = names.iter().take(64);
        let open: Vec<S::File> =
            some.map(|name| side.open(directory, name)).collect::<Result<_>>()?;
        open.iter().try_for_each(|file| side.write(file, &page))?;
        let mut again = open.iter().cycle().take(count);
        time(count, &mut || again.try_for_each(|file| side.write(file, &page)))?;
        let mut again = open.iter().cycle().take(count);
        time(count, &mut || again.try_for_each(|file| side.read(file, &mut page)))?;
        let mut both = names.iter().zip(&moved);
        time(count, &mut || both.try_for_each(|(from, to)| side.rename(directory, from, to)))?;
        time(count, &mut || moved.iter().try_for_each(|name| side.unlink(directory, name)))?;
        time(count, &mut || folders.iter().try_for_each(|name| side.mkdir(directory, name)))?;
        time(count, &mut || folders.iter().try_for_each(|name| side.rmdir(directory, name)))?;
        // The first write of each file takes memory.
        let some = &names[..count / 8];
        some.iter().try_for_each(|name| side.create(directory, name))?;
        let open = some.iter().map(|name| side.open(directory, name));
        let open: Vec<S::File> = open.collect::<Result<_>>()?;
        time(some.len(), &mut || open.iter().try_for_each(|file| side.write(file, &page)))?;
        some.iter().try_for_each(|name| side.unlink(directory, name))?;
        Ok(times)
    }
}

/// Nanoseconds of each call, as the mean of all threads.
fn measure<S: Side>(side: &S, threads: usize, files: usize, shared: bool) -> Result<Vec<f64>> {
    let course = Course { side, barrier: Barrier::new(threads), files, shared };
    let course = &course;
    let all: Vec<Vec<f64>> = thread::scope(|scope| {
        let run: Vec<_> =
            (0..threads).map(|number| scope.spawn(move || course.run(number))).collect();
        let joined = run.into_iter().map(|thread| thread.join());
        joined
            .map(|done| done.map_err(|_| anyhow::anyhow!("a thread panicked"))?)
            .collect::<Result<_>>()
    })?;
    let mean = |call: usize| all.iter().map(|of| of[call]).sum::<f64>() / threads as f64;
    Ok((0..CALLS.len()).map(mean).collect())
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

fn main() -> Result<()> {
    let words: Vec<usize> =
        std::env::args().skip(1).map(|word| word.parse()).collect::<Result<_, _>>()?;
    let word = |at: usize, standard| words.get(at).copied().unwrap_or(standard).max(1);
    let (threads, rounds, files) = (word(0, 1), word(1, 5), word(2, 20_000).max(64));
    let base = Path::new(TMPFS).join(format!("floe-beside-{}", std::process::id()));
    fs::create_dir(&base).with_context(|| format!("creating {}", base.display()))?;
    std::env::set_current_dir(&base)?;
    let done = show(threads, rounds, files);
    fs::remove_dir_all(&base)?;
    done
}

fn show(threads: usize, rounds: usize, files: usize) -> Result<()> {
    (0..threads).try_for_each(|number| fs::create_dir(number.to_string()))?;
    for shared in if threads == 1 { vec![false] } else { vec![false, true] } {
        println!(
            "{threads} threads, {}",
            if shared { "one directory" } else { "a directory each" }
        );
        let (mut floe, mut tmpfs) = (Vec::new(), Vec::new());
        for _ in 0..rounds {
            floe.push(measure(&Floe::new(threads)?, threads, files, shared)?);
            tmpfs.push(measure(&Tmpfs, threads, files, shared)?);
        }
        for (call, what) in CALLS.iter().enumerate() {
            let of = |all: &[Vec<f64>]| median(all.iter().map(|round| round[call]).collect());
            let (floe, tmpfs) = (of(&floe), of(&tmpfs));
            let (rate, other) = (1e6 / floe, 1e6 / tmpfs);
            println!("  {what:12} {rate:>8.0} {other:>8.0} k/s {:6.2} times", rate / other);
        }
    }
    Ok(())
}
