//! Writes an undo file.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use floe_format::crc::crc32c;
use floe_format::ext::undo::{
    BETWEEN_MAGIC, COMPAT_FS_OFFSET, KEY_MAGIC, MAGIC, MAX_BLOCK_SIZE, MAX_KEY_BLOCKS,
    MIN_BLOCK_SIZE, MOST_BETWEEN, NO_SUM, STATE_FINISHED, UNSAVED_MAGIC, UndoHeader, UndoKey,
    UndoKeyHeader, WRITTEN_MAGIC, key_block_crc, super_crc, veil, written_sum,
};
use rustix::fs::{Advice, fadvise};

use super::{UndoFile, UndoWriteError};
use crate::NewFile;

/// The block of the superblock copy; the header lies before it, the first key block behind it.
const SUPER_BLOCK: u64 = 1;

/// The description of a change in its undo file.
#[derive(Clone, Debug)]
pub struct UndoWriterOptions {
    /// Unit of the offsets in the file: a power of two from 1024 to 1 MiB; best the block size of
    /// the file system.
    pub block_bytes: u32,
    /// Byte of the device at which the file system begins.
    pub fs_offset_bytes: u64,
    /// The primary superblock as it will be after the change. `e2undo` refuses a file system with
    /// any other superblock.
    pub superblock_after: [u8; 1024],
}

/// An undo file being written, as `NAME.unfinished`, so that a file under its final name is always
/// complete. Dropping it before it is finished removes the file; the remains of a killed process do
/// not prevent a new one.
#[derive(Debug)]
pub struct UndoWriter {
    path: PathBuf,
    file: NewFile,
    header: UndoHeader,
    superblock_after: [u8; 1024],
    /// Keys of the key block at `key_block`, which is written when it is full.
    keys: Vec<UndoKey>,
    key_block: u64,
    next_block: u64,
    saved_bytes: u64,
    /// A sum of each saved block as it will be; [`NO_SUM`] where that is unknown.
    sums: Vec<u64>,
}

impl UndoWriter {
    /// Creates the file, readable for its owner alone, because it holds content of the device.
    ///
    /// # Errors
    /// If a file is at `path`, or none can be created there.
    pub fn create(path: &Path, options: &UndoWriterOptions) -> Result<Self, UndoWriteError> {
        let block_size = options.block_bytes;
        if !(MIN_BLOCK_SIZE..=MAX_BLOCK_SIZE).contains(&block_size) || !block_size.is_power_of_two()
        {
            let what = "the unit of an undo file is a power of two from 1024 to 1048576";
            return Err(UndoWriteError::Unsuitable { path: path.to_owned(), what });
        }
        let file = Self::file(path)?;
        let fs_offset = options.fs_offset_bytes;
        let header = UndoHeader {
            magic: MAGIC,
            num_keys: 0,
            super_block: SUPER_BLOCK,
            key_block: SUPER_BLOCK + 1,
            block_size,
            fs_block_size: block_size,
            super_crc: super_crc(&options.superblock_after),
            state: 0,
            f_compat: if fs_offset == 0 { 0 } else { COMPAT_FS_OFFSET },
            f_incompat: 0,
            f_ro_compat: 0,
            pad32: 0,
            fs_offset,
            unsaved_magic: 0,
            unsaved_crc: 0,
            unsaved_block: 0,
            unsaved_count: 0,
            written_magic: 0,
            written_crc: 0,
            written_block: 0,
            written_count: 0,
            between_magic: 0,
            between_crc: 0,
            between_block: 0,
            between_count: 0,
            padding: [0; 92],
            header_crc: 0,
        };
        let mut writer = Self {
            path: path.to_owned(),
            file,
            key_block: header.key_block,
            next_block: header.key_block + 1,
            header,
            superblock_after: options.superblock_after,
            keys: Vec::new(),
            saved_bytes: 0,
            sums: Vec::new(),
        };
        writer.attempt(Self::write_header)?;
        Ok(writer)
    }

    /// Tests whether an undo file could be created at `path`, long before there is anything to
    /// save.
    ///
    /// # Errors
    /// Those of [`create`](Self::create).
    pub fn probe(path: &Path) -> Result<(), UndoWriteError> {
        Self::file(path).map(drop)
    }

    fn file(path: &Path) -> Result<NewFile, UndoWriteError> {
        NewFile::create(path, 0o600, &MAGIC).map_err(|source| UndoWriteError::new(path, 0, source))
    }

    /// Saves the bytes of the file system from `offset_bytes` on, a multiple of the unit. Each
    /// offset must be saved only once. Only the last range of a device may end inside a unit.
    ///
    /// # Errors
    /// If there is no space, or the file cannot be written.
    pub fn save(&mut self, offset_bytes: u64, old: &[u8]) -> Result<(), UndoWriteError> {
        let unit = u64::from(self.header.fs_block_size);
        if !offset_bytes.is_multiple_of(unit) {
            let what = "old bytes must begin at a multiple of the unit";
            return Err(UndoWriteError::Unsuitable { path: self.path.clone(), what });
        }
        // At most 512 MiB, so it fits.
        let most_bytes = self.header.block_size as usize * MAX_KEY_BLOCKS as usize;
        for (index, bytes) in old.chunks(most_bytes).enumerate() {
            let fs_block = (offset_bytes + index as u64 * most_bytes as u64) / unit;
            self.attempt(|writer| writer.save_key(fs_block, bytes))?;
        }
        let blocks = old.len().div_ceil(self.header.fs_block_size as usize);
        self.sums.resize(self.sums.len() + blocks, NO_SUM);
        Ok(())
    }

    /// The same, where the new bytes are known too, as many as the old ones: a reader can tell then whether something else was
    /// written since. `is_fixed` says of the byte at which a block begins whether it stays as the change leaves it.
    ///
    /// # Errors
    /// Those of [`save`](Self::save).
    pub fn save_both(
        &mut self,
        offset_bytes: u64,
        old: &[u8],
        new: &[u8],
        is_fixed: impl Fn(u64) -> bool,
    ) -> Result<(), UndoWriteError> {
        let before = self.sums.len();
        self.save(offset_bytes, old)?;
        let unit = self.header.fs_block_size as usize;
        let offsets = (offset_bytes..).step_by(unit);
        for ((sum, block), at) in self.sums[before..].iter_mut().zip(new.chunks(unit)).zip(offsets)
        {
            *sum = if is_fixed(at) { written_sum(block) } else { NO_SUM };
        }
        Ok(())
    }

    /// Records that the blocks at `offsets_bytes`, multiples of the unit, will be overwritten and
    /// that their old bytes cannot be saved. Call it once, after everything was saved.
    ///
    /// # Errors
    /// If there is no space, or the file cannot be written.
    pub fn not_saved(&mut self, offsets_bytes: &[u64]) -> Result<(), UndoWriteError> {
        if offsets_bytes.is_empty() {
            return Ok(());
        }
        let unit = u64::from(self.header.fs_block_size);
        let list: Vec<u8> =
            offsets_bytes.iter().flat_map(|offset| (offset / unit).to_le_bytes()).collect();
        self.attempt(|writer| {
            let (block, crc) = writer.write_list(&list)?;
            let header = &mut writer.header;
            (header.unsaved_magic, header.unsaved_block) = (UNSAVED_MAGIC, block);
            (header.unsaved_crc, header.unsaved_count) = (crc, offsets_bytes.len() as u64);
            Ok(())
        })
    }

    /// Records the primary superblocks that the device has during the change, besides the old one and the new one: undoing recognises
    /// the file system by them. Call it once, after everything was saved.
    ///
    /// # Errors
    /// If there is no space, or the file cannot be written.
    pub fn in_between(&mut self, superblocks: &[[u8; 1024]]) -> Result<(), UndoWriteError> {
        let count = u32::try_from(superblocks.len()).ok().filter(|count| *count <= MOST_BETWEEN);
        let Some(count) = count else {
            let what = "the change has too many superblocks in between";
            return Err(UndoWriteError::Unsuitable { path: self.path.clone(), what });
        };
        if count == 0 {
            return Ok(());
        }
        let mut list = superblocks.to_vec();
        list.iter_mut().for_each(veil);
        let list = list.concat();
        self.attempt(|writer| {
            let (block, crc) = writer.write_list(&list)?;
            let header = &mut writer.header;
            (header.between_magic, header.between_block) = (BETWEEN_MAGIC, block);
            (header.between_crc, header.between_count) = (crc, count);
            Ok(())
        })
    }

    /// Completes the file, reads it back, and makes it and its name durable. Returns its size in bytes.
    ///
    /// # Errors
    /// If there is no space, the file cannot be written or flushed, or it reads back differently.
    pub fn finish(mut self) -> Result<u64, UndoWriteError> {
        self.attempt(|writer| {
            // Also without any key: readers require the first key block.
            writer.write_key_block()?;
            writer.write_sums()?;
            let mut superblock = writer.superblock_after;
            veil(&mut superblock);
            let at = writer.header.super_block * u64::from(writer.header.block_size);
            writer.file.file().write_all_at(&superblock, at)?;
            writer.header.state = STATE_FINISHED;
            writer.write_header()?;
            // Pads the last block, for readers that read whole blocks.
            writer.file.file().set_len(writer.next_block * u64::from(writer.header.block_size))
        })?;
        self.read_back()?;
        let bytes = self.next_block * u64::from(self.header.block_size);
        let (path, saved_bytes) = (self.path, self.saved_bytes);
        self.file.finish().map_err(|source| UndoWriteError::new(&path, saved_bytes, source))?;
        Ok(bytes)
    }

    /// A medium that loses writes would take the only way back with it, so the file is read again, and from there where the system drops
    /// what it has cached.
    fn read_back(&mut self) -> Result<(), UndoWriteError> {
        self.attempt(|writer| writer.file.file().sync_all())?;
        // Where it keeps them, the cached bytes are read: still those that the file has by now.
        let _ = fadvise(self.file.file(), 0, None, Advice::DontNeed);
        let file = self.file.file().try_clone();
        let file =
            file.map_err(|source| UndoWriteError::new(&self.path, self.saved_bytes, source))?;
        let read = UndoFile::of(file, &self.path);
        read.map(drop).map_err(|source| UndoWriteError::ReadsOther { source })
    }

    fn attempt(
        &mut self,
        step: impl FnOnce(&mut Self) -> io::Result<()>,
    ) -> Result<(), UndoWriteError> {
        step(self).map_err(|source| UndoWriteError::new(&self.path, self.saved_bytes, source))
    }

    fn save_key(&mut self, fs_block: u64, bytes: &[u8]) -> io::Result<()> {
        if self.keys.len() as u64 == self.header.keys_per_block() {
            self.write_key_block()?;
            self.keys.clear();
            self.key_block = self.next_block;
            self.next_block += 1;
        }
        let block_size = u64::from(self.header.block_size);
        self.file.file().write_all_at(bytes, self.next_block * block_size)?;
        self.next_block += (bytes.len() as u64).div_ceil(block_size);
        // A chunk of at most 512 MiB: its length fits.
        let size = bytes.len() as u32;
        self.keys.push(UndoKey { fs_block, crc: crc32c(u32::MAX, bytes), size });
        self.header.num_keys += 1;
        self.saved_bytes += bytes.len() as u64;
        Ok(())
    }

    fn write_key_block(&mut self) -> io::Result<()> {
        let mut block = vec![0; self.header.block_size as usize];
        for (key, into) in self.keys.iter().zip(block[UndoKeyHeader::SIZE..].as_chunks_mut().0) {
            key.encode_into(into);
        }
        let mut start = UndoKeyHeader { magic: KEY_MAGIC, crc: 0, reserved: 0 };
        for _ in 0..2 {
            if let Some(into) = block.first_chunk_mut() {
                start.encode_into(into);
            }
            start.crc = key_block_crc(&block);
        }
        self.file.file().write_all_at(&block, self.key_block * u64::from(self.header.block_size))
    }

    /// Writes the list of sums, if any is known.
    fn write_sums(&mut self) -> io::Result<()> {
        if self.sums.iter().all(|sum| *sum == NO_SUM) {
            return Ok(());
        }
        let list: Vec<u8> = self.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        let (block, crc) = self.write_list(&list)?;
        let header = &mut self.header;
        (header.written_magic, header.written_block) = (WRITTEN_MAGIC, block);
        (header.written_crc, header.written_count) = (crc, self.sums.len() as u64);
        Ok(())
    }

    /// Writes a list from the next block on. Returns that block and the checksum of the list.
    fn write_list(&mut self, list: &[u8]) -> io::Result<(u64, u32)> {
        let (block, block_size) = (self.next_block, u64::from(self.header.block_size));
        self.file.file().write_all_at(list, block * block_size)?;
        self.next_block += (list.len() as u64).div_ceil(block_size);
        Ok((block, crc32c(u32::MAX, list)))
    }

    fn write_header(&mut self) -> io::Result<()> {
        let mut bytes = [0; UndoHeader::SIZE];
        self.header.encode_into(&mut bytes);
        self.header.header_crc = UndoHeader::compute_checksum(&bytes);
        self.header.encode_into(&mut bytes);
        self.file.file().write_all_at(&bytes, 0)
    }
}
