//! One control block in one of several logs is destroyed, at random, over home blocks of random ages: behind a repair each file is
//! there whose transactions are sound and depend on none that is lost. `FLOE_SEEDS` says how many times.

use std::collections::{BTreeMap, BTreeSet};

use floe_blockdev::{MemDevice, WriteBlocks};
use floe_format::InodeNr;
use floe_format::ext::jbd2::{self, COMMIT_BLOCK, DESCRIPTOR_BLOCK, REVOKE_BLOCK};
use floe_format::native::commit;
use floe_format::native::cube::Policies;
use floe_fs::{Disk, FileSystem, Live, MemFs, Mode, NewInode, Store, now};
use floe_testkit::rng::Rng;

use super::journals::repaired;
use super::struck::{BLOCK, Tenants, find, laid_out, make, read, used, write};
use super::weighed::{logged, logs};
use crate::memory::with_journals;

const FILES: usize = 16;
const SIZE: usize = BLOCK as usize;

/// A transaction: the inode of its journal, and its number.
type Id = (u32, u32);

/// A control block of a log.
struct Control {
    of: Id,
    kind: u32,
    offset: u64,
}

/// A file, or a directory in the root, that fsync made durable.
struct Synced {
    /// Its directory; a directory has none, and no bytes.
    top: Option<usize>,
    name: String,
    bytes: Vec<u8>,
    /// The transactions that fsync has written.
    of: BTreeSet<Id>,
}

/// A file system with synced files that nobody unmounts.
struct History {
    tops: &'static [&'static str],
    crashed: Vec<u8>,
    states: Vec<Vec<u8>>,
    logged: Vec<usize>,
    files: Vec<Synced>,
    controls: Vec<Control>,
    /// The transactions on which each depends.
    dependencies: BTreeMap<Id, Vec<Id>>,
}

/// All control blocks of transactions that the logs hold.
fn controls(bytes: &[u8]) -> Vec<Control> {
    let device = MemDevice::new(bytes.to_vec());
    let mut all = Vec::new();
    for (_, inode, log) in logs(&device) {
        let mut own = Vec::new();
        for at in log.superblock.first..log.blocks {
            let offset = log.offset_bytes(at).unwrap();
            let header = jbd2::header(&bytes[offset as usize..][..SIZE]);
            let kinds = [DESCRIPTOR_BLOCK, REVOKE_BLOCK, COMMIT_BLOCK];
            let header = header.filter(|header| {
                header.sequence >= log.superblock.sequence && kinds.contains(&header.blocktype)
            });
            let header = header.filter(|_| log.superblock.start != 0);
            own.extend(header.map(|header| Control {
                of: (inode.0, header.sequence),
                kind: header.blocktype,
                offset,
            }));
        }
        let last = own.iter().filter(|one| one.kind == COMMIT_BLOCK).map(|one| one.of.1).max();
        own.retain(|one| last.is_some_and(|last| one.of.1 <= last));
        all.extend(own);
    }
    all
}

/// The first transaction of each log.
fn tails(bytes: &[u8]) -> Vec<Id> {
    let logs = logs(&MemDevice::new(bytes.to_vec())).into_iter();
    logs.map(|(_, inode, log)| (inode.0, log.superblock.sequence)).collect()
}

fn committed(bytes: &[u8]) -> BTreeSet<Id> {
    let all = controls(bytes).into_iter().filter(|one| one.kind == COMMIT_BLOCK);
    all.map(|one| one.of).collect()
}

fn made<S: Store>(fs: &FileSystem<S>, tops: &[&str], nr: usize, rng: &mut Rng) -> Synced {
    let (name, of) = (format!("synced{nr}"), BTreeSet::new());
    if rng.chance(4) {
        // Its inode may lie in a lot of another journal than the entry.
        make(fs, InodeNr::ROOT, &name, NewInode::directory(0o755)).unwrap();
        fs.sync_inode(InodeNr::ROOT, None).unwrap();
        return Synced { top: None, name, bytes: Vec::new(), of };
    }
    let (at, bytes) = (rng.index(tops.len()), vec![nr as u8 + 1; 1 + rng.index(9000)]);
    let top = find(fs, InodeNr::ROOT, tops[at]).unwrap();
    let file = make(fs, top, &name, NewInode::regular(0o644)).unwrap();
    write(fs, file, 0, &bytes).unwrap();
    fs.sync_inode(file, None).unwrap();
    fs.sync_inode(top, None).unwrap();
    Synced { top: Some(at), name, bytes, of }
}

impl History {
    fn new(base: Vec<u8>, tops: &'static [&'static str], rng: &mut Rng) -> Self {
        let device = MemDevice::new(base);
        let (mut files, mut snapshots): (Vec<Synced>, _) = (Vec::new(), Vec::new());
        {
            let (disk, mut volume) = Disk::open(&device).unwrap();
            volume.draw_by_seed(rng.below(1 << 32));
            let known = disk.files().unwrap();
            let live = Live::new(&disk, &known, volume, now()).unwrap();
            let fs = FileSystem::new(MemFs::new(live, Default::default()));
            let mut before = committed(&device.to_vec());
            for nr in 0..FILES {
                let synced = made(&fs, tops, nr, rng);
                let image = device.to_vec();
                let after = committed(&image);
                let of = after.difference(&before).copied().collect();
                files.push(Synced { of, ..synced });
                before = after;
                if nr % 4 == 3 {
                    snapshots.push(image);
                }
            }
        }
        let states = snapshots.iter().map(|bytes| {
            let device = MemDevice::new(bytes.clone());
            floe_disk::recovery::recover(&device).unwrap();
            device.to_vec()
        });
        let states: Vec<Vec<u8>> = states.collect();
        let crashed = snapshots.last().unwrap().clone();
        // Home blocks are no older than the tails of the logs.
        let is_since = |(bytes, _): &(&Vec<u8>, Vec<u8>)| tails(bytes) == tails(&crashed);
        let states = snapshots.iter().zip(states).filter(is_since).map(|(_, state)| state);
        let states: Vec<Vec<u8>> = states.collect();
        let logged = logged(&crashed, states.last().unwrap());
        let controls = controls(&crashed);
        let commits = controls.iter().filter(|one| one.kind == COMMIT_BLOCK);
        let lists = commits.map(|one| {
            let of = commit::of(&crashed[one.offset as usize..][..SIZE]);
            (one.of, of.iter().map(|other| (other.journal_inode, other.sequence)).collect())
        });
        let dependencies = lists.collect();
        Self { tops, crashed, states, logged, files, controls, dependencies }
    }

    /// Home blocks as the crash left them, new, or each of a random age.
    fn with_home(&self, rng: &mut Rng) -> (MemDevice, &'static str) {
        let (kind, name) =
            *rng.pick(&[(0, "old"), (1, "new"), (2, "mixed"), (2, "mixed")]).unwrap();
        let mut bytes = self.crashed.clone();
        for at in &self.logged {
            let range = at * SIZE..(at + 1) * SIZE;
            let age = match kind {
                0 => continue,
                1 => self.states.len() - 1,
                _ => rng.index(self.states.len() + 1),
            };
            if let Some(state) = self.states.get(age) {
                bytes[range.clone()].copy_from_slice(&state[range]);
            }
        }
        (MemDevice::new(bytes), name)
    }

    /// The transactions that are lost with one, whose block is destroyed: nobody can tell the last one from one that a crash cut off.
    fn lost(&self, first: Id) -> BTreeSet<Id> {
        let mut lost = BTreeSet::from([first]);
        loop {
            let before = lost.len();
            for (one, list) in &self.dependencies {
                if list.iter().any(|other| lost.contains(other)) {
                    lost.insert(*one);
                }
            }
            if lost.len() == before {
                return lost;
            }
        }
    }

    /// The control blocks of transactions that have a part in another log.
    fn partners(&self) -> Vec<&Control> {
        let has_any =
            |one: &&Control| self.dependencies.get(&one.of).is_some_and(|of| !of.is_empty());
        self.controls.iter().filter(has_any).collect()
    }

    /// Names of files that are not as they should be.
    fn wrong(&self, device: &MemDevice, lost: &BTreeSet<Id>) -> Vec<&str> {
        let (wrong, closed) = used(device, |fs| {
            let is_wrong = |file: &&Synced| {
                let Some(top) = file.top else {
                    return find(fs, InodeNr::ROOT, &file.name).is_err();
                };
                let top = find(fs, InodeNr::ROOT, self.tops[top]);
                let found = top.and_then(|top| find(fs, top, &file.name));
                let bytes = found.and_then(|found| read(fs, found, 10_000));
                bytes.ok().as_ref() != Some(&file.bytes)
            };
            let sound = self.files.iter().filter(|file| file.of.is_disjoint(lost));
            sound.filter(is_wrong).map(|file| file.name.as_str()).collect()
        });
        closed.unwrap();
        wrong
    }

    fn damaged(&self, rng: &mut Rng) -> Result<(), String> {
        let (device, home) = self.with_home(rng);
        let (hit, likely) = (rng.pick(&self.controls), rng.pick(&self.partners()).copied());
        // Rather one of which another log has a part.
        let hit = likely.filter(|_| rng.chance(2)).or(hit);
        let Some(hit) = hit else { return Ok(()) };
        let mut block = self.crashed[hit.offset as usize..][..SIZE].to_vec();
        let how = match rng.below(4) {
            0 => {
                block.fill(0);
                "zeroes"
            }
            1 => {
                rng.fill(&mut block);
                "noise"
            }
            2 => {
                rng.fill(&mut block[rng.clone().index(60)..][..3]);
                "three bytes"
            }
            _ => {
                block[rng.index(12)] ^= 1 << rng.below(8);
                "a bit of the header"
            }
        };
        device.write_at(hit.offset, &block).unwrap();
        let lost = self.lost(hit.of);
        let mounted = device.clone();
        // A mount that goes on loses nothing either, nor one beside a log that waits.
        let mut wrong = Vec::new();
        if Disk::open(&device.clone()).is_ok() {
            let (waits, closed) = used(&mounted, |fs| {
                let gates = fs.store().gates().unwrap();
                [1, 2].iter().any(|cube| gates.state(*cube).0 == Mode::Failed)
            });
            closed.unwrap();
            if waits {
                repaired(&mounted);
            }
            wrong = self.wrong(&mounted, &lost);
        }
        repaired(&device);
        wrong.extend(self.wrong(&device, &lost));
        let Control { of, kind, offset } = hit;
        let context = format!("{how} in block type {kind} of {of:?} at {offset}, home {home}");
        if wrong.is_empty() { Ok(()) } else { Err(format!("{context}: {wrong:?}")) }
    }
}

fn try_all(base: &dyn Fn() -> Vec<u8>, tops: &'static [&'static str], salt: u64) {
    let seeds = std::env::var("FLOE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut failed = Vec::new();
    let from = std::env::var("FLOE_FROM").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    for seed in from..from + seeds {
        let mut rng = Rng::new(seed ^ salt);
        let history = History::new(base(), tops, &mut rng);
        for round in 0..12 {
            let result = history.damaged(&mut rng);
            failed.extend(result.err().map(|why| format!("seed {seed}, round {round}: {why}")));
        }
    }
    assert!(failed.is_empty(), "{} of {}: {failed:#?}", failed.len(), seeds * 12);
}

const TOPS: [&str; 8] = ["1", "2", "3", "4", "5", "6", "7", "8"];

fn of_journals(count: u32) -> Vec<u8> {
    let device = MemDevice::new(with_journals(count).to_vec());
    let ((), closed) = used(&device, |fs| {
        for top in TOPS {
            make(fs, InodeNr::ROOT, top, NewInode::directory(0o755)).unwrap();
        }
    });
    closed.unwrap();
    device.to_vec()
}

#[test]
fn no_sound_transaction_of_four_journals_is_dropped() {
    try_all(&|| of_journals(4), &TOPS, 0x4000);
}

#[test]
fn no_sound_transaction_of_two_journals_is_dropped() {
    try_all(&|| of_journals(2), &TOPS, 0x2000);
}

#[test]
fn no_sound_transaction_of_cubes_is_dropped() {
    try_all(&|| laid_out(Tenants::Apart, Policies::default()), &["a", "b"], 0x3000);
}
