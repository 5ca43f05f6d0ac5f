//! Floe reads the archives of other programs, and they read those of Floe. Each test skips programs
//! that are not installed.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::process::Command;

use floe_archive::{Archive, ArchiveFault, Entry, Kind, Part, Reader, Timestamp, Writer};

/// Runs a program in a folder; `None` if it is missing or fails.
fn run(folder: &Path, program: &str, arguments: &[&str]) -> Option<Vec<u8>> {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(folder)
        .env("LC_ALL", "C")
        .output()
        .ok()?;
    if !output.status.success() {
        eprintln!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        return None;
    }
    Some(output.stdout)
}

fn entries(archive: &[u8]) -> Vec<Entry> {
    let mut reader = Reader::new(archive);
    std::iter::from_fn(|| reader.next_entry().unwrap()).collect()
}

fn content(archive: &[u8], entry: &Entry) -> Vec<u8> {
    let mut bytes = vec![0; entry.size as usize];
    for part in &entry.parts {
        let (at, len) = (part.at as usize, part.len as usize);
        archive.read_at(part.from, &mut bytes[at..at + len]).unwrap();
    }
    bytes
}

/// Makes a folder with all kinds of files that need no privilege.
fn source(folder: &Path) {
    let long = "n".repeat(120);
    fs::create_dir_all(folder.join("dir").join(&long)).unwrap();
    fs::write(folder.join("dir").join(&long).join("deep"), b"deep").unwrap();
    fs::write(folder.join("plain"), vec![7; 1234]).unwrap();
    fs::write(folder.join("empty"), b"").unwrap();
    fs::hard_link(folder.join("plain"), folder.join("second")).unwrap();
    symlink("plain", folder.join("link")).unwrap();
    symlink("t".repeat(150), folder.join("long-link")).unwrap();
    let sparse = File::create(folder.join("sparse")).unwrap();
    sparse.set_len(40 << 20).unwrap();
    for at in 0..40u64 {
        sparse.write_all_at(&[at as u8 + 1; 4096], at << 20).unwrap();
    }
    File::create(folder.join("hole")).unwrap().set_len(1 << 20).unwrap();
    run(folder, "mkfifo", &["fifo"]).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_234_567_890, 123_456_700);
    File::options().write(true).open(folder.join("plain")).unwrap().set_modified(time).unwrap();
}

/// Compares an archive with the folder that it was made from.
fn compare(folder: &Path, archive: &[u8], what: &str, has_nanoseconds: bool) {
    let mut names = Vec::new();
    for entry in entries(archive) {
        let path = String::from_utf8(entry.path.clone()).unwrap();
        let path = path.trim_start_matches("./").trim_end_matches('/').to_owned();
        let metadata = fs::symlink_metadata(folder.join(&path)).unwrap();
        match entry.kind {
            Kind::File => {
                let theirs = fs::read(folder.join(&path)).unwrap();
                assert!(content(archive, &entry) == theirs, "{what}: {path}");
            }
            Kind::SymbolicLink => {
                let target = fs::read_link(folder.join(&path)).unwrap();
                assert_eq!(String::from_utf8_lossy(&entry.link), target.to_str().unwrap());
            }
            Kind::HardLink => {
                let first = String::from_utf8(entry.link.clone()).unwrap();
                let first = fs::symlink_metadata(folder.join(first)).unwrap();
                assert_eq!(first.ino(), metadata.ino(), "{what}: {path}");
            }
            Kind::Directory => assert!(metadata.is_dir(), "{what}: {path}"),
            Kind::Fifo => assert_eq!(path, "fifo"),
            _ => panic!("{what}: {path} is {:?}", entry.kind),
        }
        assert_eq!(u32::from(entry.mode), metadata.mode() & 0o7777, "{what}: {path}");
        assert_eq!((entry.uid, entry.gid), (metadata.uid(), metadata.gid()), "{what}: {path}");
        assert_eq!(entry.mtime.seconds, metadata.mtime(), "{what}: {path}");
        if has_nanoseconds {
            assert_eq!(i64::from(entry.mtime.nanoseconds), metadata.mtime_nsec(), "{what}: {path}");
        }
        names.push(path);
    }
    for name in ["plain", "second", "sparse", "hole", "link", "long-link", "fifo", "empty"] {
        assert!(names.iter().any(|known| known == name), "{what}: {name} is missing: {names:?}");
    }
}

#[test]
fn archives_of_gnu_tar_are_read() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path().join("source");
    fs::create_dir(&folder).unwrap();
    source(&folder);
    let forms: [(&[&str], bool); 7] = [
        (&["--format=gnu"], false),
        (&["--format=gnu", "--sparse"], false),
        (&["--format=pax"], true),
        (&["--format=pax", "--sparse", "--sparse-version=0.0"], true),
        (&["--format=pax", "--sparse", "--sparse-version=0.1"], true),
        (&["--format=pax", "--sparse", "--sparse-version=1.0"], true),
        (&["--format=pax", "--pax-option=globexthdr.name=g,comment=x"], true),
    ];
    for (form, has_nanoseconds) in forms {
        let mut arguments = form.to_vec();
        arguments.extend(["-cf", "-", "."]);
        let Some(archive) = run(&folder, "tar", &arguments) else { continue };
        compare(&folder, &archive, &form.join(" "), has_nanoseconds);
        let sparse = form.contains(&"--sparse");
        let small = entries(&archive)
            .iter()
            .all(|entry| entry.parts.iter().map(|part| part.len).sum::<u64>() < 1 << 20);
        assert_eq!(sparse, small, "{form:?}: holes");
    }
    for form in ["pax", "gnutar"] {
        let arguments = ["--format", form, "-cf", "-", "."];
        if let Some(archive) = run(&folder, "bsdtar", &arguments) {
            compare(&folder, &archive, &format!("bsdtar {form}"), form == "pax");
        }
    }
}

#[test]
fn attributes_of_gnu_tar_are_read() {
    let scratch = tempfile::tempdir_in("/var/tmp").unwrap();
    let folder = scratch.path();
    fs::write(folder.join("file"), b"x").unwrap();
    let set = |arguments: &[&str]| run(folder, "setfattr", arguments).is_some();
    if !set(&["-n", "user.a=b%", "-v", "0x00ff0a", "file"]) || !set(&["-n", "user.z", "file"]) {
        eprintln!("skipped: no attributes here");
        return;
    }
    let listed = run(folder, "setfacl", &["-m", "u:54321:r,g:54322:w", "file"]).is_some();
    let arguments = ["--format=pax", "--xattrs", "--acls", "--numeric-owner", "-cf", "-", "file"];
    let Some(archive) = run(folder, "tar", &arguments) else { return };
    let found = &entries(&archive)[0].attributes;
    let value = |name: &[u8]| found.iter().find(|one| one.0 == name).map(|one| one.1.clone());
    assert_eq!(value(b"user.a=b%"), Some(vec![0, 0xff, 0x0a]));
    assert_eq!(value(b"user.z"), Some(vec![]));
    if listed {
        let list = value(b"system.posix_acl_access").unwrap();
        assert_eq!(list.len(), 4 + 6 * 8);
        assert!(list.windows(8).any(|entry| entry == [2, 0, 4, 0, 0x31, 0xd4, 0, 0]), "{list:?}");
    }
}

/// Entries that need every kind of extended header.
fn odd_entries() -> Vec<(Entry, Vec<u8>)> {
    let time = |seconds, nanoseconds| Timestamp { seconds, nanoseconds };
    let file = |path: &[u8], size| Entry { mode: 0o640, size, ..Entry::new(path, Kind::File) };
    let long = [b"l/".repeat(90), b"name".to_vec()].concat();
    let list = [&[2, 0, 0, 0][..], &[1, 0, 6, 0, 255, 255, 255, 255]].concat();
    let list = [list, vec![2, 0, 4, 0, 232, 3, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255]].concat();
    let list =
        [list, vec![16, 0, 4, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255]].concat();
    let attributes = vec![
        (b"security.capability".to_vec(), vec![1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0]),
        (b"system.posix_acl_access".to_vec(), list),
        (b"user.a=b%c".to_vec(), b"x\n=\0".to_vec()),
    ];
    vec![
        (Entry { mtime: time(-7, 250), ..file(b"old", 3) }, b"abc".to_vec()),
        (Entry { uid: 3_000_000_000, gid: 2_097_152, ..file(&long, 600) }, vec![9; 600]),
        (Entry { attributes, mtime: time(1 << 40, 0), ..file(b"attributes", 0) }, vec![]),
        (Entry { link: long.clone(), ..Entry::new(b"hard", Kind::HardLink) }, vec![]),
        (Entry { link: long, mode: 0o777, ..Entry::new(b"soft", Kind::SymbolicLink) }, vec![]),
        (Entry { device: (8, 1), ..Entry::new(b"disk", Kind::BlockDevice) }, vec![]),
        (Entry { device: (5, 1), ..Entry::new(b"tty", Kind::CharDevice) }, vec![]),
        (Entry { mode: 0o4755, ..Entry::new(b"d/", Kind::Directory) }, vec![]),
        (Entry::new(b"pipe", Kind::Fifo), vec![]),
        (file(b"\xff\xfe", 1), vec![1]),
    ]
}

#[test]
fn everything_that_is_written_is_read() {
    let mut writer = Writer::new(Vec::new());
    for (entry, content) in odd_entries() {
        writer.append(&entry).unwrap();
        writer.write_all(&content).unwrap();
    }
    let part = |at, len| Part { at, len, from: 0 };
    let sparse = Entry {
        size: 1 << 40,
        parts: vec![part(0, 5), part(1 << 30, 4096)],
        ..Entry::new(b"sparse", Kind::File)
    };
    let hole = Entry { size: 77, ..Entry::new(b"hole", Kind::File) };
    writer.append_sparse(&sparse).unwrap();
    writer.write_all(&[3; 4101]).unwrap();
    writer.append_sparse(&hole).unwrap();
    let archive = writer.finish().unwrap();
    let found = entries(&archive);
    for ((before, bytes), after) in odd_entries().into_iter().zip(&found) {
        assert_eq!(content(&archive, after), bytes);
        assert_eq!(Entry { parts: Vec::new(), ..after.clone() }, before);
    }
    let [.., found_sparse, found_hole] = &found[..] else { panic!() };
    assert_eq!((&found_sparse.path, found_sparse.size), (&sparse.path, 1 << 40));
    let stripped: Vec<_> = found_sparse.parts.iter().map(|part| (part.at, part.len)).collect();
    assert_eq!(stripped, [(0, 5), (1 << 30, 4096)]);
    assert_eq!((found_hole.size, found_hole.parts.len()), (77, 0));
    assert_eq!(found.len(), odd_entries().len() + 2);
    // GNU tar agrees.
    let scratch = tempfile::tempdir().unwrap();
    fs::write(scratch.path().join("a.tar"), &archive).unwrap();
    let Some(list) = run(scratch.path(), "tar", &["--numeric-owner", "-tvf", "a.tar"]) else {
        return;
    };
    let list = String::from_utf8_lossy(&list).into_owned();
    for text in ["3000000000/2097152", "8,1", "1099511627776", "hard link to l/", "-rw-r-----"] {
        assert!(list.contains(text), "{text}: {list}");
    }
    assert_eq!(list.lines().count(), found.len());
}

#[test]
fn the_writer_counts() {
    let mut writer = Writer::new(Vec::new());
    let entry = Entry { size: 2, ..Entry::new(b"a", Kind::File) };
    writer.append(&entry).unwrap();
    assert!(writer.write_all(b"abc").is_err());
    assert!(writer.append(&entry).is_err());
}

#[test]
fn cut_and_damaged_archives_are_refused() {
    let mut writer = Writer::new(Vec::new());
    for (entry, content) in odd_entries() {
        writer.append(&entry).unwrap();
        writer.write_all(&content).unwrap();
    }
    let archive = writer.finish().unwrap();
    let whole = entries(&archive).len();
    for len in 0..archive.len() {
        let mut reader = Reader::new(&archive[..len]);
        let mut count = 0;
        loop {
            match reader.next_entry() {
                Ok(Some(_)) => count += 1,
                Ok(None) => {
                    // Behind the last entry, or where another entry could begin.
                    assert!(count == whole || len % 512 == 0, "{len}: {count} of {whole}");
                    break;
                }
                Err(error) => {
                    assert!(matches!(error.fault, ArchiveFault::Truncated), "{len}: {error}");
                    break;
                }
            }
        }
        assert!(count <= whole);
    }
    let mut broken = archive.clone();
    broken[3] ^= 1;
    let error = Reader::new(&broken[..]).next_entry().unwrap_err();
    assert!(matches!(error.fault, ArchiveFault::Checksum));
    assert!(error.to_string().starts_with("at byte 0 of the archive"));
}

#[test]
fn hostile_headers_take_no_memory() {
    let mut bomb = Writer::new(Vec::new());
    bomb.append(&Entry { size: 1 << 50, ..Entry::new(b"long", Kind::File) }).unwrap();
    let _ = bomb;
    // A long name of 8 GiB, and a map of 2^60 entries.
    let mut archive = Vec::new();
    let mut header = [0u8; 512];
    header[..4].copy_from_slice(b"name");
    header[124..135].copy_from_slice(b"77777777777");
    header[156] = b'L';
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|&byte| u32::from(byte)).sum();
    header[148..154].copy_from_slice(format!("{sum:06o}").as_bytes());
    archive.extend(header);
    let error = Reader::new(&archive[..]).next_entry().unwrap_err();
    assert!(matches!(error.fault, ArchiveFault::TooLarge), "{error}");
}

/// As `tar --acls` and setfacl do: where a list disagrees with the header, the mode follows the list.
#[test]
fn the_mode_follows_an_access_list() {
    use floe_format::ext::xattr::acl::{AclEntry, AclWho, encode_for_programs};

    let entry = |who, permissions| AclEntry { who, permissions };
    let list = encode_for_programs(&[
        entry(AclWho::Owner, 6),
        entry(AclWho::User(1000), 4),
        entry(AclWho::OwningGroup, 6),
        entry(AclWho::Mask, 4),
        entry(AclWho::Other, 0),
    ]);
    let mut writer = Writer::new(Vec::new());
    let attributes = vec![(b"system.posix_acl_access".to_vec(), list.clone())];
    writer.append(&Entry { mode: 0o4664, attributes, ..Entry::new(b"a", Kind::File) }).unwrap();
    let archive = writer.finish().unwrap();
    let read = Reader::new(&archive[..]).next_entry().unwrap().unwrap();
    assert_eq!((read.mode, &read.attributes[0].1), (0o4640, &list));
}
