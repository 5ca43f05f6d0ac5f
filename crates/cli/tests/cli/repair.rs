//! `floe repair` as used by a person or a script.

use std::fs;

use floe_format::ext::superblock::Superblock;
use floe_format::features::Compat;
use floe_testkit::kernel::{Mounted, mount_available};
use floe_testkit::{Image, build, oracle, tool};
use serde_json::Value;

use super::loop_device::Loop;
use super::schema::repair_faults;
use super::terminal::at_a_terminal;
use super::{floe, floe_env, floe_on, image};

/// A fixed time, so that two repairs store the same times.
const NOW: (&str, &str) = ("E2FSCK_TIME", "1704067200");

/// An image with several kinds of damage: a file, a name, a count, an unconnected directory.
fn damaged() -> Option<Image> {
    let image = image("ext4-1k")?;
    let source = tempfile::NamedTempFile::new().unwrap();
    fs::write(source.path(), vec![b'x'; 5000]).unwrap();
    let from = source.path().display();
    let script = format!(
        "write {from} gone\nwrite {from} counted\nmkdir lost\nwrite {from} lost/inside\n\
         clri gone\nunlink lost\nset_inode_field counted links_count 7\n"
    );
    build::debugfs(&image, &script).unwrap();
    Some(image)
}

fn repair(options: &[&str], image: &Image) -> super::Ran {
    let mut line = vec!["repair"];
    line.extend(options);
    line.push(image.path().to_str().unwrap());
    floe_env(&line, &[NOW])
}

/// The JSON of a repair, without values that vary between runs.
fn told(options: &[&str], image: &Image) -> Value {
    let ran = repair(options, image);
    let value: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(repair_faults(&value), Vec::<String>::new());
    assert_eq!(value["exit_code"], ran.code);
    value
}

#[test]
fn a_dry_run_changes_nothing_and_says_what_is_done() {
    let Some(image) = damaged() else { return };
    let before = image.to_vec().unwrap();
    let mut dry = told(&["--dry-run", "--json"], &image);
    assert!(image.to_vec().unwrap() == before, "a dry run wrote");
    assert_eq!(dry["verdict"], "repaired");
    assert_eq!(dry["exit_code"], 1);
    assert_eq!(dry["written"], false);
    let mut done = told(&["--yes", "--json"], &image);
    assert!(image.to_vec().unwrap() != before);
    assert_eq!(done["written"], true);
    for value in [&mut dry, &mut done] {
        for member in ["cost", "ending", "written"] {
            value.as_object_mut().unwrap().remove(member).unwrap();
        }
        for change in value["changes"].as_array_mut().unwrap() {
            let text = change["text"].as_str().unwrap();
            let text = text.replace("would be", "was").replace(" were ", " was ");
            change["text"] = text.into();
        }
    }
    assert_eq!(dry, done);
}

#[test]
fn a_second_run_finds_nothing_and_e2fsck_agrees() {
    let Some(image) = damaged() else { return };
    let ran = repair(&["--yes"], &image);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(oracle::e2fsck(&image).unwrap().clean());
    let after = image.to_vec().unwrap();
    let ran = repair(&["--yes"], &image);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.lines().last().unwrap().starts_with("CLEAN"), "{}", ran.out);
    assert!(image.to_vec().unwrap() == after, "at the same time of day the same bytes");
    assert_eq!(floe_on(&["check"], image.path()).code, 0);
}

#[test]
fn the_report_names_what_is_lost_and_where_things_are() {
    let Some(image) = damaged() else { return };
    let ran = repair(&["--dry-run"], &image);
    for words in [
        "/counted\n",
        "      -> the link count would be set to 1",
        "These names would be removed or changed",
        "\"gone\" in / (inode 2)",
        "These would be connected to lost+found",
        "formerly in /: inode",
        "WOULD BE REPAIRED: ",
    ] {
        assert!(ran.out.contains(words), "{words:?} is missing: {}", ran.out);
    }
    assert!(ran.out.lines().all(|line| line.chars().count() <= 130), "{}", ran.out);
    assert!(ran.out.lines().count() < 80, "{}", ran.out);
    let ran = repair(&["--yes", "--verbose"], &image);
    assert!(ran.out.contains("0x040003 inode-link-count-wrong"), "{}", ran.out);
    assert!(ran.out.contains("(round "), "{}", ran.out);
    assert!(!ran.out.contains("would"), "{}", ran.out);
}

#[test]
fn unattended_repair_halts_marks_and_leaves_the_rest() {
    let Some(image) = damaged() else { return };
    let before = image.to_vec().unwrap();
    let ran = repair(&["--preen", "--dry-run"], &image);
    assert_eq!(ran.code, 4, "{}", ran.out);
    assert!(image.to_vec().unwrap() == before);
    let ran = repair(&["--preen"], &image);
    assert_eq!(ran.code, 4, "{}", ran.out);
    assert!(ran.out.contains("This needs a person:"), "{}", ran.out);
    let after = image.to_vec().unwrap();
    let differing: Vec<usize> = (0..before.len()).filter(|&at| before[at] != after[at]).collect();
    assert!(differing.iter().all(|at| (1024..2048).contains(at)), "{differing:?}");
    assert_eq!(after[1024 + 0x3a] & 2, 2, "the superblock says that there are errors");
    assert_eq!(repair(&["--yes"], &image).code, 1);
    assert!(oracle::e2fsck(&image).unwrap().clean());
}

#[test]
fn unattended_repair_does_what_is_safe() {
    let Some(image) = image("ext4-1k") else { return };
    build::debugfs(&image, "set_bg 0 free_blocks_count 3\n").unwrap();
    let ran = repair(&["-p"], &image);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(oracle::e2fsck(&image).unwrap().clean());
}

#[test]
fn nothing_is_called_repaired_where_nothing_was_damaged() {
    for profile in ["ext4", "ext3", "ext2-1k", "bigalloc", "inline-data"] {
        let Some(image) = image(profile) else { return };
        let ran = repair(&["--yes"], &image);
        let last = ran.out.lines().last().unwrap_or_default();
        assert!(last.starts_with("CLEAN"), "{profile}: {}{}", ran.out, ran.err);
        assert!(oracle::e2fsck(&image).unwrap().clean(), "{profile}");
        assert_eq!(repair(&["--yes"], &image).code, 0, "{profile}: a second time");
    }
}

#[test]
fn without_a_terminal_a_policy_must_be_given() {
    let Some(image) = damaged() else { return };
    let before = image.to_vec().unwrap();
    let ran = repair(&[], &image);
    assert_eq!(ran.code, 16, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("--yes") && ran.err.contains("--preen"), "{}", ran.err);
    assert_eq!(repair(&["--yes", "--preen"], &image).code, 16);
    assert!(image.to_vec().unwrap() == before);
}

/// Answers the questions of a repair at a terminal. `None` without one.
fn answered(answers: &[&str], image: &Image) -> Option<(i32, String)> {
    let mut answers = answers.iter();
    let line = ["repair", image.path().to_str().unwrap()];
    at_a_terminal(&line, &[NOW], |_| answers.next().expect("no more questions").to_string())
}

#[test]
fn a_person_is_asked() {
    let Some(image) = damaged() else { return };
    let before = image.to_vec().unwrap();
    let Some((code, text)) = answered(&["q"], &image) else { return };
    assert_eq!(code, 32, "{text}");
    assert!(text.contains("Repair? [y/a/n/N/e/d/Y/q"), "{text}");
    assert!(image.to_vec().unwrap() == before, "quitting wrote");
    let theirs = image.copy().unwrap();
    let Some((code, text)) = answered(&["e", "d", "Y"], &image) else { return };
    assert_eq!(code, 1, "{text}");
    assert_eq!(repair(&["--yes"], &theirs).code, 1);
    assert!(image.to_vec().unwrap() == theirs.to_vec().unwrap(), "yes to everything is --yes");
}

#[test]
fn what_is_refused_stays_and_the_rest_is_repaired() {
    let Some(image) = damaged() else { return };
    let list = floe_on(&["check", "--json"], image.path()).out;
    let report: Value = serde_json::from_str(&list).unwrap();
    // No to all kinds except the wrong link count.
    let mut kinds: Vec<(String, &str)> = Vec::new();
    for finding in report["findings"].as_array().unwrap() {
        let id = finding["id"].as_str().unwrap();
        let answer = if id == "inode-link-count-wrong" { "a" } else { "N" };
        let code = finding["code"].as_str().unwrap().to_owned();
        if kinds.last().is_none_or(|(last, _)| *last != code) {
            kinds.push((code, answer));
        }
    }
    let mut answers: Vec<&str> = kinds.iter().map(|(_, answer)| *answer).collect();
    answers.extend(["N"; 3]);
    let Some((code, text)) = answered(&answers, &image) else { return };
    assert_eq!(code, 5, "repaired, and damage is left: {text}");
    assert!(text.contains("its repair was refused"), "{text}");
    let again = floe_on(&["check"], image.path());
    assert_eq!(again.code, 4);
    assert!(!again.out.contains("says that it has 7 names"), "{}", again.out);
    assert!(again.out.contains("\"gone\" names inode"), "{}", again.out);
}

#[test]
fn a_plan_is_saved_and_applied_later() {
    let Some(image) = damaged() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (plan, undo) = (folder.path().join("plan"), folder.path().join("undo"));
    let (plan, undo) = (plan.to_str().unwrap(), undo.to_str().unwrap());
    let before = image.to_vec().unwrap();
    let theirs = image.copy().unwrap();
    let ran = repair(&["--yes", "--plan", plan], &image);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("--apply-plan"), "{}", ran.out);
    assert!(image.to_vec().unwrap() == before, "planning wrote");
    let ran = repair(&["--apply-plan", plan, "--dry-run"], &image);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(image.to_vec().unwrap() == before);

    // A block that the plan changes, and another one: both are detected.
    let changed = image.copy().unwrap();
    build::debugfs(&changed, "set_inode_field counted links_count 8\n").unwrap();
    let elsewhere = image.copy().unwrap();
    elsewhere.write(1024 * 3 + 40, &[0xaa; 4]).unwrap();
    for other in [&changed, &elsewhere] {
        let bytes = other.to_vec().unwrap();
        let ran = repair(&["--apply-plan", plan], other);
        assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
        assert!(ran.err.contains("has changed since the plan was made"), "{}", ran.err);
        assert!(other.to_vec().unwrap() == bytes, "a refused plan wrote");
    }

    // A disk that has the file system in a partition has not changed: it was to be named.
    let disk = folder.path().join("disk");
    fs::write(&disk, super::disk_with_partition(&before)).unwrap();
    let ran = floe_on(&["repair", "--apply-plan", plan], &disk);
    assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("Give the --offset or --partition"), "{}", ran.err);
    assert!(!ran.err.contains("has changed"), "{}", ran.err);
    let ran = floe_on(&["repair", "--apply-plan", plan, "--partition", "1"], &disk);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);

    let ran = repair(&["--apply-plan", plan, "--undo", undo], &image);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert_eq!(repair(&["--yes"], &theirs).code, 1);
    assert!(image.to_vec().unwrap() == theirs.to_vec().unwrap(), "the same as without a plan");
    assert_eq!(repair(&["--apply-plan", plan], &image).code, 8, "a second time");
    let path = image.path().to_str().unwrap();
    assert_eq!(floe(&["undo", undo, path]).code, 0);
    assert!(image.to_vec().unwrap() == before);
    let ran = repair(&["--apply-plan", undo], &image);
    assert_eq!(ran.code, 8);
    assert!(ran.err.contains("not a repair plan"), "{}", ran.err);
}

#[test]
fn what_is_no_file_system_is_refused() {
    let ran = floe(&["repair", "--yes", "/nowhere/at/all"]);
    assert_eq!(ran.code, 8);
    assert!(ran.err.contains("no such file"), "{}", ran.err);
    let folder = tempfile::tempdir().unwrap();
    let ran = floe_on(&["repair", "--yes"], folder.path());
    assert_eq!(ran.code, 8);
    assert!(ran.err.contains("directory"), "{}", ran.err);
    let noise = tempfile::NamedTempFile::new().unwrap();
    fs::write(noise.path(), vec![0x55; 1 << 20]).unwrap();
    for options in [&["repair", "--yes"][..], &["repair", "--dry-run"], &["repair", "--preen"]] {
        let ran = floe_on(options, noise.path());
        assert_eq!(ran.code, 8, "{options:?}: {}", ran.out);
        assert!(ran.err.contains("superblock"), "{}", ran.err);
    }
    let ran = floe_on(&["repair", "--yes", "--json"], noise.path());
    let value: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(repair_faults(&value), Vec::<String>::new());
    assert_eq!(value["verdict"], "incomplete");
    assert!(fs::read(noise.path()).unwrap() == vec![0x55; 1 << 20]);
}

#[test]
fn an_image_that_was_cut_off_is_left_alone() {
    let Some(mut image) = image("ext4-1k") else { return };
    image.set_size(image.size() / 2).unwrap();
    let before = image.to_vec().unwrap();
    for options in [&["--dry-run"][..], &["--preen", "--dry-run"], &["--yes", "--dry-run"]] {
        let ran = repair(options, &image);
        assert_ne!(ran.code & 12, 0, "{options:?}: {}{}", ran.out, ran.err);
        assert!(image.to_vec().unwrap() == before);
    }
}

#[test]
fn a_mounted_file_system_is_refused() {
    let Some(image) = image("ext4-1k") else { return };
    if let Err(reason) = mount_available() {
        eprintln!("skipped: {reason}");
        return;
    }
    let mounted = Mounted::new(image.path(), "ro").unwrap();
    let ran = repair(&["--yes"], &image);
    let dry = repair(&["--dry-run"], &image);
    mounted.unmount().unwrap();
    assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
    assert_eq!(dry.code & !1, 0, "looking does no harm beneath a read-only mount: {}", dry.err);
}

/// A missing UUID is drawn by chance, but not where `SOURCE_DATE_EPOCH` asks for the same result each time.
#[test]
fn two_repairs_with_a_fixed_date_are_equal() {
    let Some(image) = image("ext2-1k") else { return };
    image.write(1024 + 0x68, &[0; 16]).unwrap();
    let repaired = |variables: &[(&str, &str)]| {
        let copy = image.copy().unwrap();
        let ran = floe_env(&["repair", "--yes", copy.path().to_str().unwrap()], variables);
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        let bytes = copy.to_vec().unwrap();
        bytes[1024 + 0x68..1024 + 0x78].to_vec()
    };
    let fixed = [("SOURCE_DATE_EPOCH", "1704067200")];
    let (one, other) = (repaired(&fixed), repaired(&fixed));
    assert!(one == other && one != [0; 16], "{one:?}, {other:?}");
    assert_ne!(repaired(&[]), repaired(&[]));
}

/// A backup that is out of date is no damage, but its repair writes: exit code 1, as of e2fsck where it says that the
/// file system was modified, and the last line says so, too.
#[test]
fn what_is_changed_without_damage_is_said_to_be_modified() {
    if tool::missing() {
        return;
    }
    let image = Image::empty(16 << 20).unwrap();
    build::mke2fs(image.path(), &["-q", "-t", "ext4", "-b", "1024"]).unwrap();
    let mut bytes = [0; 1024];
    image.read(8193 << 10, &mut bytes).unwrap();
    let mut backup = Superblock::decode(&bytes);
    backup.feature_compat &= !Compat::DIR_INDEX.bits();
    backup.encode_with_checksum(&mut bytes);
    image.write(8193 << 10, &bytes).unwrap();
    for (option, last) in [
        (
            "--dry-run",
            "WOULD BE MODIFIED: no damage was found, but the change above would be made.",
        ),
        ("--verbose", "MODIFIED: no damage was found, but the change above was made."),
    ] {
        let ran = repair(&["--yes", option], &image);
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        assert!(ran.out.contains("backups of the superblock"), "{}", ran.out);
        assert!(ran.out.lines().last().unwrap().starts_with(last), "{}", ran.out);
    }
    let again = repair(&["--yes"], &image);
    assert_eq!((again.code, again.out.lines().last()), (0, Some("CLEAN: nothing needs repair.")));
}

/// The second half of a device is gone, and with it nothing but copies of the superblock: whoever only repairs is told as well.
#[test]
fn remarks_that_stay_are_told() {
    if tool::missing() {
        return;
    }
    let image = Image::empty(60 << 20).unwrap();
    build::mke2fs(image.path(), &["-q", "-t", "ext4", "-b", "1024"]).unwrap();
    let Some(device) = Loop::over(image.path(), &[]) else { return };
    fs::File::options().write(true).open(image.path()).unwrap().set_len(30 << 20).unwrap();
    for command in [&["repair", "--yes"][..], &["repair", "--dry-run"], &["check"]] {
        let ran = floe(&[command, &[device.name()]].concat());
        let lines = ran.out.lines().filter(|line| line.ends_with("it cannot be read"));
        assert_eq!((ran.code, lines.count()), (0, 2), "{command:?}\n{}{}", ran.out, ran.err);
    }
}
