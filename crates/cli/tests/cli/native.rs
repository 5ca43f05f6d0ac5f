//! Native file systems: relays of Floe, Linux and e2fsck, and servers that are killed.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use floe_blockdev::{FileDevice, Medium, Model};
use floe_check::scan::forecast::Forecast;
use floe_testkit::tree::{self, mounted};
use floe_testkit::{Image, kernel, oracle, tool};

use super::floe;
use super::mount::{Ours, can_mount};

/// A new native file system of 80 MiB with lots of 16 MiB.
fn native() -> Image {
    let image = Image::empty(0).unwrap();
    let path = image.path().to_str().unwrap();
    let sized =
        ["mkfs", "-q", "-F", "-t", "native", "-E", "lot_size=16m", "-N", "6000", path, "80m"];
    let made = floe(&sized);
    assert_eq!((made.code, made.err.as_str()), (0, ""));
    image
}

/// The line of `floe info` about the seal.
pub(super) fn seal(image: &Path) -> String {
    let shown = floe(&["info", image.to_str().unwrap()]).out;
    let line = shown.lines().find(|line| line.trim_start().starts_with("seal"));
    line.unwrap_or_else(|| panic!("{shown}")).to_owned()
}

/// Floe and e2fsck find nothing wrong.
pub(super) fn judge(image: &Image, what: &str) {
    let checked = floe(&["check", image.path().to_str().unwrap()]);
    assert_eq!(checked.code, 0, "{what}: {}", checked.out);
    let judged = oracle::e2fsck(image).unwrap();
    assert!(judged.clean(), "{what}: {}", judged.text);
}

/// Adds and removes files and directories below a mount, differently in each round.
pub(super) fn work(folder: &Path, round: usize) {
    for at in 0..25 {
        let dir = folder.join(format!("r{round} d{at}"));
        fs::create_dir(&dir).unwrap();
        for file in 0..12 {
            let name = format!("{file} {}", "n".repeat(10 * file));
            fs::write(dir.join(name), vec![round as u8; 500 * at * file]).unwrap();
        }
    }
    if let Some(last) = round.checked_sub(1) {
        for at in (0..25).step_by(2) {
            fs::remove_dir_all(folder.join(format!("r{last} d{at}"))).unwrap();
        }
    }
}

/// Floe writes, Linux writes, e2fsck -fyD, Floe writes ...: all approve each other, trees are kept, the seal holds
/// after Floe and is broken after others.
#[test]
fn relays_of_floe_linux_and_e2fsck() {
    if !can_mount() || kernel::mount_available().is_err() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = native();
    assert!(seal(image.path()).contains("1 (intact"));
    for round in 0..4 {
        let what = format!("round {round}");
        let before = if round % 2 == 0 {
            let ours = Ours::new(image.path(), &[]);
            work(ours.path(), round);
            let seen = mounted(ours.path()).unwrap();
            ours.unmount();
            assert!(seal(image.path()).contains("intact"), "{what}");
            seen
        } else {
            let theirs = kernel::Mounted::new(image.path(), "").unwrap();
            work(theirs.path(), round);
            let seen = mounted(theirs.path()).unwrap();
            theirs.unmount().unwrap();
            assert!(seal(image.path()).contains("broken"), "{what}");
            let path = image.path().to_str().unwrap();
            tool::must("e2fsck", &["-fyD", path], &[0, 1]).unwrap();
            seen
        };
        judge(&image, &what);
        let theirs = kernel::Mounted::new(image.path(), "ro").unwrap();
        let after = mounted(theirs.path()).unwrap();
        theirs.unmount().unwrap();
        // e2fsck -D may make directories smaller; the reservation files are sparse in another way.
        let files = |tree: &tree::Tree| -> Vec<(Vec<u8>, String)> {
            let own = |path: &[u8]| path.starts_with(b"/.cubes");
            let kept = tree.iter().filter(|(path, _)| !own(path));
            kept.map(|(path, node)| (path.clone(), node.content.clone())).collect()
        };
        assert_eq!(files(&before), files(&after), "{what}");
    }
}

/// The server is killed: Linux recovers the image, what fsync acknowledged is there, and Floe's next mount seals it again.
#[test]
fn a_killed_server_leaves_what_linux_recovers() {
    if !can_mount() || kernel::mount_available().is_err() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = native();
    let ours = Ours::new(image.path(), &[]);
    work(ours.path(), 0);
    let file = File::create(ours.path().join("kept")).unwrap();
    file.write_all_at(b"acknowledged", 0).unwrap();
    file.sync_all().unwrap();
    let status = floe(&["status", ours.path().to_str().unwrap()]).out;
    let process = status.lines().find_map(|line| line.strip_prefix("process: ")).unwrap();
    drop(file);
    assert!(Command::new("kill").args(["-9", process]).status().unwrap().success());
    ours.unmount_dead();
    assert!(seal(image.path()).contains("broken"));
    let theirs = kernel::Mounted::new(image.path(), "").unwrap();
    assert_eq!(fs::read(theirs.path().join("kept")).unwrap(), b"acknowledged");
    theirs.unmount().unwrap();
    judge(&image, "after Linux");
    let ours = Ours::new(image.path(), &[]);
    assert_eq!(fs::read(ours.path().join("kept")).unwrap(), b"acknowledged");
    ours.unmount();
    assert!(seal(image.path()).contains("intact"));
    judge(&image, "after Floe");
}

/// A native image, or an archive of it, as the source of another: its own files are not copied, the rest is.
#[test]
fn a_native_image_is_a_source_of_images() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-native-").unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    fs::write(tree.join("a/b/file"), "content").unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let from = format!("dir:{}", tree.display());
    let (first, second, third) = (path("first.img"), path("second.img"), path("third.img"));
    for (kind, from, to) in
        [("native", &from, &first), ("native", &first, &second), ("ext4", &second, &third)]
    {
        let made = floe(&["mkfs", "-q", "-t", kind, "--from", from, to]);
        assert_eq!((made.code, made.err.as_str()), (0, ""), "{kind} {from}");
        judge(&Image::open(Path::new(to)).unwrap(), to);
        assert_eq!(floe(&["cat", to, "/a/b/file"]).out, "content");
        let listed = floe(&["ls", to]).out;
        assert_eq!(listed.contains(".cubes"), kind == "native", "{listed}");
    }
    let (archive, fourth, copy) = (path("archive.tar"), path("fourth.img"), path("copy"));
    assert_eq!(floe(&["export", &first, "-o", &archive]).code, 0);
    let made = floe(&["mkfs", "-q", "-t", "native", "--from", &archive, &fourth]);
    assert_eq!((made.code, made.err.as_str()), (0, ""));
    assert_eq!(floe(&["cat", &fourth, "/a/b/file"]).out, "content");
    let copied = floe(&["cp", "-r", &first, "/", &copy]);
    assert_eq!((copied.code, copied.err.as_str()), (0, ""));
    assert_eq!(fs::read(Path::new(&copy).join("a/b/file")).unwrap(), b"content");
    assert!(!fs::exists(Path::new(&copy).join(".cubes")).unwrap());
    // Whoever asks for it gets it.
    assert!(floe(&["export", &first, "/.cubes"]).out.contains("c0/"));
}

/// Files that are deleted while they are open are listed in the orphan file: without it nothing is written.
#[test]
fn a_native_image_without_orphan_file_is_only_read() {
    if !can_mount() {
        return;
    }
    let image = native();
    let path = image.path().to_str().unwrap();
    let ours = Ours::new(image.path(), &[]);
    fs::write(ours.path().join("file"), "content").unwrap();
    ours.unmount();
    let tune = |features: &str| {
        let done = Command::new("tune2fs").args(["-O", features, path]).output().unwrap();
        assert!(done.status.success(), "{done:?}");
    };
    tune("^orphan_file");
    let ours = Ours::new(image.path(), &[]);
    assert!(fs::remove_file(ours.path().join("file")).is_err());
    assert_eq!(fs::read(ours.path().join("file")).unwrap(), b"content");
    ours.unmount();
    let refused = floe(&["mount", path, "/mnt", "-o", "rw"]);
    assert!(refused.code == 32 && refused.err.contains("orphan_file"), "{}", refused.err);
    tune("orphan_file");
    let ours = Ours::new(image.path(), &[]);
    fs::remove_file(ours.path().join("file")).unwrap();
    ours.unmount();
    judge(&image, "with an orphan file again");
    let made = floe(&["mkfs", "-q", "-F", "-t", "native", "-O", "^orphan_file", path, "80m"]);
    assert!(made.code != 0 && made.err.contains("orphan_file"), "{}", made.err);
}

/// There is one estimate of a check, and it is that of the sweep, whose plan is proved to be what a check reads
/// (`the_time_is_told_by_descriptors`).
#[test]
fn info_has_one_estimate_and_it_is_that_of_the_sweep() {
    let image = native();
    let path = image.path().to_str().unwrap();
    let shown = floe(&["info", "--json", path]).out;
    let sheets: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let sheets = sheets.as_array().unwrap().iter();
    let fields: Vec<_> = sheets.flat_map(|sheet| sheet["fields"].as_object().unwrap()).collect();
    let of_disk: Vec<_> = fields.iter().filter(|(name, _)| name.contains("disk")).collect();
    let forecast = Forecast::on(&FileDevice::open(image.path()).unwrap(), Medium::Rotating);
    let forecast = forecast.unwrap();
    let time = Model::rotating().replay(forecast.requests()).as_secs_f64();
    assert!(of_disk.len() == 1 && *of_disk[0].1 == *format!("{time:.3} s"), "{time}: {shown}");
    let told = fields.iter().find(|(name, _)| *name == "bytes to read").unwrap().1;
    let forecast = Forecast::of(&FileDevice::open(image.path()).unwrap()).unwrap();
    assert_eq!(*told, *format!("{:.1} KiB", forecast.bytes() as f64 / 1024.0));
}
