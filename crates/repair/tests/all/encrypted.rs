//! Marks of encryption on directories that hold nothing encrypted: the mark goes, and not the names.

use std::collections::BTreeMap;

use floe_check::{CheckOptions, check};
use floe_repair::policy::Yes;
use floe_repair::{RepairOptions, repair};
use floe_testkit::problems::{cases, write_context};
use floe_testkit::recipe::{Edit, InodeEdit, Recipe, debugfs, inode};
use floe_testkit::tree::{self, Tree};
use floe_testkit::{Image, Profile, oracle, tool};

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

/// Sixteen bytes: as long as an encrypted name.
const LONG: &str = "a name of 16 byte";

/// An inode that is encrypted by its policy.
fn marked(path: &'static str, key: u8) -> InodeEdit {
    let mut policy = [1; 28];
    policy[5] = key;
    inode(path).raw(move |raw| write_context(raw, policy)).set_flags(0x800)
}

fn repaired(recipe: &Recipe) -> (Image, Image) {
    let damaged = recipe.build().unwrap();
    let after = damaged.copy().unwrap();
    let check = CheckOptions { now_seconds: i64::from(tool::NOW), ..CheckOptions::default() };
    let options = RepairOptions { check, ..RepairOptions::default() };
    let repaired = repair(&damaged, &options, &mut Yes).unwrap();
    assert!(repaired.is_clean(), "{:?}", repaired.left);
    after.write_staged(&repaired.staged).unwrap();
    let verdict = oracle::e2fsck(&after).unwrap();
    assert!(verdict.clean(), "{}", verdict.text);
    (damaged, after)
}

/// Where no entry agrees with a mark, the mark goes, and the names stay: whatever a repair of each mark alone keeps.
#[test]
fn names_that_contradict_a_mark_stay() {
    if tool::missing() {
        return;
    }
    let plain = || debugfs(format!("ln file \"/dir/sub/{LONG}\"\nsif file links_count 182"));
    let other = || -> [Edit; 2] {
        let link = "ln empty /dir/sub/a-name-of-16-bytes\nsif empty links_count 2";
        [debugfs(link), marked("/empty", 8).into()]
    };
    let recipe = |name: &str| Recipe::new(name).on(Profile::Encrypt);
    let [link, policy] = other();
    let all = recipe("other policy, in a marked directory")
        .edit(plain())
        .edit(link)
        .edit(policy)
        .edit(marked("/dir/sub", 7))
        .edit(marked("/dir", 7));
    let alone =
        recipe("plain file in a marked directory").edit(plain()).edit(marked("/dir/sub", 7));
    for recipe in [all, alone] {
        let (damaged, after) = repaired(&recipe);
        let (before, after) = (paths(&damaged), paths(&after));
        let mut changed = before.iter().filter(|(path, size)| after.get(*path) != Some(size));
        let first = changed.next().map(|(path, _)| path.escape_ascii().to_string());
        assert_eq!((first, after.len()), (None, before.len()), "{}", recipe.name());
    }
}

/// An entry that agrees with the mark proves it: those that do not are dropped, as by e2fsck.
#[test]
fn a_mark_that_an_entry_agrees_with_stays() {
    if tool::missing() {
        return;
    }
    let recipe = Recipe::new("encrypted")
        .on(Profile::Encrypt)
        .edit(debugfs("ln empty /dir/sub/a-name-of-16-bytes\nsif empty links_count 2"))
        .edit(marked("/empty", 7))
        .edit(marked("/dir/sub", 7));
    let (_, after) = repaired(&recipe);
    assert!(!paths(&after).contains_key(&b"/dir/sub/deep"[..]));
}
