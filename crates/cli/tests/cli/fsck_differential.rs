//! Compares `fsck.ext4` with the real e2fsck: exit codes, skipped checks, and the lines for
//! scripts, for a table of superblock states and options.

use std::fs;
use std::path::Path;

use floe_testkit::{Image, Profile, build, tool};

use super::{Fsck, image};

/// The fixed time for all programs: 2027-01-15.
const NOW: u64 = 1_800_000_000;
const DAY: u64 = 86_400;

/// A state of a file system.
struct State {
    name: &'static str,
    /// debugfs commands that create it.
    script: String,
}

fn state(name: &'static str, script: &str) -> State {
    State { name, script: script.to_owned() }
}

/// States that decide whether a file system is checked. Unless stated otherwise, all were last
/// written, mounted and checked ten days ago.
fn states() -> Vec<State> {
    let before = NOW - 10 * DAY;
    let mounts =
        |count: u16, most: &str| format!("ssv mnt_count {count}\nssv max_mnt_count {most}\n");
    let checked =
        |at: u64, interval: u64| format!("ssv lastcheck @{at}\nssv checkinterval {interval}\n");
    let mounted =
        |at: u64, interval: u64| format!("ssv mtime @{at}\nssv checkinterval {interval}\n");
    let mut states = vec![
        state("good", ""),
        state("not unmounted", "ssv state 0\n"),
        state("error flag", "ssv state 3\n"),
        state("error flag, not unmounted", "ssv state 2\n"),
        State { name: "no mount count", script: mounts(300, "0") },
        State { name: "negative mount count", script: mounts(300, "65535") },
        State { name: "mounted often", script: mounts(20, "20") },
        State { name: "mounted more often", script: mounts(45, "20") },
        State { name: "one mount left", script: mounts(19, "20") },
        State { name: "five mounts left", script: mounts(15, "20") },
        State { name: "six mounts left", script: mounts(14, "20") },
        State { name: "interval passed", script: checked(before, 9 * DAY) },
        State { name: "interval just passed", script: checked(before, 10 * DAY) },
        State { name: "interval not passed", script: checked(before, 10 * DAY + 1) },
        State { name: "never checked", script: checked(0, 180 * DAY) },
        State { name: "checked in an hour", script: checked(NOW + 3600, 180 * DAY) },
        State { name: "checked in a day", script: checked(NOW + DAY, 180 * DAY) },
        State { name: "checked in two days", script: checked(NOW + 2 * DAY, 180 * DAY) },
        State { name: "checked in two days, no interval", script: checked(NOW + 2 * DAY, 0) },
        State { name: "mounted in two days", script: mounted(NOW + 2 * DAY, 0) },
        State { name: "mounted in an hour, interval", script: mounted(NOW + 3600, 180 * DAY) },
        State { name: "mounted in two days, interval", script: mounted(NOW + 2 * DAY, 180 * DAY) },
        State {
            name: "journal to be replayed",
            script: "jo\njw -b 7000 /dev/null\njc\n".to_owned(),
        },
        state("without a label", "ssv volume_name \"\"\n"),
        state("free counts wrong", "ssv free_blocks_count 17\n"),
        state("link count wrong", "ssv state 0\nsif <2> links_count 9\n"),
        state("link count wrong, said to be clean", "sif <2> links_count 9\n"),
        state("file without a name", "ssv state 0\nunlink /lost+found\n"),
        state("test flag", "ssv flags 7\n"),
        state("a backup differs", "ssv feature_compat 0x3d\n"),
    ];
    for state in &mut states {
        let times = format!("ssv wtime @{before}\nssv mtime @{before}\nssv lastcheck @{before}\n");
        // debugfs stores the current time, unless it is given another.
        state.script = format!("{times}{}", state.script);
    }
    states
}

/// Options for all states.
const OPTIONS: &[&[&str]] = &[&["-n"], &["-p"], &["-y"], &["-fn"], &["-f", "-p"]];

/// Options for selected states, because they involve no new decisions.
const MORE_OPTIONS: &[&[&str]] =
    &[&["-a"], &["-fy"], &["-p", "-E", "journal_only"], &["-p", "-N", "other"]];

/// Runs the installed e2fsck.
fn e2fsck(image: &Path, options: &[&str], conf: &Path) -> (i32, String) {
    let mut command = tool::command("e2fsck");
    command.args(options).arg(image).env("E2FSCK_TIME", NOW.to_string()).env("E2FSCK_CONFIG", conf);
    let outcome = command.output().unwrap();
    (outcome.status.code().unwrap(), String::from_utf8_lossy(&outcome.stdout).into_owned())
}

/// The line for scripts: "NAME: clean, 11/128 files, ..." or "NAME: 11/128 files (9.1% ...), ...".
fn summary(out: &str) -> Option<&str> {
    out.lines()
        .find(|line| line.contains(" files") && line.contains(" blocks") && line.contains('/'))
}

fn compare(state: &State, image: &Image, options: &[&str], conf: &Path, faults: &mut Vec<String>) {
    let (theirs, ours) = (image.copy().unwrap(), image.copy().unwrap());
    let (code, out) = e2fsck(theirs.path(), options, conf);
    let time = NOW.to_string();
    let variables = [("E2FSCK_TIME", time.as_str()), ("E2FSCK_CONFIG", conf.to_str().unwrap())];
    let ran = Fsck::new("fsck.ext4").run(options, ours.path(), &variables);
    let place = |text: &str| {
        text.replace(&theirs.path().display().to_string(), "IMAGE")
            .replace(&ours.path().display().to_string(), "IMAGE")
    };
    let (their_line, our_line) = (summary(&out).map(place), summary(&ran.out).map(place));
    if code != ran.code || their_line != our_line {
        faults.push(format!(
            "{} {options:?}: e2fsck {code} {their_line:?}, floe {} {our_line:?}\n{}{}",
            state.name, ran.code, ran.out, ran.err
        ));
    }
    // e2fsck must find clean what Floe left clean.
    if ran.code < 4 && !options.contains(&"-n") && !options.contains(&"-fn") {
        let (again, out) = e2fsck(ours.path(), &["-fn"], Path::new("/dev/null"));
        let tolerated = state.name.contains("said to be clean") || options.contains(&"-E");
        if again != 0 && !tolerated {
            faults
                .push(format!("{} {options:?}: e2fsck -fn afterwards {again}: {out}", state.name));
        }
    }
}

/// The counts in all kinds of file systems, including fragmentation.
#[test]
fn the_same_summaries_of_all_profiles() {
    let none = Path::new("/dev/null");
    let mut faults = Vec::new();
    for profile in Profile::ALL {
        let Some(image) = image(profile.name()) else { return };
        let state = state(profile.name(), "");
        compare(&state, &image, &["-fn"], none, &mut faults);
        compare(&state, &image, &["-n"], none, &mut faults);
    }
    assert!(faults.is_empty(), "{} differences:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn the_same_codes_and_summaries_as_e2fsck() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-fsck-").unwrap();
    let none = folder.path().join("none");
    fs::write(&none, "").unwrap();
    let broken = folder.path().join("broken");
    fs::write(&broken, "[options]\nbroken_system_clock = true\n").unwrap();
    let strict = folder.path().join("strict");
    fs::write(&strict, "[options]\naccept_time_fudge = 0\n").unwrap();
    let mut faults = Vec::new();
    for state in states() {
        let damaged = image.copy().unwrap();
        build::debugfs(&damaged, &state.script).unwrap();
        for options in OPTIONS {
            compare(&state, &damaged, options, &none, &mut faults);
        }
        if ["good", "not unmounted", "link count wrong"].contains(&state.name) {
            for options in MORE_OPTIONS {
                compare(&state, &damaged, options, &none, &mut faults);
            }
        }
        if state.name.contains(" in ") || state.name.contains("interval") {
            compare(&state, &damaged, &["-p"], &broken, &mut faults);
            compare(&state, &damaged, &["-p"], &strict, &mut faults);
        }
    }
    assert!(faults.is_empty(), "{} differences:\n{}", faults.len(), faults.join("\n"));
}
