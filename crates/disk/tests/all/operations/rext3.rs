//! Random operations on rext3: metadata in the regions and headers in indirect blocks, and checks in one sweep with the findings of
//! a check without one.

use floe_blockdev::{MemDevice, Model as Device, ReadBlocks, WriteBlocks};
use floe_check::scan::forecast::Forecast;
use floe_check::{CheckOptions, Problem, check};
use floe_disk::journal::Journal;
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::ops::{Caller, NewInode};
use floe_disk::volume::{OpenError, ReadOnly, Volume};
use floe_ext4::tx::{DirectTx, Refusal};
use floe_format::{BlockNr, BlockRun, InodeNr};
use floe_testkit::{Profile, Rng, tool, tree};

use super::image_of;
use super::model::{Model, time};
use super::sweep::{Traced, below_a_cache, damaged_alike, found, found_alike, read_again, spoil};
use crate::rext3::{Kind, judge_places, places};

fn rext3(mib: u64, options: &[(char, &str)]) -> MemDevice {
    made(FsType::Rext3, mib, options)
}

fn made(kind: FsType, mib: u64, options: &[(char, &str)]) -> MemDevice {
    let mut all = Options::of_type(kind);
    for (letter, value) in options {
        all.set(*letter, value).unwrap();
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: time(1_600_000_000) };
    let params = all.params(mib << 20, None, &fresh).unwrap();
    let device = MemDevice::new(vec![0; (mib << 20) as usize]);
    mkfs::write(&Plan::new(&params).unwrap(), &device).unwrap();
    device
}

const KINDS: [(u64, &[(char, &str)]); 3] = [
    (40, &[('b', "4096"), ('g', "2048"), ('N', "2000"), ('J', "size=4")]),
    // Blocks of 1 KiB have 254 pointers, so that maps have two levels.
    (40, &[('b', "1024"), ('g', "4096"), ('N', "2000")]),
    // Regions of 16 blocks fill up, and metadata go to the next ones.
    (40, &[('b', "4096"), ('g', "1024"), ('N', "2000"), ('J', "size=4"), ('E', "region_size=64k")]),
];

/// A file system after random operations.
fn filled((mib, options): (u64, &[(char, &str)]), seed: u64, steps: u32) -> MemDevice {
    let device = rext3(mib, options);
    let volume = Volume::open_rext3(&device).unwrap();
    let mut model = Model::of(&device, volume, Profile::Ext3, seed);
    model.most_file = 300_000;
    for _ in 0..steps {
        model.step();
    }
    model.leave();
    model.compare(&tree::stored(&image_of(&device)).unwrap());
    device
}

#[test]
fn random_operations_keep_to_regions_and_write_headers() {
    for (seed, kind) in (20..).zip(KINDS) {
        let device = filled(kind, seed, 400);
        let report = check(&device, &CheckOptions::default()).unwrap();
        assert_eq!(report.found, [], "{kind:?}");
        let (nodes, directories) = judge_places(&device, &format!("{kind:?}"));
        // Their numbers differ from run to run, because new directories are spread by chance.
        assert!(nodes > 1 && directories > 5, "{kind:?}: {nodes}, {directories}");
    }
}

/// Journals, and volumes that are opened as all others, refuse it by name, and change nothing.
#[test]
fn it_is_written_only_by_who_asks_for_it() {
    let device = rext3(40, KINDS[0].1);
    let before = device.to_vec();
    let is_named = |error: OpenError| match error {
        OpenError::ReadOnly(ReadOnly::Features(names)) => names == ["rext3"],
        _ => false,
    };
    assert!(is_named(Volume::open(&device).unwrap_err()));
    assert!(device.holds(&before));
    let journal = Journal::open(&device).unwrap();
    assert!(is_named(Volume::open_journaled(&journal).unwrap_err()));
    journal.close().unwrap();
    assert_eq!(check(&device, &CheckOptions::default()).unwrap().found, []);
    let stock = made(FsType::Ext3, 40, KINDS[0].1);
    assert!(matches!(Volume::open_rext3(&stock), Err(OpenError::Refused(Refusal::Damaged(_)))));
}

/// A full region leads to the next one; when all are full there is no space for metadata, and the file system is whole.
#[test]
fn full_regions_are_no_space() {
    let device = rext3(40, KINDS[2].1);
    let mut volume = Volume::open_rext3(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let caller = Caller::system(time(1));
    volume.begin_writing(&mut tx, time(1)).unwrap();
    let mut made = 0;
    let end = loop {
        let name = format!("d{made}");
        let new = NewInode::directory(0o755);
        match volume.create(&mut tx, &caller, InodeNr::ROOT, name.as_bytes(), &new) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    // Ten groups with 16 blocks each, and a few blocks of mkfs.
    assert!((100..160).contains(&made), "{made}: {end}");
    let new = NewInode::regular(0o644);
    let file = volume.create(&mut tx, &caller, InodeNr::ROOT, b"file", &new).unwrap();
    volume.write(&mut tx, &device, &caller, file, 0, &[1; 40_000]).unwrap();
    // Its 13th block needs an indirect block.
    assert!(volume.write(&mut tx, &device, &caller, file, 49_152, &[1; 4096]).is_err());
    volume.end_writing(&mut tx, time(1)).unwrap();
    tx.commit().unwrap();
    assert_eq!(check(&device, &CheckOptions::default()).unwrap().found, []);
}

#[test]
fn findings_are_those_of_a_check_without_a_sweep() {
    for (at, kind) in (0u64..).zip(KINDS) {
        let whole = filled(kind, 40 + at, 250);
        let (bytes, runs) = (whole.to_vec(), Forecast::of(&whole).unwrap().runs);
        let nodes = nodes(&whole);
        let block = if kind.1[0].1 == "1024" { 1024 } else { 4096 };
        // In blocks of 4 KiB, by which it is spoiled.
        let runs: Vec<_> = runs
            .into_iter()
            .map(|run| {
                let first = run.start.0 * block / 4096;
                let end = (run.end().0 * block).div_ceil(4096);
                BlockRun::new(BlockNr(first), end - first)
            })
            .collect();
        let (mut damaged, mut headers) = (0, 0);
        for seed in 0..16 {
            let device = MemDevice::new(bytes.clone());
            let mut rng = Rng::new(1000 * at + seed);
            for _ in 0..1 + rng.below(4) {
                spoil(&device, &runs, &mut rng);
            }
            let node = *rng.pick(&nodes).unwrap();
            spoil_header(&device, node, block, &mut rng);
            let plain = found_alike(&device, &format!("{kind:?} {seed}"));
            damaged += u32::from(plain.as_ref().is_ok_and(|found| !found.is_empty()));
            headers += u32::from(plain.as_ref().is_ok_and(|found| found.iter().any(of_header)));
        }
        assert!(damaged > 5 && headers > 1, "{kind:?}: {damaged}, {headers}");
    }
}

fn of_header(problem: &Problem) -> bool {
    matches!(problem, Problem::IndirectHeaderWrong { .. })
}

/// The indirect blocks of all files.
fn nodes(device: &MemDevice) -> Vec<BlockNr> {
    let all = places(device).into_iter();
    all.filter(|place| matches!(place.kind, Kind::Node { .. }))
        .map(|place| place.run.start)
        .collect()
}

/// Flips a bit of the header of an indirect block.
fn spoil_header(device: &MemDevice, node: BlockNr, block_size: u64, rng: &mut Rng) {
    let at = node.0 * block_size + rng.below(8);
    let mut byte = [0];
    device.read_at(at, &mut byte).unwrap();
    byte[0] ^= 1 << rng.below(8);
    device.write_at(at, &byte).unwrap();
}

#[test]
fn findings_are_the_same_for_the_damage_of_the_differential() {
    if tool::missing() {
        return;
    }
    let whole = filled(KINDS[0], 60, 250);
    let bytes = whole.to_vec();
    let damaged = damaged_alike(&bytes, 10);
    assert!(damaged > 10, "{damaged}");
}

/// A file system of 100 MiB with 30 directories and 300 files, which have indirect blocks.
fn with_files() -> MemDevice {
    let device = rext3(100, KINDS[0].1);
    let mut volume = Volume::open_rext3(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let caller = Caller::system(time(1));
    volume.begin_writing(&mut tx, time(1)).unwrap();
    let (mut rng, directory) = (Rng::new(70), NewInode::directory(0o755));
    for at in 0..30 {
        let name = format!("d{at}");
        let made = volume.create(&mut tx, &caller, InodeNr::ROOT, name.as_bytes(), &directory);
        let dir = made.unwrap();
        for file in 0..10 {
            let name = format!("{file}{}", "n".repeat(200));
            let new = NewInode::regular(0o644);
            let file = volume.create(&mut tx, &caller, dir, name.as_bytes(), &new).unwrap();
            let bytes = vec![1; rng.below(120_000) as usize];
            volume.write(&mut tx, &device, &caller, file, 0, &bytes).unwrap();
        }
    }
    volume.end_writing(&mut tx, time(1)).unwrap();
    tx.commit().unwrap();
    device
}

/// The check of a clean file system is one pass in the order of addresses, and its time is known before the first inode is read.
/// (Targets of links and attribute blocks lie among data, as in ext3, and would be further places.)
#[test]
fn a_check_is_one_pass() {
    let device = with_files();
    let forecast = Forecast::of(&device).unwrap();
    let traced = Traced::new(&device);
    assert_eq!(found(&traced, true, 1), Ok(Vec::new()));
    let requests = below_a_cache(&traced.reads());
    let what = format!("{requests:?} {:?}", forecast.runs);
    assert!(requests.is_sorted_by_key(|request| request.offset_bytes), "{what}");
    assert!(requests.len() <= forecast.runs.len() + 1, "{what}");
    for disk in [Device::rotating(), Device::ssd()] {
        let took = disk.replay(requests.iter().copied()).as_secs_f64();
        let told = disk.replay(forecast.requests()).as_secs_f64();
        assert!((told / took - 1.0).abs() < 0.1, "{told} of {took}: {what}");
    }
}

/// Where tables and maps do not fit the memory, the check is one pass all the same: bitmaps and names stay.
#[test]
fn beyond_its_room_a_check_is_one_pass() {
    let device = with_files();
    let bytes = Forecast::of(&device).unwrap().bytes();
    let again = read_again(&device, 4096, bytes / 2);
    assert!(again.len() < 4, "{again:?} of {}", bytes / 4096);
}
