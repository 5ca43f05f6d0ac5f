//! The root of a guest: a cpio archive in "newc" format, which the kernel unpacks into memory
//! (Linux, `Documentation/driver-api/early-userspace/buffer-format.rst`).

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

const FOLDER: u32 = 0o40_755;
const PROGRAM: u32 = 0o100_755;
const LINK: u32 = 0o120_777;
/// The console of the first process: a character device, 5:1.
const CONSOLE: u32 = 0o20_600;

/// An archive under construction.
pub(crate) struct Root {
    bytes: Vec<u8>,
    known: BTreeSet<String>,
    inode: u32,
}

impl Root {
    /// A root with the usual empty folders, and `program` as `/init`.
    pub(crate) fn new(program: &Path) -> Result<Self> {
        let mut root = Self { bytes: Vec::new(), known: BTreeSet::new(), inode: 0 };
        for folder in ["dev", "proc", "sys", "mnt", "tmp", "run", "etc"] {
            root.folder(folder);
        }
        root.entry("dev/console", CONSOLE, (5, 1), b"");
        root.program("init", program)?;
        Ok(root)
    }

    /// Adds a file and its parent folders.
    pub(crate) fn file(&mut self, name: &str, from: &Path) -> Result<()> {
        let bytes = fs::read(from).with_context(|| format!("reading {}", from.display()))?;
        if let Some((folder, _)) = name.rsplit_once('/') {
            self.folder(folder);
        }
        if self.known.insert(name.to_owned()) {
            self.entry(name, PROGRAM, (0, 0), &bytes);
        }
        Ok(())
    }

    /// Adds a program and its shared libraries.
    pub(crate) fn program(&mut self, name: &str, from: &Path) -> Result<()> {
        self.file(name, from)?;
        for library in libraries(from)? {
            let path = library.to_str().context("a library whose path is not UTF-8")?;
            // A program refers to its loader by path; all other libraries are found in `/lib`.
            let name = path.rsplit('/').next().unwrap_or_default();
            if name.starts_with("ld-") {
                self.file(path.trim_start_matches('/'), &library)?;
            } else {
                self.file(&format!("lib/{name}"), &library)?;
            }
        }
        Ok(())
    }

    /// Adds a text file.
    pub(crate) fn text(&mut self, name: &str, text: &str) {
        if let Some((folder, _)) = name.rsplit_once('/') {
            self.folder(folder);
        }
        if self.known.insert(name.to_owned()) {
            self.entry(name, PROGRAM, (0, 0), text.as_bytes());
        }
    }

    /// Adds a symbolic link in an existing folder.
    pub(crate) fn link(&mut self, name: &str, target: &str) {
        if self.known.insert(name.to_owned()) {
            self.entry(name, LINK, (0, 0), target.as_bytes());
        }
    }

    fn folder(&mut self, name: &str) {
        if let Some((above, _)) = name.rsplit_once('/') {
            self.folder(above);
        }
        if self.known.insert(name.to_owned()) {
            self.entry(name, FOLDER, (0, 0), b"");
        }
    }

    /// The finished archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.entry("TRAILER!!!", 0, (0, 0), b"");
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, device: (u32, u32), content: &[u8]) {
        self.inode += 1;
        let links = if mode == FOLDER { 2 } else { 1 };
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name_bytes = name.len() as u32 + 1;
        let numbers =
            [self.inode, mode, 0, 0, links, 0, size, 0, 0, device.0, device.1, name_bytes, 0];
        self.bytes.extend_from_slice(b"070701");
        for number in numbers {
            self.bytes.extend_from_slice(format!("{number:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Shared libraries of a program, including the loader; empty for a static one.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).output().context("starting ldd")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut found = Vec::new();
    for line in text.lines() {
        if line.contains("not found") {
            bail!("{}: a library is missing: {}", program.display(), line.trim());
        }
        found.extend(
            line.split_whitespace()
                .find(|word| word.starts_with('/'))
                .map(|word| PathBuf::from(word.trim_end_matches(':'))),
        );
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_lists_folders_before_what_is_in_them() {
        let program = std::env::current_exe().expect("this one");
        let mut root = Root::new(&program).expect("an archive");
        root.file("a/b/c", Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml").as_path())
            .expect("it is there");
        let bytes = root.finish();
        assert_eq!(bytes.len() % 4, 0);
        // Every entry locates the next one.
        let mut names = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            assert_eq!(&bytes[at..at + 6], b"070701");
            let number = |nr: usize| {
                let hex = std::str::from_utf8(&bytes[at + 6 + nr * 8..][..8]).expect("digits");
                u32::from_str_radix(hex, 16).expect("digits") as usize
            };
            let (size, name_bytes) = (number(6), number(11));
            let name = &bytes[at + 110..at + 110 + name_bytes - 1];
            names.push(String::from_utf8(name.to_vec()).expect("plain names"));
            at = (at + 110 + name_bytes).next_multiple_of(4) + size.next_multiple_of(4);
        }
        let place = |name: &str| names.iter().position(|one| one == name);
        assert!(place("a") < place("a/b") && place("a/b") < place("a/b/c"), "{names:?}");
        assert!(place("a").is_some() && place("init").is_some());
        assert_eq!(names.last().map(String::as_str), Some("TRAILER!!!"));
        assert!(names.iter().any(|name| name.contains("libc.so")), "{names:?}");
    }
}
