//! Trees from directories, archives, layers and images, without the command-line program.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;
use floe_archive::{Entry, Kind, Timestamp, Writer};
use floe_disk::mkfs::tree::{Body, Contents, Data, NodeId, Tree};
use floe_disk::source::{self, BoxedContents, Loaded, SourceError, Spooled};
use sha2::{Digest, Sha256};

type Archive = Writer<Vec<u8>>;

fn archive(fill: impl FnOnce(&mut Archive)) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    fill(&mut writer);
    writer.finish().unwrap()
}

fn file(archive: &mut Archive, path: &str, content: &str) {
    let size = content.len() as u64;
    let entry = Entry { mode: 0o644, size, ..Entry::new(path.as_bytes(), Kind::File) };
    archive.append(&entry).unwrap();
    archive.write_all(content.as_bytes()).unwrap();
}

fn link(archive: &mut Archive, kind: Kind, path: &str, to: &str) {
    let entry = Entry { link: to.as_bytes().to_vec(), ..Entry::new(path.as_bytes(), kind) };
    archive.append(&entry).unwrap();
}

fn directory(archive: &mut Archive, path: &str, mode: u16) {
    archive.append(&Entry { mode, ..Entry::new(path.as_bytes(), Kind::Directory) }).unwrap();
}

fn load(bytes: &[u8]) -> Result<Loaded<BoxedContents>, SourceError> {
    let folder = tempfile::tempdir().unwrap();
    let archive = source::standard_input(&mut &bytes[..], folder.path())?;
    source::tar(archive)
}

/// Every path with its content, link target or type.
fn listed(loaded: &Loaded<BoxedContents>) -> Vec<String> {
    let tree = &loaded.tree;
    let mut lines = Vec::new();
    let mut open = vec![(tree.root(), String::new())];
    while let Some((directory, path)) = open.pop() {
        for child in tree.children(directory) {
            let path = format!("{path}/{}", String::from_utf8_lossy(child.name));
            let text = match tree.node(child.node).body() {
                Body::Directory => {
                    open.push((child.node, path.clone()));
                    "/".to_owned()
                }
                Body::Symlink(target) => format!(" -> {}", String::from_utf8_lossy(target)),
                Body::File { .. } => {
                    let bytes = content(tree, child.node, &*loaded.contents);
                    format!("={}", String::from_utf8_lossy(&bytes))
                }
                other => format!(" {:?}", other.file_type()),
            };
            lines.push(format!("{path}{text}"));
        }
    }
    lines.sort();
    lines
}

fn content(tree: &Tree, node: NodeId, contents: &dyn Contents) -> Vec<u8> {
    let Body::File { size, data } = tree.node(node).body() else { panic!() };
    let mut bytes = vec![0; *size as usize];
    match data {
        Data::Whole { content, from } => contents.read_at(*content, *from, &mut bytes).unwrap(),
        Data::Sparse(extents) => {
            for extent in extents {
                let part = &mut bytes[extent.at as usize..][..extent.len as usize];
                contents.read_at(extent.content, extent.from, part).unwrap();
            }
        }
    }
    bytes
}

#[test]
fn the_last_entry_of_a_path_counts() {
    let bytes = archive(|archive| {
        file(archive, "a", "first");
        file(archive, "./a", "second");
        file(archive, "dir/was-file", "x");
        directory(archive, "dir/was-file/", 0o700);
        directory(archive, "was-dir", 0o755);
        file(archive, "was-dir/below", "x");
        file(archive, "was-dir", "now a file");
        file(archive, "/absolute//path", "y");
        directory(archive, "dir", 0o710);
        directory(archive, "./", 0o711);
    });
    let loaded = load(&bytes).unwrap();
    assert_eq!(
        listed(&loaded),
        [
            "/a=second",
            "/absolute/",
            "/absolute/path=y",
            "/dir/",
            "/dir/was-file/",
            "/was-dir=now a file"
        ]
    );
    let mode =
        |path: &str| loaded.tree.node(loaded.tree.look_up_path(path.as_bytes()).unwrap()).mode();
    assert_eq!(mode("/") & 0o7777, 0o711);
    assert_eq!(mode("/dir") & 0o7777, 0o710);
    // An implied directory.
    assert_eq!(mode("/absolute") & 0o7777, 0o755);
}

#[test]
fn hard_links_find_targets_before_and_behind() {
    let bytes = archive(|archive| {
        link(archive, Kind::HardLink, "early", "late");
        link(archive, Kind::HardLink, "chain-a", "chain-b");
        link(archive, Kind::HardLink, "chain-b", "./late");
        link(archive, Kind::HardLink, "replaced", "nowhere");
        file(archive, "late", "content");
        link(archive, Kind::HardLink, "itself", "late");
        link(archive, Kind::HardLink, "late", "late");
        file(archive, "replaced", "after all");
    });
    let loaded = load(&bytes).unwrap();
    let late = loaded.tree.look_up_path(b"late").unwrap();
    for name in ["early", "chain-a", "chain-b", "itself"] {
        assert_eq!(loaded.tree.look_up_path(name.as_bytes()), Some(late), "{name}");
    }
    assert_eq!(loaded.tree.node(late).link_count(), 5);
    assert_eq!(listed(&loaded).len(), 6);
    let lost = archive(|archive| link(archive, Kind::HardLink, "a", "b"));
    let error = load(&lost).err().unwrap();
    assert_eq!(error.to_string(), "a: its hard link leads to b, which does not exist");
}

#[test]
fn paths_that_leave_the_root_are_refused() {
    for path in ["../a", "a/../../b", "a/b/../../../c"] {
        let bytes = archive(|archive| file(archive, path, "x"));
        let error = load(&bytes).err().unwrap();
        assert!(error.to_string().contains("could leave the root"), "{error}");
    }
    let bytes = archive(|archive| {
        file(archive, "f", "x");
        link(archive, Kind::HardLink, "l", "../../etc/passwd");
    });
    assert!(load(&bytes).is_err());
    let below_a_file = archive(|archive| {
        file(archive, "f", "x");
        file(archive, "f/g", "x");
    });
    assert!(load(&below_a_file).err().unwrap().to_string().contains("not a directory"));
    // Links are followed, but never out of the tree.
    let bytes = archive(|archive| {
        directory(archive, "usr/bin", 0o755);
        link(archive, Kind::SymbolicLink, "bin", "usr/bin");
        link(archive, Kind::SymbolicLink, "up", "../../../usr/");
        link(archive, Kind::SymbolicLink, "top", "/");
        link(archive, Kind::SymbolicLink, "loop", "loop");
        file(archive, "bin/sh", "1");
        file(archive, "up/bin/ls", "2");
        file(archive, "top/usr/x", "3");
    });
    let all = listed(&load(&bytes).unwrap());
    for line in ["/usr/bin/sh=1", "/usr/bin/ls=2", "/usr/x=3", "/bin -> usr/bin"] {
        assert!(all.iter().any(|known| known == line), "{line}: {all:?}");
    }
    let looped = archive(|archive| {
        link(archive, Kind::SymbolicLink, "loop", "loop");
        file(archive, "loop/x", "1");
    });
    assert!(load(&looped).err().unwrap().to_string().contains("too many symbolic links"));
}

/// Writes an OCI layout with these layers, and returns its path.
fn layout(folder: &Path, layers: &[Vec<u8>]) -> PathBuf {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs).unwrap();
    let blob = |bytes: &[u8], kind: &str| {
        let hex: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(blobs.join(&hex), bytes).unwrap();
        format!(r#"{{"mediaType":"{kind}","digest":"sha256:{hex}","size":{}}}"#, bytes.len())
    };
    let kind = "application/vnd.oci.image.layer.v1.tar";
    let layers: Vec<String> = layers.iter().map(|bytes| blob(bytes, kind)).collect();
    let manifest = format!(r#"{{"schemaVersion":2,"layers":[{}]}}"#, layers.join(","));
    let manifest = blob(manifest.as_bytes(), "application/vnd.oci.image.manifest.v1+json");
    let index = format!(r#"{{"schemaVersion":2,"manifests":[{manifest}]}}"#);
    fs::write(folder.join("index.json"), index).unwrap();
    folder.to_owned()
}

#[test]
fn layers_hide_what_is_below_them() {
    let lower = archive(|archive| {
        file(archive, "kept", "1");
        file(archive, "hidden", "1");
        file(archive, "changed", "1");
        file(archive, "dir/old", "1");
        file(archive, "dir/sub/old", "1");
        file(archive, "gone/x/y", "1");
        file(archive, "opaque/a/old", "1");
        file(archive, "opaque/old", "1");
        link(archive, Kind::SymbolicLink, "bin", "usr/bin");
        directory(archive, "usr/bin", 0o755);
        file(archive, ".wh.plain", "in the lowest layer, it hides nothing");
    });
    let upper = archive(|archive| {
        file(archive, ".wh.hidden", "");
        file(archive, "changed", "2");
        file(archive, "dir/new", "2");
        file(archive, "dir/.wh.old", "");
        file(archive, ".wh.gone", "");
        // Entries of this layer stay, before the opaque marker and behind it.
        file(archive, "opaque/a/new", "2");
        file(archive, "opaque/.wh..wh..opq", "");
        file(archive, "opaque/new", "2");
        file(archive, "bin/tool", "2");
        link(archive, Kind::HardLink, "again", "kept");
        file(archive, ".wh..wh.plnk/7.8", "");
    });
    let scratch = tempfile::tempdir().unwrap();
    let place = layout(scratch.path(), &[lower.clone(), upper.clone()]);
    let loaded = source::oci(&place, None, scratch.path()).unwrap();
    assert_eq!(
        listed(&loaded),
        [
            "/again=1",
            "/bin -> usr/bin",
            "/changed=2",
            "/dir/",
            "/dir/new=2",
            "/dir/sub/",
            "/dir/sub/old=1",
            "/kept=1",
            "/opaque/",
            "/opaque/a/",
            "/opaque/a/new=2",
            "/opaque/new=2",
            "/usr/",
            "/usr/bin/",
            "/usr/bin/tool=2",
        ]
    );
    // A plain archive has no whiteouts.
    let plain = archive(|archive| file(archive, ".wh.hidden", ""));
    assert_eq!(listed(&load(&plain).unwrap()), ["/.wh.hidden="]);
}

#[test]
fn blobs_must_have_their_digests() {
    let scratch = tempfile::tempdir().unwrap();
    let place = layout(scratch.path(), &[archive(|archive| file(archive, "a", "1"))]);
    assert!(source::oci(&place, None, scratch.path()).is_ok());
    let error = source::oci(&place, Some("tag"), scratch.path()).err().unwrap();
    assert!(error.to_string().contains("has no image \"tag\""), "{error}");
    for blob in fs::read_dir(place.join("blobs/sha256")).unwrap() {
        let path = blob.unwrap().path();
        let good = fs::read(&path).unwrap();
        let mut bad = good.clone();
        bad[0] ^= 1;
        fs::write(&path, &bad).unwrap();
        let error = source::oci(&place, None, scratch.path()).err().unwrap();
        assert!(error.to_string().contains("digest"), "{error}");
        fs::write(&path, &good[1..]).unwrap();
        let error = source::oci(&place, None, scratch.path()).err().unwrap();
        assert!(error.to_string().contains("size"), "{error}");
        fs::write(&path, good).unwrap();
    }
    fs::write(place.join("index.json"), r#"{"manifests":[{"digest":"sha256:../../x"}]}"#).unwrap();
    let error = source::oci(&place, None, scratch.path()).err().unwrap();
    assert!(error.to_string().contains("is not a SHA-256 digest"), "{error}");
}

#[test]
fn packed_archives_are_unpacked() {
    let plain = archive(|archive| file(archive, "a", &"text ".repeat(1000)));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.tar");
    fs::write(&path, &plain).unwrap();
    let expected = listed(&load(&plain).unwrap());
    for program in ["gzip", "zstd"] {
        let output = std::process::Command::new(program).arg("-qc").arg(&path).output();
        let Some(packed) = output.ok().filter(|output| output.status.success()) else {
            eprintln!("skipped: no {program}");
            continue;
        };
        assert_eq!(listed(&load(&packed.stdout).unwrap()), expected, "{program}");
        let name = folder.path().join(program);
        fs::write(&name, &packed.stdout).unwrap();
        let archive = Spooled::open(&name, folder.path()).unwrap();
        assert_eq!(listed(&source::tar(archive).unwrap()), expected, "{program}");
        fs::write(&name, &packed.stdout[..packed.stdout.len() / 2]).unwrap();
        assert!(Spooled::open(&name, folder.path()).is_err());
    }
    let error = load(&plain[..1000]).err().unwrap();
    assert!(error.to_string().contains("standard input: at byte 0 of the archive"), "{error}");
}

#[test]
fn times_have_nanoseconds() {
    let mtime = Timestamp { seconds: -5, nanoseconds: 7 };
    let bytes = archive(|archive| {
        archive.append(&Entry { mtime, ..Entry::new(b"p", Kind::Fifo) }).unwrap();
    });
    let tree = load(&bytes).unwrap().tree;
    let attributes = tree.node(tree.look_up_path(b"p").unwrap()).attributes();
    assert_eq!((attributes.mtime.seconds, attributes.mtime.nanoseconds), (-5, 7));
    assert_eq!(attributes.mtime, attributes.ctime);
}
