//! The sizes in docs/limits.md, and limits of the system.

use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use floe_testkit::{build, oracle, tool};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};

use super::{Ran, floe, floe_on, image, ran};

/// Blocks of 64 KiB, slightly more than 2^32.
const BLOCKS: u64 = (1 << 32) + (1 << 20);

#[test]
fn blocks_beyond_32_bits() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-limits-").unwrap();
    let path = folder.path().join("large.img");
    // Sparse: mke2fs writes only a few megabytes.
    if let Err(error) = File::create(&path).unwrap().set_len(BLOCKS << 16) {
        eprintln!("skipped: no files of this size here: {error}");
        return;
    }
    let features = "none,extent,64bit,flex_bg,metadata_csum,sparse_super2,filetype";
    let mut mke2fs = tool::command("mke2fs");
    mke2fs.args(["-q", "-F", "-b", "65536", "-N", "200000", "-O", features]);
    mke2fs.args(["-E", "lazy_itable_init=1,nodiscard"]).arg(&path).arg(BLOCKS.to_string());
    tool::run(&mke2fs, 300).unwrap().expect("mke2fs", &[0]).unwrap();
    let ran = floe_on(&["check"], &path);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    // A directory in a block beyond 2^32.
    let far = (1u64 << 32) + 70_000;
    let script = folder.path().join("script");
    let map = format!("mkdir far\nset_inode_field far block[5] {}\n", far as u32);
    let map = map + &format!("set_inode_field far block[4] {}\n", 1 | (far >> 32) << 16);
    fs::write(&script, map).unwrap();
    let mut debugfs = tool::command("debugfs");
    debugfs.arg("-w").arg("-f").arg(&script).arg(&path);
    tool::run(&debugfs, 300).unwrap().expect("debugfs", &[0]).unwrap();
    let ran = floe_on(&["check"], &path);
    assert_eq!(ran.code, 4, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains(&far.to_string()), "{}", ran.out);
    let ran = floe_on(&["repair", "--yes"], &path);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(oracle::run(&path, &["-fn"]).unwrap().clean());
}

/// A limit of the size of files is an error that is told, not a signal that ends the program without a word.
#[test]
fn a_limit_of_file_sizes_is_told_and_leaves_no_half_archive() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-fsize-").unwrap();
    let archive = folder.path().join("archive");
    let script = "ulimit -f 1; exec \"$0\" \"$@\"";
    let limited = |arguments: &[&OsStr]| {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, env!("CARGO_BIN_EXE_floe")]).args(arguments);
        ran(&shell.output().unwrap())
    };
    let path = image.path().as_os_str();
    let exported = limited(&["export".as_ref(), path, "-o".as_ref(), archive.as_os_str()]);
    assert_eq!(exported.code, 8, "{}", exported.err);
    assert!(exported.err.contains("File too large"), "{}", exported.err);
    assert!(!archive.exists());
    let made = folder.path().join("made");
    let made = limited(&["mkfs".as_ref(), made.as_os_str(), "8m".as_ref()]);
    assert_eq!(made.code, 8, "{}", made.err);
    assert!(made.err.contains("File too large"), "{}", made.err);
    assert!(!folder.path().join("made").exists(), "an empty image is left");
}

/// Runs a command line in a shell that has set a limit.
fn limited(limit: &str, line: &[&str]) -> Ran {
    let mut shell = Command::new("sh");
    let script = format!("ulimit -c 0; ulimit {limit}; exec \"$0\" \"$@\"");
    ran(&shell.args(["-c", &script]).args(line).output().unwrap())
}

/// Where no thread can be started the caller's own does everything, whatever `-t` says.
#[test]
fn no_thread_is_needed_but_the_first() {
    let floe = env!("CARGO_BIN_EXE_floe");
    let user = ["prlimit", "--nproc=1", "setpriv", "--reuid", "12345", "--clear-groups", floe];
    let alone =
        |line: &[&str]| ran(&Command::new(user[0]).args(&user[1..]).args(line).output().unwrap());
    let may = Command::new(user[0]).args(&user[1..]).arg("--version").output();
    if !may.is_ok_and(|ran| ran.status.success()) {
        eprintln!("skipped: another user cannot run {floe}");
        return;
    }
    let Some(image) = image("ext4-1k") else { return };
    build::debugfs(&image, "set_inode_field <12> links_count 77\n").unwrap();
    let folder = tool::scratch("floe-alone-").unwrap();
    let copy = folder.path().join("image");
    fs::copy(image.path(), &copy).unwrap();
    fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(&copy, Permissions::from_mode(0o666)).unwrap();
    let (name, at) =
        (copy.to_str().unwrap(), |name: &str| format!("{}/{name}", folder.path().display()));
    for (line, code) in [
        (&["check", "-t", "4", name][..], 4),
        (&["check", "-t", "1", name], 4),
        (&["check", "--progress", "json", name], 4),
        (&["fsck", "-fn", name], 4),
        (&["ls", name, "/"], 0),
        (&["export", name, "-o", &at("archive")], 0),
        (&["salvage", name], 0),
        (&["repair", "--yes", name], 1),
        (&["check", "-t", "4", name], 0),
    ] {
        let ran = alone(line);
        assert_eq!(ran.code, code, "{line:?}: {}{}", ran.out, ran.err);
    }
    // A server needs threads, and says so before it mounts.
    let mounted = alone(&["mount", "-f", name, folder.path().to_str().unwrap()]);
    assert!(mounted.code == 32 || mounted.code == 2, "{}", mounted.err);
}

#[test]
fn a_small_stack_is_enough() {
    let Some(image) = image("ext4-1k") else { return };
    let name = image.path().to_str().unwrap();
    for line in [&["check", name][..], &["fsck", "-fn", name], &["repair", "--yes", name]] {
        let ran = limited("-s 64", &[&[env!("CARGO_BIN_EXE_floe")], line].concat());
        assert_eq!(ran.code, 0, "{line:?}: {}{}", ran.out, ran.err);
    }
}

/// A repair that cannot write everything says what became of it, and the next one ends it.
#[test]
fn a_limit_of_file_sizes_in_the_middle_of_a_repair_is_told() {
    let Some(image) = image("ext4-1k") else { return };
    build::debugfs(&image, "clri <12>\nclri <13>\nclri <20>\nsif <15> links_count 7\n").unwrap();
    let (name, before) = (image.path().to_str().unwrap(), image.to_vec().unwrap());
    let line = [env!("CARGO_BIN_EXE_floe"), "repair", "--yes", name];
    let mut half_done = 0;
    for limit in [0, 4, 40, 400, 1000, 4000] {
        image.write(0, &before).unwrap();
        let ran = limited(&format!("-f {limit}"), &line);
        if ran.code == 1 {
            continue;
        }
        assert_eq!(ran.code & 8, 8, "{limit}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains("File too large"), "{limit}: {}", ran.err);
        half_done += usize::from(image.to_vec().unwrap() != before);
        let again = floe(&["repair", "--yes", name]);
        assert_eq!(again.code, 1, "{limit}: {}{}", again.out, again.err);
        assert!(oracle::e2fsck(&image).unwrap().clean(), "{limit}");
    }
    assert!(half_done > 0, "no limit was in the middle of a repair");
}

#[test]
fn an_archive_that_salvage_cannot_end_is_named_as_incomplete() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-part-").unwrap();
    let archive = format!("tar:{}/archive", folder.path().display());
    let line = ["salvage", image.path().to_str().unwrap(), "--to", &archive];
    let ran = limited("-f 8", &[&[env!("CARGO_BIN_EXE_floe")], &line[..]].concat());
    assert_eq!(ran.code, 8, "{}", ran.err);
    let told = ["File too large", "archive: it is incomplete"];
    assert!(told.iter().all(|words| ran.err.contains(words)), "{}", ran.err);
}

#[test]
fn an_empty_target_is_a_wrong_command_line() {
    let Some(image) = image("ext4-1k") else { return };
    let name = image.path().to_str().unwrap();
    for line in [
        &["salvage", name, "--to", ""][..],
        &["salvage", name, "--to", "tar:"],
        &["cp", name, "/", ""],
    ] {
        let ran = floe(line);
        assert_eq!(ran.code, 16, "{line:?}: {}{}", ran.out, ran.err);
    }
    // As of mount(8).
    assert_eq!(floe(&["mount", name, ""]).code, 1);
}

/// The system takes no path of more than 4,096 bytes, but trees may be deeper.
#[test]
fn a_tree_may_be_deeper_than_a_path_is_long() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-deep-").unwrap();
    let tree = folder.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let open = |above: &dyn rustix::fd::AsFd, name: &Path, flags| {
        openat(above, name, flags | OFlags::CLOEXEC, Mode::from_raw_mode(0o644)).unwrap()
    };
    let mut deepest = open(&CWD, &tree, OFlags::DIRECTORY);
    let name = "d".repeat(200);
    for _ in 0..45 {
        mkdirat(&deepest, &*name, Mode::from_raw_mode(0o755)).unwrap();
        deepest = open(&deepest, name.as_ref(), OFlags::DIRECTORY);
    }
    let leaf = open(&deepest, "leaf".as_ref(), OFlags::CREATE | OFlags::WRONLY);
    rustix::io::write(&leaf, b"content of the deepest").unwrap();
    let image = folder.path().join("image");
    let from = format!("dir:{}", tree.display());
    let made = floe(&["mkfs", "--from", &from, image.to_str().unwrap(), "16m"]);
    // Before anything can fail: std removes no folder that is so deep.
    assert!(Command::new("rm").arg("-rf").arg(&tree).status().unwrap().success());
    assert_eq!(made.code, 0, "{}", made.err);
    assert!(oracle::run(&image, &["-fn"]).unwrap().clean());
    let path = format!("/{name}").repeat(45) + "/leaf";
    let read = floe(&["cat", image.to_str().unwrap(), &path]);
    assert_eq!((read.code, read.out.as_str()), (0, "content of the deepest"), "{}", read.err);
}
