//! Impossible values in a superblock or descriptors: repaired if other evidence reveals the right
//! ones, refused at once if nothing can help, and never a flood of findings.

use floe_check::{CheckError, CheckOptions, Problem, check};
use floe_format::{BlockNr, GroupNr, InodeNr};
use floe_repair::policy::Yes;
use floe_repair::{Repair, RepairError, RepairOptions, repair};
use floe_testkit::recipe::{Edit, Recipe, superblock};
use floe_testkit::{Image, Profile, Volume, build, oracle, tool};

fn repaired(image: &Image) -> Result<Repair<'_>, RepairError> {
    let check =
        CheckOptions { threads: 2, now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    let options = RepairOptions { check, random: [7; 16], ..RepairOptions::default() };
    repair(image, &options, &mut Yes)
}

/// Writes a word of a group's descriptor, in all backups too.
fn put_in_descriptors(volume: &Volume<'_>, group: u32, at: u64, value: u32) {
    let geometry = &volume.geometry;
    let primary = geometry.offset_bytes(geometry.primary_desc_block(0));
    let within = volume.desc_offset(GroupNr(group)) - primary + at;
    for copy in
        (0..geometry.group_count).map(GroupNr).filter(|group| geometry.has_superblock(*group))
    {
        let table = geometry.offset_bytes(geometry.group_desc_run(copy).start);
        volume.image.write(table + within, &value.to_le_bytes()).unwrap();
    }
}

/// An image with fewer free blocks than an inode table needs. A block in the middle of the inode
/// tables of `groups` is bad, and their descriptors have no valid location.
fn without_room(groups: &[u32], inode_table: u32) -> Image {
    let image = Image::empty(8 << 20).unwrap();
    let features = "^has_journal,^resize_inode,^flex_bg,^metadata_csum,^64bit";
    build::mke2fs(image.path(), &["-t", "ext4", "-b", "1024", "-g", "2048", "-O", features])
        .unwrap();
    let free = Volume::open(&image).unwrap().superblock.free_blocks_count_lo;
    let fill = format!("write /dev/null full\nfallocate full 0 {}", free - 40);
    build::debugfs(&image, &fill).unwrap();
    assert!(matches!(oracle::run(image.path(), &["-fy"]).unwrap().exit, Some(0 | 1)));
    let volume = Volume::open(&image).unwrap();
    let mut raw = volume.inode_bytes(InodeNr::BAD_BLOCKS).unwrap();
    for (word, &group) in groups.iter().enumerate() {
        let bad = volume.desc(GroupNr(group)).unwrap().inode_table.0 + 32;
        raw[0x28 + 4 * word..0x2c + 4 * word].copy_from_slice(&(bad as u32).to_le_bytes());
    }
    raw[0x1c] = 2 * groups.len() as u8;
    volume.put_inode(InodeNr::BAD_BLOCKS, &raw).unwrap();
    groups.iter().for_each(|&group| put_in_descriptors(&volume, group, 8, inode_table));
    image
}

#[test]
fn descriptors_that_no_free_run_satisfies_are_refused_at_once() {
    if tool::missing() {
        return;
    }
    for (groups, inode_table) in [(&[1][..], 1 << 30), (&[1, 2, 3], 1 << 30), (&[2, 3], 40)] {
        let image = without_room(groups, inode_table);
        match repaired(&image) {
            Err(RepairError::NoRoom { group, what: "inode table", blocks }) => {
                assert!(groups.contains(&group.0) && blocks > 60, "{group}: {blocks}");
            }
            Ok(repair) => panic!("{groups:?}: {} rounds, {:?}", repair.rounds, repair.left),
            Err(error) => panic!("{groups:?}: {error}"),
        }
    }
}

/// Every descriptor locates its metadata in the first group, and the disk is full, but the space is
/// only apparently in use.
#[test]
fn room_that_a_repair_makes_is_used() {
    if tool::missing() {
        return;
    }
    let image = without_room(&[], 0);
    let volume = Volume::open(&image).unwrap();
    let first = volume.desc(GroupNr(0)).unwrap();
    let word = |block: BlockNr| u32::try_from(block.0).unwrap();
    for group in 1..4 {
        put_in_descriptors(&volume, group, 0, word(first.block_bitmap));
        put_in_descriptors(&volume, group, 4, word(first.inode_bitmap));
        put_in_descriptors(&volume, group, 8, word(first.inode_table));
    }
    let repair = repaired(&image).unwrap();
    assert!(repair.is_clean() && repair.rounds < 16, "{:?}", repair.left);
    let after = image.with_staged(&repair.staged).unwrap();
    assert!(oracle::e2fsck(&after).unwrap().clean());
}

#[test]
fn sizes_of_descriptors_that_cannot_be_are_mended_without_a_backup() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::Bigalloc, Profile::BigallocK1, Profile::Ext2K1, Profile::NoCsum] {
        // With backups, which have the right value.
        for size in [1, 3, 8, 63, 65, 2048, u16::MAX] {
            let recipe = Recipe::new("size").on(profile);
            let image = recipe.edit(superblock(move |sb| sb.desc_size = size)).build().unwrap();
            let repair = repaired(&image).unwrap();
            let is_32bit_power =
                profile == Profile::Ext2K1 && size.is_power_of_two() && size <= 1024;
            assert!(repair.is_clean(), "{profile}, {size}: {:?}", repair.left);
            let after = image.with_staged(&repair.staged).unwrap();
            let verdict = oracle::e2fsck(&after).unwrap();
            assert!(verdict.clean(), "{profile}, {size}: {}", verdict.text);
            let mended = Volume::open(&after).unwrap().superblock.desc_size;
            assert!(is_32bit_power || [0, 64].contains(&mended), "{profile}, {size}: {mended}");
        }
    }
}

#[test]
fn a_wrong_number_of_inodes_is_mended_without_a_backup() {
    if tool::missing() {
        return;
    }
    for count in [0, 1, 10, 11, u32::MAX] {
        let recipe = Recipe::new("count").on(Profile::Bigalloc);
        let image = recipe.edit(superblock(move |sb| sb.inodes_count = count)).build().unwrap();
        let repair = repaired(&image).unwrap();
        let says_so = |problem: &Problem| matches!(problem, Problem::InodeCountMismatch { .. });
        assert!(repair.before.found.iter().any(says_so), "{count}: {:?}", repair.before.found);
        assert!(repair.is_clean(), "{count}: {:?}", repair.left);
        assert!(oracle::e2fsck(&image.with_staged(&repair.staged).unwrap()).unwrap().clean());
    }
}

/// Most of the claimed size does not exist: one finding, not several per group.
#[test]
fn a_small_image_that_claims_much_raises_few_findings() {
    if tool::missing() {
        return;
    }
    let claims = |blocks: u32| -> Edit { superblock(move |sb| sb.blocks_count_lo = blocks) };
    for bits in [20, 24, 28] {
        let image = Recipe::new("claims").on(Profile::Ext2Rev0).empty();
        let image = image.edit(claims(1 << bits)).build().unwrap();
        // Without its backups, which have the right value.
        for block in [2049, 4097, 6145, 8193] {
            let _ = image.write(block * 1024 + 56, &[0, 0]);
        }
        match check(&image, &CheckOptions::default()) {
            Ok(report) => {
                let exceeds =
                    |problem: &Problem| matches!(problem, Problem::FilesystemExceedsDevice { .. });
                assert!(report.found.iter().any(exceeds), "{:?}", report.found);
                let found = report.found.len();
                assert!(found < 200, "2^{bits}: {found} findings");
            }
            Err(CheckError::NoSuperblock { problems, .. }) => {
                let field = |problem: &Problem| {
                    matches!(
                        problem,
                        Problem::SuperblockFieldOutOfRange { field: "s_blocks_count", .. }
                    )
                };
                assert!(problems.iter().any(field), "2^{bits}: {problems:?}");
            }
            Err(error) => panic!("2^{bits}: {error}"),
        }
    }
}
