//! Changes that a mount accepted and lost: whoever unmounts it is told.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt, PermissionsExt, chown};
use std::process::Command;

use floe_testkit::{Image, build, oracle, tool};

use super::claims::mounted;
use super::mount::{Ours, can_mount};
use super::mount_killed::kill;

/// An image on a file system that becomes full: what programs wrote and closed is lost, and nobody called fsync.
#[test]
fn an_unmount_fails_if_the_disk_below_took_not_all() {
    if !can_mount() {
        return;
    }
    let place = tool::scratch("floe-full-host-").unwrap();
    let host = mounted(&["-t", "tmpfs", "-o", "size=16m", "none"], place.path());
    let path = place.path().join("image");
    File::create(&path).unwrap().set_len(200 << 20).unwrap();
    build::mke2fs(&path, &["-q", "-t", "ext4"]).unwrap();
    let ours = Ours::new(&path, &[]);
    for number in 0..20 {
        fs::write(ours.path().join(number.to_string()), vec![b'x'; 1 << 20]).unwrap();
    }
    let (code, err) = ours.end();
    assert_eq!(code, 8, "{err}");
    assert!(err.contains("the last changes could not be written"), "{err}");
    drop(host);
}

#[test]
fn an_unmount_fails_if_the_server_died_before() {
    if !can_mount() {
        return;
    }
    for (option, code) in [("rw", 8), ("ro", 0)] {
        let image = Image::empty(16 << 20).unwrap();
        build::mke2fs(image.path(), &["-q", "-t", "ext4"]).unwrap();
        let ours = Ours::new(image.path(), &["-o", option]);
        kill(&ours);
        // The kernel needs a moment to notice.
        while fs::read_dir(ours.path()).is_ok() {}
        let (found, err) = ours.end();
        assert_eq!(found, code, "{err}");
        assert_eq!(err.contains("its server had ended before"), code > 0, "{err}");
        oracle::e2fsck(&image).unwrap();
    }
}

/// Pages of a file that are so far behind that memory keeps none of them.
#[test]
fn parts_of_pages_at_the_end_of_the_largest_files_are_read_and_written() {
    if !can_mount() {
        return;
    }
    let image = Image::empty(32 << 20).unwrap();
    build::mke2fs(image.path(), &["-q", "-t", "ext4", "-b", "4096"]).unwrap();
    // The last block that ext4 maps.
    let last = (1 << 44) - 8192;
    let ours = Ours::new(image.path(), &[]);
    let file = File::create_new(ours.path().join("file")).unwrap();
    for at in [5 << 40, last] {
        file.write_all_at(b"abcde", at).unwrap();
        file.write_all_at(b"X", at + 1).unwrap();
    }
    drop(file);
    ours.unmount();
    let ours = Ours::new(image.path(), &[]);
    let file = File::options().read(true).write(true).open(ours.path().join("file")).unwrap();
    for at in [5 << 40, last] {
        file.write_all_at(b"Y", at + 3).unwrap();
        let mut found = [0; 5];
        file.read_exact_at(&mut found, at).unwrap();
        assert_eq!(&found, b"aXcYe");
    }
    drop(file);
    ours.unmount();
    assert!(oracle::e2fsck(&image).unwrap().clean());
}

/// An owner who is not of the file's group gives it an access list: set-group-ID goes, as on Linux's ext4.
#[test]
fn an_access_list_takes_set_group_id_from_strangers_of_the_group() {
    if !can_mount() {
        return;
    }
    if Command::new("setfacl").arg("--version").output().is_err() {
        eprintln!("skipped: no setfacl");
        return;
    }
    let image = Image::empty(16 << 20).unwrap();
    build::mke2fs(image.path(), &["-q", "-t", "ext4"]).unwrap();
    for option in ["rw", "nowriteback_cache,nodelalloc"] {
        let ours = Ours::new(image.path(), &["-o", option]);
        for (group, keeps) in [("700", false), ("1000", true)] {
            let path = ours.path().join(group);
            File::create(&path).unwrap();
            chown(&path, Some(1000), Some(group.parse().unwrap())).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o2775)).unwrap();
            let by = ["--reuid", "1000", "--regid", "1000", "--clear-groups"];
            let mut set = Command::new("setpriv");
            set.args(by).args(["setfacl", "-m", "u:1234:rwx"]).arg(&path);
            assert!(set.status().unwrap().success());
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o2000 != 0, keeps, "{group}");
            fs::remove_file(&path).unwrap();
        }
        ours.unmount();
    }
}
