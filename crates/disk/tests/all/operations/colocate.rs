//! Metadata put together in stock file systems (`-o colocate`): where blocks lie, and that a check seeks less.

use floe_blockdev::{MemDevice, Request, WriteBlocks};
use floe_check::{CheckOptions, check};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::ops::{Caller, NewInode, OpError};
use floe_disk::volume::Volume;
use floe_ext4::tx::DirectTx;
use floe_format::{BlockNr, InodeNr};
use floe_testkit::{Volume as Stored, tool};

use super::model::time;
use super::sweep::{Traced, below_a_cache};
use super::{image_of, judge};

const BLOCK: u64 = 4096;
const GROUP: u64 = 2048;
const FILES: u64 = 60;

/// Files that grow in turn, so that each of their blocks lies elsewhere; in ext3 far enough for a double indirect block.
fn grown(kind: FsType, mib: u64, colocate: bool, blocks: u64) -> MemDevice {
    let mut options = Options::of_type(kind);
    for (letter, value) in [('g', "2048"), ('b', "4096"), ('N', "2000"), ('m', "0")] {
        options.set(letter, value).unwrap();
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: time(1) };
    let device = MemDevice::new(vec![0; (mib << 20) as usize]);
    let params = options.params(mib << 20, None, &fresh).unwrap();
    mkfs::write(&Plan::new(&params).unwrap(), &device).unwrap();
    let mut volume = Volume::open(&device).unwrap();
    if colocate {
        volume.colocate();
    }
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let caller = Caller::system(time(1));
    volume.begin_writing(&mut tx, time(1)).unwrap();
    let mut files = Vec::new();
    for at in 0..FILES {
        let name = format!("d{at}");
        let new = NewInode::directory(0o755);
        let dir = volume.create(&mut tx, &caller, InodeNr::ROOT, name.as_bytes(), &new).unwrap();
        let new = NewInode::regular(0o644);
        files.push(volume.create(&mut tx, &caller, dir, b"file", &new).unwrap());
    }
    for block in 0..blocks {
        for file in &files {
            // Behind the direct and the single indirect blocks, too.
            let far = if kind == FsType::Ext3 && block % 4 == 3 { 2000 } else { 0 };
            let at = (block * 2 + far) * BLOCK;
            match volume.write(&mut tx, &device, &caller, *file, at, &[7; BLOCK as usize]) {
                // As full as it can be.
                Err(OpError::NoSpace) if block > 200 => {}
                done => done.unwrap(),
            }
        }
        let epoch = volume.end_epoch();
        tx.commit().unwrap();
        volume.durable(epoch);
    }
    volume.end_writing(&mut tx, time(1)).unwrap();
    tx.commit().unwrap();
    device.flush().unwrap();
    judge(&image_of(&device), &format!("{kind:?} {colocate}"));
    device
}

/// Whether a block lies where metadata are put: in ext3 in 4 % of its group, in ext4 in a quarter of the first group of a
/// flexible group, behind the file system's own structures, which take no more than 1,200 blocks of a group here.
fn is_in_area(kind: FsType, block: BlockNr) -> bool {
    match kind {
        FsType::Ext3 => block.0 % GROUP < 1200 + GROUP / 25,
        _ => block.0 % (16 * GROUP) < 1200 + GROUP / 4,
    }
}

/// Nodes of the maps of all files by their depth, and their data.
fn maps(device: &MemDevice) -> (Vec<(BlockNr, bool)>, Vec<BlockNr>) {
    let image = image_of(device);
    let image = floe_testkit::Image::open(image.path()).unwrap();
    let volume = Stored::open(&image).unwrap();
    let (mut nodes, mut data) = (Vec::new(), Vec::new());
    for at in 0..FILES {
        let map = volume.map(volume.lookup(&format!("/d{at}/file")).unwrap()).unwrap();
        let first = volume.inode_bytes(volume.lookup(&format!("/d{at}/file")).unwrap()).unwrap();
        let word = |at: usize| u32::from_le_bytes(first[at..at + 4].try_into().unwrap());
        let has_extents = first[0x22] & 0x08 != 0;
        let single = if has_extents { 0 } else { word(0x28 + 12 * 4) };
        nodes.extend(map.nodes.iter().map(|node| (node.block, node.block.0 == u64::from(single))));
        data.extend(map.data.into_values());
    }
    (nodes, data)
}

/// Reads that begin far from the end of the one before: what is near passes below the head sooner than it seeks.
fn far(reads: &[Request]) -> usize {
    let ends = reads.iter().map(|read| read.offset_bytes + read.len_bytes);
    let ends = std::iter::once(0).chain(ends);
    reads
        .iter()
        .zip(ends)
        .filter(|(read, end)| read.offset_bytes.abs_diff(*end) > 128 << 10)
        .count()
}

#[test]
fn a_check_seeks_half_as_often_at_most() {
    if tool::missing() {
        return;
    }
    let seeks = |device: &MemDevice| {
        let traced = Traced::below_a_cache(device);
        let report = check(&traced, &CheckOptions::default()).unwrap();
        assert!(report.found.is_empty(), "{:?}", report.found);
        far(&below_a_cache(&traced.reads()))
    };
    let (apart, together) =
        (grown(FsType::Ext4, 192, false, 40), grown(FsType::Ext4, 192, true, 40));
    let (nodes, data) = maps(&together);
    assert!(nodes.len() as u64 >= FILES);
    assert!(nodes.iter().all(|(block, _)| is_in_area(FsType::Ext4, *block)), "{nodes:?}");
    assert!(data.len() as u64 >= FILES * 40);
    let (before, after) = (seeks(&apart), seeks(&together));
    assert!(after * 2 <= before, "{after} instead of {before}");
}

#[test]
fn the_first_indirect_block_stays_with_its_data() {
    if tool::missing() {
        return;
    }
    let device = grown(FsType::Ext3, 64, true, 24);
    let (nodes, data) = maps(&device);
    let near = |block: BlockNr| data.iter().any(|other| other.0.abs_diff(block.0) <= FILES + 1);
    let (single, others): (Vec<_>, Vec<_>) = nodes.iter().partition(|(_, single)| *single);
    assert_eq!(single.len() as u64, FILES);
    assert!(single.iter().all(|(block, _)| near(*block)), "{single:?}");
    assert!(others.len() as u64 >= 2 * FILES, "{others:?}");
    assert!(others.iter().all(|(block, _)| is_in_area(FsType::Ext3, *block)), "{others:?}");
}

/// An area of 512 blocks, and files that need more than it, and all other room: both spill over.
#[test]
fn metadata_and_data_spill_over() {
    if tool::missing() {
        return;
    }
    // 8 groups of 2,048 blocks; without the areas there is no room for the files.
    let device = grown(FsType::Ext4, 64, true, 260);
    let (nodes, data) = maps(&device);
    assert!(data.len() as u64 > FILES * 220 && nodes.len() as u64 >= FILES);
    assert!(data.iter().any(|block| is_in_area(FsType::Ext4, *block)));
    assert!(check(&device, &CheckOptions::default()).unwrap().found.is_empty());
}
