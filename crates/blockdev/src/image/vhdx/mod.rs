//! VHDX images, fixed and dynamic, for reading. Source: Microsoft's open specification MS-VHDX.
//!
//! A table holds the place of each block of the disk. Changes to the table go through a log. An
//! image that was not closed may have changes in the log that are not in place; they are replayed
//! in memory. A read follows one link, so it cannot loop.

use std::io;

use super::ImageError;
use super::cache::Cache;
use super::place::{self, Layout, Place, damaged};
use crate::ReadBlocks;

pub(super) mod header;
mod log;

use header::Disk;

/// Table entries read at once.
const PIECE_ENTRIES: u64 = 8192;
/// Budget for cached pieces of the table.
const TABLE_BYTES: usize = 16 << 20;

/// A VHDX image as the disk that is in it.
pub struct Vhdx {
    file: Box<dyn ReadBlocks>,
    disk: Disk,
    table: Cache<u64>,
}

impl Vhdx {
    /// Opens the image in `file`; its log is replayed in memory.
    ///
    /// # Errors
    /// Damage, a differencing image, or unknown required parts.
    pub fn open(file: Box<dyn ReadBlocks>) -> Result<Self, ImageError> {
        let file = log::replayed(file)?;
        let disk = header::disk(&file)?;
        Ok(Self { file, disk, table: Cache::new(TABLE_BYTES, PIECE_ENTRIES as usize * 8) })
    }

    fn entry(&self, number: u64) -> io::Result<u64> {
        let first = number / PIECE_ENTRIES * PIECE_ENTRIES;
        let load = || {
            let count = PIECE_ENTRIES.min(self.disk.table_entries.saturating_sub(first));
            let mut bytes = vec![0; count as usize * 8];
            self.file.read_at(self.disk.table_offset_bytes + first * 8, &mut bytes)?;
            Ok(bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect())
        };
        let piece = self.table.get(first, load)?;
        let entry = piece.get((number - first) as usize);
        entry.copied().ok_or_else(|| damaged("its table is too short for the disk"))
    }
}

impl Layout for Vhdx {
    fn virtual_bytes(&self) -> u64 {
        self.disk.disk_bytes
    }

    fn file(&self) -> &dyn ReadBlocks {
        &self.file
    }

    fn unit_bytes(&self) -> u64 {
        512
    }

    fn place(&self, offset_bytes: u64, _wanted_bytes: u64) -> io::Result<(Place, u64)> {
        let (block, within) =
            (offset_bytes / self.disk.block_bytes, offset_bytes % self.disk.block_bytes);
        // Each chunk is followed by the entry of a sector bitmap, which only differencing images
        // use.
        let entry = self.entry(block + block / self.disk.chunk_blocks)?;
        let place = match entry & 7 {
            // Not present, undefined, zero, unmapped: all read as zeroes in Hyper-V, too.
            0..=3 => Place::Zeroes,
            6 => {
                // Bits 20 to 63 count MiB, so in place they are the offset in bytes.
                let from = (entry & !0xf_ffff).checked_add(within);
                Place::Stored(from.ok_or_else(|| damaged("a block past the largest offset"))?)
            }
            7 => return Err(damaged("a block that is partly in a parent, but the image has none")),
            state => return Err(damaged(format!("a block in state {state}"))),
        };
        Ok((place, self.disk.block_bytes - within))
    }
}

impl ReadBlocks for Vhdx {
    fn size_bytes(&self) -> u64 {
        self.disk.disk_bytes
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        place::read(self, offset_bytes, into)
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        place::is_hole(self, offset_bytes, len_bytes)
    }
}
