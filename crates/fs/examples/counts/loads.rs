//! The loads: those of `fsbench`, smallfile and filebench, and sequential and random access to files of 10 KB to 1 GB as in
//! Figures 13 to 19 of the paper on ffsck and rext3.

use anyhow::{Context, Result};
use floe_format::InodeNr;
use floe_fs::{Caller, FileSystem, FsError, NewInode, Op, OpKind, Place, RenameMode, Store};
use floe_testkit::Rng;

use super::NOW;

/// The calls of programs, whatever the file system stands on.
pub(super) trait Calls {
    fn make(&self, directory: InodeNr, name: &str, new: NewInode<'_>) -> Result<InodeNr>;
    fn find(&self, directory: InodeNr, name: &str) -> Result<InodeNr>;
    fn change(&self, kind: OpKind<'_>) -> Result<()>;
    fn read(&self, inode: InodeNr, at: u64, into: &mut [u8]) -> Result<usize>;
    fn fsync(&self, inode: InodeNr) -> Result<()>;
    fn sync(&self) -> Result<()>;
}

impl<S: Store> Calls for FileSystem<S> {
    fn make(&self, directory: InodeNr, name: &str, new: NewInode<'_>) -> Result<InodeNr> {
        let place = Place { directory, name: name.as_bytes() };
        let made = self.apply(&op(OpKind::Create { place, new }))?.context("nothing was made")?;
        self.forget(made.inode, 1)?;
        Ok(made.inode)
    }

    fn find(&self, directory: InodeNr, name: &str) -> Result<InodeNr> {
        Ok(self.look_up(&Caller::Judged, directory, name.as_bytes())?.inode)
    }

    fn change(&self, kind: OpKind<'_>) -> Result<()> {
        self.apply(&op(kind))?;
        Ok(())
    }

    fn read(&self, inode: InodeNr, at: u64, into: &mut [u8]) -> Result<usize> {
        Ok(FileSystem::read(self, inode, at, into)?)
    }

    fn fsync(&self, inode: InodeNr) -> Result<()> {
        Ok(self.sync_inode(inode, None)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(FileSystem::sync(self)?)
    }
}

fn op(kind: OpKind<'_>) -> Op<'_> {
    Op { uid: 0, gid: 0, time: NOW, kind }
}

/// A load.
pub(super) struct Load {
    pub(super) name: &'static str,
    /// Makes all that must be there before; not counted.
    pub(super) prepare: fn(&dyn Calls) -> Result<()>,
    pub(super) run: fn(&dyn Calls) -> Result<()>,
    /// Takes seconds.
    pub(super) is_long: bool,
}

const fn load(
    name: &'static str,
    prepare: fn(&dyn Calls) -> Result<()>,
    run: fn(&dyn Calls) -> Result<()>,
) -> Load {
    Load { name, prepare, run, is_long: false }
}

/// Directories, and files of each, of the loads on names.
const DIRECTORIES: usize = 20;
const FILES: usize = 200;
/// Bytes of files that are read or written, all together, and of the largest.
const TOGETHER: u64 = 40_000_000;
const LARGE: u64 = 1_000_000_000;
/// Bytes of a call.
const PIECE: usize = 1 << 17;

pub(super) const LOADS: &[Load] = &[
    load("create", directories, |calls| {
        each_name(calls, |directory, name| {
            calls.make(directory, name, NewInode::regular(0o644)).map(drop)
        })
    }),
    load("stat", files, |calls| {
        each_name(calls, |directory, name| calls.find(directory, name).map(drop))
    }),
    load("rename", files, |calls| {
        each_name(calls, |directory, name| {
            let new = format!("moved {name}");
            let (from, to) = (place(directory, name), place(directory, &new));
            calls.change(OpKind::Rename { from, to, mode: RenameMode::Replace })
        })
    }),
    load("unlink", files, |calls| {
        each_name(calls, |directory, name| calls.change(OpKind::Unlink(place(directory, name))))
    }),
    load("mkdir", directories, |calls| {
        each_name(calls, |directory, name| {
            calls.make(directory, name, NewInode::directory(0o755)).map(drop)
        })
    }),
    load(
        "rmdir",
        |calls| {
            directories(calls)?;
            each_name(calls, |directory, name| {
                calls.make(directory, name, NewInode::directory(0o755)).map(drop)
            })
        },
        |calls| {
            each_name(calls, |directory, name| {
                calls.change(OpKind::RemoveDirectory(place(directory, name)))
            })
        },
    ),
    load("smallfile", directories, smallfile),
    load("varmail", files, varmail),
    load("fileserver", files, fileserver),
    load("webserver", pages, webserver),
    load("write-10K", directories, |calls| write_files(calls, 10_000, TOGETHER)),
    load("write-100K", directories, |calls| write_files(calls, 100_000, TOGETHER)),
    load("write-1M", directories, |calls| write_files(calls, 1_000_000, TOGETHER)),
    load("write-10M", directories, |calls| write_files(calls, 10_000_000, TOGETHER)),
    load("read-10K", |calls| prepared(calls, 10_000), |calls| read_files(calls, 10_000, TOGETHER)),
    load(
        "read-100K",
        |calls| prepared(calls, 100_000),
        |calls| read_files(calls, 100_000, TOGETHER),
    ),
    load(
        "read-1M",
        |calls| prepared(calls, 1_000_000),
        |calls| read_files(calls, 1_000_000, TOGETHER),
    ),
    load(
        "read-10M",
        |calls| prepared(calls, 10_000_000),
        |calls| read_files(calls, 10_000_000, TOGETHER),
    ),
    load("random-write", |calls| prepared(calls, 10_000_000), |calls| random(calls, true)),
    load("random-read", |calls| prepared(calls, 10_000_000), |calls| random(calls, false)),
    load("fragmented", directories, fragmented),
    Load {
        is_long: true,
        ..load("write-1G", directories, |calls| write_files(calls, LARGE, LARGE))
    },
    Load {
        is_long: true,
        ..load(
            "read-1G",
            |calls| {
                directories(calls)?;
                write_files(calls, LARGE, LARGE)
            },
            |calls| read_files(calls, LARGE, LARGE),
        )
    },
];

fn place(directory: InodeNr, name: &str) -> Place<'_> {
    Place { directory, name: name.as_bytes() }
}

fn directories(calls: &dyn Calls) -> Result<()> {
    (0..DIRECTORIES).try_for_each(|at| {
        let name = format!("directory {at}");
        calls.make(InodeNr::ROOT, &name, NewInode::directory(0o755)).map(drop)
    })
}

fn directory(calls: &dyn Calls, at: usize) -> Result<InodeNr> {
    calls.find(InodeNr::ROOT, &format!("directory {}", at % DIRECTORIES))
}

/// Goes over all directories and names.
fn each_name(calls: &dyn Calls, run: impl Fn(InodeNr, &str) -> Result<()>) -> Result<()> {
    for at in 0..DIRECTORIES {
        let directory = directory(calls, at)?;
        (0..FILES).try_for_each(|at| run(directory, &format!("name {at:05}")))?;
    }
    Ok(())
}

/// All files, with 4 KiB each.
fn files(calls: &dyn Calls) -> Result<()> {
    directories(calls)?;
    each_name(calls, |directory, name| {
        let file = calls.make(directory, name, NewInode::regular(0o644))?;
        write(calls, file, 0, &[3; 4096])
    })
}

/// All files, with 16 KiB each.
fn pages(calls: &dyn Calls) -> Result<()> {
    directories(calls)?;
    each_name(calls, |directory, name| {
        let file = calls.make(directory, name, NewInode::regular(0o644))?;
        write(calls, file, 0, &[3; 16384])
    })
}

fn write(calls: &dyn Calls, inode: InodeNr, at: u64, bytes: &[u8]) -> Result<()> {
    calls.change(OpKind::Write { inode, offset_bytes: at, bytes })
}

/// Create, 1 KiB, fsync, remove.
fn smallfile(calls: &dyn Calls) -> Result<()> {
    for at in 0..1000 {
        let (directory, name) = (directory(calls, at)?, format!("small {at}"));
        let file = calls.make(directory, &name, NewInode::regular(0o644))?;
        write(calls, file, 0, &[1; 1024])?;
        calls.fsync(file)?;
        if at >= 50 {
            let old = format!("small {}", at - 50);
            calls.change(OpKind::Unlink(place(self::directory(calls, at - 50)?, &old)))?;
        }
    }
    Ok(())
}

/// Mails: new ones with an fsync, appending with one, reading, removal.
fn varmail(calls: &dyn Calls) -> Result<()> {
    let (mut rng, mut bytes) = (Rng::new(1), vec![0; 1 << 16]);
    for at in 0..500 {
        let one = directory(calls, rng.index(DIRECTORIES))?;
        let name = format!("mail {at}");
        let file = calls.make(one, &name, NewInode::regular(0o600))?;
        write(calls, file, 0, &bytes[..1 + rng.index(16384)])?;
        calls.fsync(file)?;
        let (other, old) = (directory(calls, rng.index(DIRECTORIES))?, rng.index(FILES));
        let old = format!("name {old:05}");
        let found = other_file(calls, other, &old)?;
        if let Some(file) = found {
            let len = calls.read(file, 0, &mut bytes)?;
            write(calls, file, len as u64, &[5; 2000])?;
            calls.fsync(file)?;
            if rng.chance(2) {
                calls.change(OpKind::Unlink(place(other, &old)))?;
            }
        }
    }
    Ok(())
}

fn other_file(calls: &dyn Calls, directory: InodeNr, name: &str) -> Result<Option<InodeNr>> {
    match calls.find(directory, name) {
        Ok(found) => Ok(Some(found)),
        Err(error) if matches!(error.downcast_ref(), Some(FsError::NotFound)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whole files written, appended to, read, removed; nothing asks for durability.
fn fileserver(calls: &dyn Calls) -> Result<()> {
    let (mut rng, mut bytes) = (Rng::new(2), vec![4; 1 << 17]);
    for at in 0..600 {
        let one = directory(calls, rng.index(DIRECTORIES))?;
        let name = format!("served {at}");
        let file = calls.make(one, &name, NewInode::regular(0o644))?;
        let len = 1 + rng.index(PIECE);
        write(calls, file, 0, &bytes[..len])?;
        write(calls, file, len as u64, &[6; 16000])?;
        calls.read(file, 0, &mut bytes)?;
        let (other, old) = (directory(calls, rng.index(DIRECTORIES))?, rng.index(FILES));
        let old = format!("name {old:05}");
        if let Some(found) = other_file(calls, other, &old)? {
            calls.read(found, 0, &mut bytes)?;
            calls.change(OpKind::Unlink(place(other, &old)))?;
        }
    }
    Ok(())
}

/// Whole files read, and a log that grows.
fn webserver(calls: &dyn Calls) -> Result<()> {
    let (mut rng, mut bytes) = (Rng::new(3), vec![0; 16384]);
    let log = calls.make(InodeNr::ROOT, "log", NewInode::regular(0o644))?;
    for at in 0..300 {
        for _ in 0..10 {
            let one = directory(calls, rng.index(DIRECTORIES))?;
            let file = calls.find(one, &format!("name {:05}", rng.index(FILES)))?;
            calls.read(file, 0, &mut bytes)?;
        }
        write(calls, log, at * 16384, &bytes)?;
    }
    Ok(())
}

/// Writes files of a size, one after the other, in pieces.
fn write_files(calls: &dyn Calls, size: u64, together: u64) -> Result<()> {
    let bytes = vec![9; PIECE];
    for number in 0..together / size {
        let directory = directory(calls, usize::try_from(number)?)?;
        let file = calls.make(directory, &format!("file {number}"), NewInode::regular(0o644))?;
        for at in (0..size).step_by(PIECE) {
            let len = usize::try_from(size - at)?.min(PIECE);
            write(calls, file, at, &bytes[..len])?;
        }
    }
    Ok(())
}

fn prepared(calls: &dyn Calls, size: u64) -> Result<()> {
    directories(calls)?;
    write_files(calls, size, TOGETHER)
}

fn read_files(calls: &dyn Calls, size: u64, together: u64) -> Result<()> {
    let mut bytes = vec![0; PIECE];
    for number in 0..together / size {
        let directory = directory(calls, usize::try_from(number)?)?;
        let file = calls.find(directory, &format!("file {number}"))?;
        for at in (0..size).step_by(PIECE) {
            calls.read(file, at, &mut bytes)?;
        }
    }
    Ok(())
}

/// 4 KiB here and there in files of 10 MB.
fn random(calls: &dyn Calls, writes: bool) -> Result<()> {
    let (mut rng, mut bytes, size) = (Rng::new(4), [8; 4096], 10_000_000);
    let files = (0..TOGETHER / size).map(|number| {
        let directory = directory(calls, usize::try_from(number)?)?;
        calls.find(directory, &format!("file {number}"))
    });
    let files: Vec<InodeNr> = files.collect::<Result<_>>()?;
    for at in 0..2000 {
        let file = files[rng.index(files.len())];
        let place = rng.below(size / 4096) * 4096;
        if writes {
            write(calls, file, place, &bytes)?;
            if at % 100 == 99 {
                calls.fsync(file)?;
            }
        } else {
            calls.read(file, place, &mut bytes)?;
        }
    }
    Ok(())
}

/// Files that grow by turns, and with holes: many extents, whose nodes lie in regions.
fn fragmented(calls: &dyn Calls) -> Result<()> {
    let mut all = Vec::new();
    for at in 0..DIRECTORIES {
        let directory = directory(calls, at)?;
        all.push(calls.make(directory, "grows", NewInode::regular(0o644))?);
    }
    for round in 0..200 {
        for file in &all {
            write(calls, *file, round * 16384, &[2; 4096])?;
        }
    }
    Ok(())
}
