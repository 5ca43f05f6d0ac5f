//! Reads an undo file, and restores the old bytes.

mod lists;

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use floe_format::crc::crc32c;
use floe_format::ext::superblock::OFFSET_BYTES as SUPERBLOCK_AT;
use floe_format::ext::undo::{
    COMPAT_FS_OFFSET, KEY_MAGIC, MAGIC, MAX_BLOCK_SIZE, MAX_KEY_BLOCKS, MIN_BLOCK_SIZE,
    STATE_FINISHED, UndoHeader, UndoKey, UndoKeyHeader, key_block_crc, super_crc, veil,
};

use super::{RestoreError, UndoReadError};
use crate::open::open_at_once;
use crate::{ReadBlocks, WriteBlocks};

/// A finished undo file whose checksums are all valid.
#[derive(Debug)]
pub struct UndoFile {
    path: PathBuf,
    file: File,
    header: UndoHeader,
    superblock_after: [u8; 1024],
    in_between: Vec<[u8; 1024]>,
    /// By offset on the device; they do not overlap.
    saved: Vec<Saved>,
    /// Ascending.
    not_saved: Vec<u64>,
    /// Sums of the blocks of all ranges as the change was to leave them; empty if the file has none.
    sums: Vec<u64>,
}

/// A range of the file system whose old bytes are in the undo file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Its first byte in the file system.
    pub offset_bytes: u64,
    /// Its length in bytes: 1 to 512 MiB.
    pub len_bytes: u32,
    crc: u32,
    at_bytes: u64,
    /// Index of its first block among the sums.
    first_sum: u64,
}

/// The result of restoring old bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Number of ranges.
    pub stretches: usize,
    /// Bytes of all ranges.
    pub bytes: u64,
}

impl Saved {
    /// The range, in bytes of the file system.
    pub fn range(&self) -> Range<u64> {
        self.offset_bytes..self.offset_bytes + u64::from(self.len_bytes)
    }
}

impl UndoFile {
    /// Opens an undo file and verifies every checksum in it.
    ///
    /// # Errors
    /// If the file cannot be read, is not an undo file, was never finished, needs unknown features,
    /// or is damaged.
    pub fn open(path: &Path) -> Result<Self, UndoReadError> {
        let read = |source| UndoReadError::Read { path: path.to_owned(), source };
        Self::of(open_at_once(path).map_err(read)?, path)
    }

    /// Likewise of an open file, which messages name by `path`.
    pub(super) fn of(file: File, path: &Path) -> Result<Self, UndoReadError> {
        let read = |source| UndoReadError::Read { path: path.to_owned(), source };
        let damaged =
            |what: &str| UndoReadError::Damaged { path: path.to_owned(), what: what.to_owned() };
        if !file.metadata().map_err(read)?.is_file() {
            return Err(UndoReadError::NotUndo { path: path.to_owned() });
        }
        let mut bytes = [0; UndoHeader::SIZE];
        match file.read_exact_at(&mut bytes, 0) {
            Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => return Err(read(error)),
            _ => {}
        }
        let header = UndoHeader::decode(&bytes);
        if header.magic != MAGIC {
            return Err(UndoReadError::NotUndo { path: path.to_owned() });
        }
        if header.header_crc != UndoHeader::compute_checksum(&bytes) {
            return Err(damaged("the checksum of its header is wrong"));
        }
        let unknown = header.f_incompat | header.f_ro_compat;
        if unknown != 0 {
            return Err(UndoReadError::UnknownFeatures { path: path.to_owned(), bits: unknown });
        }
        if header.state & STATE_FINISHED == 0 {
            return Err(UndoReadError::Unfinished { path: path.to_owned() });
        }
        for size in [header.block_size, header.fs_block_size] {
            if !(MIN_BLOCK_SIZE..=MAX_BLOCK_SIZE).contains(&size) || !size.is_power_of_two() {
                return Err(damaged("a size of blocks in its header is impossible"));
            }
        }
        let mut found = Self {
            path: path.to_owned(),
            file,
            header,
            superblock_after: [0; 1024],
            in_between: Vec::new(),
            saved: Vec::new(),
            not_saved: Vec::new(),
            sums: Vec::new(),
        };
        found.read_superblock()?;
        found.read_keys()?;
        found.read_not_saved()?;
        found.read_sums()?;
        found.sort_saved()?;
        found.read_in_between()?;
        let mut buffer = Vec::new();
        found.saved.iter().try_for_each(|saved| found.old_bytes(saved, &mut buffer))?;
        Ok(found)
    }

    /// The path as it was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Byte of the device at which the file system begins, if the file records it.
    pub fn fs_offset_bytes(&self) -> Option<u64> {
        (self.header.f_compat & COMPAT_FS_OFFSET != 0).then_some(self.header.fs_offset)
    }

    /// Unit of the offsets in the file, in bytes: a power of two from 1024 to 1 MiB.
    pub fn block_bytes(&self) -> u32 {
        self.header.fs_block_size
    }

    /// The primary superblock as the change was to leave it.
    pub fn superblock_after(&self) -> &[u8; 1024] {
        &self.superblock_after
    }

    /// The primary superblocks that the device had during the change, besides the old one and the new one.
    pub fn superblocks_in_between(&self) -> &[[u8; 1024]] {
        &self.in_between
    }

    /// Offsets of the blocks of the file system, [`block_bytes`](Self::block_bytes) long, that the
    /// change overwrites but could not read before, so that their old bytes are not in the file.
    /// Ascending.
    pub fn not_saved(&self) -> &[u64] {
        &self.not_saved
    }

    /// The ranges, by offset.
    pub fn saved(&self) -> &[Saved] {
        &self.saved
    }

    /// Bytes of all ranges.
    pub fn saved_bytes(&self) -> u64 {
        self.saved.iter().map(|saved| u64::from(saved.len_bytes)).sum()
    }

    /// Reads the old bytes of one of [`UndoFile::saved`] into `into`, which is resized to fit.
    ///
    /// # Errors
    /// If the file cannot be read, or its checksum is wrong now.
    pub(crate) fn old_bytes(&self, saved: &Saved, into: &mut Vec<u8>) -> Result<(), UndoReadError> {
        into.resize(saved.len_bytes as usize, 0);
        self.read_at(saved.at_bytes, into)?;
        if crc32c(u32::MAX, into) == saved.crc {
            Ok(())
        } else {
            let place = saved.offset_bytes;
            Err(self
                .damaged(format!("the checksum of the bytes saved from offset {place} is wrong")))
        }
    }

    /// Fills `into` with the old content of the file system from `offset_bytes` on: saved bytes
    /// where there are some, else the current bytes of `device`.
    ///
    /// # Errors
    /// If either cannot be read.
    pub fn read_old(
        &self,
        device: &dyn ReadBlocks,
        offset_bytes: u64,
        into: &mut [u8],
    ) -> Result<(), RestoreError> {
        device
            .read_at(offset_bytes, into)
            .map_err(|source| RestoreError::Read { offset_bytes, source })?;
        let end = offset_bytes.saturating_add(into.len() as u64);
        let mut buffer = Vec::new();
        for saved in &self.saved {
            let part = saved.range().start.max(offset_bytes)..saved.range().end.min(end);
            if part.is_empty() {
                continue;
            }
            self.old_bytes(saved, &mut buffer)?;
            let from = slice_of(&part, saved.offset_bytes);
            into[slice_of(&part, offset_bytes)].copy_from_slice(&buffer[from]);
        }
        Ok(())
    }

    /// The ranges whose current bytes on `device` differ from the saved ones.
    ///
    /// # Errors
    /// If the device is too small or cannot be read.
    pub fn differing(&self, device: &dyn ReadBlocks) -> Result<Vec<Saved>, RestoreError> {
        self.fits(device)?;
        let mut differing = Vec::new();
        for saved in &self.saved {
            if !self.is_as_saved(device, saved)? {
                differing.push(*saved);
            }
        }
        Ok(differing)
    }

    /// Whether a range of `device` equals its saved bytes. Compares bytes, not checksums: the CRC
    /// of a superblock that contains its own CRC is the same for every superblock.
    fn is_as_saved(&self, device: &dyn ReadBlocks, saved: &Saved) -> Result<bool, RestoreError> {
        let (mut old, offset_bytes) = (Vec::new(), saved.offset_bytes);
        self.old_bytes(saved, &mut old)?;
        let mut now = vec![0; old.len()];
        device
            .read_at(offset_bytes, &mut now)
            .map_err(|source| RestoreError::Read { offset_bytes, source })?;
        Ok(old == now)
    }

    /// Writes all old bytes back and reads them again to compare. `device` must begin where the
    /// file system does.
    ///
    /// The block of the primary superblock is written last, after a flush. After a crash or an
    /// error, restoring can be repeated with the same result.
    ///
    /// # Errors
    /// [`RestoreError`] says whether anything was written.
    pub fn restore(&self, device: &dyn WriteBlocks) -> Result<Restored, RestoreError> {
        self.fits(&device)?;
        let block = u64::from(self.header.fs_block_size);
        let first = SUPERBLOCK_AT / block * block;
        let super_block = first..first + block;
        let mut restored_bytes = 0;
        let mut buffer = Vec::new();
        for superblock_now in [false, true] {
            for saved in &self.saved {
                let parts = split(&saved.range(), &super_block);
                let [before, within, behind] = parts;
                let due = if superblock_now { vec![within] } else { vec![before, behind] };
                let due: Vec<_> = due.into_iter().filter(|part| !part.is_empty()).collect();
                if due.is_empty() {
                    continue;
                }
                self.old_bytes(saved, &mut buffer)?;
                for part in due {
                    let bytes = &buffer[slice_of(&part, saved.offset_bytes)];
                    device.write_at(part.start, bytes).map_err(|source| RestoreError::Write {
                        offset_bytes: part.start,
                        restored_bytes,
                        source,
                    })?;
                    restored_bytes += bytes.len() as u64;
                }
            }
            device.flush().map_err(|source| RestoreError::Write {
                offset_bytes: super_block.start,
                restored_bytes,
                source,
            })?;
        }
        for saved in &self.saved {
            device.forget(saved.offset_bytes, u64::from(saved.len_bytes));
            if !self.is_as_saved(&device, saved)? {
                return Err(RestoreError::Verify { offset_bytes: saved.offset_bytes });
            }
        }
        Ok(Restored { stretches: self.saved.len(), bytes: restored_bytes })
    }

    /// `Err` unless every range lies inside the device.
    fn fits(&self, device: &dyn ReadBlocks) -> Result<(), RestoreError> {
        let needed_bytes = self.saved.last().map_or(0, |saved| saved.range().end);
        let size_bytes = device.size_bytes();
        if needed_bytes <= size_bytes {
            Ok(())
        } else {
            Err(RestoreError::TooSmall { needed_bytes, size_bytes })
        }
    }

    fn read_superblock(&mut self) -> Result<(), UndoReadError> {
        let mut bytes = [0; 1024];
        self.read_at(self.place_of(self.header.super_block)?, &mut bytes)?;
        veil(&mut bytes);
        if super_crc(&bytes) != self.header.super_crc {
            return Err(self.damaged("the checksum of its superblock is wrong".to_owned()));
        }
        self.superblock_after = bytes;
        Ok(())
    }

    /// Reads all key blocks. Stops at the end of the file at the latest, whatever the header says.
    fn read_keys(&mut self) -> Result<(), UndoReadError> {
        let block_size = u64::from(self.header.block_size);
        let mut block = vec![0; self.header.block_size as usize];
        let mut next = self.header.key_block;
        let mut left = self.header.num_keys;
        while left > 0 {
            self.read_at(self.place_of(next)?, &mut block)?;
            next += 1;
            let start = block.first_chunk().map(UndoKeyHeader::decode);
            let sound = |start: &UndoKeyHeader| {
                start.magic == KEY_MAGIC && start.crc == key_block_crc(&block)
            };
            if !start.as_ref().is_some_and(sound) {
                return Err(self.damaged("a key block is invalid".to_owned()));
            }
            let (keys, _) = block[UndoKeyHeader::SIZE..].as_chunks::<{ UndoKey::SIZE }>();
            let here = left.min(keys.len() as u64);
            left -= here;
            for key in keys.iter().take(here as usize) {
                let key = UndoKey::decode(key);
                let offset_bytes = key.fs_block.checked_mul(u64::from(self.header.fs_block_size));
                // The end must not overflow, either.
                let offset_bytes =
                    offset_bytes.filter(|at| at.checked_add(u64::from(key.size)).is_some());
                let most_bytes = block_size * u64::from(MAX_KEY_BLOCKS);
                let (Some(offset_bytes), 1..) = (offset_bytes, key.size) else {
                    return Err(self.damaged("a key is impossible".to_owned()));
                };
                if u64::from(key.size) > most_bytes {
                    return Err(self.damaged("a key is too long".to_owned()));
                }
                let at_bytes = self.place_of(next)?;
                next += u64::from(key.size).div_ceil(block_size);
                let (len_bytes, crc, first_sum) = (key.size, key.crc, self.blocks_saved());
                self.saved.push(Saved { offset_bytes, len_bytes, crc, at_bytes, first_sum });
            }
        }
        Ok(())
    }

    /// Sorts the ranges and refuses overlapping ones, because it would be unknown which bytes are
    /// the old ones.
    fn sort_saved(&mut self) -> Result<(), UndoReadError> {
        self.saved.sort_unstable_by_key(|saved| saved.offset_bytes);
        let overlap = self
            .saved
            .windows(2)
            .find(|pair| pair[0].range().end > pair[1].range().start)
            .map(|pair| pair[1].offset_bytes);
        match overlap {
            Some(at) => Err(self.damaged(format!("byte {at} was saved twice"))),
            None => Ok(()),
        }
    }

    /// Byte of this file at which a block of it begins.
    fn place_of(&self, block: u64) -> Result<u64, UndoReadError> {
        block
            .checked_mul(u64::from(self.header.block_size))
            .ok_or_else(|| self.damaged("an offset in it is impossible".to_owned()))
    }

    fn read_at(&self, at_bytes: u64, into: &mut [u8]) -> Result<(), UndoReadError> {
        self.file.read_exact_at(into, at_bytes).map_err(|source| {
            if source.kind() == io::ErrorKind::UnexpectedEof {
                self.damaged("it is truncated".to_owned())
            } else {
                UndoReadError::Read { path: self.path.clone(), source }
            }
        })
    }

    fn damaged(&self, what: String) -> UndoReadError {
        UndoReadError::Damaged { path: self.path.clone(), what }
    }
}

/// The parts of `range` before, within and behind `middle`; some may be empty.
fn split(range: &Range<u64>, middle: &Range<u64>) -> [Range<u64>; 3] {
    [
        range.start..range.end.min(middle.start),
        range.start.max(middle.start)..range.end.min(middle.end),
        range.start.max(middle.end)..range.end,
    ]
}

/// The position of a part in a buffer that holds a range from `start_bytes` on.
fn slice_of(part: &Range<u64>, start_bytes: u64) -> Range<usize> {
    // Both ends are within the buffer, whose length is a usize.
    (part.start - start_bytes) as usize..(part.end - start_bytes) as usize
}
