//! Adding names to directories and taking them away.

use floe_blockdev::ReadBlocks;
use floe_format::ext::dirent::{
    DirCursor, DirTail, TAIL_SIZE, encode_rec_len, needed_rec_len, write_entry,
};
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::editor::{Editor, Impossible};
use super::extents::ExtentList;
use super::inodes::{self, put32};

/// A directory being changed. Inline and hash-in-entry directories never have fast commits; for
/// them every change is impossible.
pub(crate) struct Directory {
    inode: InodeNr,
    raw: Vec<u8>,
    list: ExtentList,
    seed: u32,
    has_tails: bool,
}

/// Where a name is.
struct Place {
    block: BlockNr,
    bytes: Vec<u8>,
    offset: usize,
    /// The entry before in the same block.
    previous: Option<usize>,
    inode: InodeNr,
}

impl Directory {
    pub(crate) fn open<D: ReadBlocks>(
        editor: &mut Editor<'_, D>,
        inode: InodeNr,
    ) -> Result<Self, Impossible> {
        let raw = editor.read_inode(inode)?;
        let decoded = Inode::decode(&raw).ok_or(Impossible)?;
        let hashed = InodeFlags::ENCRYPT.union(InodeFlags::CASEFOLD);
        if decoded.file_type() != Some(FileType::Directory)
            || decoded.base.links_count == 0
            || decoded.flags().contains(InodeFlags::INLINE_DATA)
            || decoded.flags().contains(hashed)
        {
            return Err(Impossible);
        }
        let list = ExtentList::read(editor, &decoded)?;
        let seed = editor.seed.of_inode(inode, decoded.base.generation);
        let has_tails = editor.geo.features.metadata_csum();
        Ok(Self { inode, raw, list, seed, has_tails })
    }

    /// Blocks by `i_size`.
    fn blocks<D: ReadBlocks>(&self, editor: &Editor<'_, D>) -> u64 {
        let size = Inode::decode(&self.raw).map_or(0, |inode| inode.size_bytes());
        size / u64::from(editor.geo.block_size)
    }

    /// The blocks that can hold names, in order. Each costs a step of work, so that a directory
    /// that claims to be huge ends early.
    fn physical_blocks<D: ReadBlocks>(
        &self,
        editor: &mut Editor<'_, D>,
    ) -> Result<Vec<BlockNr>, Impossible> {
        let blocks = self.blocks(editor);
        let mut found = Vec::new();
        for extent in &self.list.extents {
            let len = extent.run.len_blocks.min(blocks.saturating_sub(extent.logical.0));
            editor.charge(1 + len)?;
            found.extend((extent.run.start.0..extent.run.start.0 + len).map(BlockNr));
        }
        Ok(found)
    }

    fn cursor<'b>(&self, bytes: &'b [u8]) -> DirCursor<'b> {
        let cursor = DirCursor::new(bytes);
        if self.has_tails && DirTail::of(bytes).is_some() { cursor.without_tail() } else { cursor }
    }

    fn find<D: ReadBlocks>(
        &self,
        editor: &mut Editor<'_, D>,
        name: &[u8],
    ) -> Result<Option<Place>, Impossible> {
        for block in self.physical_blocks(editor)? {
            let bytes = editor.read_block(block)?;
            let mut previous = None;
            let mut found = None;
            for entry in self.cursor(&bytes).map_while(Result::ok) {
                if entry.in_use() && entry.name == name {
                    found = Some((entry.offset as usize, entry.inode));
                    break;
                }
                previous = Some(entry.offset as usize);
            }
            if let Some((offset, inode)) = found {
                return Ok(Some(Place { block, bytes, offset, previous, inode }));
            }
        }
        Ok(None)
    }

    fn store<D: ReadBlocks>(
        &self,
        editor: &Editor<'_, D>,
        block: BlockNr,
        bytes: &mut [u8],
    ) -> Result<(), Impossible> {
        if self.has_tails && DirTail::of(bytes).is_some() {
            DirTail::write(self.seed, bytes);
        }
        editor.write_block(block, bytes)
    }

    /// Takes a name away; whether it was there (and led to `inode`).
    pub(crate) fn remove<D: ReadBlocks>(
        &mut self,
        editor: &mut Editor<'_, D>,
        name: &[u8],
        inode: InodeNr,
    ) -> Result<bool, Impossible> {
        let place = self.find(editor, name)?;
        let Some(mut place) = place.filter(|place| place.inode == inode) else { return Ok(false) };
        let size = place.bytes.len();
        put32(&mut place.bytes, place.offset, 0);
        if let Some(previous) = place.previous {
            let entries: Vec<(usize, u32)> = self
                .cursor(&place.bytes)
                .map_while(Result::ok)
                .map(|entry| (entry.offset as usize, entry.rec_len))
                .collect();
            let len_of = |at| entries.iter().find(|(offset, _)| *offset == at).map(|(_, len)| *len);
            let joined = len_of(previous).zip(len_of(place.offset)).map(|(a, b)| a + b);
            let stored = joined.and_then(|joined| encode_rec_len(joined, size));
            let stored = stored.ok_or(Impossible)?;
            place.bytes[previous + 4..previous + 6].copy_from_slice(&stored.to_le_bytes());
        }
        self.store(editor, place.block, &mut place.bytes)?;
        Ok(true)
    }

    /// Adds a name, in place of an entry of the same name. Whether it was not there before.
    pub(crate) fn add<D: ReadBlocks>(
        &mut self,
        editor: &mut Editor<'_, D>,
        name: &[u8],
        inode: InodeNr,
        file_type: u8,
    ) -> Result<bool, Impossible> {
        if let Some(mut place) = self.find(editor, name)? {
            let was_there = place.inode == inode;
            put32(&mut place.bytes, place.offset, inode.0);
            place.bytes[place.offset + 7] = file_type;
            self.store(editor, place.block, &mut place.bytes)?;
            return Ok(!was_there);
        }
        self.drop_index(editor)?;
        for block in self.physical_blocks(editor)? {
            let mut bytes = editor.read_block(block)?;
            if self.add_to_block(&mut bytes, name, inode, file_type)? {
                self.store(editor, block, &mut bytes)?;
                return Ok(true);
            }
        }
        let (block, mut bytes) = self.append(editor)?;
        if !self.add_to_block(&mut bytes, name, inode, file_type)? {
            return Err(Impossible);
        }
        self.store(editor, block, &mut bytes)?;
        Ok(true)
    }

    /// Adds a name to a block if it has room: in an unused entry, or behind a used one.
    fn add_to_block(
        &self,
        bytes: &mut [u8],
        name: &[u8],
        inode: InodeNr,
        file_type: u8,
    ) -> Result<bool, Impossible> {
        let size = bytes.len();
        let needed = needed_rec_len(name.len(), false);
        let room = self.cursor(bytes).map_while(Result::ok).find_map(|entry| {
            let own = if entry.in_use() { needed_rec_len(entry.name.len(), false) } else { 0 };
            let free = entry.rec_len.checked_sub(own)?;
            (free >= needed).then_some((entry.offset as usize, own, free))
        });
        let Some((offset, own, free)) = room else { return Ok(false) };
        if own > 0 {
            let stored = encode_rec_len(own, size).ok_or(Impossible)?;
            bytes[offset + 4..offset + 6].copy_from_slice(&stored.to_le_bytes());
        }
        let at = offset + own as usize;
        write_entry(&mut bytes[at..], inode, free, name, file_type, size).ok_or(Impossible)?;
        Ok(true)
    }

    /// Bytes of a block that entries may fill.
    fn usable(&self, size: usize) -> u32 {
        let tail = if self.has_tails { TAIL_SIZE } else { 0 };
        // A block has at most 64 KiB.
        size.saturating_sub(tail) as u32
    }

    /// A block with one unused entry and, where blocks have one, a tail.
    fn empty_block(&self, size: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; size];
        let stored = encode_rec_len(self.usable(size), size)?;
        bytes[4..6].copy_from_slice(&stored.to_le_bytes());
        if self.has_tails {
            DirTail::write(self.seed, &mut bytes);
        }
        Some(bytes)
    }

    /// Grows the directory by an empty block.
    fn append<D: ReadBlocks>(
        &mut self,
        editor: &mut Editor<'_, D>,
    ) -> Result<(BlockNr, Vec<u8>), Impossible> {
        let block = self.fill_in(editor, self.blocks(editor))?;
        let bytes = self.empty_block(editor.geo.block_size as usize).ok_or(Impossible)?;
        Ok((block, bytes))
    }

    /// Allocates a block at a logical place that has none; the size grows if it must.
    fn fill_in<D: ReadBlocks>(
        &mut self,
        editor: &mut Editor<'_, D>,
        logical: u64,
    ) -> Result<BlockNr, Impossible> {
        let block = editor.allocate(self.inode)?;
        self.map(editor, logical, block)?;
        let size = (logical + 1).max(self.blocks(editor)) * u64::from(editor.geo.block_size);
        put32(&mut self.raw, 0x04, (size & 0xffff_ffff) as u32);
        put32(&mut self.raw, 0x6c, (size >> 32) as u32);
        inodes::recount(editor, &mut self.raw, &self.list)?;
        editor.write_inode(self.inode, &mut self.raw)?;
        Ok(block)
    }

    fn map<D: ReadBlocks>(
        &mut self,
        editor: &mut Editor<'_, D>,
        logical: u64,
        block: BlockNr,
    ) -> Result<(), Impossible> {
        let run = BlockRun::new(block, 1);
        self.list.insert(Extent { logical: LogicalBlock(logical), run, unwritten: false });
        self.list.write(editor, self.inode, &mut self.raw)
    }

    /// Turns an indexed directory into a linear one: a valid directory that needs no hashes to add
    /// a name to. Blocks of the index become entries without names.
    fn drop_index<D: ReadBlocks>(&mut self, editor: &mut Editor<'_, D>) -> Result<(), Impossible> {
        let flags = Inode::decode(&self.raw).ok_or(Impossible)?.flags();
        if !flags.contains(InodeFlags::INDEX) {
            return Ok(());
        }
        let size = editor.geo.block_size as usize;
        let blocks = self.physical_blocks(editor)?;
        for (index, &block) in blocks.iter().enumerate() {
            let bytes = editor.read_block(block)?;
            let mut entries = DirCursor::new(&bytes).map_while(Result::ok);
            if index == 0 {
                let mut dots = Vec::new();
                for name in [&b"."[..], b".."] {
                    let entry = entries.next().filter(|entry| entry.name == name);
                    dots.push(entry.ok_or(Impossible)?.inode);
                }
                self.write_dots(editor, block, dots[0], dots[1])?;
            } else if entries.next().is_some_and(|first| {
                // A node of the index is one unused entry over the whole block.
                !first.in_use() && first.rec_len as usize == size
            }) {
                editor.write_block(block, &self.empty_block(size).ok_or(Impossible)?)?;
            }
        }
        put32(&mut self.raw, 0x20, flags.difference(InodeFlags::INDEX).bits());
        editor.write_inode(self.inode, &mut self.raw)
    }

    /// Writes a first block that holds `.` and `..` alone.
    fn write_dots<D: ReadBlocks>(
        &self,
        editor: &Editor<'_, D>,
        block: BlockNr,
        own: InodeNr,
        parent: InodeNr,
    ) -> Result<(), Impossible> {
        let size = editor.geo.block_size as usize;
        let mut bytes = vec![0; size];
        let kind = inodes::entry_type(editor, FileType::Directory);
        let rest = self.usable(size) - 12;
        write_entry(&mut bytes, own, 12, b".", kind, size).ok_or(Impossible)?;
        write_entry(&mut bytes[12..], parent, rest, b"..", kind, size).ok_or(Impossible)?;
        if self.has_tails {
            DirTail::write(self.seed, &mut bytes);
        }
        editor.write_block(block, &bytes)
    }

    /// Number of subdirectories.
    pub(crate) fn subdirectories<D: ReadBlocks>(
        &self,
        editor: &mut Editor<'_, D>,
    ) -> Result<u64, Impossible> {
        let typed = inodes::entry_type(editor, FileType::Directory) != 0;
        let mut count = 0;
        for block in self.physical_blocks(editor)? {
            let bytes = editor.read_block(block)?;
            for entry in self.cursor(&bytes).map_while(Result::ok) {
                let kind = FileType::of_entry(entry.file_type);
                let counts = entry.in_use()
                    && !entry.is_dot_or_dotdot()
                    && if typed {
                        kind == Some(FileType::Directory)
                    } else {
                        inodes::is_dir(editor, entry.inode)
                    };
                count += u64::from(counts);
            }
        }
        Ok(count)
    }

    /// Makes sure that a new directory begins with `.` and `..`: fast commits do not hold them.
    pub(crate) fn start<D: ReadBlocks>(
        &mut self,
        editor: &mut Editor<'_, D>,
        parent: InodeNr,
    ) -> Result<(), Impossible> {
        if let Some(first) = self.list.block(0) {
            let bytes = editor.read_block(first)?;
            let mut entries = self.cursor(&bytes).map_while(Result::ok);
            let dot =
                entries.next().is_some_and(|entry| entry.name == b"." && entry.inode == self.inode);
            let dots =
                entries.next().is_some_and(|entry| entry.name == b".." && entry.inode == parent);
            if dot && dots {
                return Ok(());
            }
            return self.write_dots(editor, first, self.inode, parent);
        }
        let block = self.fill_in(editor, 0)?;
        self.write_dots(editor, block, self.inode, parent)
    }
}
