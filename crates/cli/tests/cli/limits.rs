//! The sizes in docs/limits.md, and limits of the system.

use std::ffi::OsStr;
use std::fs::File;
use std::process::Command;

use floe_testkit::{oracle, tool};

use super::{floe_on, image, ran};

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
    std::fs::write(&script, map).unwrap();
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
