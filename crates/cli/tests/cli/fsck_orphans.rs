//! `fsck -p` of file systems with orphans: they are finished without a check, as e2fsck does.

use std::fmt::Write as _;
use std::path::Path;

use floe_testkit::{Image, Profile, build, oracle, tool};

use super::{Ran, floe_on, image};

/// Files that are deleted, as far as a profile has them.
const DELETED: &[&str] = &[
    "/dir/file",
    "/medium",
    "/fragmented",
    "/far",
    "/unwritten",
    "/ea",
    "/ea-block",
    "/ea-shared-a",
];
/// Files that are cut to 10 bytes.
const CUT: &[&str] = &["/blocks", "/owned"];

/// The answer of debugfs.
fn asked(image: &Image, question: &str) -> String {
    let path = image.path().to_str().unwrap();
    tool::must("debugfs", &["-R", question, path], &[0]).unwrap().text
}

/// The numbers of those of these files that exist.
fn numbers(image: &Image, names: &[&str]) -> Vec<(String, u32)> {
    let number = |name: &&str| {
        let text = asked(image, &format!("stat {name}"));
        text.split("Inode: ").nth(1)?.split_whitespace().next()?.parse().ok()
    };
    names.iter().filter_map(|name| Some(((*name).to_owned(), number(name)?))).collect()
}

/// Lets files be in the list of orphans, as if the system had stopped while they were deleted or cut.
fn with_orphans(image: &Image) -> usize {
    let (deleted, cut) = (numbers(image, DELETED), numbers(image, CUT));
    let (mut script, mut next) = (String::new(), 0);
    for (name, number) in &deleted {
        writeln!(script, "sif <{number}> links_count 0\nsif <{number}> dtime {next}").unwrap();
        writeln!(script, "unlink {name}").unwrap();
        next = *number;
    }
    for (_, number) in &cut {
        writeln!(script, "sif <{number}> size 10\nsif <{number}> dtime {next}").unwrap();
        next = *number;
    }
    writeln!(script, "ssv last_orphan {next}").unwrap();
    build::debugfs(image, &script).unwrap();
    deleted.len() + cut.len()
}

/// The end of the line with counts of files and blocks.
fn counts(text: &str) -> Option<&str> {
    text.lines().find_map(|line| line.split_once(": clean, ").map(|(_, counts)| counts))
}

fn judged(path: &Path, context: &str) {
    let theirs = oracle::run(path, &["-fn"]).unwrap();
    assert!(theirs.exit == Some(0) && !theirs.text.contains("wrong"), "{context}{}", theirs.text);
    let ours = floe_on(&["fsck", "-fn"], path);
    assert!(ours.code == 0 && ours.out.contains("CLEAN"), "{context}{}{}", ours.out, ours.err);
}

fn finished(ran: &Ran) -> usize {
    ran.out.matches("was removed from the orphan list").count()
}

#[test]
fn preen_finishes_orphans_without_a_check() {
    let mut compared = 0;
    for &profile in Profile::ALL {
        let refused = ["mmp", "shared_blocks", "read-only"].iter().any(|name| profile.has(name));
        if refused || profile == Profile::Ext2Rev0 {
            continue;
        }
        let Some(image) = image(profile.name()) else { return };
        let orphans = with_orphans(&image);
        assert!(orphans > 5, "{profile}");
        let theirs = image.copy().unwrap();
        let theirs_ran = oracle::run(theirs.path(), &["-p"]).unwrap();
        let ran = floe_on(&["fsck", "-p"], image.path());
        let context = format!("{profile}: {}{}{}", ran.out, ran.err, theirs_ran.text);
        assert_eq!((ran.code, finished(&ran)), (0, orphans), "{context}");
        judged(image.path(), &context);
        // e2fsck forgets clusters, and attribute blocks of inodes with inline data.
        let after = oracle::run(theirs.path(), &["-fn"]).unwrap();
        if theirs_ran.exit == Some(0) && after.exit == Some(0) && !after.text.contains("wrong") {
            let theirs = counts(&theirs_ran.text);
            assert_eq!(counts(&ran.out), theirs, "{context}");
            compared += 1;
        }
        assert_eq!(floe_on(&["fsck", "-p"], image.path()).code, 0, "{context}");
    }
    assert!(compared > 10, "{compared} profiles were compared");
}

/// Blocks of an orphan that are free already may belong to others by now: everything is checked.
#[test]
fn orphans_that_contradict_bitmaps_make_a_check_due() {
    let Some(image) = image("ext4") else { return };
    with_orphans(&image);
    let mapped = asked(&image, "blocks /blocks");
    let last = mapped.split_whitespace().rfind(|word| word.parse::<u32>().is_ok()).unwrap();
    build::debugfs(&image, &format!("freeb {last}\n")).unwrap();
    let ran = floe_on(&["fsck", "-p"], image.path());
    let context = format!("{}{}", ran.out, ran.err);
    assert!(ran.out.contains("orphans stay: the bitmaps of group"), "{context}");
    assert_eq!(ran.code, 1, "{context}");
    judged(image.path(), &context);
}

/// Nobody is asked for: the count of an attribute block that an orphan shares is right until the orphan goes.
#[test]
fn orphans_that_share_an_attribute_block_need_no_person() {
    let Some(image) = image("ext4") else { return };
    with_orphans(&image);
    let ran = floe_on(&["fsck", "-fp"], image.path());
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    judged(image.path(), &ran.out);
}

/// Other modes check everything, as before.
#[test]
fn only_preen_is_satisfied_with_finished_orphans() {
    let Some(image) = image("ext4") else { return };
    let orphans = with_orphans(&image);
    let ran = floe_on(&["fsck", "-y"], image.path());
    assert!(ran.out.contains("its orphan list has entries: checking"), "{}", ran.out);
    assert_eq!((ran.code, finished(&ran)), (1, orphans), "{}{}", ran.out, ran.err);
    judged(image.path(), &ran.out);
}
