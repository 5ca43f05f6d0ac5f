//! `floe mkfs --from`: archives that are packed, padded, or hold more than their files, and sources that would be overwritten.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use floe_archive::{Entry, Kind, Writer};
use floe_testkit::tool;
use tempfile::TempDir;

use super::{Ran, floe, ran};

const BLOCK: usize = 512;

/// An archive of one file, `content` in `file`, without its end.
fn entry(path: &[u8], content: &[u8]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    let entry = Entry { mode: 0o644, size: content.len() as u64, ..Entry::new(path, Kind::File) };
    writer.append(&entry).unwrap();
    writer.write_all(content).unwrap();
    let mut bytes = writer.finish().unwrap();
    bytes.truncate(BLOCK + content.len().next_multiple_of(BLOCK));
    bytes
}

/// The same with another type of entry, whose content is `content`.
fn header(kind: u8, content: &[u8]) -> Vec<u8> {
    let mut bytes = entry(b"header", content);
    bytes[156] = kind;
    bytes[148..156].fill(b' ');
    let sum: u32 = bytes[..BLOCK].iter().map(|&byte| u32::from(byte)).sum();
    bytes[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    bytes
}

fn with_end(parts: &[&[u8]]) -> Vec<u8> {
    [parts.concat(), vec![0; 2 * BLOCK]].concat()
}

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Self {
        Self { folder: tool::scratch("floe-archives-").unwrap() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes an image of an archive, by name; an image is made exactly if the run succeeds.
    fn made(&self, archive: &[u8]) -> Ran {
        let (source, image) = (self.at("source"), self.at("image"));
        fs::write(&source, archive).unwrap();
        let _ = fs::remove_file(&image);
        let from = format!("tar:{}", source.display());
        let ran = floe(&["mkfs", "-q", "--from", &from, image.to_str().unwrap(), "8m"]);
        assert_eq!(image.exists(), ran.code == 0, "{}", ran.err);
        ran
    }

    fn listed(&self) -> String {
        floe(&["ls", self.at("image").to_str().unwrap()]).out
    }

    /// Packs bytes; `None` without the program.
    fn packed(&self, program: &str, bytes: &[u8]) -> Option<Vec<u8>> {
        let plain = self.at("plain");
        fs::write(&plain, bytes).unwrap();
        let output = Command::new(program).arg("-c").stdin(File::open(&plain).unwrap()).output();
        let packed = output.ok().filter(|output| output.status.success());
        if packed.is_none() {
            eprintln!("skipped: no {program}");
        }
        packed.map(|output| output.stdout)
    }
}

/// Behind the blocks that end an archive, only zeroes are part of it.
#[test]
fn bytes_behind_the_end_are_told() {
    let place = Place::new();
    let one = entry(b"one", b"1");
    let whole = with_end(&[&one]);
    let padded = [&whole[..], &[0; 10 * 1024]].concat();
    for archive in [&whole, &padded, &vec![0; 10 * 1024]] {
        let ran = place.made(archive);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    }
    // Neither GNU tar nor Floe reads on here, but nothing is left out in silence.
    for more in [&with_end(&[&entry(b"two", b"2")])[..], b"garbage"] {
        let ran = place.made(&[&padded, more].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(ran.err.contains("more follows the end of the archive"), "{}", ran.err);
        assert!(place.listed().contains("one") && !place.listed().contains("two"));
    }
    // An image of a file system begins like an archive without files.
    let image = [&[0; 1024][..], &[0x5a; 9000]].concat();
    for bytes in [&image[..], &[&[0; 100_000][..], b"x"].concat()] {
        let refused = place.made(bytes);
        assert_eq!(refused.code, 8, "{}", refused.err);
        assert!(refused.err.contains("begins with zeroes, but is no archive"), "{}", refused.err);
    }
    let made = place.at("fs");
    assert_eq!(floe(&["mkfs", "-q", made.to_str().unwrap(), "8m"]).code, 0);
    let mut piped = Command::new(env!("CARGO_BIN_EXE_floe"));
    piped.args(["mkfs", "--from", "-"]).arg(place.at("new")).arg("8m");
    let piped = ran(&piped.stdin(File::open(&made).unwrap()).output().unwrap());
    assert_eq!(piped.code, 8, "{}", piped.err);
    assert!(piped.err.contains("image:FILE"), "{}", piped.err);
    assert!(!place.at("new").exists());
}

#[test]
fn headers_without_their_files_are_refused() {
    let place = Place::new();
    let one = entry(b"one", b"1");
    let name = header(b'L', b"a long name\0");
    let records = header(b'x', b"11 path=ab\n");
    let link = header(b'K', b"a long target\0");
    for lost in [&name, &records, &link] {
        for (archive, fault) in [
            (with_end(&[&one, lost]), "the file of an extended header is missing"),
            ([&one[..], lost].concat(), "the archive is truncated"),
        ] {
            let ran = place.made(&archive);
            assert_eq!(ran.code, 8, "{}", ran.err);
            assert!(ran.err.contains(fault), "{}", ran.err);
        }
        assert_eq!(place.made(&with_end(&[lost, &one])).code, 0);
    }
    // A global header needs no file: `git archive` of an empty tree.
    let global = header(b'g', b"13 comment=x\n");
    let ran = place.made(&with_end(&[&global]));
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}

/// The packed bytes of a sparse file are not its content.
#[test]
fn sparse_files_of_unknown_forms_are_refused() {
    let place = Place::new();
    for (records, fault) in [
        (&b"22 GNU.sparse.major=2\n22 GNU.sparse.minor=0\n"[..], "form 2.0"),
        (b"22 GNU.sparse.major=1\n22 GNU.sparse.minor=7\n", "form 1.7"),
        (b"27 GNU.sparse.realsize=900\n", "the map of a sparse file is damaged"),
    ] {
        let ran = place.made(&with_end(&[&header(b'x', records), &entry(b"one", b"1")]));
        assert_eq!(ran.code, 8, "{fault}: {}", ran.err);
        assert!(ran.err.contains(fault), "{fault}: {}", ran.err);
    }
}

#[test]
fn packed_archives_are_named_with_what_unpacks_them() {
    let place = Place::new();
    let whole = with_end(&[&entry(b"one", b"1")]);
    for program in ["xz", "bzip2"] {
        let Some(packed) = place.packed(program, &whole) else { continue };
        let ran = place.made(&packed);
        assert_eq!(ran.code, 8);
        let hint = format!("{program} -dc FILE | floe mkfs --from -");
        assert!(ran.err.contains(&hint), "{}", ran.err);
    }
    // The name of a file may begin as such a format does.
    assert_eq!(place.made(&with_end(&[&entry(b"BZh", b"1")])).code, 0);
    let noise = place.made(&[0x5a; 5000]);
    assert!(noise.err.contains("there is no tar header"), "{}", noise.err);
}

/// Skippable frames of zstd come first where `pzstd` or a tool with an index wrote it; gzip may be padded, as on tapes.
#[test]
fn packed_archives_may_be_padded() {
    let place = Place::new();
    let whole = with_end(&[&entry(b"one", b"1")]);
    let skipped = [&[0x5f, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"any"].concat();
    if let Some(packed) = place.packed("zstd", &whole) {
        let ran = place.made(&[&skipped, &skipped, &packed[..]].concat());
        assert_eq!((ran.code, ran.err.as_str()), (0, ""));
        assert!(place.listed().contains("one"));
        // Such a magic alone is none.
        assert!(place.made(&[&skipped[..], &[7; 900]].concat()).err.contains("no tar header"));
    }
    if let Some(packed) = place.packed("gzip", &whole) {
        let ran = place.made(&[&packed[..], &packed, &[0; 5000]].concat());
        assert_eq!(ran.code, 0, "{}", ran.err);
        assert!(place.listed().contains("one"));
        for behind in [&b"garbage"[..], &[&[0; 900][..], b"garbage"].concat()] {
            let ran = place.made(&[&packed, behind].concat());
            assert_eq!(ran.code, 8, "{}", ran.err);
            assert!(ran.err.contains("damaged"), "{}", ran.err);
        }
    }
    // The same where an image is checked.
    let plain = place.at("fs");
    assert_eq!(floe(&["mkfs", "-q", plain.to_str().unwrap(), "1m"]).code, 0);
    let image = fs::read(&plain).unwrap();
    let checked = place.at("packed");
    let check = || floe(&["check", checked.to_str().unwrap()]);
    if let Some(packed) = place.packed("zstd", &image) {
        fs::write(&checked, [&skipped, &packed[..]].concat()).unwrap();
        assert_eq!(check().code, 0, "{}", check().err);
    }
    if let Some(packed) = place.packed("gzip", &image) {
        fs::write(&checked, [&packed[..], &[0; 5000]].concat()).unwrap();
        assert_eq!(check().code, 0, "{}", check().err);
    }
}

/// `floe mkfs --from - FILE < FILE` would overwrite what it reads.
#[test]
fn an_archive_at_standard_input_is_not_overwritten() {
    let place = Place::new();
    let whole = with_end(&[&entry(b"one", b"1")]);
    let source = place.at("source");
    fs::write(&source, &whole).unwrap();
    symlink("source", place.at("link")).unwrap();
    fs::hard_link(&source, place.at("hard")).unwrap();
    let run = |options: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_floe"));
        command.args(["mkfs", "-q", "-F"]).args(options).current_dir(place.folder.path());
        ran(&command.stdin(Stdio::from(File::open(&source).unwrap())).output().unwrap())
    };
    for options in [
        &["--from", "-", "source", "8m"][..],
        &["--from", "tar:-", "link", "8m"],
        &["-d", "-", "hard", "8m"],
    ] {
        let ran = run(options);
        assert_eq!(ran.code, 16, "{options:?}: {}", ran.err);
        assert!(ran.err.contains("would overwrite"), "{options:?}: {}", ran.err);
        assert!(fs::read(&source).unwrap() == whole, "{options:?}");
    }
    // A file of that name is another one.
    fs::write(place.at("-"), &whole).unwrap();
    let ran = run(&["--from", "-", "./-", "8m"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
}
