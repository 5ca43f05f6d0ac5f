//! Backups of the superblock and of the descriptors are found where each layout has them, and keep all files.

use floe_check::CheckOptions;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::features::{Compat, RoCompat};
use floe_repair::policy::Yes;
use floe_repair::{RepairOptions, repair};
use floe_testkit::tree::{Tree, stored};
use floe_testkit::{Image, Profile, build, oracle, tool};

/// Options of mke2fs, and MiB: blocks are counted from 1 only with blocks of 1 KiB and without bigalloc, whose groups are larger.
const LAYOUTS: [(&[&str], u64); 5] = [
    (&["-b", "1024", "-O", "^bigalloc"], 40),
    (&["-b", "1024", "-C", "2048", "-O", "bigalloc"], 40),
    (&["-b", "1024", "-C", "16384", "-O", "bigalloc"], 200),
    (&["-b", "2048", "-C", "8192", "-O", "bigalloc"], 200),
    (&["-b", "4096", "-C", "16384", "-O", "bigalloc"], 700),
];

fn filled(options: &[&str], mib: u64) -> Image {
    let image = Image::empty(mib << 20).unwrap();
    build::mke2fs(image.path(), &[&["-q", "-t", "ext4", "-N", "2000"], options].concat()).unwrap();
    let script: Vec<String> =
        (0..40).map(|nr| format!("mkdir d{nr}\nsymlink d{nr}/link target{nr}")).collect();
    build::debugfs(&image, &script.join("\n")).unwrap();
    assert!(oracle::e2fsck(&image).unwrap().clean());
    image
}

/// All that users see, without the times that a repair may set.
fn tree(image: &Image) -> Tree {
    stored(image).unwrap()
}

#[test]
fn a_lost_superblock_or_lost_descriptors_cost_no_file() {
    if tool::missing() {
        return;
    }
    for (options, mib) in LAYOUTS {
        let whole = filled(options, mib);
        let mut bytes = [0; 1024];
        whole.read(OFFSET_BYTES, &mut bytes).unwrap();
        let block_bytes = 1024 << Superblock::decode(&bytes).log_block_size;
        let descriptors = if block_bytes == 1024 { 2048 } else { block_bytes };
        let mut large = Superblock::decode(&bytes);
        large.blocks_count_lo = 0x7fff_ffff;
        large.encode_with_checksum(&mut bytes);
        for (what, at, damage) in [
            ("superblock lost", OFFSET_BYTES, &[0; 1024][..]),
            ("descriptors lost", descriptors, &[0xa5; 512][..]),
            ("too many blocks", OFFSET_BYTES, &bytes[..]),
        ] {
            let context = format!("{options:?}: {what}");
            let image = whole.copy().unwrap();
            image.write(at, damage).unwrap();
            let check =
                CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
            let options = RepairOptions { check, ..RepairOptions::default() };
            let repaired = repair(&image, &options, &mut Yes).unwrap();
            assert!(repaired.is_clean(), "{context}: {:?}", repaired.left);
            image.write_staged(&repaired.staged).unwrap();
            assert!(tree(&image) == tree(&whole), "{context}");
            let verdict = oracle::e2fsck(&image).unwrap();
            assert!(verdict.clean(), "{context}: {}", verdict.text);
        }
    }
}

/// A bit that says which groups have backups is put right, and that is all: nothing moves, and no block of a backup is freed.
#[test]
fn a_wrong_bit_about_backups_costs_one_write() {
    if tool::missing() {
        return;
    }
    let (sparse, sparse2) = (RoCompat::SPARSE_SUPER.bits(), Compat::SPARSE_SUPER2.bits());
    for (profile, compat, ro_compat) in [
        (Profile::Ext2K1, 0, sparse),
        (Profile::Ext2Plain, 0, sparse),
        (Profile::NoCsum, sparse2, 0),
    ] {
        let image = build::base(profile).unwrap();
        let mut bytes = [0; 1024];
        image.read(OFFSET_BYTES, &mut bytes).unwrap();
        let mut superblock = Superblock::decode(&bytes);
        superblock.feature_compat ^= compat;
        superblock.feature_ro_compat ^= ro_compat;
        superblock.encode_with_checksum(&mut bytes);
        image.write(OFFSET_BYTES, &bytes).unwrap();
        let check = CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
        let options = RepairOptions { check, ..RepairOptions::default() };
        let repaired = repair(&image, &options, &mut Yes).unwrap();
        assert!(repaired.is_clean(), "{profile}: {:?}", repaired.left);
        let after = image.with_staged(&repaired.staged).unwrap();
        let [whole, after] = [build::base(profile).unwrap(), after].map(|it| it.to_vec().unwrap());
        let behind = OFFSET_BYTES as usize + 1024;
        assert!(whole[behind..] == after[behind..], "{profile}");
        let words = |bytes: &[u8]| bytes[behind - 1024 + 0x5c..behind - 1024 + 0x68].to_vec();
        assert_eq!(words(&whole), words(&after), "{profile}");
    }
}
