//! Bytes that the file system in memory takes for inodes and names that it keeps; used by `cargo xtask fs-memory`:
//!
//! ```text
//! cargo run --release -p floe-fs --example footprint -- fill IMAGE FILES   # directories of 1,000 files
//! cargo run --release -p floe-fs --example footprint -- walk IMAGE [LIMIT] # looks at each, within a limit in bytes
//! ```
//!
//! `walk` prints the inodes, the names and the bytes by which the process grew.

use anyhow::{Context, Result, bail};
use floe_blockdev::WritableFile;
use floe_format::InodeNr;
use floe_format::ext::inode::FileType;
use floe_fs::{
    Caller, Disk, FileSystem, Limits, Live, MemFs, NewInode, Op, OpKind, Place, Store, now,
};

const FILES_PER_DIRECTORY: u32 = 1000;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (image, count, limits) = match words[..] {
        ["fill", image, count] => (image, Some(count.parse()?), Limits::default()),
        ["walk", image] => (image, None, Limits::of_memory(1 << 40)),
        ["walk", image, limit] => (image, None, Limits::of_memory(limit.parse()?)),
        _ => bail!("usage: footprint fill IMAGE FILES | footprint walk IMAGE [LIMIT]"),
    };
    let device = WritableFile::open(image.as_ref()).context("opening the image")?;
    let (disk, volume) = Disk::open(device)?;
    {
        let files = disk.files()?;
        let fs = FileSystem::new(MemFs::new(Live::new(&disk, &files, volume, now())?, limits));
        match count {
            Some(count) => fill(&fs, count)?,
            None => walk(&fs)?,
        }
        let (live, lost) = fs.into_store().finish()?;
        live.finish(now())?;
        lost?;
    }
    disk.close()?;
    Ok(())
}

fn fill<S: Store>(fs: &FileSystem<S>, count: u32) -> Result<()> {
    let create = |directory, name: &str, new| -> Result<InodeNr> {
        let kind = OpKind::Create { place: Place { directory, name: name.as_bytes() }, new };
        let made = fs.apply(&Op { uid: 0, gid: 0, time: now(), kind })?;
        let inode = made.context("nothing was created")?.inode;
        fs.forget(inode, 1)?;
        Ok(inode)
    };
    let mut directory = InodeNr::ROOT;
    for number in 0..count {
        if number.is_multiple_of(FILES_PER_DIRECTORY) {
            let name = format!("directory {number}");
            directory = create(InodeNr::ROOT, &name, NewInode::directory(0o755))?;
        }
        create(directory, &format!("file-{number:07}.txt"), NewInode::regular(0o644))?;
    }
    Ok(())
}

fn resident_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: u64 = line.context("no RssAnon")?.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

fn walk<S: Store>(fs: &FileSystem<S>) -> Result<()> {
    let caller = Caller::Judged;
    let before = resident_bytes()?;
    let (mut inodes, mut names, mut due) = (0u64, 0u64, vec![InodeNr::ROOT]);
    while let Some(directory) = due.pop() {
        let mut all: Vec<Vec<u8>> = Vec::new();
        fs.list(&caller, directory, 0, |one| {
            if !matches!(one.name, b"." | b"..") {
                all.push(one.name.to_vec());
            }
            true
        })?;
        for name in all {
            let found = fs.look_up(&caller, directory, &name)?;
            (inodes, names) = (inodes + 1, names + 1);
            if found.kind == FileType::Directory {
                due.push(found.inode);
            }
        }
    }
    println!("{inodes} {names} {}", resident_bytes()?.saturating_sub(before));
    Ok(())
}
