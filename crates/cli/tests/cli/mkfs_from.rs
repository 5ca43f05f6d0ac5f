//! `floe mkfs --from`: a folder becomes a file system.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use floe_testkit::{Image, oracle, tool, tree};

use super::{floe, floe_env};

/// A small tree with links, a hole and modes.
fn folder(root: &Path) {
    fs::create_dir_all(root.join("etc/empty")).unwrap();
    fs::write(root.join("etc/motd"), "hello\n").unwrap();
    fs::write(root.join("large"), vec![7; 3_000_000]).unwrap();
    fs::hard_link(root.join("large"), root.join("etc/again")).unwrap();
    symlink("etc/motd", root.join("link")).unwrap();
    symlink("x".repeat(200), root.join("long link")).unwrap();
    fs::set_permissions(root.join("etc/motd"), fs::Permissions::from_mode(0o4711)).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(5 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"in the middle", 2 << 20).unwrap();
    for at in 0..300 {
        fs::write(root.join(format!("etc/empty/name {at}")), format!("{at}")).unwrap();
    }
}

fn make(arguments: &[&str], threads: &str) -> Vec<u8> {
    let image = arguments.last().unwrap();
    let mut all = vec!["mkfs", "-q", "--threads", threads, "--epoch", "1700000000"];
    all.extend(["--seed", "f10e0000-0001-4002-8003-000000000004"]);
    all.extend(arguments);
    let made = floe(&all);
    assert_eq!(made.code, 0, "{}", made.err);
    fs::read(image).unwrap()
}

#[test]
fn a_folder_becomes_a_file_system_that_fits() {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    folder(&source);
    let from = format!("dir:{}", source.display());
    let image = |name: &str| scratch.path().join(name).to_str().unwrap().to_owned();
    let one = make(&["--from", &from, "--fit", &image("one")], "1");
    let three = make(&["-d", source.to_str().unwrap(), "--fit", &image("three")], "3");
    assert!(one == three, "the number of threads can be seen");
    let owned = make(&["--from", &from, "--fit=+20%", "--owner", "7:70000", &image("owned")], "2");
    assert!(owned.len() * 10 >= one.len() * 11, "{} after {}", owned.len(), one.len());
    // The hole is one in the image, too.
    assert!(one.len() < 12 << 20, "{}", one.len());
    if tool::missing() {
        return;
    }
    for (name, owner) in [("one", None), ("owned", Some((7, 70_000)))] {
        let judged = oracle::run(Path::new(&image(name)), &["-fn"]).unwrap();
        assert_eq!(judged.exit, Some(0), "{}", judged.text);
        let stored = tree::stored(&Image::open(Path::new(&image(name))).unwrap()).unwrap();
        let found = fs::metadata(source.join("etc/motd")).unwrap();
        let motd = &stored[&b"/etc/motd"[..]];
        let wanted = owner.unwrap_or((found.uid(), found.gid()));
        assert_eq!((motd.permissions, motd.uid, motd.gid), (0o4711, wanted.0, wanted.1));
        assert_eq!(stored[&b"/large"[..]].inode, stored[&b"/etc/again"[..]].inode);
        // Root and lost+found; etc, empty, motd, large twice, two links, sparse; the names.
        assert_eq!(stored.len(), 2 + 8 + 300);
        let cat = Command::new("debugfs")
            .args(["-R", "cat /sparse", &image(name)])
            .output()
            .map(|output| output.stdout);
        if let Ok(content) = cat {
            assert!(content == fs::read(source.join("sparse")).unwrap());
        }
    }
}

#[test]
fn a_given_size_is_kept_or_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("source");
    folder(&source);
    let from = format!("dir:{}", source.display());
    let image = scratch.path().join("image");
    let path = image.to_str().unwrap();
    let small = floe(&["mkfs", "--from", &from, path, "4m"]);
    assert!(small.code == 8 && small.err.contains("full"), "{}", small.err);
    let both = floe(&["mkfs", "--from", &from, "--fit", path, "4m"]);
    assert_eq!(both.code, 16, "{}", both.err);
    let none = floe(&["mkfs", "--from", "zip:x", path, "4m"]);
    assert!(none.code == 8 && none.err.contains("dir:FOLDER"), "{}", none.err);
    assert!(!image.exists());
    let variables = [("SOURCE_DATE_EPOCH", "1000000000")];
    let made = floe_env(&["mkfs", "--from", &from, path, "16m"], &variables);
    assert_eq!(made.code, 0, "{}", made.err);
    assert_eq!(fs::metadata(&image).unwrap().len(), 16 << 20);
    if tool::missing() {
        return;
    }
    let judged = oracle::run(&image, &["-fn"]).unwrap();
    assert_eq!(judged.exit, Some(0), "{}", judged.text);
    // Everything is younger than that, so it became that old.
    let stat = Command::new("debugfs").args(["-R", "stat /etc/motd", path]).output().unwrap();
    let text = String::from_utf8_lossy(&stat.stdout);
    assert!(text.contains("mtime: 0x3b9aca00:00000000"), "{text}");
}
