//! `floe check --checkpoint`: killed at any moment, it resumes.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use floe_testkit::rng::Rng;
use floe_testkit::{Image, damage, tool};
use serde_json::Value;

use super::{Ran, floe, image_of_many_groups, ran};

/// A damaged image with many directories, whose check has many units of work.
fn image() -> Option<Image> {
    let image = image_of_many_groups(3000, 128, "32768")?;
    damage::damage(&image, 11).unwrap();
    Some(image)
}

/// Starts a check that saves its progress after every unit of work.
fn begin(image: &Path, checkpoint: &Path, threads: u64) -> Child {
    Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(["check", "--json", "--checkpoint-every", "0", "--threads", &threads.to_string()])
        .arg("--checkpoint")
        .arg(checkpoint)
        .arg(image)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn end(child: Child) -> Ran {
    ran(&child.wait_with_output().unwrap())
}

/// The report without times and cost.
fn said(out: &str) -> Value {
    let mut value: Value = serde_json::from_str(out).unwrap();
    value["cost"] = Value::Null;
    value
}

/// The verdict of a check without a checkpoint, and the duration of one with a checkpoint.
fn uninterrupted(image: &Path, checkpoint: &Path) -> (Value, Duration) {
    let path = image.to_str().unwrap();
    let expected = said(&floe(&["check", "--json", path]).out);
    let begun = Instant::now();
    let ended = end(begin(image, checkpoint, 2));
    assert_eq!((said(&ended.out), ended.code), (expected.clone(), 4), "{}", ended.err);
    assert!(!checkpoint.exists(), "a complete check leaves no checkpoint");
    (expected, begun.elapsed())
}

#[test]
fn a_check_that_is_killed_goes_on() {
    let Some(image) = image() else { return };
    let folder = tool::scratch("floe-checkpoint-").unwrap();
    let checkpoint = folder.path().join("state");
    let (expected, time) = uninterrupted(image.path(), &checkpoint);
    let mut rng = Rng::new(7);
    let (mut kills, mut resumed) = (0, 0);
    for _ in 0..3 {
        // Killed repeatedly, so that the check advances a little each time, and finally left to
        // complete.
        for attempt in 0.. {
            let mut child = begin(image.path(), &checkpoint, 1 + rng.below(3));
            if attempt < 5 {
                let share = rng.below(1000) as u32;
                sleep(time * share / 1000);
                kills += u32::from(child.try_wait().unwrap().is_none());
                child.kill().unwrap();
                let output = child.wait_with_output().unwrap();
                resumed += u32::from(String::from_utf8_lossy(&output.stderr).contains("going on"));
                if output.status.code().is_none() {
                    continue;
                }
                // It completed before it was killed.
                assert_eq!(said(&String::from_utf8(output.stdout).unwrap()), expected);
                break;
            }
            let ended = end(child);
            assert_eq!((said(&ended.out), ended.code), (expected.clone(), 4), "{}", ended.err);
            resumed += u32::from(ended.err.contains("going on"));
            break;
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "something was left");
    }
    assert!(kills > 3 && resumed > 3, "{kills} kills, {resumed} resumed");
}

#[test]
fn a_signal_is_obeyed_once_the_checkpoint_is_written() {
    let Some(image) = image() else { return };
    let folder = tool::scratch("floe-checkpoint-").unwrap();
    let checkpoint = folder.path().join("state");
    let (expected, _) = uninterrupted(image.path(), &checkpoint);
    let mut stopped = 0;
    for signal in ["-TERM", "-INT"] {
        let child = begin(image.path(), &checkpoint, 2);
        // The checkpoint exists, so the check is in the middle.
        let begun = Instant::now();
        let kept = || fs::metadata(&checkpoint).is_ok_and(|metadata| metadata.len() > 4000);
        while !kept() && begun.elapsed() < Duration::from_secs(20) {
            sleep(Duration::from_millis(1));
        }
        let sent = Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
        let ended = end(child);
        if ended.code == 4 {
            // Too late: the check has ended.
            continue;
        }
        stopped += 1;
        assert_eq!(ended.code, 32, "{}", ended.err);
        assert!(ended.err.contains("give the same command again"), "{}", ended.err);
        let ended = end(begin(image.path(), &checkpoint, 1));
        assert!(ended.err.contains("going on from"), "{}", ended.err);
        assert_eq!((said(&ended.out), ended.code), (expected.clone(), 4));
    }
    assert!(stopped > 0, "no signal came in time");
}

#[test]
fn wrong_use_is_told() {
    let Some(image) = image() else { return };
    let folder = tool::scratch("floe-checkpoint-").unwrap();
    let image = image.path().to_str().unwrap();
    let state = folder.path().join("state");
    let path = state.to_str().unwrap();
    for wrong in [
        &["check", "--checkpoint-every", "5", image][..],
        &["check", "--checkpoint-restart", image],
        &["check", "--checkpoint", path, "--checkpoint-every", "often", image],
        &["check", "--checkpoint", path, "--online", image],
        &["check", image, "--checkpoint"],
    ] {
        let ended = floe(wrong);
        assert_eq!(ended.code, 16, "{wrong:?}: {}", ended.err);
        assert!(ended.err.contains("--checkpoint") && !state.exists(), "{}", ended.err);
    }
    // A foreign file, another output of Floe, and the image itself.
    for (content, file, code, words) in [
        (&b"precious"[..], path, 8, "did not make"),
        (b"<!DOCTYPE html>", path, 8, "is not a checkpoint of Floe"),
        (b"", image, 16, "would overwrite DEVICE"),
    ] {
        fs::write(&state, content).unwrap();
        let before = fs::read(file).unwrap();
        for more in [&[][..], &["--checkpoint-restart"]] {
            let ended = floe(&[&["check", "--checkpoint", file, image][..], more].concat());
            assert_eq!(ended.code, code, "{}", ended.err);
            assert!(ended.err.contains(words), "{}", ended.err);
            assert!(fs::read(file).unwrap() == before, "{file} was changed");
        }
    }
    let nowhere = folder.path().join("no/such/folder/state");
    let ended = floe(&["check", "--checkpoint", nowhere.to_str().unwrap(), image]);
    assert_eq!(ended.code, 8, "{}", ended.err);
    assert!(ended.err.contains("No such file"), "{}", ended.err);
}
