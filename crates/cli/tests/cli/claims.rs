//! Two programs that would use the same bytes exclude each other, whatever names they are given;
//! users of other parts of the same disk do not.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use floe_testkit::tool;

use super::loop_device::Loop;
use super::mount::{Ours, can_mount};
use super::{floe, image};

/// Unmounts on drop.
pub(super) struct Unmount(PathBuf);

impl Drop for Unmount {
    fn drop(&mut self) {
        // Another test may be forking, and its child keeps the mount busy until its exec.
        for _ in 0..100 {
            if Command::new("umount").arg(&self.0).status().is_ok_and(|done| done.success()) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }
}

pub(super) fn mounted(program_args: &[&str], place: &Path) -> Unmount {
    let done = Command::new("mount").args(program_args).arg(place).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Unmount(place.to_owned())
}

/// Every command that writes, with the words before and after the name of the device, and its exit
/// code if the device is in use.
fn writers<'a>(place: &'a str, undo: &'a str) -> [(Vec<&'a str>, Vec<&'a str>, i32); 4] {
    [
        (vec!["mount"], vec![place], 32),
        (vec!["repair", "-y"], vec![], 8),
        (vec!["mkfs", "-F"], vec![], 8),
        (vec!["undo", undo], vec![], 8),
    ]
}

/// Each writer is refused at `path`, with `more` options, and does not change the bytes of `file`.
fn assert_refused(file: &Path, path: &str, more: &[&str], undo: &Path) {
    let place = tool::scratch("floe-claims-").unwrap();
    let before = fs::read(file).unwrap();
    for (command, after, code) in writers(place.path().to_str().unwrap(), undo.to_str().unwrap()) {
        let takes_more = matches!(command[0], "mount" | "repair");
        let more = if takes_more { more } else { &[] };
        let ran = floe(&[&command, &[path][..], &after, more].concat());
        assert_eq!(ran.code, code, "{command:?} {path} {more:?}: {}{}", ran.out, ran.err);
        let why = ["locked", "claimed", "mounted on", "in use"];
        assert!(why.iter().any(|word| ran.err.contains(word)), "{command:?} {path}: {}", ran.err);
    }
    assert!(fs::read(file).unwrap() == before, "{path}: changed by a command that was refused");
}

fn assert_clean(path: &Path) {
    let ran = Command::new("e2fsck").arg("-fn").arg(path).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
}

/// An undo file of a real repair of an image.
fn undo_file(folder: &Path, image: &Path) -> PathBuf {
    let (copy, undo) = (folder.join("copy"), folder.join("undo"));
    fs::copy(image, &copy).unwrap();
    let request = ["-w", "-R", "ssv free_blocks_count 1"];
    let changed = Command::new("debugfs").args(request).arg(&copy).output().unwrap();
    assert!(changed.status.success());
    let ran = floe(&["repair", "-y", "--undo", undo.to_str().unwrap(), copy.to_str().unwrap()]);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    undo
}

#[test]
fn one_image_has_one_writer_by_whatever_name() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-claims-").unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::copy(image.path(), at("image")).unwrap();
    let undo = undo_file(folder.path(), &at("image"));
    std::os::unix::fs::symlink("image", at("link")).unwrap();
    fs::hard_link(at("image"), at("hard")).unwrap();
    File::create(at("bound")).unwrap();
    let bound = mounted(&["--bind", at("image").to_str().unwrap()], &at("bound"));
    let loops = [(); 2].map(|()| Loop::over(&at("image"), &[]).unwrap());
    let mut names = ["image", "link", "hard", "bound"].map(|name| at(name).display().to_string());
    names.sort();
    let names: Vec<&str> =
        names.iter().map(String::as_str).chain(loops.iter().map(Loop::name)).collect();
    for holder in &names {
        let held = Ours::new(Path::new(holder), &[]);
        for other in &names {
            assert_refused(&at("image"), other, &[], &undo);
            let ran = floe(&["check", other]);
            assert_eq!(ran.code, 8, "check {other} beside {holder}: {}", ran.err);
            let place = tool::scratch("floe-claims-").unwrap();
            let ran = floe(&["mount", "-o", "ro", other, place.path().to_str().unwrap()]);
            assert_eq!(ran.code, 32, "read {other} beside {holder}: {}", ran.err);
        }
        fs::write(held.path().join("written"), holder).unwrap();
        held.unmount();
        assert_clean(&at("image"));
    }
    // Readers share, and keep writers out.
    let reader = Ours::new(Path::new(names[0]), &["-o", "ro"]);
    let second = Ours::new(Path::new(names[4]), &["-o", "ro"]);
    for other in &names {
        assert_refused(&at("image"), other, &[], &undo);
    }
    reader.unmount();
    second.unmount();
    // Linux mounts one loop device: all other names are in use.
    fs::create_dir(at("point")).unwrap();
    let linux = mounted(&[names[4]], &at("point"));
    for other in &names {
        assert_refused(&at("image"), other, &[], &undo);
    }
    drop(linux);
    drop(bound);
}

/// Makes a disk whose two partitions hold the same content. Returns the first bytes of both and their
/// size.
pub(super) fn disk_with_two(disk: &Path, content: &[u8]) -> [usize; 3] {
    let (start, size) = (1 << 20, content.len());
    let second = start + size;
    let mut bytes = super::disk_with_partition(content);
    bytes.extend(content);
    for (at, value) in [(446 + 16 + 8, second), (446 + 16 + 12, size)] {
        let sectors = u32::try_from(value / 512).unwrap();
        bytes[at..at + 4].copy_from_slice(&sectors.to_le_bytes());
    }
    bytes[446 + 16 + 4] = 0x83;
    fs::write(disk, bytes).unwrap();
    [start, second, size]
}

#[test]
fn parts_of_one_disk_exclude_only_what_overlaps() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-claims-").unwrap();
    let disk = folder.path().join("disk");
    let undo = undo_file(folder.path(), image.path());
    let [start, second, size] = disk_with_two(&disk, &fs::read(image.path()).unwrap());
    let part = |start: usize| {
        let (start, size) = (start.to_string(), size.to_string());
        Loop::over(&disk, &["--offset", &start, "--sizelimit", &size]).unwrap()
    };
    let loops = [part(start), part(second)];
    let name = disk.to_str().unwrap();
    let other_half = second.to_string();
    // Each part in two ways, with the way to the other part.
    for (held, options) in [(name, &["--partition", "1"][..]), (loops[0].name(), &[])] {
        let first = Ours::new(Path::new(held), options);
        assert_refused(&disk, name, &[], &undo);
        assert_refused(&disk, name, &["--partition", "1"], &undo);
        assert_refused(&disk, loops[0].name(), &[], &undo);
        for (other, options) in [
            (name, &["--partition", "2"][..]),
            (name, &["--offset", &other_half]),
            (loops[1].name(), &[]),
        ] {
            let both = Ours::new(Path::new(other), options);
            fs::write(both.path().join("written"), other).unwrap();
            fs::write(first.path().join("written"), other).unwrap();
            both.unmount();
        }
        first.unmount();
        for part in &loops {
            assert_clean(part.as_ref());
        }
    }
    // Beside Linux's mount of the second part.
    fs::create_dir(folder.path().join("point")).unwrap();
    let linux = mounted(&[loops[1].name()], &folder.path().join("point"));
    Ours::new(&disk, &["--partition", "1"]).unmount();
    Ours::new(loops[0].as_ref(), &[]).unmount();
    assert_refused(&disk, name, &["--partition", "2"], &undo);
    assert_refused(&disk, name, &[], &undo);
    drop(linux);
}

#[test]
fn readers_are_warned_of_a_mount_by_floe() {
    if !can_mount() {
        return;
    }
    let Some(image) = image("ext4-1k") else { return };
    let path = image.path().to_str().unwrap();
    let folder = tool::scratch("floe-readers-").unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (archive, salvaged, copy) = (at("tar"), at("salvaged"), at("copy"));
    let lines = [
        vec!["ls", path],
        vec!["cat", path, "/file"],
        vec!["export", "-o", &archive, path],
        vec!["salvage", "--to", &salvaged, path],
        vec!["cp", "-r", path, "/", &copy],
    ];
    let warnings = || lines.iter().filter(|line| floe(line).err.contains("warning: ")).count();
    let read_only = Ours::new(image.path(), &["-o", "ro"]);
    assert_eq!(warnings(), 0);
    drop(read_only);
    for name in [&archive, &salvaged, &copy] {
        let name = Path::new(name);
        let removed = if name.is_dir() { fs::remove_dir_all(name) } else { fs::remove_file(name) };
        removed.unwrap();
    }
    let mounted = Ours::new(image.path(), &[]);
    assert_eq!(warnings(), lines.len());
    drop(mounted);
}
