//! Copies of files are not written into the image that they come from.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use floe_testkit::tool;

use super::claims::{disk_with_two, mounted};
use super::loop_device::Loop;
use super::mount::{Ours, can_mount};
use super::{Ran, floe, image, ran};

/// Every command that copies out of `input`, with its output in `folder`.
fn copies(input: &str, more: &[&str], folder: &Path) -> Vec<Ran> {
    let at = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let archive = format!("tar:{}", at("tar"));
    let (new, below, tar) = (at("new"), at("no/where"), at("tar"));
    let lines = [
        vec!["salvage", "--to", &new, input],
        vec!["salvage", "--to", &below, input],
        vec!["salvage", "--to", &archive, input],
        vec!["export", "-o", &tar, input],
        vec!["cp", "-r", input, "/", &new],
    ];
    let mut all: Vec<Ran> = lines.into_iter().map(|line| floe(&[&line, more].concat())).collect();
    for line in [["export"].as_slice(), &["salvage", "--to", "-"]] {
        // A mount that is read-only takes no file to redirect to.
        let Ok(file) = File::create(folder.join("redirected")) else { continue };
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        command.args(line).arg(input).args(more).stdout(file);
        all.push(ran(&command.output().unwrap()));
    }
    all
}

fn assert_refused(input: &str, more: &[&str], folder: &Path) {
    for ran in copies(input, more, folder) {
        let refused = ran.code == 16 && ran.err.contains("which is a mount of");
        assert!(refused, "{input} {more:?}: {} {}", ran.code, ran.err);
    }
    for name in ["new", "no", "tar"] {
        assert!(!folder.join(name).exists(), "{input}: {name}");
    }
}

fn assert_allowed(input: &str, more: &[&str], folder: &Path) {
    let at = folder.join("allowed");
    let ran = floe(&[&["salvage", "--to", at.to_str().unwrap(), input], more].concat());
    assert!(matches!(ran.code, 0 | 4), "{input} {more:?}: {} {}", ran.code, ran.err);
    assert!(at.join("lost+found").is_dir());
    fs::remove_dir_all(at).unwrap();
}

#[test]
fn copies_into_a_mount_of_the_image_itself_are_refused() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-own-").unwrap();
    let file = image.path().to_str().unwrap();

    // A mount of Floe, by an absolute and by a relative name.
    let ours = Ours::new(image.path(), &[]);
    assert_refused(file, &[], ours.path());
    assert_refused(file, &[], &ours.path().join("dir"));
    assert_allowed(file, &[], folder.path());
    ours.unmount();
    let place = folder.path().join("relative");
    fs::create_dir(&place).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
    command.current_dir(image.path().parent().unwrap());
    command.arg("mount").arg(image.path().file_name().unwrap()).arg(&place);
    assert_eq!(ran(&command.output().unwrap()).code, 0);
    assert_refused(file, &[], &place);
    assert_eq!(floe(&["umount", place.to_str().unwrap()]).code, 0);

    // Linux's loop mount, from both ends.
    let device = Loop::over(image.path(), &[]).unwrap();
    let place = folder.path().join("linux");
    fs::create_dir(&place).unwrap();
    let linux = mounted(&[device.name()], &place);
    let other = Loop::over(image.path(), &[]).unwrap();
    for input in [file, device.name(), other.name()] {
        assert_refused(input, &[], &place);
        assert_refused(input, &[], &place.join("dir"));
        assert_allowed(input, &[], folder.path());
    }

    // An image in that mount: copies out of it may go beside it, but not the other way round.
    let inner = place.join("inner");
    fs::write(&inner, vec![0; 3 << 20]).unwrap();
    assert_eq!(floe(&["mkfs", "-F", inner.to_str().unwrap()]).code, 0);
    assert_allowed(inner.to_str().unwrap(), &[], &place);
    let (inside, within) = (Loop::over(&inner, &[]).unwrap(), folder.path().join("within"));
    fs::create_dir(&within).unwrap();
    let mount_within = mounted(&[inside.name()], &within);
    assert_refused(file, &[], &within);
    drop(mount_within);
    drop(inside);
    drop(linux);
}

#[test]
fn copies_into_another_partition_are_allowed() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-own-").unwrap();
    let disk = folder.path().join("disk");
    let [_, second, size] = disk_with_two(&disk, &fs::read(image.path()).unwrap());
    let name = disk.to_str().unwrap();

    let ours = Ours::new(&disk, &["--partition", "1"]);
    assert_refused(name, &["--partition", "1"], ours.path());
    assert_refused(name, &["--offset", "1048576"], ours.path());
    assert_allowed(name, &["--partition", "2"], ours.path());
    ours.unmount();

    let (start, size) = (second.to_string(), size.to_string());
    let part = Loop::over(&disk, &["--offset", &start, "--sizelimit", &size]).unwrap();
    let place = folder.path().join("linux");
    fs::create_dir(&place).unwrap();
    let linux = mounted(&[part.name()], &place);
    assert_refused(name, &["--partition", "2"], &place);
    assert_allowed(name, &["--partition", "1"], &place);
    drop(linux);
}
