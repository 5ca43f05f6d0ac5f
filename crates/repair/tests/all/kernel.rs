//! The kernel mounts repaired file systems, reads everything and writes, and e2fsck accepts the
//! result. The repaired image does not depend on the number of threads.

use std::fs;

use floe_blockdev::{MemDevice, ReadBlocks};
use floe_check::{CheckOptions, JournalUse};
use floe_repair::commit::{CommitOptions, Seen};
use floe_repair::policy::Yes;
use floe_repair::{RepairOptions, repair};
use floe_testkit::kernel::{Mounted, mount_available};
use floe_testkit::recipe::{Recipe, map_node};
use floe_testkit::{Image, Profile, damage, oracle, tool, tree};

/// Profiles that every kernel with ext4 can mount; each gets damage of several kinds.
const PROFILES: [&str; 6] = ["ext2-1k", "ext3", "ext4", "ext4-1k", "no-csum", "meta-bg"];
const SEEDS: std::ops::Range<u64> = 20..24;

/// The bytes of a repaired copy; `None` if damage is left that needs a person.
fn repaired(image: &Image, threads: usize) -> Option<MemDevice> {
    let check = CheckOptions {
        threads,
        journal: JournalUse::Replay,
        now_seconds: i64::from(tool::NOW),
        ..CheckOptions::default()
    };
    let options = RepairOptions { check, random: [7; 16], ..RepairOptions::default() };
    let device = MemDevice::new(image.to_vec().unwrap());
    let seen = Seen::of(&device);
    let clean = {
        let repair = repair(&device, &options, &mut Yes).ok()?;
        let options = CommitOptions::of(&seen);
        repair.commit(&device, &options).unwrap();
        repair.is_clean()
    };
    clean.then_some(device)
}

/// Damaged images and their repairs.
fn repairs(threads: usize) -> impl Iterator<Item = (String, Image, MemDevice)> {
    PROFILES.iter().flat_map(move |name| {
        SEEDS.filter_map(move |seed| {
            let (image, _) = damage::damaged_image(Profile::by_name(name)?, seed).unwrap();
            let device = repaired(&image, threads)?;
            Some((format!("{name}:{seed}"), image, device))
        })
    })
}

#[test]
fn the_kernel_reads_and_writes_what_was_repaired() {
    if let Err(reason) = tool::available().and_then(|()| mount_available()) {
        eprintln!("skipped: {reason}");
        return;
    }
    let mut mounted = 0;
    for (name, image, device) in repairs(2) {
        let mut bytes = vec![0; image.size() as usize];
        device.read_at(0, &mut bytes).unwrap();
        image.write(0, &bytes).unwrap();
        // This kernel may lack some features.
        let Ok(mount) = Mounted::new(image.path(), "rw") else { continue };
        let all = tree::mounted(mount.path()).unwrap();
        assert!(all.len() > 20, "{name}: only {} objects are there", all.len());
        fs::create_dir(mount.path().join("made after the repair")).unwrap();
        fs::write(mount.path().join("made after the repair/file"), vec![7; 9000]).unwrap();
        mount.unmount().unwrap();
        mounted += 1;
        let after = oracle::e2fsck(&image).unwrap();
        assert!(after.clean(), "{name}: {}", after.text);
    }
    assert!(mounted >= 12, "only {mounted} images were mounted");
}

/// Linux compares the depth stored in a node with its level in the tree; e2fsck 1.47 does not.
#[test]
fn the_kernel_reads_what_hangs_on_nodes_of_a_wrong_depth_once_it_is_mended() {
    if let Err(reason) = tool::available().and_then(|()| mount_available()) {
        eprintln!("skipped: {reason}");
        return;
    }
    let says = |index: usize, depth: u16| {
        map_node("/fragmented", index).extent_header(move |header| header.depth = depth)
    };
    let read = |image: &Image| {
        let mount = Mounted::new(image.path(), "ro").unwrap();
        let content = fs::read(mount.path().join("fragmented"));
        mount.unmount().unwrap();
        content
    };
    // Node 0 is an index node below the root, node 1 its first leaf.
    let damages = [
        ("a leaf", Profile::Ext4K1, vec![says(1, 1)]),
        ("an index node", Profile::Ext4K1, vec![says(0, 0)]),
        ("both", Profile::Ext4K1, vec![says(2, 7), says(0, 2)]),
        ("a leaf without checksum", Profile::NoCsum, vec![says(1, 1)]),
        ("with a wrong checksum", Profile::Ext4K1, vec![says(1, 1).stale()]),
    ];
    for (name, profile, edits) in damages {
        let recipe = Recipe::new(name).on(profile);
        let sound = read(&recipe.base().unwrap()).unwrap();
        assert!(sound.len() > 10_000, "{name}: {} bytes", sound.len());
        let image = edits.into_iter().fold(recipe, Recipe::edit).build().unwrap();
        let refused = read(&image).map(|content| content.len()).unwrap_err();
        // A wrong checksum gives EBADMSG, other damage EUCLEAN; the reader sees that or EIO.
        let codes = [5, 74, 117];
        assert!(refused.raw_os_error().is_some_and(|code| codes.contains(&code)), "{refused}");
        let device = repaired(&image, 2).unwrap();
        image.write(0, &device.to_vec()).unwrap();
        assert!(read(&image).unwrap() == sound, "{name}: the content differs");
        let after = oracle::e2fsck(&image).unwrap();
        assert!(after.clean(), "{name}: {}", after.text);
    }
}

#[test]
fn the_repaired_image_is_the_same_for_any_number_of_threads() {
    if tool::missing() {
        return;
    }
    let mut compared = 0;
    for (name, image, device) in repairs(1) {
        for threads in [2, 3, 8, 16] {
            let other = repaired(&image, threads).unwrap();
            assert!(device.to_vec() == other.to_vec(), "{name} with {threads} threads");
        }
        compared += 1;
    }
    assert!(compared >= 12, "only {compared} images were repaired");
}
