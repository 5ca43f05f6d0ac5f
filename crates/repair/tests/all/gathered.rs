//! Files and directories whose map is damaged, and whose blocks say by their checksums whose they are: the repair puts them back,
//! where e2fsck gives them up.

use std::collections::BTreeMap;

use floe_check::problem::Severity;
use floe_check::{CheckOptions, Problem, Report, check};
use floe_disk::mkfs::FsType;
use floe_disk::ops::{Caller, NewInode};
use floe_disk::volume::Volume as DiskVolume;
use floe_ext4::tx::DirectTx;
use floe_format::ext::inode::Timestamp;
use floe_format::{BlockNr, InodeNr};
use floe_repair::policy::{Decision, Policy};
use floe_repair::{Reason, RepairOptions, repair};
use floe_testkit::tree::{self, Tree};
use floe_testkit::{Image, Volume, oracle, tool};

use crate::judged;
use crate::paper::{image_with, made};

const NOW: Timestamp = Timestamp { seconds: tool::NOW as i64, nanoseconds: 0 };
const FILE: &str = "/file";
const DIR: &str = "/directory";

/// A file system with blocks of 1 KiB, of which a node holds 84 extents: one file of 40 extents, one of 500, whose tree has two levels below
/// the root, and a directory of 300 files in some blocks.
fn image(kind: FsType) -> Image {
    let device = made(kind);
    let mut volume = DiskVolume::open(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let caller = Caller::system(NOW);
    volume.begin_writing(&mut tx, NOW).unwrap();
    let regular = NewInode::regular(0o644);
    let block = u64::from(volume.geometry().block_size);
    for (name, extents) in [("file", 40), ("long", 500)] {
        let file =
            volume.create(&mut tx, &caller, InodeNr::ROOT, name.as_bytes(), &regular).unwrap();
        for at in 0..extents {
            let bytes = vec![(at % 250) as u8 + 1; block as usize];
            volume.write(&mut tx, &device, &caller, file, at * 2 * block, &bytes).unwrap();
        }
    }
    let new = NewInode::directory(0o755);
    let dir = volume.create(&mut tx, &caller, InodeNr::ROOT, b"directory", &new).unwrap();
    for at in 0..300 {
        let name = format!("a name of a file, the number of which is {at}");
        volume.create(&mut tx, &caller, dir, name.as_bytes(), &regular).unwrap();
    }
    for lot in volume.lots_to_reserve() {
        volume.reserve_lot(&mut tx, NOW, lot).unwrap();
    }
    volume.end_writing(&mut tx, NOW).unwrap();
    tx.commit().unwrap();
    Image::of(&device).unwrap()
}

/// Changes an inode, whose checksum is right again afterwards.
fn inode(volume: &Volume<'_>, path: &str, change: impl Fn(&mut [u8])) {
    let number = volume.lookup(path).unwrap();
    let mut bytes = volume.inode_bytes(number).unwrap();
    change(&mut bytes);
    volume.put_inode(number, &bytes).unwrap();
    volume.fix_inode(number).unwrap();
}

/// The nodes of a file, those above first.
fn nodes(volume: &Volume<'_>, path: &str) -> Vec<(BlockNr, u16)> {
    let map = volume.map(volume.lookup(path).unwrap()).unwrap();
    let depth = |block| {
        let bytes = volume.block(block).unwrap();
        u16::from_le_bytes([bytes[6], bytes[7]])
    };
    let mut all: Vec<_> = map.nodes.iter().map(|node| (node.block, depth(node.block))).collect();
    all.sort_by_key(|(_, depth)| std::cmp::Reverse(*depth));
    all
}

/// All paths with their contents, but for lost+found.
fn contents(image: &Image) -> BTreeMap<Vec<u8>, (u64, String)> {
    let all: Tree = tree::stored(image).unwrap();
    let all = all.into_iter().filter(|(path, _)| !path.starts_with(b"/lost+found"));
    all.map(|(path, node)| (path, (node.size_bytes, node.content))).collect()
}

type Damage = (&'static str, fn(&Volume<'_>));

const DAMAGE: [Damage; 7] = [
    ("the magic number of a root", |volume| inode(volume, FILE, |bytes| bytes[0x28] ^= 0xff)),
    ("a root of zeroes", |volume| inode(volume, FILE, |bytes| bytes[0x28..0x28 + 60].fill(0))),
    ("the root of a deep tree", |volume| {
        inode(volume, "/long", |bytes| bytes[0x28..0x28 + 60].fill(0x5a));
    }),
    ("a pointer out of the file system", |volume| {
        inode(volume, FILE, |bytes| bytes[0x28 + 12 + 7] = 0x7f);
    }),
    ("a pointer to nothing", |volume| {
        let free = volume.geometry.blocks_count - 5;
        inode(volume, FILE, |bytes| {
            bytes[0x28 + 12 + 4..0x28 + 12 + 8].copy_from_slice(&(free as u32).to_le_bytes());
        });
    }),
    ("a node above others", |volume| {
        let (node, depth) = nodes(volume, "/long")[0];
        assert!(depth > 0 || volume.geometry.block_size == 4096, "{depth}");
        if depth > 0 {
            volume.put_block(node, &vec![0; volume.block_bytes()]).unwrap();
        }
    }),
    ("the root of a directory", |volume| {
        inode(volume, DIR, |bytes| bytes[0x28..0x28 + 60].fill(0));
    }),
];

#[test]
fn blocks_that_say_whose_they_are_are_put_back() {
    if tool::missing() {
        return;
    }
    for kind in [FsType::Ext4, FsType::Native] {
        let whole = image(kind);
        assert!(oracle::e2fsck(&whole).unwrap().clean(), "{kind:?}");
        let (bytes, before) = (whole.to_vec().unwrap(), contents(&whole));
        for (name, spoil) in DAMAGE {
            let what = format!("{kind:?}, {name}");
            let image = image_with(&bytes);
            spoil(&Volume::open(&image).unwrap());
            let other = image_with(&image.to_vec().unwrap());
            let repaired = judged::program(image.path()).unwrap();
            assert!(matches!(repaired.exit, Some(0 | 1)), "{what}: {}", repaired.text);
            let after = contents(&image);
            let other_now = before.iter().filter(|(path, old)| after.get(*path) != Some(old));
            let paths = other_now.map(|(path, _)| String::from_utf8_lossy(path).into_owned());
            assert_eq!(paths.collect::<Vec<_>>(), Vec::<String>::new(), "{what}");
            let options =
                CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
            assert_eq!(check(&image, &options).unwrap().found, [], "{what}");
            let judged = oracle::e2fsck(&image).unwrap();
            assert!(judged.clean(), "{what}: {}", judged.text);
            // As nobody would bother if e2fsck did it.
            if repaired.exit == Some(1) {
                oracle::run(other.path(), &["-fy"]).unwrap();
                assert!(contents(&other) != before, "{what}");
            }
        }
    }
}

/// A leaf that was freed, and one whose blocks are others' by now, are not put back.
#[test]
fn blocks_of_the_past_are_not_put_back() {
    if tool::missing() {
        return;
    }
    let whole = image(FsType::Ext4);
    let volume = Volume::open(&whole).unwrap();
    let (file, (leaf, _)) = (volume.lookup(FILE).unwrap(), nodes(&volume, FILE)[0]);
    // A second version of the leaf, in a block that is marked as used: at other places of the file, with blocks of another file.
    let mut stale = volume.block(leaf).unwrap();
    let taken = volume.map(volume.lookup("/long").unwrap()).unwrap();
    let block = taken.data.values().next().unwrap().0 as u32;
    for at in 0..40 {
        let entry = 12 + at * 12;
        let logical = 1_000_000 + at as u32;
        stale[entry..entry + 4].copy_from_slice(&logical.to_le_bytes());
        stale[entry + 8..entry + 12].copy_from_slice(&(block + 2 * at as u32).to_le_bytes());
    }
    // Where it would be taken first, if it were a spare block of the map: before the true one, whose place is taken by its copy.
    let place = leaf;
    let moved = BlockNr(volume.geometry.blocks_count - 9);
    volume.put_block(moved, &volume.block(leaf).unwrap()).unwrap();
    mark_used(&volume, moved);
    volume.put_block(place, &stale).unwrap();
    volume.fix_extent_node(file, place).unwrap();
    mark_used(&volume, place);
    let stale = volume.block(place).unwrap();
    // And a reason to look for blocks.
    inode(&volume, FILE, |bytes| bytes[0x28] ^= 0xff);
    let repaired = judged::program(whole.path()).unwrap();
    assert_eq!(repaired.exit, Some(1), "{}", repaired.text);
    let volume = Volume::open(&whole).unwrap();
    let map = volume.map(volume.lookup(FILE).unwrap()).unwrap();
    assert_eq!(map.data.len(), 40);
    // Its content stays there, for those who look into free blocks: it is no spare block of the map.
    assert_eq!(volume.block(place).unwrap(), stale);
    assert!(map.nodes.iter().all(|node| node.block != place));
    assert!(oracle::e2fsck(&whole).unwrap().clean());
}

/// A policy that refuses the repair of a file is not told that its blocks, which stay marked, were freed in vain.
#[test]
fn blocks_of_a_file_whose_repair_is_refused_wait() {
    struct Refusing;
    impl Policy for Refusing {
        fn decide(&mut self, problems: &[Problem], _: &Report) -> Decision {
            let refused = |problem: &Problem| problem.row().severity >= Severity::DataRisk;
            Decision::Each(problems.iter().map(|problem| !refused(problem)).collect())
        }
    }
    if tool::missing() {
        return;
    }
    let whole = image(FsType::Ext4);
    inode(&Volume::open(&whole).unwrap(), FILE, |bytes| bytes[0x28..0x28 + 60].fill(0));
    let check = CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    let options = RepairOptions { check, random: [7; 16], ..RepairOptions::default() };
    let repaired = repair(&whole, &options, &mut Refusing).unwrap();
    let mut left: Vec<_> =
        repaired.left.iter().map(|(problem, reason)| (problem.row().id, reason.clone())).collect();
    left.sort_by_key(|(id, _)| *id);
    let waits = Reason::Waits { made: false };
    let expected = [
        ("block-bitmap-leaked-range", waits.clone()),
        ("group-free-block-count-wrong", waits),
        ("inode-extent-header-corrupt", Reason::Refused),
    ];
    assert_eq!(left, expected);
    assert!(repaired.rounds < 8, "{} rounds", repaired.rounds);
}

/// Marks a block as used.
fn mark_used(volume: &Volume<'_>, block: BlockNr) {
    let group = volume.geometry.group_of(block).unwrap();
    let bit = block.0 - volume.geometry.group_start(group).0;
    let at = volume.desc(group).unwrap().block_bitmap;
    let mut bytes = volume.block(at).unwrap();
    bytes[(bit / 8) as usize] |= 1 << (bit % 8);
    volume.put_block(at, &bytes).unwrap();
    volume.fix_bitmaps(group).unwrap();
}
