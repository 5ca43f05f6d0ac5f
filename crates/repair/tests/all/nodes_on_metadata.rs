//! A node of an extent tree that lies on metadata of the file system is the file's all the same if what lies there says so: the repair
//! copies it elsewhere, and the file stays, as after e2fsck.

use std::collections::BTreeMap;

use floe_check::CheckOptions;
use floe_format::{BlockNr, GroupNr};
use floe_repair::policy::Yes;
use floe_repair::{Repair, RepairOptions, repair};
use floe_testkit::tree::stored;
use floe_testkit::{Image, Profile, Volume, build, oracle, tool};

const FILE: &str = "/fragmented";

pub(crate) fn repaired(image: &Image) -> Repair<'_> {
    let check = CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    repair(image, &RepairOptions { check, ..RepairOptions::default() }, &mut Yes).unwrap()
}

/// Blocks of metadata of every kind whose content a repair can make anew.
fn places(volume: &Volume<'_>) -> Vec<(&'static str, BlockNr)> {
    let (geometry, group) = (&volume.geometry, GroupNr(3));
    let last = volume.desc(GroupNr(2)).unwrap();
    vec![
        ("the backup of the superblock", geometry.superblock_of(group).unwrap()),
        ("the backup of descriptors", geometry.group_desc_run(group).start),
        ("blocks reserved for descriptors", geometry.reserved_gdt_run(group).start),
        ("a block bitmap", last.block_bitmap),
        ("an inode bitmap", last.inode_bitmap),
    ]
}

/// Moves the first node below the root into `to`, where `content` comes from.
fn move_node(volume: &Volume<'_>, to: BlockNr, content: Option<Vec<u8>>) {
    let file = volume.lookup(FILE).unwrap();
    let node = volume.map(file).unwrap().nodes[0].block;
    let content = content.unwrap_or_else(|| volume.block(node).unwrap());
    volume.put_block(to, &content).unwrap();
    let mut raw = volume.inode_bytes(file).unwrap();
    raw[0x28 + 12 + 4..0x28 + 12 + 8].copy_from_slice(&(to.0 as u32).to_le_bytes());
    volume.put_inode(file, &raw).unwrap();
    volume.fix_inode(file).unwrap();
}

/// Size in bytes and content of everything, by path.
pub(crate) fn contents(image: &Image) -> BTreeMap<Vec<u8>, (u64, String)> {
    let all = stored(image).unwrap().into_iter();
    all.map(|(path, node)| (path, (node.size_bytes, node.content))).collect()
}

#[test]
fn a_node_that_is_the_files_by_its_content_is_kept() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::Ext4K1, Profile::NoCsum] {
        let whole = build::base(profile).unwrap();
        let before = contents(&whole);
        for (name, place) in places(&Volume::open(&whole).unwrap()) {
            let what = format!("{profile}, on {name}");
            let image = whole.copy().unwrap();
            move_node(&Volume::open(&image).unwrap(), place, None);
            let repair = repaired(&image);
            assert!(repair.is_clean(), "{what}: {:?}", repair.left);
            let after = image.with_staged(&repair.staged).unwrap();
            assert!(contents(&after) == before, "{what}");
            let verdict = oracle::e2fsck(&after).unwrap();
            assert!(verdict.clean(), "{what}: {}", verdict.text);
        }
    }
}

/// Metadata in the place of a node cost the blocks below it, and nothing else of the file.
#[test]
fn metadata_are_not_taken_for_a_node() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::Ext4K1, Profile::NoCsum] {
        let whole = build::base(profile).unwrap();
        let mut before = contents(&whole);
        before.remove(FILE.as_bytes());
        for (name, place) in places(&Volume::open(&whole).unwrap()) {
            let what = format!("{profile}, on {name}");
            let image = whole.copy().unwrap();
            let volume = Volume::open(&image).unwrap();
            move_node(&volume, place, Some(volume.block(place).unwrap()));
            let repair = repaired(&image);
            assert!(repair.is_clean(), "{what}: {:?}", repair.left);
            let after = image.with_staged(&repair.staged).unwrap();
            let mut after_all = contents(&after);
            assert!(after_all.remove(FILE.as_bytes()).is_some(), "{what}: the file is gone");
            assert!(after_all == before, "{what}");
            assert!(oracle::e2fsck(&after).unwrap().clean(), "{what}");
        }
    }
}
