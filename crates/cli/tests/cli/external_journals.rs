//! File systems whose journal is another device, which no caller of fsck names.

use std::path::Path;
use std::process::Command;

use floe_testkit::{Image, tool};

use super::loop_device::Loop;
use super::mount::{Ours, can_mount};
use super::{floe, floe_on};

/// A file system and its journal, both on devices.
struct Pair {
    journal: Image,
    on: Loop,
    image: Image,
    device: Loop,
}

/// `None`: there are no loop devices here.
fn pair() -> Option<Pair> {
    if tool::missing() {
        return None;
    }
    let (journal, image) = (Image::empty(8 << 20).unwrap(), Image::empty(32 << 20).unwrap());
    made(&["-O", "journal_dev"], journal.path());
    let on = Loop::over(journal.path(), &[])?;
    made(&["-t", "ext4", "-J", &format!("device={}", on.name())], image.path());
    let device = Loop::over(image.path(), &[])?;
    Some(Pair { journal, on, image, device })
}

fn made(options: &[&str], path: &Path) {
    let mut mke2fs = Command::new("mke2fs");
    let made = mke2fs.args(["-q", "-F", "-b", "1024"]).args(options).arg(path).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

fn debugfs(command: &str, path: &Path) {
    let mut debugfs = Command::new("debugfs");
    let done = debugfs.args(["-w", "-R", command]).arg(path).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

#[test]
fn the_journal_is_found_by_its_uuid() {
    let Some(pair) = pair() else { return };
    let device = Path::new(pair.device.name());
    for flags in [
        &["fsck", "-p"][..],
        &["fsck", "-fp"],
        &["fsck", "-fy"],
        &["fsck", "-fn"],
        &["check"],
        &["repair", "--yes"],
        &["ls"],
    ] {
        let ran = floe_on(flags, device);
        assert_eq!(ran.code, 0, "{flags:?}: {}{}", ran.out, ran.err);
    }
    // An image file says nothing about devices of this machine.
    let ran = floe_on(&["check"], pair.image.path());
    assert!(ran.out.contains("which was not found"), "{}{}", ran.out, ran.err);
    if can_mount() {
        let mount = Ours::new(device, &[]);
        assert!(mount.path().join("lost+found").is_dir());
        mount.unmount();
    }
}

/// As after a crash: what Linux wrote to the log is replayed, and the log is empty then.
#[test]
fn the_journal_that_is_found_is_replayed() {
    let Some(pair) = pair() else { return };
    let folder = tool::scratch("floe-external-").unwrap();
    let run = |program: &str, arguments: &[&str]| {
        Command::new(program).args(arguments).status().is_ok_and(|status| status.success())
    };
    let place = folder.path().to_str().unwrap();
    if !run("mount", &["-t", "ext4", pair.device.name(), place]) {
        return;
    }
    std::fs::write(folder.path().join("file"), "of the log").unwrap();
    assert!(run("sync", &["--file-system", place]));
    let crashed = (pair.image.copy().unwrap(), pair.journal.copy().unwrap());
    assert!(run("umount", &[place]));
    drop((pair.on, pair.device));
    let on = Loop::over(crashed.1.path(), &[]).unwrap();
    let device = Loop::over(crashed.0.path(), &[]).unwrap();
    let ran = floe_on(&["fsck", "-p"], Path::new(device.name()));
    assert!(ran.code <= 1, "{}{}", ran.out, ran.err);
    let ran = floe(&["cat", device.name(), "/file"]);
    assert_eq!((ran.code, ran.out.as_str()), (0, "of the log"), "{}", ran.err);
    drop((on, device));
}

#[test]
fn two_journals_with_the_same_uuid_are_refused() {
    let Some(pair) = pair() else { return };
    let copy = pair.journal.copy().unwrap();
    let Some(other) = Loop::over(copy.path(), &[]) else { return };
    let device = Path::new(pair.device.name());
    for flags in [&["fsck", "-fp"][..], &["check"], &["repair", "--yes"]] {
        let ran = floe_on(flags, device);
        assert_eq!(ran.code, 8, "{flags:?}: {}{}", ran.out, ran.err);
        for name in [pair.on.name(), other.name()] {
            assert!(ran.err.contains(name), "{flags:?}: {}", ran.err);
        }
    }
    let ran = floe_on(&["fsck", "-fp", "-j", pair.on.name()], device);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
}

/// Not "another program is working on it", which is the program itself.
#[test]
fn a_device_that_is_said_to_be_its_own_journal_is_refused() {
    let Some(pair) = pair() else { return };
    let name = pair.image.path().to_str().unwrap();
    let lines = [
        &["fsck", "-fy", "-j", name, name][..],
        &["fsck", "-fp", "-j", name, name],
        &["fsck", "-fn", "-j", name, name],
        &["check", "-j", name, name],
        &["repair", "--yes", "-j", name, name],
    ];
    for line in lines {
        let ran = floe(line);
        assert_eq!(ran.code, 16, "{line:?}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains("is said to be the device itself"), "{line:?}: {}", ran.err);
    }
}

/// The log may hold newer blocks than the file system.
#[test]
fn nothing_is_written_while_a_journal_that_cannot_be_used_waits() {
    let Some(pair) = pair() else { return };
    let damages = [
        "set_super_value free_inodes_count 5",
        // Something that halts a repair without a person.
        "clri <11>",
    ];
    // The block size in the superblock of the journal.
    pair.journal.write(2048 + 0x0c, &[0x5a; 4]).unwrap();
    drop((pair.on, pair.device));
    let on = Loop::over(pair.journal.path(), &[]).unwrap();
    debugfs("feature needs_recovery", pair.image.path());
    for damage in damages {
        debugfs(damage, pair.image.path());
        let before = (pair.image.to_vec().unwrap(), pair.journal.to_vec().unwrap());
        for (flags, code) in [
            (&["fsck", "-p"][..], 4),
            (&["fsck", "-y"], 4),
            (&["fsck", "-p", "-E", "journal_only"], 4),
            (&["repair", "--yes"], 4),
            (&["repair", "--preen"], 4),
            (&["repair", "--policy", "safe"], 4),
        ] {
            let journal = if flags[0] == "fsck" { "-j" } else { "--external-journal" };
            let all = [flags, &[journal, on.name()]].concat();
            let ran = floe_on(&all, pair.image.path());
            let said = format!("{flags:?}, {damage}: {}{}", ran.out, ran.err);
            assert_eq!(ran.code, code, "{said}");
            assert!(said.contains("the superblock of the external journal is unusable"), "{said}");
            assert!(!said.contains("inode 0"), "{said}");
            assert!(pair.image.to_vec().unwrap() == before.0, "{said}");
            assert!(pair.journal.to_vec().unwrap() == before.1, "{said}");
        }
    }
}
