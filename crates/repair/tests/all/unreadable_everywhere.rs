//! Makes each block that a check reads unreadable in turn: a repair neither overwrites it nor gives
//! up its content, so that everything is intact once it is readable again.
//!
//! `FLOE_SEEDS=0` tests every block instead of a sample, and prints each.

use std::collections::BTreeSet;
use std::io;
use std::sync::Mutex;

use floe_blockdev::{Fault, Faulty, ReadBlocks};
use floe_format::ext::inode::{FileType, Inode};
use floe_format::{BlockNr, InodeNr};
use floe_repair::policy::Yes;
use floe_repair::{Repair, RepairError, RepairOptions, repair};
use floe_testkit::compare::losses;
use floe_testkit::volume::Volume;
use floe_testkit::{Image, Profile, build, damage, oracle, tool, tree};

use crate::yes_to_all::options;

/// Records the blocks that are read.
struct Noting<'i> {
    image: &'i Image,
    block_bytes: u64,
    read: Mutex<BTreeSet<u64>>,
}

impl ReadBlocks for Noting<'_> {
    fn size_bytes(&self) -> u64 {
        self.image.size()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        let end = offset_bytes + into.len() as u64;
        let blocks = offset_bytes / self.block_bytes..end.div_ceil(self.block_bytes);
        self.read.lock().unwrap().extend(blocks);
        self.image.read_at(offset_bytes, into)
    }
}

/// The blocks that a repair of an image reads.
fn blocks_read(image: &Image, block_bytes: u64) -> Vec<BlockNr> {
    let device = Noting { image, block_bytes, read: Mutex::default() };
    let _ = repair(&device, &options(), &mut Yes);
    let read = device.read.into_inner().unwrap();
    read.into_iter().map(BlockNr).collect()
}

fn is_staged(repair: &Repair<'_>, block: BlockNr) -> bool {
    let at = block.0 * repair.staged.page_bytes();
    repair.staged.staged_ranges().iter().any(|range| range.contains(&at))
}

fn sample(blocks: Vec<BlockNr>, most: usize) -> Vec<BlockNr> {
    let all = std::env::var("FLOE_SEEDS").is_ok_and(|text| text == "0");
    let step = if all { 1 } else { blocks.len().div_ceil(most) };
    blocks.into_iter().step_by(step).collect()
}

/// Repairs `image` with one block unreadable, and again with all readable; returns the image, and
/// whether the first repair noticed the block.
fn repaired_twice(
    image: &Image,
    hidden: BlockNr,
    block_bytes: u32,
    must_be_left: &BTreeSet<BlockNr>,
) -> (Image, bool) {
    let device = Faulty::new(image, block_bytes, [(hidden, Fault::Unreadable)]);
    let (copy, noticed) = match repair(&device, &options(), &mut Yes) {
        Ok(blind) => {
            assert!(!is_staged(&blind, hidden), "{hidden} is overwritten");
            let noticed = !blind.staged.unreadable_offsets().is_empty();
            // Maps, names and the like can only be left; bitmaps and backups can be recreated
            // elsewhere.
            let mended = blind.is_clean() && blind.left.is_empty();
            assert!(!mended || !must_be_left.contains(&hidden), "{hidden}: {:?}", blind.deeds);
            (image.with_staged(&blind.staged).unwrap(), noticed)
        }
        Err(RepairError::Check(_) | RepairError::HiddenFromJournal { .. }) => {
            (image.copy().unwrap(), true)
        }
        Err(error) => panic!("{hidden}: {error}"),
    };
    let second = repair(&copy, &options(), &mut Yes).unwrap();
    assert!(second.is_clean(), "{hidden}: {:?}", second.left);
    (copy.with_staged(&second.staged).unwrap(), noticed)
}

/// Blocks with names, maps and used inodes of an undamaged file system.
fn metadata_of_files(image: &Image) -> BTreeSet<BlockNr> {
    let volume = Volume::open(image).unwrap();
    let mut blocks = BTreeSet::new();
    for inode in volume.used_inodes().unwrap() {
        let at = volume.inode_offset(inode).unwrap();
        blocks.insert(BlockNr(at / u64::from(volume.geometry.block_size)));
        let Ok(map) = volume.map(inode) else { continue };
        blocks.extend(map.nodes.iter().map(|node| node.block));
        let raw = volume.inode_bytes(inode).unwrap();
        let inode = Inode::decode(&raw).unwrap();
        if inode.file_type() == Some(FileType::Directory) {
            blocks.extend(map.data.values());
        }
        blocks.extend(Some(BlockNr(inode.file_acl(true))).filter(|block| block.0 != 0));
    }
    blocks
}

/// An undamaged file system loses nothing, whichever block is unreadable during the repair.
#[test]
fn whatever_cannot_be_read_is_there_when_it_comes_back() {
    if tool::missing() {
        return;
    }
    let profiles =
        [Profile::Ext4K1, Profile::Ext2K1, Profile::Ext3, Profile::Quota, Profile::InlineData];
    for profile in profiles {
        let image = build::base(profile).unwrap();
        let base = tree::stored(&image).unwrap();
        let block_bytes = u32::try_from(profile.block_size()).unwrap();
        let must_be_left = metadata_of_files(&image);
        let mut noticed_blocks = 0;
        for hidden in sample(blocks_read(&image, u64::from(block_bytes)), 12) {
            let (ours, noticed) = repaired_twice(&image, hidden, block_bytes, &must_be_left);
            noticed_blocks += usize::from(noticed);
            let lost = losses(&base, &tree::stored(&ours).unwrap(), &base);
            assert!(lost.is_empty(), "{profile}, {hidden} hidden: {lost:?}");
            let theirs = oracle::e2fsck(&ours).unwrap();
            assert!(theirs.clean(), "{profile}, {hidden} hidden: {}", theirs.text);
        }
        assert!(noticed_blocks > 5, "{profile}: {noticed_blocks}");
    }
}

/// A damaged one loses no more than in a repair that can read everything.
#[test]
fn damage_beside_it_is_no_reason_to_give_it_up() {
    if tool::missing() {
        return;
    }
    for (seed, profile) in (900..).zip([Profile::Ext4K1, Profile::Ext2K1, Profile::Quota]) {
        let base = tree::stored(&build::base(profile).unwrap()).unwrap();
        let (image, _) = damage::damaged_image(profile, seed).unwrap();
        let direct = repair(&image, &options(), &mut Yes).unwrap();
        assert!(direct.is_clean(), "seed {seed} is unsuitable");
        let direct = tree::stored(&image.with_staged(&direct.staged).unwrap()).unwrap();
        let block_bytes = u32::try_from(profile.block_size()).unwrap();
        for hidden in sample(blocks_read(&image, u64::from(block_bytes)), 12) {
            let (ours, _) = repaired_twice(&image, hidden, block_bytes, &BTreeSet::new());
            let lost = losses(&direct, &tree::stored(&ours).unwrap(), &base);
            assert!(lost.is_empty(), "{profile}:{seed}, {hidden} hidden: {lost:?}");
        }
    }
}

/// With permission the unreadable blocks are overwritten, and their content is given up.
#[test]
fn by_permission_a_directory_block_is_emptied() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::Ext4K1).unwrap();
    let volume = Volume::open(&image).unwrap();
    let map = volume.map(volume.lookup("/dir").unwrap()).unwrap();
    let hidden = *map.data.values().next().unwrap();
    let device = Faulty::new(&image, 1024, [(hidden, Fault::Unreadable)]);
    let left = repair(&device, &options(), &mut Yes).unwrap();
    assert!(!is_staged(&left, hidden) && !left.is_clean());
    assert!(left.left.iter().any(|(problem, reason)| {
        problem.row().id == "dir-block-read-error"
            && format!("{reason:?}").contains("--overwrite-unreadable")
    }));
    let permitted = RepairOptions { overwrite_unreadable: true, ..options() };
    let emptied = repair(&device, &permitted, &mut Yes).unwrap();
    assert!(is_staged(&emptied, hidden) && emptied.is_clean(), "{:?}", emptied.left);
}

/// The first block of a file's content.
fn first_block(volume: &Volume<'_>, inode: InodeNr) -> BlockNr {
    *volume.map(inode).unwrap().data.values().next().unwrap()
}

/// Damage is repaired although a block is unreadable that has nothing to do with it.
#[test]
fn only_what_depends_on_a_block_is_left() {
    if tool::missing() {
        return;
    }
    // A wrong block count, a free block marked as used, one name more than counted.
    let damage = "sif /fragmented blocks 9\nsetb 8189\nsif /hard-a links_count 1\n";
    let all = ["inode-block-count-wrong", "block-bitmap-leaked-block", "inode-link-count-wrong"];
    for profile in [Profile::Ext4K1, Profile::Ext3, Profile::Quota, Profile::EaInode] {
        let image = build::base(profile).unwrap();
        build::debugfs(&image, damage).unwrap();
        let volume = Volume::open(&image).unwrap();
        let at = |path: &str| volume.lookup(path).unwrap();
        let raw = volume.inode_bytes(at("/ea-block")).unwrap();
        let attributes = BlockNr(Inode::decode(&raw).unwrap().file_acl(true));
        let resize = volume.map(InodeNr(7)).unwrap().nodes[0].block;
        let hidden = [
            ("target of a symlink", first_block(&volume, at("/long-link")), "unreadable-block"),
            ("attributes", attributes, "xattr-block-unreadable"),
            ("map of the resize inode", resize, "unreadable-block"),
            ("names", first_block(&volume, at("/dir")), "dir-block-read-error"),
        ];
        for (what, block, finding) in hidden {
            let device = Faulty::new(&image, 1024, [(block, Fault::Unreadable)]);
            let blind = repair(&device, &options(), &mut Yes).unwrap();
            let done = |id: &str| {
                let mut problems = blind.deeds.iter().filter_map(|deed| deed.problem.as_ref());
                problems.any(|problem| problem.row().id == id)
            };
            for id in all {
                assert!(done(id), "{profile}, {what} hidden: {id} in {:?}", blind.left);
            }
            assert!(!is_staged(&blind, block), "{profile}: {what} overwritten");
            let left = blind.left.iter().any(|(problem, _)| problem.row().id == finding);
            assert!(left && !blind.is_clean(), "{profile}, {what} hidden: {:?}", blind.left);
        }
    }
}
