//! Cubes of a mounted file system: made, changed, checked and repaired while others are used.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};

use floe_sync::atomic::{AtomicBool, Ordering};
use floe_sync::thread;
use floe_testkit::Image;

use super::cubes::{block_of, cube, damage_names, judge, native};
use super::floe;
use super::mount::{Ours, can_mount};
use super::mount_killed::kill;

/// Calls that a mount refuses, with a part of the message.
fn refusals(place: &dyn Fn(&str) -> String) -> Vec<(&'static str, Vec<String>, &'static str)> {
    vec![
        ("create", vec![place("web")], "exists"),
        ("create", vec![place("web/inner")], "a cube in a cube"),
        (
            "create",
            vec![place("small"), "--max-size".to_owned(), "1m".to_owned()],
            "one lot at least",
        ),
        ("create", vec![place("lost+found/inner")], "in lost+found"),
        ("create", vec![place(".cubes/inner")], "its directory is immutable"),
        (
            "create",
            vec![place("long"), "--journal-blocks".to_owned(), "100000".to_owned()],
            "a lot of this file system has room for 64 to 3",
        ),
        ("check", vec![place(""), "cube:99".to_owned()], "has no cube 99"),
        ("repair", vec![place(""), "cube:99".to_owned()], "has no cube 99"),
        ("show", vec![place("lost+found")], "lies in no cube"),
        ("remove", vec![place("web")], "not empty"),
        ("create", vec!["/tmp/no-floe-mount".to_owned()], "not below a mount"),
    ]
}

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
    for (verb, arguments, why) in refusals(&place) {
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
        thread::sleep(std::time::Duration::from_millis(50));
    }
    assert!(!fs::exists(&web).unwrap());
    ours.unmount();
    judge(&image, "unmounted");
}

/// Directories that are made anew have the right parents, and those that lost their names are in lost+found of the cube: the whole
/// file system is sound afterwards, whichever repair it was.
#[test]
fn a_cube_that_lost_directory_blocks_is_repaired_for_all() {
    if !can_mount() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let made = native();
    assert_eq!(cube(&made, "create", &["/web"]).0, 0);
    let ours = Ours::new(made.path(), &[]);
    fs::create_dir_all(ours.path().join("web/u/v/w")).unwrap();
    fs::write(ours.path().join("web/u/v/w/file"), "hello").unwrap();
    ours.unmount();
    let blocks = ["/web/u/v", "/web/u/v/w"].map(|path| block_of(&made, path));
    for (lost, is_online) in [(&blocks[..1], false), (&blocks[..1], true), (&blocks, true)] {
        let image = Image::empty(0).unwrap();
        fs::copy(made.path(), image.path()).unwrap();
        let file = fs::File::options().write(true).open(image.path()).unwrap();
        for block in lost {
            file.write_all_at(&[0; 4096], block * 4096).unwrap();
        }
        if is_online {
            let ours = Ours::new(image.path(), &[]);
            let web = ours.path().join("web");
            let ran = floe(&["cube", "repair", web.to_str().unwrap()]);
            assert!(ran.code == 1 && ran.out.contains("state: repaired"), "{}{}", ran.out, ran.err);
            ours.unmount();
        } else {
            let path = image.path().to_str().unwrap();
            let ran = floe(&["repair", "--yes", "--cube", "/web", path]);
            assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        }
        judge(&image, "repaired");
        let ours = Ours::new(image.path(), &[]);
        let saved = fs::read_dir(ours.path().join("web/lost+found")).unwrap().flatten();
        let saved: Vec<_> = saved.map(|entry| entry.path()).collect();
        assert!(!saved.is_empty(), "nothing was saved");
        let contents = saved.iter().flat_map(|path| [path.clone(), path.join("file")]);
        let mut contents = contents.filter_map(|path| fs::read(path).ok());
        assert!(contents.any(|content| content == b"hello"), "{saved:?}");
        ours.unmount();
    }
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

/// Three harms by a tenant (the third scenario of `docs/cubes.md`): it calls fsync all the time, fills its cube, and meets damage.
#[test]
fn a_tenant_that_fills_hammers_and_fails_is_not_felt_by_another() {
    if !can_mount() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = native();
    assert_eq!(cube(&image, "create", &["/noisy", "--max-size", "16m"]).0, 0);
    assert_eq!(cube(&image, "create", &["/quiet"]).0, 0);
    let ours = Ours::new(image.path(), &[]);
    fs::create_dir(ours.path().join("noisy/dir")).unwrap();
    for at in 0..20 {
        fs::write(ours.path().join(format!("noisy/dir/file{at}")), "x").unwrap();
    }
    ours.unmount();
    damage_names(&image, "/noisy/dir");
    // So that the write that is too much says so.
    let ours = Ours::new(image.path(), &["-o", "nowriteback_cache"]);
    let (noisy, quiet) = (ours.path().join("noisy"), ours.path().join("quiet"));
    let over = AtomicBool::new(false);
    let (calls, full) = thread::scope(|scope| {
        let hammer = scope.spawn(|| {
            let mut calls = 0;
            while !over.load(Ordering::SeqCst) {
                // Fails once the cube is full or has failed.
                let _ = fs::File::create(noisy.join("log")).and_then(|mut file| {
                    let written = file.write_all(&[1; 4096]);
                    file.sync_all().and(written)
                });
                calls += 1;
            }
            calls
        });
        let filler = scope.spawn(|| {
            let mut all = fs::File::create(noisy.join("all"))?;
            let filled = (0..64).try_for_each(|_| all.write_all(&[7; 1 << 20]));
            // Each change is asked for, also where the write failed: else the cube could fail with one that no
            // program was told of, and the unmount would tell of it.
            all.sync_all().unwrap();
            filled
        });
        let used = |turn: u8| {
            for at in 0..5 {
                let path = quiet.join(format!("{turn}.{at}"));
                let mut file = fs::File::create(&path).unwrap();
                file.write_all(&[turn; 20_000]).unwrap();
                file.sync_all().unwrap();
                assert_eq!(fs::read(&path).unwrap(), [turn; 20_000]);
            }
        };
        used(1);
        let full = filler.join().unwrap().unwrap_err();
        used(2);
        let listed = fs::read_dir(noisy.join("dir"));
        assert!(listed.and_then(Iterator::collect::<Result<Vec<_>, _>>).is_err());
        let refused = fs::write(noisy.join("late"), "x").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);
        used(3);
        over.store(true, Ordering::SeqCst);
        (hammer.join().unwrap(), full)
    });
    assert!(calls > 0 && full.kind() == ErrorKind::StorageFull, "{calls} calls, {full}");
    ours.unmount();
    let path = image.path().to_str().unwrap();
    let check = |cube: &str| floe(&["check", "--cube", cube, path]).code;
    assert_eq!((check("/quiet"), check("/noisy")), (0, 4));
    assert_eq!(floe(&["repair", "--yes", "--cube", "/noisy", path]).code, 1);
    judge(&image, "repaired");
}

/// Opens all files of a directory, removes it with them, says so, and waits.
const HOLDS: &str = "ulimit -n 6000 || exit 3
cd \"$1\" && for file in *; do exec {number}<\"$file\"; done
cd / && rm -r \"$1\" && echo removed && read -r line";

/// Thousands of open files are removed from a cube with a journal of its own, whose block of orphans names a thousand: the removals
/// are durable, and the files are gone after the server was killed.
#[test]
fn thousands_of_open_files_are_removed_from_a_cube_for_good() {
    const FILES: usize = 5000;
    if !can_mount() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = Image::empty(0).unwrap();
    let path = image.path().to_str().unwrap();
    let words = "mkfs -q -F -t native -E lot_size=16m -N 40000 --cube /web:journal_blocks=256";
    let made = floe(&words.split(' ').chain([path, "120m"]).collect::<Vec<_>>());
    assert_eq!((made.code, made.err.as_str()), (0, ""), "{}", made.out);
    let ours = Ours::new(image.path(), &[]);
    let (web, open) = (ours.path().join("web"), ours.path().join("web/open"));
    fs::create_dir(&open).unwrap();
    for at in 0..FILES {
        fs::File::create(open.join(at.to_string())).unwrap();
    }
    fs::File::open(&open).unwrap().sync_all().unwrap();
    let mut holder = Command::new("bash")
        .args(["-c", HOLDS, "bash"])
        .arg(&open)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let removed = line == "removed\n";
    let synced = fs::File::open(&web).and_then(|web| web.sync_all());
    kill(&ours);
    holder.kill().unwrap();
    holder.wait().unwrap();
    // The mount of a dead server is taken away, too.
    ours.unmount_dead();
    assert!(removed, "it can open too few files, or not remove them");
    synced.unwrap();
    let found = floe(&["check", path]);
    assert!(found.out.contains("orphan"), "{}{}", found.out, found.err);
    let again = Ours::new(image.path(), &[]);
    assert_eq!(fs::read_dir(again.path().join("web")).unwrap().count(), 0);
    fs::write(again.path().join("web/new"), "x").unwrap();
    again.unmount();
    judge(&image, "recovered");
}

/// The blocks that begin with a header of jbd2, by its type.
fn jbd2_blocks(bytes: &[u8], kind: u32) -> Vec<usize> {
    let header = [0xc03b_3998_u32.to_be_bytes(), kind.to_be_bytes()].concat();
    let blocks = bytes.chunks(4096).enumerate();
    blocks.filter(|(_, block)| block.starts_with(&header)).map(|(at, _)| at).collect()
}

/// A log that waits for its repair is no clean file system, though the mount that left it has ended.
#[test]
fn a_log_that_waits_is_told_by_fsck() {
    if !can_mount() {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = Image::empty(0).unwrap();
    let path = image.path().to_str().unwrap();
    let words = "mkfs -q -F -t native -E lot_size=16m --cube /a:journal_blocks=256";
    let made = floe(&words.split(' ').chain([path, "96m"]).collect::<Vec<_>>());
    assert_eq!((made.code, made.err.as_str()), (0, ""), "{}", made.out);
    let ours = Ours::new(image.path(), &[]);
    for at in 0..8 {
        let mut file = fs::File::create(ours.path().join(format!("a/f{at}"))).unwrap();
        file.write_all(&[at; 3000]).unwrap();
        file.sync_all().unwrap();
    }
    let mut bytes = fs::read(path).unwrap();
    ours.unmount();
    // The journal of the cube lies behind that of inode 8.
    let (superblocks, descriptors) = (jbd2_blocks(&bytes, 4), jbd2_blocks(&bytes, 1));
    let own: Vec<usize> = descriptors.into_iter().filter(|at| *at > superblocks[1]).collect();
    bytes[own[own.len() / 2] * 4096..][..4096].fill(0xa5);
    fs::write(image.path(), &bytes).unwrap();
    let (ours, told) = Ours::told(image.path(), &[]);
    assert!(told.contains("cube 1 is not served: ") && told.contains("floe repair"), "{told}");
    assert!(fs::read(ours.path().join("a/f0")).is_err());
    ours.unmount();
    let before = fs::read(path).unwrap();
    for options in [&["-p"][..], &["-n"], &["-f", "-p"]] {
        let ran = floe(&[&["fsck"], options, &[path]].concat());
        assert_eq!(ran.code, 4, "{options:?}: {}{}", ran.out, ran.err);
        assert!(fs::read(path).unwrap() == before, "{options:?}");
    }
    let ran = floe(&["repair", "--yes", path]);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    judge(&image, "repaired");
    let ours = Ours::new(image.path(), &[]);
    let kept = (0..8).filter(|at| fs::read(ours.path().join(format!("a/f{at}"))).is_ok());
    assert!(kept.count() >= 7);
    ours.unmount();
}
