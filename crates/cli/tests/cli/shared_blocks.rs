//! Blocks that several files claim: the dialogue, and the result of each answer.

use std::fs;

use floe_testkit::{Image, build, oracle, tool};

use super::terminal::at_a_terminal;
use super::{floe_on, image};

/// An image with two groups of files that share a block: in the first, `culprit` also has a wild
/// pointer; in the second, no evidence tells which is wrong.
fn shared() -> Option<Image> {
    let image = image("ext2-1k")?;
    let source = tempfile::NamedTempFile::new().unwrap();
    fs::write(source.path(), vec![b'x'; 5000]).unwrap();
    let from = source.path().display();
    let names = ["sound", "culprit", "left", "right"];
    let script: String = names.map(|name| format!("write {from} {name}\n")).concat();
    build::debugfs(&image, &script).unwrap();
    let first_block = |name: &str| -> u64 {
        let request = format!("bmap {name} 0");
        let shown = tool::must("debugfs", &["-R", &request, image.path().to_str().unwrap()], &[0]);
        shown.unwrap().text.lines().find_map(|line| line.trim().parse().ok()).unwrap()
    };
    let (sound, left) = (first_block("sound"), first_block("left"));
    let script = format!(
        "sif culprit block[0] {sound}\nsif culprit block[1] 4000000000\nsif right block[0] {left}\n"
    );
    build::debugfs(&image, &script).unwrap();
    Some(image)
}

/// Repairs at a terminal: yes to all kinds of findings, and the given answers for the groups of
/// owners. `None` without a terminal.
fn answered(options: &[&str], sharing: &[&str], image: &Image) -> Option<(i32, String)> {
    let mut sharing = sharing.iter();
    let line = [&["repair"], options, &[image.path().to_str().unwrap()]].concat();
    let ran = at_a_terminal(&line, &[], |question| {
        let of_sharing = question.contains("Shared blocks?");
        let answer = if of_sharing { sharing.next().copied().unwrap_or("q") } else { "a" };
        answer.to_owned()
    })?;
    assert!(sharing.next().is_none(), "not asked for all groups: {}", ran.1);
    Some(ran)
}

/// The content of a file, or `None` if it does not exist.
fn content(image: &Image, name: &str) -> Option<Vec<u8>> {
    let folder = tool::scratch("floe-shared-").unwrap();
    let to = folder.path().join("file");
    let request = format!("dump {name} {}", to.display());
    tool::must("debugfs", &["-R", &request, image.path().to_str().unwrap()], &[0]).unwrap();
    fs::read(to).ok()
}

#[test]
fn each_group_is_asked_for_with_its_evidence() {
    let Some(image) = shared() else { return };
    // In a dialogue, asking is the default.
    for options in [&[][..], &["--shared-blocks", "ask"]] {
        let image = image.copy().unwrap();
        let Some((code, text)) = answered(options, &["d", "c"], &image) else { return };
        assert_eq!(code, 1, "{text}");
        assert_eq!(text.matches("These claim the same blocks (2 files):").count(), 2, "{text}");
        assert!(text.contains("/culprit: 1 shared blocks; its claims are in doubt:"), "{text}");
        assert!(text.contains("block-map-block-out-of-range"), "{text}");
        assert!(text.contains("/sound: 1 shared blocks; nothing else was wrong"), "{text}");
        assert!(text.contains("The evidence is against inode"), "{text}");
        assert!(text.contains("[c/d/l/Y/q, ? for help]"), "{text}");
        assert!(text.contains("The evidence does not tell whose they are"), "{text}");
        assert!(text.contains("[c/l/Y/q, ? for help]"), "{text}");
        assert!(oracle::e2fsck(&image).unwrap().clean());
        assert_eq!(content(&image, "culprit"), None);
        for name in ["sound", "left", "right"] {
            assert_eq!(content(&image, name), Some(vec![b'x'; 5000]), "{name}");
        }
    }
}

#[test]
fn what_is_left_shared_stays_and_the_rest_is_repaired() {
    let Some(image) = shared() else { return };
    let Some((code, text)) = answered(&[], &["c", "l"], &image) else { return };
    assert_eq!(code, 5, "repaired, and damage is left: {text}");
    assert!(text.contains("its repair was refused"), "{text}");
    let again = floe_on(&["check"], image.path());
    assert_eq!(again.code, 4);
    assert!(again.out.contains("/left") && again.out.contains("/right"), "{}", again.out);
    assert!(!again.out.contains("/culprit") && !again.out.contains("/sound"), "{}", again.out);
    assert!(content(&image, "culprit").is_some());
    // Nothing else is wrong.
    let ran = floe_on(&["repair", "--yes"], image.path());
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(oracle::e2fsck(&image).unwrap().clean());
}

#[test]
fn quitting_at_shared_blocks_writes_nothing() {
    let Some(image) = shared() else { return };
    let before = image.to_vec().unwrap();
    let Some((code, text)) = answered(&[], &["d", "q"], &image) else { return };
    assert_eq!(code, 32, "{text}");
    assert!(image.to_vec().unwrap() == before, "quitting wrote");
    for options in [["--yes"], ["--dry-run"], ["--preen"]] {
        let line = [&["repair", "--shared-blocks", "ask"][..], &options].concat();
        let ran = floe_on(&line, image.path());
        assert_eq!(ran.code, 16, "{}{}", ran.out, ran.err);
        assert!(ran.err.contains("is for a dialogue"), "{}", ran.err);
    }
    assert!(image.to_vec().unwrap() == before);
}
