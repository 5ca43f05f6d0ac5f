//! The trials' program as `cargo xtask ci` calls it, which also makes cargo build it along with the
//! tests.

#![allow(clippy::unwrap_used)] // tests may

use std::process::Command;

use floe_testkit::{oracle, tool};

/// `images` writes undamaged images, and damaged ones where a seed is given.
#[test]
fn images_are_written_with_and_without_damage() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-images-").unwrap();
    let is_clean = |seed: Option<u32>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe-trials"));
        command.arg("images").arg(folder.path()).args(["--profile", "ext4-1k"]);
        command.args(seed.into_iter().flat_map(|seed| ["--seed".to_owned(), seed.to_string()]));
        assert!(command.status().unwrap().success());
        oracle::run(&folder.path().join("ext4-1k.img"), &["-fn"]).unwrap().clean()
    };
    assert!(is_clean(None));
    // Some seeds change only what no check minds.
    assert!(!(1..=8).all(|seed| is_clean(Some(seed))), "no seed damages anything");
}

/// A comparison needs a program to compare; nothing stands in for it.
#[test]
fn a_program_that_calls_everything_clean_fails_the_differential() {
    if tool::missing() {
        return;
    }
    let trial = Command::new(env!("CARGO_BIN_EXE_floe-trials"))
        .args(["differential", "--seeds", "4", "--profile", "ext4-1k", "--floe", "true"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&trial.stdout);
    assert!(!trial.status.success(), "{text}");
}
