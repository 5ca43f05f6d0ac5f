//! The short paths for what is plainly in order (`checks/inode/plain_inodes.rs`, `checks/directory/plain_entries.rs`)
//! leave exactly what the general path leaves: on sound images, on images with any one field of an
//! inode or a directory changed, and on images with random damage.

use floe_blockdev::{FileDevice, ReadBlocks};
use floe_check::checks::inode::plain_inodes::PlainInodes;
use floe_check::evidence::region::Region;
use floe_check::open::open;
use floe_check::problem::Findings;
use floe_check::{CheckOptions, JournalUse, Tuning, examine};
use floe_format::InodeNr;
use floe_format::ext::inode::write_checksum;
use floe_format::ext::inode256::Inode256;
use floe_format::features::RoCompat;
use floe_format::native::backpointer::{Backpointer, EXTRA_ISIZE};
use floe_testkit::rng::Rng;
use floe_testkit::volume::Volume;
use floe_testkit::{Image, Profile, build, subjects, tool};

use crate::examined::describe;

/// All that an examination leaves, as text.
fn leaves(device: &dyn ReadBlocks, shortcuts: bool) -> String {
    // Small file systems are accounted for exactly by default, as users get it; two workers, each with
    // batches of its own.
    let journal = JournalUse::Ignore;
    let tuning = Tuning { shortcuts, ..Tuning::default() };
    let options = CheckOptions { tuning, journal, threads: 2, ..Default::default() };
    let opened = match open(device, options.superblock) {
        Ok(opened) => opened,
        Err(error) => return error.to_string(),
    };
    match examine(device, opened, Findings::default(), &options) {
        Ok(examination) => describe(&examination),
        Err(error) => error.to_string(),
    }
}

/// How often a random test is repeated: `FLOE_SHORTCUT_ROUNDS`, for a longer run by hand.
fn rounds(usual: usize) -> usize {
    std::env::var("FLOE_SHORTCUT_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn agree(image: &Image, what: impl FnOnce() -> String) {
    agree_on(&FileDevice::open(image.path()).unwrap(), what);
}

fn agree_on(device: &dyn ReadBlocks, what: impl FnOnce() -> String) {
    let (short, general) = (leaves(device, true), leaves(device, false));
    assert!(short == general, "{}:\nshort: {short}\ngeneral: {general}", what());
}

#[test]
fn sound_images_leave_the_same() {
    if tool::missing() {
        return;
    }
    for subject in subjects::sound().map(Result::unwrap) {
        agree(&subject.image, || subject.name);
    }
}

/// The other tests show nothing unless most inodes take the short path.
#[test]
fn most_inodes_are_plain() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::by_name("ext4-1k").unwrap()).unwrap();
    let device = FileDevice::open(image.path()).unwrap();
    let options = CheckOptions { journal: JournalUse::Ignore, ..Default::default() };
    let opened = open(&device, options.superblock).unwrap();
    let found = examine(&device, opened, Findings::default(), &options).unwrap();
    let rules = PlainInodes::of(&found.volume).unwrap();
    let disk = Volume::open(&image).unwrap();
    let used = disk.used_inodes().unwrap();
    let plain = used.iter().filter(|&&inode| {
        let bytes = disk.inode_bytes(inode).unwrap();
        rules.judge(inode, bytes.first_chunk().unwrap(), &mut Region::default()).is_some()
    });
    let plain: Vec<_> = plain.collect();
    let files = found.report.totals.by_type[1] as usize;
    assert!(plain.len() * 2 > files && files > 40, "{} of {files}", plain.len());
    let with_attributes = plain.iter().filter(|&&&inode| {
        let bytes = disk.inode_bytes(inode).unwrap();
        Inode256::new(bytes.first_chunk().unwrap()).has_xattrs()
    });
    assert!(with_attributes.count() > 0);
}

/// Each of the words of an inode set to values that are near to what is allowed, with the right
/// checksum: every test of a plain inode is met from both sides.
#[test]
fn inodes_with_one_changed_word_leave_the_same() {
    if tool::missing() {
        return;
    }
    // Quota counts what each owner uses.
    for profile in ["ext4-1k", "quota"] {
        change_words(&build::base(Profile::by_name(profile).unwrap()).unwrap());
    }
}

fn change_words(base: &Image) {
    let mut rng = Rng::new(1);
    let of_base = Volume::open(base).unwrap();
    let used: Vec<_> =
        of_base.used_inodes().unwrap().into_iter().filter(|inode| inode.0 >= 11).collect();
    let seed = of_base.superblock.seed();
    let with_checksums = of_base.geometry.features.ro_compat.contains(RoCompat::METADATA_CSUM);
    assert!(with_checksums && of_base.geometry.inode_size == 256);
    for round in 0..rounds(150) {
        let image = base.copy().unwrap();
        let volume = Volume::open(&image).unwrap();
        // A word of each of a few inodes: the damage of one does not hide that of another.
        let mut done = Vec::new();
        for _ in 0..4 {
            let inode = used[rng.below(used.len() as u64) as usize];
            let mut bytes = volume.inode_bytes(inode).unwrap();
            // Round after round through the words that have a meaning in every inode; the attributes of
            // some reach to the end.
            let at = if rng.chance(2) { round % 44 * 4 } else { rng.below(64) as usize * 4 };
            let word = &mut bytes[at..at + 4];
            let old = u32::from_le_bytes(word.try_into().unwrap());
            let new = match rng.below(7) {
                0 => old.wrapping_add(1),
                1 => old.wrapping_sub(1),
                2 => old ^ 1 << rng.below(32),
                3 => old ^ 1 << rng.below(32) ^ 1 << rng.below(32),
                4 => 0,
                5 => old ^ 0x8000_0000,
                _ => rng.below(u64::from(u32::MAX)) as u32,
            };
            word.copy_from_slice(&new.to_le_bytes());
            if !rng.chance(8) {
                write_checksum(&mut bytes, seed, inode).unwrap();
            }
            volume.put_inode(inode, &bytes).unwrap();
            done.push(format!("{inode}: word {at:#x}: {old:#x} -> {new:#x}"));
        }
        agree(&image, || done.join(", "));
    }
}

/// Inodes with room for a backpointer, as those of native file systems have it: plain, and judged alike with any word changed.
#[test]
fn inodes_with_backpointers_are_plain() {
    if tool::missing() {
        return;
    }
    for profile in ["ext4-1k", "quota"] {
        let image = build::base(Profile::by_name(profile).unwrap()).unwrap();
        let volume = Volume::open(&image).unwrap();
        let seed = volume.superblock.seed();
        let mut given = Vec::new();
        for inode in volume.used_inodes().unwrap().into_iter().filter(|inode| inode.0 >= 11) {
            let mut bytes = volume.inode_bytes(inode).unwrap();
            let area = Inode256::new(bytes.first_chunk().unwrap()).xattr_area();
            if area.iter().all(|byte| *byte == 0) {
                bytes[128..130].copy_from_slice(&EXTRA_ISIZE.to_le_bytes());
                let own = Backpointer::new(InodeNr::ROOT, b"name");
                Backpointer::store(Some(&own), &mut bytes, EXTRA_ISIZE);
                write_checksum(&mut bytes, seed, inode).unwrap();
                volume.put_inode(inode, &bytes).unwrap();
                given.push(inode);
            }
        }
        agree(&image, || profile.to_owned());
        assert_eq!(plain_of(&image, &given).len() * 10 / given.len(), 9, "{profile}");
        change_words(&image);
    }
}

/// Those of some inodes that are plain.
fn plain_of(image: &Image, inodes: &[InodeNr]) -> Vec<InodeNr> {
    let device = FileDevice::open(image.path()).unwrap();
    let options = CheckOptions { journal: JournalUse::Ignore, ..Default::default() };
    let opened = open(&device, options.superblock).unwrap();
    let found = examine(&device, opened, Findings::default(), &options).unwrap();
    let rules = PlainInodes::of(&found.volume).unwrap();
    let disk = Volume::open(image).unwrap();
    let is_plain = |inode: &InodeNr| {
        let bytes = disk.inode_bytes(*inode).unwrap();
        rules.judge(*inode, bytes.first_chunk().unwrap(), &mut Region::default()).is_some()
    };
    inodes.iter().copied().filter(is_plain).collect()
}

#[test]
fn damaged_images_leave_the_same() {
    if tool::missing() {
        return;
    }
    for damaged in subjects::damaged(0..rounds(8) as u64) {
        let (_, subject) = damaged.unwrap();
        agree(&subject.image, || subject.name);
    }
}

/// The image of each recipe, which has one thing of each kind wrong.
#[test]
fn the_image_of_every_problem_leaves_the_same() {
    if tool::missing() {
        return;
    }
    for subject in subjects::of_every_problem().map(Result::unwrap) {
        agree_on(&subject.device(), || subject.name.clone());
    }
}
