//! rext3: damage of headers, of the record and of the feature bit is found and repaired; nothing of the files changes.

use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_check::{CheckError, CheckOptions, Problem, check};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::ops::{Caller, NewInode};
use floe_disk::volume::Volume as DiskVolume;
use floe_ext4::tx::DirectTx;
use floe_format::ext::indirect::Header;
use floe_format::ext::inode::Timestamp;
use floe_format::ext::superblock::Superblock;
use floe_format::features::Incompat;
use floe_format::rext3::{Record, region_blocks, region_of};
use floe_format::{BlockNr, GroupNr, InodeNr};
use floe_testkit::{Image, Volume, tool, tree};

use crate::judged;
use crate::paper::image_with;

const NOW: Timestamp = Timestamp { seconds: tool::NOW as i64, nanoseconds: 0 };
const SIZE_BYTES: usize = 40 << 20;
const BLOCK: u64 = 1024;

/// Five groups of 8 MiB with files of one and of two levels of indirect blocks.
fn rext3() -> Image {
    let mut options = Options::of_type(FsType::Rext3);
    for (letter, value) in [('b', "1024"), ('N', "2000"), ('J', "size=2")] {
        options.set(letter, value).unwrap();
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: NOW };
    let params = options.params(SIZE_BYTES as u64, None, &fresh).unwrap();
    let device = MemDevice::new(vec![0; SIZE_BYTES]);
    mkfs::write(&Plan::new(&params).unwrap(), &device).unwrap();
    let mut volume = DiskVolume::open_rext3(&device).unwrap();
    let mut tx = DirectTx::new(&device, volume.geometry().clone());
    let caller = Caller::system(NOW);
    volume.begin_writing(&mut tx, NOW).unwrap();
    let new = NewInode::directory(0o755);
    let dir = volume.create(&mut tx, &caller, InodeNr::ROOT, b"dir", &new).unwrap();
    for (at, blocks) in (0u8..).zip([3u64, 20, 200, 300, 700, 15, 280]) {
        let (name, new) = (format!("f{at}"), NewInode::regular(0o644));
        let file = volume.create(&mut tx, &caller, dir, name.as_bytes(), &new).unwrap();
        let bytes = vec![at + 1; (blocks * BLOCK) as usize];
        volume.write(&mut tx, &device, &caller, file, 0, &bytes).unwrap();
    }
    volume.end_writing(&mut tx, NOW).unwrap();
    tx.commit().unwrap();
    Image::of(&device).unwrap()
}

fn found(image: &Image) -> Vec<Problem> {
    let options = CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    check(image, &options).unwrap().found
}

/// Repairs an image, which is clean and has the same files afterwards.
fn mend(image: &Image, whole: &Image, what: &str) {
    let repaired = judged::program(image.path()).unwrap();
    assert_eq!(repaired.exit, Some(1), "{what}: {}", repaired.text);
    assert_eq!(found(image), [], "{what}");
    let (stored, expected) = (tree::stored(image).unwrap(), tree::stored(whole).unwrap());
    assert!(stored == expected, "{what}: a file has changed");
}

/// The indirect blocks of a file with their headers.
fn nodes(volume: &Volume<'_>, path: &str) -> (InodeNr, Vec<(BlockNr, Header)>) {
    let number = volume.lookup(path).unwrap();
    let header = |block| volume.geometry.indirect().header(&volume.block(block).unwrap()).unwrap();
    let nodes = volume.map(number).unwrap().nodes;
    (number, nodes.iter().map(|node| (node.block, header(node.block))).collect())
}

fn put_header(image: &Image, block: BlockNr, header: Header) {
    let mut bytes = [0; Header::SIZE];
    header.encode_into(&mut bytes);
    image.write(block.0 * BLOCK, &bytes).unwrap();
}

#[test]
fn a_header_that_disagrees_with_the_map_is_found_and_repaired() {
    let whole = rext3();
    assert_eq!(found(&whole), []);
    let bytes = whole.to_vec().unwrap();
    let volume = Volume::open(&whole).unwrap();
    let (inode, all) = nodes(&volume, "/dir/f4");
    let levels: Vec<u32> = all.iter().map(|(_, header)| header.level).collect();
    assert_eq!(levels, [1, 2, 1, 1], "{all:?}");
    for (block, header) in &all {
        let wrong = [
            Header { inode: 0, level: 0 },
            Header { inode: inode.0 + 1, ..*header },
            Header { level: 3, ..*header },
            Header { inode: u32::MAX, level: u32::MAX },
        ];
        for wrong in wrong {
            let image = image_with(&bytes);
            put_header(&image, *block, wrong);
            let level = header.level as u8;
            let (named, stored) = (InodeNr(wrong.inode), wrong.level);
            let problem =
                Problem::IndirectHeaderWrong { inode, block: *block, level, named, stored };
            assert_eq!(found(&image), [problem]);
            mend(&image, &whole, &format!("{block}: {wrong:?}"));
            assert!(
                image.to_vec().unwrap()[..] == bytes[..] || same_but_superblock(&image, &bytes)
            );
        }
    }
}

/// A repair writes its time into superblocks.
fn same_but_superblock(image: &Image, bytes: &[u8]) -> bool {
    let now = image.to_vec().unwrap();
    let blocks = now.chunks(BLOCK as usize).zip(bytes.chunks(BLOCK as usize)).enumerate();
    let is_superblock = |bytes: &[u8]| bytes[0x38..0x3a] == [0x53, 0xef];
    blocks.filter(|(_, (now, before))| now != before).all(|(_, (now, _))| is_superblock(now))
}

/// The same damage elsewhere, in the other file of a shared indirect block: each file has one of its own afterwards, with its own
/// name in it, in a region.
#[test]
fn a_shared_indirect_block_becomes_two_with_their_own_headers() {
    let whole = rext3();
    let bytes = whole.to_vec().unwrap();
    let image = image_with(&bytes);
    let volume = Volume::open(&image).unwrap();
    let (of, nodes_of) = nodes(&volume, "/dir/f2");
    let (other, _) = nodes(&volume, "/dir/f1");
    let mut raw = volume.inode_bytes(other).unwrap();
    raw[0x58..0x5c].copy_from_slice(&(nodes_of[0].0.0 as u32).to_le_bytes());
    volume.put_inode(other, &raw).unwrap();
    let problems = found(&image);
    let of_header = |problem: &&Problem| match problem {
        Problem::IndirectHeaderWrong { inode, named, .. } => (*inode, *named) == (other, of),
        _ => false,
    };
    assert_eq!(problems.iter().filter(of_header).count(), 1, "{problems:?}");
    let repaired = judged::program(image.path()).unwrap();
    assert_eq!(repaired.exit, Some(1), "{}", repaired.text);
    assert_eq!(found(&image), []);
    let volume = Volume::open(&image).unwrap();
    let blocks = region_blocks(&volume.superblock).unwrap();
    let mut all = Vec::new();
    for path in ["/dir/f1", "/dir/f2"] {
        let (inode, nodes) = nodes(&volume, path);
        for (block, header) in nodes {
            assert_eq!(header.inode, inode.0, "{path}");
            let group = volume.geometry.group_of(block).unwrap();
            let desc = volume.desc(group).unwrap();
            let region = region_of(&volume.geometry, group, &desc, blocks);
            assert!(region.contains(block), "{path}: {block} is not in {region:?}");
            all.push(block);
        }
    }
    all.sort_unstable();
    assert!(all.windows(2).all(|pair| pair[0] != pair[1]), "{all:?}");
}

/// Changes superblocks: the primary one, and backups if `all`.
fn edit_superblocks(image: &Image, all: bool, edit: impl Fn(&mut Superblock)) {
    let volume = Volume::open(image).unwrap();
    let geometry = &volume.geometry;
    let backups = (1..geometry.group_count).filter_map(|at| geometry.superblock_of(GroupNr(at)));
    let backups: Vec<u64> = backups.map(|block| geometry.offset_bytes(block)).collect();
    for at in [1024].into_iter().chain(backups.into_iter().filter(|_| all)) {
        let mut bytes = [0; 1024];
        image.read_at(at, &mut bytes).unwrap();
        let mut superblock = Superblock::decode(&bytes);
        edit(&mut superblock);
        superblock.encode_with_checksum(&mut bytes);
        image.write_at(at, &bytes).unwrap();
    }
}

/// A bit without a record may be a flipped one of a stock file system: it is believed where a backup has both.
#[test]
fn the_record_comes_from_a_backup_or_the_bit_is_unknown() {
    let whole = rext3();
    let bytes = whole.to_vec().unwrap();
    for region_blocks in [0, 100_000] {
        let image = image_with(&bytes);
        edit_superblocks(&image, false, |superblock| Record::new(region_blocks).put(superblock));
        let problems = found(&image);
        let of_record =
            |problem: &Problem| matches!(problem, Problem::PrimarySuperblockOpenFailed { .. });
        assert!(problems.iter().any(of_record), "{problems:?}");
        mend(&image, &whole, &format!("{region_blocks}"));
        let superblock = Volume::open(&image).unwrap().superblock.clone();
        assert_eq!(Record::of(&superblock), Some(Record::new(128)), "{region_blocks}");
        let image = image_with(&bytes);
        edit_superblocks(&image, true, |superblock| Record::new(region_blocks).put(superblock));
        let error = check(&image, &CheckOptions::default()).unwrap_err();
        let names = match error {
            CheckError::UnknownFeatures { names, .. } => names,
            error => panic!("{error}"),
        };
        assert_eq!(names, ["rext3"]);
    }
}

/// Without the bit, headers would be taken for pointers, and e2fsck would write over them: the record says better.
#[test]
fn a_lost_feature_bit_is_set_again() {
    let whole = rext3();
    let bytes = whole.to_vec().unwrap();
    for all in [false, true] {
        let image = image_with(&bytes);
        let bit = Incompat::REXT3.bits();
        edit_superblocks(&image, all, |superblock| superblock.feature_incompat &= !bit);
        let problems = found(&image);
        let is_field = |problem: &&Problem| {
            let field = "s_feature_incompat";
            matches!(problem, Problem::SuperblockFieldContradicted { field: of, .. } if *of == field)
        };
        assert_eq!(problems.iter().filter(is_field).count(), 1, "{problems:?}");
        // Backups without the bit are all else that is found.
        let backups = if all { 2 } else { 0 };
        assert_eq!(problems.len(), 1 + backups, "{problems:?}");
        mend(&image, &whole, &format!("all: {all}"));
    }
}

/// The superblocks of an image, the primary one first.
fn superblocks(image: &Image) -> Vec<Superblock> {
    let volume = Volume::open(image).unwrap();
    let geometry = &volume.geometry;
    let backups = (1..geometry.group_count).filter_map(|at| geometry.superblock_of(GroupNr(at)));
    let backups: Vec<u64> = backups.map(|block| geometry.offset_bytes(block)).collect();
    let read = |at| {
        let mut bytes = [0; 1024];
        image.read_at(at, &mut bytes).unwrap();
        Superblock::decode(&bytes)
    };
    [1024].into_iter().chain(backups).map(read).collect()
}

/// After a repair every copy has the record that mkfs wrote.
fn records_are_whole(image: &Image, what: &str) {
    for copy in superblocks(image) {
        assert_eq!(region_blocks(&copy), Some(128), "{what}");
    }
}

/// A size of regions that can be, but is not theirs: what lies on the disk decides, and then the number of copies.
#[test]
fn a_wrong_size_of_regions_is_found_and_never_copied_over_the_right_one() {
    let whole = rext3();
    let bytes = whole.to_vec().unwrap();
    for wrong in [1, 3, 100, 127, 129, 200, 1000, 8192] {
        let image = image_with(&bytes);
        edit_superblocks(&image, false, |superblock| Record::new(wrong).put(superblock));
        let problems = found(&image);
        let is_record = |problem: &&Problem| {
            let field = "rext3 region_blocks";
            matches!(problem, Problem::SuperblockFieldContradicted { field: of, expected: 128, .. } if *of == field)
        };
        assert_eq!(problems.iter().filter(is_record).count(), 1, "{wrong}: {problems:?}");
        mend(&image, &whole, &format!("{wrong} in the primary one"));
        records_are_whole(&image, &format!("{wrong} in the primary one"));
        // Nothing is in use at the end of the regions: then the number of copies decides.
        if (100..128).contains(&wrong) {
            continue;
        }
        // The other way round the primary one is right, although more copies say otherwise.
        let image = image_with(&bytes);
        edit_superblocks(&image, true, |superblock| {
            if superblock.block_group_nr > 0 {
                Record::new(wrong).put(superblock);
            }
        });
        let what = format!("{wrong} in the backups");
        let problems = found(&image);
        let is_copy =
            |problem: &Problem| matches!(problem, Problem::BackupSuperblockDiffers { .. });
        assert!(!problems.is_empty() && problems.iter().all(is_copy), "{what}: {problems:?}");
        assert!(matches!(judged::program(image.path()).unwrap().exit, Some(0 | 1)), "{what}");
        records_are_whole(&image, &what);
    }
}

/// Without bit and record headers would be taken for pointers, and a repair would drop what they seem to lead to.
#[test]
fn a_file_system_whose_primary_superblock_calls_it_ext3_is_believed_to_be_rext3() {
    let whole = rext3();
    let bytes = whole.to_vec().unwrap();
    let forget = |superblock: &mut Superblock| {
        superblock.feature_incompat &= !Incompat::REXT3.bits();
        Record { magic: 0, version: 0, ..Record::new(0) }.put(superblock);
    };
    for backups_differ in [false, true] {
        let image = image_with(&bytes);
        if backups_differ {
            edit_superblocks(&image, true, |superblock| {
                if superblock.block_group_nr > 1 {
                    Record::new(700).put(superblock);
                }
            });
        }
        edit_superblocks(&image, false, forget);
        let problems = found(&image);
        let is_field = |problem: &&Problem| {
            let field = "s_feature_incompat";
            matches!(problem, Problem::SuperblockFieldContradicted { field: of, .. } if *of == field)
        };
        assert_eq!(problems.iter().filter(is_field).count(), 1, "{problems:?}");
        mend(&image, &whole, &format!("backups differ: {backups_differ}"));
        records_are_whole(&image, "forgotten");
    }
}

/// The bit alone, on a file system of another kind: the record is nowhere, and the journal's map has no header.
#[test]
fn a_stray_feature_bit_is_cleared_and_a_doubtful_one_is_refused_with_advice() {
    for kind in [FsType::Ext3, FsType::Ext4] {
        let mut options = Options::of_type(kind);
        options.set('O', "^metadata_csum").unwrap();
        options.set('b', "1024").unwrap();
        let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: NOW };
        let params = options.params(SIZE_BYTES as u64, None, &fresh).unwrap();
        let device = MemDevice::new(vec![0; SIZE_BYTES]);
        mkfs::write(&Plan::new(&params).unwrap(), &device).unwrap();
        let whole = Image::of(&device).unwrap();
        let bit = Incompat::REXT3.bits();
        let image = Image::of(&device).unwrap();
        edit_superblocks(&image, false, |superblock| superblock.feature_incompat |= bit);
        let problems = found(&image);
        let is_field = matches!(
            problems[..],
            [Problem::SuperblockFieldContradicted { field: "s_feature_incompat", .. }]
        );
        assert!(is_field, "{problems:?}");
        mend(&image, &whole, "a stray bit");
        assert!(same_but_superblock(&image, &whole.to_vec().unwrap()));
        // In all copies: nothing tells that it is damage.
        let image = Image::of(&device).unwrap();
        edit_superblocks(&image, true, |superblock| superblock.feature_incompat |= bit);
        let error = check(&image, &CheckOptions::default()).unwrap_err();
        let is_refused = matches!(&error, CheckError::UnknownFeatures { backup: None, .. });
        assert!(is_refused, "{error}");
    }
}

/// Another feature that is not known, in the primary superblock alone: the refusal names a backup without it.
#[test]
fn unknown_features_are_refused_with_the_backup_that_lacks_them() {
    let image = image_with(&rext3().to_vec().unwrap());
    edit_superblocks(&image, false, |superblock| superblock.feature_incompat |= 1 << 27);
    match check(&image, &CheckOptions::default()).unwrap_err() {
        CheckError::UnknownFeatures { names, backup: Some((block, 1024)) } => {
            assert_eq!((names.len(), block), (1, BlockNr(8193)));
        }
        error => panic!("{error}"),
    }
}
