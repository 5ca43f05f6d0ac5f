//! Compares `floe ls`, `floe cat` and `floe cp` with the kernel and debugfs, also on hostile
//! images.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use floe_testkit::tree::{self, Node, Tree};
use floe_testkit::{Image, Profile, build, damage, kernel, tool};

use super::{disk_with_partition, floe, floe_on, image};

/// Standard output of floe as bytes.
pub(super) fn bytes(arguments: &[&OsStr]) -> Vec<u8> {
    let output = Command::new(env!("CARGO_BIN_EXE_floe")).args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {error}");
    output.stdout
}

/// A node, the first path of its inode, and its modification time in seconds and nanoseconds.
pub(super) type Compared = (Node, Vec<u8>, (i64, i64));

/// Nodes by path, with hard links identified by the first path of their inode, and times.
pub(super) fn comparable(tree: &Tree, folder: &Path) -> BTreeMap<Vec<u8>, Compared> {
    let mut first: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    for (path, node) in tree {
        first.entry(node.inode.0).or_insert_with(|| path.clone());
    }
    tree.iter()
        .map(|(path, node)| {
            let place = folder.join(OsStr::from_bytes(&path[1..]));
            let metadata = fs::symlink_metadata(place).unwrap();
            let mut node = node.clone();
            let linked = first[&node.inode.0].clone();
            node.inode.0 = 0;
            if node.is_dir() {
                node.size_bytes = 0;
            }
            (path.clone(), (node, linked, (metadata.mtime(), metadata.mtime_nsec())))
        })
        .collect()
}

#[test]
fn a_copy_is_what_the_kernel_sees() {
    if let Err(reason) = tool::available().and_then(|()| kernel::mount_available()) {
        eprintln!("skipped: {reason}");
        return;
    }
    let mut compared = 0;
    for &profile in Profile::ALL {
        let image = build::base(profile).unwrap();
        // Some kernels cannot mount all of them.
        let Ok(mount) = kernel::Mounted::new(image.path(), "ro,noload") else { continue };
        let theirs = tree::mounted(mount.path()).unwrap();
        let theirs = comparable(&theirs, mount.path());
        let folder = tool::scratch("floe-copy-").unwrap();
        let ran = floe(&[
            OsStr::new("cp"),
            OsStr::new("-a"),
            image.path().as_os_str(),
            OsStr::new("/"),
            folder.path().as_os_str(),
        ]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{profile}");
        let ours = comparable(&tree::mounted(folder.path()).unwrap(), folder.path());
        mount.unmount().unwrap();
        assert!(ours.len() > 20, "{profile}");
        for (path, theirs) in &theirs {
            // Only ext4 supports attributes in value inodes.
            let mut theirs = theirs.clone();
            let mut ours = ours.get(path).unwrap_or_else(|| panic!("{profile}: {path:?}")).clone();
            for node in [&mut theirs.0, &mut ours.0] {
                node.xattrs.retain(|_, value| value.len() < 3000);
            }
            assert_eq!(ours, theirs, "{profile}: {}", path.escape_ascii());
        }
        assert_eq!(ours.len(), theirs.len(), "{profile}");
        compared += 1;
    }
    assert!(compared > 20, "only {compared} profiles were mounted");
}

/// Unpacks an exported archive with GNU tar, as root.
fn unpacked(archive: &[u8]) -> tempfile::TempDir {
    let folder = tool::scratch("floe-export-").unwrap();
    let file = folder.path().join("export.tar");
    fs::write(&file, archive).unwrap();
    fs::create_dir(folder.path().join("tree")).unwrap();
    let status = Command::new("tar")
        .args([
            "--xattrs",
            "--xattrs-include=*",
            "--acls",
            "--numeric-owner",
            "-xpf",
            "../export.tar",
        ])
        .current_dir(folder.path().join("tree"))
        .status()
        .unwrap();
    assert!(status.success());
    folder
}

#[test]
fn an_export_is_what_the_kernel_sees() {
    if let Err(reason) = tool::available().and_then(|()| kernel::mount_available()) {
        eprintln!("skipped: {reason}");
        return;
    }
    for name in ["ext2-1k", "ext4", "inline-ea-inode", "no-extents", "bigalloc", "quota"] {
        let image = build::base(Profile::by_name(name).unwrap()).unwrap();
        let path = image.path().as_os_str();
        let archive = bytes(&[OsStr::new("export"), path]);
        assert!(archive == bytes(&[OsStr::new("export"), path]), "{name}: not the same twice");
        let folder = unpacked(&archive);
        let tree = folder.path().join("tree");
        let ours = comparable(&tree::mounted(&tree).unwrap(), &tree);
        let mount = kernel::Mounted::new(image.path(), "ro,noload").unwrap();
        let theirs = comparable(&tree::mounted(mount.path()).unwrap(), mount.path());
        mount.unmount().unwrap();
        let mut compared = 0;
        for (path, theirs) in theirs {
            // Archives cannot hold sockets.
            if path == b"/socket" {
                continue;
            }
            let (mut theirs, mut ours) = (theirs, ours[&path].clone());
            for node in [&mut theirs.0, &mut ours.0] {
                // Other file systems do not support large attributes.
                node.xattrs.retain(|_, value| value.len() < 3000);
            }
            assert_eq!(ours, theirs, "{name}: {}", path.escape_ascii());
            compared += 1;
        }
        assert_eq!(ours.len(), compared, "{name}");
        let holes = fs::metadata(tree.join("fragmented")).unwrap();
        // On a memory file system, holes smaller than a page may be filled.
        let filled = holes.blocks() * 512 >= holes.len();
        assert!(name != "ext4" || !filled, "holes were filled");
    }
}

#[test]
fn an_export_replaces_nothing_and_takes_parts() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-export-").unwrap();
    let (from, to) = (image.path().to_str().unwrap(), folder.path().join("a.tar"));
    let export = |path: &str| floe(&["export", from, path, "-o", to.to_str().unwrap()]);
    assert_eq!(export("/dir").code, 0);
    let list = Command::new("tar").arg("-tf").arg(&to).output().unwrap();
    let list = String::from_utf8(list.stdout).unwrap();
    assert!(list.starts_with("./\n./file\n./sub/\n./sub/deep/\n"), "{list}");
    let ran = export("/");
    assert!(ran.code == 8 && ran.err.contains("is in the way"), "{}: {}", ran.code, ran.err);
    fs::remove_file(&to).unwrap();
    let ran = export("/nothing");
    assert!(!to.exists());
    assert!(ran.code == 8 && ran.err.contains("there is no nothing in /"), "{}", ran.err);
}

#[test]
fn lists_and_contents_are_those_of_a_second_reader() {
    if tool::missing() {
        return;
    }
    for name in ["ext2-rev0", "ext2-1k", "ext4-1k", "inline-data", "casefold", "no-extents"] {
        let image = build::base(Profile::by_name(name).unwrap()).unwrap();
        let stored = tree::stored(&image).unwrap();
        let path = image.path().as_os_str();
        let listed = bytes(&[OsStr::new("ls"), OsStr::new("-R0"), path]);
        let mut listed: Vec<&[u8]> =
            listed.split(|&byte| byte == 0).filter(|name| !name.is_empty()).collect();
        listed.sort_unstable();
        let expected: Vec<&[u8]> = stored.keys().skip(1).map(Vec::as_slice).collect();
        assert_eq!(listed, expected, "{name}");
        for file in ["/file", "/tiny", "/medium", "/fragmented", "/dir/sub/deep/file"] {
            let ours = bytes(&[OsStr::new("cat"), path, OsStr::new(file)]);
            let folder = tool::scratch("floe-dump-").unwrap();
            let out = folder.path().join("out");
            let request = format!("dump {file} {}", out.display());
            let arguments = [OsStr::new("-R"), OsStr::new(&request), path];
            tool::must("debugfs", &arguments, &[0]).unwrap();
            let mut theirs = fs::read(out).unwrap();
            if ours.len() < 160 && name == "inline-data" {
                // debugfs returns the full capacity of inline data.
                theirs.truncate(ours.len());
            }
            assert!(ours == theirs, "{name}: {file}");
        }
    }
}

#[test]
fn links_are_followed_inside_the_image() {
    let Some(image) = image("ext4") else { return };
    let script = "symlink /to-dir /dir\nsymlink /dir/up ../file\nsymlink /loop loop\n\
                  symlink /out ../../../file\n";
    build::debugfs(&image, script).unwrap();
    let cat = |path: &str| floe(&[OsStr::new("cat"), image.path().as_os_str(), OsStr::new(path)]);
    let file = cat("/file").out;
    for path in ["/dir/up", "/to-dir/up", "/out", "/dir/../file", "file", "//file"] {
        assert_eq!(cat(path).out, file, "{path}");
    }
    for (path, fault) in [
        ("/loop", "too many levels of symbolic links"),
        ("/file/", "/file is not a directory"),
        ("/file/x", "/file is not a directory"),
        ("/no/x", "there is no no in /"),
        ("/dir", "has no content"),
    ] {
        let ran = cat(path);
        assert_eq!(ran.code, 8, "{path}");
        assert!(ran.err.contains(fault), "{path}: {}", ran.err);
    }
    let ran =
        floe(&[OsStr::new("ls"), OsStr::new("-l"), image.path().as_os_str(), OsStr::new("/loop")]);
    assert!(
        ran.out.starts_with("lrwxrwxrwx") && ran.out.ends_with("/loop -> loop\n"),
        "{}",
        ran.out
    );
}

#[test]
fn what_is_in_the_journal_counts() {
    let Some(image) = image("ext4") else { return };
    let folder = tool::scratch("floe-journal-").unwrap();
    let request = [OsStr::new("-R"), OsStr::new("blocks /file"), image.path().as_os_str()];
    let block = tool::must("debugfs", &request, &[0]).unwrap().text;
    let numeric = |line: &&str| line.trim().parse::<u64>().is_ok();
    let block = block.lines().find(numeric).unwrap().trim().to_owned();
    let new = folder.path().join("new");
    fs::write(&new, [b'n'; 4096]).unwrap();
    let script = format!("jo\njw -b {block} {}\njc\n", new.display());
    let file = folder.path().join("script");
    fs::write(&file, script).unwrap();
    let arguments = [OsStr::new("-wf"), file.as_os_str(), image.path().as_os_str()];
    tool::must("debugfs", &arguments, &[0]).unwrap();
    let cat = |more: &[&str]| {
        let mut all = vec!["cat"];
        all.extend(more);
        all.extend([image.path().to_str().unwrap(), "/file"]);
        floe(&all)
    };
    let before = image.to_vec().unwrap();
    assert_eq!(cat(&[]).out, "n".repeat(1500));
    assert_ne!(cat(&["--ignore-journal"]).out, "n".repeat(1500));
    assert!(image.to_vec().unwrap() == before, "reading changed the image");
}

/// An image whose files lack the latest changes is read, and nobody takes it for whole.
#[test]
fn lost_changes_are_damage() {
    let (Some(damaged), Some(without)) = (image("ext4"), image("ext4")) else { return };
    let folder = tool::scratch("floe-journal-").unwrap();
    let debugfs = |image: &Image, script: &str| {
        let file = folder.path().join("script");
        fs::write(&file, script).unwrap();
        let arguments = [OsStr::new("-wf"), file.as_os_str(), image.path().as_os_str()];
        tool::must("debugfs", &arguments, &[0]).unwrap();
    };
    let new = folder.path().join("new");
    fs::write(&new, [b'n'; 4096]).unwrap();
    debugfs(&damaged, &format!("jo -c -v 3\njw -b 5 {}\njc\n", new.display()));
    // The checksum of the only commit block.
    let mut bytes = damaged.to_vec().unwrap();
    let commit = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2];
    let at = bytes.chunks(4096).position(|block| block.starts_with(&commit)).unwrap() * 4096;
    bytes[at + 16] ^= 1;
    fs::write(damaged.path(), bytes).unwrap();
    debugfs(&without, "ssv journal_inum 0\nssv journal_dev 1792\nfeature needs_recovery\n");
    let target = folder.path().join("target");
    for image in [&damaged, &without] {
        for command in [["ls"], ["export"], ["salvage"]] {
            let ran = floe_on(&command, image.path());
            assert_eq!(ran.code, 4, "{command:?}: {}", ran.err);
        }
        let from = format!("image:{}", image.path().display());
        let built = floe(&["mkfs", "--from", &from, target.to_str().unwrap(), "64m"]);
        assert_eq!(built.code, 8, "{}", built.err);
        assert!(built.err.contains("floe export") && !target.exists(), "{}", built.err);
    }
}

#[test]
fn other_formats_and_partitions_are_read() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-formats-").unwrap();
    let disk = folder.path().join("disk");
    fs::write(&disk, disk_with_partition(&image.to_vec().unwrap())).unwrap();
    let expected = floe_on(&["ls", "-lR"], image.path()).out;
    assert!(expected.lines().count() > 100);
    assert_eq!(floe_on(&["ls", "-lR", "--partition=1"], &disk).out, expected);
    let qcow2 = folder.path().join("disk.qcow2");
    let converted = Command::new("qemu-img")
        .args(["convert", "-f", "raw", "-O", "qcow2"])
        .args([&disk, &qcow2])
        .status();
    match converted {
        Ok(status) if status.success() => {
            assert_eq!(floe_on(&["ls", "-lR", "--partition=1"], &qcow2).out, expected);
        }
        _ => eprintln!("skipped: no qemu-img"),
    }
}

/// Replaces the only occurrence of some bytes.
fn patch(image: &Image, from: &[u8], to: &[u8]) {
    let content = image.to_vec().unwrap();
    let places: Vec<usize> = content
        .windows(from.len())
        .enumerate()
        .filter(|(_, part)| part == &from)
        .map(|(at, _)| at)
        .collect();
    assert!(!places.is_empty());
    for at in places {
        image.write(at as u64, to).unwrap();
    }
}

#[test]
fn no_image_writes_outside_the_target() {
    let Some(image) = image("ext2-1k") else { return };
    let folder = tool::scratch("floe-hostile-").unwrap();
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    let source = folder.path().join("source");
    fs::write(&source, "evil").unwrap();
    let script = format!(
        "write {0} ..Qevil\nsymlink linkA {1}\nmkdir linkB\nwrite {0} linkB/evil\nwrite {0} linkC\n",
        source.display(),
        outside.display()
    );
    build::debugfs(&image, &script).unwrap();
    patch(&image, b"..Qevil", b"../evil");
    // A link, a directory and a file with the same name.
    patch(&image, b"linkB", b"linkA");
    patch(&image, b"linkC", b"linkA");
    for force in [false, true] {
        let target = folder.path().join(format!("target-{force}"));
        fs::create_dir(&target).unwrap();
        let mut arguments = vec!["cp", "-a"];
        arguments.extend(force.then_some("-f"));
        arguments.extend([image.path().to_str().unwrap(), "/", target.to_str().unwrap()]);
        let ran = floe(&arguments);
        // Damage, and existing names.
        assert_eq!(ran.code & 4, 4, "{}", ran.err);
        assert!(ran.err.contains("impossible name ../evil"), "{}", ran.err);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0, "{}", ran.err);
        assert!(!folder.path().join("evil").exists());
        assert!(target.join("dir/sub/deep/file").is_file(), "{}", ran.err);
    }
    // An archive names nothing through the link, whoever unpacks it.
    let exported = floe(&["export", image.path().to_str().unwrap()]);
    assert_eq!(exported.code, 4, "{}", exported.err);
    let archive = folder.path().join("archive");
    floe(&["export", image.path().to_str().unwrap(), "-o", archive.to_str().unwrap()]);
    let listed = Command::new("tar").arg("-tf").arg(&archive).output().unwrap().stdout;
    let listed = String::from_utf8(listed).unwrap();
    assert_eq!(listed.lines().filter(|line| line.contains("linkA")).count(), 1, "{listed}");
    let listed = floe(&["ls", image.path().to_str().unwrap()]);
    assert!(listed.code == 4 && listed.err.contains("linkA is there twice"), "{}", listed.err);
}

#[test]
fn an_image_that_lies_where_a_copy_goes_is_kept() {
    let Some(image) = image("ext4") else { return };
    let folder = tool::scratch("floe-replace-").unwrap();
    let deep = folder.path().join("dir/sub/deep");
    fs::create_dir_all(&deep).unwrap();
    let inside = deep.join("file");
    fs::copy(image.path(), &inside).unwrap();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let ran = floe(&["cp", "-r", "-f", &path(&inside), "/dir", &path(folder.path())]);
    assert_ne!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("the image that is being read"), "{}", ran.err);
    assert_eq!(fs::read(&inside).unwrap(), fs::read(image.path()).unwrap());
}

#[test]
fn nothing_is_replaced_without_being_told() {
    let Some(image) = image("ext4") else { return };
    let folder = tool::scratch("floe-replace-").unwrap();
    let there = folder.path().join("file");
    fs::write(&there, "mine").unwrap();
    let cp = |more: &[&str], from: &str, to: &Path| {
        let mut all = vec!["cp"];
        all.extend(more);
        all.extend([image.path().to_str().unwrap(), from, to.to_str().unwrap()]);
        floe(&all)
    };
    assert_eq!(cp(&[], "/file", folder.path()).code, 8);
    assert_eq!(cp(&[], "/file", &there).code, 8);
    assert_eq!(fs::read(&there).unwrap(), b"mine");
    assert_eq!(cp(&["-f"], "/file", &there).code, 0);
    assert_eq!(fs::read(&there).unwrap().len(), 1500);
    let ran = cp(&[], "/dir", folder.path());
    assert!(ran.code == 8 && ran.err.contains("use -r to copy it"), "{}", ran.err);
    let sparse = folder.path().join("sparse");
    assert_eq!(cp(&[], "/fragmented", &sparse).code, 0);
    let metadata = fs::metadata(&sparse).unwrap();
    assert!(metadata.blocks() * 512 < metadata.len(), "holes were filled");
}

#[test]
fn damage_is_named_and_the_rest_is_read() {
    if tool::missing() {
        return;
    }
    let mut codes = [0; 256];
    for seed in 0..60 {
        let profiles = ["ext4-1k", "ext2-1k", "inline-ea-inode", "no-extents"];
        let profile = Profile::by_name(profiles[seed as usize % profiles.len()]).unwrap();
        let (image, _) = damage::damaged_image(profile, seed).unwrap();
        let folder = tool::scratch("floe-damaged-").unwrap();
        let (from, to) = (image.path().to_str().unwrap(), folder.path().to_str().unwrap());
        let ran = floe(&["cp", "-r", from, "/", to]);
        assert!([0, 4, 8, 12].contains(&ran.code), "{seed}: {}: {}", ran.code, ran.err);
        assert!(ran.code == 0 || !ran.err.is_empty(), "{seed}");
        codes[ran.code as usize] += 1;
        let ran = floe(&["ls", "-lR", from]);
        assert!([0, 4, 8, 12].contains(&ran.code), "{seed}: {}: {}", ran.code, ran.err);
    }
    assert!(codes[4] > 5 && codes[0] > 5, "{codes:?}");
}

/// Linux before 6.18 lets a size grow past the room for inline data.
#[test]
fn a_file_that_is_longer_than_its_inline_data_ends_in_zeroes() {
    let Some(image) = image("inline-data") else { return };
    let folder = tool::scratch("floe-inline-").unwrap();
    let source = folder.path().join("source");
    fs::write(&source, [b'q'; 50]).unwrap();
    let script = format!("write {} long\nsif long size 5000\n", source.display());
    build::debugfs(&image, &script).unwrap();
    let ran = floe_on(&["check"], image.path());
    assert_eq!(ran.code, 0, "{}", ran.err);
    let mut right = vec![0; 5000];
    right[..50].fill(b'q');
    let path = image.path().as_os_str();
    assert!(bytes(&[OsStr::new("cat"), path, OsStr::new("/long")]) == right);
    let to = folder.path().join("copy");
    bytes(&[OsStr::new("cp"), path, OsStr::new("/long"), to.as_os_str()]);
    assert!(fs::read(&to).unwrap() == right);
    let packed = bytes(&[OsStr::new("export"), path]);
    assert!(packed.windows(50).any(|part| part == [b'q'; 50]));
}
