//! Checks of native file systems in one sweep: the same findings as without, and each block read once.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Mutex;

use floe_blockdev::{Medium, MemDevice, Model as Device, ReadBlocks, Request, WriteBlocks};
use floe_check::scan::forecast::Forecast;
use floe_check::{CheckOptions, Problem, Tuning, check};
use floe_disk::ops::{Caller, NewInode};
use floe_disk::volume::{Volume, seal};
use floe_ext4::tx::DirectTx;
use floe_format::{BlockNr, BlockRun, InodeNr};
use floe_testkit::{Image, Profile, Rng, damage, tool};

use super::model::{Model, time};
use super::native::native;
use super::{device_of, image_of};

const BLOCK: u64 = 4096;

/// A device that writes down all reads.
pub(super) struct Traced<'d> {
    inner: &'d MemDevice,
    /// Hints, too.
    reads: Mutex<Vec<(u64, u64)>>,
    is_below_a_cache: bool,
    only_reads: Mutex<Vec<(u64, u64)>>,
    medium: Medium,
}

impl<'d> Traced<'d> {
    pub(super) fn new(device: &'d MemDevice) -> Self {
        let (reads, only_reads) = (Mutex::default(), Mutex::default());
        let medium = Medium::Unknown;
        Self { inner: device, reads, is_below_a_cache: false, only_reads, medium }
    }

    /// The same, with hints of what will be read.
    pub(super) fn below_a_cache(device: &'d MemDevice) -> Self {
        Self { is_below_a_cache: true, ..Self::new(device) }
    }

    pub(super) fn on(self, medium: Medium) -> Self {
        Self { medium, ..self }
    }

    pub(super) fn reads(&self) -> Vec<(u64, u64)> {
        self.reads.lock().unwrap().clone()
    }

    /// Those that are no hints.
    pub(super) fn only_reads(&self) -> Vec<(u64, u64)> {
        self.only_reads.lock().unwrap().clone()
    }
}

impl ReadBlocks for Traced<'_> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.reads.lock().unwrap().push((offset_bytes, into.len() as u64));
        self.only_reads.lock().unwrap().push((offset_bytes, into.len() as u64));
        self.inner.read_at(offset_bytes, into)
    }

    // As a page cache has it.
    fn will_need(&self, offset_bytes: u64, len_bytes: u64) {
        if self.is_below_a_cache {
            self.reads.lock().unwrap().push((offset_bytes, len_bytes));
        }
    }

    fn is_cached(&self, offset_bytes: u64) -> bool {
        let within = |(at, len): &(u64, u64)| (*at..at + len).contains(&offset_bytes);
        !self.is_below_a_cache || self.reads.lock().unwrap().iter().any(within)
    }

    fn caches_ahead(&self) -> bool {
        self.is_below_a_cache
    }

    fn medium(&self) -> Medium {
        self.medium
    }
}

/// Reads that do not go on where the last one ended.
fn places(reads: &[(u64, u64)]) -> usize {
    let ends = std::iter::once(None).chain(reads.iter().map(|(at, len)| Some(at + len)));
    reads.iter().zip(ends).filter(|((at, _), end)| Some(*at) != *end).count()
}

/// A file system with files of many extents and large directories, sealed or left as a crash leaves it.
fn filled(options: &[(char, &str)], seed: u64, sealed: bool) -> MemDevice {
    let device = native(40, options);
    let mut model = Model::new(&device, Profile::Ext4, seed);
    for _ in 0..300 {
        model.step();
    }
    if sealed {
        model.leave();
        seal(&device).unwrap();
    } else {
        model.commit();
    }
    device
}

const KINDS: [&[(char, &str)]; 2] = [
    &[('E', "lot_size=8m"), ('N', "2000")],
    // Regions of 4 blocks fill up, and metadata goes elsewhere.
    &[('E', "lot_size=4m,region_size=16k"), ('N', "2000")],
];

/// Room of a sweep that no lot of these tests leaves free: what was swept passes.
const LITTLE: u64 = 96 << 10;

pub(super) fn found(
    device: &dyn ReadBlocks,
    sweep: bool,
    threads: usize,
) -> Result<Vec<Problem>, String> {
    found_by(device, Tuning { sweep, ..Tuning::default() }, threads)
}

fn found_by(
    device: &dyn ReadBlocks,
    tuning: Tuning,
    threads: usize,
) -> Result<Vec<Problem>, String> {
    let options = CheckOptions { tuning, threads, ..CheckOptions::default() };
    let report = check(device, &options).map_err(|error| error.to_string())?;
    Ok(report.found)
}

/// The findings of a check without a sweep, after they were found to be those of checks with one, on one thread and on two, with
/// all the room that there is and with little.
pub(super) fn found_alike(device: &MemDevice, what: &str) -> Result<Vec<Problem>, String> {
    let plain = found(device, false, 1);
    for (threads, sweep_bytes) in [(1, None), (2, None), (1, Some(LITTLE)), (2, Some(LITTLE))] {
        let tuning = Tuning { sweep_bytes, ..Tuning::default() };
        assert_eq!(found_by(device, tuning, threads), plain, "{what} {threads} {sweep_bytes:?}");
        let (tuning, cached) = (Tuning { sweep_bytes, ..Tuning::default() }, Cached(device));
        let found = found_by(&cached, tuning, threads);
        assert_eq!(found, plain, "{what} {threads} {sweep_bytes:?}, below a cache");
    }
    let slowly = Tuning { shortcuts: false, ..Tuning::default() };
    assert_eq!(found_by(device, slowly, 1), plain, "{what} without shortcuts");
    plain
}

/// A device below a page cache.
struct Cached<'d>(&'d MemDevice);

impl ReadBlocks for Cached<'_> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset_bytes, into)
    }

    fn caches_ahead(&self) -> bool {
        true
    }
}

/// Spoils a block: bytes of it, all of it, or another block of metadata in its place.
pub(super) fn spoil(device: &MemDevice, runs: &[BlockRun], rng: &mut Rng) {
    let mut block = || {
        let run = runs[rng.below(runs.len() as u64) as usize];
        run.start.0 + rng.below(run.len_blocks)
    };
    let (to, from) = (block(), block());
    let mut bytes = vec![0; BLOCK as usize];
    match rng.below(3) {
        0 => {}
        1 => device.read_at(from * BLOCK, &mut bytes).unwrap(),
        _ => {
            device.read_at(to * BLOCK, &mut bytes).unwrap();
            let at = rng.below(BLOCK) as usize;
            bytes[at] ^= 1 << rng.below(8);
        }
    }
    device.write_at(to * BLOCK, &bytes).unwrap();
}

#[test]
fn findings_are_those_of_a_check_without_a_sweep() {
    for (at, options) in KINDS.into_iter().enumerate() {
        for sealed in [true, false] {
            let whole = filled(options, 40 + at as u64, sealed);
            let bytes = whole.to_vec();
            let runs = Forecast::of(&whole).unwrap().runs;
            let mut damaged = 0;
            for seed in 0..12 {
                let device = MemDevice::new(bytes.clone());
                let mut rng = Rng::new(1000 * at as u64 + seed);
                for _ in 0..1 + rng.below(4) {
                    spoil(&device, &runs, &mut rng);
                }
                let plain = found_alike(&device, &format!("{options:?} {sealed} {seed}"));
                damaged += u32::from(plain.is_ok_and(|found| !found.is_empty()));
            }
            assert!(damaged > 3, "{damaged}");
        }
    }
}

/// Damages a file system of these bytes, so many times in each way: a check finds the same with the sweep as without
/// ([`found_alike`]). Returns how many images had findings.
pub(super) fn damaged_alike(bytes: &[u8], times: u64) -> u32 {
    let mut damaged = 0;
    for from in [0, damage::AIMED_FROM, damage::HOSTILE_FROM] {
        for seed in from..from + times {
            let image = Image::empty(0).unwrap();
            std::fs::write(image.path(), bytes).unwrap();
            let image = Image::open(image.path()).unwrap();
            // Some kinds need a structure that the image lacks.
            let Ok(kind) = damage::damage(&image, seed) else { continue };
            let device = device_of(&image);
            let plain = found_alike(&device, &format!("seed {seed}: {kind:?}"));
            damaged += u32::from(plain.is_ok_and(|found| !found.is_empty()));
        }
    }
    damaged
}

/// The kinds of damage of `cargo xtask differential`: fields of all structures, aimed and hostile ones.
#[test]
fn findings_are_the_same_for_the_damage_of_the_differential() {
    if tool::missing() {
        return;
    }
    let whole = image_of(&filled(KINDS[0], 60, true));
    let bytes = std::fs::read(whole.path()).unwrap();
    let damaged = damaged_alike(&bytes, 12);
    assert!(damaged > 15, "{damaged}");
}

/// A clean file system whose metadata lie in their regions is read once, in the order of addresses, and the descriptors tell
/// what that takes.
#[test]
fn each_block_is_read_once() {
    if tool::missing() {
        return;
    }
    let device = filled(KINDS[0], 40, true);
    let (plain, swept) = (Traced::new(&device), Traced::new(&device));
    assert_eq!(found(&plain, false, 1), Ok(Vec::new()));
    assert_eq!(found(&swept, true, 1), Ok(Vec::new()));
    let mut times: BTreeMap<u64, u32> = BTreeMap::new();
    for (at, len) in swept.reads() {
        for block in at / BLOCK..(at + len).div_ceil(BLOCK) {
            *times.entry(block).or_default() += 1;
        }
    }
    let runs = Forecast::of(&device).unwrap().runs;
    let expected: u64 = runs.iter().map(|run| run.len_blocks).sum();
    let is_of_sweep = |block: u64| runs.iter().any(|run| run.contains(BlockNr(block)));
    // The superblock tells how large blocks are, and is read with them again.
    let again: Vec<_> =
        times.iter().filter(|(at, n)| **n > 1 && **at > 0 && is_of_sweep(**at)).collect();
    assert!(again.is_empty(), "{again:?}");
    // Besides, the superblock, its copies, the journal's superblock and the orphan file are read.
    let read = swept.reads().iter().map(|(_, len)| len.div_ceil(BLOCK)).sum::<u64>();
    assert!(read >= expected && read <= expected + 64, "{read} of {expected}");
    let (before, after) = (places(&plain.reads()), places(&swept.reads()));
    assert!(after * 3 < before, "{after} places instead of {before}");
}

/// The requests that reach a device below a page cache that is empty at first.
pub(super) fn below_a_cache(reads: &[(u64, u64)]) -> Vec<Request> {
    let (mut pages, mut requests) = (BTreeSet::new(), Vec::<Request>::new());
    for page in reads.iter().flat_map(|(at, len)| at / BLOCK..(at + len).div_ceil(BLOCK)) {
        if !pages.insert(page) {
            continue;
        }
        match requests.last_mut() {
            Some(last) if last.offset_bytes + last.len_bytes == page * BLOCK => {
                last.len_bytes += BLOCK;
            }
            _ => requests.push(Request::read(page * BLOCK, BLOCK)),
        }
    }
    requests
}

/// The time of a check is known before the first inode is read, at any age; the check is one pass in the order of addresses.
#[test]
fn the_time_is_told_by_descriptors() {
    if tool::missing() {
        return;
    }
    let kinds: [(u64, &[(char, &str)]); 3] = [
        (200, &[('E', "lot_size=32m"), ('N', "6000")]),
        (100, &[('G', "8"), ('g', "2048"), ('N', "6000")]),
        (150, &[('G', "32"), ('g', "1024"), ('N', "20000")]),
    ];
    for (mib, options) in kinds {
        let device = native(mib, options);
        for age in 0..3 {
            let mut model = Model::new(&device, Profile::Ext4, 90 + age);
            for _ in 0..if age == 0 { 400 } else { 150 } {
                model.step();
            }
            model.leave();
            seal(&device).unwrap();
            for disk in [Device::rotating(), Device::rotating_of(mib << 20), Device::ssd()] {
                let traced = Traced::new(&device).on(disk.medium());
                let forecast = Forecast::on(&traced, disk.medium()).unwrap();
                traced.reads.lock().unwrap().clear();
                assert_eq!(found(&traced, true, 1), Ok(Vec::new()));
                let requests = below_a_cache(&traced.reads());
                let what = format!("{options:?}, age {age}: {requests:?} {:?}", forecast.runs);
                assert!(requests.is_sorted_by_key(|request| request.offset_bytes), "{what}");
                assert!(requests.len() <= forecast.runs.len() + 1, "{what}");
                let took = disk.replay(requests.iter().copied()).as_secs_f64();
                let told = disk.replay(forecast.requests()).as_secs_f64();
                assert!((told / took - 1.0).abs() < 0.1, "{told} of {took}: {what}");
            }
        }
    }
}

/// The places that a check reads again, in a file system whose metadata have far more bytes than the sweep may hold, but for
/// superblocks and descriptors.
pub(super) fn read_again(device: &MemDevice, block_size: u64, room_bytes: u64) -> Vec<u64> {
    let traced = Traced::new(device);
    let tuning = Tuning { sweep_bytes: Some(room_bytes), ..Tuning::default() };
    assert_eq!(found_by(&traced, tuning, 1), Ok(Vec::new()));
    let mut times: BTreeMap<u64, u32> = BTreeMap::new();
    for (at, len) in traced.reads() {
        for block in at / block_size..(at + len).div_ceil(block_size) {
            *times.entry(block).or_default() += 1;
        }
    }
    times.into_iter().filter(|(block, times)| *times > 1 && *block > 1).map(|(at, _)| at).collect()
}

/// Where tables and maps do not fit the memory, each of their blocks is read once all the same, and so are names and bitmaps.
#[test]
fn beyond_its_room_each_block_is_read_once() {
    let device = native(120, &[('E', "lot_size=32m,region_size=2m"), ('N', "12000")]);
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let (now, mut rng) = (time(1), Rng::new(7));
    let caller = Caller::system(now);
    volume.begin_writing(&mut tx, now).unwrap();
    for at in 0..12 {
        let (name, new) = (format!("d{at}"), NewInode::directory(0o755));
        let dir = volume.create(&mut tx, &caller, InodeNr::ROOT, name.as_bytes(), &new).unwrap();
        for at in 0..250 {
            let (name, new) = (format!("f{at}"), NewInode::regular(0o644));
            let file = volume.create(&mut tx, &caller, dir, name.as_bytes(), &new).unwrap();
            // Every fifth has extents enough for a node.
            for piece in 0..if at % 5 == 0 { 6 } else { rng.below(2) } {
                volume.write(&mut tx, &device, &caller, file, piece * 2 * BLOCK, &[1; 9]).unwrap();
            }
        }
    }
    for lot in volume.lots_to_reserve() {
        volume.reserve_lot(&mut tx, now, lot).unwrap();
    }
    volume.end_writing(&mut tx, now).unwrap();
    tx.commit().unwrap();
    seal(&device).unwrap();
    let bytes = Forecast::of(&device).unwrap().bytes();
    let again = read_again(&device, BLOCK, bytes / 2);
    // In each of the four lots the inode of the reservation file and a copy of the superblock are looked at before.
    assert!(again.len() <= 8, "{again:?} of {}", bytes / BLOCK);
}
