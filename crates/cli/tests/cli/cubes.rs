//! `floe cube`, and cubes in a mounted file system; Linux and e2fsck judge them.

use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

use floe_testkit::{Image, build, kernel, oracle, tool};

use super::floe;
use super::mount::{Ours, can_mount};

/// A native file system of 120 MiB with lots of 16 MiB.
pub(crate) fn native() -> Image {
    let image = Image::empty(0).unwrap();
    let sized = ["mkfs", "-q", "-F", "-t", "native", "-E", "lot_size=16m", "-N", "6000"];
    let made = floe(&[&sized[..], &[image.path().to_str().unwrap(), "120m"]].concat());
    assert_eq!((made.code, made.err.as_str()), (0, ""));
    image
}

pub(crate) fn cube(image: &Image, verb: &str, arguments: &[&str]) -> (i32, String, String) {
    let path = image.path().to_str().unwrap();
    let ran = floe(&[&["cube", verb, path], arguments].concat());
    (ran.code, ran.out, ran.err)
}

pub(crate) fn judge(image: &Image, what: &str) {
    let checked = floe(&["check", image.path().to_str().unwrap()]);
    assert_eq!(checked.code, 0, "{what}: {}", checked.out);
    let judged = oracle::e2fsck(image).unwrap();
    assert!(judged.clean(), "{what}: {}", judged.text);
}

/// Another system renames a directory above a cube: the path that leads there is told, and written by the next change of Floe's.
#[test]
fn a_cube_is_told_by_the_path_that_leads_there_now() {
    let image = native();
    let debugfs = |command: &str| {
        let mut debugfs = Command::new("debugfs");
        let done = debugfs.args(["-w", "-R", command]).arg(image.path()).output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    };
    debugfs("mkdir above");
    let (code, _, err) = cube(&image, "create", &["/above/web"]);
    assert_eq!(code, 0, "{err}");
    debugfs("link above moved");
    debugfs("unlink above");
    for _ in 0..2 {
        for (verb, name) in [("list", &[][..]), ("show", &["cube:1"]), ("show", &["/moved/web"])] {
            let (_, out, err) = cube(&image, verb, name);
            assert!(out.contains("/moved/web") && !out.contains("/above"), "{verb}: {out}{err}");
        }
        assert_eq!(cube(&image, "set", &["cube:1", "--max-size", "32m"]).0, 0);
    }
    let checked = floe(&["check", image.path().to_str().unwrap()]);
    assert!(checked.code == 0 && !checked.out.contains("cube-hint-old"), "{}", checked.out);
}

#[test]
fn cubes_are_made_shown_changed_and_removed() {
    let image = native();
    assert_eq!(cube(&image, "list", &[]), (0, "no cubes\n".to_owned(), String::new()));
    let (code, made, err) = cube(&image, "create", &["/web", "--max-size", "32m"]);
    assert_eq!((code, err.as_str()), (0, ""), "{made}");
    assert!(
        made.contains("cube 1: /web, 1 lot, 16.0 MiB") && made.contains("at most 32"),
        "{made}"
    );
    assert_eq!(cube(&image, "create", &["/db"]).0, 0);
    for (verb, arguments, why) in [
        ("create", &["/web"][..], "exists"),
        ("create", &["/web/inner"], "a cube in a cube"),
        ("create", &["/no/x"], "there is no"),
        ("create", &["/x", "--max-size", "1m"], "below 16.0 MiB"),
        ("create", &["x"], "starts with /"),
        ("create", &["/"], "ends with a name"),
        ("create", &["/../x"], "/../x: the path of a cube starts with /"),
        ("create", &["/x", "--on-error", "crash"], "needs a journal of its own"),
        ("set", &["/db", "--on-error", "crash"], "needs a journal of its own"),
        (
            "create",
            &["/x", "--journal-blocks", "64", "--on-error", "crash", "--recovery", "online"],
            "cannot be repaired online",
        ),
        ("show", &["/"], "is not a cube"),
        ("set", &["/none", "--max-size", "none"], "there is no"),
        ("remove", &["/lost+found"], "is not a cube"),
        ("remove", &["cube:9"], "there is no cube 9"),
        ("create", &["/x", "--journal-blocks", "63"], "room for 64 to "),
        ("create", &["/x", "--journal-blocks", "100000"], "room for 64 to "),
        ("create", &["/lost+found/x"], "a cube in lost+found"),
    ] {
        let (code, out, err) = cube(&image, verb, arguments);
        assert!(code == 8 && err.contains(why), "{verb} {arguments:?}: {code} {out}{err}");
    }
    assert_eq!(cube(&image, "set", &["/web"]).0, 16);
    assert!(cube(&image, "set", &["/web", "--max-size", "none"]).1.contains("no limit"));
    assert!(cube(&image, "set", &["cube:1", "--max-size", "32m"]).1.contains("at most 32"));
    assert!(cube(&image, "show", &["cube:2"]).1.contains("/db"));
    let (code, out, err) = cube(&image, "set", &["cube:2", "--fsync", "off"]);
    assert!(code == 0 && out.contains("journal mode: ordered; fsync: off"), "{out}{err}");
    assert_eq!(cube(&image, "set", &["cube:2", "--fsync", "strict"]).0, 0);
    let (code, _, err) = cube(&image, "set", &["cube:2", "--journal-mode", "data"]);
    assert!(code == 8 && err.contains("needs a journal of its own"), "{err}");
    let (_, json, _) = cube(&image, "list", &["--json"]);
    let shown: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&shown["cubes"][1]["path"], &shown["schema"]),
        (&"/db".into(), &"floe-cubes".into())
    );
    judge(&image, "made");
    assert_eq!(cube(&image, "remove", &["cube:1"]).0, 0);
    assert!(!cube(&image, "list", &[]).1.contains("/web"));
    let mut made = 0;
    while made < 20 && cube(&image, "create", &[&format!("/c{made}")]).0 == 0 {
        made += 1;
    }
    let (code, _, err) = cube(&image, "create", &["/more"]);
    assert!(code == 8 && err.contains("no free lot") && made > 3, "{made}: {err}");
    judge(&image, "removed");
    let stock = Image::empty(0).unwrap();
    assert_eq!(floe(&["mkfs", "-q", "-F", stock.path().to_str().unwrap(), "8m"]).code, 0);
    for (verb, arguments) in [("list", &[][..]), ("create", &["/x"])] {
        let (code, _, err) = cube(&stock, verb, arguments);
        assert!(code == 8 && err.contains("not a native file system"), "{err}");
    }
}

#[test]
fn a_mounted_cube_keeps_to_itself() {
    if !can_mount() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = native();
    assert_eq!(cube(&image, "create", &["/web", "--max-size", "32m"]).0, 0);
    assert_eq!(cube(&image, "create", &["/db"]).0, 0);
    // So that the write that is too much says so.
    let ours = Ours::new(image.path(), &["-o", "nowriteback_cache"]);
    let (web, db) = (ours.path().join("web"), ours.path().join("db"));
    fs::write(ours.path().join("file"), "outside").unwrap();
    fs::write(web.join("own"), "inside").unwrap();
    let crossed = [
        fs::rename(ours.path().join("file"), web.join("file")),
        fs::rename(web.join("own"), db.join("own")),
        fs::hard_link(ours.path().join("file"), web.join("file")),
    ];
    for error in crossed.map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::CrossesDevices);
    }
    // Not so that `mv` copies all out of the cube.
    let renamed = fs::rename(&web, ours.path().join("other"));
    assert_eq!(renamed.unwrap_err().kind(), ErrorKind::PermissionDenied);
    assert_eq!(fs::remove_dir(&db).unwrap_err().kind(), ErrorKind::PermissionDenied);
    fs::rename(web.join("own"), web.join("renamed")).unwrap();
    let mut all = fs::File::create(web.join("all")).unwrap();
    let (mut written, piece) = (0, vec![7; 1 << 20]);
    let full = loop {
        match all.write_all(&piece) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::StorageFull);
    assert!((28..32).contains(&written), "{written} MiB");
    fs::write(db.join("after"), vec![1; 5 << 20]).unwrap();
    fs::File::open(db.join("after")).unwrap().sync_all().unwrap();
    drop(all);
    let (code, _, err) = cube(&image, "create", &["/late"]);
    assert!(code == 8 && err.contains("locked"), "{err}");
    ours.unmount();
    judge(&image, "after Floe");
    let (_, shown, _) = cube(&image, "show", &["/web"]);
    assert!(shown.contains("2 lots, 32.0 MiB"), "{shown}");
    let (code, _, err) = cube(&image, "remove", &["/web"]);
    assert!(code == 8 && err.contains("is not empty"), "{err}");
    if kernel::mount_available().is_ok() {
        let theirs = kernel::Mounted::new(image.path(), "").unwrap();
        assert_eq!(fs::read(theirs.path().join("web/renamed")).unwrap(), b"inside");
        fs::create_dir(theirs.path().join("web/linux")).unwrap();
        fs::write(theirs.path().join("db/linux"), vec![2; 3 << 20]).unwrap();
        theirs.unmount().unwrap();
        let ours = Ours::new(image.path(), &[]);
        fs::remove_dir(ours.path().join("web/linux")).unwrap();
        let (from, to) = (ours.path().join("db/linux"), ours.path().join("db/moved"));
        fs::rename(from, &to).unwrap();
        assert_eq!(fs::read(to).unwrap(), vec![2; 3 << 20]);
        ours.unmount();
        judge(&image, "after Linux");
    }
    assert_eq!(cube(&image, "remove", &["/web", "--keep-files"]).0, 0);
    judge(&image, "removed");
    let path = image.path().to_str().unwrap();
    assert_eq!(floe(&["cat", path, "/web/renamed"]).out, "inside");
}

/// Writes over names of a directory, as a stray write does.
pub(crate) fn damage_names(image: &Image, path: &str) {
    let block = block_of(image, path);
    let file = fs::OpenOptions::new().write(true).open(image.path()).unwrap();
    file.write_all_at(b"damage", block * 4096 + 40).unwrap();
}

/// The first block of a file or directory.
pub(crate) fn block_of(image: &Image, path: &str) -> u64 {
    let request = format!("blocks {path}");
    let arguments = ["-R", &request, image.path().to_str().unwrap()];
    let mapped = tool::must("debugfs", &arguments, &[0]).unwrap();
    mapped.text.split_whitespace().find_map(|word| word.parse().ok()).unwrap()
}

/// Cubes `/web` and `/db` with directories and files, which e2fsprogs makes.
fn filled() -> Image {
    let image = native();
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    fs::write(&source, [7; 3000]).unwrap();
    for top in ["web", "db"] {
        assert_eq!(cube(&image, "create", &[&format!("/{top}")]).0, 0);
        let mut script = format!("cd /{top}\n");
        for at in 0..20 {
            let source = source.display();
            let _ = write!(script, "mkdir dir{at}\ncd dir{at}\nwrite {source} file\ncd ..\n");
        }
        build::debugfs(&image, &script).unwrap();
    }
    // It puts blocks anywhere; Floe moves them back whenever it writes.
    assert_eq!(cube(&image, "set", &["/web", "--max-size", "none"]).0, 0);
    judge(&image, "filled");
    image
}

#[test]
fn one_cube_is_checked_by_name_and_number() {
    if tool::missing() {
        return;
    }
    let image = filled();
    let path = image.path().to_str().unwrap();
    let check = |name: &str| floe(&["check", "--cube", name, path]);
    for name in ["/web", "/db/", "cube:1", "cube:2"] {
        let sound = check(name);
        assert_eq!((sound.code, sound.err.as_str()), (0, ""), "{name}: {}", sound.out);
    }
    damage_names(&image, "/web/dir3");
    let damaged = check("/web");
    assert_eq!(damaged.code, 4, "{}{}", damaged.out, damaged.err);
    assert!(
        damaged.out.contains("/web/dir3"),
        "the path is that of the file system: {}",
        damaged.out
    );
    let json = floe(&["check", "--json", "--cube", "cube:1", path]);
    let report: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((json.code, report["found"].as_array().is_some_and(Vec::is_empty)), (4, false));
    let other = check("/db");
    assert_eq!((other.code, other.err.as_str()), (0, ""), "{}", other.out);
    for name in ["/none", "cube:3", "cube:0", "/"] {
        let missing = check(name);
        assert!(missing.code == 8 && missing.err.contains("no such cube"), "{}", missing.err);
    }
    let stock = Image::empty(0).unwrap();
    assert_eq!(floe(&["mkfs", "-q", "-F", stock.path().to_str().unwrap(), "8m"]).code, 0);
    let none = floe(&["check", "--cube", "/web", stock.path().to_str().unwrap()]);
    assert!(none.code == 8 && none.err.contains("no such cube"), "{}", none.err);
}

#[test]
fn one_cube_is_repaired_and_the_repair_undone() {
    if tool::missing() {
        return;
    }
    let image = filled();
    let path = image.path().to_str().unwrap();
    damage_names(&image, "/web/dir3");
    damage_names(&image, "/db/dir5");
    let check = |name: &str| floe(&["check", "--cube", name, path]).code;
    let folder = tempfile::tempdir().unwrap();
    let undo = folder.path().join("undo");
    let undo = undo.to_str().unwrap();
    let before = fs::read(image.path()).unwrap();
    let dry = floe(&["repair", "--cube", "/web", "--dry-run", path]);
    assert_eq!(dry.code, 1, "{}{}", dry.out, dry.err);
    assert_eq!(fs::read(image.path()).unwrap(), before);
    let repaired = floe(&["repair", "--cube", "/web", "--yes", "--undo", undo, path]);
    assert_eq!(repaired.code, 1, "{}{}", repaired.out, repaired.err);
    // The other one is as damaged as before, until its own repair.
    assert_eq!((check("/web"), check("/db")), (0, 4));
    let other = floe(&["repair", "--cube", "cube:2", "--yes", path]);
    assert_eq!(other.code, 1, "{}{}", other.out, other.err);
    judge(&image, "repaired");
    fs::write(image.path(), &before).unwrap();
    fs::remove_file(undo).unwrap();
    let again = floe(&["repair", "--cube", "/web", "--yes", "--undo", undo, path]);
    assert_eq!(again.code, 1, "{}{}", again.out, again.err);
    let undone = floe(&["undo", undo, path]);
    assert_eq!(undone.code, 0, "{}{}", undone.out, undone.err);
    assert!(fs::read(image.path()).unwrap() == before);
}

/// A mount that was killed leaves changes in journals of cubes and orphans in their lists: a repair recovers them as a mount
/// does, and can be undone.
#[test]
fn a_repair_recovers_the_journals_of_cubes() {
    if !can_mount() {
        return;
    }
    let image = native();
    let (code, _, err) = cube(&image, "create", &["/web", "--journal-blocks", "64"]);
    assert_eq!((code, err.as_str()), (0, ""));
    let ours = Ours::new(image.path(), &[]);
    fs::write(ours.path().join("web/page"), "hello").unwrap();
    fs::write(ours.path().join("web/gone"), "an orphan").unwrap();
    let held = fs::File::open(ours.path().join("web/gone")).unwrap();
    fs::remove_file(ours.path().join("web/gone")).unwrap();
    fs::File::open(ours.path().join("web/page")).unwrap().sync_all().unwrap();
    fs::File::open(ours.path().join("web")).unwrap().sync_all().unwrap();
    let status = floe(&["status", ours.path().to_str().unwrap()]).out;
    let process = status.lines().find_map(|line| line.strip_prefix("process: ")).unwrap();
    assert!(Command::new("kill").args(["-9", process]).status().unwrap().success());
    drop(held);
    ours.unmount_dead();
    let path = image.path().to_str().unwrap();
    let before = fs::read(path).unwrap();
    let undo = image.path().with_extension("undo");
    let repair = ["repair", "--yes", "--undo", undo.to_str().unwrap(), path];
    // The lock of the killed server is released when the kernel has ended it.
    let mut ran = floe(&repair);
    for _ in 0..100 {
        if !ran.err.contains("in use") {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        ran = floe(&repair);
    }
    assert!(ran.code < 2, "{} {}", ran.out, ran.err);
    judge(&image, "after the repair");
    assert_eq!(floe(&["cat", path, "/web/page"]).out, "hello");
    let undone = floe(&["undo", undo.to_str().unwrap(), path]);
    assert_eq!(undone.code, 0, "{} {}", undone.out, undone.err);
    assert!(before == fs::read(path).unwrap(), "it is not undone");
    // The lost sub-superblock is made anew with its journal, which the records name.
    fs::remove_file(&undo).unwrap();
    assert!(floe(&repair).code < 2);
    let again = Ours::new(image.path(), &[]);
    assert_eq!(fs::read_to_string(again.path().join("web/page")).unwrap(), "hello");
    again.unmount();
    judge(&image, "after the mount");
    assert_eq!(floe(&["repair", "--yes", path]).code, 0);
}
