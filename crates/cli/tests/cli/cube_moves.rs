//! `floe cube move-in` and `floe cube fence`: files move into cubes, and Linux is kept out of them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use floe_testkit::{Image, kernel, oracle, tool};

use super::cubes::{cube, judge, native};
use super::floe;
use super::mount::{Ours, can_mount};
use super::mount_killed::kill;

/// A tree of all kinds of files that programs can make.
fn plant(top: &Path) {
    fs::create_dir_all(top.join("dir/deep")).unwrap();
    for at in 0..30u8 {
        fs::write(top.join(format!("dir/file{at}")), vec![at; 5000 + usize::from(at) * 700])
            .unwrap();
    }
    fs::hard_link(top.join("dir/file1"), top.join("dir/deep/second")).unwrap();
    symlink("../file2", top.join("dir/deep/link")).unwrap();
    symlink("x".repeat(300), top.join("long")).unwrap();
    let fifo = top.join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let sparse = fs::File::create(top.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 3 << 20).unwrap();
    drop(sparse);
    rustix::fs::setxattr(
        top.join("dir/file3"),
        "user.note",
        b"kept",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    fs::set_permissions(top.join("dir/file4"), fs::Permissions::from_mode(0o4711)).unwrap();
    std::os::unix::fs::chown(top.join("dir/file5"), Some(1000), Some(1001)).unwrap();
    let old = fs::File::open(top.join("dir/file6")).unwrap();
    let time = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    old.set_times(fs::FileTimes::new().set_modified(time).set_accessed(time)).unwrap();
    fs::set_permissions(top.join("dir/deep"), fs::Permissions::from_mode(0o700)).unwrap();
}

/// A native file system with the cubes `/web` and `/db`.
fn with_two_cubes() -> Image {
    let image = native();
    assert_eq!(cube(&image, "create", &["/web"]).0, 0);
    assert_eq!(cube(&image, "create", &["/db"]).0, 0);
    image
}

/// All that programs see of a tree, by path.
fn seen(top: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut left = vec![top.to_owned()];
    while let Some(at) = left.pop() {
        let of = fs::symlink_metadata(&at).unwrap();
        let mut text = format!(
            "{:o} {} {} {}.{} {}",
            of.mode(),
            of.uid(),
            of.gid(),
            of.mtime(),
            of.mtime_nsec(),
            if of.is_dir() { 0 } else { of.nlink() }
        );
        if of.is_file() {
            let bytes = fs::read(&at).unwrap();
            text.push_str(&format!(" {} {:?}", bytes.len(), floe_format::crc::crc32c(0, &bytes)));
            if at.ends_with("sparse") {
                text.push_str(&format!(" {}", of.blocks() < 100));
            }
        }
        let mut value = [0; 100];
        if let Ok(len) = rustix::fs::lgetxattr(&at, "user.note", &mut value[..]) {
            text.push_str(&format!(" {:?}", &value[..len]));
        }
        let mut marked = [0; 100];
        if rustix::fs::lgetxattr(&at, "trusted.floe.move_in", &mut marked[..]).is_ok() {
            text.push_str(" marked");
        }
        if of.is_symlink() {
            text.push_str(&format!(" {:?}", fs::read_link(&at).unwrap()));
        }
        if of.is_dir() {
            left.extend(fs::read_dir(&at).unwrap().map(|name| name.unwrap().path()));
        }
        all.insert(at.strip_prefix(top).unwrap().display().to_string(), text);
    }
    all
}

#[test]
fn files_move_into_a_cube_of_an_image_and_of_a_mount() {
    if !can_mount() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = native();
    assert_eq!(cube(&image, "create", &["/web"]).0, 0);
    assert_eq!(cube(&image, "create", &["/db", "--journal-blocks", "64"]).0, 0);
    let ours = Ours::new(image.path(), &[]);
    for top in ["one", "two"] {
        fs::create_dir(ours.path().join(top)).unwrap();
        plant(&ours.path().join(top));
    }
    // Times are the kernel's until it has told them.
    ours.unmount();
    let ours = Ours::new(image.path(), &[]);
    let before = ["one", "two"].map(|top| seen(&ours.path().join(top)));
    let place = |name: &str| ours.path().join(name).to_str().unwrap().to_owned();
    let moves = |from: &str, to: &str| floe(&["cube", "move-in", &place(from), &place(to)]);
    for (from, to, why) in [
        ("none", "db", "none"),
        ("two", "one", "lies in no cube"),
        ("two/dir/file1", "db", "has 2 names"),
        ("web", "db", "is a cube"),
        ("lost+found", "db", "where repairs put"),
    ] {
        let refused = moves(from, to);
        assert!(refused.code == 8 && refused.err.contains(why), "{from}: {}", refused.err);
    }
    let moved = moves("two", "db");
    assert_eq!((moved.code, moved.err.as_str()), (0, ""), "{}", moved.out);
    assert!(moved.out.contains("files moved"), "{}", moved.out);
    assert!(!fs::exists(place("two")).unwrap());
    assert_eq!(seen(&ours.path().join("db/two")), before[1]);
    ours.unmount();
    judge(&image, "moved in a mount");
    for (arguments, why) in [
        (["/one", "/none"], "there is no"),
        (["/one", "/one"], "is not a cube"),
        (["/one/dir/file1", "/web"], "has 2 names"),
        (["/web", "cube:2"], "is a cube"),
        (["/lost+found/", "/web"], "where repairs put"),
        (["one", "/web"], "starts with /"),
        (["/one", "cube:99"], "there is no cube 99"),
    ] {
        let (code, out, err) = cube(&image, "move-in", &arguments);
        assert!(code == 8 && err.contains(why), "{arguments:?}: {code} {out}{err}");
        judge(&image, why);
    }
    let (code, out, err) = cube(&image, "move-in", &["/one", "/web"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    judge(&image, "moved in an image");
    let path = image.path().to_str().unwrap();
    let found = floe(&["check", "--json", path]).out;
    assert!(!found.contains("cube-"), "{found}");
    let ours = Ours::new(image.path(), &[]);
    assert_eq!(seen(&ours.path().join("web/one")), before[0]);
    assert!(!fs::exists(ours.path().join("one")).unwrap());
    ours.unmount();
}

/// Whoever is killed leaves a copy that the next run removes, or a source that the next run removes.
#[test]
fn a_move_into_a_cube_that_is_killed_is_finished_by_the_next_run() {
    if !can_mount() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = native();
    assert_eq!(cube(&image, "create", &["/web"]).0, 0);
    let ours = Ours::new(image.path(), &[]);
    fs::create_dir(ours.path().join("tree")).unwrap();
    plant(&ours.path().join("tree"));
    ours.unmount();
    let ours = Ours::new(image.path(), &[]);
    let before = seen(&ours.path().join("tree"));
    let (from, to) = (ours.path().join("tree"), ours.path().join("web"));
    let mut cut_off = 0;
    for wait in [30, 60, 90, 120, 160] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(["cube", "move-in"])
            .args([&from, &to])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(wait));
        let _ = child.kill();
        if !child.wait().unwrap().success() {
            cut_off += 1;
        }
        if fs::exists(&from).unwrap() {
            // Nothing of the source is lost before the whole copy has its name.
            let copied = fs::exists(to.join("tree")).unwrap();
            assert!(copied || seen(&from) == before, "after {wait} ms");
        }
    }
    // A run that is killed as it ends has removed the source, and the mark of the copy, or not yet.
    let is_marked = || seen(&to.join("tree"))[""].ends_with("marked");
    if fs::exists(&from).unwrap() || is_marked() {
        let last = floe(&["cube", "move-in", from.to_str().unwrap(), to.to_str().unwrap()]);
        assert_eq!((last.code, last.err.as_str()), (0, ""), "{}", last.out);
    }
    assert!(!fs::exists(&from).unwrap());
    assert_eq!(seen(&to.join("tree")), before);
    let left: Vec<_> = fs::read_dir(&to).unwrap().map(|name| name.unwrap().file_name()).collect();
    assert_eq!(left, ["tree"], "{cut_off} were cut off");
    ours.unmount();
    judge(&image, "moved");
}

/// Lots of 4 groups of 4 MiB each: the lot of each block of a file.
fn lots_of(image: &Image, path: &str) -> Vec<u64> {
    let request = format!("blocks {path}");
    let arguments = ["-R", &request, image.path().to_str().unwrap()];
    let mapped = tool::must("debugfs", &arguments, &[0]).unwrap();
    let blocks = mapped.text.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
    blocks.map(|block| block / 4096).collect()
}

/// Linux writes into both cubes and outside of them.
fn linux_writes(image: &Image) {
    let theirs = kernel::Mounted::new(image.path(), "").unwrap();
    for top in ["web", "db", "."] {
        for at in 0..40u8 {
            let bytes = vec![at; 9000 + usize::from(at) * 5000];
            fs::write(theirs.path().join(format!("{top}/linux{at}")), bytes).unwrap();
        }
        fs::create_dir(theirs.path().join(format!("{top}/dir"))).unwrap();
        fs::write(theirs.path().join(format!("{top}/dir/file")), "in a directory").unwrap();
    }
    theirs.unmount().unwrap();
}

/// A mount by Floe shows it.
fn has_what_linux_wrote(image: &Image) {
    let ours = Ours::new(image.path(), &[]);
    for top in ["web", "db", "."] {
        for at in 0..40u8 {
            let read = fs::read(ours.path().join(format!("{top}/linux{at}"))).unwrap();
            assert!(read == vec![at; 9000 + usize::from(at) * 5000], "{top}/linux{at}");
        }
    }
    ours.unmount();
}

#[test]
fn a_repair_moves_files_of_linux_back_into_their_cubes() {
    if !can_mount() || kernel::mount_available().is_err() || tool::missing() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = native();
    assert_eq!(cube(&image, "create", &["/web", "--journal-blocks", "64"]).0, 0);
    assert_eq!(cube(&image, "create", &["/db"]).0, 0);
    // All that Linux adds lies outside of the cubes.
    assert_eq!(cube(&image, "fence", &[]).0, 0);
    linux_writes(&image);
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (plan, undo, undo_of_plan) = (file("plan"), file("undo"), file("undo-of-plan"));
    let path = image.path().to_str().unwrap();
    let before = image.to_vec().unwrap();
    let repair = |arguments: &[&str]| floe(&[&["repair"], arguments, &[path]].concat());
    let found = || floe(&["check", "--json", path]).out;
    assert!(found().contains("cube-entangled-blocks"), "{}", found());
    let refused = repair(&["--yes", "--cube", "/db"]);
    assert!(refused.code == 8, "{}{}", refused.out, refused.err);
    let dry = repair(&["--yes", "--dry-run"]);
    assert!(dry.out.contains("would be moved into its cube"), "{}", dry.out);
    let careful = repair(&["--preen", "--dry-run"]);
    assert!(careful.err.contains("the next mount moves what"), "{}", careful.err);
    let planned = repair(&["--yes", "--plan", &plan]);
    assert!(
        planned.code == 1 && planned.out.contains("would be moved into its cube"),
        "{}",
        planned.out
    );
    assert!(image.to_vec().unwrap() == before, "planning wrote");
    let applied = repair(&["--apply-plan", &plan, "--undo", &undo_of_plan]);
    assert_eq!(applied.code, 1, "{}{}", applied.out, applied.err);
    let by_plan = image.to_vec().unwrap();
    judge(&image, "repaired by a plan");
    assert_eq!(floe(&["undo", &undo_of_plan, path]).code, 0);
    assert!(image.to_vec().unwrap() == before, "not undone");
    assert_eq!(repair(&["--apply-plan", &plan]).code, 1);
    assert!(image.to_vec().unwrap() == by_plan, "without an undo file");
    assert_eq!(floe(&["undo", &undo_of_plan, path]).code, 0, "the same was written");
    let ran = repair(&["--policy", "safe", "--max-loss", "0", "--undo", &undo]);
    assert!(ran.code == 1 && ran.out.contains("moved into its cube"), "{}{}", ran.out, ran.err);
    assert!(image.to_vec().unwrap() == by_plan, "another result than by the plan");
    assert!(!found().contains("cube-entangled-blocks"), "{}", found());
    assert_eq!(repair(&["--yes"]).code, 0, "a second time");
    has_what_linux_wrote(&image);
    judge(&image, "mounted after the repair");
}

/// A directory of a cube whose inode lies elsewhere since Linux moved it is no other place for renames.
#[test]
fn files_are_renamed_between_directories_that_linux_moved_into_their_cube() {
    if !can_mount() || kernel::mount_available().is_err() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = with_two_cubes();
    let theirs = kernel::Mounted::new(image.path(), "").unwrap();
    let path = |name: &str| theirs.path().join(name);
    fs::create_dir_all(path("dir/below")).unwrap();
    fs::write(path("dir/below/file"), "moved").unwrap();
    fs::rename(path("dir"), path("web/moved")).unwrap();
    theirs.unmount().unwrap();
    let ours = Ours::new(image.path(), &[]);
    let path = |name: &str| ours.path().join(name);
    fs::rename(path("web/moved/below/file"), path("web/file")).unwrap();
    fs::write(path("web/other"), "made here").unwrap();
    fs::rename(path("web/other"), path("web/moved/below/other")).unwrap();
    let crossing = fs::rename(path("web/file"), path("db/file")).unwrap_err();
    assert_eq!(crossing.kind(), std::io::ErrorKind::CrossesDevices);
    let crossing = fs::rename(path("web/moved/below/other"), path("db/file")).unwrap_err();
    assert_eq!(crossing.kind(), std::io::ErrorKind::CrossesDevices);
    assert_eq!(fs::read(path("web/file")).unwrap(), b"moved");
    assert_eq!(fs::read(path("web/moved/below/other")).unwrap(), b"made here");
    ours.unmount();
    judge(&image, "renamed in a cube that is coupled");
}

/// Where files cannot move, the repair says why and what helps, and writes no content in vain.
#[test]
fn what_cannot_move_is_told_and_not_written_again_and_again() {
    if !can_mount() || kernel::mount_available().is_err() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = with_two_cubes();
    let theirs = kernel::Mounted::new(image.path(), "").unwrap();
    let path = |name: &str| theirs.path().join(name);
    for at in 0..60 {
        for top in ["web", "db"] {
            fs::write(path(&format!("{top}/linux{at}")), vec![1; 30_000]).unwrap();
        }
    }
    fs::hard_link(path("web/linux1"), path("db/hard")).unwrap();
    for at in 0.. {
        if fs::write(path(&format!("web/fill{at}")), vec![2; 900_000]).is_err() {
            break;
        }
    }
    theirs.unmount().unwrap();
    let device = image.path().to_str().unwrap();
    let ran = floe(&["repair", "--yes", "--json", device]);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(!ran.err.contains("the next mount moves"), "{}", ran.err);
    assert!(ran.err.contains("names in several cubes keep a file from being moved"), "{}", ran.err);
    assert!(ran.err.contains("the cube has no room"), "{}", ran.err);
    let account: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let changed = account["changed_bytes"].as_u64().unwrap();
    let written = account["ending"]["written_bytes"].as_u64().unwrap();
    assert!(changed > 0 && (changed..3 * changed).contains(&written), "{changed} {written}");
    judge(&image, "as much as there is room for");
}

/// The primary superblock: the first write of a repair changes it.
fn superblock(image: &Image) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    fs::File::open(image.path()).unwrap().read_exact_at(&mut bytes, 1024).unwrap();
    bytes
}

/// Starts a repair and kills it a while after its first write. Returns whether it had written and not ended.
fn repair_and_kill(image: &Image, wait: Duration) -> bool {
    let before = superblock(image);
    let mut running = Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(["repair", "--yes", image.path().to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while superblock(image) == before && running.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    std::thread::sleep(wait);
    running.kill().unwrap();
    running.wait().unwrap().code().is_none()
}

/// Kills repairs that move files, so many times; `FLOE_KILLS` says how often.
#[test]
fn a_repair_that_is_killed_amid_moves_is_finished_by_the_next_one() {
    if !can_mount() || kernel::mount_available().is_err() || tool::missing() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let kills: u64 = std::env::var("FLOE_KILLS").map_or(4, |count| count.parse().unwrap());
    let entangled = native();
    assert_eq!(cube(&entangled, "create", &["/web", "--journal-blocks", "64"]).0, 0);
    assert_eq!(cube(&entangled, "create", &["/db"]).0, 0);
    assert_eq!(cube(&entangled, "fence", &[]).0, 0);
    linux_writes(&entangled);
    {
        // Names lead into other cubes, too.
        let theirs = kernel::Mounted::new(entangled.path(), "").unwrap();
        let path = |name: &str| theirs.path().join(name);
        fs::rename(path("dir"), path("web/moved")).unwrap();
        for at in 0..10 {
            fs::rename(path(&format!("linux{at}")), path(&format!("db/renamed{at}"))).unwrap();
        }
        theirs.unmount().unwrap();
    }
    let before = {
        let theirs = kernel::Mounted::new(entangled.path(), "ro").unwrap();
        let seen = seen(theirs.path());
        theirs.unmount().unwrap();
        seen
    };
    let (mut amid, mut finished) = (0, 0);
    for round in 0..kills {
        let image = entangled.copy().unwrap();
        let path = image.path().to_str().unwrap();
        if repair_and_kill(&image, Duration::from_micros(round * 12_000 / kills)) {
            amid += 1;
        }
        let again = floe(&["repair", "--yes", path]);
        assert!([0, 1].contains(&again.code), "round {round}: {}{}", again.out, again.err);
        finished += u32::from(again.out.contains("moved into its cube"));
        judge(&image, "repaired again");
        let found = floe(&["check", "--json", path]).out;
        assert!(!found.contains("cube-entangled"), "round {round}: {found}");
        assert_eq!(floe(&["repair", "--yes", path]).code, 0, "round {round}");
        let theirs = kernel::Mounted::new(image.path(), "ro").unwrap();
        let now = seen(theirs.path());
        theirs.unmount().unwrap();
        let without_own = |all: &BTreeMap<String, String>| -> BTreeMap<String, String> {
            let own = |path: &String| path.contains(".cubes") || path.is_empty();
            all.iter().filter(|(path, _)| !own(path)).map(|(a, b)| (a.clone(), b.clone())).collect()
        };
        assert_eq!(without_own(&now), without_own(&before), "round {round}");
    }
    eprintln!(
        "{kills} kills: {amid} of a repair that was writing, {finished} left moves to the next"
    );
}

#[test]
fn linux_puts_nothing_into_a_fenced_cube_and_its_files_move_back() {
    if !can_mount() || kernel::mount_available().is_err() || tool::missing() {
        eprintln!("skipped: no mounts here");
        return;
    }
    for fenced in [true, false] {
        let image = with_two_cubes();
        let (_, shown, _) = cube(&image, "list", &["--json"]);
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let own = |at: usize| shown["cubes"][at]["lots"][0].as_u64().unwrap();
        let lots = [own(0), own(1)];
        if fenced {
            let (code, out, err) = cube(&image, "fence", &[]);
            assert!(code == 0 && out.contains("until Floe writes again"), "{out}{err}");
            judge(&image, "fenced");
        }
        linux_writes(&image);
        let judged = oracle::e2fsck(&image).unwrap();
        assert!(judged.clean(), "{}", judged.text);
        if fenced {
            for path in ["/web/linux7", "/db/linux39", "/linux20", "/db/dir", "/dir/file"] {
                let of_file = lots_of(&image, path);
                let hit = of_file.iter().any(|lot| lots.contains(lot));
                assert!(!hit && !of_file.is_empty(), "{path} lies in lots {of_file:?}");
            }
        }
        has_what_linux_wrote(&image);
        judge(&image, "mounted by Floe");
        let path = image.path().to_str().unwrap();
        let found = floe(&["check", "--json", path]).out;
        assert!(!found.contains("cube-entangled-blocks"), "fenced {fenced}: {found}");
        for (at, path) in ["/web/linux7", "/db/linux39"].iter().enumerate() {
            // A name whose inode Linux put elsewhere stays there.
            if !found.contains("cube-entangled-name") {
                let of_file = lots_of(&image, path);
                assert!(of_file.iter().all(|lot| *lot == lots[at]), "{path}: {of_file:?}");
            }
        }
    }
}

/// A copy that an earlier run finished, beside its source.
#[test]
fn a_source_that_was_changed_since_it_was_copied_is_left() {
    if !can_mount() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = native();
    assert_eq!(cube(&image, "create", &["/web"]).0, 0);
    let ours = Ours::new(image.path(), &[]);
    let (from, web) = (ours.path().join("file"), ours.path().join("web"));
    fs::write(&from, "content").unwrap();
    fs::set_permissions(&from, fs::Permissions::from_mode(0o644)).unwrap();
    let copy = web.join("file");
    let made = Command::new("cp").arg("-a").args([&from, &copy]).status().unwrap();
    assert!(made.success());
    let inode = fs::metadata(&from).unwrap().ino();
    let key = format!("{inode} {}", from.display());
    let (mark, any) = ("trusted.floe.move_in", rustix::fs::XattrFlags::empty());
    rustix::fs::setxattr(&copy, mark, key.as_bytes(), any).unwrap();
    let again = || floe(&["cube", "move-in", from.to_str().unwrap(), web.to_str().unwrap()]);
    let refused = |what: &str| {
        let said = again();
        assert!(said.code == 8 && said.err.contains("changed meanwhile"), "{what}: {}", said.err);
        assert!(fs::exists(&from).unwrap(), "{what}");
    };
    // Later than the copy, to the tick of the kernel's clock.
    std::thread::sleep(Duration::from_millis(20));
    fs::set_permissions(&from, fs::Permissions::from_mode(0o600)).unwrap();
    refused("mode");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o600)).unwrap();
    rustix::fs::setxattr(&from, "user.note", b"new", any).unwrap();
    refused("attribute");
    rustix::fs::setxattr(&copy, "user.note", b"new", any).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let times = fs::metadata(&from).unwrap();
    fs::write(&from, "CONTENT").unwrap();
    let file = fs::File::open(&from).unwrap();
    file.set_times(fs::FileTimes::new().set_modified(times.modified().unwrap())).unwrap();
    refused("content with the old time");
    // The times alone go along.
    fs::write(&from, "content").unwrap();
    let later = times.modified().unwrap() + Duration::from_secs(9);
    file.set_times(fs::FileTimes::new().set_modified(later)).unwrap();
    drop(file);
    let moved = again();
    assert_eq!((moved.code, moved.err.as_str()), (0, ""), "{}", moved.out);
    assert!(!fs::exists(&from).unwrap() && fs::read(&copy).unwrap() == b"content");
    assert_eq!(fs::metadata(&copy).unwrap().modified().unwrap(), later);
    fs::write(&from, "content").unwrap();
    rustix::fs::setxattr(&copy, mark, key.as_bytes(), any).unwrap();
    // Cut off between the end of the source and that of the mark.
    fs::remove_file(&from).unwrap();
    let ended = again();
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    assert!(rustix::fs::getxattr(&copy, mark, &mut [0; 99][..]).is_err());
    assert_eq!(again().code, 8);
    ours.unmount();
    judge(&image, "moved");
}

/// The journals of cubes are replayed by the mount, also beside one of the file system.
#[test]
fn an_image_with_journals_of_cubes_is_written_again_after_a_kill() {
    if !can_mount() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = native();
    assert_eq!(cube(&image, "create", &["/db", "--journal-blocks", "64"]).0, 0);
    let ours = Ours::new(image.path(), &[]);
    for place in ["db/file", "file"] {
        let file = fs::File::create(ours.path().join(place)).unwrap();
        file.write_all_at(b"durable", 0).unwrap();
        file.sync_all().unwrap();
    }
    kill(&ours);
    drop(ours);
    let ours = Ours::new(image.path(), &["-o", "rw"]);
    for place in ["db/file", "file"] {
        assert_eq!(fs::read(ours.path().join(place)).unwrap(), b"durable", "{place}");
        fs::write(ours.path().join(place), "more").unwrap();
    }
    ours.unmount();
    judge(&image, "killed");
}

/// The kernel tells whoever asks next about a file that could not be written back, of whatever cube.
#[test]
fn a_full_cube_does_not_keep_files_from_moving_into_another() {
    if !can_mount() {
        return;
    }
    let image = native();
    assert_eq!(cube(&image, "create", &["/web", "--max-size", "16M"]).0, 0);
    assert_eq!(cube(&image, "create", &["/db"]).0, 0);
    let ours = Ours::new(image.path(), &[]);
    for at in 0..10 {
        // Errors come here, or when the kernel writes back.
        let _ = fs::write(ours.path().join(format!("web/file{at}")), vec![1; 2 << 20]);
    }
    plant(&ours.path().join("tree"));
    let place = |name: &str| ours.path().join(name).to_str().unwrap().to_owned();
    let moved = floe(&["cube", "move-in", &place("tree"), &place("db")]);
    assert_eq!((moved.code, moved.err.as_str()), (0, ""), "{}", moved.out);
    // It tells that the full cube lost something.
    let _ = ours.end();
    judge(&image, "moved beside a full cube");
}
