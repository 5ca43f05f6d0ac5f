//! The scratch file of an overlay, for pages beyond its memory budget.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A file of slots, each as large as a page. It is created for the first page, has no name (so that
/// nothing remains however the program ends) and never shrinks.
#[derive(Debug)]
pub(super) struct Spill {
    slot_bytes: u64,
    folder: PathBuf,
    file: Option<File>,
    /// The first slot that was never written.
    end: u64,
    free: Vec<u64>,
}

impl Spill {
    pub(super) fn new(slot_bytes: u64, folder: PathBuf) -> Self {
        Self { slot_bytes, folder, file: None, end: 0, free: Vec::new() }
    }

    /// Where the file is made.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Stores a page in a slot that nothing else uses.
    ///
    /// # Errors
    /// If the file cannot be created or has no space; all other slots are unchanged.
    pub(super) fn put(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(tempfile::tempfile_in(&self.folder)?),
        };
        let slot = self.free.last().copied().unwrap_or(self.end);
        file.write_all_at(bytes, slot * self.slot_bytes)?;
        if self.free.pop().is_none() {
            self.end += 1;
        }
        Ok(slot)
    }

    /// Reads from byte `within` of a slot on.
    pub(super) fn get(&self, slot: u64, within: u64, into: &mut [u8]) -> io::Result<()> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        file.read_exact_at(into, slot * self.slot_bytes + within)
    }

    /// Frees a slot.
    pub(super) fn release(&mut self, slot: u64) {
        self.free.push(slot);
    }

    /// Bytes of the slots in use.
    pub(super) fn held_bytes(&self) -> u64 {
        (self.end - self.free.len() as u64) * self.slot_bytes
    }

    /// Bytes of the file.
    #[cfg(test)]
    pub(super) fn file_bytes(&self) -> u64 {
        self.file.as_ref().map_or(0, |file| file.metadata().map_or(0, |metadata| metadata.len()))
    }

    /// Frees all slots and closes the file.
    pub(super) fn clear(&mut self) {
        (self.file, self.end) = (None, 0);
        self.free.clear();
    }
}
