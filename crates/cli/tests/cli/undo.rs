//! `floe undo`.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use floe_blockdev::{UndoWriter, UndoWriterOptions};
use floe_testkit::{Image, tool};

use super::{Ran, floe, image};

/// An image that tune2fs changed, what it was before and is now, and the undo file.
struct Changed {
    image: Image,
    folder: tempfile::TempDir,
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Changed {
    fn new(profile: &str) -> Option<Self> {
        let image = image(profile)?;
        let folder = tool::scratch("floe-undo-").unwrap();
        let before = image.to_vec().unwrap();
        let undo = folder.path().join("undo");
        let line = [Path::new("-z"), &undo, Path::new("-L"), Path::new("other"), image.path()];
        tool::must("tune2fs", &line, &[0]).unwrap();
        let after = image.to_vec().unwrap();
        assert!(after != before);
        Some(Self { image, folder, before, after })
    }

    fn undo(&self, options: &[&str]) -> Ran {
        let file = self.folder.path().join("undo");
        let mut line = vec!["undo", file.to_str().unwrap(), self.image.path().to_str().unwrap()];
        line.extend(options);
        floe(&line)
    }

    fn now(&self) -> Vec<u8> {
        self.image.to_vec().unwrap()
    }
}

#[test]
fn undo_shows_then_restores_then_has_nothing_to_do() {
    for profile in ["ext4", "ext2-1k"] {
        let Some(changed) = Changed::new(profile) else { return };
        let ran = changed.undo(&["--dry-run", "--verbose"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        for word in ["f10e0000-0001-4002-8003-000000000004", "complete change", "bytes from byte"] {
            assert!(ran.out.contains(word), "no {word:?}: {}", ran.out);
        }
        assert!(changed.now() == changed.after, "a dry run wrote");
        let ran = changed.undo(&[]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.out.contains("restored "), "{}", ran.out);
        assert!(changed.now() == changed.before);
        let ran = changed.undo(&[]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.out.contains("nothing was written"), "{}", ran.out);
        assert!(changed.now() == changed.before);
    }
}

#[test]
fn undo_refuses_a_file_system_that_was_used_since_unless_forced() {
    let Some(changed) = Changed::new("ext4-1k") else { return };
    // Time of the last mount.
    changed.image.write(1024 + 0x2c, &[1, 2, 3, 4]).unwrap();
    let used = changed.now();
    for options in [&[][..], &["--dry-run"]] {
        let ran = changed.undo(options);
        assert_eq!(ran.code, 8, "{}", ran.out);
        assert!(ran.err.contains("used since") && ran.err.contains("--force"), "{}", ran.err);
    }
    assert!(changed.now() == used);
    // Whoever mounted it wrote elsewhere, too.
    let at = changed.now().len() as u64 / 2;
    changed.image.write(at, b"written since").unwrap();
    let ran = changed.undo(&["--force"]);
    assert_eq!(ran.code, 4, "{}", ran.err);
    assert!(ran.err.contains("warning"), "{}", ran.err);
    assert!(!ran.out.contains("is as it was before"), "{}", ran.out);
    assert!(ran.out.contains("Check it: floe check "), "{}", ran.out);
    assert!(changed.now() != changed.before);
    let start = at as usize;
    assert!(changed.now()[..start] == changed.before[..start]);
}

#[test]
fn undo_refuses_bad_files_and_leaves_the_device_alone() {
    let Some(changed) = Changed::new("ext4-1k") else { return };
    let undo = changed.folder.path().join("undo");
    let sound = fs::read(&undo).unwrap();
    let mut unfinished = sound.clone();
    unfinished[0x2c] = 0;
    let crc =
        floe_format::ext::undo::UndoHeader::compute_checksum(unfinished.first_chunk().unwrap());
    unfinished[508..512].copy_from_slice(&crc.to_le_bytes());
    let mut damaged = sound.clone();
    *damaged.last_mut().unwrap() ^= 1;
    for (bytes, word) in [
        (unfinished, "not finished"),
        (damaged, "damaged"),
        (sound[..1000].to_vec(), "damaged"),
        (b"no undo file at all".to_vec(), "is not an undo file"),
        (Vec::new(), "is not an undo file"),
    ] {
        fs::write(&undo, bytes).unwrap();
        let ran = changed.undo(&["--force"]);
        assert_eq!(ran.code, 8, "{word}: {}", ran.out);
        assert!(ran.err.contains(word), "{word}: {}", ran.err);
        assert!(changed.now() == changed.after, "{word}");
    }
    fs::remove_file(&undo).unwrap();
    assert_eq!(changed.undo(&[]).code, 8);
    assert_eq!(floe(&["undo", "only-one-path"]).code, 16);
}

#[test]
fn undo_refuses_a_device_that_another_is_working_on() {
    let Some(changed) = Changed::new("ext4-1k") else { return };
    let owner = floe_blockdev::WritableFile::open_exclusive(changed.image.path()).unwrap();
    let ran = changed.undo(&[]);
    assert_eq!(ran.code, 8, "{}", ran.out);
    assert!(ran.err.contains("another"), "{}", ran.err);
    assert!(changed.now() == changed.after);
    drop(owner);
    // A program that another test starts has the locked descriptor until its exec.
    let begin = Instant::now();
    let mut ran = changed.undo(&[]);
    while ran.code == 8 && begin.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(50));
        ran = changed.undo(&[]);
    }
    assert_eq!(ran.code, 0, "{}", ran.err);
}

#[test]
fn undo_finds_a_file_system_behind_an_offset() {
    let Some(image) = image("ext2-1k") else { return };
    let folder = tool::scratch("floe-undo-").unwrap();
    let whole = folder.path().join("whole");
    let mut before = vec![0xa5; 1 << 20];
    before.extend(image.to_vec().unwrap());
    fs::write(&whole, &before).unwrap();
    let undo = folder.path().join("undo");
    // Not with tune2fs: its undo files of a file system behind an offset hold other bytes (1.47).
    let mut superblock_after: [u8; 1024] = image.to_vec().unwrap()[1024..2048].try_into().unwrap();
    superblock_after[0x78..0x7c].copy_from_slice(b"floe");
    let options =
        UndoWriterOptions { block_bytes: 1024, fs_offset_bytes: 1 << 20, superblock_after };
    let mut writer = UndoWriter::create(&undo, &options).unwrap();
    let start = (1 << 20) + 1024;
    writer.save(1024, &before[start..start + 1024]).unwrap();
    writer.finish().unwrap();
    let mut after = before.clone();
    after[start..start + 1024].copy_from_slice(&superblock_after);
    fs::write(&whole, &after).unwrap();
    let (undo, whole_name) = (undo.to_str().unwrap(), whole.to_str().unwrap());
    assert_eq!(floe(&["undo", undo, whole_name, "--offset", "4096"]).code, 8);
    assert!(fs::read(&whole).unwrap() == after);
    let ran = floe(&["undo", undo, whole_name]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(fs::read(&whole).unwrap() == before);
}

#[test]
fn undo_refuses_a_mounted_image() {
    let Some(changed) = Changed::new("ext4-1k") else { return };
    let mount_point = changed.folder.path().join("mnt");
    fs::create_dir(&mount_point).unwrap();
    let mounted = std::process::Command::new("mount")
        .args(["-o", "loop,ro,noload"])
        .arg(changed.image.path())
        .arg(&mount_point)
        .output();
    if !mounted.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: nothing can be mounted here");
        return;
    }
    let ran = changed.undo(&["--force"]);
    let unmounted = std::process::Command::new("umount").arg(&mount_point).status();
    assert!(unmounted.is_ok_and(|status| status.success()));
    assert_eq!(ran.code, 8, "{}", ran.out);
    assert!(ran.err.contains("mounted on"), "{}", ran.err);
    assert!(changed.now() == changed.after);
}

/// Blocks that a repair wrote over by permission, without having been able to read them.
#[test]
fn what_could_not_be_saved_is_named_and_the_exit_code_says_so() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-undo-").unwrap();
    let undo = folder.path().join("undo");
    let before = image.to_vec().unwrap();
    let superblock_after = before[1024..2048].try_into().unwrap();
    let options = UndoWriterOptions { block_bytes: 1024, fs_offset_bytes: 0, superblock_after };
    let mut writer = UndoWriter::create(&undo, &options).unwrap();
    writer.save(700 << 10, &before[700 << 10..701 << 10]).unwrap();
    writer.not_saved(&[705 << 10, 709 << 10]).unwrap();
    writer.finish().unwrap();
    image.write(700 << 10, &[0x17; 1024]).unwrap();
    let line = ["undo", undo.to_str().unwrap(), image.path().to_str().unwrap(), "--dry-run"];
    for (line, says) in
        [(&line[..], "Nothing was written"), (&line[..3], "except the blocks below")]
    {
        let ran = floe(line);
        assert_eq!(ran.code, 4, "{}{}", ran.out, ran.err);
        for word in [says, "2 blocks could not be read", "block 705 (byte 721920)", "block 709"] {
            assert!(ran.out.contains(word), "no {word:?}: {}", ran.out);
        }
    }
    assert!(image.to_vec().unwrap() == before);
    let again = floe(&line[..3]);
    assert_eq!(again.code, 4, "{}{}", again.out, again.err);
    assert!(again.out.contains("already") && again.out.contains("block 705"), "{}", again.out);
}
