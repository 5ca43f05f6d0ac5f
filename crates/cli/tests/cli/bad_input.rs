//! Devices without an ext file system, or with a destroyed one: a clear message, exit code 8,
//! nothing changed.

use std::fs;
use std::process::Command;

use floe_testkit::{Image, build, tool};

use super::{floe, floe_on, image};

/// Runs every command that opens a device; all must exit with 8 and print `words`.
fn refused(bytes: &[u8], words: &[&str]) {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    for command in [
        &["check"][..],
        &["info"],
        &["fsck", "-fn"],
        &["check", "--json"],
        &["cube", "list"],
        &["repair", "--yes", "--cube", "/a"],
    ] {
        let ran = floe_on(command, file.path());
        assert_eq!(ran.code, 8, "{command:?}: {}{}", ran.out, ran.err);
        for word in words {
            assert!(ran.err.contains(word), "{command:?} does not say {word:?}: {}", ran.err);
        }
    }
    assert!(fs::read(file.path()).unwrap() == bytes, "the file was changed");
}

#[test]
fn no_such_file_and_a_directory() {
    let ran = floe(&["check", "/nowhere/at/all"]);
    assert_eq!(ran.code, 8);
    assert!(ran.err.contains("no such file"), "{}", ran.err);
    let dir = tempfile::tempdir().unwrap();
    let ran = floe_on(&["check"], dir.path());
    assert_eq!(ran.code, 8);
    assert!(ran.err.contains("directory"), "{}", ran.err);
}

/// Opening a pipe waits for its writer, for ever.
#[test]
fn a_pipe_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    for command in [
        &["check"][..],
        &["info"],
        &["fsck", "-fn"],
        &["repair", "--yes"],
        &["ls"],
        &["cube", "list"],
    ] {
        let ran = floe_on(command, &pipe);
        assert_eq!(ran.code, 8, "{command:?}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains("is a pipe"), "{command:?}: {}", ran.err);
    }
    let Some(image) = image("ext4") else { return };
    let (pipe, device) = (pipe.to_str().unwrap(), image.path().to_str().unwrap());
    for command in [&["undo", pipe, device][..], &["repair", "--undo", pipe, "--yes", device]] {
        let ran = floe(command);
        assert_ne!(ran.code, 0, "{command:?}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains("is not an undo file"), "{command:?}: {}", ran.err);
    }
}

/// Its superblock is sound, and has no groups.
#[test]
fn the_device_of_a_journal() {
    if tool::missing() {
        return;
    }
    let image = Image::empty(8 << 20).unwrap();
    let mut mke2fs = Command::new("mke2fs");
    let made = mke2fs.args(["-q", "-F", "-b", "4096", "-O", "journal_dev"]).arg(image.path());
    assert!(made.status().unwrap().success());
    let words = "features that this version does not support: journal_dev";
    refused(&fs::read(image.path()).unwrap(), &[words]);
}

#[test]
fn an_empty_file_and_tiny_ones() {
    refused(b"", &["superblock", "empty"]);
    refused(b"x", &["superblock", "only 1 byte"]);
    refused(&[0; 1500], &["superblock"]);
}

#[test]
fn zeroes_and_noise() {
    refused(&vec![0; 1 << 20], &["superblock"]);
    let mut state = 1u64;
    let noise: Vec<u8> = (0..1 << 20)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    refused(&noise, &["superblock"]);
}

#[test]
fn another_file_system_is_named() {
    let mut bytes = vec![0; 1 << 20];
    bytes[..4].copy_from_slice(b"XFSB");
    refused(&bytes, &["looks like an XFS file system"]);
}

#[test]
fn a_truncated_image_is_damage_and_no_crash() {
    let Some(mut image) = image("ext4-1k") else { return };
    let size = image.size();
    image.set_size(size / 2).unwrap();
    let ran = floe_on(&["check"], image.path());
    assert_eq!(ran.code & 12, ran.code, "{}", ran.err);
    assert_ne!(ran.code, 0, "{}", ran.out);
    assert!(format!("{}{}", ran.out, ran.err).contains("the device only"), "{}", ran.out);
    image.set_size(4096).unwrap();
    assert_ne!(floe_on(&["check"], image.path()).code, 0);
    assert_eq!(floe_on(&["info"], image.path()).code, 0, "the superblock is still there");
}

/// The truncated part may be intact: the journal is not dropped, and nothing is recomputed.
#[test]
fn a_truncated_image_is_not_repaired() {
    let Some(image) = image("ext4-1k") else { return };
    let whole = image.to_vec().unwrap();
    // Truncated before or after the journal.
    for eighths in [1, 3, 5, 7] {
        let bytes = &whole[..whole.len() * eighths / 8];
        fs::write(image.path(), bytes).unwrap();
        for command in [&["repair", "--yes"][..], &["fsck", "-fy"], &["fsck", "-p"]] {
            let ran = floe_on(command, image.path());
            assert_eq!(ran.code, 4, "{eighths} {command:?}: {}{}", ran.out, ran.err);
            assert!(
                ran.out.contains("past the end of the device cannot be repaired"),
                "{}",
                ran.out
            );
            let now = fs::read(image.path()).unwrap();
            // Only the superblock may change, to record errors.
            assert!(now.len() == bytes.len() && now[2048..] == bytes[2048..], "{command:?}");
        }
    }
}

#[test]
fn an_unknown_feature_is_refused_by_name() {
    let Some(image) = image("no-csum") else { return };
    let at = 1024 + 0x60;
    let mut word = [0; 4];
    image.read(at, &mut word).unwrap();
    word[3] |= 0x40;
    image.write(at, &word).unwrap();
    for command in [&["check"][..], &["fsck", "-fn"]] {
        let ran = floe_on(command, image.path());
        assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
        assert!(ran.err.contains("FEATURE_I30"), "{}", ran.err);
    }
}

#[test]
fn a_lost_superblock_is_replaced_by_a_backup() {
    if image("ext4").is_none() {
        return;
    }
    let image = Image::empty(64 << 20).unwrap();
    build::mke2fs(image.path(), &["-b", "1024"]).unwrap();
    image.write(1024, &[0; 1024]).unwrap();
    let ran = floe_on(&["check"], image.path());
    assert_eq!(ran.code, 4, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("backup superblock"), "{}", ran.out);
    let ran = floe_on(&["info"], image.path());
    assert_eq!(ran.code, 8);
    assert!(ran.err.contains("Try: -b 8193 -B 1024"), "{}", ran.err);
}

#[test]
fn backups_at_unusual_places_are_named() {
    // Groups of 2048 blocks: no backup is at a usual location.
    let Some(image) = image("ext4-1k") else { return };
    image.write(1024, &[0; 1024]).unwrap();
    let ran = floe_on(&["check"], image.path());
    assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("Try: -b 2049 -B 1024"), "{}", ran.err);
    let ran = floe_on(&["check", "-b", "2049", "-B", "1024"], image.path());
    assert_eq!(ran.code & !4, 0, "{}{}", ran.out, ran.err);
}

#[test]
fn an_offset_or_partition_that_is_not_there() {
    let Some(image) = image("ext4-1k") else { return };
    let ran = floe_on(&["check", "--offset", "999999999999"], image.path());
    assert_eq!(ran.code, 8);
    assert!(ran.err.contains("999999999999"), "{}", ran.err);
    let ran = floe_on(&["check", "--partition", "3"], image.path());
    assert_eq!(ran.code, 8);
    assert!(ran.err.contains("partition"), "{}", ran.err);
}

#[test]
fn wrong_command_lines_are_16() {
    for line in [
        &["check"][..],
        &["check", "--threads", "0", "x"],
        &["check", "--block-size", "1000", "x"],
        &["check", "--fail-on", "nothing", "x"],
        &["nonsense"],
        &["explain", "no-such-condition"],
        &["dump", "x"],
        &[],
    ] {
        let ran = floe(line);
        assert_eq!(ran.code, 16, "{line:?}: {}", ran.err);
        assert!(!ran.err.is_empty(), "{line:?}");
    }
}

/// With --json every failure produces a single JSON document.
#[test]
fn every_error_is_a_document_where_json_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (empty, zeroes) = (at("empty"), at("zeroes"));
    fs::write(&empty, b"").unwrap();
    fs::write(&zeroes, vec![0; 1 << 20]).unwrap();
    let mut lines: Vec<(Vec<&str>, i32)> = vec![
        (vec!["check", "--threads", "0", "x"], 16),
        (vec!["check", "--no-such-option"], 16),
        (vec!["check", "--html", &zeroes, &zeroes], 16),
        (vec!["check", "--partition", "7", &zeroes], 8),
        (vec!["check", "--html", "/nowhere/page", &zeroes], 8),
        (vec!["check", "--online", &zeroes], 8),
        (vec!["repair", &zeroes], 16),
        (vec!["repair", "--yes", "--shared-blocks", "ask", &zeroes], 16),
        (vec!["repair", "--yes", "--undo", "/nowhere/undo", &zeroes], 8),
        (vec!["dump", "group", "0"], 16),
        (vec!["explain", "no-such-condition"], 16),
    ];
    for device in ["/nowhere/at/all", "/", "/dev/null", &empty, &zeroes] {
        lines.push((vec!["check", device], 8));
        lines.push((vec!["repair", "--yes", device], 8));
        lines.push((vec!["repair", "--dry-run", device], 8));
        lines.push((vec!["info", device], 8));
        lines.push((vec!["dump", device, "superblock"], 8));
    }
    for (line, code) in lines {
        let line = [&line[..1], &["--json"], &line[1..]].concat();
        let ran = floe(&line);
        assert_eq!(ran.code, code, "{line:?}: {}{}", ran.out, ran.err);
        let value: serde_json::Value = serde_json::from_str(&ran.out)
            .unwrap_or_else(|error| panic!("{line:?}: {error}: {}{}", ran.out, ran.err));
        assert_eq!(value["exit_code"], code, "{line:?}");
        assert!(!value["error"].as_str().unwrap().is_empty(), "{line:?}");
        assert!(!ran.err.is_empty(), "{line:?}");
    }
}

/// After mkfs on the wrong device, a repair restores the file system, and `mount` detects two
/// formats.
#[test]
fn the_signature_that_another_mkfs_left_is_told() {
    let Some(image) = image("ext4-1k") else { return };
    for repaired in [false, true] {
        let before = floe_on(&["check"], image.path());
        assert!(!before.out.contains("begins like"), "{}", before.out);
        image.write(0, b"XFSB").unwrap();
        if repaired {
            image.write(1024, &[0; 1024]).unwrap();
            let line = ["repair", "--yes", "-b", "2049", "-B", "1024"];
            let ran = floe_on(&line, image.path());
            assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
            assert!(ran.out.contains("begins like an XFS file system"), "{}", ran.out);
        }
        let ran = floe_on(&["check"], image.path());
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        assert!(ran.out.contains("begins like an XFS file system"), "{}", ran.out);
        assert!(ran.out.lines().last().unwrap().starts_with("CLEAN"), "{}", ran.out);
        let ran = floe_on(&["check", "--json"], image.path());
        assert!(ran.out.contains(r#""other_signature": "an XFS file system""#), "{}", ran.out);
        image.write(0, &[0; 4]).unwrap();
    }
}
