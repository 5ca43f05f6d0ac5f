//! `floe mkfs --from`: access lists, and the numbers of users and groups in attributes.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;

use floe_archive::{Entry, Kind, Reader, Writer};
use floe_format::ext::xattr::acl::{AclEntry, AclWho, decode_for_programs, encode_for_programs};
use floe_testkit::tool;
use tempfile::TempDir;

use AclWho::{Group, Mask, Other, Owner, OwningGroup, User};

use super::image_files::bytes;
use super::{Ran, floe};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const CAPABILITY: &[u8] = b"security.capability";

type Attribute = (Vec<u8>, Vec<u8>);

fn list(name: &[u8], entries: &[(AclWho, u16)]) -> Attribute {
    let entry = |&(who, permissions): &(AclWho, u16)| AclEntry { who, permissions };
    (name.to_vec(), encode_for_programs(&entries.iter().map(entry).collect::<Vec<_>>()))
}

/// Capabilities in the form of version 3, for the root of a user namespace.
fn capability(root: u32) -> Attribute {
    let mut value = vec![1, 0, 0, 3];
    value.extend([0x20; 16]);
    value.extend(root.to_le_bytes());
    (CAPABILITY.to_vec(), value)
}

/// An archive and the image that is made of it.
struct Made {
    folder: TempDir,
}

impl Made {
    fn of(entries: &[Entry]) -> Self {
        let mut writer = Writer::new(Vec::new());
        entries.iter().for_each(|entry| writer.append(entry).unwrap());
        Self::of_bytes(&writer.finish().unwrap())
    }

    fn of_bytes(archive: &[u8]) -> Self {
        let folder = tool::scratch("floe-lists-").unwrap();
        fs::write(folder.path().join("tar"), archive).unwrap();
        Self { folder }
    }

    fn image(&self) -> PathBuf {
        self.folder.path().join("image")
    }

    /// Runs mkfs, with an mtree specification.
    fn run(&self, options: &[&str], specification: &str) -> Ran {
        let (tar, image) = (self.folder.path().join("tar"), self.image());
        let metadata = self.folder.path().join("mtree");
        fs::write(&metadata, format!("#mtree\n{specification}")).unwrap();
        let from = format!("tar:{}", tar.display());
        let mut all = vec!["mkfs", "-q", "-F", "--from", &from, "--metadata"];
        all.push(metadata.to_str().unwrap());
        all.extend(options);
        all.extend([image.to_str().unwrap(), "8m"]);
        floe(&all)
    }

    fn entry(&self, path: &str) -> Entry {
        let image = self.image();
        let checked = floe(&["check", image.to_str().unwrap()]);
        assert_eq!(checked.code, 0, "{}{}", checked.out, checked.err);
        let exported = bytes(&[OsStr::new("export"), image.as_os_str()]);
        let mut reader = Reader::new(&exported[..]);
        loop {
            let entry = reader.next_entry().unwrap().expect(path);
            let found = String::from_utf8_lossy(&entry.path);
            if found.trim_start_matches("./").trim_end_matches('/') == path {
                return entry;
            }
        }
    }
}

fn entries_of(entry: &Entry, name: &[u8]) -> Vec<(AclWho, u16)> {
    let (_, value) = entry.attributes.iter().find(|(found, _)| found == name).expect("a list");
    let entries = decode_for_programs(value).unwrap();
    entries.into_iter().map(|entry| (entry.who, entry.permissions)).collect()
}

fn file(path: &[u8], mode: u16, attributes: &[Attribute]) -> Entry {
    Entry { mode, attributes: attributes.to_vec(), ..Entry::new(path, Kind::File) }
}

fn directory(path: &[u8], mode: u16, attributes: &[Attribute]) -> Entry {
    Entry { mode, attributes: attributes.to_vec(), ..Entry::new(path, Kind::Directory) }
}

const SHARED: [(AclWho, u16); 5] =
    [(Owner, 6), (User(65534), 6), (OwningGroup, 6), (Mask, 6), (Other, 0)];

/// As chmod has it: the owner, the mask and the others get what the mode says.
#[test]
fn a_list_follows_the_mode_of_a_specification() {
    let both = [list(ACCESS, &SHARED), list(DEFAULT, &SHARED)];
    let made = Made::of(&[file(b"a", 0o660, &both[..1]), directory(b"d", 0o660, &both)]);
    let ran = made.run(&[], "./a mode=0640\n./d type=dir mode=1751\n. mode=0711\n");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let read = made.entry("a");
    assert_eq!(read.mode, 0o640);
    let expected = [(Owner, 6), (User(65534), 6), (OwningGroup, 6), (Mask, 4), (Other, 0)];
    assert_eq!(entries_of(&read, ACCESS), expected);
    let read = made.entry("d");
    assert_eq!(read.mode, 0o1751);
    let expected = [(Owner, 7), (User(65534), 6), (OwningGroup, 6), (Mask, 5), (Other, 1)];
    assert_eq!(entries_of(&read, ACCESS), expected);
    assert_eq!(entries_of(&read, DEFAULT), SHARED);
}

/// The ids in lists and of capabilities are mapped as owners are; `--owner` is chown, which leaves lists alone.
#[test]
fn ids_in_attributes_are_mapped() {
    let named = |user, group| {
        [(Owner, 6), (User(user), 6), (OwningGroup, 4), (Group(group), 4), (Mask, 6), (Other, 0)]
    };
    let lists = [list(ACCESS, &named(1000, 50)), list(DEFAULT, &named(0, 65_535))];
    let old = (CAPABILITY.to_vec(), [&[0, 0, 0, 2][..], &[0x20; 16]].concat());
    let made = Made::of(&[
        directory(b"d", 0o660, &lists),
        file(b"new", 0o755, &[capability(1000)]),
        file(b"old", 0o755, std::slice::from_ref(&old)),
    ]);
    let maps = ["--uid-map", "0:100000:65536", "--gid-map", "0:200000:65536"];
    let ran = made.run(&maps, "");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let read = made.entry("d");
    assert_eq!((read.uid, read.gid), (100_000, 200_000));
    assert_eq!(entries_of(&read, ACCESS), named(101_000, 200_050));
    assert_eq!(entries_of(&read, DEFAULT), named(100_000, 265_535));
    assert_eq!(made.entry("new").attributes, [capability(101_000)]);
    assert_eq!(made.entry("old").attributes, [old]);

    let ran = made.run(&["--owner", "7:8"], "");
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let read = made.entry("d");
    assert_eq!((read.uid, read.gid), (7, 8));
    assert_eq!(entries_of(&read, ACCESS), named(1000, 50));

    for (attribute, id) in [
        (list(ACCESS, &named(65_536, 50)), "user 65536 of its access list"),
        (list(DEFAULT, &named(50, 65_536)), "group 65536 of its access list"),
        (capability(65_536), "user 65536 of its capabilities"),
    ] {
        let made = Made::of(&[directory(b"d", 0o660, &[attribute])]);
        let ran = made.run(&maps, "");
        assert_eq!(ran.code, 8, "{}", ran.err);
        assert!(ran.err.contains(&format!("/d: {id} is in no range of the map")), "{}", ran.err);
        assert!(!made.image().exists());
    }
    let two = [(Owner, 6), (User(1), 4), (User(2), 0), (OwningGroup, 0), (Mask, 6), (Other, 0)];
    let made = Made::of(&[file(b"f", 0o660, &[list(ACCESS, &two)])]);
    let ran = made.run(&["--uid-map", "0:0:2,2:1:1"], "");
    assert_eq!(ran.code, 8, "{}", ran.err);
    assert!(ran.err.contains("/f: two users of its access list become user 1"), "{}", ran.err);
}

/// Linux takes none of these from `setfacl`.
#[test]
fn lists_that_no_program_can_set_are_refused_by_path() {
    let (owner, user, group) = ((Owner, 7), (User(1000), 5), (OwningGroup, 5));
    let (mask, other) = ((Mask, 7), (Other, 0));
    let on_file = |path: &[u8], name, entries: &[_]| file(path, 0o644, &[list(name, entries)]);
    let link = |entries: &[_]| Entry {
        link: b"a".to_vec(),
        mode: 0o777,
        attributes: vec![list(ACCESS, entries)],
        ..Entry::new(b"l", Kind::SymbolicLink)
    };
    let nobody = (User(u32::MAX), 7);
    for (entry, fault) in [
        (
            on_file(b"f", ACCESS, &[owner, user]),
            "/f: its access list is invalid: it has no entry for",
        ),
        (
            on_file(b"f", ACCESS, &[owner, group, user]),
            "/f: its access list is invalid: it has no entry for",
        ),
        (
            on_file(b"f", ACCESS, &[owner, user, group, other]),
            "/f: its access list is invalid: it has no mask",
        ),
        (
            on_file(b"f", ACCESS, &[owner, owner, group, other]),
            "/f: its access list is invalid: it has two",
        ),
        (
            on_file(b"f", ACCESS, &[owner, group, mask, mask, other]),
            "/f: its access list is invalid: it has two",
        ),
        (
            on_file(b"f", ACCESS, &[owner, nobody, group, mask, other]),
            "/f: its access list is invalid: it has an entry for the number 4294967295",
        ),
        (directory(b"d", 0o755, &[list(DEFAULT, &[owner, other])]), "/d: its default access list"),
        (on_file(b"f", DEFAULT, &[owner, group, other]), "/f: only directories have a default"),
        (link(&[owner, user, group, mask, other]), "/l: symbolic links have no access lists"),
    ] {
        let made = Made::of(&[entry]);
        let ran = made.run(&[], "");
        assert_eq!(ran.code, 8, "{fault}: {}", ran.err);
        assert!(ran.err.contains(fault), "{fault}: {}", ran.err);
        assert!(!made.image().exists());
    }
    // One that says no more than a mode is none.
    let made = Made::of(&[link(&[owner, group, other])]);
    assert_eq!(made.run(&[], "").code, 0);
    assert_eq!(made.entry("l").mode, 0o777);
}

/// `SCHILY.xattr.system.posix_acl_access`, as some programs write it: the mode follows as with `SCHILY.acl.access`.
#[test]
fn a_list_in_binary_form_counts_alike() {
    let archive = |entries: &[(AclWho, u16)]| {
        let mut writer = Writer::new(Vec::new());
        let (_, value) = list(ACCESS, entries);
        // As long as the name that it gets.
        let name = b"user.posix_acl_access//".to_vec();
        writer.append(&file(b"f", 0o4666, &[(name, value)])).unwrap();
        let mut bytes = writer.finish().unwrap();
        let at = bytes.windows(23).position(|part| part == b"user.posix_acl_access//").unwrap();
        bytes[at..at + 23].copy_from_slice(ACCESS);
        bytes
    };
    let made = Made::of_bytes(&archive(&SHARED));
    assert_eq!(made.run(&[], "").code, 0);
    let read = made.entry("f");
    assert_eq!((read.mode, entries_of(&read, ACCESS)), (0o4660, SHARED.to_vec()));
    let made = Made::of_bytes(&archive(&SHARED[..3]));
    let ran = made.run(&[], "");
    assert_eq!(ran.code, 8);
    assert!(ran.err.contains("/f: its access list is invalid: it has no entry for"), "{}", ran.err);
}
