//! `floe mkfs`: the command; `floe-disk` tests planning and writing.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use floe_format::features::Features;
use floe_testkit::{oracle, tool};

use super::{floe, floe_env, ran};

fn clean(image: &Path) {
    if tool::missing() {
        return;
    }
    let judged = oracle::run(image, &["-fn"]).unwrap();
    assert_eq!(judged.exit, Some(0), "{}", judged.text);
}

#[test]
fn an_image_is_made_and_not_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let path = image.to_str().unwrap();
    let missing = floe(&["mkfs", path]);
    assert_eq!(missing.code, 8);
    assert!(missing.err.contains("give a SIZE"), "{}", missing.err);

    let dry = floe(&["mkfs", "-n", "-v", path, "16m"]);
    assert_eq!(dry.code, 0, "{}", dry.err);
    assert!(dry.out.contains("16384 blocks of 1024 bytes, 4096 inodes"), "{}", dry.out);
    assert!(dry.out.contains("group 1: blocks 8193 to 16383"), "{}", dry.out);
    assert!(dry.out.contains("Nothing was written"), "{}", dry.out);
    assert!(!image.exists());

    let made = floe(&["mkfs", "-L", "my label", path, "16m"]);
    assert_eq!(made.code, 0, "{}", made.err);
    assert_eq!(fs::metadata(&image).unwrap().len(), 16 << 20);
    // Sparse: far smaller than its journal, which is a megabyte of zeroes.
    assert!(fs::metadata(&image).unwrap().blocks() * 512 < 700_000);
    clean(&image);
    let before = fs::read(&image).unwrap();
    let again = floe(&["mkfs", path]);
    assert_eq!(again.code, 8);
    assert!(again.err.contains("holds an ext file system labelled \"my label\""), "{}", again.err);
    assert!(fs::read(&image).unwrap() == before);

    let forced = floe(&["mkfs", "-q", "-F", "-t", "ext2", "-b", "2048", path, "4096"]);
    assert_eq!((forced.code, forced.out.as_str()), (0, ""), "{}", forced.err);
    assert_eq!(fs::metadata(&image).unwrap().len(), 16 << 20);
    clean(&image);
}

#[test]
fn the_same_identifiers_give_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let make = |name: &str| {
        let image = folder.path().join(name);
        let uuid = "f10e0000-0001-4002-8003-000000000004";
        let seed = format!("hash_seed={uuid}");
        let arguments = ["mkfs", "-q", "-U", uuid, "-E", &seed, image.to_str().unwrap(), "8m"];
        let made = floe_env(&arguments, &[("SOURCE_DATE_EPOCH", "1700000000")]);
        assert_eq!(made.code, 0, "{}", made.err);
        fs::read(image).unwrap()
    };
    assert!(make("one") == make("other"));
}

/// Old content cannot be mistaken for part of the new file system.
#[test]
fn old_contents_do_not_shine_through() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    fs::write(&image, vec![0xa5; 8 << 20]).unwrap();
    for discard in ["discard", "nodiscard"] {
        let made = floe(&["mkfs", "-q", "-F", "-E", discard, image.to_str().unwrap()]);
        assert_eq!(made.code, 0, "{}", made.err);
        clean(&image);
    }
}

#[test]
fn names_of_mke2fs_choose_the_type() {
    let folder = tempfile::tempdir().unwrap();
    for (name, journal) in [("mke2fs", false), ("mkfs.ext2", false), ("mkfs.ext3", true)] {
        let program = folder.path().join(name);
        symlink(env!("CARGO_BIN_EXE_floe"), &program).unwrap();
        let image = folder.path().join(format!("{name}.image"));
        fs::File::create(&image).unwrap().set_len(4 << 20).unwrap();
        let made = ran(&Command::new(&program).arg(&image).output().unwrap());
        assert_eq!(made.code, 0, "{}", made.err);
        assert_eq!(made.out.contains("has_journal"), journal, "{}", made.out);
        assert!(!made.out.contains("extent"), "{}", made.out);
        clean(&image);
    }
}

/// As by mke2fs, in any order.
#[test]
fn the_request_of_a_journal_counts_more_than_the_list_of_features() {
    if tool::missing() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let path = image.to_str().unwrap();
    for (options, journal) in [
        (vec!["-O", "^has_journal", "-j"], true),
        (vec!["-j", "-O", "none"], true),
        (vec!["-O", "^has_journal"], false),
    ] {
        let made = floe(&[&["mkfs", "-F"], &options[..], &[path, "64m"]].concat());
        assert_eq!(made.code, 0, "{}", made.err);
        assert_eq!(made.out.contains("has_journal"), journal, "{options:?}: {}", made.out);
        clean(&image);
    }
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let path = image.to_str().unwrap();
    for (arguments, code, why) in [
        (vec!["-t", "xfs", path, "16m"], 16, "ext2, ext3, ext4, native or rext3"),
        (vec!["-O", "nonsense", path, "16m"], 16, "no feature is called nonsense"),
        (vec!["-O", "rext3", path, "16m"], 8, "the feature rext3 needs -t rext3"),
        (vec!["-t", "rext3", "-O", "extent", path, "16m"], 8, "the features of ext3"),
        (vec!["-E", "nonsense=1", path, "16m"], 16, "nonsense is not known"),
        (vec!["-b", "3000", path, "16m"], 8, "power of two"),
        (vec!["-I", "8192", path, "16m"], 8, "inode size"),
        (vec!["-J", "size=12", path, "16m"], 8, "does not fit"),
        (vec!["-m", "60", path, "16m"], 8, "50 percent"),
        (vec![path, "8k"], 8, "too few"),
        (vec![path, "much"], 8, "SIZE is not a size"),
    ] {
        let mut all = vec!["mkfs"];
        all.extend(&arguments);
        let refused = floe(&all);
        assert_eq!(refused.code, code, "{arguments:?}: {}", refused.err);
        assert!(refused.err.contains(why), "{arguments:?}: {}", refused.err);
        assert!(!image.exists(), "{arguments:?}");
    }
    let folder = floe(&["mkfs", folder.path().to_str().unwrap(), "16m"]);
    assert!(folder.code == 8 && folder.err.contains("neither a block device nor a file"));
}

/// A new image file or a wiped disk holds nothing that could be lost.
#[test]
fn blank_images_are_made_without_force() {
    let folder = tempfile::tempdir().unwrap();
    for byte in [0, 0xff] {
        let path = folder.path().join("blank");
        fs::write(&path, vec![byte; 8 << 20]).unwrap();
        let ran = floe(&["mkfs", "-q", path.to_str().unwrap()]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{byte}");
    }
}

/// Each feature by itself and switched off: Floe and e2fsck open the file system that is made, or none is.
#[test]
fn whatever_is_made_can_be_opened() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let path = image.to_str().unwrap();
    let words = Features::from_words(u32::MAX, u32::MAX, u32::MAX).names();
    let names: Vec<String> =
        words.into_iter().filter(|name| !name.starts_with("FEATURE_")).collect();
    assert!(names.len() > 40, "{names:?}");
    let mut refused = Vec::new();
    for name in names.iter().flat_map(|name| [name.clone(), format!("^{name}")]) {
        for kind in ["ext2", "ext4"] {
            let made = floe(&["mkfs", "-q", "-t", kind, "-O", &name, path, "8m"]);
            if made.code == 0 {
                let checked = floe(&["check", path]);
                assert_eq!(checked.code, 0, "{kind} {name}: {}{}", checked.out, checked.err);
                clean(&image);
                fs::remove_file(&image).unwrap();
                continue;
            }
            assert_eq!(made.code, 8, "{kind} {name}: {}", made.err);
            assert!(!made.err.trim().is_empty() && !image.exists(), "{kind} {name}");
            if kind == "ext4" {
                refused.push(name.clone());
            }
        }
    }
    for name in ["snapshot_bitmap", "lazy_bg", "btree_dir", "replica", "orphan_present"] {
        assert!(refused.iter().any(|refused| refused == name), "{name} was made: {refused:?}");
    }
    let named = floe(&["mkfs", "-O", "snapshot_bitmap,replica", path, "8m"]);
    assert!(named.err.contains("snapshot_bitmap, replica"), "{}", named.err);
}

/// A backup is recommended only if it lacks the features that are not known.
#[test]
fn a_backup_with_the_same_unknown_features_is_no_advice() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("image");
    let path = image.to_str().unwrap();
    // Blocks of 1 KiB without checksums: backups lie in blocks 8193 and 24577. 0x100: snapshot_bitmap.
    let made = floe(&["mkfs", "-q", "-t", "ext2", "-b", "1024", path, "32m"]);
    assert_eq!(made.code, 0, "{}", made.err);
    let file = fs::File::options().read(true).write(true).open(&image).unwrap();
    let set = |block: u64| {
        let mut word = [0; 4];
        file.read_exact_at(&mut word, block * 1024 + 0x5c).unwrap();
        let word = u32::from_le_bytes(word) | 0x100;
        file.write_all_at(&word.to_le_bytes(), block * 1024 + 0x5c).unwrap();
    };
    set(1);
    let flipped = floe(&["check", path]);
    assert_eq!(flipped.code, 8, "{}", flipped.out);
    assert!(flipped.err.contains("give -b 8193 -B 1024"), "{}", flipped.err);
    set(8193);
    let next = floe(&["check", path]);
    assert!(next.err.contains("give -b 24577 -B 1024"), "{}", next.err);
    set(24577);
    for arguments in [vec!["check", path], vec!["check", "-b", "8193", "-B", "1024", path]] {
        let all = floe(&arguments);
        assert_eq!(all.code, 8, "{}", all.out);
        assert!(all.err.contains("snapshot_bitmap"), "{}", all.err);
        assert!(!all.err.contains("backup"), "{}", all.err);
    }
}
