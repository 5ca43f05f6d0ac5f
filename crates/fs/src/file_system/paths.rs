//! Paths, and several changes at once, for programs that use the file system without a mount.

use floe_format::InodeNr;
use floe_format::ext::inode::FileType;

use super::FileSystem;
use crate::caller::Caller;
use crate::op::Op;
use crate::store::Store;
use crate::{Attributes, FsError};

/// Symbolic links that a path may lead through, as Linux has it.
const MOST_LINKS: usize = 40;

/// Whether the last name of a path is followed if it is a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// As `stat` does.
    Last,
    /// As `lstat` does.
    AllButLast,
}

/// Why only the first of several changes were made.
#[derive(Debug, thiserror::Error)]
#[error("after {} changes: {error}", .made.len())]
pub struct Stopped {
    /// The results of the changes before it: they stay.
    pub made: Vec<Option<Attributes>>,
    /// Why the next one was refused.
    #[source]
    pub error: FsError,
}

impl<S: Store> FileSystem<S> {
    /// The inode at a path, from the root; names are separated by `/`. The caller must be allowed to search each directory
    /// on the way.
    ///
    /// # Errors
    /// As [`FileSystem::resolve`], and [`FsError::Invalid`] if it leads through more than 40 symbolic links.
    pub fn find_path(
        &self,
        caller: &Caller,
        path: &[u8],
        follow: Follow,
    ) -> Result<(InodeNr, FileType), FsError> {
        let mut at = (InodeNr::ROOT, FileType::Directory);
        let mut links = 0;
        // Names that are left, the next one last.
        let mut due: Vec<Vec<u8>> = Vec::new();
        let queue = |due: &mut Vec<Vec<u8>>, path: &[u8]| {
            let names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
            due.extend(names.map(<[u8]>::to_vec).rev());
        };
        queue(&mut due, path);
        while let Some(name) = due.pop() {
            let found = self.resolve(caller, at.0, &name)?;
            let is_followed = !due.is_empty() || follow == Follow::Last || path.ends_with(b"/");
            if found.1 != FileType::Symlink || !is_followed {
                at = found;
                continue;
            }
            links += 1;
            if links > MOST_LINKS {
                return Err(FsError::Invalid);
            }
            let target = self.target(found.0)?;
            if target.starts_with(b"/") {
                at = (InodeNr::ROOT, FileType::Directory);
            }
            queue(&mut due, &target);
        }
        match at.1 {
            FileType::Directory => Ok(at),
            _ if path.ends_with(b"/") => Err(FsError::NotADirectory),
            _ => Ok(at),
        }
    }

    /// Makes changes in their order, as [`FileSystem::apply`] makes each, up to the first that is refused. They are durable
    /// together after one [`FileSystem::sync`]; a crash before that keeps some of them, each whole or not at all
    /// (`docs/fsync.md`).
    ///
    /// # Errors
    /// [`Stopped`] has what the changes before the refused one returned.
    pub fn apply_all<'o>(
        &self,
        ops: impl IntoIterator<Item = Op<'o>>,
    ) -> Result<Vec<Option<Attributes>>, Stopped> {
        let mut made = Vec::new();
        for op in ops {
            match self.apply(&op) {
                Ok(one) => made.push(one),
                Err(error) => return Err(Stopped { made, error }),
            }
        }
        Ok(made)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;
    use crate::{Limits, MemFs, NewInode, NullDisk, OpKind, Place, now};

    #[test]
    fn paths_lead_through_links_and_stop_at_the_41st() {
        let fs = FileSystem::new(MemFs::new(NullDisk::new(1000, 1000), Limits::default()));
        let op = |kind| Op { uid: 7, gid: 7, time: now(), kind };
        let create = |directory, name: &'static [u8], new| {
            op(OpKind::Create { place: Place { directory, name }, new })
        };
        let made = fs
            .apply_all([
                create(InodeNr::ROOT, b"a", NewInode::directory(0o700)),
                create(InodeNr::ROOT, b"to a", NewInode::symlink(b"a/.")),
                create(InodeNr::ROOT, b"round", NewInode::symlink(b"/round")),
            ])
            .expect("all are made");
        let directory = made[0].expect("a directory").inode;
        let ops = [
            create(directory, b"file", NewInode::regular(0o600)),
            create(directory, b"file", NewInode::regular(0o600)),
            create(directory, b"never", NewInode::regular(0o600)),
        ];
        let stopped = fs.apply_all(ops).expect_err("the name is taken");
        let file = stopped.made[0].expect("a file").inode;
        assert!(stopped.made.len() == 1 && matches!(stopped.error, FsError::Exists));
        let find = |path: &[u8], follow| fs.find_path(&Caller::Judged, path, follow);
        let inode = |path: &[u8]| find(path, Follow::Last).map(|(inode, _)| inode);
        for path in [&b"a/file"[..], b"/a//file", b"to a/file", b"to a/../to a/./file"] {
            assert_eq!(inode(path).ok(), Some(file), "{}", String::from_utf8_lossy(path));
        }
        assert_eq!(inode(b"").ok(), Some(InodeNr::ROOT));
        assert_eq!(inode(b"to a").ok(), Some(directory));
        let link = find(b"to a", Follow::AllButLast).map(|(_, kind)| kind);
        assert_eq!(link.ok(), Some(FileType::Symlink));
        assert_eq!(
            find(b"to a/", Follow::AllButLast).ok().map(|(inode, _)| inode),
            Some(directory)
        );
        assert!(matches!(inode(b"a/file/"), Err(FsError::NotADirectory)));
        assert!(matches!(inode(b"a/file/x"), Err(FsError::NotADirectory)));
        assert!(matches!(inode(b"a/none"), Err(FsError::NotFound)));
        assert!(matches!(inode(b"round"), Err(FsError::Invalid)));
        let other = Caller::User { uid: 8, gid: 8, groups: Vec::new() };
        let denied = fs.find_path(&other, b"to a/file", Follow::Last);
        assert!(matches!(denied, Err(FsError::AccessDenied)), "the directory is private");
    }
}
