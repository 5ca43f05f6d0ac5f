//! Commands printed by Floe work when pasted into a shell.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use floe_testkit::{build, tool};

use super::{Fsck, Ran, disk_with_partition, floe_env, image, ran};

const NOW: (&str, &str) = ("E2FSCK_TIME", "1704067200");

/// The text after `before` in the output of a run.
fn printed(ran: &Ran, before: &str) -> String {
    let line = ran.out.lines().find_map(|line| line.trim().strip_prefix(before));
    line.unwrap_or_else(|| panic!("no {before:?} in {}{}", ran.out, ran.err)).to_owned()
}

/// Runs a line in a shell whose PATH includes `floe`.
fn paste(line: &str, folder: &Path) -> Ran {
    let mut command = Command::new("bash");
    let path = format!("{}:/usr/bin:/bin", folder.join("bin").display());
    command.args(["-c", line]).env("PATH", path).envs([NOW]).current_dir(folder);
    ran(&command.output().unwrap())
}

/// Locations of a file system on a disk, and the options that select them.
fn places(content: &[u8]) -> Vec<(&'static str, Vec<u8>, Vec<&'static str>)> {
    let disk = disk_with_partition(content);
    vec![
        ("plain.img", content.to_vec(), vec![]),
        ("two words $HOME.img", disk.clone(), vec!["--partition", "1"]),
        ("it's.img", disk, vec!["--offset", "1048576"]),
        ("backup.img", content.to_vec(), vec!["-b", "2049", "-B", "1024"]),
        ("-dash.img", content.to_vec(), vec!["--format", "raw"]),
    ]
}

#[test]
fn plans_and_undo_files_are_used_by_the_commands_that_are_printed() {
    let Some(image) = image("ext4-1k") else { return };
    build::debugfs(&image, "clri <12>\nclri <13>\n").unwrap();
    let folder = tool::scratch("floe-pasted-").unwrap();
    fs::create_dir(folder.path().join("bin")).unwrap();
    symlink(env!("CARGO_BIN_EXE_floe"), folder.path().join("bin/floe")).unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for (name, bytes, options) in places(&image.to_vec().unwrap()) {
        let (disk, plan, undo) =
            (at(name), at(&format!("{name} plan")), at(&format!("{name} undo")));
        fs::write(&disk, &bytes).unwrap();
        let run = |more: &[&str]| {
            let line = [&["repair", "--yes"][..], more, &options, &["--", &disk]].concat();
            floe_env(&line, &[NOW])
        };
        let planned = run(&["--plan", &plan]);
        assert_eq!(planned.code, 1, "{name}: {}", planned.err);
        assert!(fs::read(&disk).unwrap() == bytes);
        let made = paste(&printed(&planned, "To apply this repair: "), folder.path());
        assert_eq!(made.code, 1, "{name}: {}{}", made.out, made.err);
        assert!(fs::read(&disk).unwrap() != bytes, "{name}");
        fs::write(&disk, &bytes).unwrap();
        let repaired = run(&["--undo", &undo]);
        assert_eq!(repaired.code, 1, "{name}: {}", repaired.err);
        assert!(fs::read(&disk).unwrap() != bytes, "{name}");
        let undone = paste(&printed(&repaired, "To undo this: "), folder.path());
        assert_eq!(undone.code, 0, "{name}: {}{}", undone.out, undone.err);
        assert!(fs::read(&disk).unwrap() == bytes, "{name}: not what it was");
    }
}

#[test]
fn a_page_advises_commands_with_the_place() {
    let Some(image) = image("ext4-1k") else { return };
    build::debugfs(&image, "clri <12>\n").unwrap();
    let folder = tool::scratch("floe-pasted-").unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (disk, page) = (at("two words"), at("page"));
    fs::write(&disk, disk_with_partition(&image.to_vec().unwrap())).unwrap();
    let ran = floe_env(&["check", "--partition", "1", "--html", &page, &disk], &[NOW]);
    assert_eq!(ran.code, 4, "{}", ran.err);
    let text = fs::read_to_string(page).unwrap();
    assert!(text.contains("<code>floe repair --dry-run --partition 1 "), "{text}");
    assert!(text.contains("two words&#39; copy.img") || text.contains("two words' copy.img"));
}

/// Two repairs of the same image can be made byte-identical.
#[test]
fn a_uuid_is_the_same_in_two_repairs_with_an_epoch() {
    let Some(image) = image("no-csum") else { return };
    // A file system without a UUID gets a random one.
    image.write(1024 + 0x68, &[0; 16]).unwrap();
    let fsck = Fsck::new("fsck.ext4");
    let repaired = |name: &str| {
        let copy = image.copy().unwrap();
        let ran = fsck.run(&["-fy"], copy.path(), &[(name, "1704067200")]);
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        copy.to_vec().unwrap()
    };
    let first = repaired("SOURCE_DATE_EPOCH");
    assert!(first[1024 + 0x68..][..16] != [0; 16]);
    assert!(first == repaired("SOURCE_DATE_EPOCH"), "two repairs differ");
    assert!(repaired("E2FSCK_TIME")[1024..2048] != first[1024..2048], "a known UUID");
}

#[test]
fn what_is_written_without_a_change_is_named() {
    let Some(image) = image("ext4-1k") else { return };
    let device = image.path().to_str().unwrap();
    for (time, expected) in [
        ("1704067201", "the superblock's record of this check was written (1.0 KiB)"),
        ("1704067201", "nothing was written"),
    ] {
        let ran = floe_env(&["repair", "--yes", device], &[("E2FSCK_TIME", time)]);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        assert!(!ran.out.contains("0 changes"), "{}", ran.out);
        assert!(ran.out.contains(expected), "{}", ran.out);
    }
}
