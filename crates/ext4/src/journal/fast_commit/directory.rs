//! Adds names to directories and removes them.

use floe_blockdev::ReadBlocks;
use floe_format::ext::dirent::{DirCursor, DirTail};
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::{FileType, InodeFlags, OwnedInode};
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::changing::{Changing, Impossible};
use super::{inline, inodes};
use crate::dir::{self, AreaForm, DirFormat, Entry};
use crate::map::runs::BlockMap;
use crate::tx::Tx;

/// A directory being changed. Those with hashes in entries never have fast commits, so every change
/// of them is [`Impossible`].
pub(super) struct Directory {
    pub(super) image: OwnedInode,
    pub(super) map: BlockMap,
    pub(super) own: dir::Directory,
    pub(super) format: DirFormat,
}

impl Directory {
    pub(super) fn open<D: ReadBlocks>(
        on: &mut Changing<'_, D>,
        inode: InodeNr,
    ) -> Result<Self, Impossible> {
        let image = on.inode(inode)?;
        let unlike = InodeFlags::ENCRYPT | InodeFlags::CASEFOLD;
        if image.file_type() != Some(FileType::Directory)
            || image.base.links_count == 0
            || image.flags().intersects(unlike)
        {
            return Err(Impossible);
        }
        let map = on.map_of(&image)?;
        let own = dir::Directory {
            inode,
            parent: InodeNr(0),
            generation: image.base.generation,
            encrypted: false,
            casefolded: false,
        };
        let format = DirFormat::of(&on.fs.superblock, on.geometry());
        Ok(Self { image, map, own, format })
    }

    /// Number of blocks by `i_size`.
    fn blocks(&self) -> u64 {
        self.image.size_bytes() / self.format.block_size as u64
    }

    /// The blocks that can hold names, in order. Each costs a step of work, so that a directory
    /// with a huge `i_size` is given up early.
    fn physical_blocks<D: ReadBlocks>(
        &self,
        on: &mut Changing<'_, D>,
    ) -> Result<Vec<BlockNr>, Impossible> {
        let blocks = self.blocks();
        let mut found = Vec::new();
        for extent in self.map.runs() {
            let len = extent.run.len_blocks.min(blocks.saturating_sub(extent.logical.0));
            on.charge(1 + len)?;
            found.extend((extent.run.start.0..extent.run.start.0 + len).map(BlockNr));
        }
        Ok(found)
    }

    /// The form of one block: the tail counts only if it is present.
    fn form_of(&self, bytes: &[u8]) -> AreaForm {
        let form = self.own.form(&self.format);
        AreaForm { tail: form.tail && DirTail::of(bytes).is_some(), ..form }
    }

    fn cursor<'b>(&self, bytes: &'b [u8]) -> DirCursor<'b> {
        if self.form_of(bytes).tail {
            DirCursor::new(bytes).without_tail()
        } else {
            DirCursor::new(bytes)
        }
    }

    /// The block, offset and inode of a name.
    fn find<D: ReadBlocks>(
        &self,
        on: &mut Changing<'_, D>,
        name: &[u8],
    ) -> Result<Option<(BlockNr, u32, InodeNr)>, Impossible> {
        for block in self.physical_blocks(on)? {
            let bytes = on.tx.block(block)?;
            let mut entries = self.cursor(&bytes).map_while(Result::ok);
            if let Some(entry) = entries.find(|entry| entry.in_use() && entry.name == name) {
                return Ok(Some((block, entry.offset, entry.inode)));
            }
        }
        Ok(None)
    }

    /// Changes a block, and updates its checksum if it has one.
    fn edit<D: ReadBlocks, T>(
        &self,
        on: &mut Changing<'_, D>,
        block: BlockNr,
        edit: impl FnOnce(&mut [u8], AreaForm) -> T,
    ) -> Result<T, Impossible> {
        let bytes = on.tx.block_mut(block)?;
        let form = self.form_of(bytes);
        let edited = edit(bytes, form);
        if form.tail {
            dir::seal(bytes, self.own.inode_seed(&self.format));
        }
        Ok(edited)
    }

    /// Removes a name. Returns whether it existed (and named `inode`).
    pub(super) fn remove<D: ReadBlocks>(
        &mut self,
        on: &mut Changing<'_, D>,
        name: &[u8],
        inode: InodeNr,
    ) -> Result<bool, Impossible> {
        if self.is_inline() {
            let form = self.own.inline_form(&self.format);
            let removed = inline::remove(&mut self.image, form, name, inode);
            on.put_inode(&mut self.image)?;
            return Ok(removed);
        }
        let Some((block, offset, found)) = self.find(on, name)? else { return Ok(false) };
        if found != inode {
            return Ok(false);
        }
        let removed = self.edit(on, block, |bytes, form| dir::remove(bytes, form, offset))?;
        removed.map(|()| true).ok_or(Impossible)
    }

    /// Adds a name, replacing an entry of the same name. Returns whether it is new.
    pub(super) fn add<D: ReadBlocks>(
        &mut self,
        on: &mut Changing<'_, D>,
        name: &[u8],
        inode: InodeNr,
        file_type: u8,
    ) -> Result<bool, Impossible> {
        let entry = Entry::new(inode, name, file_type);
        if self.is_inline() {
            let form = self.own.inline_form(&self.format);
            if let Some(is_new) = inline::add(&mut self.image, form, &entry) {
                on.put_inode(&mut self.image)?;
                return Ok(is_new);
            }
            self.convert(on)?;
        }
        if let Some((block, offset, found)) = self.find(on, name)? {
            let changed = self.edit(on, block, |bytes, _| {
                dir::set_inode(bytes, offset, inode)?;
                dir::set_type(bytes, offset, file_type)
            })?;
            return changed.map(|()| found != inode).ok_or(Impossible);
        }
        self.drop_index(on)?;
        for block in self.physical_blocks(on)? {
            let mut tried = on.tx.block(block)?.to_vec();
            let form = self.form_of(&tried);
            if dir::insert(&mut tried, form, &entry).is_some() {
                self.edit(on, block, |bytes, _| bytes.copy_from_slice(&tried))?;
                return Ok(true);
            }
        }
        let block = self.fill_in(on, self.blocks())?;
        on.tx.block_mut(block)?.copy_from_slice(&dir::empty_block(&self.format, &self.own));
        let added = self.edit(on, block, |bytes, form| dir::insert(bytes, form, &entry))?;
        added.map(|_| true).ok_or(Impossible)
    }

    /// Allocates a block at a logical block that is a hole, and increases `i_size` if needed.
    pub(super) fn fill_in<D: ReadBlocks>(
        &mut self,
        on: &mut Changing<'_, D>,
        logical: u64,
    ) -> Result<BlockNr, Impossible> {
        let block = on.allocate(self.own.inode)?;
        let run = BlockRun::new(block, 1);
        let extent = Extent { logical: LogicalBlock(logical), run, unwritten: false };
        on.insert(&mut self.image, extent)?;
        let blocks = (logical + 1).max(self.blocks());
        self.image.set_size_bytes(blocks * self.format.block_size as u64);
        self.map = on.map_of(&self.image)?;
        inodes::recount(on, &mut self.image, &self.map);
        on.put_inode(&mut self.image)?;
        Ok(block)
    }

    /// Converts an indexed directory to a linear one, which is valid and needs no hashes to add a
    /// name. Index blocks become blocks without names.
    fn drop_index<D: ReadBlocks>(&mut self, on: &mut Changing<'_, D>) -> Result<(), Impossible> {
        if !self.image.flags().contains(InodeFlags::INDEX) {
            return Ok(());
        }
        for (index, block) in self.physical_blocks(on)?.into_iter().enumerate() {
            let bytes = on.tx.block(block)?;
            let mut entries = DirCursor::new(&bytes).map_while(Result::ok);
            if index == 0 {
                let mut dots = Vec::new();
                for name in [&b"."[..], b".."] {
                    let entry = entries.next().filter(|entry| entry.name == name);
                    dots.push(entry.ok_or(Impossible)?.inode);
                }
                self.write_dots(on, block, dots[0], dots[1])?;
            } else if entries.next().is_some_and(|first| {
                // An index node looks like one unused entry that spans the block.
                !first.in_use() && first.rec_len as usize == self.format.block_size
            }) {
                let empty = dir::empty_block(&self.format, &self.own);
                on.tx.zeroed(block)?.copy_from_slice(&empty);
            }
        }
        self.image.set_flags(InodeFlags::INDEX, false);
        on.put_inode(&mut self.image)
    }

    /// Writes a first block with only `.` and `..`.
    fn write_dots<D: ReadBlocks>(
        &self,
        on: &mut Changing<'_, D>,
        block: BlockNr,
        inode: InodeNr,
        parent: InodeNr,
    ) -> Result<(), Impossible> {
        // The checksum belongs to this directory, whatever inode its first entry names.
        let named = dir::Directory { inode, parent, ..self.own };
        let mut bytes = dir::first_block(&self.format, &named);
        dir::seal(&mut bytes, self.own.inode_seed(&self.format));
        on.tx.zeroed(block)?.copy_from_slice(&bytes);
        Ok(())
    }

    /// Number of subdirectories.
    pub(super) fn subdirectories<D: ReadBlocks>(
        &self,
        on: &mut Changing<'_, D>,
    ) -> Result<u64, Impossible> {
        let mut count = 0;
        if self.is_inline() {
            for entry in inline::entries(&self.image, self.own.inline_form(&self.format)) {
                count += u64::from(inodes::is_dir(on, entry.inode));
            }
            return Ok(count);
        }
        for block in self.physical_blocks(on)? {
            let bytes = on.tx.block(block)?;
            for entry in self.cursor(&bytes).map_while(Result::ok) {
                if !entry.in_use() || entry.is_dot_or_dotdot() {
                    continue;
                }
                let is_directory = if self.format.filetype {
                    FileType::of_entry(entry.file_type) == Some(FileType::Directory)
                } else {
                    inodes::is_dir(on, entry.inode)
                };
                count += u64::from(is_directory);
            }
        }
        Ok(count)
    }

    /// Ensures that a new directory starts with `.` and `..`, which fast commits do not contain.
    pub(super) fn start<D: ReadBlocks>(
        &mut self,
        on: &mut Changing<'_, D>,
        parent: InodeNr,
    ) -> Result<(), Impossible> {
        let inode = self.own.inode;
        if self.is_inline() {
            inline::start(&mut self.image, parent);
            return on.put_inode(&mut self.image);
        }
        if let Some(first) = self.map.block(0) {
            let bytes = on.tx.block(first)?;
            let mut entries = self.cursor(&bytes).map_while(Result::ok);
            let mut leads = |name: &[u8], to| {
                entries.next().is_some_and(|entry| entry.name == name && entry.inode == to)
            };
            if leads(b".", inode) && leads(b"..", parent) {
                return Ok(());
            }
            return self.write_dots(on, first, inode, parent);
        }
        let block = self.fill_in(on, 0)?;
        self.write_dots(on, block, inode, parent)
    }
}
