//! `-E discard`: discards everything that is free, and nothing else.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use floe_testkit::tool;

use super::Fsck;
use super::loop_device::Loop;

/// An image of 192 MiB with files, and with garbage in all free space.
fn rubbish_with_files(folder: &Path, options: &[&str]) -> PathBuf {
    let source = folder.join("source");
    fs::create_dir_all(source.join("deep")).unwrap();
    for (at, name) in ["one", "deep/two", "deep/three"].iter().enumerate() {
        let bytes: Vec<u8> = (0..50_000 * (at + 1)).map(|byte| (byte % 251) as u8 + 1).collect();
        fs::write(source.join(name), bytes).unwrap();
    }
    let image = folder.join("disk.img");
    let mut file = fs::File::create(&image).unwrap();
    for _ in 0..192 {
        file.write_all(&[0xaa; 1 << 20]).unwrap();
    }
    drop(file);
    let mut mke2fs = tool::command("mke2fs");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-E", "nodiscard", "-d"]).arg(&source).args(options);
    assert!(mke2fs.arg(&image).stdin(Stdio::null()).status().unwrap().success());
    image
}

/// Nonzero bytes in free blocks, according to dumpe2fs.
fn rubbish_left(image: &Path, block_bytes: usize) -> usize {
    let mut bytes = fs::read(image).unwrap();
    let output = tool::command("dumpe2fs").arg(image).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let lists = said.lines().filter_map(|line| line.strip_prefix("  Free blocks: "));
    let mut left = 0;
    for range in lists.flat_map(|list| list.split(", ")).filter(|range| !range.trim().is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| text.trim().parse::<usize>().unwrap();
        let blocks = number(first) * block_bytes..(number(last) + 1) * block_bytes;
        left += bytes[blocks].iter_mut().filter(|byte| **byte != 0).count();
    }
    left
}

/// Content of all files, read with debugfs.
fn files_of(image: &Path) -> Vec<Vec<u8>> {
    ["/one", "/deep/two", "/deep/three"]
        .iter()
        .map(|name| {
            let mut debugfs = tool::command("debugfs");
            let output = debugfs.args(["-R", &format!("cat {name}")]).arg(image).output().unwrap();
            assert!(output.stdout.len() >= 50_000, "{name}");
            output.stdout
        })
        .collect()
}

#[test]
fn discarding_punches_all_free_blocks_and_no_other() {
    if tool::missing() {
        return;
    }
    let fsck = Fsck::new("fsck.ext4");
    // Uninitialised groups, groups that begin at block 1, and clusters.
    let kinds: [(usize, &[&str]); 3] = [
        (4096, &["-b", "4096", "-g", "4096"]),
        (1024, &["-b", "1024", "-O", "^has_journal"]),
        (4096, &["-b", "4096", "-O", "bigalloc", "-C", "16384"]),
    ];
    for (block_bytes, options) in kinds {
        let folder = tool::scratch("floe-holes-").unwrap();
        let image = rubbish_with_files(folder.path(), options);
        let files = files_of(&image);
        assert!(rubbish_left(&image, block_bytes) > 100 << 20, "{options:?}");
        // Without -f a clean file system is skipped, so the free blocks are unknown.
        let ran = fsck.run(&["-p", "-E", "discard"], &image, &[]);
        assert!(ran.code == 0 && !ran.out.contains("discard"), "{}{}", ran.out, ran.err);
        let ran = fsck.run(&["-fp", "-E", "discard"], &image, &[]);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        if ran.out.contains("cannot discard") {
            eprintln!("skipped: no holes can be made here");
            return;
        }
        assert_eq!(rubbish_left(&image, block_bytes), 0, "{options:?}: {}", ran.out);
        assert!(files_of(&image) == files, "{options:?}: a file was changed");
        assert!(fs::metadata(&image).unwrap().blocks() * 512 < 64 << 20, "{options:?}");
        let e2fsck = tool::command("e2fsck").arg("-fn").arg(&image).output().unwrap();
        assert!(
            e2fsck.status.success(),
            "{options:?}: {}",
            String::from_utf8_lossy(&e2fsck.stdout)
        );
    }
}

/// Everything that e2fsck discards is discarded: free blocks and unused inodes.
#[test]
fn discarding_leaves_nothing_that_e2fsck_discards() {
    if tool::missing() {
        return;
    }
    // Uninitialised tables, in flexible groups or in each group; and without descriptors that
    // record them.
    for options in [
        &["-b", "1024", "-N", "16384", "-E", "nodiscard,lazy_itable_init=1"][..],
        &["-b", "4096", "-g", "4096", "-O", "^flex_bg", "-E", "nodiscard,lazy_itable_init=1"],
        &["-b", "4096", "-I", "128", "-O", "^metadata_csum,^uninit_bg"],
    ] {
        let folder = tool::scratch("floe-holes-").unwrap();
        let ours = rubbish_with_files(folder.path(), options);
        let theirs = folder.path().join("theirs.img");
        fs::copy(&ours, &theirs).unwrap();
        let before = fs::read(&ours).unwrap();
        let e2fsck =
            tool::command("e2fsck").args(["-fp", "-E", "discard"]).arg(&theirs).output().unwrap();
        assert!(e2fsck.status.success(), "{}", String::from_utf8_lossy(&e2fsck.stdout));
        let files = files_of(&ours);
        let ran = Fsck::new("fsck.ext4").run(&["-fp", "-E", "discard"], &ours, &[]);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        if ran.out.contains("cannot discard") {
            eprintln!("skipped: no holes can be made here");
            return;
        }
        let (after, theirs) = (fs::read(&ours).unwrap(), fs::read(&theirs).unwrap());
        let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
        let blocks = before.chunks(1024).zip(after.chunks(1024)).zip(theirs.chunks(1024));
        let mut discarded = 0;
        for (at, ((before, after), theirs)) in blocks.enumerate() {
            if !is_zero(before) && is_zero(theirs) {
                discarded += 1;
                assert!(is_zero(after), "{options:?}: KiB {at}");
            }
        }
        assert!(discarded > 100 << 10, "{options:?}: {discarded} KiB discarded by e2fsck");
        assert!(files_of(&ours) == files, "{options:?}: a file was changed");
        let e2fsck = tool::command("e2fsck").arg("-fn").arg(&ours).output().unwrap();
        let said = String::from_utf8_lossy(&e2fsck.stdout).into_owned();
        assert!(e2fsck.status.success(), "{options:?}: {said}");
    }
}

/// The same through a block device, which passes the discard to the underlying file.
#[test]
fn discarding_reaches_what_is_below_a_block_device() {
    let folder = tool::scratch("floe-holes-").unwrap();
    if tool::missing() {
        return;
    }
    let image = rubbish_with_files(folder.path(), &["-b", "4096"]);
    let Some(device) = Loop::over(&image, &[]) else { return };
    let files = files_of(&image);
    let ran = Fsck::new("fsck.ext4").run(&["-fp", "-E", "discard"], device.as_ref(), &[]);
    let seen = files_of(device.as_ref());
    drop(device);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    if ran.out.contains("cannot discard") {
        eprintln!("skipped: loop devices cannot discard here");
        return;
    }
    assert_eq!(rubbish_left(&image, 4096), 0, "{}", ran.out);
    assert!(seen == files && files_of(&image) == files, "a file was changed");
}
