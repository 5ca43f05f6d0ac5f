//! Pages of an overlay that found no place in memory: slots of a file without a name.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// A file of slots, each of the size of a page. It is made when the first page comes, has no name
/// (so that nothing is left behind however the program ends) and never shrinks.
#[derive(Debug)]
pub(super) struct Spill {
    slot_bytes: u64,
    folder: PathBuf,
    file: Option<File>,
    /// Slots behind which nothing was written yet.
    end: u64,
    free: Vec<u64>,
}

impl Spill {
    pub(super) fn new(slot_bytes: u64, folder: PathBuf) -> Self {
        Self { slot_bytes, folder, file: None, end: 0, free: Vec::new() }
    }

    /// Stores a page in a slot that nothing else uses.
    ///
    /// # Errors
    /// If the file cannot be made or there is no room for it; every other slot is as it was.
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

    /// Reads from `within` a slot on.
    pub(super) fn get(&self, slot: u64, within: u64, into: &mut [u8]) -> io::Result<()> {
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        file.read_exact_at(into, slot * self.slot_bytes + within)
    }

    /// Gives a slot up.
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

    /// Gives up all slots, and the file.
    pub(super) fn clear(&mut self) {
        (self.file, self.end) = (None, 0);
        self.free.clear();
    }
}
