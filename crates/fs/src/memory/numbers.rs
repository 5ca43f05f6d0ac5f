//! Numbers of inodes that the disk has promised.

use floe_disk::ops::Reserved;
use floe_format::InodeNr;

use super::lower::Lower;
use crate::FsError;
use crate::by_number::ByNumber;

/// Numbers that are asked for at once: one block of a table of inodes has as many.
const PER_REQUEST: usize = 64;

/// The same for directories, which are spread.
const DIRECTORIES_PER_REQUEST: usize = 8;

/// Promised numbers by group of the directories that they are for, and whether they are for directories; the lowest last.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    of_groups: ByNumber<(u32, bool), Vec<Reserved>>,
    /// Numbers that were taken and not used, to be given back.
    unused: Vec<Reserved>,
}

impl Numbers {
    /// A number for something new near a directory; the disk is asked for more where none is left, under the guard that
    /// `reading` gives.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], and of reading the disk.
    pub(crate) fn take<G>(
        &mut self,
        lower: &impl Lower,
        inodes_per_group: u32,
        (directory, is_directory): (InodeNr, bool),
        reading: impl FnOnce() -> G,
    ) -> Result<Reserved, FsError> {
        let group = directory.0.saturating_sub(1) / inodes_per_group.max(1);
        let promised = self.of_groups.entry((group, is_directory)).or_default();
        if promised.is_empty() {
            let most = match is_directory {
                // Each directory in the root gets a group of its own, if there is one.
                true if directory == InodeNr::ROOT => 1,
                true => DIRECTORIES_PER_REQUEST,
                false => PER_REQUEST,
            };
            let _reading = reading();
            *promised = lower.reserve_inodes(directory, is_directory, most)?;
            promised.reverse();
        }
        promised.pop().ok_or(FsError::NoSpace)
    }

    /// Takes a number back that was not used.
    pub(crate) fn put_back(&mut self, reserved: Reserved) {
        self.unused.push(reserved);
    }

    /// Numbers that were put back.
    pub(crate) fn take_unused(&mut self) -> impl Iterator<Item = InodeNr> {
        std::mem::take(&mut self.unused).into_iter().map(|reserved| reserved.inode)
    }

    /// Gives all numbers back that nobody took.
    pub(crate) fn give_back(&mut self, lower: &impl Lower) {
        for reserved in self.of_groups.drain().flat_map(|(_, promised)| promised) {
            lower.give_back(reserved.inode);
        }
    }
}
