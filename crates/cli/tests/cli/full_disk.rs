//! Standard output and standard error on a full disk: the work is done, and the exit code tells its result.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use floe_testkit::{build, tool};

use super::{Ran, image, ran};

/// Exists on every Linux; each write fails as on a full disk.
const FULL: &str = "/dev/full";

/// Runs with the streams that are named on a full disk.
fn run(line: &str, device: &Path, full: &[&str]) -> Ran {
    let stream = |name: &str| match full.contains(&name) {
        true => Stdio::from(File::options().write(true).open(FULL).unwrap()),
        false => Stdio::piped(),
    };
    let words = line.split(' ').map(|word| match word {
        "X" => device.as_os_str(),
        word => word.as_ref(),
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.args(words).stdin(Stdio::null()).stdout(stream("out")).stderr(stream("err"));
    ran(&command.env("E2FSCK_CONFIG", "/dev/null").output().unwrap())
}

#[test]
fn lost_messages_change_neither_work_nor_exit_code() {
    let Some(image) = image("ext4-1k") else { return };
    let sound = image.to_vec().unwrap();
    build::debugfs(&image, "set_inode_field <12> links_count 77\n").unwrap();
    let damaged = image.to_vec().unwrap();
    let folder = tool::scratch("floe-full-").unwrap();
    let device = folder.path().join("device");
    let work = ["repair --yes X", "fsck -fy X", "fsck -p X", "fsck -f X", "fsck -fn X"];
    let reports = ["check X", "check nosuch", "undo nosuch X", "undo X X", "mount nosuch /mnt"];
    let more =
        ["salvage nosuch", "fsck -Q X", "fsck -V", "fsck nosuch", "info nosuch", "cat X /no"];
    for before in [&sound, &damaged] {
        for line in work.iter().chain(&reports).chain(&more) {
            let with = |full: &[&str]| {
                fs::write(&device, before).unwrap();
                let ran = run(line, &device, full);
                (ran, fs::read(&device).unwrap())
            };
            let (usual, after) = with(&[]);
            let (lost, after_lost) = with(&["err"]);
            assert_eq!(lost.code, usual.code, "{line}");
            assert_eq!(lost.out.lines().count(), usual.out.lines().count(), "{line}");
            assert!((after == *before) == (after_lost == *before), "{line}");
            if work.contains(line) {
                // A report that is lost is told, and the repair stands.
                let (lost, _) = with(&["out"]);
                assert_eq!(lost.code, usual.code, "{line}: {}", lost.err);
                let is_told = lost.err.contains("the report is incomplete");
                assert_eq!(is_told, !usual.out.is_empty(), "{line}: {}", lost.err);
                assert_eq!(with(&["out", "err"]).0.code, usual.code, "{line}");
            }
        }
    }
    // A check is its report.
    let lost = run("check X", &device, &["out"]);
    assert_eq!(lost.code & 8, 8, "{}", lost.err);
    assert_eq!(lost.err.matches("No space left").count(), 1, "told once: {}", lost.err);
}

/// An archive, a file or a report that nobody gets is no success.
#[test]
fn a_standard_output_that_takes_nothing_is_a_failure() {
    let Some(image) = image("ext4-1k") else { return };
    let name = image.path().to_str().unwrap();
    build::debugfs(&image, "write /etc/hostname some\n").unwrap();
    for line in [
        &["check", name][..],
        &["check", "--json", name],
        &["ls", name, "/"],
        &["cat", name, "/some"],
        &["export", name],
        &["salvage", name, "--to", "-"],
        &["salvage", name],
        &["repair", "--dry-run", name],
        &["info", name],
    ] {
        let ran = into_full(line);
        assert_eq!(ran.code & 8, 8, "{line:?}: {}", ran.err);
        assert_eq!(ran.err.matches("No space left").count(), 1, "{line:?}: {}", ran.err);
    }
    // The report only tells about the work of a repair.
    let ran = into_full(&["repair", "--yes", name]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("the report is incomplete"), "{}", ran.err);
}

fn into_full(line: &[&str]) -> Ran {
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$0\" \"$@\" >/dev/full", env!("CARGO_BIN_EXE_floe")]);
    ran(&shell.args(line).output().unwrap())
}
