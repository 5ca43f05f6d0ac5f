//! `floe mkfs --bmap`: a device with other content that receives the mapped blocks holds a complete
//! file system.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use floe_testkit::{oracle, tool};

use super::floe;

const BLOCK: usize = 4096;

/// The text of an element that occurs once.
fn text_of<'a>(map: &'a str, element: &str) -> &'a str {
    let (_, rest) = map.split_once(&format!("<{element}>")).unwrap();
    rest.split_once(&format!("</{element}>")).unwrap().0.trim()
}

/// Output of sha256sum for some bytes.
fn sha256(bytes: &[u8]) -> String {
    let mut child =
        Command::new("sha256sum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap()[..64].to_owned()
}

/// Copies the mapped blocks to a device full of other bytes, like bmaptool.
fn copy(map: &str, image: &Path, device: &Path) {
    let size: usize = text_of(map, "ImageSize").parse().unwrap();
    assert_eq!(text_of(map, "BlockSize"), BLOCK.to_string());
    assert_eq!(size as u64, fs::metadata(image).unwrap().len());
    fs::write(device, vec![0xa5; size]).unwrap();
    let (from, to) =
        (File::open(image).unwrap(), File::options().write(true).open(device).unwrap());
    let (mut blocks, mut behind) = (0, 0);
    for range in map.split("<Range chksum=\"").skip(1) {
        let (sum, range) = range.split_once("\"> ").unwrap();
        let range = range.split_once(" </Range>").unwrap().0;
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
        assert!(first >= behind && last >= first, "{first} {last}");
        (blocks, behind) = (blocks + last - first + 1, last + 1);
        let mut bytes = vec![0; (behind * BLOCK).min(size) - first * BLOCK];
        from.read_exact_at(&mut bytes, (first * BLOCK) as u64).unwrap();
        assert_eq!(sha256(&bytes), sum);
        to.write_all_at(&bytes, (first * BLOCK) as u64).unwrap();
    }
    assert_eq!(text_of(map, "MappedBlocksCount"), blocks.to_string());
    assert_eq!(text_of(map, "BlocksCount"), size.div_ceil(BLOCK).to_string());
}

fn judge(image: &Path) {
    if !tool::missing() {
        let judged = oracle::run(image, &["-fn"]).unwrap();
        assert_eq!(judged.exit, Some(0), "{}", judged.text);
    }
}

#[test]
fn the_blocks_of_the_map_are_all_that_a_device_needs() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("source");
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("file"), vec![7; 100_000]).unwrap();
    File::create(folder.join("hole")).unwrap().set_len(5 << 20).unwrap();
    let (image, map, device) =
        (scratch.path().join("image"), scratch.path().join("map"), scratch.path().join("device"));
    let from = format!("dir:{}", folder.display());
    let cases: [&[&str]; 4] = [
        &["--from", &from],
        &["--from", &from, "-b", "1024", "--fit=+300%"],
        // The last block of the map is partial.
        &["-b", "1024", "-E", "lazy_itable_init=0"],
        &["-t", "ext2", "-O", "^resize_inode"],
    ];
    for options in cases {
        let mut all = vec!["mkfs", "-q", "-F", "--bmap", map.to_str().unwrap()];
        all.extend(options);
        all.push(image.to_str().unwrap());
        if !options.contains(&"--from") {
            all.push("9501");
        }
        let _ = fs::remove_file(&image);
        let ran = floe(&all);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{options:?}");
        let text = fs::read_to_string(&map).unwrap();
        let own = text_of(&text, "BmapFileChecksum");
        assert_eq!(sha256(text.replacen(own, &"0".repeat(64), 1).as_bytes()), own);
        copy(&text, &image, &device);
        judge(&device);
        let checked = floe(&["check", device.to_str().unwrap()]);
        assert_eq!(checked.code, 0, "{}", checked.out);
        by_bmaptool(&map, &image, &device);
    }
    let offset = ["mkfs", "-E", "offset=1048576", "--bmap", map.to_str().unwrap()];
    let ran = floe(&[&offset[..], &[image.to_str().unwrap(), "8m"]].concat());
    assert_eq!(ran.code, 16, "{}", ran.err);
    // A block map with the same path as its source.
    let archive = scratch.path().join("archive");
    fs::write(&archive, b"").unwrap();
    let (from, image) = (format!("tar:{}", archive.display()), scratch.path().join("other"));
    let command = ["mkfs", "--bmap", archive.to_str().unwrap(), "--from", &from];
    let ran = floe(&[&command[..], &[image.to_str().unwrap()]].concat());
    assert_eq!(ran.code, 16, "{}", ran.err);
    assert!(!image.exists());
}

/// The same with bmaptool, which verifies every checksum.
fn by_bmaptool(map: &Path, image: &Path, device: &Path) {
    let mut expected = Vec::new();
    File::open(device).unwrap().read_to_end(&mut expected).unwrap();
    let other = vec![0xa5; expected.len()];
    fs::write(device, other).unwrap();
    let run = Command::new("bmaptool")
        .args(["copy", "--bmap"])
        .args([map, image, device])
        .stderr(Stdio::piped())
        .output();
    match run {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{said}");
            // bmaptool truncates a file before writing.
            judge(device);
        }
        Err(error) => eprintln!("not compared with bmaptool: {error}"),
    }
}
