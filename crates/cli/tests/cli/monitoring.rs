//! What is left for those who watch: a file of metrics, units of systemd.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::{floe, floe_on, image};

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

/// The units as they are, but with the program that was just built.
#[test]
fn systemd_takes_the_units() {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        eprintln!("skipped: systemd-analyze cannot be started");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let units = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/systemd");
    for (unit, instance) in [
        ("floe-check@.service", "floe-check@srv.service"),
        ("floe-check@.timer", "floe-check@srv.timer"),
    ] {
        let text = fs::read_to_string(units.join(unit)).unwrap();
        let text = text.replace("/usr/bin/floe", env!("CARGO_BIN_EXE_floe"));
        fs::write(folder.path().join(unit), text).unwrap();
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(folder.path().join(instance))
            .env("SYSTEMD_UNIT_PATH", format!("{}:", folder.path().display()))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let ours: Vec<&str> = said.lines().filter(|line| line.contains("floe")).collect();
        assert!(output.status.success() && ours.is_empty(), "{said}");
    }
    // And what they start is understood.
    let service = fs::read_to_string(units.join("floe-check@.service")).unwrap();
    let line = service.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/floe "));
    let mut words: Vec<&str> = line.unwrap().split(' ').collect();
    words.retain(|word| *word != "--journald");
    let folder = folder.path().to_str().unwrap();
    let words = words.iter().map(|word| {
        word.replace("${METRICS_FOLDER}", folder).replace("%i", "proc").replace("%f", "/proc")
    });
    let ran = floe(&words.collect::<Vec<_>>());
    assert_eq!(ran.code, 8, "{}", ran.err);
    assert!(ran.err.contains("/proc is a proc file system"), "{}", ran.err);
    assert!(Path::new(folder).join("floe-proc.prom").exists());
}
