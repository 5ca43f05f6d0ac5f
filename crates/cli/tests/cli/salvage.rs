//! `floe salvage`: targets, exit codes, the report, and that it changes nothing that is in order.

use std::fs;
use std::process::{Command, Output, Stdio};

use floe_format::{InodeNr, LogicalBlock};
use floe_testkit::volume::Volume;
use floe_testkit::{Image, Profile, build, tool};

use super::disk_with_partition;
use serde_json::Value;

fn floe(command: &str, image: &Image, arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_floe"));
    program.arg(command).arg(image.path()).args(arguments).output().unwrap()
}

/// Zeroes the first block of the root directory.
fn without_root(image: &Image) {
    let volume = Volume::open(image).unwrap();
    let map = volume.map(InodeNr::ROOT).unwrap();
    let block = map.data[&LogicalBlock(0)];
    volume.put_block(block, &vec![0; volume.block_bytes()]).unwrap();
}

#[test]
fn a_healthy_image_is_copied_as_export_does() {
    if tool::missing() {
        return;
    }
    for &profile in Profile::ALL {
        let image = build::base(profile).unwrap();
        let (ours, theirs) = (floe("salvage", &image, &["--to", "-"]), floe("export", &image, &[]));
        let report = String::from_utf8_lossy(&ours.stderr);
        assert_eq!(ours.status.code(), Some(0), "{profile}: {report}");
        assert!(theirs.stdout.len() > 10_000, "{profile}");
        assert!(ours.stdout == theirs.stdout, "{profile}: {report}");
    }
}

#[test]
fn a_lost_root_is_reported_and_its_files_are_found() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::Ext4).unwrap();
    without_root(&image);
    let before = image.to_vec().unwrap();
    let folder = tool::scratch("floe-salvage-").unwrap();
    let target = folder.path().join("new");
    let target = target.to_str().unwrap();
    let output = floe("salvage", &image, &["--json", "--to", target]);
    assert_eq!(output.status.code(), Some(4), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["schema"], "floe-salvage");
    assert_eq!(report["exit_code"], 4);
    assert!(report["rebuilt"]["unnamed"].as_u64().unwrap() > 3, "{report}");
    assert!(fs::read_dir(target).unwrap().count() > 3);

    let again = floe("salvage", &image, &["--to", target]);
    assert_eq!(again.status.code(), Some(8));
    assert!(String::from_utf8_lossy(&again.stderr).contains("is not empty"));
    assert!(image.to_vec().unwrap() == before, "the source was changed");
}

#[test]
fn what_is_no_file_system_is_refused() {
    let image = Image::empty(1 << 20).unwrap();
    let output = floe("salvage", &image, &[]);
    assert_eq!(output.status.code(), Some(8), "{output:?}");
    let output = floe("salvage", &image, &["--json"]);
    let error: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&error["schema"], &error["exit_code"]), (&"floe-error".into(), &8.into()));
    let both = floe("salvage", &image, &["--json", "--to", "-"]);
    assert_eq!(both.status.code(), Some(16), "{both:?}");
}

/// An archive of more bytes than a pipe holds, whose reader leaves at once.
#[test]
fn a_closed_pipe_is_a_failure_without_a_message() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::Ext4).unwrap();
    for arguments in [&["salvage", "--to", "-"][..], &["export"]] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_floe"));
        program.args(arguments).arg(image.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = program.spawn().unwrap();
        drop(running.stdout.take());
        let done = running.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!((done.status.code(), &*said), (Some(8), ""), "{arguments:?}");
    }
}

#[test]
fn a_refusal_leaves_no_folder_behind() {
    let image = Image::empty(1 << 20).unwrap();
    let folder = tool::scratch("floe-salvage-").unwrap();
    let target = folder.path().join("new");
    let arguments = ["--to", target.to_str().unwrap()];
    assert_eq!(floe("salvage", &image, &arguments).status.code(), Some(8));
    assert!(!target.exists());
    // A folder that was there stays.
    fs::create_dir(&target).unwrap();
    assert_eq!(floe("salvage", &image, &arguments).status.code(), Some(8));
    assert!(target.exists());
}

#[test]
fn a_full_disk_names_the_file() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::Ext4).unwrap();
    let output = floe("salvage", &image, &["--to", "tar:/dev/full"]);
    assert_eq!(output.status.code(), Some(8), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("/dev/full"), "{output:?}");
    let folder = tool::scratch("floe-salvage-").unwrap();
    let mount = |options: &str| {
        let mut program = Command::new("mount");
        program.args(["-t", "tmpfs", "-o", options, "floe-test"]).arg(folder.path());
        program.output().is_ok_and(|done| done.status.success())
    };
    if !mount("size=64k") {
        eprintln!("skipped: no mounts here");
        return;
    }
    let output = floe("salvage", &image, &["--to", folder.path().to_str().unwrap()]);
    let _ = Command::new("umount").arg(folder.path()).status();
    assert_eq!(output.status.code(), Some(8), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    let place = format!("{}: /", folder.path().display());
    assert!(said.contains("No space left") && said.contains(&place), "{said}");
}

/// A symbolic link whose block holds zeroes has no target: only its name is left, in the report and
/// in every copy.
#[test]
fn a_link_without_a_target_is_only_a_name() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::Ext4).unwrap();
    let long = "x/".repeat(100);
    build::debugfs(&image, &format!("symlink /long {long}\n")).unwrap();
    let volume = Volume::open(&image).unwrap();
    let inode = volume.lookup("/long").unwrap();
    let block = volume.map(inode).unwrap().data[&LogicalBlock(0)];
    volume.put_block(block, &vec![0; volume.block_bytes()]).unwrap();
    drop(volume);
    let folder = tool::scratch("floe-salvage-").unwrap();
    let targets = [folder.path().join("new"), folder.path().join("tar")];
    let archive = format!("tar:{}", targets[1].display());
    for target in [
        &["--json", "--to", targets[0].to_str().unwrap()][..],
        &["--json", "--to", &archive],
        &["--json"],
    ] {
        let output = floe("salvage", &image, target);
        assert_eq!(output.status.code(), Some(4), "{output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let objects = report["objects"].as_array().unwrap();
        let link = objects.iter().find(|object| object["path"] == "long").unwrap();
        assert_eq!(
            (&link["state"], &link["type"]),
            (&"name-only".into(), &"symbolic links".into())
        );
    }
    assert_eq!(floe("export", &image, &[]).status.code(), Some(4));
}

/// On a disk whose partition table is lost, file systems begin elsewhere: the place is named.
#[test]
fn a_file_system_behind_a_lost_partition_table_is_found() {
    if tool::missing() {
        return;
    }
    for (profile, start, lost) in [
        (Profile::Ext3, 1 << 20, 0),
        (Profile::Ext4, 1 << 20, 0),
        (Profile::Ext4, 63 * 512, 0),
        // Its primary superblock is lost, too.
        (Profile::by_name("ext4-1k").unwrap(), 1 << 20, 4096),
    ] {
        let content = build::base(profile).unwrap().to_vec().unwrap();
        let disk = Image::empty((start + content.len()) as u64).unwrap();
        disk.write(start as u64, &content).unwrap();
        disk.write(start as u64, &vec![0; lost]).unwrap();
        let offset = format!("--offset {start}");
        for arguments in [&["salvage"][..], &["check"], &["repair", "--yes"], &["info"]] {
            let output = floe(arguments[0], &disk, &arguments[1..]);
            let told = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(8), "{profile} {start} {arguments:?}: {told}");
            assert!(told.contains(&offset), "{profile} {start} {arguments:?}: {told}");
        }
        let (_, start) = offset.split_once(' ').unwrap();
        let output = floe("salvage", &disk, &["--offset", start]);
        assert_eq!(output.status.code(), Some(if lost > 0 { 4 } else { 0 }), "{output:?}");
    }
}

/// Nobody needs a byte where the table is there.
#[test]
fn a_partition_table_is_named_before_a_byte() {
    if tool::missing() {
        return;
    }
    let content = build::base(Profile::Ext4).unwrap().to_vec().unwrap();
    let bytes = disk_with_partition(&content);
    let disk = Image::empty(bytes.len() as u64).unwrap();
    disk.write(0, &bytes).unwrap();
    for arguments in [&["salvage"][..], &["check"]] {
        let output = floe(arguments[0], &disk, &arguments[1..]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(8), "{arguments:?}: {told}");
        assert!(told.contains("MBR") && told.contains("--partition"), "{arguments:?}: {told}");
        assert!(!told.contains("--offset"), "{arguments:?}: {told}");
    }
}

#[test]
fn an_encrypted_file_is_not_called_whole() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::Encrypt).unwrap();
    let script =
        "mkdir folder\nwrite /proc/version folder/sealed\nsif folder/sealed flags 0x80800\n";
    build::debugfs(&image, script).unwrap();
    let folder = tool::scratch("floe-salvage-").unwrap();
    let target = folder.path().join("new");
    let report = |more: &[&str]| {
        let output = floe("salvage", &image, &[&["--json"], more].concat());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let objects = report["objects"].as_array().unwrap();
        let mut sealed = objects.iter().filter(|object| object["path"] == "folder/sealed");
        assert_eq!(sealed.next().unwrap()["state"], "name-only", "{report}");
        output.status.code()
    };
    assert_eq!(report(&[]), Some(4));
    // It cannot be copied, either.
    assert_eq!(report(&["--to", target.to_str().unwrap()]), Some(12));
}
