//! `floe salvage`: targets, exit codes, the report, and that it changes nothing that is in order.

use std::fs;
use std::process::{Command, Output};

use floe_format::{InodeNr, LogicalBlock};
use floe_testkit::volume::Volume;
use floe_testkit::{Image, Profile, build, tool};
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
    let both = floe("salvage", &image, &["--json", "--to", "-"]);
    assert_eq!(both.status.code(), Some(16), "{both:?}");
}
