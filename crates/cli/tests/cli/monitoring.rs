//! Output for monitoring: a metrics file.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{floe_on, image};

fn metrics(file: &Path) -> BTreeMap<String, f64> {
    let text = fs::read_to_string(file).unwrap();
    let values = text.lines().filter(|line| !line.starts_with('#'));
    values
        .map(|line| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = name.split_once("{device=\"").unwrap();
            let more = labels.split_once("\",").map_or("", |(_, more)| more);
            (format!("{name} {more}").trim().to_owned(), value.parse().unwrap())
        })
        .collect()
}

#[test]
fn metrics_say_how_a_check_ended() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("floe.prom");
    let check = |path: &Path| {
        let ran = floe_on(&["check", "--metrics", file.to_str().unwrap()], path);
        (ran.code, metrics(&file))
    };
    let (code, found) = check(image.path());
    assert_eq!(code, 0);
    assert_eq!((found["floe_check_complete"], found["floe_check_clean"]), (1.0, 1.0));
    assert_eq!(found["floe_check_exit_code"], 0.0);
    assert_eq!(found["floe_check_block_size_bytes"], 1024.0);
    assert!(found["floe_check_inodes_used"] > 11.0 && found["floe_check_read_bytes"] > 1e4);
    assert!(found["floe_check_end_timestamp_seconds"] > 1.7e9);
    let mut place = [0; 4];
    image.read(2048, &mut place).unwrap();
    image.write(u64::from(u32::from_le_bytes(place)) * 1024 + 100, &[0x5a; 99]).unwrap();
    let (code, found) = check(image.path());
    assert_eq!(code, 4);
    assert_eq!((found["floe_check_complete"], found["floe_check_clean"]), (1.0, 0.0));
    assert!(found["floe_check_damage"] > 0.0);
    let severities = ["cosmetic", "metadata", "data-risk", "fatal"];
    let count = |name| found[&format!("floe_check_findings severity=\"{name}\"}}")];
    let all: f64 = severities.map(count).iter().sum();
    assert!(all >= found["floe_check_damage"]);
    let (code, found) = check(Path::new("/nowhere/at/all"));
    assert_eq!(code, 8);
    assert_eq!((found["floe_check_complete"], found["floe_check_clean"]), (0.0, 0.0));
    assert_eq!(found["floe_check_exit_code"], 8.0);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
}

#[test]
fn metrics_that_cannot_be_written_are_an_error() {
    let Some(image) = image("ext4-1k") else { return };
    let ran = floe_on(&["check", "--metrics", "/nowhere/at/all.prom"], image.path());
    assert_eq!(ran.code, 8);
    assert!(ran.out.contains("CLEAN"), "the report stands: {}", ran.out);
    assert!(ran.err.contains("/nowhere/at/all.prom"), "{}", ran.err);
}
