//! Optional work of a repair on real images: e2fsck finds nothing afterwards, no file is lost or
//! changed, and a second run has nothing to do.

use std::collections::BTreeMap;
use std::fs;

use floe_blockdev::ReadBlocks;
use floe_check::CheckOptions;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::features::{Compat, Incompat, RoCompat};
use floe_repair::policy::Preen;
use floe_repair::{Edit, Extras, Repair, RepairOptions, repair};
use floe_testkit::tree::stored;
use floe_testkit::{Image, Profile, Volume, build, oracle, tool};

/// Repairs unattended, so that only the requested work can count as damage.
fn run<'d>(image: &'d Image, extras: Extras) -> Repair<'d> {
    let now_seconds = i64::from(tool::NOW);
    let check = CheckOptions { threads: 2, now_seconds, ..CheckOptions::default() };
    let options = RepairOptions { check, extras, ..RepairOptions::default() };
    repair(image, &options, &mut Preen).unwrap()
}

/// The user's view: paths, types, sizes and contents.
fn seen(image: &Image) -> BTreeMap<Vec<u8>, (Option<FileType>, u64, String)> {
    let of_node = |(path, node): (_, floe_testkit::tree::Node)| {
        let (file_type, size, content) = node.identity();
        // The repair may change the sizes of directories.
        let size = if node.is_dir() { 0 } else { size };
        (path, (file_type, size, content.to_owned()))
    };
    stored(image).unwrap().into_iter().map(of_node).collect()
}

fn superblock(image: &Image) -> Superblock {
    let mut bytes = [0; 1024];
    image.read(OFFSET_BYTES, &mut bytes).unwrap();
    Superblock::decode(&bytes)
}

fn edit_superblock(image: &Image, edit: impl FnOnce(&mut Superblock)) {
    let mut bytes = [0; 1024];
    image.read(OFFSET_BYTES, &mut bytes).unwrap();
    let mut sb = Superblock::decode(&bytes);
    edit(&mut sb);
    sb.encode_into(&mut bytes);
    image.write(OFFSET_BYTES, &bytes).unwrap();
    Volume::open(image).unwrap().fix_superblock().unwrap();
}

fn flags(image: &Image, path: &str) -> InodeFlags {
    let volume = Volume::open(image).unwrap();
    let bytes = volume.inode_bytes(volume.lookup(path).unwrap()).unwrap();
    Inode::decode(&bytes).unwrap().flags()
}

/// Runs the optional work and verifies all its invariants. Returns the resulting image.
fn done(image: &Image, extras: Extras) -> (Image, Vec<Edit>) {
    let first = run(image, extras);
    assert!(first.is_clean() && first.left.is_empty(), "{:?} {:?}", first.halted, first.left);
    assert!(!first.repaired(), "no damage was there: {:?}", first.deeds);
    let after = image.with_staged(&first.staged).unwrap();
    assert_eq!(seen(&after), seen(image));
    let verdict = oracle::e2fsck(&after).unwrap();
    assert!(verdict.clean(), "{}", verdict.text);
    let once = Extras { rebuild_directories: false, ..extras };
    let second = run(&after, once);
    assert!(second.deeds.is_empty(), "{:?}", second.deeds);
    (after, first.deeds.into_iter().map(|deed| deed.edit).collect())
}

#[test]
fn all_directories_are_written_anew() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::Ext4K1, Profile::Ext2Plain, Profile::Casefold, Profile::InlineData] {
        let image = build::base(profile).unwrap();
        let extras = Extras { rebuild_directories: true, ..Extras::default() };
        let (_, edits) = done(&image, extras);
        let volume = Volume::open(&image).unwrap();
        let root = Edit::RebuildDirectory { dir: floe_format::InodeNr::ROOT };
        let inline = flags(&image, "/").contains(InodeFlags::INLINE_DATA);
        assert_eq!(edits.contains(&root), !inline, "{profile}");
        let big = Edit::RebuildDirectory { dir: volume.lookup("/big").unwrap() };
        assert!(edits.contains(&big), "{profile}");
    }
}

#[test]
fn large_directories_without_an_index_get_one() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::NoDirIndex).unwrap();
    assert!(run(&image, Extras::default()).deeds.is_empty(), "the file system has no indexes");
    edit_superblock(&image, |sb| sb.feature_compat |= Compat::DIR_INDEX.bits());
    let none = Extras { index_directories: false, ..Extras::default() };
    // The backups get the feature too.
    let image = image.with_staged(&run(&image, none).staged).unwrap();
    assert!(run(&image, none).deeds.is_empty());
    assert!(!flags(&image, "/big").contains(InodeFlags::INDEX));
    let (after, _) = done(&image, Extras::default());
    assert!(flags(&after, "/big").contains(InodeFlags::INDEX));
    assert!(!flags(&after, "/lost+found").contains(InodeFlags::INDEX));
}

#[test]
fn block_maps_become_extents() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::Ext3).unwrap();
    let extras = Extras { to_extents: true, ..Extras::default() };
    assert!(run(&image, extras).deeds.is_empty(), "the file system has no extents");
    edit_superblock(&image, |sb| sb.feature_incompat |= Incompat::EXTENTS.bits());
    oracle::run(image.path(), &["-fy", "-E", "fixes_only"]).unwrap();
    let (after, _) = done(&image, extras);
    for path in ["/", "/big", "/blocks", "/far", "/fragmented", "/empty", "/long-link"] {
        assert!(flags(&after, path).contains(InodeFlags::EXTENTS), "{path}");
    }
    for path in ["/fast-link", "/fifo"] {
        assert!(!flags(&after, path).contains(InodeFlags::EXTENTS), "{path}");
    }
}

/// An image in which `/file` legally shares a block of `/blocks`.
fn sharing() -> Image {
    let image = build::base(Profile::Ext4K1).unwrap();
    let volume = Volume::open(&image).unwrap();
    let blocks = volume.map(volume.lookup("/blocks").unwrap()).unwrap();
    let first = *blocks.data.values().next().unwrap();
    let file = volume.lookup("/file").unwrap();
    let mut raw = volume.inode_bytes(file).unwrap();
    // Physical block of the first extent in the root.
    raw[0x28 + 12 + 8..][..4].copy_from_slice(&u32::try_from(first.0).unwrap().to_le_bytes());
    volume.put_inode(file, &raw).unwrap();
    volume.fix_inode(file).unwrap();
    edit_superblock(&image, |sb| sb.feature_ro_compat |= RoCompat::SHARED_BLOCKS.bits());
    oracle::run(image.path(), &["-fy"]).unwrap();
    let verdict = oracle::e2fsck(&image).unwrap();
    assert!(verdict.clean(), "{}", verdict.text);
    image
}

const UNSHARE: Extras = Extras {
    journal_only: false,
    unshare_blocks: true,
    to_extents: false,
    rebuild_directories: false,
    index_directories: true,
    shrink_extent_trees: true,
};

#[test]
fn shared_blocks_are_copied_and_then_forbidden() {
    if tool::missing() {
        return;
    }
    let image = sharing();
    assert!(run(&image, Extras::default()).deeds.is_empty(), "sharing is legal");
    let (after, _) = done(&image, UNSHARE);
    assert!(!superblock(&after).features().ro_compat.contains(RoCompat::SHARED_BLOCKS));
}

#[test]
fn blocks_stay_shared_where_there_is_no_room_for_copies() {
    if tool::missing() {
        return;
    }
    let image = sharing();
    let folder = tool::scratch("floe-extras-").unwrap();
    let filler = folder.path().join("filler");
    // debugfs writes as much as fits and complains about the rest.
    fs::write(&filler, vec![0xff; 8 << 20]).unwrap();
    let script = format!("write {} filler\n", filler.display());
    assert!(build::debugfs(&image, &script).is_err());
    oracle::run(image.path(), &["-fy"]).unwrap();
    assert_eq!(superblock(&image).free_blocks_count(), 0);

    let tried = run(&image, UNSHARE);
    assert!(tried.is_clean(), "{:?}", tried.after.found);
    assert!(!tried.left.is_empty(), "the requested work was not done");
    let after = image.with_staged(&tried.staged).unwrap();
    assert_eq!(seen(&after), seen(&image));
    assert!(superblock(&after).features().ro_compat.contains(RoCompat::SHARED_BLOCKS));
    let verdict = oracle::e2fsck(&after).unwrap();
    assert!(verdict.clean(), "{}", verdict.text);
}

#[test]
fn only_the_journal_is_replayed() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::Ext4K1).unwrap();
    let volume = Volume::open(&image).unwrap();
    let blocks = volume.map(volume.lookup("/blocks").unwrap()).unwrap();
    let target = *blocks.data.values().next().unwrap();
    let folder = tool::scratch("floe-extras-").unwrap();
    let data = folder.path().join("data");
    fs::write(&data, [0x5a; 1024]).unwrap();
    let script = format!("jo\njw -b {} {}\njc\n", target.0, data.display());
    build::debugfs(&image, &script).unwrap();
    let before = superblock(&image);
    assert!(before.features().incompat.contains(Incompat::RECOVER));

    let done = run(&image, Extras { journal_only: true, ..Extras::default() });
    assert!(done.deeds.is_empty() && done.is_clean());
    let mut block = [0; 1024];
    done.staged.read_at(target.0 * 1024, &mut block).unwrap();
    assert_eq!(block, [0x5a; 1024]);
    let after = superblock(&image.with_staged(&done.staged).unwrap());
    assert!(!after.features().incompat.contains(Incompat::RECOVER));
    assert_eq!((after.state, after.lastcheck), (before.state, before.lastcheck));
}
