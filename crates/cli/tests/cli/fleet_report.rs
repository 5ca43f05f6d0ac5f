//! `floe report`: the results of many checks become one report.

use std::fs;

use floe_testkit::{build, tool};

use super::{floe, image};

#[test]
fn the_checks_of_a_fleet_become_one_report() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-fleet-").unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("no-system"), [1; 1 << 16]).unwrap();
    let path = image.path().to_str().unwrap();
    let (mut runs, mut codes) = (Vec::new(), Vec::new());
    for (run, devices) in [("one", vec![path]), ("two", vec![path, &at("no-system")])] {
        let results: String =
            devices.iter().map(|device| floe(&["check", "--json", device]).out).collect();
        fs::write(at(run), results).unwrap();
        build::debugfs(&image, "ssv state 0\nsif <2> links_count 9\n").unwrap();
        runs.push(at(run));
        codes.push(floe(&["report", "--fleet", &at(run)]).code);
    }
    assert_eq!(codes, [0, 12]);
    let (page, metrics) = (at("page.html"), at("fleet.prom"));
    let mut all = vec!["report", "--html", &page, "--metrics", &metrics, "--fleet"];
    all.extend(runs.iter().map(String::as_str));
    let ran = floe(&all);
    assert_eq!(ran.code, 12, "{}", ran.err);
    for part in [
        "two: 2 images: 1 damaged, 1 not checked completely",
        "since one: 1 no longer clean, 0 mended, 1 added, 0 missing",
        "1 image: inode-link-count-wrong (1 found)",
    ] {
        assert!(ran.out.contains(part), "{part}: {}", ran.out);
    }
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.contains("inode-link-count-wrong") && text.contains(">Runs<"), "{text}");
    let text = fs::read_to_string(&metrics).unwrap();
    assert!(text.contains("floe_fleet_changes{change=\"no-longer-clean\"} 1"), "{text}");
    // Both are replaced by a later report; what somebody else wrote is not.
    assert_eq!(floe(&all).code, 12);
    fs::write(&metrics, "precious").unwrap();
    let ran = floe(&all);
    assert!(ran.code & 24 != 0, "{}", ran.err);
    assert_eq!(fs::read_to_string(&metrics).unwrap(), "precious");
}

/// Twelve images, every fourth damaged; pyarrow 26 wrote it, with Snappy, dictionaries, checksums and two row groups.
const PARQUET: &[u8] = include_bytes!("../data/fleet.parquet");

#[test]
fn parquet_and_folders_are_read() {
    let folder = tool::scratch("floe-fleet-").unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("monday.parquet"), PARQUET).unwrap();
    let ran = floe(&["report", "--fleet", &at("monday.parquet")]);
    assert_eq!(ran.code, 4, "{}", ran.err);
    assert!(ran.out.contains("12 images: 9 clean, 3 damaged"), "{}", ran.out);
    assert!(ran.out.contains("3 images: inode-link-count-wrong (3 found)"), "{}", ran.out);
    // A folder as of Spark, here with a part of each kind, and the folder around it.
    fs::create_dir_all(at("tuesday/images")).unwrap();
    fs::create_dir_all(at("tuesday/findings")).unwrap();
    fs::write(at("tuesday/images/part-0.snappy.parquet"), PARQUET).unwrap();
    fs::write(at("tuesday/images/.part-0.snappy.parquet.crc"), "crc").unwrap();
    fs::write(at("tuesday/images/_SUCCESS"), "").unwrap();
    let more = floe(&["check", "--json", &at("none")]).out;
    fs::write(at("tuesday/images/part-1.json"), more).unwrap();
    for results in ["tuesday", "tuesday/images"] {
        let ran = floe(&["report", "--fleet", &at("monday.parquet"), &at(results)]);
        assert_eq!(ran.code, 12, "{}", ran.err);
        for part in
            ["tuesday: 13 images: 9 clean", "since monday.parquet: 0 no longer clean", "1 added"]
        {
            assert!(ran.out.contains(part), "{part}: {}", ran.out);
        }
    }
    for (name, said) in [("_temporary", "has not ended"), ("more", "is a folder")] {
        fs::create_dir(at(&format!("tuesday/images/{name}"))).unwrap();
        let ran = floe(&["report", "--fleet", &at("tuesday")]);
        assert!(ran.code == 8 && ran.err.contains(said), "{}", ran.err);
        fs::remove_dir(at(&format!("tuesday/images/{name}"))).unwrap();
    }
    let mut bad = PARQUET.to_vec();
    // In a page of documents.
    bad[PARQUET.windows(8).position(|text| text == b"findings").unwrap()] ^= 1;
    fs::write(at("tuesday/images/part-0.snappy.parquet"), bad).unwrap();
    let ran = floe(&["report", "--fleet", &at("tuesday")]);
    assert!(ran.code == 8 && ran.err.contains("part-0.snappy.parquet"), "{}", ran.err);
}

#[test]
fn results_that_are_none_are_refused() {
    let folder = tool::scratch("floe-fleet-").unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (bad, page) = (at("bad"), at("page.html"));
    for (text, code, said) in [
        ("", 16, "there are no results"),
        ("{\"schema\":\"floe-check\"", 8, "truncated"),
        ("{\"schema\":\"floe-repair\",\"version\":1}", 8, "document 1"),
        ("\u{0}", 8, "not a series of JSON documents"),
        ("PAR1\u{15}\u{4}", 8, "too short"),
        ("PAR1\u{15}\u{4}\u{15}\u{4}\u{15}\u{4}\u{15}\u{4}", 8, "truncated"),
    ] {
        fs::write(&bad, text).unwrap();
        let ran = floe(&["report", "--fleet", &bad, "--html", &page]);
        assert_eq!(ran.code, code, "{text}: {}", ran.err);
        assert!(ran.err.contains(said) && ran.err.contains("bad"), "{}", ran.err);
        assert!(!folder.path().join("page.html").exists());
    }
    let ran = floe(&["report", "--fleet", &at("none")]);
    assert!(ran.code == 8 && ran.err.contains("none"), "{}", ran.err);
    assert_eq!(floe(&["report"]).code, 16);
}

/// Checks that run at once write a file each. One of them was killed.
#[test]
fn a_check_without_a_result_is_not_left_out() {
    let Some(image) = image("ext4-1k") else { return };
    let folder = tool::scratch("floe-fleet-").unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::write(at("a.json"), floe(&["check", "--json", image.path().to_str().unwrap()]).out)
        .unwrap();
    let folder = folder.path().to_str().unwrap();
    assert_eq!(floe(&["report", "--fleet", folder]).code, 0);
    fs::write(at("b.json"), "").unwrap();
    let ran = floe(&["report", "--fleet", folder]);
    assert_eq!(ran.code, 8, "{}", ran.err);
    assert!(ran.out.contains("2 images: 1 clean, 1 not checked completely"), "{}", ran.out);
    let line = format!("{}: the file of its result is empty", at("b.json"));
    assert!(ran.out.contains(&line), "{}", ran.out);
}
