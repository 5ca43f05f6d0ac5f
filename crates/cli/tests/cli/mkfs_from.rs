//! `floe mkfs --from`: trees are equal, and the image does not depend on the kind of source.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

use floe_testkit::tree::{self, Tree};
use floe_testkit::{Image, Profile, build, kernel, oracle, tool};

use super::image_files::{Compared, bytes, comparable};
use super::{floe, ran};

const SEED: &str = "f10e0000-0001-4002-8003-000000000004";

fn clean(image: &Path) {
    if tool::missing() {
        return;
    }
    let judged = oracle::run(image, &["-fn"]).unwrap();
    assert_eq!(judged.exit, Some(0), "{}", judged.text);
}

/// Makes an image of a source, with options.
fn make(image: &Path, source: &str, options: &[&str]) {
    let mut all = vec!["mkfs", "-q", "--from", source, "--seed", SEED, "--epoch", "1700000000"];
    all.extend(options);
    all.push(image.to_str().unwrap());
    let ran = floe(&all);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{source}");
    clean(image);
}

/// Runs an optional program.
fn try_run(folder: &Path, program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).current_dir(folder).output();
    output.is_ok_and(|output| output.status.success())
}

/// Files of all kinds; special files and attributes as far as permitted.
fn source(folder: &Path) {
    fs::create_dir_all(folder.join("dir/sub")).unwrap();
    fs::create_dir(folder.join("many")).unwrap();
    for at in 0..700 {
        fs::write(folder.join(format!("many/{}-{at}", "name".repeat(at % 20))), at.to_string())
            .unwrap();
    }
    fs::write(folder.join("plain"), vec![7; 1_000_003]).unwrap();
    fs::write(folder.join("empty"), b"").unwrap();
    fs::write(folder.join("dir/odd \n\\\u{e9}"), b"odd").unwrap();
    fs::hard_link(folder.join("plain"), folder.join("dir/sub/second")).unwrap();
    symlink("plain", folder.join("link")).unwrap();
    symlink("t".repeat(150), folder.join("long-link")).unwrap();
    let sparse = File::create(folder.join("sparse")).unwrap();
    sparse.set_len(9 << 30).unwrap();
    for at in [0, 5 << 30, (9 << 30) - 4096] {
        sparse.write_all_at(&[at as u8 | 1; 4096], at).unwrap();
    }
    for program in [
        &["mkfifo", "fifo"][..],
        &["mknod", "char", "c", "5", "1"],
        &["mknod", "block", "b", "259", "70000"],
        &["chown", "3000000:70000", "empty"],
        &["setfattr", "-n", "user.key", "-v", "value", "dir"],
        &[
            "setfattr",
            "-n",
            "security.capability",
            "-v",
            "0x0100000200200000000000000000000000000000",
            "plain",
        ],
        &["setfacl", "-m", "u:54321:r", "many/-0"],
        &["setfacl", "-d", "-m", "g:54322:rx", "dir/sub"],
        &["chmod", "4711", "plain"],
    ] {
        if !try_run(folder, program[0], &program[1..]) {
            eprintln!("not possible here: {program:?}");
        }
    }
    for file in ["plain", "dir", "many/-0"] {
        let time = ["-d", "2001-02-03T04:05:06.123456789Z", file];
        assert!(try_run(folder, "touch", &time));
    }
    // After all changes to the folder.
    assert!(try_run(folder, "touch", &["-d", "2002-03-04T05:06:07Z", "."]));
}

/// All comparable properties of a mounted image or a folder.
fn tree_of(folder: &Path) -> std::collections::BTreeMap<Vec<u8>, Compared> {
    let tree: Tree = tree::mounted(folder).unwrap();
    let mut all = comparable(&tree, folder);
    all.remove(&b"/lost+found"[..]);
    all
}

#[test]
fn the_kernel_sees_the_tree_that_was_given() {
    if let Err(reason) = tool::available().and_then(|()| kernel::mount_available()) {
        eprintln!("skipped: {reason}");
        return;
    }
    // On a disk file system, because memory file systems support fewer attributes.
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let folder = scratch.path().join("source");
    fs::create_dir(&folder).unwrap();
    source(&folder);
    let image = scratch.path().join("image");
    let from = format!("dir:{}", folder.display());
    for options in
        [&["--fit"][..], &["-F", "-b", "1024", "-O", "inline_data", "-I", "512", "--fit=+20%"]]
    {
        let mut all = vec!["mkfs", "-q", "--from", &from];
        all.extend(options);
        all.push(image.to_str().unwrap());
        let ran = floe(&all);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        clean(&image);
        let mount = kernel::Mounted::new(&image, "ro").unwrap();
        let (ours, theirs) = (tree_of(mount.path()), tree_of(&folder));
        for (path, theirs) in &theirs {
            assert_eq!(&ours[path], theirs, "{options:?}: {}", path.escape_ascii());
        }
        assert_eq!(ours.len(), theirs.len());
        mount.unmount().unwrap();
    }
}

#[test]
fn extended_options_change_the_root_of_a_source() {
    if let Err(reason) = tool::available() {
        eprintln!("skipped: {reason}");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("source");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o711)).unwrap();
    let image = scratch.path().join("image");
    let (from, image) = (format!("dir:{}", folder.display()), image.to_str().unwrap());
    let own = fs::metadata(&folder).unwrap();
    for (extended, owner, mode) in [
        ("root_owner=100:200", (100, 200), "0711"),
        ("root_perms=1777", (own.uid(), own.gid()), "01777"),
        ("root_owner,root_perms=700", (own.uid(), own.gid()), "0700"),
    ] {
        let ran = floe(&["mkfs", "-q", "-F", "-E", extended, "--from", &from, image, "8M"]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{extended}");
        let told = tool::must("debugfs", &["-R", "stat <2>", image], &[0]).unwrap().text;
        let words: Vec<&str> = told.split_whitespace().collect();
        let behind = |key| words[words.iter().position(|word| *word == key).unwrap() + 1];
        let owner = (owner.0.to_string(), owner.1.to_string());
        assert_eq!((behind("User:"), behind("Group:")), (&*owner.0, &*owner.1), "{extended}");
        assert_eq!(behind("Mode:"), mode, "{extended}");
    }
}

#[test]
fn every_kind_of_source_gives_the_same_bytes() {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let folder = scratch.path().join("source");
    fs::create_dir(&folder).unwrap();
    source(&folder);
    let at = |name: &str| scratch.path().join(name);
    let first = at("dir.img");
    make(&first, &format!("dir:{}", folder.display()), &["--threads", "1"]);
    let same = |name: &str, source: &str, options: &[&str]| {
        let image = at(name);
        make(&image, source, options);
        // Compared directly, because images are minimal and 9 GiB of holes need not be read twice.
        assert!(fs::read(&image).unwrap() == fs::read(&first).unwrap(), "{name}");
        fs::remove_file(image).unwrap();
    };
    same("threads", folder.to_str().unwrap(), &["--threads", "7"]);
    same("image", &format!("image:{}", first.display()), &[]);
    let tar = [
        "--format=pax",
        "--sparse",
        "--xattrs",
        "--xattrs-include=*",
        "--acls",
        "-cf",
        "../a.tar",
        ".",
    ];
    if !try_run(&folder, "tar", &tar) {
        eprintln!("skipped: no tar");
        return;
    }
    let archive = at("a.tar");
    same("tar", &format!("tar:{}", archive.display()), &[]);
    // The same through a pipe.
    let image = at("pipe.img");
    let output = Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(["mkfs", "-q", "-d", "-", "--seed", SEED, "--epoch", "1700000000"])
        .arg(&image)
        .stdin(Stdio::from(File::open(&archive).unwrap()))
        .output()
        .unwrap();
    assert_eq!(ran(&output).code, 0, "{}", ran(&output).err);
    assert!(fs::read(&image).unwrap() == fs::read(&first).unwrap());
    // And an image that is exported and read again, except for the directory that mkfs made.
    let exported = bytes(&[OsStr::new("export"), first.as_os_str()]);
    fs::write(&archive, exported).unwrap();
    let list = |image: &Path| floe(&["ls", "-lR", image.to_str().unwrap()]).out;
    make(&image, archive.to_str().unwrap(), &["-F", "--fit"]);
    assert_eq!(list(&image), list(&first));
}

#[test]
fn owners_and_times_are_changed() {
    let scratch = tool::scratch("floe-from-").unwrap();
    let folder = scratch.path().join("source");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("file"), b"x").unwrap();
    assert!(try_run(&folder, "touch", &["-d", "2040-01-01T00:00:00Z", "file"]));
    let image = scratch.path().join("image");
    let ls = || floe(&["ls", "-l", image.to_str().unwrap(), "/file"]).out;
    make(&image, folder.to_str().unwrap(), &["--owner", "12:34"]);
    assert!(ls().contains("    12    34          1 2023-11-14 22:13:20 /file"), "{}", ls());
    let maps = ["-F", "--owner", "5:6", "--uid-map", "0:100000:65536", "--gid-map", "6:0:1"];
    make(&image, folder.to_str().unwrap(), &maps);
    assert!(ls().contains(" 100005     0 "), "{}", ls());
    let mut all =
        vec!["mkfs", "-F", "--from", folder.to_str().unwrap(), "--owner=5:6", "--uid-map=0:9:5"];
    all.push(image.to_str().unwrap());
    let before = fs::read(&image).unwrap();
    let refused = floe(&all);
    assert!(
        refused.code == 8 && refused.err.contains("/: user 5 is in no range"),
        "{}",
        refused.err
    );
    assert!(fs::read(&image).unwrap() == before, "a refused run wrote");
}

#[test]
fn a_specification_gives_what_the_source_cannot() {
    let scratch = tool::scratch("floe-mtree-").unwrap();
    let folder = scratch.path().join("source");
    fs::create_dir_all(folder.join("dev")).unwrap();
    let spec = scratch.path().join("spec");
    let line =
        "./dev/console type=char device=native,5,1 uid=7 gid=8 mode=0620 time=1000000000.5\n";
    fs::write(&spec, format!("#mtree\n. type=dir uid=1\n{line}")).unwrap();
    let image = scratch.path().join("image");
    make(&image, folder.to_str().unwrap(), &["--metadata", spec.to_str().unwrap()]);
    let listed = floe(&["ls", "-l", image.to_str().unwrap(), "/dev"]).out;
    assert!(
        listed.starts_with("crw--w----   1     7     8       5, 1 2001-09-09 01:46:40 console"),
        "{listed}"
    );
}

#[test]
fn images_of_every_kind_are_copied() {
    if let Err(reason) = tool::available().and_then(|()| kernel::mount_available()) {
        eprintln!("skipped: {reason}");
        return;
    }
    let scratch = tool::scratch("floe-copied-").unwrap();
    for name in ["ext2-rev0", "ext4-1k", "inline-ea-inode", "no-extents", "bigalloc", "quota"] {
        let source = build::base(Profile::by_name(name).unwrap()).unwrap();
        let image = scratch.path().join(name);
        let features = if name.contains("ea-inode") { "ea_inode" } else { "none_of_these" };
        let mut all = vec!["mkfs", "-q", "--from", source.path().to_str().unwrap()];
        if features == "ea_inode" {
            all.extend(["-O", features]);
        }
        all.push(image.to_str().unwrap());
        let ran = floe(&all);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{name}");
        clean(&image);
        let theirs = kernel::Mounted::new(source.path(), "ro,noload").unwrap();
        let ours = kernel::Mounted::new(&image, "ro").unwrap();
        let (mounted, expected) = (tree_of(ours.path()), tree_of(theirs.path()));
        for (path, expected) in &expected {
            assert_eq!(&mounted[path], expected, "{name}: {}", path.escape_ascii());
        }
        assert_eq!(mounted.len(), expected.len(), "{name}");
        ours.unmount().unwrap();
        theirs.unmount().unwrap();
    }
}

/// With the feature ea_inode, values that are large or fit nowhere else get inodes of their own: equal ones the same.
#[test]
fn large_values_of_attributes_are_copied() {
    if let Err(reason) = tool::available().and_then(|()| kernel::mount_available()) {
        eprintln!("skipped: {reason}");
        return;
    }
    let scratch = tool::scratch("floe-values-").unwrap();
    let source = Image::empty(64 << 20).unwrap();
    build::mke2fs(source.path(), &["-q", "-t", "ext4", "-O", "ea_inode"]).unwrap();
    let theirs = kernel::Mounted::new(source.path(), "").unwrap();
    let value = |bytes: usize| -> Vec<u8> { (0..bytes).map(|at| (at / 9) as u8).collect() };
    for at in 0..40 {
        let path = theirs.path().join(format!("file {at}"));
        fs::write(&path, format!("content {at}")).unwrap();
        let set = |name: &str, value: &[u8]| {
            rustix::fs::setxattr(&path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
        };
        set("user.shared", &value(10_000));
        set("user.most", &[value(65_535), vec![at]].concat());
        // Together more than a block; which of them moves out is free.
        for part in 0..4 {
            set(&format!("user.part{part}"), &vec![part; 900 + usize::from(at)]);
        }
    }
    theirs.unmount().unwrap();
    let theirs = kernel::Mounted::new(source.path(), "ro").unwrap();
    let expected = tree_of(theirs.path());
    let from = format!("dir:{}", theirs.path().display());
    let features =
        ["ea_inode", "ea_inode,inline_data,quota", "ea_inode,^extents,^64bit", "ea_inode,bigalloc"];
    for (options, fit) in features.iter().flat_map(|one| [(one, "--fit"), (one, "-F")]) {
        let image = scratch.path().join("image");
        for block in ["1024", "4096"] {
            let mut all = vec!["mkfs", "-q", "--from", &from, "-O", options, "-b", block, fit];
            all.push(image.to_str().unwrap());
            all.extend((fit != "--fit").then_some("64m"));
            let ran = floe(&all);
            assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{options} {block} {fit}");
            clean(&image);
            let checked = floe(&["check", image.to_str().unwrap()]);
            assert_eq!(checked.code, 0, "{options} {block} {fit}: {}", checked.out);
            let ours = kernel::Mounted::new(&image, "ro").unwrap();
            let mounted = tree_of(ours.path());
            for (path, expected) in &expected {
                let is_same = mounted[path] == *expected;
                assert!(is_same, "{options} {block} {fit}: {}", path.escape_ascii());
            }
            ours.unmount().unwrap();
            fs::remove_file(&image).unwrap();
        }
    }
    theirs.unmount().unwrap();
}

#[test]
fn what_cannot_be_used_is_named_and_nothing_is_written() {
    let scratch = tool::scratch("floe-refused-").unwrap();
    let at = |name: &str| scratch.path().join(name);
    fs::write(at("noise"), [0x5a; 5000]).unwrap();
    let image = at("image");
    for (source, fault) in [
        (format!("tar:{}", at("noise").display()), "there is no tar header"),
        (format!("dir:{}", at("noise").display()), "not a directory"),
        (format!("image:{}", at("noise").display()), "no usable ext2, ext3 or ext4 superblock"),
        (format!("oci:{}", at("nothing").display()), "No such file"),
        (at("nothing").to_str().unwrap().to_owned(), "no such file or device"),
    ] {
        let ran = floe(&["mkfs", "--from", &source, image.to_str().unwrap()]);
        assert_eq!(ran.code, 8, "{source}: {}", ran.err);
        assert!(ran.err.to_lowercase().contains(&fault.to_lowercase()), "{source}: {}", ran.err);
        assert!(!image.exists());
    }
    let planned = scratch.path().to_str().unwrap();
    let dry = floe(&["mkfs", "-n", "--from", planned, image.to_str().unwrap()]);
    assert!(dry.code == 0 && dry.out.contains("Files: 2\n"), "{}{}", dry.out, dry.err);
    assert!(!image.exists());
    let small = floe(&["mkfs", "--from", "/usr/bin", image.to_str().unwrap(), "1m"]);
    assert_eq!(small.code, 8, "{}", small.out);
    assert!(!image.exists());
}

/// A disk that is full in the middle: no summary, an image that was made for it is removed, and one that was there holds no file system.
#[test]
fn a_full_disk_leaves_nothing_that_looks_finished() {
    let folder = tool::scratch("floe-from-").unwrap();
    let (tree, disk) = (folder.path().join("tree"), folder.path().join("disk"));
    fs::create_dir(&tree).unwrap();
    fs::create_dir(&disk).unwrap();
    fs::write(tree.join("large"), vec![7; 6 << 20]).unwrap();
    let target = disk.to_str().unwrap();
    if !try_run(folder.path(), "mount", &["-t", "tmpfs", "-o", "size=4m", "none", target]) {
        eprintln!("skipped: no mounts here");
        return;
    }
    let image = disk.join("image");
    let (path, from) = (image.to_str().unwrap(), format!("dir:{}", tree.display()));
    let made = floe(&["mkfs", "--from", &from, path, "64m"]);
    let was_there = fs::exists(&image).unwrap();
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let into = floe(&["mkfs", "-F", "--from", &from, path, "64m"]);
    let plain =
        floe(&["mkfs", "-F", "-t", "ext3", "-J", "size=16", "-E", "nodiscard", path, "64m"]);
    let checked = floe(&["check", path]);
    assert!(try_run(folder.path(), "umount", &[target]));
    assert_eq!((made.code, made.out.as_str()), (8, ""), "{}", made.err);
    assert!(made.err.contains("was not finished, and was removed"), "{}", made.err);
    assert!(made.err.contains("No space left") && !was_there, "{}", made.err);
    assert_eq!((into.code, into.out.as_str()), (8, ""), "{}", into.err);
    assert!(into.err.contains("holds no file system now"), "{}", into.err);
    assert_eq!((plain.code, plain.out.as_str()), (8, ""), "{}", plain.err);
    assert!(checked.err.contains("no usable ext2, ext3 or ext4 superblock"), "{}", checked.err);
}

/// The bytes of a tar archive with one file, which holds `content`.
fn archive_of(path: &[u8], content: &[u8]) -> Vec<u8> {
    use floe_archive::{Entry, Kind, Writer};

    let mut writer = Writer::new(Vec::new());
    let entry = Entry { mode: 0o644, size: content.len() as u64, ..Entry::new(path, Kind::File) };
    writer.append(&entry).unwrap();
    writer.write_all(content).unwrap();
    writer.finish().unwrap()
}

/// A pipe whose writer failed gives no empty image, and nothing of an archive is left out in silence.
#[test]
fn an_archive_that_is_no_whole_one_is_told() {
    let folder = tool::scratch("floe-from-").unwrap();
    let (tar, image) = (folder.path().join("tar"), folder.path().join("image"));
    let from = format!("tar:{}", tar.display());
    let made = |bytes: &[u8]| {
        fs::write(&tar, bytes).unwrap();
        let ran = floe(&["mkfs", "-q", "--from", &from, image.to_str().unwrap(), "8m"]);
        let exists = fs::exists(&image).unwrap();
        let _ = fs::remove_file(&image);
        assert_eq!(exists, ran.code == 0, "{}", ran.err);
        ran
    };
    let empty = made(b"");
    assert_eq!(empty.code, 8);
    assert!(empty.err.contains("it is empty"), "{}", empty.err);
    let mut piped = Command::new(env!("CARGO_BIN_EXE_floe"));
    piped.args(["mkfs", "-q", "-d", "-"]).arg(&image).arg("8m").stdin(Stdio::null());
    let piped = ran(&piped.output().unwrap());
    assert_eq!(piped.code, 8, "{}", piped.err);
    assert!(!image.exists());

    // No files at all are fine, if the archive says so.
    assert_eq!((made(&[0; 1024]).code, made(&[0; 1024]).err.as_str()), (0, ""));
    let whole = archive_of(b"file", &[7; 512]);
    assert_eq!((made(&whole).code, made(&whole).err.as_str()), (0, ""));
    let end = whole.iter().rposition(|&byte| byte != 0).unwrap() + 1;
    let cut = made(&whole[..end]);
    assert_eq!(cut.code, 0, "{}", cut.err);
    assert!(cut.err.contains("may be cut off"), "{}", cut.err);
    for path in [&b""[..], b"."] {
        let nameless = made(&archive_of(path, b"content"));
        assert_eq!(nameless.code, 8, "{}", nameless.err);
        assert!(nameless.err.contains("only a directory can be the root"), "{}", nameless.err);
    }
}

/// The image would be read while it is written.
#[test]
fn an_image_inside_of_its_source_is_refused() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-inside-").unwrap();
    let (source, old) = (folder.path().join("source"), folder.path().join("source/old"));
    fs::create_dir(&source).unwrap();
    File::create(&old).unwrap().set_len(8 << 20).unwrap();
    let from = format!("dir:{}", source.display());
    let refused = floe(&["mkfs", "-F", "--from", &from, old.to_str().unwrap(), "8m"]);
    assert_eq!(refused.code, 16, "{}", refused.err);
    assert!(refused.err.contains("a part of itself"), "{}", refused.err);
    fs::remove_file(&old).unwrap();
    assert_eq!(floe(&["mkfs", "--from", &from, old.to_str().unwrap(), "8m"]).code, 0);
    assert!(!floe(&["ls", old.to_str().unwrap()]).out.contains("old"));
    let beside = folder.path().join("source.img");
    assert_eq!(floe(&["mkfs", "--from", &from, beside.to_str().unwrap(), "8m"]).code, 0);
}
