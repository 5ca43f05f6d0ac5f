//! The orphans of a volume, as its operations know them.

use std::collections::HashMap;

use floe_format::{BlockNr, InodeNr};

/// All orphans, and where each is noted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orphans {
    /// Those of the list, its head last.
    pub(crate) list: Vec<InodeNr>,
    /// Those of the file: block of the file, and slot in it.
    pub(crate) slots: HashMap<InodeNr, (usize, usize)>,
    /// Blocks of the orphan file.
    pub(crate) file: Vec<BlockNr>,
    /// Where its checksums start; `None` without metadata_csum.
    pub(crate) file_seed: Option<u32>,
}

impl Orphans {
    pub(crate) fn all(&self) -> Vec<InodeNr> {
        let mut all: Vec<InodeNr> = self.list.iter().chain(self.slots.keys()).copied().collect();
        all.sort_unstable();
        all
    }

    pub(crate) fn contains(&self, inode: InodeNr) -> bool {
        self.slots.contains_key(&inode) || self.list.contains(&inode)
    }

    pub(crate) fn file_is_empty(&self) -> bool {
        self.slots.is_empty()
    }
}
