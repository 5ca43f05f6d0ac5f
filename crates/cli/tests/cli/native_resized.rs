//! Native file systems that resize2fs or Linux made larger or smaller: no check says damage at any time, and Floe's next mount seals them.

use std::fs;
use std::path::Path;
use std::process::Command;

use floe_testkit::tree::{self, mounted};
use floe_testkit::{Image, kernel, tool};

use super::floe;
use super::loop_device::Loop;
use super::mount::{Ours, can_mount};
use super::native::{judge, seal, work};

const MIB: u64 = 1 << 20;

fn native(size: &str) -> Image {
    let image = Image::empty(0).unwrap();
    let path = image.path().to_str().unwrap();
    let options = ["mkfs", "-q", "-F", "-t", "native", "-E", "lot_size=16m", "-N", "6000"];
    let made = floe(&[&options[..], &[path, size]].concat());
    assert_eq!((made.code, made.err.as_str()), (0, ""));
    image
}

/// Its files but those of the file system itself.
fn files(tree: &tree::Tree) -> Vec<(Vec<u8>, String)> {
    let kept = tree.iter().filter(|(path, _)| !path.starts_with(b"/.cubes"));
    kept.map(|(path, node)| (path.clone(), node.content.clone())).collect()
}

/// The files that a mount by Floe shows, which writes to it, too.
fn visited(image: &Path, round: usize) -> Vec<(Vec<u8>, String)> {
    let ours = Ours::new(image, &[]);
    work(ours.path(), round);
    let seen = files(&mounted(ours.path()).unwrap());
    ours.unmount();
    assert!(seal(image).contains("intact"), "round {round}: {}", seal(image));
    seen
}

/// Sizes in MiB: whole lots more, part of a lot more, less, into the first lots, and all the way up again.
const SIZES: [u64; 8] = [144, 150, 157, 90, 65, 70, 60, 120];

#[test]
fn what_resize2fs_made_larger_or_smaller_is_sealed_again() {
    if !can_mount() {
        return;
    }
    for visits in [true, false] {
        let image = native("80m");
        let path = image.path().to_str().unwrap();
        let mut before = visited(image.path(), 0);
        for (round, size) in (1..).zip(SIZES) {
            let what = format!("to {size} MiB, mounted in between: {visits}");
            let old = fs::metadata(path).unwrap().len();
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(old.max(size * MIB)).unwrap();
            tool::must("e2fsck", &["-fy", path], &[0, 1]).unwrap();
            let ran = tool::must("resize2fs", &[path, &format!("{size}M")], &[0]);
            assert!(ran.is_ok(), "{what}: {:#}", ran.unwrap_err());
            judge(&Image::open(image.path()).unwrap(), &what);
            if visits {
                let now = files(&tree::stored(&Image::open(image.path()).unwrap()).unwrap());
                assert_eq!(now, before, "{what}");
                before = visited(image.path(), round);
                judge(&Image::open(image.path()).unwrap(), &format!("{what}, after Floe"));
            }
        }
        tool::must("e2fsck", &["-fy", path], &[0, 1]).unwrap();
        tool::must("resize2fs", &["-M", path], &[0]).unwrap();
        judge(&Image::open(image.path()).unwrap(), "smallest");
        let ours = Ours::new(image.path(), &[]);
        fs::write(ours.path().join("small"), "small").unwrap();
        ours.unmount();
        judge(&Image::open(image.path()).unwrap(), "smallest, after Floe");
    }
}

#[test]
fn what_linux_made_larger_while_mounted_is_sealed_again() {
    if !can_mount() || kernel::mount_available().is_err() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = native("80m");
    visited(image.path(), 0);
    let file = fs::OpenOptions::new().write(true).open(image.path()).unwrap();
    file.set_len(157 * MIB).unwrap();
    let device = Loop::over(image.path(), &[]).unwrap();
    let place = tool::scratch("floe-native-").unwrap();
    let linux = super::claims::mounted(&[device.name()], place.path());
    work(place.path(), 1);
    for size in ["100M", "157M"] {
        let grown = Command::new("resize2fs").args([device.name(), size]).output().unwrap();
        let said = String::from_utf8_lossy(&grown.stderr);
        if said.contains("Permission denied") {
            eprintln!("skipped: CAP_SYS_RESOURCE is needed, and root lacks it here");
            return;
        }
        assert!(grown.status.success(), "{said}");
        work(place.path(), 2 + usize::from(size == "157M"));
    }
    let before = files(&mounted(place.path()).unwrap());
    drop(linux);
    drop(device);
    judge(&image, "after Linux");
    assert_eq!(files(&tree::stored(&image).unwrap()), before);
    visited(image.path(), 4);
    judge(&image, "after Floe");
}

/// A lot that resize2fs has added serves a cube before anything else was written by Floe.
#[test]
fn an_added_lot_serves_a_cube_at_once() {
    if tool::missing() {
        return;
    }
    let image = Image::empty(0).unwrap();
    let path = image.path().to_str().unwrap();
    let made = floe(&["mkfs", "-q", "-F", "-t", "native", "-E", "lot_size=16m", path, "16m"]);
    assert_eq!((made.code, made.err.as_str()), (0, ""));
    let full = floe(&["cube", "create", path, "/early"]);
    assert!(full.code == 8 && full.err.contains("no free lot"), "{}", full.err);
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(48 * MIB).unwrap();
    tool::must("e2fsck", &["-fy", path], &[0, 1]).unwrap();
    tool::must("resize2fs", &[path, "48M"], &[0]).unwrap();
    for name in ["/one", "/two"] {
        let made = floe(&["cube", "create", path, name]);
        assert_eq!((made.code, made.err.as_str()), (0, ""), "{name}");
    }
    judge(&Image::open(image.path()).unwrap(), "two cubes");
    let listed = floe(&["cube", "list", path]);
    assert!(
        listed.out.contains("/one, 1 lot") && listed.out.contains("/two, 1 lot"),
        "{}",
        listed.out
    );
}
