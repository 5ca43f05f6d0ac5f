//! A repair writes superblock, descriptors and their backups early, and copies shared blocks late. A block of a file that lies in the
//! place of such metadata must be copied before they are written, or it is lost; e2fsck, which writes them last, keeps it. Where nobody
//! may copy it, metadata must not be written there.

use std::collections::BTreeSet;

use floe_check::{CheckOptions, Problem, Report};
use floe_format::ext::inode::InodeFlags;
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr};
use floe_repair::policy::{Decision, Policy};
use floe_repair::{Repair, RepairOptions, repair};
use floe_testkit::{Image, Profile, Volume, build, oracle, tool};

use crate::nodes_on_metadata::{contents, repaired};

/// The block in the place of metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// A node of an extent tree, or an indirect block.
    Node,
    Directory,
    Data,
    /// Data, and a pointer out of the file system, which must go first.
    DataOfDamagedMap,
}

impl Part {
    const fn path(self) -> &'static str {
        match self {
            Self::Node => "/fragmented",
            Self::Directory => "/many",
            Self::Data | Self::DataOfDamagedMap => "/dir/file",
        }
    }
}

/// Places that every file system has, but for the second.
fn places(volume: &Volume<'_>) -> Vec<(&'static str, BlockNr)> {
    let geometry = &volume.geometry;
    let first = volume.desc(GroupNr(0)).unwrap();
    let reserved = geometry.reserved_gdt_run(GroupNr(0));
    let table = first.inode_table.0 + u64::from(geometry.inode_table_blocks);
    let mut places = vec![
        ("descriptors", geometry.primary_desc_block(0)),
        ("reserved descriptors", reserved.start),
        ("a block bitmap", first.block_bitmap),
        ("the end of an inode table", BlockNr(table - 2)),
    ];
    places.retain(|(_, place)| reserved.len_blocks > 0 || *place != reserved.start);
    places
}

/// The blocks in the first entry of a map, and the byte of the inode that tells where they lie.
fn first_of(volume: &Volume<'_>, part: Part, inode: InodeNr, raw: &[u8]) -> (BlockRun, usize) {
    let map = volume.map(inode).unwrap();
    let flags = u32::from_le_bytes(*raw[0x20..].first_chunk().unwrap());
    let has_extents = flags & InodeFlags::EXTENTS.bits() != 0;
    let (start, at) = match (part, has_extents) {
        (Part::Node, true) => (map.nodes[0].block, 12 + 4),
        (Part::Node, false) => (map.nodes[0].block, 12 * 4),
        (_, true) => (*map.data.values().next().unwrap(), 12 + 8),
        (_, false) => (*map.data.values().next().unwrap(), 0),
    };
    let len = match (part, has_extents) {
        (Part::Node, _) | (_, false) => 1,
        (_, true) => u64::from(raw[0x28 + 12 + 4]),
    };
    (BlockRun::new(start, len), 0x28 + at)
}

/// Adds one behind the end of a file with one extent, or a block map.
fn add_wrong_pointer(raw: &mut [u8]) {
    let map = &mut raw[0x28..0x28 + 60];
    if map[..2] == [0x0a, 0xf3] {
        assert_eq!(map[2], 1);
        map[2] = 2;
        map[24..36].copy_from_slice(&[50, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f]);
    } else {
        map[40..44].copy_from_slice(&0x7fff_ffff_u32.to_le_bytes());
    }
}

/// Moves the first blocks of a file to the place of metadata. Returns where they lie.
fn put(volume: &Volume<'_>, part: Part, to: BlockNr) -> BlockRun {
    let inode = volume.lookup(part.path()).unwrap();
    let mut raw = volume.inode_bytes(inode).unwrap();
    let (from, at) = first_of(volume, part, inode, &raw);
    assert_eq!(raw[at..at + 4], (from.start.0 as u32).to_le_bytes(), "{part:?}");
    raw[at..at + 4].copy_from_slice(&(to.0 as u32).to_le_bytes());
    if part == Part::DataOfDamagedMap {
        add_wrong_pointer(&mut raw);
    }
    volume.put_inode(inode, &raw).unwrap();
    volume.fix_inode(inode).unwrap();
    let blocks = (0..from.len_blocks).map(|nr| volume.block(BlockNr(from.start.0 + nr)).unwrap());
    // From here on the testkit may find nothing any more.
    for (nr, content) in blocks.collect::<Vec<_>>().iter().enumerate() {
        volume.put_block(BlockNr(to.0 + nr as u64), content).unwrap();
    }
    BlockRun::new(to, from.len_blocks)
}

/// Repairs every part in every place, and calls `judge` with the image and the blocks.
fn everywhere(part: Part, mut judge: impl FnMut(&Image, &Image, BlockRun, &str)) {
    if tool::missing() {
        return;
    }
    for profile in [Profile::NoCsum, Profile::Ext3, Profile::Ext4K1, Profile::BigallocK1] {
        let whole = build::base(profile).unwrap();
        for (name, place) in places(&Volume::open(&whole).unwrap()) {
            if profile == Profile::BigallocK1 && name == "descriptors" {
                // There is one group, and no backup.
                continue;
            }
            let image = whole.copy().unwrap();
            let run = put(&Volume::open(&image).unwrap(), part, place);
            judge(&whole, &image, run, &format!("{profile}: {part:?} on {name} ({place})"));
        }
    }
}

fn is_copied_first(part: Part) {
    everywhere(part, |whole, image, _, what| {
        let repair = repaired(image);
        assert!(repair.is_clean(), "{what}");
        let after = image.with_staged(&repair.staged).unwrap();
        assert!(oracle::e2fsck(&after).unwrap().clean(), "{what}");
        assert_eq!(changed(whole, &after), [""; 0], "{what}");
    });
}

#[test]
fn a_map_node_in_the_place_of_metadata_is_copied_before_they_are_written() {
    is_copied_first(Part::Node);
}

#[test]
fn a_directory_in_the_place_of_metadata_is_copied_before_they_are_written() {
    is_copied_first(Part::Directory);
}

#[test]
fn data_in_the_place_of_metadata_are_copied_before_they_are_written() {
    is_copied_first(Part::Data);
}

#[test]
fn a_map_is_mended_before_its_data_in_the_place_of_metadata_are_copied() {
    is_copied_first(Part::DataOfDamagedMap);
}

/// Paths that differ.
fn changed(before: &Image, after: &Image) -> Vec<String> {
    let (before, after) = (contents(before), contents(after));
    let all: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    // A block that was read as inodes may have brought some of them names.
    let is_known = |path: &&Vec<u8>| !path.starts_with(b"/lost+found/");
    let all = all.into_iter().filter(is_known);
    let differs = all.filter(|path| before.get(*path) != after.get(*path));
    differs.map(|path| String::from_utf8_lossy(path).into_owned()).collect()
}

/// Refuses copies.
struct NoCopies;

impl Policy for NoCopies {
    fn decide(&mut self, problems: &[Problem], _report: &Report) -> Decision {
        let is_copy = |problem: &Problem| {
            matches!(
                problem,
                Problem::MultiplyClaimedFile { .. }
                    | Problem::MapNodeOverlapsCriticalMetadata { .. }
                    | Problem::ClusterMisalignedMapping { .. }
            )
        };
        Decision::Each(problems.iter().map(|problem| !is_copy(problem)).collect())
    }
}

fn repaired_without_copies(image: &Image) -> Repair<'_> {
    let check = CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    repair(image, &RepairOptions { check, ..RepairOptions::default() }, &mut NoCopies).unwrap()
}

fn is_not_written_over(part: Part) {
    everywhere(part, |whole, image, run, what| {
        let refused = repaired_without_copies(image);
        let deeds: Vec<_> = refused.deeds.iter().map(|deed| (&deed.edit, &deed.problem)).collect();
        assert!(!refused.left.is_empty(), "{what}: {deeds:?}");
        let after = image.with_staged(&refused.staged).unwrap();
        for block in (run.start.0..run.end().0).map(BlockNr) {
            let content = |image| Volume::open(image).map(|it| it.block(block).unwrap());
            let (was, is) = (content(image).unwrap(), content(&after).unwrap());
            assert!(was == is, "{what}: {block}");
        }
        // A second thought finds everything.
        let repair = repaired(&after);
        assert!(repair.is_clean(), "{what}");
        let end = after.with_staged(&repair.staged).unwrap();
        assert_eq!(changed(whole, &end), [""; 0], "{what}");
    });
}

#[test]
fn metadata_are_not_written_over_a_node_whose_copy_is_refused() {
    is_not_written_over(Part::Node);
}

#[test]
fn metadata_are_not_written_over_a_directory_whose_copy_is_refused() {
    is_not_written_over(Part::Directory);
}

#[test]
fn metadata_are_not_written_over_data_whose_copy_is_refused() {
    is_not_written_over(Part::Data);
}

/// Descriptors that are a file's block, too, and place the inode table elsewhere in which that file is: whose block it is shows only
/// once they are mended.
#[test]
fn descriptors_are_copied_for_a_file_that_they_hide() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::Ext3).unwrap();
    let volume = Volume::open(&image).unwrap();
    let (geometry, first) = (&volume.geometry, volume.desc(GroupNr(0)).unwrap());
    let place = geometry.primary_desc_block(0);
    put(&volume, Part::Data, place);
    let whole = build::base(Profile::Ext3).unwrap();
    let mut bytes = Volume::open(&whole).unwrap().block(place).unwrap();
    let elsewhere = first.inode_table.0 as u32 + geometry.inode_table_blocks;
    bytes[8..12].copy_from_slice(&elsewhere.to_le_bytes());
    volume.put_block(place, &bytes).unwrap();
    let repair = repaired(&image);
    assert!(repair.is_clean(), "{:?}", repair.left);
    let after = image.with_staged(&repair.staged).unwrap();
    assert_eq!(changed(&whole, &after), ["/dir/file"]);
    let mended = Volume::open(&after).unwrap();
    let map = mended.map(mended.lookup("/dir/file").unwrap()).unwrap();
    assert!(mended.block(*map.data.values().next().unwrap()).unwrap() == bytes);
    // Without a copy nothing may be changed.
    let refused = repaired_without_copies(&image);
    assert!(!refused.left.is_empty());
    let untouched = image.with_staged(&refused.staged).unwrap();
    assert!(untouched.to_vec().unwrap() == image.to_vec().unwrap());
}
