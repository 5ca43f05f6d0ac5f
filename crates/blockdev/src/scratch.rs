//! Bytes that are kept for later, in memory or in a scratch file.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::SpillOptions;

/// Pieces of bytes, one behind the other: in memory up to a budget, then in a scratch file, which has no name, so that nothing
/// remains however the program ends.
#[derive(Debug)]
pub struct Scratch {
    held: Vec<u8>,
    budget_bytes: u64,
    folder: PathBuf,
    file: Option<File>,
    file_bytes: u64,
}

/// Where a piece lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    at: u64,
    len: usize,
    is_held: bool,
}

impl Piece {
    /// Bytes of the piece.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Scratch {
    /// Without a piece.
    pub fn new(options: SpillOptions) -> Self {
        let SpillOptions { budget_bytes, folder } = options;
        Self { held: Vec::new(), budget_bytes, folder, file: None, file_bytes: 0 }
    }

    /// Keeps a piece.
    ///
    /// # Errors
    /// The scratch file cannot be made or has no space; all other pieces stay.
    pub fn put(&mut self, bytes: &[u8]) -> io::Result<Piece> {
        let len = bytes.len();
        if self.held.len() as u64 + len as u64 <= self.budget_bytes {
            let at = self.held.len() as u64;
            self.held.extend_from_slice(bytes);
            return Ok(Piece { at, len, is_held: true });
        }
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(tempfile::tempfile_in(&self.folder)?),
        };
        let at = self.file_bytes;
        file.write_all_at(bytes, at)?;
        self.file_bytes += len as u64;
        Ok(Piece { at, len, is_held: false })
    }

    /// Appends the bytes of a piece to `into`.
    ///
    /// # Errors
    /// The scratch file cannot be read.
    pub fn append_to(&self, piece: Piece, into: &mut Vec<u8>) -> io::Result<()> {
        let before = into.len();
        if piece.is_held {
            // In memory, so it fits.
            let start = piece.at as usize;
            let held = self.held.get(start..start + piece.len).ok_or(io::ErrorKind::NotFound)?;
            into.extend_from_slice(held);
            return Ok(());
        }
        let file = self.file.as_ref().ok_or(io::ErrorKind::NotFound)?;
        into.resize(before + piece.len, 0);
        file.read_exact_at(&mut into[before..], piece.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_come_back_from_memory_and_file() {
        for budget_bytes in [0, 10, 1000] {
            let mut scratch = Scratch::new(SpillOptions::in_temporary_folder(budget_bytes));
            let pieces: Vec<Vec<u8>> = (0..20u8).map(|at| vec![at; usize::from(at)]).collect();
            let places: Vec<Piece> =
                pieces.iter().map(|bytes| scratch.put(bytes).unwrap()).collect();
            let mut all = Vec::new();
            places.iter().for_each(|place| scratch.append_to(*place, &mut all).unwrap());
            assert_eq!(all, pieces.concat());
        }
    }
}
