//! Directories that were read, kept for the next look-up.

use std::collections::HashMap;

use floe_format::InodeNr;
use floe_sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{Directory, FsError};

/// Directories that nobody changes.
#[derive(Debug)]
pub(crate) struct Directories {
    kept: Mutex<Kept>,
    /// Names of all directories that are kept. All directories are dropped when there are more.
    most_names: usize,
}

#[derive(Debug, Default)]
struct Kept {
    by_inode: HashMap<InodeNr, Arc<Directory>>,
    names: usize,
}

impl Directories {
    pub(crate) fn new(most_names: usize) -> Self {
        Self { kept: Mutex::default(), most_names }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // After a panic of another thread the table still holds copies, at worst with too small a count.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A directory, which `read` reads if it is not kept.
    pub(crate) fn get(
        &self,
        inode: InodeNr,
        read: impl FnOnce() -> Result<Directory, FsError>,
    ) -> Result<Arc<Directory>, FsError> {
        if let Some(directory) = self.kept().by_inode.get(&inode) {
            return Ok(Arc::clone(directory));
        }
        // Not under the lock: it may wait for the disk.
        let directory = Arc::new(read()?);
        if directory.is_unread() {
            return Ok(directory);
        }
        let mut kept = self.kept();
        if kept.names > self.most_names {
            *kept = Kept::default();
        }
        // The names of one that another thread has read meanwhile count twice: it is dropped earlier.
        kept.names += directory.len() + 1;
        kept.by_inode.insert(inode, Arc::clone(&directory));
        Ok(directory)
    }
}
