//! `floe cube`, and cubes in a mounted file system; Linux and e2fsck judge them.

use std::fs;
use std::io::{ErrorKind, Write};

use floe_testkit::{Image, build, kernel, oracle};

use super::floe;
use super::mount::{Ours, can_mount};

/// A native file system of 120 MiB with lots of 16 MiB.
fn native() -> Image {
    let image = Image::empty(0).unwrap();
    let sized = ["mkfs", "-q", "-F", "-t", "native", "-E", "lot_size=16m", "-N", "6000"];
    let made = floe(&[&sized[..], &[image.path().to_str().unwrap(), "120m"]].concat());
    assert_eq!((made.code, made.err.as_str()), (0, ""));
    image
}

fn cube(image: &Image, verb: &str, arguments: &[&str]) -> (i32, String, String) {
    let path = image.path().to_str().unwrap();
    let ran = floe(&[&["cube", verb, path], arguments].concat());
    (ran.code, ran.out, ran.err)
}

fn judge(image: &Image, what: &str) {
    let checked = floe(&["check", image.path().to_str().unwrap()]);
    assert_eq!(checked.code, 0, "{what}: {}", checked.out);
    let judged = oracle::e2fsck(image).unwrap();
    assert!(judged.clean(), "{what}: {}", judged.text);
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
        ("create", &["x"], "start with /"),
        ("create", &["/"], "end with a name"),
        ("show", &["/"], "is not a cube"),
        ("set", &["/none", "--max-size", "none"], "there is no"),
        ("remove", &["/lost+found"], "is not a cube"),
    ] {
        let (code, out, err) = cube(&image, verb, arguments);
        assert!(code == 8 && err.contains(why), "{verb} {arguments:?}: {code} {out}{err}");
    }
    assert_eq!(cube(&image, "set", &["/web"]).0, 16);
    assert!(cube(&image, "set", &["/web", "--max-size", "none"]).1.contains("no limit"));
    let (_, json, _) = cube(&image, "list", &["--json"]);
    let shown: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        (&shown["cubes"][1]["path"], &shown["schema"]),
        (&"/db".into(), &"floe-cubes".into())
    );
    judge(&image, "made");
    assert_eq!(cube(&image, "remove", &["/web"]).0, 0);
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
    let ours = Ours::new(image.path(), &[]);
    let (web, db) = (ours.path().join("web"), ours.path().join("db"));
    fs::write(ours.path().join("file"), "outside").unwrap();
    fs::write(web.join("own"), "inside").unwrap();
    let crossed = [
        fs::rename(ours.path().join("file"), web.join("file")),
        fs::rename(web.join("own"), db.join("own")),
        fs::hard_link(ours.path().join("file"), web.join("file")),
        fs::rename(&web, ours.path().join("other")),
    ];
    for error in crossed.map(Result::unwrap_err) {
        assert_eq!(error.kind(), ErrorKind::CrossesDevices);
    }
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
fn damage_names(image: &Image, path: &str) {
    let mapped = build::debugfs(image, &format!("blocks {path}\n")).unwrap();
    let block: u64 = mapped.split_whitespace().find_map(|word| word.parse().ok()).unwrap();
    image.write(block * 4096 + 40, b"damage").unwrap();
}

#[test]
fn one_cube_is_checked_and_repaired_by_name_and_number() {
    if !can_mount() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = native();
    assert_eq!(cube(&image, "create", &["/web"]).0, 0);
    assert_eq!(cube(&image, "create", &["/db"]).0, 0);
    let ours = Ours::new(image.path(), &[]);
    for top in ["web", "db"] {
        for at in 0..20 {
            fs::create_dir(ours.path().join(top).join(format!("dir{at}"))).unwrap();
            fs::write(ours.path().join(top).join(format!("dir{at}/file")), [at; 3000]).unwrap();
        }
    }
    ours.unmount();
    judge(&image, "filled");
    damage_names(&image, "/web/dir3");
    let path = image.path().to_str().unwrap();
    let check = |name: &str| floe(&["check", "--cube", name, path]);
    let damaged = check("/web");
    assert_eq!(damaged.code, 4, "{}{}", damaged.out, damaged.err);
    assert!(
        damaged.out.contains("/web/dir3"),
        "the path is that of the file system: {}",
        damaged.out
    );
    assert_eq!(check("cube:1").code, 4);
    let other = check("/db");
    assert_eq!((other.code, other.err.as_str()), (0, ""), "{}", other.out);
    let missing = check("/none");
    assert!(missing.code == 8 && missing.err.contains("no such cube"), "{}", missing.err);
    let folder = tempfile::tempdir().unwrap();
    let undo = folder.path().join("undo");
    let undo = undo.to_str().unwrap();
    let before = image.to_vec().unwrap();
    let dry = floe(&["repair", "--cube", "/web", "--dry-run", path]);
    assert_eq!(dry.code, 1, "{}{}", dry.out, dry.err);
    assert_eq!(image.to_vec().unwrap(), before);
    let repaired = floe(&["repair", "--cube", "/web", "--yes", "--undo", undo, path]);
    assert_eq!(repaired.code, 1, "{}{}", repaired.out, repaired.err);
    assert_eq!(check("/web").code, 0);
    judge(&image, "repaired");
    let undone = floe(&["undo", undo, path]);
    assert_eq!(undone.code, 0, "{}{}", undone.out, undone.err);
    assert_eq!(image.to_vec().unwrap(), before);
}

#[test]
fn cubes_of_a_mount_are_made_changed_repaired_and_removed() {
    if !can_mount() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = Image::empty(0).unwrap();
    let made = floe(&[
        "mkfs",
        "-q",
        "-F",
        "-t",
        "native",
        "-E",
        "lot_size=16m",
        "-N",
        "6000",
        "--cube",
        "/first:max_size=32m",
        image.path().to_str().unwrap(),
        "120m",
    ]);
    assert_eq!((made.code, made.err.as_str()), (0, ""), "{}", made.out);
    judge(&image, "made");
    assert!(cube(&image, "list", &[]).1.contains("cube 1: /first, 1 lot"));
    let ours = Ours::new(image.path(), &[]);
    let place = |name: &str| ours.path().join(name).to_str().unwrap().to_owned();
    let run = |verb: &str, arguments: &[&str]| {
        let ran = floe(&[&["cube", verb], arguments].concat());
        (ran.code, ran.out, ran.err)
    };
    let web = place("web");
    // The kernel keeps that there is none, and must forget it.
    assert!(!fs::exists(&web).unwrap());
    let (code, out, err) = run("create", &[&web, "--max-size", "32m", "--on-error", "repair"]);
    assert!(
        code == 0 && out.contains("cube 2: /web") && out.contains("recovery: online"),
        "{out}{err}"
    );
    let figures = |name: &str| rustix::fs::statvfs(place(name)).unwrap();
    assert_eq!(figures("web").f_blocks, 32 << 20 >> 12);
    assert!(figures("lost+found").f_blocks > figures("web").f_blocks);
    fs::write(ours.path().join("web/file"), vec![1; 1 << 20]).unwrap();
    assert!(run("set", &[&web, "--max-size", "none"]).1.contains("no limit"));
    let (_, listed, _) = run("list", &[ours.path().to_str().unwrap()]);
    assert!(listed.contains("cube 1: /first") && listed.contains("cube 2: /web"), "{listed}");
    for (verb, arguments, why) in [
        ("create", vec![web.clone()], "exists"),
        ("create", vec![place("web/inner")], "a cube in a cube"),
        (
            "create",
            vec![place("small"), "--max-size".to_owned(), "1m".to_owned()],
            "one lot at least",
        ),
        ("show", vec![place("lost+found")], "lies in no cube"),
        ("remove", vec![web.clone()], "not empty"),
        ("create", vec!["/tmp/no-floe-mount".to_owned()], "not below a mount"),
    ] {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let (code, out, err) = run(verb, &arguments);
        assert!(code == 8 && err.contains(why), "{verb} {arguments:?}: {code} {out}{err}");
    }
    let (code, out, err) = run("check", &[&web]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "cube 2\nstate: sound\n", ""));
    let status = floe(&["status", ours.path().to_str().unwrap()]);
    assert!(!status.out.contains("cube"), "{}", status.out);
    fs::remove_file(ours.path().join("web/file")).unwrap();
    let (code, out, err) = run("remove", &[&web]);
    assert_eq!(code, 0, "{out}{err}");
    for _ in 0..100 {
        if !fs::exists(&web).unwrap() {
            break;
        }
        floe_sync::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(!fs::exists(&web).unwrap());
    ours.unmount();
    judge(&image, "unmounted");
}

#[test]
fn a_mounted_cube_that_fails_is_repaired_while_another_is_used() {
    if !can_mount() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = native();
    assert_eq!(cube(&image, "create", &["/web"]).0, 0);
    assert_eq!(cube(&image, "create", &["/db"]).0, 0);
    let ours = Ours::new(image.path(), &[]);
    for at in 0..20 {
        fs::create_dir(ours.path().join(format!("web/dir{at}"))).unwrap();
        fs::write(ours.path().join(format!("web/dir{at}/file")), [at; 3000]).unwrap();
    }
    ours.unmount();
    damage_names(&image, "/web/dir3");
    let ours = Ours::new(image.path(), &[]);
    let place = |name: &str| ours.path().join(name).to_str().unwrap().to_owned();
    assert!(
        fs::read_dir(place("web/dir3")).and_then(Iterator::collect::<Result<Vec<_>, _>>).is_err()
    );
    assert_eq!(fs::write(place("web/new"), "x").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::read(place("web/dir4/file")).unwrap(), [4; 3000]);
    fs::write(place("db/new"), "x").unwrap();
    fs::write(place("outside"), "x").unwrap();
    let status = floe(&["status", ours.path().to_str().unwrap()]);
    assert!(status.out.contains("cube 1: read-only after a failure"), "{}", status.out);
    let shown = floe(&["cube", "list", ours.path().to_str().unwrap()]);
    assert!(shown.out.contains("  read-only after a failure"), "{}", shown.out);
    let repaired = floe(&["cube", "repair", &place("web")]);
    assert_eq!(repaired.code, 1, "{}{}", repaired.out, repaired.err);
    assert!(repaired.out.contains("state: repaired"), "{}", repaired.out);
    fs::write(place("web/new"), "x").unwrap();
    fs::read_dir(place("web/dir3")).unwrap().count();
    ours.unmount();
    judge(&image, "unmounted");
}
