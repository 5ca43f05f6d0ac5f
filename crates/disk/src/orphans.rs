//! The orphans of a volume, as its operations know them.

use std::collections::HashMap;

use floe_format::{BlockNr, InodeNr};

/// All orphans, and where each is noted.
#[derive(Clone, Debug, Default)]
pub(crate) struct Orphans {
    /// Whatever loses its last name is deleted at once instead.
    pub(crate) avoids: bool,
    /// Those of the list, its head last.
    pub(crate) list: Vec<InodeNr>,
    /// Those of the file and of cubes: block of `blocks`, and slot in it.
    pub(crate) slots: HashMap<InodeNr, (usize, usize)>,
    /// Blocks of the orphan file, and those of cubes.
    pub(crate) blocks: Vec<Place>,
    /// Entries that name an inode of another cube, with the cube whose block it is: no orphans.
    pub(crate) strays: Vec<(u32, InodeNr)>,
    /// Cubes whose block is damaged.
    pub(crate) damaged: Vec<u32>,
}

/// A block that lists orphans.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) block: BlockNr,
    /// The cube whose orphans it lists; 0: all that have no block of their own. `None`: the cube is gone.
    pub(crate) cube: Option<u32>,
    /// Where its checksum starts; `None` without metadata_csum.
    pub(crate) seed: Option<u32>,
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

    /// Whether the orphan file lists none. Those in blocks of cubes are another matter: the flag of the file does not speak of them.
    pub(crate) fn file_is_empty(&self) -> bool {
        let is_in_file =
            |at: &usize| self.blocks.get(*at).is_some_and(|place| place.cube == Some(0));
        !self.slots.values().any(|(at, _)| is_in_file(at))
    }

    /// Forgets the block of a cube that is removed.
    pub(crate) fn forget_cube(&mut self, cube: u32) {
        for place in self.blocks.iter_mut().filter(|place| place.cube == Some(cube)) {
            place.cube = None;
        }
    }
}
