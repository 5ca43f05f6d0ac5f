//! The directories `/.cubes` and `/.cubes/c0` are lost, or only their names: they are put in their places, and their files keep
//! their inodes. Files that e2fsck has moved to lost+found come back. Somebody else's directory is not taken for them.

use std::process::Command;

use floe_testkit::Image;

use super::{found, native, records, usable};
use crate::judged;
use floe_testkit::{oracle, tool, tree};

fn whole() -> Image {
    let image = Image::empty(super::SIZE_BYTES).unwrap();
    image.write(0, &native().to_vec()).unwrap();
    image
}

/// A copy of an image, with the work of debugfs done on it.
fn damaged(whole: &Image, commands: &[&str]) -> Image {
    let image = whole.copy().unwrap();
    debugfs(&image, commands);
    image
}

fn debugfs(image: &Image, commands: &[&str]) {
    for request in commands {
        let mut command = Command::new("debugfs");
        command.args(["-w", "-R", request]).arg(image.path());
        tool::run(&command, 60).unwrap();
    }
}

/// Where everything of Floe's is, and where each file is.
fn places(image: &Image) -> Vec<(Vec<u8>, u32)> {
    let tree = tree::stored(image).unwrap();
    tree.into_iter().map(|(path, node)| (path, node.inode.0)).collect()
}

/// Repairs an image: then it is clean for Floe and e2fsck, and all files are where they were but for new directories.
fn mended(image: &Image, whole: &Image, commands: &[&str]) {
    const RENUMBERED: [&[u8]; 2] = [b"/.cubes", b"/.cubes/c0"];
    let repaired = judged::program(image.path()).unwrap();
    assert_eq!(repaired.exit, Some(1), "{}", repaired.text);
    assert!(found(image).is_empty(), "{:?}", found(image));
    let verdict = oracle::e2fsck(image).unwrap();
    assert!(verdict.clean(), "{}", verdict.text);
    let others = |image: &Image| -> Vec<_> {
        let all = places(image).into_iter();
        all.filter(|(path, _)| !RENUMBERED.contains(&&path[..])).collect()
    };
    let (after, before) = (others(image), others(whole));
    let show = |(path, inode): &(Vec<u8>, u32)| format!("{} {inode}", path.escape_ascii());
    let only_in = |one: &[(Vec<u8>, u32)], other: &[(Vec<u8>, u32)]| -> Vec<_> {
        one.iter().filter(|place| !other.contains(place)).map(show).take(5).collect()
    };
    let changed = (only_in(&before, &after), only_in(&after, &before));
    assert_eq!(changed, (Vec::new(), Vec::new()), "{commands:?}");
    let files = |image| records(image).iter().map(|record| record.region_inode).collect::<Vec<_>>();
    assert_eq!(files(image), files(whole));
    usable(image);
}

#[test]
fn lost_directories_are_put_in_their_places() {
    if tool::missing() {
        return;
    }
    // Inode 12 is /.cubes, inode 13 is /.cubes/c0.
    let cases: [&[&str]; 7] = [
        &["clri <12>"],
        &["clri <13>"],
        &["clri <12>", "clri <13>"],
        &["unlink /.cubes"],
        &["unlink /.cubes/c0"],
        &["sif <12> mode 0100700"],
        // The same, and nothing is left of its content.
        &["sif <12> mode 0100700", "sif <12> block[0] 0"],
    ];
    let whole = whole();
    for commands in cases {
        let image = damaged(&whole, commands);
        let ids = found(&image);
        assert!(ids.contains(&"own-directory-missing"), "{commands:?}: {ids:?}");
        mended(&image, &whole, commands);
    }
}

#[test]
fn what_e2fsck_has_moved_to_lost_and_found_comes_back() {
    if tool::missing() {
        return;
    }
    let whole = whole();
    for commands in [&["clri <12>"], &["clri <13>"]] {
        let image = damaged(&whole, commands);
        let mut command = Command::new("e2fsck");
        command.arg("-fy").arg(image.path());
        tool::run(&command, 60).unwrap();
        let moved =
            places(&image).iter().filter(|(path, _)| path.starts_with(b"/lost+found/")).count();
        assert!(moved > 0);
        mended(&image, &whole, commands);
    }
}

#[test]
fn a_directory_of_somebody_else_is_not_taken_for_it() {
    if tool::missing() {
        return;
    }
    let commands =
        ["clri <12>", "clri <13>", "unlink /.cubes", "mkdir /.cubes", "mkdir /.cubes/c0"];
    let image = damaged(&whole(), &commands);
    let repaired = judged::program(image.path()).unwrap();
    assert!(repaired.text.contains("rename it first"), "{}", repaired.text);
    assert_eq!(repaired.exit, Some(5), "{}", repaired.text);
    assert!(found(&image).contains(&"own-directory-missing"));
    let theirs = places(&image);
    assert!(theirs.iter().any(|(path, _)| path == b"/.cubes/c0"));
    // As the text says.
    let number = theirs.iter().find(|(path, _)| path == b"/.cubes").unwrap().1;
    debugfs(&image, &[&format!("ln <{number}> /theirs"), "unlink /.cubes"]);
    let again = judged::program(image.path()).unwrap();
    assert_eq!(again.exit, Some(1), "{}", again.text);
    assert!(found(&image).is_empty(), "{:?}", found(&image));
    usable(&image);
    assert!(places(&image).iter().any(|(path, _)| path == b"/theirs/c0"));
}
