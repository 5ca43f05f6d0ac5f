//! After a system that does not know cubes has written: blocks that it put into other cubes move back when Floe mounts the file
//! system, and cubes whose names lead into each other fail together. The fence keeps such a system out.

use floe_blockdev::{Crash, MemDevice, ReadBlocks, Recorder, WriteBlocks};
use floe_check::{CheckOptions, Problem, check};
use floe_ext4::alloc::Space as _;
use floe_ext4::fs::FileSystem as Layout;
use floe_ext4::inode_table::read_inode;
use floe_format::InodeNr;
use floe_format::crc::crc32c;
use floe_format::ext::inode::OwnedInode;
use floe_format::native::cube::Policies;
use floe_format::native::identity::{FLAG_COUPLED, Identity};
use floe_fs::{CubeCall, Mode, Store as _};
use floe_testkit::crash::{Effort, crashes};

use super::super::memory::crash::cannot_be;
use super::struck::{BLOCK, FILES, Tenants, at, find, image, load, read, used};
use super::{blocks, edit, scope, structures};

/// As if Linux had mounted and unmounted the file system.
fn visit(device: &dyn WriteBlocks) {
    let mut superblock = Layout::open(device).unwrap().superblock;
    superblock.mnt_count += 1;
    superblock.mtime += 9;
    let mut bytes = [0; 1024];
    superblock.encode_with_checksum(&mut bytes);
    device.write_at(1024, &bytes).unwrap();
}

fn name(at: u32) -> String {
    format!("file{at}{}", "-".repeat(180))
}

/// The inodes of the same file in both cubes.
fn twins(device: &MemDevice, number: u32) -> [InodeNr; 2] {
    let copy = device.clone();
    let (found, closed) = used(&copy, |fs| {
        ["/a", "/b"].map(|top| find(fs, at(fs, top).unwrap(), &name(number)).unwrap())
    });
    closed.unwrap();
    found
}

fn inode(device: &dyn ReadBlocks, number: InodeNr) -> OwnedInode {
    let layout = Layout::open(device).unwrap();
    let raw = read_inode(number, device, layout.geometry(), layout.space.groups().descs());
    OwnedInode::of(number, raw.unwrap()).unwrap()
}

/// Lets a name lead to another inode, with the right checksum.
fn lead(device: &dyn WriteBlocks, dir: InodeNr, name: &str, to: InodeNr) {
    let of_dir = inode(device, dir);
    let layout = Layout::open(device).unwrap();
    let seed = layout.superblock.seed().of_inode(dir, of_dir.base.generation);
    for (_, block) in blocks(device, dir) {
        let mut bytes = vec![0; BLOCK as usize];
        device.read_at(block * BLOCK, &mut bytes).unwrap();
        let found = bytes.windows(name.len()).position(|window| window == name.as_bytes());
        if let Some(found) = found {
            bytes[found - 8..found - 4].copy_from_slice(&to.0.to_le_bytes());
            let end = bytes.len() - 12;
            let sum = crc32c(seed, &bytes[..end]);
            bytes[end + 8..].copy_from_slice(&sum.to_le_bytes());
            device.write_at(block * BLOCK, &bytes).unwrap();
            return;
        }
    }
    panic!("{dir} has no name {name}");
}

fn ids(found: &[Problem]) -> Vec<&'static str> {
    found.iter().map(|problem| problem.row().id).collect()
}

fn found(device: &dyn ReadBlocks) -> Vec<Problem> {
    check(device, &CheckOptions::default()).unwrap().found
}

/// Content and attributes of files change places, as if Linux had put them there.
fn entangled() -> MemDevice {
    let device = MemDevice::new(image(Policies::default()));
    for number in [2, 5, 7] {
        let [one, other] = twins(&device, number).map(|number| inode(&device, number));
        let put = |to: &OwnedInode, from: &OwnedInode| {
            edit(&device, to.number, |inode| {
                inode.base.block = from.base.block;
                inode.base.file_acl_lo = from.base.file_acl_lo;
            });
        };
        put(&one, &other);
        put(&other, &one);
    }
    visit(&device);
    device
}

#[test]
fn blocks_that_another_system_put_into_another_cube_move_back() {
    let device = entangled();
    let entangled = found(&device);
    assert!(ids(&entangled).iter().all(|id| *id == "cube-entangled-blocks"), "{entangled:?}");
    assert!(entangled.len() >= 6, "{entangled:?}");
    let ((), closed) = used(&device, |fs| {
        let gates = fs.store().gates().unwrap();
        let news = fs.take_news();
        assert!(news.len() == 1 && news[0].contains("6 files moved back"), "{news:?}");
        assert_eq!((gates.state(1).0, gates.state(2).0), (Mode::Serving, Mode::Serving));
        for top in ["/a", "/b"] {
            for number in 0..FILES {
                let file = find(fs, at(fs, top).unwrap(), &name(number)).unwrap();
                assert_eq!(read(fs, file, 9000).unwrap(), [number as u8; 3000]);
            }
            let failed = load(fs, at(fs, top).unwrap(), 1);
            assert!(failed.is_empty(), "{failed:?}");
        }
    });
    closed.unwrap();
    assert!(found(&device).is_empty(), "{:?}", found(&device));
    let own = Identity::of(&Layout::open(&device).unwrap().superblock).unwrap();
    assert_eq!(own.flags & FLAG_COUPLED, 0, "references are judged again");
    let own = scope(&device);
    for number in [2, 5, 7] {
        let [one, _] = twins(&device, number);
        let all = blocks(&device, one).into_iter().map(|(_, block)| block);
        let all = all.chain([u64::from(inode(&device, one).base.file_acl_lo)]);
        assert!(all.into_iter().all(|block| own.holds_block(floe_format::BlockNr(block))));
    }
}

#[test]
fn cubes_whose_names_lead_into_each_other_fail_together() {
    let device = MemDevice::new(image(Policies::default()));
    let [one, other] = twins(&device, 2);
    let (tops, closed) = used(&device.clone(), |fs| ["/a", "/b"].map(|top| at(fs, top).unwrap()));
    closed.unwrap();
    lead(&device, tops[0], &name(2), other);
    lead(&device, tops[1], &name(2), one);
    visit(&device);
    let serves = |device: &MemDevice, damaged: bool| {
        let ((), closed) = used(device, |fs| {
            let gates = fs.store().gates().unwrap();
            let shown = fs.cube_call(&CubeCall::Number(1)).unwrap();
            let shown = String::from_utf8(shown).unwrap();
            assert!(shown.contains("\tcoupled=2"), "{shown}");
            let [a, b] = tops;
            assert_eq!(read(fs, find(fs, a, &name(2)).unwrap(), 9000).unwrap(), [2; 3000]);
            let turn = if damaged { 4 } else { 1 };
            let failed = load(fs, a, turn);
            assert_eq!(failed.is_empty(), !damaged, "{failed:?}");
            if damaged {
                let (mode, why) = gates.state(2);
                assert_eq!(mode, Mode::ReadOnly);
                assert!(why.unwrap().contains("shares files with cube 1"));
                let failed = load(fs, b, 2);
                assert!(!failed.is_empty());
            }
            let failed = load(fs, InodeNr::ROOT, turn);
            assert!(failed.is_empty(), "{failed:?}");
        });
        closed.unwrap();
    };
    serves(&device, false);
    let flags = || Identity::of(&Layout::open(&device).unwrap().superblock).unwrap().flags;
    assert_ne!(flags() & FLAG_COUPLED, 0);
    // The next mount knows it without a look at all files.
    let places = structures(&device, Tenants::Shared);
    let block = places.iter().find(|(what, _)| *what == "attribute block").unwrap().1;
    device.write_at(block * BLOCK + 40, b"damage").unwrap();
    serves(&device, true);
    let problems = found(&device);
    let failures = ids(&problems).iter().filter(|id| **id == "cube-failure-recorded").count();
    assert_eq!(failures, 2, "{problems:?}");
    // They are checked together, too.
    let options = CheckOptions::default();
    let name = floe_check::cube::CubeName::Number(2);
    let (report, _) = floe_check::cube::check_cube(&device, &options, &name).unwrap();
    let failures = ids(&report.found).iter().filter(|id| **id == "cube-failure-recorded").count();
    assert_eq!(failures, 2, "{:?}", report.found);
}

#[test]
fn a_fence_holds_the_free_blocks_of_cubes_until_the_next_mount() {
    let device = MemDevice::new(image(Policies::default()));
    let free = |device: &MemDevice| {
        let layout = Layout::open(device).unwrap();
        let descs = layout.space.groups().descs().to_vec();
        let own = scope(device);
        let all = own.groups().map(|group| descs[group.0 as usize].free_blocks_count);
        all.sum::<u32>()
    };
    let before = free(&device);
    assert!(before > 100, "{before}");
    let ((), closed) = used(&device, |fs| drop(fs.cube_call(&CubeCall::Fence).unwrap()));
    closed.unwrap();
    assert_eq!(free(&device), 0);
    assert!(found(&device).is_empty(), "{:?}", found(&device));
    let name = floe_check::cube::CubeName::Number(1);
    let (report, _) =
        floe_check::cube::check_cube(&device, &CheckOptions::default(), &name).unwrap();
    assert!(report.found.is_empty(), "{:?}", report.found);
    let ((), closed) = used(&device, |fs| {
        let failed = load(fs, at(fs, "/a").unwrap(), 1);
        assert!(failed.is_empty(), "{failed:?}");
    });
    closed.unwrap();
    assert!(free(&device) > before - 100, "{} of {before}", free(&device));
    assert!(found(&device).is_empty(), "{:?}", found(&device));
}

/// Power fails while blocks move back: in each state of which `wanted` takes one, the next mount has all content and finishes
/// what was begun. Returns how many states were tried.
fn power_fails_while_blocks_move_back(wanted: usize) -> usize {
    let base = entangled().to_vec();
    let recorder = Recorder::new(MemDevice::new(base.clone()));
    let ((), closed) = used(&recorder, |_| {});
    closed.unwrap();
    let trace = recorder.trace();
    let all = crashes(&trace, Effort::default()).into_iter();
    let all: Vec<Crash> = all.filter(|crash| !cannot_be(&trace, crash)).step_by(wanted).collect();
    for crash in &all {
        let device = MemDevice::new(base.clone());
        trace.replay(crash, &device).unwrap();
        let ((), closed) = used(&device, |fs| {
            for top in ["/a", "/b"] {
                let top = at(fs, top).unwrap();
                for number in [1, 2, 5, 7] {
                    let file = find(fs, top, &name(number)).unwrap();
                    let content = read(fs, file, 9000).unwrap();
                    assert_eq!(content, [number as u8; 3000], "{crash:?}");
                }
            }
        });
        closed.unwrap();
        assert!(found(&device).is_empty(), "{crash:?}: {:?}", found(&device));
    }
    all.len()
}

#[test]
fn power_fails_while_blocks_move_back_into_their_cubes() {
    let states = power_fails_while_blocks_move_back(29);
    assert!(states > 10, "{states}");
}

#[test]
#[ignore = "all states; `cargo xtask crash` runs it"]
fn power_fails_in_all_states_while_blocks_move_back() {
    eprintln!("{} states", power_fails_while_blocks_move_back(1));
}
