//! Identifies paths that lead to the same file.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{major, minor};

/// The file that a path leads to, regardless of its spelling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Identity {
    /// An existing file: its device and inode.
    Exists { dev: u64, ino: u64 },
    /// An unused name in the folder with this device and inode.
    Free { dev: u64, ino: u64, name: OsString },
    /// Neither the file nor its folder can be accessed.
    Unknown(PathBuf),
}

/// Maximum symbolic links that Linux follows.
const MOST_LINKS: usize = 40;

impl Identity {
    /// Resolves `path`, including dangling links, whose target would be created.
    pub(super) fn of(path: &Path) -> Self {
        let mut path = path.to_owned();
        for _ in 0..MOST_LINKS {
            if let Ok(found) = fs::metadata(&path) {
                return Self::Exists { dev: found.dev(), ino: found.ino() };
            }
            let Ok(target) = fs::read_link(&path) else { break };
            path = folder_of(&path).join(target);
        }
        let name = path.file_name().map(OsStr::to_owned);
        match (fs::metadata(folder_of(&path)), name) {
            (Ok(folder), Some(name)) => Self::Free { dev: folder.dev(), ino: folder.ino(), name },
            _ => Self::Unknown(path),
        }
    }

    /// The image file behind a loop device or one of its partitions, because writing to either
    /// modifies the other.
    pub(super) fn behind_loop(path: &Path) -> Option<Self> {
        let found = fs::metadata(path).ok().filter(|found| found.file_type().is_block_device())?;
        let number = found.rdev();
        let sys = PathBuf::from(format!("/sys/dev/block/{}:{}", major(number), minor(number)));
        let file = ["loop/backing_file", "../loop/backing_file"];
        let mut name = file.iter().find_map(|file| fs::read(sys.join(file)).ok())?;
        if name.last() == Some(&b'\n') {
            name.pop();
        }
        Some(Self::of(Path::new(OsStr::from_bytes(&name))))
    }
}

/// The parent folder of a path.
pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_lead_to_the_same_file_and_free_names_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::write(at("file"), "x").unwrap();
        fs::create_dir(at("sub")).unwrap();
        symlink("file", at("link")).unwrap();
        symlink("sub/../free", at("dangling")).unwrap();
        symlink("round", at("round")).unwrap();
        fs::hard_link(at("file"), at("hard")).unwrap();
        let same = |one: &str, other: &str| Identity::of(&at(one)) == Identity::of(&at(other));
        for (one, other) in
            [("file", "link"), ("file", "hard"), ("file", "sub/../file"), ("free", "dangling")]
        {
            assert!(same(one, other), "{one} and {other}");
        }
        for (one, other) in [("file", "free"), ("free", "freed"), ("free", "sub/free")] {
            assert!(!same(one, other), "{one} and {other}");
        }
        assert!(matches!(Identity::of(&at("none/x")), Identity::Unknown(_)));
        assert!(same("round", "round"));
    }
}
