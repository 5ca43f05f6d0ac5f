//! Memory stays within its budget, whatever a program walks through, reads and changes, and nothing is lost.
//!
//! The work runs in a process of its own, because its resident size is measured.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use floe_blockdev::WritableFile;
use floe_format::InodeNr;
use floe_fs::{Disk, FileSystem, Limits, Live, MemFs, NewInode, Op, OpKind, Place, Store};
use floe_testkit::{Image, build, oracle, tool};

use super::live::NOW;

const DIRECTORIES: u32 = 50;
const FILES: u32 = 150;
/// Every so many files have content.
const WITH_CONTENT: u32 = 8;
const CONTENT_BYTES: usize = 20_000;
/// A good tenth of what the tree takes.
const BUDGET: u64 = 2 << 20;
/// Bytes that the journal, the groups and the heap take beside it.
const BESIDE: u64 = 5 << 20;
/// Set for the process that does the work: bytes of its budget, 0 for none.
const VARIABLE: &str = "FLOE_TEST_BUDGET";

/// Bytes of the process that are not pages of its program.
fn resident_bytes() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

/// The largest resident size since the start.
struct Watch {
    start: u64,
    most: u64,
    calls: u32,
}

impl Watch {
    fn look(&mut self) -> Result<()> {
        self.calls += 1;
        if self.calls.is_multiple_of(64) {
            self.most = self.most.max(resident_bytes()?);
        }
        Ok(())
    }
}

fn bytes_of(number: u32, version: u32) -> Vec<u8> {
    let word = (number * 7 + version).to_le_bytes();
    word.into_iter().cycle().take(CONTENT_BYTES).collect()
}

fn apply<S: Store>(fs: &FileSystem<S>, kind: OpKind<'_>) -> Result<InodeNr> {
    let made = fs.apply(&Op { uid: 0, gid: 0, time: NOW, kind })?;
    let inode = made.map_or(InodeNr(0), |made| made.inode);
    if inode != InodeNr(0) {
        fs.forget(inode, 1)?;
    }
    Ok(inode)
}

/// Builds the tree.
fn fill<S: Store>(fs: &FileSystem<S>, watch: &mut Watch) -> Result<()> {
    for number in 0..DIRECTORIES {
        let name = format!("directory {number}");
        let place = Place { directory: InodeNr::ROOT, name: name.as_bytes() };
        let directory = apply(fs, OpKind::Create { place, new: NewInode::directory(0o755) })?;
        for file in 0..FILES {
            watch.look()?;
            let name = format!("a file with number {file}");
            let place = Place { directory, name: name.as_bytes() };
            let inode = apply(fs, OpKind::Create { place, new: NewInode::regular(0o644) })?;
            if file.is_multiple_of(WITH_CONTENT) {
                let bytes = bytes_of(number * FILES + file, 0);
                apply(fs, OpKind::Write { inode, offset_bytes: 0, bytes: &bytes })?;
            }
        }
    }
    Ok(())
}

/// Walks through the tree, reads all content, which has this version, and lets `visit` have each file with content.
fn walk<S: Store>(
    fs: &FileSystem<S>,
    watch: &mut Watch,
    version: u32,
    mut visit: impl FnMut(InodeNr, u32) -> Result<()>,
) -> Result<()> {
    let caller = floe_fs::Caller::Judged;
    let mut read = vec![0; CONTENT_BYTES + 1];
    for number in 0..DIRECTORIES {
        let name = format!("directory {number}");
        let directory = fs.look_up(&caller, InodeNr::ROOT, name.as_bytes())?.inode;
        let mut names = 0;
        fs.list(&caller, directory, 0, |_| {
            names += 1;
            true
        })?;
        ensure!(names == FILES + 2, "{names} names in directory {number}");
        for file in 0..FILES {
            watch.look()?;
            let name = format!("a file with number {file}");
            let found = fs.look_up(&caller, directory, name.as_bytes())?;
            if file.is_multiple_of(WITH_CONTENT) {
                let len = fs.read(found.inode, 0, &mut read)?;
                let number = number * FILES + file;
                ensure!(read[..len] == bytes_of(number, version), "content of {number}");
                visit(found.inode, number)?;
            }
        }
    }
    Ok(())
}

/// Works on an image, in so many mounts, and returns by how many bytes the resident size grew at most.
fn work(path: &Path, limits: Limits, mounts: u32) -> Result<u64> {
    let start = resident_bytes()?;
    let mut watch = Watch { start, most: start, calls: 0 };
    for turn in 0..mounts {
        let (disk, volume) = Disk::open(WritableFile::open(path)?)?;
        {
            let files = disk.files()?;
            let live = Live::new(&disk, &files, volume, NOW)?;
            let fs = FileSystem::new(MemFs::new(live, limits));
            match turn {
                0 => fill(&fs, &mut watch)?,
                // All content changes on the way.
                1 => walk(&fs, &mut watch, 0, |inode, number| {
                    let bytes = bytes_of(number, 1);
                    apply(&fs, OpKind::Write { inode, offset_bytes: 0, bytes: &bytes }).map(drop)
                })?,
                _ => walk(&fs, &mut watch, 1, |_, _| Ok(()))?,
            }
            let (live, lost) = fs.into_store().finish()?;
            live.finish(NOW)?;
            lost?;
        }
        disk.close()?;
    }
    Ok(watch.most - watch.start)
}

/// The work itself, in the process that the test below starts.
#[test]
#[ignore = "run by the test of the budget, in a process of its own"]
fn walk_within_a_budget() {
    let Ok(budget) = std::env::var(VARIABLE) else { return };
    let image = Image::empty(96 << 20).unwrap();
    build::mke2fs(image.path(), &["-t", "ext4", "-b", "4096", "-J", "size=4", "-N", "20000"])
        .unwrap();
    let (limits, mounts) = match budget.parse().unwrap() {
        // Only to see how much the tree takes.
        0 => (Limits::default(), 1),
        bytes => (Limits::of_memory(bytes), 3),
    };
    println!("grew by {}", work(image.path(), limits, mounts).unwrap());
    let verdict = oracle::e2fsck(&image).unwrap();
    assert!(verdict.clean(), "e2fsck: {}", verdict.text);
}

fn growth(budget: u64) -> u64 {
    let name = "memory::budget::walk_within_a_budget";
    let out = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
        .env(VARIABLE, budget.to_string())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{text}\n{}", String::from_utf8_lossy(&out.stderr));
    let grown = text.lines().find_map(|line| line.split("grew by ").nth(1));
    grown.unwrap().trim().parse().unwrap()
}

#[test]
fn a_tree_far_larger_than_the_budget_is_filled_changed_and_walked_within_it() {
    if tool::missing() {
        return;
    }
    let (bounded, unbounded) = (growth(BUDGET), growth(0));
    eprintln!("{bounded} bytes within {BUDGET}, {unbounded} without a budget");
    assert!(bounded < BUDGET + BESIDE, "{bounded} bytes");
    assert!(unbounded > 2 * (BUDGET + BESIDE), "the tree is too small to tell: {unbounded} bytes");
}
