//! `floe fsck`: e2fsck's command line and exit codes.

use std::fs;

use floe_testkit::{Profile, build, kernel, oracle, tool};

use super::{floe, floe_on, image};

#[test]
fn a_clean_file_system_is_skipped_unless_forced() {
    let Some(image) = image("ext4-1k") else { return };
    let ran = floe_on(&["fsck", "-n"], image.path());
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains(": clean, "), "{}", ran.out);
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
    assert!(!ran.out.contains(": clean, "), "{}", ran.out);
}

#[test]
fn what_would_need_a_yes_is_refused_without_one() {
    let Some(image) = image("ext4-1k") else { return };
    image.write(1024 + 0x10, &[1, 0, 0, 0]).unwrap();
    let before = fs::read(image.path()).unwrap();
    for flags in [&["-D"][..], &["-f", "-E", "journal_only"], &["-E", "bmap2extent"], &["-c"]] {
        let ran = floe_on(&[&["fsck"], flags].concat(), image.path());
        assert_eq!(ran.code, 8, "{flags:?}: {}", ran.out);
        assert!(ran.err.contains("Nothing was looked at"), "{flags:?}: {}", ran.err);
    }
    assert!(fs::read(image.path()).unwrap() == before);
}

#[test]
fn directories_are_written_anew_when_asked() {
    let Some(image) = image("no-csum") else { return };
    let before = fs::read(image.path()).unwrap();
    assert_eq!(floe_on(&["fsck", "-yD"], image.path()).code, 0);
    assert!(fs::read(image.path()).unwrap() == before, "without -f a clean one is skipped");
    let ran = floe_on(&["fsck", "-fyvD"], image.path());
    // There was no damage.
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("Inode 2: /"), "{}", ran.out);
    assert_eq!(floe_on(&["fsck", "-fn"], image.path()).code, 0);
}

/// A change without a finding is also reported with its path.
#[test]
fn preen_says_which_directory_is_written_anew() {
    let Some(image) = image("no-csum") else { return };
    let ran = floe_on(&["fsck", "-fpD"], image.path());
    let anew: Vec<&str> =
        ran.out.lines().filter(|line| line.contains("the directory was rebuilt")).collect();
    assert!(!anew.is_empty(), "{}{}", ran.out, ran.err);
    for line in anew {
        assert!(line.contains(": /"), "{line}");
    }
}

/// Files that were deleted while open, whose entries in the list of orphans only the log has.
#[test]
fn orphans_of_a_log_do_not_outlive_its_replay() {
    let Some(image) = image("ext4") else { return };
    if kernel::mount_available().is_err() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let theirs = kernel::Mounted::new(image.path(), "").unwrap();
    let path = theirs.path().join("open");
    let open = fs::File::create(&path).unwrap();
    fs::write(&path, [7; 50_000]).unwrap();
    open.sync_all().unwrap();
    fs::remove_file(&path).unwrap();
    let folder = fs::File::open(theirs.path()).unwrap();
    rustix::fs::syncfs(&folder).unwrap();
    let crashed = image.copy().unwrap();
    drop((open, folder));
    theirs.unmount().unwrap();
    let ran = floe_on(&["fsck", "-p"], crashed.path());
    assert!(ran.code <= 1 && ran.out.contains("journal replayed"), "{}{}", ran.out, ran.err);
    let judged = oracle::run(crashed.path(), &["-fn"]).unwrap();
    assert_eq!(judged.exit, Some(0), "{}{}", ran.out, judged.text);
    assert_eq!(floe_on(&["fsck", "-p"], crashed.path()).code, 0);
}

#[test]
fn a_clean_file_system_whose_journal_is_full_gets_it_replayed() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-fsck-").unwrap();
    let data = folder.path().join("data");
    fs::write(&data, [0x5a; 1024]).unwrap();
    // Block 7000 of 8192 is free, so a log entry for it changes nothing else.
    let script = format!("jo\njw -b 7000 {}\njc\n", data.display());
    build::debugfs(&image, &script).unwrap();
    let ran = floe_on(&["fsck", "-n"], image.path());
    assert!(ran.code == 0 && ran.out.contains("were not replayed"), "{}", ran.out);
    let ran = floe_on(&["fsck", "-p"], image.path());
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains(": clean, "), "{}", ran.out);
    let mut block = [0; 1024];
    image.read(7000 * 1024, &mut block).unwrap();
    assert_eq!(block, [0x5a; 1024]);
    assert_eq!(floe_on(&["fsck", "-fn"], image.path()).code, 0);
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

/// With quotas, e2fsck -n counts a number that names no quota file, because it cannot read the file; without, not.
#[test]
fn impossible_quota_inode_numbers_count_as_in_e2fsck() {
    if tool::missing() {
        return;
    }
    for profile in [Profile::Quota, Profile::Ext4] {
        for field in ["usr", "grp", "prj"] {
            for number in [5, 99_999] {
                let image = build::base(profile).unwrap();
                build::debugfs(&image, &format!("ssv {field}_quota_inum {number}\n")).unwrap();
                let theirs = oracle::run(image.path(), &["-fn"]).unwrap().exit;
                let ours = floe_on(&["fsck", "-fn"], image.path()).code;
                assert_eq!(Some(ours), theirs, "{profile}: {field}_quota_inum {number}");
            }
        }
    }
}
