//! How many changes and look-ups a second the file system in memory makes, in process, with one thread:
//!
//! ```text
//! cargo run --release -p floe-fs --example rates             # over a disk that is a table
//! cargo run --release -p floe-fs --example rates -- IMAGE    # over an ext4 image, which it changes
//! ```
//!
//! With `immediate` as the second word each change reaches the journal at once.

use std::time::Instant;

use anyhow::{Context, Result};
use floe_blockdev::WritableFile;
use floe_format::InodeNr;
use floe_fs::{
    Caller, Disk, FileSystem, FsError, Limits, Live, Lower, MemFs, NewInode, NullDisk, Op, OpKind,
    Place, RenameMode, Store, now,
};

/// Files of a directory.
const FILES: u32 = 1000;
/// Directories.
const DIRECTORIES: u32 = 20;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let immediate = arguments.get(1).is_some_and(|word| word == "immediate");
    let limits = Limits { immediate, ..Limits::default() };
    let Some(image) = arguments.first() else {
        return show(MemFs::new(NullDisk::new(1 << 20, 1 << 24), limits)).map(drop);
    };
    let device = WritableFile::open(image.as_ref()).context("opening the image")?;
    let (disk, volume) = Disk::open(device)?;
    let files = disk.files()?;
    let live = show(MemFs::new(Live::new(&disk, &files, volume, now())?, limits))?;
    live.finish(now())?;
    disk.close()?;
    Ok(())
}

/// Measures one file system, and returns what it stood on.
fn show<L: Lower>(memory: MemFs<L>) -> Result<L> {
    let fs = FileSystem::new(memory);
    let directories: Vec<InodeNr> = (0..DIRECTORIES)
        .map(|number| {
            let name = format!("directory {number}");
            let place = Place { directory: InodeNr::ROOT, name: name.as_bytes() };
            make(&fs, place, &NewInode::directory(0o755))
        })
        .collect::<Result<_, FsError>>()?;
    let all = |prefix: &'static str| {
        let names = (0..FILES).map(move |number| format!("{prefix} {number:05}"));
        let directories = directories.iter().copied();
        directories.flat_map(move |directory| names.clone().map(move |name| (directory, name)))
    };
    let measure = |what: &str, change: &mut dyn FnMut(InodeNr, &str) -> Result<(), FsError>| {
        let began = Instant::now();
        for (directory, name) in all("file") {
            change(directory, &name)?;
        }
        let done = began.elapsed();
        fs.sync()?;
        let whole = began.elapsed();
        let rate = |time: std::time::Duration| f64::from(FILES * DIRECTORIES) / time.as_secs_f64();
        println!("{what:8} {:>10.0}/s {:>10.0}/s with sync", rate(done), rate(whole));
        Ok::<(), FsError>(())
    };
    measure("create", &mut |directory, name| {
        let inode = make(&fs, place(directory, name), &NewInode::regular(0o644))?;
        fs.forget(inode, 1)
    })?;
    measure("stat", &mut |directory, name| {
        fs.look_up(&Caller::Judged, directory, name.as_bytes()).map(drop)
    })?;
    measure("write 4K", &mut |directory, name| {
        let inode = fs.look_up(&Caller::Judged, directory, name.as_bytes())?.inode;
        apply(&fs, OpKind::Write { inode, offset_bytes: 0, bytes: &[7; 4096] })
    })?;
    measure("rename", &mut |directory, name| {
        let new = name.replace("file", "moved");
        let (from, to) = (place(directory, name), place(directory, &new));
        apply(&fs, OpKind::Rename { from, to, mode: RenameMode::Replace })
    })?;
    measure("unlink", &mut |directory, name| {
        let name = name.replace("file", "moved");
        apply(&fs, OpKind::Unlink(place(directory, &name)))
    })?;
    measure("come, go", &mut |directory, name| {
        let place = place(directory, name);
        let inode = make(&fs, place, &NewInode::regular(0o644))?;
        fs.forget(inode, 1)?;
        apply(&fs, OpKind::Unlink(place))
    })?;
    let (lower, lost) = fs.into_store().finish()?;
    lost?;
    Ok(lower)
}

fn place(directory: InodeNr, name: &str) -> Place<'_> {
    Place { directory, name: name.as_bytes() }
}

fn make<S: Store>(
    fs: &FileSystem<S>,
    place: Place<'_>,
    new: &NewInode<'_>,
) -> Result<InodeNr, FsError> {
    let kind = OpKind::Create { place, new: *new };
    let made = fs.apply(&Op { uid: 0, gid: 0, time: now(), kind })?;
    made.map(|made| made.inode).ok_or(FsError::NotFound)
}

fn apply<S: Store>(fs: &FileSystem<S>, kind: OpKind<'_>) -> Result<(), FsError> {
    fs.apply(&Op { uid: 0, gid: 0, time: now(), kind }).map(drop)
}
