//! Where trees come from: each source makes a [`Tree`](super::tree::Tree), and reads the bytes of
//! its files while the file system is written.

mod folder;

pub use folder::{Folder, FolderContents};

use std::io;
use std::path::PathBuf;

use super::tree::{Attributes, Time, TreeError};

/// What is changed of everything that a source has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    /// Owner and group of everything.
    pub owner: Option<(u32, u32)>,
    /// Times later than this one become this one.
    pub latest: Option<Time>,
    /// Extended attributes are left out.
    pub no_xattrs: bool,
}

impl Overrides {
    /// The attributes as they shall be.
    pub fn of(&self, attributes: Attributes) -> Attributes {
        let mut attributes = attributes;
        if let Some(owner) = self.owner {
            (attributes.uid, attributes.gid) = owner;
        }
        if let Some(latest) = self.latest {
            attributes.mtime = attributes.mtime.min(latest);
            attributes.atime = attributes.atime.min(latest);
            attributes.ctime = attributes.ctime.min(latest);
        }
        attributes
    }
}

/// Why a source cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The system refused.
    #[error("cannot read {}", path.display())]
    Read {
        /// What was to be read.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// No tree can have what was found.
    #[error("{}: {source}", path.display())]
    Tree {
        /// What was found.
        path: PathBuf,
        /// Why it cannot be in a tree.
        source: TreeError,
    },
}
