//! The lists at the end of an undo file: sums of new blocks, unsaved blocks, and superblocks in between.

use floe_format::crc::crc32c;
use floe_format::ext::undo::{
    BETWEEN_MAGIC, MOST_BETWEEN, NO_SUM, UNSAVED_MAGIC, WRITTEN_MAGIC, veil, written_sum,
};

use super::UndoFile;
use crate::ReadBlocks;
use crate::undo::{RestoreError, UndoReadError};

/// Bytes of a list that are read at once.
const ENTRIES_BYTES: usize = 64 << 10;

impl UndoFile {
    /// Blocks of the ranges read so far, while these are in the order of the file.
    pub(super) fn blocks_saved(&self) -> u64 {
        let unit = self.header.fs_block_size;
        self.saved
            .last()
            .map_or(0, |last| last.first_sum + u64::from(last.len_bytes.div_ceil(unit)))
    }

    /// Reads the list of sums of new blocks. It is as long as the ranges that were read before.
    pub(super) fn read_sums(&mut self) -> Result<(), UndoReadError> {
        if self.header.written_magic != WRITTEN_MAGIC {
            return Ok(());
        }
        let damaged = |found: &Self| found.damaged("the list of new blocks is damaged".to_owned());
        if self.header.written_count != self.blocks_saved() {
            return Err(damaged(self));
        }
        let (sums, crc) = self.list(self.header.written_block, self.header.written_count)?;
        if crc != self.header.written_crc {
            return Err(damaged(self));
        }
        self.sums = sums.into_iter().map(u64::from_le_bytes).collect();
        Ok(())
    }

    /// Reads the entries of a list that begins at a block of the file, and their checksum. Memory grows with the bytes read, whatever
    /// count the header gives.
    fn list<const LEN: usize>(
        &self,
        block: u64,
        count: u64,
    ) -> Result<(Vec<[u8; LEN]>, u32), UndoReadError> {
        let (mut at, mut crc) = (self.place_of(block)?, u32::MAX);
        let mut entries = Vec::new();
        let mut piece = vec![[0; LEN]; ENTRIES_BYTES / LEN];
        let mut left = count;
        while left > 0 {
            // At most a piece, so it fits.
            let len = left.min(piece.len() as u64) as usize;
            let bytes = piece[..len].as_flattened_mut();
            self.read_at(at, bytes)?;
            crc = crc32c(crc, bytes);
            at = at.saturating_add(bytes.len() as u64);
            entries.extend_from_slice(&piece[..len]);
            left -= len as u64;
        }
        Ok((entries, crc))
    }

    /// Offsets of the blocks that hold neither the saved bytes nor those that the change left there, as far as the file says what
    /// these were: something else was written since. Ascending.
    ///
    /// # Errors
    /// If the device is too small or cannot be read.
    pub fn changed_since(&self, device: &dyn ReadBlocks) -> Result<Vec<u64>, RestoreError> {
        self.fits(device)?;
        let mut changed = Vec::new();
        if self.sums.is_empty() {
            return Ok(changed);
        }
        let unit = self.header.fs_block_size as usize;
        let (mut old, mut now) = (Vec::new(), Vec::new());
        for saved in &self.saved {
            let offset_bytes = saved.offset_bytes;
            self.old_bytes(saved, &mut old)?;
            now.resize(old.len(), 0);
            device
                .read_at(offset_bytes, &mut now)
                .map_err(|source| RestoreError::Read { offset_bytes, source })?;
            // The sums were counted when they were read.
            let sums = self.sums.iter().skip(saved.first_sum as usize);
            let blocks = now.chunks(unit).zip(old.chunks(unit)).zip(sums);
            for (((now, old), sum), at) in blocks.zip((offset_bytes..).step_by(unit)) {
                if *sum != NO_SUM && now != old && written_sum(now) != *sum {
                    changed.push(at);
                }
            }
        }
        Ok(changed)
    }

    /// Reads the list of unsaved blocks.
    pub(super) fn read_not_saved(&mut self) -> Result<(), UndoReadError> {
        if self.header.unsaved_magic != UNSAVED_MAGIC {
            return Ok(());
        }
        let unit = u64::from(self.header.fs_block_size);
        let (blocks, crc) = self.list(self.header.unsaved_block, self.header.unsaved_count)?;
        for block in blocks {
            let offset_bytes = u64::from_le_bytes(block).checked_mul(unit);
            self.not_saved.push(offset_bytes.ok_or_else(|| {
                self.damaged("the list of unsaved blocks has an impossible offset".to_owned())
            })?);
        }
        if crc != self.header.unsaved_crc {
            return Err(self.damaged("the list of unsaved blocks is damaged".to_owned()));
        }
        self.not_saved.sort_unstable();
        Ok(())
    }

    /// Reads the list of superblocks.
    pub(super) fn read_in_between(&mut self) -> Result<(), UndoReadError> {
        if self.header.between_magic != BETWEEN_MAGIC {
            return Ok(());
        }
        if self.header.between_count > MOST_BETWEEN {
            return Err(self.damaged("it has too many superblocks".to_owned()));
        }
        let count = self.header.between_count.into();
        let (mut superblocks, crc) = self.list(self.header.between_block, count)?;
        if crc != self.header.between_crc {
            return Err(self.damaged("the list of superblocks is damaged".to_owned()));
        }
        superblocks.iter_mut().for_each(veil);
        self.in_between = superblocks;
        Ok(())
    }
}
