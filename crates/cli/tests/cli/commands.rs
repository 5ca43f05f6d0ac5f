//! Commands on undamaged images.

use std::fs;

use super::{disk_with_partition, floe, floe_on, image};

/// Checks an image: nothing is found, and the image does not change.
fn is_clean(profile: &str) {
    let Some(image) = image(profile) else { return };
    let before = fs::read(image.path()).unwrap();
    let ran = floe_on(&["check"], image.path());
    assert_eq!(ran.code, 0, "{profile}: {}{}", ran.out, ran.err);
    assert!(ran.out.lines().last().unwrap().starts_with("CLEAN"), "{profile}: {}", ran.out);
    assert!(fs::read(image.path()).unwrap() == before, "{profile}: the image was changed");
}

#[test]
fn sound_images_are_clean() {
    for profile in ["ext4", "ext3", "ext2-1k", "bigalloc", "inline-data"] {
        is_clean(profile);
    }
}

#[test]
fn the_verdict_does_not_depend_on_threads_and_can_be_read_by_programs() {
    let Some(image) = image("ext4-1k") else { return };
    let at = |threads: &str| {
        let ran = floe_on(&["check", "--json", "--threads", threads], image.path());
        let mut value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        assert!(value.as_object_mut().unwrap().remove("cost").is_some());
        value
    };
    let one = at("1");
    assert_eq!(one["schema"], "floe-check");
    assert_eq!(one, at("3"));
}

/// Every way to share threads gives the same report; passes overlap if requested.
#[test]
fn schedules_give_the_same_report() {
    let Some(image) = image("ext4-1k") else { return };
    let report = |how: &[&str]| {
        let ran = floe_on(&[&["check", "--json", "--threads", "3"], how].concat(), image.path());
        assert_eq!(ran.code, 0, "{how:?}: {}{}", ran.out, ran.err);
        let mut value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
        let cost = value.as_object_mut().unwrap().remove("cost").unwrap();
        (value, cost["pipeline"].clone())
    };
    let (usual, _) = report(&[]);
    for policy in ["data", "split-equal", "dynamic"] {
        for more in [&[][..], &["--share-cores"][..]] {
            let (value, pipeline) = report(&[&["--schedule", policy], more].concat());
            assert_eq!(value, usual, "{policy} {more:?}");
            if policy == "data" {
                assert!(pipeline.is_null(), "{pipeline}");
                continue;
            }
            assert_eq!(pipeline["policy"], policy);
            assert_eq!(pipeline["stages"][1]["name"], "directories");
            let blocks = &pipeline["directory_blocks"];
            let ahead = blocks["ahead"].as_u64().unwrap() + blocks["delayed"].as_u64().unwrap();
            assert!(ahead > 0 && ahead >= blocks["left"].as_u64().unwrap(), "{pipeline}");
        }
    }
    for split in ["in-order", "by-use"] {
        assert_eq!(report(&["--split", split]).0, usual, "{split}");
    }
    let ran = floe_on(&["check", "--split", "evenly"], image.path());
    assert_eq!(ran.code, 16, "{}", ran.err);
    let verbose = ["check", "--verbose", "--threads", "2", "--schedule", "dynamic"];
    let ran = floe_on(&verbose, image.path());
    assert!(ran.out.contains("inodes and directories overlapped (dynamic)"), "{}", ran.out);
    let ran = floe_on(&["check", "--schedule", "fast"], image.path());
    assert_eq!(ran.code, 16, "{}", ran.err);
    assert!(ran.err.contains("split-equal"), "{}", ran.err);
}

/// Reads that preserve or bypass the page cache return the same data.
#[test]
fn checks_see_the_same_with_and_without_the_page_cache() {
    for name in ["ext4-1k", "ext4-2k"] {
        let Some(image) = image(name) else { return };
        fs::File::open(image.path()).unwrap().sync_all().unwrap();
        let report = |how: &[&str]| {
            let ran = floe_on(&[&["check", "--json"], how].concat(), image.path());
            assert_eq!(ran.code, 0, "{how:?}: {}{}", ran.out, ran.err);
            let mut value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
            value.as_object_mut().unwrap().remove("cost");
            value
        };
        assert_eq!(report(&["--drop-cache"]), report(&[]));
        let direct = floe_on(&["check", "--direct"], image.path());
        if direct.code == 8 && direct.err.contains("no direct I/O") {
            println!("skipped: {}", direct.err);
            continue;
        }
        assert_eq!(report(&["--direct", "--threads", "3"]), report(&[]));
        let both = floe_on(&["check", "--direct", "--drop-cache"], image.path());
        assert_eq!(both.code, 16, "{}", both.err);
    }
}

/// With --share-cores=0 the whole run is in the idle scheduling class; otherwise its first thread
/// has normal priority.
#[test]
fn a_run_that_shares_the_cores_gives_way() {
    let Some(image) = image("ext4-1k") else { return };
    // The scheduling class (0 normal, 5 idle) of a zombie process is still readable.
    let class = |command: &str, more: &[&str]| {
        let mut floe = std::process::Command::new(env!("CARGO_BIN_EXE_floe"));
        floe.arg(command).args(more).arg(image.path()).stdout(std::process::Stdio::null());
        let mut child = floe.spawn().unwrap();
        let class = loop {
            let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            let fields: Vec<_> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
            if fields[0] == "Z" {
                break fields[38].to_owned();
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        };
        assert!(child.wait().unwrap().success());
        class
    };
    let usual = class("check", &[]);
    assert_eq!(class("check", &["--share-cores=0"]), "5");
    assert_eq!(class("repair", &["--dry-run", "--share-cores=0"]), "5");
    assert_eq!(class("check", &["--share-cores"]), usual);
    assert_eq!(class("check", &["--share-cores=2"]), usual);
    assert_eq!(class("repair", &["--dry-run"]), usual);
}

#[test]
fn a_file_system_behind_an_offset_is_found() {
    let Some(image) = image("ext2-1k") else { return };
    let offset = 1 << 20;
    let whole = tempfile::NamedTempFile::new().unwrap();
    let mut bytes = vec![0xa5; offset];
    bytes.extend(fs::read(image.path()).unwrap());
    fs::write(whole.path(), bytes).unwrap();
    assert_eq!(floe_on(&["check"], whole.path()).code, 8);
    let ran = floe_on(&["check", "--offset", "1048576"], whole.path());
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
}

#[test]
fn a_file_system_in_a_partition_is_found() {
    let Some(image) = image("ext2-1k") else { return };
    let content = fs::read(image.path()).unwrap();
    let disk = disk_with_partition(&content);
    let whole = tempfile::NamedTempFile::new().unwrap();
    fs::write(whole.path(), disk).unwrap();
    let ran = floe_on(&["check", "--partition", "1"], whole.path());
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let ran = floe_on(&["check"], whole.path());
    assert_eq!(ran.code, 8);
    assert!(ran.err.contains("--partition"), "{}", ran.err);
    let ran = floe_on(&["check", "--partition", "2"], whole.path());
    assert_eq!(ran.code, 8);
    assert!(ran.err.contains("no partition 2"), "{}", ran.err);
}

#[test]
fn fail_on_chooses_which_findings_count() {
    let Some(image) = image("ext2-1k") else { return };
    // The total of free inodes: a cosmetic remark.
    image.write(1024 + 0x10, &[1, 0, 0, 0]).unwrap();
    assert_eq!(floe_on(&["check"], image.path()).code, 0);
    assert_eq!(floe_on(&["check", "--fail-on", "cosmetic"], image.path()).code, 4);
    // A group's count of free inodes: damage to metadata. The descriptors are in block 2.
    image.write(2048 + 0x0e, &[1, 0]).unwrap();
    assert_eq!(floe_on(&["check"], image.path()).code, 4);
    assert_eq!(floe_on(&["check", "--fail-on", "metadata"], image.path()).code, 4);
    let ran = floe_on(&["check", "--fail-on", "data-risk"], image.path());
    assert_eq!(ran.code, 0);
    assert!(ran.out.contains("DAMAGED") && ran.out.contains("--fail-on"), "{}", ran.out);
}

#[test]
fn a_reader_that_leaves_early_does_not_change_the_verdict() {
    let Some(image) = image("ext2-1k") else { return };
    image.write(2048 + 0x0e, &[1, 0]).unwrap();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_floe"))
        .args(["check", "--verbose"])
        .arg(image.path())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(4));
}

#[test]
fn info_tells_what_dumpe2fs_tells() {
    let Some(image) = image("ext4") else { return };
    let ran = floe_on(&["info"], image.path());
    assert_eq!(ran.code, 0, "{}", ran.err);
    for word in ["ext4 file system", "metadata_csum", "backup superblocks", "bytes to read"] {
        assert!(ran.out.contains(word), "no {word:?}: {}", ran.out);
    }
    let ran = floe_on(&["info", "--json"], image.path());
    let value: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(value[2]["fields"]["block size"], "4096");
}

#[test]
fn every_structure_can_be_dumped() {
    let Some(image) = image("ext4") else { return };
    let path = image.path().to_str().unwrap();
    let dumps: &[(&[&str], &str)] = &[
        (&["superblock"], "0xef53"),
        (&["group", "0"], "inode_table"),
        (&["inode", "/"], "directory (mode 04"),
        (&["inode", "2"], "Inode 2 "),
        (&["inode", "<2>"], "Inode 2 "),
        (&["extents", "/"], "data"),
        (&["dirents", "/"], "lost+found"),
        (&["htree", "/"], "index root"),
        (&["xattrs", "/"], "Attributes in inode 2"),
        (&["block", "0"], "53 ef"),
        (&["block", "1", "as", "bytes"], "Block 1"),
        (&["journal"], "0xc03b3998"),
        (&["orphans"], "Orphan list"),
    ];
    for (what, word) in dumps {
        let mut line = vec!["dump", path];
        line.extend(*what);
        let ran = floe(&line);
        assert_eq!(ran.code, 0, "{what:?}: {}", ran.err);
        assert!(ran.out.contains(word), "{what:?} does not show {word:?}: {}", ran.out);
    }
    for what in [
        &["group", "99999"][..],
        &["inode", "0"],
        &["inode", "/no/such/file"],
        &["block", "99999999"],
        &["block", "1", "as", "nonsense"],
        &["mmp"],
        &["quota"],
    ] {
        let mut line = vec!["dump", path];
        line.extend(what);
        let ran = floe(&line);
        assert_eq!(ran.code, 8, "{what:?}: {}", ran.out);
        assert!(ran.err.contains("there is no") || ran.err.contains("/no"), "{}", ran.err);
    }
}

#[test]
fn problems_and_explain_agree() {
    let list = floe(&["problems"]);
    assert_eq!(list.code, 0);
    let lines = list.out.lines().count();
    assert!(lines > 250, "{lines}");
    let value: serde_json::Value =
        serde_json::from_str(&floe(&["problems", "--json"]).out).unwrap();
    assert_eq!(value["problems"].as_array().unwrap().len(), lines);
    for condition in ["0x040003", "inode-link-count-wrong"] {
        let ran = floe(&["explain", condition]);
        assert_eq!(ran.code, 0);
        assert!(ran.out.contains("Meaning:"), "{}", ran.out);
    }
}

/// Reading the holes of a sparse image gives the same verdict.
#[test]
fn holes_are_read_on_request() {
    let Some(image) = image("ext4-1k") else { return };
    let path = image.path().to_str().unwrap();
    let believing = floe(&["check", path]);
    let reading = floe(&["check", "--read-holes", path]);
    assert_eq!((believing.code, reading.code), (0, 0), "{}", reading.err);
}
