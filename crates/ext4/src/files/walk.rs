//! Traverses a tree below an inode: parents before children, names sorted by bytes.

use std::collections::HashSet;

use floe_format::InodeNr;
use floe_format::native::identity::{HOME_NAME, Identity};

use super::{DirectoryEntry, FileFault, Files, FilesError, Node};

/// A step of a walk.
#[derive(Debug)]
pub enum Step {
    /// An object. For a directory, the steps of its children follow.
    Visit(Visit),
    /// The innermost directory not yet left has no more children.
    Leave {
        /// Its path.
        path: Vec<u8>,
    },
    /// Parts of a directory could not be read. Comes before its first child.
    Faults {
        /// Path of the directory.
        path: Vec<u8>,
        /// The faults.
        faults: Vec<FileFault>,
    },
    /// The inode of an entry cannot be read.
    Lost {
        /// Path of the entry.
        path: Vec<u8>,
        /// The error.
        error: FilesError,
    },
    /// An entry names a directory that was visited before. Visiting it again could make the tree
    /// endless, or count it twice.
    Again {
        /// Path of the entry.
        path: Vec<u8>,
        /// The directory.
        inode: InodeNr,
    },
}

/// An object found by the traversal.
#[derive(Debug)]
pub struct Visit {
    /// Its path from the root of the traversal, without a leading `/`; empty for the root itself.
    pub path: Vec<u8>,
    /// Its inode.
    pub node: Node,
}

/// A traversal of a tree. Memory grows with its depth, its largest directories and the number of
/// directories, never with the number of files.
pub struct Walk<'f, 'd> {
    files: &'f Files<'d>,
    root: Option<Node>,
    path: Vec<u8>,
    levels: Vec<Level>,
    entered: HashSet<InodeNr>,
    faults: Vec<FileFault>,
    /// The directory that is passed over, of files that Floe keeps for itself.
    own: Option<InodeNr>,
}

struct Level {
    entries: std::vec::IntoIter<DirectoryEntry>,
    /// Length of the path of this directory, in bytes.
    path_len: usize,
}

impl<'d> Files<'d> {
    /// Traverses `root` and everything below it.
    pub fn walk(&self, root: Node) -> Walk<'_, 'd> {
        Walk {
            files: self,
            root: Some(root),
            path: Vec::new(),
            levels: Vec::new(),
            entered: HashSet::new(),
            faults: Vec::new(),
            own: None,
        }
    }
}

impl Walk<'_, '_> {
    /// Without the directory in which a native file system keeps files of its own: they say where its free blocks are, which are
    /// others in a copy.
    #[must_use]
    pub fn without_own(mut self) -> Self {
        let identity = Identity::of(self.files.superblock());
        self.own = identity.map(|identity| InodeNr(identity.home_inode));
        self
    }

    /// Skips everything below the directory that was visited last: neither its children nor its
    /// [`Step::Leave`] are returned. Call it before the next step.
    pub fn leave_out(&mut self) {
        self.levels.pop();
        self.faults.clear();
    }

    /// Visits an object; lists it if it is a directory.
    fn visit(&mut self, node: Node) -> Step {
        let path = self.path.clone();
        if node.is_directory() {
            if !self.entered.insert(node.number) {
                return Step::Again { path, inode: node.number };
            }
            // Only directories can be listed.
            let mut listing = self.files.list(&node).unwrap_or_default();
            listing.sort();
            self.faults = listing.faults;
            let entries = listing.entries.into_iter();
            self.levels.push(Level { entries, path_len: self.path.len() });
        }
        Step::Visit(Visit { path, node })
    }
}

impl Iterator for Walk<'_, '_> {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if let Some(root) = self.root.take() {
            return Some(self.visit(root));
        }
        let level = self.levels.last_mut()?;
        self.path.truncate(level.path_len);
        if !self.faults.is_empty() {
            let faults = std::mem::take(&mut self.faults);
            return Some(Step::Faults { path: self.path.clone(), faults });
        }
        let own = self.own;
        let is_own = |entry: &DirectoryEntry| Some(entry.inode) == own && entry.name == HOME_NAME;
        let Some(entry) = level.entries.find(|entry| !is_own(entry)) else {
            self.levels.pop();
            return Some(Step::Leave { path: self.path.clone() });
        };
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend(&entry.name);
        Some(match self.files.node(entry.inode) {
            Ok(node) if node.in_use() => self.visit(node),
            Ok(_) => {
                let error = FilesError::Unused { inode: entry.inode };
                Step::Lost { path: self.path.clone(), error }
            }
            Err(error) => Step::Lost { path: self.path.clone(), error },
        })
    }
}
