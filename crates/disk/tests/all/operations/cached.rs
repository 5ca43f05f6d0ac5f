//! Checks of native file systems below a page cache: the device is told of all blocks in the order of addresses, and nothing
//! is kept a second time in the memory of the check. Beside ext4 with the same content, no more bytes are read.

use floe_blockdev::{Medium, MemDevice, Model, Request};
use floe_check::scan::forecast::Forecast;
use floe_check::{CheckOptions, Tuning, check};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::ops::{Caller, NewInode};
use floe_disk::volume::{Volume, seal};
use floe_ext4::tx::DirectTx;
use floe_format::InodeNr;
use floe_testkit::Rng;

use super::model::time;
use super::sweep::{Traced, below_a_cache};

const BLOCK: u64 = 4096;
/// Regions that hold all nodes and directories.
const NATIVE: [(char, &str); 2] = [('E', "lot_size=32m,region_size=2m"), ('N', "12000")];
/// Bytes of one read of a pass, at most.
const PIECE_BYTES: u64 = 128 << 10;

/// A file system of a type with directories of many files, some of which have nodes of maps.
fn with_files(kind: FsType, options: &[(char, &str)], dirs: u64, files: u64) -> MemDevice {
    let (mib, mut all) = (160, Options::of_type(kind));
    for (letter, value) in options {
        all.set(*letter, value).unwrap();
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: time(1) };
    let params = all.params(mib << 20, None, &fresh).unwrap();
    let device = MemDevice::new(vec![0; (mib << 20) as usize]);
    mkfs::write(&Plan::new(&params).unwrap(), &device).unwrap();
    let mut volume = Volume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let (now, mut rng) = (time(1), Rng::new(7));
    let caller = Caller::system(now);
    volume.begin_writing(&mut tx, now).unwrap();
    for at in 0..dirs {
        let (name, new) = (format!("d{at}"), NewInode::directory(0o755));
        let dir = volume.create(&mut tx, &caller, InodeNr::ROOT, name.as_bytes(), &new).unwrap();
        for at in 0..files {
            let (name, new) = (format!("f{at}"), NewInode::regular(0o644));
            let file = volume.create(&mut tx, &caller, dir, name.as_bytes(), &new).unwrap();
            for piece in 0..if at % 5 == 0 { 6 } else { rng.below(2) } {
                volume.write(&mut tx, &device, &caller, file, piece * 2 * BLOCK, &[1; 9]).unwrap();
            }
        }
    }
    if kind == FsType::Native {
        for lot in volume.lots_to_reserve() {
            volume.reserve_lot(&mut tx, now, lot).unwrap();
        }
    }
    volume.end_writing(&mut tx, now).unwrap();
    tx.commit().unwrap();
    seal(&device).unwrap();
    device
}

/// The requests of a check that reach the device below a page cache, and the largest read of the check itself.
fn requests(device: &MemDevice, tuning: Tuning) -> (Vec<Request>, u64) {
    requests_on(device, Medium::Unknown, tuning)
}

fn requests_on(device: &MemDevice, medium: Medium, tuning: Tuning) -> (Vec<Request>, u64) {
    let traced = Traced::below_a_cache(device).on(medium);
    let options = CheckOptions { tuning, threads: 1, ..CheckOptions::default() };
    let report = check(&traced, &options).unwrap();
    assert_eq!(report.found, Vec::new());
    let largest = traced.only_reads().into_iter().map(|(_, len)| len).max().unwrap();
    (below_a_cache(&traced.reads()), largest)
}

fn bytes(requests: &[Request]) -> u64 {
    requests.iter().map(|request| request.len_bytes).sum()
}

#[test]
fn the_device_is_told_of_all_in_the_order_of_addresses() {
    let device = with_files(FsType::Native, &NATIVE, 12, 250);
    let forecast = Forecast::of(&device).unwrap();
    let (all, largest) = requests(&device, Tuning::default());
    let what = format!("{all:?} {:?}", forecast.runs);
    assert!(all.is_sorted_by_key(|request| request.offset_bytes), "{what}");
    assert!(all.len() <= forecast.runs.len() + 1, "{what}");
    assert!(bytes(&all) <= forecast.bytes() + 16 * BLOCK, "{what}");
    // Runs of up to 1 MiB are not read into the memory of the check.
    assert!(largest <= PIECE_BYTES, "{largest}");
}

/// Lots that the cache need not hold all at a time: the device is told of the next while inodes of one are judged.
#[test]
fn beyond_the_room_lots_come_in_order() {
    let device = with_files(FsType::Native, &NATIVE, 12, 250);
    let forecast = Forecast::of(&device).unwrap();
    let sweep_bytes = Some(forecast.bytes() / 4);
    let (all, largest) = requests(&device, Tuning { sweep_bytes, ..Tuning::default() });
    // Descriptors and bitmaps of all lots, inodes of their reservation files, copies of the superblock, then the rest of each.
    let turns = all.windows(2).filter(|two| two[0].offset_bytes > two[1].offset_bytes).count();
    assert!(turns <= 3, "{turns}: {all:?}");
    assert!(bytes(&all) <= forecast.bytes() + 16 * BLOCK, "{all:?}");
    assert!(largest <= PIECE_BYTES, "{largest}");
}

/// The same content in both: a native file system has besides a reservation file a lot, directories of its own, copies of
/// descriptors, and gaps between tables that are read along.
#[test]
fn no_more_bytes_than_of_ext4_are_read() {
    for (dirs, files) in [(2, 40), (12, 60), (12, 250)] {
        let native = with_files(FsType::Native, &NATIVE, dirs, files);
        let stock = with_files(FsType::Ext4, &[('N', "12000"), ('b', "4096")], dirs, files);
        for (medium, of_a_lot) in OF_A_LOT {
            let (of_native, _) = requests_on(&native, medium, Tuning::default());
            let (of_stock, _) = requests(&stock, Tuning::default());
            let (read, bound) = (bytes(&of_native), bytes(&of_stock) * 11 / 10);
            assert!(read <= bound + LOTS * of_a_lot, "{dirs} {files}: {read} of {bound}");
            assert!(of_native.len() <= of_stock.len(), "{of_native:?} {of_stock:?}");
        }
    }
}

/// Lots of 32 MiB.
const LOTS: u64 = 5;
/// The gaps of a lot that has tables and a region. Groups of directories in `/` are drawn: two may share a group in one image
/// and lie apart in the other.
const OF_A_LOT: [(Medium, u64); 2] = [(Medium::Rotating, 256 << 10), (Medium::Solid, 48 << 10)];

/// A gap that is read along costs no time on the medium for which it was chosen, beside the choice for the other one.
#[test]
fn a_gap_is_read_along_where_that_costs_no_time() {
    // One of the four tables of 64 KiB in a lot is in use.
    let options = [('E', "lot_size=32m,region_size=2m"), ('N', "5000")];
    let device = with_files(FsType::Native, &options, 12, 60);
    let of = |medium| requests_on(&device, medium, Tuning::default()).0;
    let (disk, ssd) = (of(Medium::Rotating), of(Medium::Solid));
    assert!(bytes(&ssd) * 3 < bytes(&disk) * 2, "{ssd:?} {disk:?}");
    let model = Model::rotating();
    let (near, far) = (model.replay(disk.iter().copied()), model.replay(ssd.iter().copied()));
    assert!(near <= far, "{near:?} {far:?}");
    let model = Model::ssd();
    let time = |requests: &[Request]| model.replay_at_depth(4, requests.iter().copied());
    assert!(time(&ssd) <= time(&disk), "{:?} {:?}", time(&ssd), time(&disk));
}
