//! The scripts in `packaging/`: the files they install, and that they remove nothing.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use floe_testkit::tool;

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(name)
}

fn run(name: &str, arguments: &[&Path]) -> Output {
    let mut command = Command::new("sh");
    // Strong compression matters only for released packages.
    command.env("DPKG_DEB_COMPRESSOR_TYPE", "gzip").env("DPKG_DEB_COMPRESSOR_LEVEL", "1");
    command.arg(script(name)).args(arguments).output().unwrap()
}

fn said(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Pages like those of `floe generate`, one of each kind.
fn pages(folder: &Path) -> PathBuf {
    let pages = folder.join("pages");
    for file in ["man1/floe.1", "man8/floe-fsck.8", "bash/floe", "zsh/_floe", "fish/floe.fish"] {
        let path = pages.join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "text").unwrap();
    }
    pages
}

#[test]
fn links_never_replace_what_is_not_ours() {
    let folder = tool::scratch("floe-links-").unwrap();
    let root = folder.path().join("root");
    let arguments = [root.as_path(), Path::new("/sbin"), Path::new("/usr/local/bin/floe")];
    for _ in 0..2 {
        let output = run("fsck-links.sh", &arguments);
        assert!(output.status.success(), "{}", said(&output));
    }
    for name in ["fsck.ext2", "fsck.ext3", "fsck.ext4"] {
        let link = fs::read_link(root.join("sbin").join(name)).unwrap();
        assert_eq!(link, Path::new("/usr/local/bin/floe"));
    }
    // The real program, and a link to it.
    let path = root.join("sbin/fsck.ext3");
    fs::remove_file(&path).unwrap();
    fs::write(&path, "theirs").unwrap();
    let output = run("fsck-links.sh", &arguments);
    assert!(!output.status.success() && said(&output).contains("fsck.ext3"), "{}", said(&output));
    assert_eq!(fs::read(&path).unwrap(), b"theirs");
    fs::remove_file(&path).unwrap();
    symlink("fsck.ext2", &path).unwrap();
    assert!(!run("fsck-links.sh", &arguments).status.success());
}

/// Both packages are built from this very program, and installed into a separate root.
#[test]
fn debian_packages_install_and_leave_nothing_behind() {
    let who = Command::new("id").arg("-u").output().unwrap();
    let tools = ["dpkg-deb", "dpkg-divert", "strip", "gzip"];
    let missing = tools.iter().find(|tool| {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output();
        !found.unwrap().status.success()
    });
    if said(&who).trim() != "0" || missing.is_some() {
        eprintln!("skipped: needs root, and dpkg-deb and strip");
        return;
    }
    let folder = tool::scratch("floe-deb-").unwrap();
    let program = folder.path().join("floe");
    let mut strip = Command::new("strip");
    strip.arg("-o").arg(&program).arg(env!("CARGO_BIN_EXE_floe"));
    assert!(strip.status().unwrap().success());
    let (pages, output) = (pages(folder.path()), folder.path().join("packages"));
    let made = run("debian.sh", &[&program, &pages, Path::new("0.0.1"), &output]);
    assert!(made.status.success(), "{}", said(&made));
    let tested = run("test.sh", &[&output]);
    assert!(tested.status.success(), "{}", said(&tested));
    assert!(said(&tested).contains("leave nothing behind"));
}

#[test]
fn all_files_are_scripts_and_the_hook_of_the_initramfs_comes_after_that_of_fsck() {
    for entry in fs::read_dir(script("")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let output = Command::new("sh").arg("-n").arg(script(&name)).output().unwrap();
        assert!(output.status.success(), "{name}: {}", said(&output));
    }
    let output = run("initramfs-hook", &[Path::new("prereqs")]);
    assert_eq!(said(&output).trim(), "fsck");
}
