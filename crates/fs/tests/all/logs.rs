//! One control block of a stock log is destroyed, or its superblock: a repair never has fewer right files than e2fsck, whichever
//! checksums the log has, and wherever it lies. `FLOE_SEEDS` says how many histories are tried.

use std::collections::BTreeMap;

use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_ext4::alloc::Space as _;
use floe_ext4::files::{Files, Follow};
use floe_ext4::fs::FileSystem as Layout;
use floe_format::InodeNr;
use floe_fs::{Disk, FileSystem, FsError, Live, MemFs, NewInode, OpKind, Place, Store, now};
use floe_repair::policy::{Preen, Yes};
use floe_repair::repair;
use floe_testkit::rng::Rng;
use floe_testkit::tool;

use crate::cubes::struck::{BLOCK, find, make, op, write};
use crate::cubes::superblocks::{stock, with_tops};
use crate::cubes::weighed::logged;

mod relogged;

use relogged::{Kind, Pair};

const SIZE: usize = BLOCK as usize;
/// Changes that fsync made durable.
const STEPS: usize = 15;
/// Bytes that go to their place before the log is written.
const LONG_BYTES: usize = 200_000;
const TOPS: [&str; 2] = ["a", "b"];

/// A file system that nobody unmounts.
struct History {
    crashed: Vec<u8>,
    /// After recovery of what was there behind a change: everything is at home.
    states: Vec<Vec<u8>>,
    /// Blocks that the log has.
    logged: Vec<usize>,
    /// All files at the end.
    files: BTreeMap<String, Vec<u8>>,
}

/// Writes to the file system.
struct Writer<'a, S> {
    fs: &'a FileSystem<S>,
    rng: &'a mut Rng,
    files: BTreeMap<String, Vec<u8>>,
    folders: Vec<String>,
}

impl<S: Store> Writer<'_, S> {
    fn at(&self, path: &str) -> InodeNr {
        let parts = path.split('/').filter(|part| !part.is_empty());
        parts.fold(InodeNr::ROOT, |at, name| find(self.fs, at, name).unwrap())
    }

    fn sync(&self, path: &str) {
        self.fs.sync_inode(self.at(path), None).unwrap();
    }

    fn file(&mut self, folder: &str, name: &str, len: usize) {
        let mut bytes = vec![0; len];
        self.rng.fill(&mut bytes);
        let path = format!("{folder}/{name}");
        let parent = self.at(folder);
        let file = match self.files.contains_key(&path) {
            true => self.at(&path),
            false => make(self.fs, parent, name, NewInode::regular(0o644)).unwrap(),
        };
        write(self.fs, file, 0, &bytes).unwrap();
        let old = self.files.get(&path).map(|old| old.get(len..).unwrap_or(&[]).to_vec());
        bytes.extend(old.unwrap_or_default());
        self.sync(&path);
        self.sync(folder);
        self.files.insert(path, bytes);
    }

    /// Removes a folder with all that is in it.
    fn remove(&mut self, folder: &str) {
        let (parent, name) = folder.rsplit_once('/').unwrap();
        let inside = format!("{folder}/");
        let inner = self.files.keys().filter(|path| path.starts_with(&inside));
        let inner: Vec<String> = inner.cloned().collect();
        let at = self.at(folder);
        for path in inner {
            let name = path.rsplit_once('/').unwrap().1.as_bytes().to_vec();
            let place = Place { directory: at, name: &name };
            apply(self.fs, OpKind::Unlink(place)).unwrap();
            self.files.remove(&path);
        }
        let place = Place { directory: self.at(parent), name: name.as_bytes() };
        apply(self.fs, OpKind::RemoveDirectory(place)).unwrap();
        self.folders.retain(|other| other != folder);
        self.sync(parent);
    }

    fn step(&mut self, nr: usize) {
        let top = format!("/{}", TOPS[self.rng.index(TOPS.len())]);
        let known: Vec<String> = self.files.keys().cloned().collect();
        match self.rng.below(8) {
            0 | 1 => {
                let folder = format!("{top}/folder{nr}");
                let parent = self.at(&top);
                make(self.fs, parent, &folder[3..], NewInode::directory(0o755)).unwrap();
                self.sync(&top);
                self.file(&folder, "inner", 3000);
                self.folders.push(folder);
            }
            2 if !self.folders.is_empty() => {
                let folder = self.rng.pick(&self.folders).unwrap().clone();
                self.remove(&folder);
            }
            3 => self.file(&top, &format!("long{nr}"), LONG_BYTES),
            4 if !known.is_empty() => {
                let (folder, name) = self.rng.pick(&known).unwrap().rsplit_once('/').unwrap();
                let len = 1 + self.rng.index(9000);
                self.file(folder, name, len);
            }
            _ => {
                let len = 1 + self.rng.index(9000);
                self.file(&top, &format!("file{nr}"), len);
            }
        }
    }
}

fn apply<S: Store>(fs: &FileSystem<S>, kind: OpKind<'_>) -> Result<(), FsError> {
    fs.apply(&op(kind)).map(drop)
}

impl History {
    fn new(rng: &mut Rng) -> Self {
        let device = MemDevice::new(with_tops(stock("4096"), &TOPS));
        let mut snapshots = Vec::new();
        let files = {
            let (disk, volume) = Disk::open(&device).unwrap();
            let known = disk.files().unwrap();
            let live = Live::new(&disk, &known, volume, now()).unwrap();
            let fs = FileSystem::new(MemFs::new(live, Default::default()));
            let mut writer = Writer { fs: &fs, rng, files: BTreeMap::new(), folders: Vec::new() };
            for nr in 0..STEPS {
                writer.step(nr);
                if nr % 4 == 2 {
                    snapshots.push(device.to_vec());
                }
            }
            writer.files
        };
        let recovered = snapshots.iter().map(|bytes| {
            let device = MemDevice::new(bytes.clone());
            floe_disk::recovery::recover(&device).unwrap();
            device.to_vec()
        });
        let states: Vec<Vec<u8>> = recovered.collect();
        let crashed = snapshots.pop().unwrap();
        let logged = logged(&crashed, states.last().unwrap());
        Self { crashed, states, logged, files }
    }

    /// Home blocks as the crash left them, all at home, or each of a random age.
    fn with_home(&self, home: &str, rng: &mut Rng) -> Vec<u8> {
        let mut bytes = self.crashed.clone();
        for at in &self.logged {
            let age = match home {
                "old" => continue,
                "new" => self.states.len() - 1,
                _ => rng.index(self.states.len() + 1),
            };
            if let Some(state) = self.states.get(age) {
                let range = at * SIZE..(at + 1) * SIZE;
                bytes[range.clone()].copy_from_slice(&state[range]);
            }
        }
        bytes
    }

    /// Files that are right.
    fn right(&self, device: &dyn ReadBlocks) -> Vec<&str> {
        let Ok(layout) = Layout::open(&device) else { return Vec::new() };
        let groups = layout.space.groups().descs().to_vec();
        let files =
            Files::new(device, layout.superblock.clone(), layout.geometry().clone(), groups);
        let is_right = |(path, bytes): &(&String, &Vec<u8>)| {
            let Ok(node) = files.lookup(path.as_bytes(), Follow::NotLast) else { return false };
            let Ok((content, mut faults)) = files.content(&node) else { return false };
            let mut found = vec![0; bytes.len()];
            node.size_bytes() == bytes.len() as u64
                && content.read_at(0, &mut found, &mut faults) == bytes.len()
                && faults.is_empty()
                && found == **bytes
        };
        self.files.iter().filter(is_right).map(|(path, _)| path.as_str()).collect()
    }
}

/// Destroys a control block of a log. Returns how.
fn destroy(device: &MemDevice, controls: &[u64], hit: u64, rng: &mut Rng) -> &'static str {
    let mut block = vec![0; SIZE];
    let how = match rng.below(4) {
        0 => "zeroes",
        1 => {
            block.fill(0xa5);
            "garbage"
        }
        2 => {
            rng.fill(&mut block);
            "noise"
        }
        _ => {
            let other = *rng.pick(controls).unwrap();
            let mut own = vec![0; SIZE];
            device.read_at(hit, &mut own).unwrap();
            device.read_at(other, &mut block).unwrap();
            if rng.chance(2) {
                device.write_at(other, &own).unwrap();
                "swapped"
            } else {
                "a copy of another"
            }
        }
    };
    device.write_at(hit, &block).unwrap();
    how
}

/// One damage: `Err` if e2fsck has more right files.
fn tried(history: &History, kind: Kind, rng: &mut Rng) -> Result<(), String> {
    let home = *rng.pick(&["old", "new", "mixed", "mixed"]).unwrap();
    let pair = Pair::new(history.with_home(home, rng), kind);
    let controls = pair.controls();
    let (what, at) = *rng.pick(&controls).unwrap();
    let places: Vec<u64> = controls.iter().map(|(_, at)| *at).collect();
    let how = destroy(pair.log_device(), &places, at, rng);
    let nr = places.iter().position(|place| *place == at).unwrap();
    let context = format!("{kind:?}, home {home}, {how} in {what} ({nr} of {})", places.len());
    compared(history, &pair, &context).map(drop)
}

/// How many files are right behind a repair. `Err`: e2fsck has more, or an unattended repair writes something that is not all.
fn compared(history: &History, pair: &Pair, context: &str) -> Result<usize, String> {
    let before = pair.device.to_vec();
    let preened = repair(&pair.device, &pair.options(), &mut Preen).unwrap();
    if preened.changes() && !preened.is_clean() {
        return Err(format!("{context}: unattended {:?}", preened.deeds));
    }
    drop(preened);
    let mended = repair(&pair.device, &pair.options(), &mut Yes).unwrap();
    if !mended.is_clean() {
        return Err(format!("{context}: left {:?}", mended.left));
    }
    let ours = history.right(&mended.staged);
    let (verdict, theirs) = pair.e2fsck(&before);
    let right = history.right(&theirs);
    if ours.len() < right.len() {
        let told: Vec<String> = mended.before.found.iter().map(ToString::to_string).collect();
        let all = history.files.len();
        return Err(format!(
            "{context}: {ours:?} instead of {right:?} of {all}: {told:#?}, {verdict}"
        ));
    }
    Ok(ours.len())
}

fn try_all(kind: Kind) {
    if tool::missing() {
        return;
    }
    let number = |name: &str, or: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
    };
    let (from, seeds, rounds) = (number("FLOE_FROM", 0), number("FLOE_SEEDS", 1), 10);
    let mut failed = Vec::new();
    for seed in from..from + seeds {
        let history = History::new(&mut Rng::new(seed ^ 0x10_65));
        for round in 0..rounds {
            let mut rng = Rng::new(seed << 32 | round << 8 | kind as u64);
            let result = tried(&history, kind, &mut rng);
            failed.extend(result.err().map(|why| format!("seed {seed}, round {round}: {why}")));
        }
    }
    assert!(failed.is_empty(), "{} of {}: {failed:#?}", failed.len(), seeds * rounds);
}

#[test]
fn no_file_more_is_lost_than_by_e2fsck_with_asynchronous_commits() {
    try_all(Kind::Async);
}

#[test]
fn no_file_more_is_lost_than_by_e2fsck_with_sums_of_transactions() {
    try_all(Kind::Sums);
}

#[test]
fn no_file_more_is_lost_than_by_e2fsck_with_checksums_of_blocks() {
    try_all(Kind::Blocks);
    try_all(Kind::ShortBlocks);
}

#[test]
fn no_file_more_is_lost_than_by_e2fsck_without_checksums() {
    try_all(Kind::Bare);
}

#[test]
fn no_file_more_is_lost_than_by_e2fsck_in_external_journals() {
    for kind in [Kind::ExternalAsync, Kind::ExternalBlocks, Kind::ExternalBare] {
        try_all(kind);
    }
}

/// Destroys the superblock of a journal.
fn lose_superblock(pair: &Pair, how: &str) {
    let (device, at) = (pair.log_device(), pair.superblock());
    match how {
        "zeroes" => device.write_at(at, &[0; 1024]).unwrap(),
        "garbage" => device.write_at(at, &[0xa5; 1024]).unwrap(),
        // In the number of users and behind the kind of checksum: too many to be corrected by it.
        "two bits" => {
            let mut bytes = [0; 1024];
            device.read_at(at, &mut bytes).unwrap();
            bytes[0x43] ^= 8;
            bytes[0x57] ^= 8;
            device.write_at(at, &bytes).unwrap();
        }
        _ => pair.put_old_superblock(),
    }
}

/// It is made anew from the log, with and without checksums, in inode 8 and on another device. e2fsck drops the log.
#[test]
fn a_superblock_that_is_lost_costs_nothing_in_any_kind_of_log() {
    if tool::missing() {
        return;
    }
    let history = History::new(&mut Rng::new(5));
    let mut failed = Vec::new();
    for kind in Kind::ALL {
        for how in ["zeroes", "garbage", "two bits", "an old copy"] {
            // Without a checksum nothing says that the number of users is wrong, which e2fsck refuses, too. Beside
            // asynchronous commits these bits do no harm, and nothing is lost.
            let is_used = matches!(kind, Kind::ExternalBare | Kind::ExternalAsync);
            let is_left_out = is_used && how == "two bits";
            let homes = ["old", "new", "mixed"].into_iter().filter(|_| !is_left_out);
            for home in homes {
                let mut rng = Rng::new(kind as u64);
                let pair = Pair::new(history.with_home(home, &mut rng), kind);
                lose_superblock(&pair, how);
                let context = format!("{kind:?}, {how}, home {home}");
                match compared(&history, &pair, &context) {
                    // Where home blocks are of mixed times, the log cannot tell its beginning.
                    Ok(right) if right == history.files.len() || home == "mixed" => {}
                    Ok(right) => {
                        failed.push(format!("{context}: {right} of {}", history.files.len()))
                    }
                    Err(why) => failed.push(why),
                }
            }
        }
    }
    assert!(failed.is_empty(), "{}: {failed:#?}", failed.len());
}
