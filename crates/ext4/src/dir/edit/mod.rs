//! Inserts and removes names of a directory in place: in linear directories, and in indexed ones,
//! whose leaves and nodes are split when they are full.

mod index;

use floe_format::ext::casefold;
use floe_format::ext::dirent::DirCursor;
use floe_format::ext::extent::Extent;
use floe_format::ext::htree::DxBlock;
use floe_format::ext::inode::{InodeFlags, OwnedInode};
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::{
    DirFormat, Directory, Entry, checksum_fits, empty_block, insert, remove, seal, set_inode,
    set_type,
};
use crate::alloc::{FromBitmaps, Space};
use crate::fs::FileSystem;
use crate::map::file;
use crate::tx::{Block, Refusal, Tx, own_bytes, verify};

const DAMAGED: Refusal = Refusal::Damaged("the directory");

/// Changes the names of one directory, which must not be inline. The caller updates link counts,
/// and writes the directory's inode, whose size, blocks and flags may change
/// ([`FileSystem::put_inode`]).
///
/// Blocks are read only when they are needed: a name in an indexed directory costs its index blocks
/// and one leaf, whatever the number of names.
pub struct DirEditor<'d, S = FromBitmaps> {
    /// Where blocks are read and changed.
    pub tx: &'d mut dyn Tx,
    /// The file system, which provides blocks when the directory grows.
    pub fs: &'d mut FileSystem<S>,
    /// The inode of the directory.
    pub inode: &'d mut OwnedInode,
    dir: Directory,
    format: DirFormat,
    /// The extent that was looked up last.
    last: Option<Extent>,
}

/// The place of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The block that contains it.
    pub block: BlockNr,
    /// Offset of its entry in the block.
    pub offset: u32,
    /// The inode it names.
    pub inode: InodeNr,
    /// Its type byte; 0 without the filetype feature.
    pub file_type: u8,
}

impl<'d, S: Space> DirEditor<'d, S> {
    /// Opens a directory. `parent` is used only if the directory has no `..` and gets an index.
    ///
    /// # Errors
    /// [`Refusal::TooMuch`] for an inline directory.
    pub fn open(
        tx: &'d mut dyn Tx,
        fs: &'d mut FileSystem<S>,
        inode: &'d mut OwnedInode,
        parent: InodeNr,
    ) -> Result<Self, Refusal> {
        let flags = inode.flags();
        if flags.contains(InodeFlags::INLINE_DATA) {
            return Err(Refusal::TooMuch("an inline directory cannot be edited in place"));
        }
        let dir = Directory {
            inode: inode.number,
            parent,
            generation: inode.base.generation,
            encrypted: flags.contains(InodeFlags::ENCRYPT),
            casefolded: flags.contains(InodeFlags::CASEFOLD),
        };
        let format = DirFormat::of(&fs.superblock, fs.geometry());
        Ok(Self { tx, fs, inode, dir, format, last: None })
    }

    /// Number of blocks by `i_size`.
    fn blocks(&self) -> u64 {
        self.inode.size_bytes() / u64::from(self.fs.geometry().block_size)
    }

    /// The physical block of a logical block.
    fn place(&mut self, logical: LogicalBlock) -> Result<BlockNr, Refusal> {
        let covers = |extent: &Extent| {
            (extent.logical.0..extent.logical.0 + extent.run.len_blocks).contains(&logical.0)
        };
        if self.last.filter(covers).is_none() {
            self.last = file::look(self.fs, self.inode).find(self.tx, logical)?;
            if let Some(extent) = &self.last {
                self.fs.space.judge_file(self.inode.number, extent.run)?;
            }
        }
        let extent = self.last.filter(covers).ok_or(DAMAGED)?;
        let block = BlockNr(extent.run.start.0 + (logical.0 - extent.logical.0));
        if self.fs.geometry().contains(block) { Ok(block) } else { Err(DAMAGED) }
    }

    /// Reads a block of the directory.
    fn read(&mut self, block: BlockNr) -> Result<Block, Refusal> {
        let bytes = self.tx.block(block)?;
        if let Some(seed) = self.dir.inode_seed(&self.format) {
            verify(self.tx, "a directory block", || checksum_fits(&bytes, seed))?;
        }
        Ok(bytes)
    }

    /// Looks up a name: byte for byte, or in folded form in a casefolded directory. If the index
    /// cannot be followed, all blocks are searched.
    ///
    /// # Errors
    /// [`Refusal::Damaged`], or an error of reading a block.
    pub fn find(&mut self, name: &[u8]) -> Result<Option<Found>, Refusal> {
        let dots = matches!(name, b"." | b"..");
        if self.inode.flags().contains(InodeFlags::INDEX) && !dots && !self.dir.hashed() {
            match self.find_indexed(name) {
                Err(Refusal::Damaged(_)) => {}
                found => return found,
            }
        }
        for logical in 0..self.blocks() {
            let block = self.place(LogicalBlock(logical))?;
            if let Some(found) = self.find_in(block, name)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// Looks up a name in one block.
    fn find_in(&mut self, block: BlockNr, name: &[u8]) -> Result<Option<Found>, Refusal> {
        let bytes = self.read(block)?;
        let form = self.dir.form(&self.format);
        let folds = self.dir.folds();
        let same = |other: &[u8]| other == name || folds && casefold::same_name(other, name);
        // In the root of an index, the record of `..` spans the whole block.
        let dots = matches!(name, b"." | b"..");
        let end = if dots { bytes.len() } else { form.end(bytes.len()) };
        let cursor = DirCursor::new(&bytes).ending_at(end).hashed(form.hashed);
        let mut entries = cursor.map_while(Result::ok);
        let entry = entries.find(|entry| entry.in_use() && same(entry.name));
        Ok(entry.map(|entry| {
            let (offset, inode) = (entry.offset, entry.inode);
            Found { block, offset, inode, file_type: entry.file_type }
        }))
    }

    /// Whether the directory contains any name except `.` and `..`.
    ///
    /// # Errors
    /// Those of [`DirEditor::find`].
    pub fn has_names(&mut self) -> Result<bool, Refusal> {
        for logical in 0..self.blocks() {
            let block = self.place(LogicalBlock(logical))?;
            let bytes = self.read(block)?;
            // Index blocks have no names; their entries span the room of a checksum, too.
            if DxBlock::detect(&bytes).is_some() {
                continue;
            }
            let form = self.dir.form(&self.format);
            let cursor = DirCursor::new(&bytes).ending_at(form.end(bytes.len()));
            for entry in cursor.hashed(form.hashed) {
                let entry = entry.map_err(|_| DAMAGED)?;
                if entry.in_use() && !entry.is_dot_or_dotdot() {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Removes a name. Returns the inode it named; `None` if the name does not exist.
    ///
    /// # Errors
    /// Those of [`DirEditor::find`].
    pub fn remove(&mut self, name: &[u8]) -> Result<Option<InodeNr>, Refusal> {
        let Some(found) = self.find(name)? else { return Ok(None) };
        let bytes = self.tx.block_mut(found.block)?;
        remove(bytes, self.dir.form(&self.format), found.offset).ok_or(DAMAGED)?;
        seal(bytes, self.dir.inode_seed(&self.format));
        Ok(Some(found.inode))
    }

    /// Makes a name, possibly `..`, name another inode. Returns the inode it named; `None` if the
    /// name does not exist.
    ///
    /// # Errors
    /// Those of [`DirEditor::find`].
    pub fn replace(
        &mut self,
        name: &[u8],
        inode: InodeNr,
        file_type: u8,
    ) -> Result<Option<InodeNr>, Refusal> {
        let Some(found) = self.find(name)? else { return Ok(None) };
        let file_type = self.format.type_of(file_type);
        let bytes = self.tx.block_mut(found.block)?;
        set_inode(bytes, found.offset, inode).ok_or(DAMAGED)?;
        set_type(bytes, found.offset, file_type).ok_or(DAMAGED)?;
        seal(bytes, self.dir.inode_seed(&self.format));
        Ok(Some(found.inode))
    }

    /// Adds a name. The caller must have checked that it does not exist. A linear directory whose
    /// only block is full gets an index, if the file system has dir_index.
    ///
    /// # Errors
    /// [`Refusal::Full`] if no blocks are free, [`Refusal::TooMuch`] if the index cannot be deeper,
    /// [`Refusal::Damaged`], or an error of reading or changing a block.
    pub fn insert(&mut self, entry: &Entry<'_>) -> Result<(), Refusal> {
        if self.inode.flags().contains(InodeFlags::INDEX) {
            return self.insert_indexed(entry);
        }
        for logical in 0..self.blocks() {
            let block = self.place(LogicalBlock(logical))?;
            if self.insert_in(block, entry)? {
                return Ok(());
            }
        }
        if self.format.dir_index && self.blocks() == 1 {
            self.make_index()?;
            return self.insert_indexed(entry);
        }
        let (_, block) = self.grow()?;
        let empty = empty_block(&self.format, &self.dir);
        self.tx.zeroed(block)?.copy_from_slice(&empty);
        if self.insert_in(block, entry)? { Ok(()) } else { Err(DAMAGED) }
    }

    /// Adds an entry to a leaf or linear block, if it has space. Returns whether it had.
    fn insert_in(&mut self, block: BlockNr, entry: &Entry<'_>) -> Result<bool, Refusal> {
        let mut bytes = self.read(block)?;
        let own = own_bytes(&mut bytes);
        if insert(own, self.dir.form(&self.format), entry).is_none() {
            return Ok(false);
        }
        seal(own, self.dir.inode_seed(&self.format));
        self.tx.put(block, bytes)?;
        Ok(true)
    }

    /// Appends a zeroed block to the directory.
    fn grow(&mut self) -> Result<(LogicalBlock, BlockNr), Refusal> {
        let geo = self.fs.geometry().clone();
        let logical = LogicalBlock(self.blocks());
        let block = self.next_block(logical)?;
        self.tx.zeroed(block)?;
        let extent = Extent { logical, run: BlockRun::new(block, 1), unwritten: false };
        file::insert(self.tx, self.fs, self.inode, extent)?;
        self.inode.set_size_bytes((logical.0 + 1) * u64::from(geo.block_size));
        self.last = None;
        Ok((logical, block))
    }

    /// The physical block for a new logical block: the next one of the last cluster, or a newly
    /// allocated one near the last block.
    fn next_block(&mut self, logical: LogicalBlock) -> Result<BlockNr, Refusal> {
        let cluster = u64::from(self.fs.geometry().cluster_blocks);
        let before = match logical.0.checked_sub(1) {
            Some(before) => Some(self.place(LogicalBlock(before))?),
            None => None,
        };
        if let Some(before) = before
            && !logical.0.is_multiple_of(cluster)
        {
            return Ok(BlockNr(before.0 + 1));
        }
        let goal = before.map_or(BlockNr(0), |before| BlockNr(before.0 + 1));
        let home = file::home_region(self.fs.geometry(), self.inode.number);
        let goal = home.unwrap_or(goal);
        let block = self.fs.space.block(self.tx, goal)?;
        file::count(self.fs, self.inode, 1);
        Ok(block)
    }
}
