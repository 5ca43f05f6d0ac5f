//! `--memory` and the memory estimates: the memory use of a check stays below both.

use floe_testkit::{Image, Profile, damage, tool};
use floe_workload::fill::{self, Shape, fill};

use super::{Fsck, floe_on, image};

/// An empty file system of just below 16 TiB, the largest file on ext4 with 4 KiB blocks. `None`:
/// mke2fs is missing, or such large files are not supported here.
fn sixteen_tib() -> Option<(tempfile::TempDir, Image)> {
    let folder = tool::scratch("floe-memory-").unwrap();
    if tool::missing() {
        return None;
    }
    match fill::empty(&folder.path().join("image"), 16_383 << 30) {
        Ok(image) => Some((folder, image)),
        Err(error) => {
            eprintln!("skipped: {error:#}");
            None
        }
    }
}

/// Estimate and peak memory, in bytes.
fn estimate_and_peak(report: &serde_json::Value) -> (u64, u64) {
    let cost = &report["cost"];
    let estimate = cost["memory"]["estimate_bytes"].as_u64().unwrap();
    (estimate, cost["peak_memory_bytes"].as_u64().unwrap())
}

/// The sufficient limit in a failure message: the number after `--memory` or `-E memory=`.
fn advised(text: &str) -> &str {
    let behind = |option: &str| Some(text.split_once(option)?.1.trim());
    behind("--memory ").or(behind("-E memory=")).unwrap_or_else(|| panic!("no advice: {text}"))
}

/// Debug builds are large programs, which the formula does not model.
const DEBUG_BYTES: u64 = if cfg!(debug_assertions) { 24 << 20 } else { 0 };

#[test]
fn sixteen_tib_in_64_mib() {
    let Some((_folder, image)) = sixteen_tib() else { return };
    let ran = floe_on(&["check", "--memory", "64M", "--threads", "2", "--json"], image.path());
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("of 64.0 MiB of memory"), "{}", ran.err);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let (estimate, peak) = estimate_and_peak(&report);
    assert!(estimate <= 64 << 20 && peak <= 64 << 20, "{estimate} {peak}");
    assert!(peak <= estimate + DEBUG_BYTES, "{peak} of {estimate}");
}

#[test]
fn too_little_is_refused_with_what_would_do() {
    let Some((_folder, image)) = sixteen_tib() else { return };
    let ran = floe_on(&["check", "--memory", "8M"], image.path());
    assert_eq!((ran.code, ran.out.as_str()), (8, ""), "{}", ran.err);
    assert!(ran.err.contains("Nothing was checked"), "{}", ran.err);
    let enough = advised(&ran.err);
    let ran = floe_on(&["check", "--memory", enough], image.path());
    assert_eq!(ran.code, 0, "{enough}: {}{}", ran.out, ran.err);
    assert!(ran.err.contains("1 thread"), "{}", ran.err);
    // Much less is not enough.
    let less: u64 = enough.trim_end_matches('M').parse().unwrap();
    let ran = floe_on(&["check", "--memory", &format!("{}M", less - 2)], image.path());
    assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
}

/// e2fsck's command line: the limit is mentioned only with `-v`, or if it is too small.
#[test]
fn fsck_checks_within_a_budget() {
    let Some((_folder, image)) = sixteen_tib() else { return };
    let fsck = Fsck::new("fsck.ext4");
    let ran = fsck.run(&["-fn", "-E", "memory=64M"], image.path(), &[]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{}", ran.out);
    let ran = fsck.run(&["-fnv", "-E", "memory=64M"], image.path(), &[]);
    assert!(ran.err.contains("of 64.0 MiB of memory"), "{}", ran.err);
    for mode in ["-fn", "-fp", "-fy"] {
        let ran = fsck.run(&[mode, "-E", "memory=8M"], image.path(), &[]);
        assert_eq!(ran.code, 8, "{mode}: {}{}", ran.out, ran.err);
        let option = format!("memory={}", advised(&ran.err));
        let ran = fsck.run(&[mode, "-E", &option], image.path(), &[]);
        assert_eq!(ran.code, 0, "{mode} {option}: {}{}", ran.out, ran.err);
    }
}

#[test]
fn a_wrong_amount_is_wrong_usage() {
    let Some(image) = image("ext4") else { return };
    for amount in ["lots", "-1", "64X", "M"] {
        let ran = floe_on(&["check", &format!("--memory={amount}")], image.path());
        assert_eq!(ran.code, 16, "{amount}: {}{}", ran.out, ran.err);
    }
    assert_eq!(floe_on(&["check", "--link-counts", "abacus"], image.path()).code, 16);
}

#[test]
fn findings_do_not_depend_on_memory() {
    if tool::missing() {
        return;
    }
    for (profile, seed) in [(Profile::Ext4K1, 3), (Profile::Ext3, 5), (Profile::Bigalloc, 7)] {
        let (image, damage) = damage::damaged_image(profile, 520_000 + seed).unwrap();
        let findings = |options: &[&str]| {
            let ran = floe_on(&[&["check", "--json"], options].concat(), image.path());
            let mut value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
            value.as_object_mut().unwrap().remove("cost").unwrap();
            (ran.code, value)
        };
        let plain = findings(&[]);
        for options in [
            &["--memory", "12M", "--threads", "3"][..],
            &["--memory", "1G", "--link-counts", "twin-tree"],
            &["--link-counts", "array", "--threads", "2"],
            &["--link-counts", "adaptive"],
            &["--link-counts", "adaptive", "--memory", "1G"],
            &["--memory", "12M", "--accounting", "fingerprint"],
        ] {
            assert_eq!(findings(options), plain, "{options:?}, {}, {damage}", profile.name());
        }
    }
}

/// The equations of lwFSCK: few inodes in use select the TwinTree, a table full of directories the
/// array, and one full of files the TwinTree again; with and without a limit.
#[test]
fn adaptive_counting_follows_the_equations() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-memory-").unwrap();
    let inodes = 16_384;
    for (name, dirs, files_per_dir, expected) in [
        ("empty", 20, 1, "twin-tree"),
        ("directories", 7_500, 1, "array"),
        ("files", 150, 99, "twin-tree"),
    ] {
        let shape = Shape { dirs, files_per_dir, file_blocks: 1, size_bytes: 256 << 20 };
        let image = fill::fill_of(&folder.path().join(name), shape, inodes).unwrap();
        for options in [&[][..], &["--memory", "64M"], &["--accounting", "fingerprint"]] {
            let command = ["check", "--json", "--link-counts", "adaptive"];
            let ran = floe_on(&[&command, options].concat(), image.path());
            assert_eq!(ran.code, 0, "{name} {options:?}: {}{}", ran.out, ran.err);
            let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
            let taken = &report["cost"]["memory"]["link_counts"];
            assert_eq!(taken, expected, "{name} {options:?}");
        }
        // Verify the fill level that the test assumes.
        let ran = floe_on(&["check", "--json"], image.path());
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(
            report["cost"]["memory"]["link_counts"], "bits",
            "without an option, Floe's own"
        );
        let used = report["totals"]["inodes_used"].as_u64().unwrap();
        let full = name != "empty";
        assert_eq!(used > inodes * 9 / 10, full, "{name}: {used} of {inodes}");
        assert_eq!(used < inodes / 50, !full, "{name}: {used} of {inodes}");
    }
}

/// `floe info` uses the same formula, an upper bound that is not far above the actual use.
#[test]
fn estimates_hold() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-memory-").unwrap();
    for (shape, name) in [
        (Shape::file_intensive(200_000), "files"),
        (Shape::directory_intensive(100_000), "directories"),
    ] {
        let shape = Shape { size_bytes: 8 << 30, ..shape };
        let image = fill(&folder.path().join(name), shape).unwrap();
        for threads in ["1", "3"] {
            for how in ["exact", "fingerprint"] {
                let options = ["check", "--json", "--accounting", how, "--threads", threads];
                let ran = floe_on(&options, image.path());
                let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
                let (estimate, peak) = estimate_and_peak(&report);
                let what = format!("{name}, {how}, {threads} threads: {peak} of {estimate}");
                assert!(peak <= estimate + DEBUG_BYTES, "{what}");
                assert!(estimate <= peak * 3, "{what}");
            }
        }
        let ran = floe_on(&["info", "--json", "--threads", "1"], image.path());
        assert!(ran.out.contains("memory, at least"), "{}", ran.out);
    }
}

/// The result of a repair does not depend on the limit, and a failure message tells a sufficient
/// one.
#[test]
fn repairs_keep_to_a_budget() {
    if tool::missing() {
        return;
    }
    let folder = tool::scratch("floe-memory-").unwrap();
    let shape = Shape { size_bytes: 256 << 20, ..Shape::file_intensive(20_000) };
    let damaged = fill::fill_of(&folder.path().join("damaged"), shape, 24_000).unwrap();
    {
        let volume = floe_testkit::Volume::open(&damaged).unwrap();
        for inode in volume.used_inodes().unwrap().into_iter().skip(100).step_by(2_000) {
            // i_links_count, and a dangling extent.
            let at = volume.inode_offset(inode).unwrap();
            damaged.write(at + 0x1a, &[9, 0]).unwrap();
            damaged.write(at + 0x3c, &[0xf0, 0xff, 0xff, 0xff]).unwrap();
        }
    }
    let repaired = |options: &[&str]| {
        let copy = damaged.copy().unwrap();
        let path = copy.path().to_str().unwrap();
        let line = [&["repair", "--yes", "--json"], options, &[path]].concat();
        let ran = super::floe_env(&line, &[("E2FSCK_TIME", "1704067200")]);
        (ran, copy)
    };
    let (ran, plain) = repaired(&[]);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    let (ran, _) = repaired(&["--memory", "2M"]);
    assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("nothing was written"), "{}", ran.err);
    let least = advised(&ran.err).to_owned();
    for memory in [least.as_str(), "32M", "1G"] {
        let (ran, image) = repaired(&["--memory", memory, "--threads", "3"]);
        assert_eq!(ran.code, 1, "{memory}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains("each examination will take about"), "{}", ran.err);
        assert!(image.to_vec().unwrap() == plain.to_vec().unwrap(), "{memory}: other bytes");
        let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(super::schema::repair_faults(&report), Vec::<String>::new());
        let peak = report["cost"]["peak_memory_bytes"].as_u64().unwrap();
        let budget = report["cost"]["memory"]["budget_bytes"].as_u64().unwrap();
        assert!(peak <= budget + DEBUG_BYTES, "{memory}: {peak} of {budget}");
    }
    // `fsck -y` gives the same result, without messages about memory.
    let copy = damaged.copy().unwrap();
    let option = format!("memory={least}");
    let clock = [("E2FSCK_TIME", "1704067200")];
    let fsck = Fsck::new("fsck.ext4");
    let ran = fsck.run(&["-fy", "-E", &option], copy.path(), &clock);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(!ran.err.contains("will take"), "{}", ran.err);
    assert!(copy.to_vec().unwrap() == plain.to_vec().unwrap(), "fsck: other bytes");
    let ran = fsck.run(&["-fy", "-E", "memory=2M"], damaged.path(), &clock);
    assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("Try: -E memory="), "{}", ran.err);
    // Applying a plan runs no examination of that kind.
    let line = ["repair", "--memory", "64M", "--apply-plan", "plan"];
    assert_eq!(floe_on(&line, damaged.path()).code, 16);
}
