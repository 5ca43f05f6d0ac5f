//! Packs entries into linear blocks.

use floe_format::InodeNr;
use floe_format::ext::dirent::{write_entry, write_entry_hash};

use super::seal::end_leaf;
use super::{DirFormat, Directory, Entry};

/// The least space left in a full block: a smaller rest holds no entry and is added to the last
/// record.
const LEAST_FREE: usize = 12;

/// Packs entries of one directory into blocks.
pub(super) struct Packer<'a> {
    format: &'a DirFormat,
    dir: &'a Directory,
    content: Vec<u8>,
    /// Offset in the content at which the open block starts; `None` before the first entry.
    block: Option<usize>,
    /// Bytes used in the open block, and the offset of its last entry.
    used: usize,
    last: usize,
    free: usize,
}

impl<'a> Packer<'a> {
    /// Starts behind `content` (whole blocks). A block counts as full when less than `free_percent`
    /// of it is free.
    pub(super) fn new(
        format: &'a DirFormat,
        dir: &'a Directory,
        content: Vec<u8>,
        free_percent: u32,
    ) -> Self {
        let free = format.block_size / 100 * free_percent.min(100) as usize
            + format.block_size % 100 * free_percent.min(100) as usize / 100;
        Self { format, dir, content, block: None, used: 0, last: 0, free: free.max(LEAST_FREE) }
    }

    /// Adds an entry. Returns whether it is the first of a new block.
    pub(super) fn add(&mut self, inode: InodeNr, entry: &Entry<'_>) -> bool {
        let form = self.dir.form(self.format);
        let end = form.end(self.format.block_size);
        let needed = form.needed(&entry.name);
        let fits = self.block.is_some() && {
            let left = end.saturating_sub(self.used);
            left >= needed && (self.used == 0 || left >= self.free)
        };
        if !fits {
            self.close();
            self.block = Some(self.content.len());
            self.content.resize(self.content.len() + self.format.block_size, 0);
            (self.used, self.last) = (0, 0);
        }
        let start = self.block.unwrap_or(0) + self.used;
        if let Some(record) = self.content.get_mut(start..start + needed) {
            write(record, inode, entry, self.format);
        }
        self.last = self.used;
        self.used += needed;
        !fits
    }

    /// Number of blocks so far.
    pub(super) fn blocks(&self) -> usize {
        self.content.len() / self.format.block_size.max(1)
    }

    /// Closes the last block and returns the content.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.close();
        self.content
    }

    /// Extends the last entry of the open block to its end, and sets the checksum.
    fn close(&mut self) {
        let Some(block) = self.block.and_then(|start| self.content.get_mut(start..)) else {
            return;
        };
        let end = self.dir.form(self.format).end(block.len());
        // The last entry starts before the end and is aligned, so its length can be stored.
        let _ = super::area::set_rec_len(block, self.last, end.saturating_sub(self.last));
        end_leaf(block, self.dir.inode_seed(self.format));
    }
}

/// Writes an entry that spans `record`.
fn write(record: &mut [u8], inode: InodeNr, entry: &Entry<'_>, format: &DirFormat) {
    let file_type = format.type_of(entry.file_type);
    // At most 272 bytes.
    let rec_len = u32::try_from(record.len()).unwrap_or(0);
    // Names were validated before, and the record is as long as its entry needs.
    let _ = write_entry(record, inode, rec_len, &entry.name, file_type, format.block_size);
    if let Some(hash) = entry.hash {
        let _ = write_entry_hash(record, entry.name.len(), hash);
    }
}
