//! `floe fsck`: e2fsck's command line and exit codes.

use std::fs;

use super::{floe, floe_on, image};

#[test]
fn a_clean_file_system_is_skipped_unless_forced() {
    let Some(image) = image("ext4-1k") else { return };
    let ran = floe_on(&["fsck", "-n"], image.path());
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("not checked"), "{}", ran.out);
    for flags in [&["fsck", "-fn"][..], &["fsck", "-n", "-f"], &["fsck", "-f"]] {
        let ran = floe_on(flags, image.path());
        assert_eq!(ran.code, 0, "{flags:?}: {}{}", ran.out, ran.err);
        assert!(ran.out.contains("CLEAN"), "{flags:?}: {}", ran.out);
    }
}

#[test]
fn an_unclean_state_is_checked() {
    let Some(image) = image("ext2-1k") else { return };
    image.write(1024 + 0x3a, &[0, 0]).unwrap();
    let ran = floe_on(&["fsck", "-n"], image.path());
    assert!(!ran.out.contains("not checked"), "{}", ran.out);
}

#[test]
fn repairs_are_refused_and_change_nothing() {
    let Some(image) = image("ext4-1k") else { return };
    image.write(1024 + 0x10, &[1, 0, 0, 0]).unwrap();
    let before = fs::read(image.path()).unwrap();
    for flags in ["-D", "-c"] {
        let ran = floe_on(&["fsck", flags], image.path());
        assert_eq!(ran.code, 8, "{flags}: {}", ran.out);
        assert!(ran.err.contains("only reads"), "{flags}: {}", ran.err);
    }
    assert!(fs::read(image.path()).unwrap() == before);
}

#[test]
fn a_backup_superblock_can_be_named() {
    let Some(image) = image("ext4-1k") else { return };
    for flags in [
        &["fsck", "-fn", "-b", "2049"][..],
        &["fsck", "-fnb2049"],
        &["fsck", "-fn", "-b2049", "-B1024"],
    ] {
        let ran = floe_on(flags, image.path());
        assert_eq!(ran.code & !4, 0, "{flags:?}: {}{}", ran.out, ran.err);
        assert!(ran.out.contains("2049"), "{flags:?}: {}", ran.out);
    }
    assert_eq!(floe_on(&["fsck", "-fn", "-b", "2050"], image.path()).code, 8);
}

#[test]
fn usage_errors_are_16_and_the_version_is_told() {
    for line in
        [&["fsck"][..], &["fsck", "-Q", "x"], &["fsck", "-n", "-y", "x"], &["fsck", "x", "y"]]
    {
        let ran = floe(line);
        assert_eq!(ran.code, 16, "{line:?}");
        assert!(ran.err.contains("usage:"), "{line:?}: {}", ran.err);
    }
    assert_eq!(floe(&["fsck", "-V"]).code, 0);
    assert_eq!(floe(&["fsck", "--help"]).code, 0);
    assert_eq!(floe(&["fsck", "-n", "/nowhere/at/all"]).code, 8);
}
