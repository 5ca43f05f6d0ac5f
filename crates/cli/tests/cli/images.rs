//! Images in their own formats: the same verdict as for the raw image, and no repair.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use floe_testkit::Image;
use serde_json::Value;

use super::{disk_with_partition, floe_on, image};

/// qemu-img conversions of a raw image: each format with each option that affects the layout.
const FORMATS: &[&str] = &[
    "-O qcow2",
    "-O qcow2 -o compat=0.10",
    "-O qcow2 -o cluster_size=512",
    "-O qcow2 -o cluster_size=2M",
    "-O qcow2 -o lazy_refcounts=on",
    "-O qcow2 -o preallocation=metadata",
    "-O qcow2 -o preallocation=full",
    "-O qcow2 -o extended_l2=on",
    "-O qcow2 -o extended_l2=on,cluster_size=16k",
    "-O qcow2 -c",
    "-O qcow2 -c -o compat=0.10,cluster_size=4k",
    "-O qcow2 -c -o compression_type=zstd",
    "-O qcow2 -c -o compression_type=zstd,extended_l2=on",
    "-O vpc",
    "-O vpc -o force_size=on",
    "-O vpc -o subformat=fixed,force_size=on",
    "-O vhdx",
    "-O vhdx -o block_size=1M",
    "-O vhdx -o subformat=fixed",
];

/// Whether a program is installed; prints a message if not.
fn has(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output().is_ok();
    if !found {
        eprintln!("skipped: {program} cannot be started");
    }
    found
}

fn must(program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {output:?}");
}

fn qemu_img(line: &str, paths: &[&Path]) {
    let mut arguments: Vec<&str> = line.split(' ').collect();
    arguments.extend(paths.iter().map(|path| path.to_str().unwrap()));
    must("qemu-img", &arguments);
}

/// An undamaged image, and one with a wrong block bitmap.
fn sound_and_damaged() -> Option<[Image; 2]> {
    let (sound, damaged) = (image("ext4-1k")?, image("ext4-1k")?);
    let mut place = [0; 4];
    damaged.read(2048, &mut place).unwrap();
    damaged.write(u64::from(u32::from_le_bytes(place)) * 1024 + 100, &[0x5a; 99]).unwrap();
    Some([sound, damaged])
}

/// The report of a check, without the device's name and the cost.
fn report(path: &Path, more: &[&str]) -> (i32, Value) {
    let ran = floe_on(&[&["check", "--json"], more].concat(), path);
    let mut value: Value =
        serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{}{}", ran.out, ran.err));
    let members = value.as_object_mut().unwrap();
    members.remove("cost");
    members.remove("device");
    (ran.code, value)
}

#[test]
fn every_format_of_qemu_img_gives_the_verdict_of_the_raw_image() {
    if !has("qemu-img") {
        return;
    }
    let Some(images) = sound_and_damaged() else { return };
    let folder = tempfile::tempdir().unwrap();
    for (raw, code) in images.iter().zip([0, 4]) {
        let expected = report(raw.path(), &[]);
        assert_eq!(expected.0, code);
        for (index, format) in FORMATS.iter().enumerate() {
            let path = folder.path().join(index.to_string());
            qemu_img(&format!("convert -f raw {format}"), &[raw.path(), &path]);
            assert!(report(&path, &[]) == expected, "{format}");
            fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn packed_images_give_the_verdict_of_the_raw_image() {
    let Some(images) = sound_and_damaged() else { return };
    let folder = tempfile::tempdir().unwrap();
    for (raw, code) in images.iter().zip([0, 4]) {
        let expected = report(raw.path(), &[]);
        assert_eq!(expected.0, code);
        for (program, ending) in [("gzip", "gz"), ("zstd", "zst")] {
            if !has(program) {
                continue;
            }
            let copy = folder.path().join("copy");
            let packed = copy.with_extension(ending);
            fs::copy(raw.path(), &copy).unwrap();
            must(program, &["-q", "-f", copy.to_str().unwrap()]);
            assert!(report(&packed, &[]) == expected, "{program}");
            let ran = floe_on(&["check"], &packed);
            assert!(ran.err.contains("unpacking"), "{}", ran.err);
            let whole = fs::read(&packed).unwrap();
            fs::write(&packed, &whole[..whole.len() - 9]).unwrap();
            let ran = floe_on(&["check"], &packed);
            assert_eq!(ran.code, 8, "{}", ran.out);
            assert!(ran.err.contains("damaged"), "{}", ran.err);
        }
    }
}

#[test]
fn an_image_in_a_packed_file_is_opened_too() {
    if !has("qemu-img") || !has("gzip") {
        return;
    }
    let Some(raw) = image("ext4-1k") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("disk.qcow2");
    qemu_img("convert -f raw -O qcow2", &[raw.path(), &path]);
    must("gzip", &[path.to_str().unwrap()]);
    assert!(report(&path.with_extension("qcow2.gz"), &[]) == report(raw.path(), &[]));
}

#[test]
fn backing_files_are_found_beside_the_image() {
    if !has("qemu-img") || !has("qemu-io") {
        return;
    }
    let Some([sound, damaged]) = sound_and_damaged() else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("below")).unwrap();
    fs::copy(sound.path(), at("below/base.img")).unwrap();
    // Relative names: each relative to the folder of its image.
    qemu_img("create -q -f qcow2 -F raw -b base.img", &[&at("below/middle")]);
    qemu_img("create -q -f qcow2 -F qcow2 -b below/middle", &[&at("top")]);
    assert!(report(&at("top"), &[]) == report(sound.path(), &[]));
    // Changes in the overlaid images take precedence.
    let mut place = [0; 4];
    damaged.read(2048, &mut place).unwrap();
    let write = format!("write -P 0x5a {} 99", u64::from(u32::from_le_bytes(place)) * 1024 + 100);
    must("qemu-io", &["-f", "qcow2", "-c", &write, at("top").to_str().unwrap()]);
    let (code, found) = report(&at("top"), &[]);
    assert!((code, &found) == (4, &report(damaged.path(), &[]).1));
    // Missing, and circular.
    fs::remove_file(at("below/base.img")).unwrap();
    let ran = floe_on(&["check"], &at("top"));
    assert_eq!(ran.code, 8);
    assert!(ran.err.contains("base.img") && ran.err.contains("no such file"), "{}", ran.err);
    qemu_img("rebase -u -f qcow2 -F qcow2 -b ../top", &[&at("below/middle")]);
    let ran = floe_on(&["check"], &at("top"));
    assert_eq!(ran.code, 8);
    assert!(ran.err.contains("its own backing file"), "{}", ran.err);
    qemu_img("rebase -u -f qcow2 -F raw -b nbd://localhost/x", &[&at("below/middle")]);
    let ran = floe_on(&["check"], &at("top"));
    assert!(ran.err.contains("no path (nbd://localhost/x)"), "{}", ran.err);
}

#[test]
fn partitions_and_offsets_count_in_the_disk() {
    if !has("qemu-img") {
        return;
    }
    let Some(raw) = image("ext2-1k") else { return };
    let content = fs::read(raw.path()).unwrap();
    let disk = disk_with_partition(&content);
    let folder = tempfile::tempdir().unwrap();
    let (whole, path) = (folder.path().join("disk"), folder.path().join("image"));
    fs::write(&whole, disk).unwrap();
    let expected = report(raw.path(), &[]);
    for format in ["qcow2", "vpc", "vhdx"] {
        qemu_img(&format!("convert -f raw -O {format}"), &[&whole, &path]);
        assert!(report(&path, &["--partition", "1"]) == expected, "{format}");
        assert!(report(&path, &["--offset", "1048576"]) == expected, "{format}");
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ ((sum & 1) * 0x82f6_3b78))
    })
}

#[test]
fn an_unclosed_vhdx_image_is_read_as_its_log_says() {
    if !has("qemu-img") || !has("qemu-io") {
        return;
    }
    let Some(raw) = image("ext4-1k") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let text = path.to_str().unwrap();
    // Beyond the file system, in unallocated space, so that the block table changes.
    let size = raw.size().next_multiple_of(1 << 20) + (4 << 20);
    let larger = folder.path().join("larger");
    fs::copy(raw.path(), &larger).unwrap();
    fs::File::options().write(true).open(&larger).unwrap().set_len(size).unwrap();
    qemu_img("convert -f raw -O vhdx -o block_size=1M", &[&larger, &path]);
    let before = fs::read(&path).unwrap();
    let write = format!("write {} 64k", size - (1 << 20));
    must("qemu-io", &["-f", "vhdx", "-c", &write, text]);
    let mut unclosed = fs::read(&path).unwrap();
    let log = unclosed.windows(4).position(|four| four == b"loge").unwrap();
    // QEMU clears its log's mark as soon as it has replayed it, but leaves the entry. Restore the
    // mark.
    let id = unclosed[log + 32..log + 48].to_vec();
    for header in [65_536, 131_072] {
        unclosed[header + 48..header + 64].copy_from_slice(&id);
        unclosed[header + 4..header + 8].fill(0);
        let sum = crc32c(&unclosed[header..header + 4096]);
        unclosed[header + 4..header + 8].copy_from_slice(&sum.to_le_bytes());
    }
    fs::write(&path, &unclosed).unwrap();
    let refused = Command::new("qemu-img").args(["info", "-f", "vhdx", text]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("log that needs to be replayed"), "QEMU sees it, too: {said}");
    let expected = report(raw.path(), &[]);
    assert!(report(&path, &[]) == expected, "unclosed");
    // Revert the logged change, so that only a replay restores it.
    let descriptor = &unclosed[log + 64..log + 96];
    assert!(descriptor.starts_with(b"desc"));
    let place = u64::from_le_bytes(*descriptor[16..].first_chunk().unwrap()) as usize;
    assert!(unclosed[place..place + 4096] != before[place..place + 4096], "the table changed");
    unclosed[place..place + 4096].fill(0xff);
    fs::write(&path, unclosed).unwrap();
    assert!(report(&path, &[]) == expected, "replayed");
    // QEMU's own replay has the same result.
    qemu_img("check -q -r all -f vhdx", &[&path]);
    let raw_again = folder.path().join("again");
    qemu_img("convert -f vhdx -O raw", &[&path, &raw_again]);
    assert!(report(&raw_again, &[]) == expected, "replayed by QEMU");
}

#[test]
fn what_cannot_be_read_is_named() {
    if !has("qemu-img") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let data = folder.path().join("data");
    let refused = |words: &[&str]| {
        let ran = floe_on(&["check"], &path);
        assert_eq!(ran.code, 8, "{}{}", ran.out, ran.err);
        for word in words {
            assert!(ran.err.contains(word), "no {word:?}: {}", ran.err);
        }
    };
    let text = path.to_str().unwrap();
    // Only the header declares encryption (2: LUKS): qemu-img would benchmark the processor first,
    // which fails on a busy machine.
    qemu_img("create -q -f qcow2", &[&path, Path::new("8M")]);
    let mut bytes = fs::read(&path).unwrap();
    bytes[32..36].copy_from_slice(&2u32.to_be_bytes());
    fs::write(&path, bytes).unwrap();
    refused(&["LUKS encryption", "qemu-nbd"]);
    let external = format!("data_file={}", data.display());
    must("qemu-img", &["create", "-q", "-f", "qcow2", "-o", &external, text, "8M"]);
    refused(&["external data file"]);
    qemu_img("create -q -f qcow2", &[&path, Path::new("8M")]);
    refused(&["all zeroes"]);
    fs::write(&path, &fs::read(&path).unwrap()[..2000]).unwrap();
    refused(&["damaged", "truncated"]);
}

/// A repair is refused with advice and changes nothing; a preview is allowed.
#[test]
fn images_are_not_repaired() {
    let Some([_, damaged]) = sound_and_damaged() else { return };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut made: Vec<(PathBuf, &str)> = Vec::new();
    if has("qemu-img") {
        for (format, advice) in
            [("qcow2", "--format=qcow2"), ("vpc", "--format=vpc"), ("vhdx", "--format=vhdx")]
        {
            qemu_img(&format!("convert -f raw -O {format}"), &[damaged.path(), &at(format)]);
            made.push((at(format), advice));
        }
    }
    if has("gzip") {
        fs::copy(damaged.path(), at("raw")).unwrap();
        must("gzip", &[at("raw").to_str().unwrap()]);
        made.push((at("raw.gz"), "gunzip"));
    }
    for (path, advice) in made {
        let before = fs::read(&path).unwrap();
        let plan = at("plan").to_str().unwrap().to_owned();
        for command in [
            &["repair", "--yes"][..],
            &["repair", "--preen"],
            &["repair", "--yes", "--plan", &plan],
            &["fsck", "-fy"],
        ] {
            let ran = floe_on(command, &path);
            assert_eq!(ran.code, 8, "{command:?}: {}{}", ran.out, ran.err);
            assert!(
                ran.err.contains(advice)
                    && ran.err.contains("floe repair") | path.ends_with("raw.gz"),
                "{}",
                ran.err
            );
            assert!(fs::read(&path).unwrap() == before, "{command:?} changed it");
        }
        let ran = floe_on(&["repair", "--dry-run"], &path);
        assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
        assert!(fs::read(&path).unwrap() == before);
    }
}

#[test]
fn a_fixed_vhd_image_is_repaired_and_stays_one() {
    if !has("qemu-img") {
        return;
    }
    let Some([_, damaged]) = sound_and_damaged() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (path, raw) = (folder.path().join("image"), folder.path().join("raw"));
    qemu_img("convert -f raw -O vpc -o subformat=fixed,force_size=on", &[damaged.path(), &path]);
    let before = fs::read(&path).unwrap();
    let ran = floe_on(&["repair", "--yes"], &path);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    let after = fs::read(&path).unwrap();
    assert!(
        after.len() == before.len() && after[after.len() - 512..] == before[before.len() - 512..]
    );
    assert_eq!(floe_on(&["check"], &path).code, 0);
    qemu_img("convert -f vpc -O raw", &[&path, &raw]);
    assert_eq!(floe_on(&["fsck", "-fn"], &raw).code, 0);
}

#[test]
fn an_image_that_qemu_writes_to_is_refused() {
    if !has("qemu-img") || !has("qemu-io") {
        return;
    }
    let Some(raw) = image("ext4-1k") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    qemu_img("convert -f raw -O qcow2", &[raw.path(), &path]);
    let locks = |mode: &[&str]| {
        // It keeps the image open until its standard input ends.
        let mut held = Command::new("qemu-io")
            .args(mode)
            .args(["-f", "qcow2", path.to_str().unwrap()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Its answer proves that it has opened the image.
        held.stdin.as_mut().unwrap().write_all(b"length\n").unwrap();
        let mut answer = String::new();
        BufReader::new(held.stdout.as_mut().unwrap()).read_line(&mut answer).unwrap();
        held
    };
    let mut reader = locks(&["-r"]);
    assert_eq!(floe_on(&["check"], &path).code, 0, "reading changes nothing");
    drop(reader.stdin.take());
    reader.wait().unwrap();
    let mut writer = locks(&[]);
    let ran = floe_on(&["check"], &path);
    assert_eq!(ran.code, 8, "{}", ran.out);
    assert!(ran.err.contains("virtual machine") && ran.err.contains("--force"), "{}", ran.err);
    let ran = floe_on(&["repair", "--yes"], &path);
    assert!(ran.code == 8 && ran.err.contains("virtual machine"), "{}", ran.err);
    drop(writer.stdin.take());
    writer.wait().unwrap();
    assert_eq!(floe_on(&["check"], &path).code, 0);
}

#[test]
fn the_format_can_be_said() {
    if !has("qemu-img") {
        return;
    }
    let Some(raw) = image("ext4-1k") else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    qemu_img("convert -f raw -O qcow2", &[raw.path(), &path]);
    assert_eq!(floe_on(&["check", "--format", "qcow2"], &path).code, 0);
    let ran = floe_on(&["check", "--format", "raw"], &path);
    assert_eq!(ran.code, 8);
    assert!(ran.err.contains("--format qcow2"), "{}", ran.err);
    let ran = floe_on(&["check", "--format", "vhdx"], &path);
    assert_eq!(ran.code, 8);
    assert!(ran.err.contains("vhdx image is damaged"), "{}", ran.err);
    assert_eq!(floe_on(&["check", "--format", "floppy"], &path).code, 16);
}
