//! `floe check --shard` and `--merge`: several processes check one file system.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use floe_testkit::{Image, build, damage, tool};
use serde_json::Value;

use super::{Ran, floe, image_of_many_groups, ran};

/// An image with many groups and directories, undamaged or damaged.
fn image(damaged: bool) -> Option<Image> {
    let image = image_of_many_groups(1000, 64, "16384")?;
    if damaged {
        damage::damage(&image, 11).unwrap();
    }
    Some(image)
}

/// Starts a shard; comes back with the path of its part.
fn begin(image: &Path, folder: &Path, index: u32, count: u32) -> (Child, PathBuf) {
    let part = folder.join(format!("part-{index}"));
    let child = Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(["check", "--shard", &format!("{index}/{count}"), "--threads", "1", "--out"])
        .args([&part, image])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    (child, part)
}

/// Runs all shards at once.
fn shards(image: &Path, folder: &Path, count: u32) -> Vec<PathBuf> {
    let all: Vec<_> = (0..count).map(|index| begin(image, folder, index, count)).collect();
    let end = |(child, part): (Child, PathBuf)| {
        let ran = ran(&child.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.out.contains(part.to_str().unwrap()), "{}", ran.out);
        part
    };
    all.into_iter().map(end).collect()
}

fn merge(options: &[&str], image: &Path, parts: &[PathBuf]) -> Ran {
    let mut all = vec!["check"];
    all.extend(options);
    all.extend([image.to_str().unwrap(), "--merge"]);
    all.extend(parts.iter().map(|part| part.to_str().unwrap()));
    floe(&all)
}

/// A report as text, without its last lines, which tell the cost.
fn without_cost(text: &str) -> String {
    let kept = text.lines().filter(|line| !line.contains(" read in ") && !line.contains(" thread"));
    kept.collect::<Vec<_>>().join("\n")
}

fn json_without_cost(text: &str) -> String {
    let mut value: Value = serde_json::from_str(text).unwrap();
    value["cost"] = Value::Null;
    value.to_string()
}

#[test]
fn processes_that_start_together_say_what_one_says() {
    for damaged in [false, true] {
        let Some(image) = image(damaged) else { return };
        let path = image.path();
        let alone = |options: &[&str]| {
            let mut all = vec!["check", "--accounting", "fingerprint"];
            all.extend(options);
            all.push(path.to_str().unwrap());
            floe(&all)
        };
        let code = if damaged { 4 } else { 0 };
        for count in [1, 2, 7] {
            let folder = tool::scratch("floe-shards-").unwrap();
            let parts = shards(path, folder.path(), count);
            let (one, all) = (alone(&["--json"]), merge(&["--json"], path, &parts));
            assert_eq!((one.code, all.code), (code, code), "{}", all.err);
            assert_eq!(json_without_cost(&one.out), json_without_cost(&all.out));
            let (one, all) = (alone(&[]), merge(&[], path, &parts));
            assert_eq!(without_cost(&one.out), without_cost(&all.out));
            // The parts, and the key that the first of them drew.
            assert_eq!(fs::read_dir(folder.path()).unwrap().count() as u32, count + 1);
        }
    }
}

#[test]
fn a_shard_that_was_killed_is_run_again() {
    let Some(image) = image(true) else { return };
    let folder = tool::scratch("floe-shards-").unwrap();
    let parts = shards(image.path(), folder.path(), 3);
    let expected = json_without_cost(&merge(&["--json"], image.path(), &parts).out);
    for _ in 0..8 {
        let (mut child, part) = begin(image.path(), folder.path(), 1, 3);
        child.kill().unwrap();
        let _ = child.wait_with_output().unwrap();
        // Either the part of before is still there, or a new one is, whole.
        assert_eq!(part, parts[1]);
        let merged = merge(&["--json"], image.path(), &parts);
        assert_eq!(json_without_cost(&merged.out), expected, "{}", merged.err);
    }
    let (child, _) = begin(image.path(), folder.path(), 1, 3);
    assert_eq!(ran(&child.wait_with_output().unwrap()).code, 0);
    assert_eq!(json_without_cost(&merge(&["--json"], image.path(), &parts).out), expected);
}

#[test]
fn parts_that_do_not_fit_are_named() {
    let Some(image) = image(false) else { return };
    let (one, other) =
        (tool::scratch("floe-shards-").unwrap(), tool::scratch("floe-shards-").unwrap());
    let path = image.path();
    let (parts, others) = (shards(path, one.path(), 3), shards(path, other.path(), 3));
    let said = |parts: &[&PathBuf], code: i32, what: &str| {
        let parts: Vec<PathBuf> = parts.iter().copied().cloned().collect();
        let ran = merge(&[], path, &parts);
        assert_eq!(ran.code, code, "{}", ran.err);
        assert!(ran.err.contains(what) && ran.out.is_empty(), "{what}: {}{}", ran.err, ran.out);
    };
    said(&[&parts[0], &parts[2]], 16, "of 3 shards there is none of 1");
    said(&[&parts[0], &parts[1], &parts[2], &parts[1]], 16, "both of shard 1/3");
    let text = format!("{} is no part of this check: its key", others[1].display());
    said(&[&parts[0], &others[1], &parts[2]], 16, &text);
    let bytes = fs::read(&parts[1]).unwrap();
    fs::write(&parts[1], &bytes[..bytes.len() - 9]).unwrap();
    said(&[&parts[0], &parts[1], &parts[2]], 16, "is truncated: run its shard again");
    fs::write(&parts[1], "something else").unwrap();
    said(&[&parts[0], &parts[1], &parts[2]], 16, "is not a part");
    fs::remove_file(&parts[1]).unwrap();
    said(&[&parts[0], &parts[1], &parts[2]], 8, "cannot read");
    // A checkpoint is no part, and a part is no checkpoint.
    let part = parts[0].to_str().unwrap();
    let ran = floe(&["check", "--checkpoint", part, path.to_str().unwrap()]);
    assert!(ran.code == 8 && ran.err.contains("in 3 shards"), "{}", ran.err);
    build::debugfs(&image, "ssv mtime 20240229120000").unwrap();
    said(&[&others[0], &others[1], &others[2]], 8, "run all shards again");
    for wrong in ["3/3", "x", "1/0"] {
        let ran = floe(&["check", "--shard", wrong, "--out", "x", path.to_str().unwrap()]);
        assert_eq!(ran.code, 16, "{wrong}: {}", ran.err);
    }
}

/// Runs all shards of a round of refinement at once.
fn refine(image: &Path, folder: &Path, parts: &[PathBuf], round: &str, count: u32) -> Vec<PathBuf> {
    let begin = |index: u32| {
        let part = folder.join(format!("{round}-{index}"));
        let child = Command::new(env!("CARGO_BIN_EXE_floe"))
            .args(["check", "--refine", &format!("{index}/{count}"), "--out"])
            .arg(&part)
            .arg(image)
            .arg("--merge")
            .args(parts)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        (child, part)
    };
    let all: Vec<_> = (0..count).map(begin).collect();
    let end = |(child, part): (Child, PathBuf)| {
        let ran = ran(&child.wait_with_output().unwrap());
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.out.contains(part.to_str().unwrap()), "{}", ran.out);
        part
    };
    all.into_iter().map(end).collect()
}

#[test]
fn both_rounds_of_refinement_leave_the_report_as_it_is() {
    let Some(image) = image(true) else { return };
    let (path, folder) = (image.path(), tool::scratch("floe-shards-").unwrap());
    let mut parts = shards(path, folder.path(), 3);
    let said = |parts: &[PathBuf]| {
        let ran = merge(&["--json"], path, parts);
        assert_eq!(ran.code, 4, "{}", ran.err);
        json_without_cost(&ran.out)
    };
    let expected = said(&parts);
    let inodes = refine(path, folder.path(), &parts, "inodes", 2);
    parts.extend(inodes);
    assert_eq!(said(&parts), expected);
    let names = refine(path, folder.path(), &parts, "names", 4);
    // A round that is not complete is refused.
    let without_one = [&parts[..], &names[1..]].concat();
    let ran = merge(&[], path, &without_one);
    assert!(ran.code == 16 && ran.err.contains("there is none of 0"), "{}", ran.err);
    parts.extend(names);
    assert_eq!(said(&parts), expected);
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (out, device) = (text(&folder.path().join("more")), text(path));
    let third = ["check", "--refine", "0/1", "--out", &out, &device, "--merge"].map(String::from);
    let third = [third.to_vec(), parts.iter().map(|part| text(part)).collect()].concat();
    let ran = floe(&third);
    assert!(ran.code == 16 && ran.err.contains("merge them without --refine"), "{}", ran.err);
    assert!(!folder.path().join("more").exists());
}

/// A shard that cannot write its part leaves no key, in particular none beside a device.
#[test]
fn no_key_is_left_where_no_part_can_be() {
    let Some(image) = image(false) else { return };
    let path = image.path().to_str().unwrap();
    let folder = tool::scratch("floe-shards-").unwrap();
    let key = Path::new("/dev/floe-shards.key");
    assert!(!key.exists());
    let ran = floe(&["check", "--shard", "0/2", "--out", "/dev/full", path]);
    assert!(ran.code == 16 && ran.err.contains("--shard-key"), "{}", ran.err);
    assert!(!key.exists());
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    // The only shard has no others that need its key.
    for (share, out) in [("0/1", "/dev/full"), ("0/2", &at("none/part"))] {
        let key = at("key");
        let ran = floe(&["check", "--shard", share, "--out", out, "--shard-key", &key, path]);
        assert!(ran.code == 8 && ran.err.contains("cannot write"), "{}", ran.err);
        assert!(!Path::new(&key).exists(), "{out}");
    }
    fs::write(folder.path().join("empty.img"), [0; 1 << 16]).unwrap();
    let parts = folder.path().join("parts");
    fs::create_dir(&parts).unwrap();
    let out = parts.join("part").to_str().unwrap().to_owned();
    let ran = floe(&["check", "--shard", "0/2", "--out", &out, &at("empty.img")]);
    assert_eq!(ran.code, 8, "{}", ran.err);
    assert_eq!(fs::read_dir(&parts).unwrap().count(), 0);
}

/// Retries and speculative runs overlap: the same shard is written by a process of another machine at this moment, and
/// what that one has written so far is named by `part-*`.
#[test]
fn a_shard_that_runs_twice_at_once_waits_and_is_not_merged_unfinished() {
    let Some(image) = image(true) else { return };
    let folder = tool::scratch("floe-shards-").unwrap();
    let mut parts = shards(image.path(), folder.path(), 2);
    let expected = merge(&["--json"], image.path(), &parts);
    let unfinished = folder.path().join("part-1.unfinished");
    let head = &fs::read(&parts[1]).unwrap()[..64];
    fs::write(&unfinished, head).unwrap();
    let other = fs::File::open(&unfinished).unwrap();
    rustix::fs::flock(&other, rustix::fs::FlockOperation::LockExclusive).unwrap();
    parts.extend([unfinished.clone(), folder.path().join("floe-shards.key")]);
    let merged = merge(&["--json"], image.path(), &parts);
    assert_eq!(json_without_cost(&merged.out), json_without_cost(&expected.out), "{}", merged.err);
    for why in ["part-1.unfinished is not finished", "floe-shards.key is the key"] {
        assert!(merged.err.contains(why), "{why}: {}", merged.err);
    }
    let lacking = merge(&[], image.path(), &[parts[0].clone(), unfinished.clone()]);
    assert!(lacking.code == 16 && lacking.err.contains("none of 1"), "{}", lacking.err);

    let (mut child, _) = begin(image.path(), folder.path(), 1, 2);
    // However long the shard takes, it has not failed.
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(child.try_wait().unwrap().is_none_or(|status| status.success()));
    drop(other);
    let ended = ran(&child.wait_with_output().unwrap());
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!(!unfinished.exists());
    let merged = merge(&["--json"], image.path(), &parts[..2]);
    assert_eq!(json_without_cost(&merged.out), json_without_cost(&expected.out), "{}", merged.err);
}

#[test]
fn the_usage_names_the_device_before_the_parts() {
    let ran = floe(&["check", "--merge", "part-0", "part-1", "image"]);
    assert_eq!(ran.code, 16, "{}", ran.err);
    assert!(ran.err.contains("<DEVICE> --merge <PART>..."), "{}", ran.err);
}
