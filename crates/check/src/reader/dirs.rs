//! Entries of directories, and paths that lead to inodes.

use floe_format::ext::dirent::{DirCursor, DirEntry};
use floe_format::ext::inline_data::InlineData;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use super::{Reader, ReaderError};

/// Blocks of the largest directory: 64 GiB in blocks of 4 KiB.
const MAX_DIR_BLOCKS: u64 = 1 << 24;

/// An entry of a directory, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode it names; 0: unused.
    pub inode: InodeNr,
    /// Type byte.
    pub file_type: u8,
    /// Name, as it lies on the disk.
    pub name: Vec<u8>,
    /// Block of the directory.
    pub logical: LogicalBlock,
    /// Byte of that block.
    pub offset_bytes: u32,
    /// Bytes to the next entry.
    pub rec_len: u32,
}

impl Entry {
    fn new(entry: &DirEntry<'_>, logical: LogicalBlock) -> Self {
        Self {
            inode: entry.inode,
            file_type: entry.file_type,
            name: entry.name.to_vec(),
            logical,
            offset_bytes: entry.offset,
            rec_len: entry.rec_len,
        }
    }

    fn leads_down(&self) -> bool {
        self.inode.0 != 0 && !matches!(self.name.as_slice(), b"." | b"..")
    }
}

impl Reader<'_> {
    /// The blocks of a directory, in order: as many as its size says, at most `limit_blocks`.
    pub(super) fn dir_blocks(
        &self,
        inode: &Inode<'_>,
        limit_blocks: u64,
    ) -> Vec<(LogicalBlock, BlockNr)> {
        let by_size = inode.size_bytes().div_ceil(u64::from(self.geometry.block_size));
        // More blocks than any kernel reads are damage; they would only fill the memory.
        let most = by_size.min(limit_blocks).min(MAX_DIR_BLOCKS);
        let mut blocks = Vec::new();
        for extent in self.map(inode).extents {
            for offset in 0..extent.run.len_blocks {
                if blocks.len() as u64 >= most {
                    return blocks;
                }
                let logical = LogicalBlock(extent.logical.0 + offset);
                blocks.push((logical, BlockNr(extent.run.start.0.saturating_add(offset))));
            }
        }
        blocks
    }

    /// The entries of a directory, in the order of the disk, at most `limit_blocks` blocks of them.
    /// Index nodes give nothing; blocks that are broken or unreadable give what can be read.
    ///
    /// # Errors
    /// [`ReaderError::Path`] if `inode` is no directory.
    pub fn entries(
        &self,
        number: InodeNr,
        inode: &Inode<'_>,
        limit_blocks: u64,
    ) -> Result<Vec<Entry>, ReaderError> {
        if inode.file_type() != Some(FileType::Directory) {
            let (path, why) = (number.to_string(), "is not a directory".into());
            return Err(ReaderError::Path { path, why });
        }
        let hashed = inode.flags().contains(InodeFlags::ENCRYPT | InodeFlags::CASEFOLD);
        let mut entries = Vec::new();
        let mut take = |cursor: DirCursor<'_>, logical| {
            let cursor = cursor.hashed(hashed);
            entries.extend(cursor.map_while(Result::ok).map(|entry| Entry::new(&entry, logical)));
        };
        if inode.flags().contains(InodeFlags::INLINE_DATA) {
            if let Some(inline) = InlineData::of(inode) {
                take(inline.first_entries(), LogicalBlock(0));
                take(inline.second_entries(), LogicalBlock(1));
                let parent = inline.parent();
                entries.insert(0, dotdot(parent));
            }
            return Ok(entries);
        }
        for (logical, block) in self.dir_blocks(inode, limit_blocks) {
            if let Ok(bytes) = self.block(block) {
                take(DirCursor::new(&bytes), logical);
            }
        }
        Ok(entries)
    }

    /// The inode that a path leads to: `/` or `/dir/file`; links are not followed.
    ///
    /// # Errors
    /// [`ReaderError::Path`] if it leads nowhere.
    pub fn lookup(&self, path: &str) -> Result<InodeNr, ReaderError> {
        let mut inode = InodeNr::ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let bytes = self.inode_bytes(inode)?;
            let entries = self.entries(inode, &self.decode(&bytes)?, u64::MAX);
            let lost = |why: &str| ReaderError::Path { path: path.into(), why: why.into() };
            let entries = entries.map_err(|_| lost("a name before the last is no directory"))?;
            let found = entries.iter().find(|one| one.inode.0 != 0 && one.name == name.as_bytes());
            inode = found.ok_or_else(|| lost(&format!("there is no {name:?}")))?.inode;
        }
        Ok(inode)
    }

    /// Entries that lead down the tree: in use, and neither `.` nor `..`.
    pub(super) fn children(&self, number: InodeNr, limit_blocks: u64) -> Vec<Entry> {
        let Ok(bytes) = self.inode_bytes(number) else { return Vec::new() };
        let Ok(inode) = self.decode(&bytes) else { return Vec::new() };
        let mut entries = self.entries(number, &inode, limit_blocks).unwrap_or_default();
        entries.retain(Entry::leads_down);
        entries
    }
}

fn dotdot(parent: InodeNr) -> Entry {
    Entry {
        inode: parent,
        file_type: FileType::Directory as u8,
        name: b"..".to_vec(),
        logical: LogicalBlock(0),
        offset_bytes: 0,
        rec_len: 4,
    }
}
