//! The examples of the library crates, on real images. Each has a function `show`, which its `main`
//! calls.

use std::fs;

use floe_testkit::{build, tool};

use super::{disk_with_partition, image};

#[path = "../../../format/examples/features.rs"]
#[allow(dead_code)]
mod features;
#[path = "../../../report/examples/preview.rs"]
#[allow(dead_code)]
mod preview;
#[path = "../../../blockdev/examples/try_and_undo.rs"]
#[allow(dead_code)]
mod try_and_undo;
#[path = "../../../check/examples/verdict.rs"]
#[allow(dead_code)]
mod verdict;
#[path = "../../../exec/examples/zeroes.rs"]
#[allow(dead_code)]
mod zeroes;

fn text(out: &[u8]) -> String {
    String::from_utf8(out.to_vec()).unwrap()
}

#[test]
fn a_superblock_is_shown() {
    let Some(image) = image("ext4") else { return };
    let mut out = Vec::new();
    features::show(image.path(), &mut out).unwrap();
    let shown = text(&out);
    assert!(shown.contains("checksum right") && shown.contains("metadata_csum"), "{shown}");
    assert!(shown.contains("6144 blocks of 4096 bytes in 3 groups"), "{shown}");
    let noise = tempfile::NamedTempFile::new().unwrap();
    fs::write(noise.path(), [7; 4096]).unwrap();
    assert!(features::show(noise.path(), &mut out).is_err());
}

#[test]
fn a_change_is_tried_and_undone() {
    let Some(image) = image("ext4") else { return };
    let folder = tool::scratch("floe-example-").unwrap();
    let disk = folder.path().join("disk");
    let before = disk_with_partition(&image.to_vec().unwrap());
    fs::write(&disk, &before).unwrap();
    let mut out = Vec::new();
    try_and_undo::show(&disk, 1, &folder.path().join("undo"), &mut out).unwrap();
    let shown = text(&out);
    assert!(shown.contains("on the disk \"\", staged \"tried\""), "{shown}");
    assert!(shown.contains("written: on the disk \"tried\""), "{shown}");
    assert!(shown.ends_with("undone: on the disk \"\"\n"), "{shown}");
    assert!(fs::read(&disk).unwrap() == before);
}

#[test]
fn zeroes_are_counted_by_any_number_of_threads() {
    let Some(image) = image("ext4") else { return };
    let shown = [1, 2, 7].map(|threads| {
        let mut out = Vec::new();
        zeroes::show(image.path(), threads, &mut out).unwrap();
        text(&out)
    });
    let bytes = image.to_vec().unwrap();
    let zero = bytes.chunks(4096).filter(|block| block.iter().all(|byte| *byte == 0)).count();
    assert_eq!(shown[0], format!("{zero} of {} blocks are zero\n", bytes.len() / 4096));
    assert!(shown.iter().all(|one| *one == shown[0]), "{shown:?}");
}

#[test]
fn a_verdict_is_given_and_a_repair_previewed() {
    let Some(image) = image("ext4") else { return };
    let mut out = Vec::new();
    verdict::show(image.path(), &mut out).unwrap();
    assert!(text(&out).starts_with("clean: 0 findings"), "{}", text(&out));
    build::debugfs(&image, "clri /file\n").unwrap();
    let before = image.to_vec().unwrap();
    out.clear();
    verdict::show(image.path(), &mut out).unwrap();
    assert!(text(&out).contains("data-risk /: inode 2: entry \"file\" names"), "{}", text(&out));
    out.clear();
    preview::show(image.path(), i64::from(tool::NOW), &mut out).unwrap();
    let shown = text(&out);
    assert!(shown.contains("the entry would be removed"), "{shown}");
    assert!(shown.contains("then the file system is clean. Nothing was changed."), "{shown}");
    assert!(image.to_vec().unwrap() == before);
}
