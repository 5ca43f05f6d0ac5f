//! Marks of encryption on directories that hold nothing encrypted: the mark goes, and not the names.

use std::collections::BTreeMap;

use floe_check::{CheckOptions, check};
use floe_testkit::problems::cases;
use floe_testkit::tree::{self, Tree};
use floe_testkit::{Image, oracle, tool};

use crate::judged;

/// The image of a case of `floe_testkit::problems`.
fn image_of(name: &str) -> Image {
    let case = cases().into_iter().find(|case| case.recipe.name() == name);
    case.unwrap().recipe.build().unwrap()
}

fn paths(image: &Image) -> BTreeMap<Vec<u8>, u64> {
    let all: Tree = tree::stored(image).unwrap();
    all.into_iter().map(|(path, node)| (path, node.size_bytes)).collect()
}

#[test]
fn a_directory_without_anything_encrypted_keeps_its_names() {
    if tool::missing() {
        return;
    }
    let image = image_of("encrypted name");
    let before = paths(&image);
    let repaired = judged::program(image.path()).unwrap();
    assert_eq!(repaired.exit, Some(1), "{}", repaired.text);
    assert_eq!(paths(&image), before, "{}", repaired.text);
    let options = CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    assert_eq!(check(&image, &options).unwrap().found, []);
    assert!(oracle::e2fsck(&image).unwrap().clean());
}

/// Where one name or file may be encrypted, the mark stays.
#[test]
fn a_directory_with_a_name_that_may_be_encrypted_stays_marked() {
    if tool::missing() {
        return;
    }
    let image = image_of("plain file");
    let repaired = judged::program(image.path()).unwrap();
    assert_eq!(repaired.exit, Some(1), "{}", repaired.text);
    assert!(!repaired.text.contains("flag"), "{}", repaired.text);
    assert!(oracle::e2fsck(&image).unwrap().clean());
}
