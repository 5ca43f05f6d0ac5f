//! The lists at the end of an undo file: sums of new blocks, unsaved blocks, and superblocks in between.

use floe_format::crc::crc32c;
use floe_format::ext::undo::{
    BETWEEN_MAGIC, MOST_BETWEEN, NO_SUM, UNSAVED_MAGIC, WRITTEN_MAGIC, veil, written_sum,
};

use super::UndoFile;
use crate::ReadBlocks;
use crate::undo::{RestoreError, UndoReadError};

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
        let mut at = self.place_of(self.header.written_block)?;
        let mut crc = u32::MAX;
        let mut buffer = vec![0; 64 << 10];
        let mut left_bytes = self.header.written_count * 8;
        while left_bytes > 0 {
            // At most the buffer, so it fits.
            let len = left_bytes.min(buffer.len() as u64) as usize;
            self.read_at(at, &mut buffer[..len])?;
            crc = crc32c(crc, &buffer[..len]);
            self.sums
                .extend(buffer[..len].as_chunks().0.iter().map(|sum| u64::from_le_bytes(*sum)));
            at = at.saturating_add(len as u64);
            left_bytes -= len as u64;
        }
        if crc == self.header.written_crc { Ok(()) } else { Err(damaged(self)) }
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

    /// Reads the list of unsaved blocks. Memory grows with the bytes read, whatever count the
    /// header gives.
    pub(super) fn read_not_saved(&mut self) -> Result<(), UndoReadError> {
        if self.header.unsaved_magic != UNSAVED_MAGIC {
            return Ok(());
        }
        let mut at = self.place_of(self.header.unsaved_block)?;
        let unit = u64::from(self.header.fs_block_size);
        let mut crc = u32::MAX;
        for _ in 0..self.header.unsaved_count {
            let mut entry = [0; 8];
            self.read_at(at, &mut entry)?;
            crc = crc32c(crc, &entry);
            at += entry.len() as u64;
            let offset_bytes = u64::from_le_bytes(entry).checked_mul(unit);
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
        let mut at = self.place_of(self.header.between_block)?;
        let mut crc = u32::MAX;
        for _ in 0..self.header.between_count {
            let mut bytes = [0; 1024];
            self.read_at(at, &mut bytes)?;
            crc = crc32c(crc, &bytes);
            at += bytes.len() as u64;
            veil(&mut bytes);
            self.in_between.push(bytes);
        }
        match crc == self.header.between_crc {
            true => Ok(()),
            false => Err(self.damaged("the list of superblocks is damaged".to_owned())),
        }
    }
}
