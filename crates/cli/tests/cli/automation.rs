//! `floe repair --policy`, and the unit of docs/automation.md.

use std::path::Path;

use super::{floe, floe_on, image};
use floe_testkit::{Image, build, oracle};
use serde_json::Value;

const DOCS: &str = include_str!("../../../../docs/automation.md");

/// An image after commands of debugfs.
fn damaged(commands: &str) -> Option<Image> {
    let image = image("ext4")?;
    build::debugfs_that_tells(&image, commands).unwrap();
    Some(image)
}

/// Harmless: a link count and a leaked block.
const HARMLESS: &str = "set_inode_field <2> links_count 77\nsetb 5000\n";
/// Additionally a dangling name.
const LOSSY: &str = "set_inode_field <2> links_count 77\nsetb 5000\nclri <20>\n";

fn json(arguments: &[&str], path: &Path) -> (i32, Value) {
    let ran = floe_on(arguments, path);
    let value = serde_json::from_str(&ran.out);
    (ran.code, value.unwrap_or_else(|_| panic!("{}{}", ran.out, ran.err)))
}

fn is_clean(image: &Image) -> bool {
    oracle::run(image.path(), &["-fn"]).unwrap().clean()
}

#[test]
fn the_first_stage_that_mends_all_is_made() {
    let Some(image) = damaged(HARMLESS) else { return };
    let arguments = ["repair", "--policy", "preen,safe,all", "--max-loss", "0", "--json"];
    let (code, value) = json(&arguments, image.path());
    assert_eq!(code, 1);
    assert_eq!(value["policy"]["action"], "mount");
    assert_ne!(value["policy"]["stage"], "all");
    assert_eq!(value["policy"]["loss"]["things"], 0);
    assert!(is_clean(&image));
    let (code, value) = json(&arguments, image.path());
    assert_eq!((code, &value["policy"]["action"]), (0, &"mount".into()), "{value:#}");
}

#[test]
fn safe_leaves_what_costs_something() {
    let Some(image) = damaged(LOSSY) else { return };
    let whole = image.copy().unwrap();
    let arguments = ["repair", "--policy", "preen,safe,all", "--max-loss", "0", "--json"];
    let (code, value) = json(&arguments, image.path());
    assert_eq!(code, 5, "{value:#}");
    let policy = &value["policy"];
    assert_eq!((&policy["stage"], &policy["action"]), (&"safe".into(), &"call-a-person".into()));
    let all = &policy["attempts"][2];
    assert_eq!(all["stage"], "all");
    assert_eq!((&all["complete"], &all["allowed"]), (&true.into(), &false.into()));
    assert!(all["loss"]["things"].as_u64().unwrap() > 0);
    assert!(!is_clean(&image), "the name that leads nowhere is left");
    // With a sufficient allowance it is repaired.
    let (code, value) =
        json(&["repair", "--policy", "safe,all", "--max-loss", "9", "--json"], whole.path());
    assert_eq!((code, &value["policy"]["stage"]), (1, &"all".into()), "{value:#}");
    assert!(is_clean(&whole));
}

#[test]
fn nothing_is_written_where_no_stage_may_go_on() {
    let Some(image) = damaged("clri <20>\n") else { return };
    let before = floe_on(&["check", "--json"], image.path()).out;
    let (code, value) =
        json(&["repair", "--policy", "all", "--max-loss", "0", "--json"], image.path());
    assert_eq!(code & 4, 4, "{value:#}");
    assert_eq!(value["policy"]["stage"], Value::Null);
    // Except for the error flag.
    let found = |text: &str| -> Vec<Value> {
        let value: Value = serde_json::from_str(text).unwrap();
        let damage = |one: &&Value| one["weight"] == "damage";
        value["findings"].as_array().unwrap().iter().filter(damage).cloned().collect()
    };
    let after = floe_on(&["check", "--json"], image.path()).out;
    assert_eq!(found(&after), found(&before));
}

#[test]
fn wrong_usage_is_told() {
    for arguments in [
        &["repair", "--max-loss", "0", "x.img"][..],
        &["repair", "--policy", "best", "x.img"],
        &["repair", "--policy", "safe", "--yes", "x.img"],
        &["repair", "--policy", "safe", "--max-loss-bytes", "7Q", "x.img"],
    ] {
        assert_eq!(floe(arguments).code, 16, "{arguments:?}");
    }
}

/// The page's transcripts are tested elsewhere (`transcripts`); this is its systemd unit.
#[test]
fn the_unit_of_the_document_works() {
    let command =
        DOCS.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/floe ")).unwrap();
    for (damage, wanted) in [(HARMLESS, 1), (LOSSY, 5)] {
        let Some(image) = damaged(damage) else { return };
        let path = image.path().display().to_string();
        let words: Vec<String> = command
            .split_whitespace()
            .map(|word| if word == "%f" { path.clone() } else { word.to_owned() })
            .collect();
        let ran = floe(&words);
        assert_eq!(ran.code, wanted, "{}{}", ran.out, ran.err);
        assert_eq!(is_clean(&image), wanted == 1);
    }
}

/// A limit of losses goes with a policy: beside `--yes` it would promise what nobody keeps.
#[test]
fn limits_of_losses_are_refused_without_a_policy() {
    for limit in ["--max-loss", "--max-loss-bytes"] {
        for other in ["--yes", "--preen", "--dry-run"] {
            let refused = floe(&["repair", other, limit, "0", "image"]);
            assert_eq!(refused.code, 16, "{other} {limit}: {}", refused.err);
        }
    }
}
