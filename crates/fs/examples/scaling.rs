//! How the file system in memory scales from one thread to several, over a disk that is a table:
//!
//! ```text
//! cargo run --release -p floe-fs --example scaling [THREADS]
//! ```
//!
//! Each line has calls a second of one thread, of all threads, and how many times more that is. Where other programs use the
//! processors as well, compare the last column instead: calls in a second of a thread's own processor time, as a part of
//! those of one thread alone. (A thread that waits for another uses no time, so it is an upper bound.)

use std::time::Instant;

use anyhow::{Context, Result};
use floe_format::InodeNr;
use floe_fs::{
    Caller, FileSystem, FsError, Limits, MemFs, NewInode, NullDisk, Op, OpKind, Place, RenameMode,
    now,
};
use floe_sync::{Barrier, thread};

/// Files of a thread.
const FILES: u32 = 20_000;

type Fs = FileSystem<MemFs<NullDisk>>;
type Call = fn(&Fs, InodeNr, &str) -> Result<(), FsError>;

/// Calls in the order in which they are measured: each needs what those before it made.
const CALLS: [(&str, Call); 6] = [
    ("create", |fs, directory, name| {
        let place = Place { directory, name: name.as_bytes() };
        apply(fs, OpKind::Create { place, new: NewInode::regular(0o644) })
    }),
    ("stat", |fs, directory, name| find(fs, directory, name).map(drop)),
    ("write 4K", |fs, directory, name| {
        let inode = find(fs, directory, name)?;
        apply(fs, OpKind::Write { inode, offset_bytes: 0, bytes: &[7; 4096] })
    }),
    ("read 4K", |fs, directory, name| {
        fs.read(find(fs, directory, name)?, 0, &mut [0; 4096]).map(drop)
    }),
    ("rename", |fs, directory, name| {
        let new = format!("{name} moved");
        let from = Place { directory, name: name.as_bytes() };
        let to = Place { directory, name: new.as_bytes() };
        apply(fs, OpKind::Rename { from, to, mode: RenameMode::Replace })
    }),
    ("unlink", |fs, directory, name| {
        let name = format!("{name} moved");
        apply(fs, OpKind::Unlink(Place { directory, name: name.as_bytes() }))
    }),
];

fn apply(fs: &Fs, kind: OpKind<'_>) -> Result<(), FsError> {
    let made = fs.apply(&Op { uid: 0, gid: 0, time: now(), kind })?;
    made.map_or(Ok(()), |made| fs.forget(made.inode, 1))
}

fn find(fs: &Fs, directory: InodeNr, name: &str) -> Result<InodeNr, FsError> {
    Ok(fs.look_up(&Caller::Judged, directory, name.as_bytes())?.inode)
}

/// Nanoseconds that this thread has used a processor.
fn used_nanoseconds() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let first = text.split(' ').next().context("no time")?;
    Ok(first.parse()?)
}

/// Calls a second of all threads, and in a second of one thread's processor time.
fn measure(threads: usize, shared: bool) -> Result<Vec<(f64, f64)>> {
    let limits = Limits { records: 1 << 24, content_bytes: 1 << 32, ..Limits::default() };
    let fs = FileSystem::new(MemFs::new(NullDisk::new(1 << 24, 1 << 28), limits));
    let made: Vec<InodeNr> = (0..threads)
        .map(|number| {
            let name = format!("directory {number}");
            let place = Place { directory: InodeNr::ROOT, name: name.as_bytes() };
            let kind = OpKind::Create { place, new: NewInode::directory(0o755) };
            let made = fs.apply(&Op { uid: 0, gid: 0, time: now(), kind })?;
            Ok(made.context("nothing was created")?.inode)
        })
        .collect::<Result<_>>()?;
    let (fs, barrier) = (&fs, &Barrier::new(threads));
    let work = |thread: usize| -> Result<Vec<(f64, u64)>> {
        let directory = made[if shared { 0 } else { thread }];
        let names: Vec<String> =
            (0..FILES).map(|number| format!("file {number:05} of {thread}")).collect();
        let mut times = Vec::new();
        for (_, call) in CALLS {
            barrier.wait();
            let (began, used) = (Instant::now(), used_nanoseconds()?);
            for name in &names {
                call(fs, directory, name)?;
            }
            times.push((began.elapsed().as_secs_f64(), used_nanoseconds()? - used));
        }
        Ok(times)
    };
    let work = &work;
    let times: Result<Vec<Vec<(f64, u64)>>> = thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            (0..threads).map(|number| scope.spawn(move || work(number))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|done| done.map_err(|_| anyhow::anyhow!("a thread panicked"))?).collect()
    });
    let times = times?;
    let rate = |call: usize| {
        let all: f64 = times.iter().map(|of| f64::from(FILES) / of[call].0).sum();
        let used: u64 = times.iter().map(|of| of[call].1).sum();
        (all, f64::from(FILES) * threads as f64 * 1e9 / used as f64)
    };
    Ok((0..CALLS.len()).map(rate).collect())
}

fn main() -> Result<()> {
    let threads = std::env::args().nth(1).map_or(Ok(2), |word| word.parse())?;
    for shared in [false, true] {
        println!("{}", if shared { "one directory" } else { "a directory for each thread" });
        measure(threads, shared)?;
        let (one, many) = (measure(1, shared)?, measure(threads, shared)?);
        for (((what, _), one), many) in CALLS.iter().zip(one).zip(many) {
            println!(
                "  {what:8} {:>10.0}/s {:>10.0}/s {:5.2} times {:5.2} by processor time",
                one.0,
                many.0,
                many.0 / one.0,
                many.1 / one.1
            );
        }
    }
    Ok(())
}
