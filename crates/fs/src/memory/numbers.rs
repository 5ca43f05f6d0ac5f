//! Numbers of inodes that the disk has promised.

use std::collections::HashMap;

use floe_disk::ops::Reserved;
use floe_format::InodeNr;

use super::lower::Lower;
use crate::FsError;

/// Numbers that are asked for at once: one block of a table of inodes has as many.
const PER_REQUEST: usize = 64;

/// Promised numbers by group of the directories that they are for, the lowest last.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    of_groups: HashMap<u32, Vec<Reserved>>,
}

impl Numbers {
    /// A number for something new in a directory; the disk is asked for more where none is left.
    ///
    /// # Errors
    /// [`FsError::NoSpace`], and of reading the disk.
    pub(crate) fn take(
        &mut self,
        lower: &impl Lower,
        inodes_per_group: u32,
        directory: InodeNr,
        is_directory: bool,
    ) -> Result<Reserved, FsError> {
        if is_directory {
            // Directories are spread: each is asked for by itself.
            let one = lower.reserve_inodes(directory, true, 1)?.pop();
            return one.ok_or(FsError::NoSpace);
        }
        let group = directory.0.saturating_sub(1) / inodes_per_group.max(1);
        let promised = self.of_groups.entry(group).or_default();
        if promised.is_empty() {
            *promised = lower.reserve_inodes(directory, false, PER_REQUEST)?;
            promised.reverse();
        }
        promised.pop().ok_or(FsError::NoSpace)
    }

    /// Gives all numbers back that nobody took.
    pub(crate) fn give_back(&mut self, lower: &impl Lower) {
        for reserved in self.of_groups.drain().flat_map(|(_, promised)| promised) {
            lower.give_back(reserved.inode);
        }
    }
}
