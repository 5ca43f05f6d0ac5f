//! Cubes of a mounted file system: made, changed, checked and repaired while others are used.

use std::fs;
use std::io::ErrorKind;

use floe_testkit::Image;

use super::cubes::{cube, damage_names, judge, native};
use super::floe;
use super::mount::{Ours, can_mount};

#[test]
fn cubes_of_a_mount_are_made_changed_repaired_and_removed() {
    if !can_mount() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = Image::empty(0).unwrap();
    let path = image.path().to_str().unwrap();
    let words = "mkfs -q -F -t native -E lot_size=16m -N 6000 --cube /first:max_size=32m";
    let made = floe(&words.split(' ').chain([path, "120m"]).collect::<Vec<_>>());
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
