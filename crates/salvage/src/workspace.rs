//! The rebuilt file system: the source, never written, under an overlay that holds rebuilt inodes,
//! maps and directories. New structures get blocks and inodes behind the end of the source.

use std::io;

use floe_blockdev::{Overlay, ReadBlocks, SpillOptions, WriteBlocks};
use floe_ext4::dir::{DirFormat, Directory, Entry, rebuild};
use floe_ext4::files::Files;
use floe_ext4::inode_table::inode_offset;
use floe_ext4::map::extent_tree::{NodeForm, build, nodes_needed};
use floe_format::crc::Seed;
use floe_format::ext::extent::Extent;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::{InodeFlags, OwnedInode};
use floe_format::ext::superblock::Superblock;
use floe_format::{BlockNr, BlockRun, Geometry, InodeNr, LogicalBlock};

use crate::extended::Extended;
use crate::frame::Frame;

/// Blocks behind the end of the source for rebuilt structures, at most. They take memory or space
/// in a temporary file only when written.
const NEW_BLOCKS: u64 = 1 << 31;
/// `i_extra_isize` of rebuilt inodes.
const EXTRA_BYTES: u16 = 32;

/// The rebuilt file system.
pub(crate) struct Workspace<'d> {
    overlay: Overlay<Extended<'d>>,
    pub(crate) superblock: Superblock,
    /// Counts the new blocks and inodes, too.
    pub(crate) geometry: Geometry,
    groups: Vec<GroupDesc>,
    seed: Option<Seed>,
    next_block: u64,
    next_inode: u32,
}

impl<'d> Workspace<'d> {
    /// An overlay over `source` that keeps `memory_bytes` of rebuilt blocks in memory, the rest in a
    /// temporary file.
    pub(crate) fn new(source: &'d dyn ReadBlocks, frame: &Frame, memory_bytes: u64) -> Self {
        let mut geometry = frame.geometry.clone();
        let next_block = geometry.blocks_count;
        geometry.blocks_count = next_block.saturating_add(NEW_BLOCKS);
        let size_bytes = geometry.offset_bytes(BlockNr(geometry.blocks_count));
        let spill = SpillOptions::in_temporary_folder(memory_bytes);
        let used_bytes = frame.geometry.offset_bytes(BlockNr(next_block));
        let device = Extended::new(source, used_bytes, size_bytes);
        let overlay = Overlay::with_spill(device, geometry.block_size, spill);
        let mut workspace = Self {
            overlay,
            superblock: frame.superblock.clone(),
            next_inode: geometry.inodes_count.saturating_add(1),
            geometry,
            groups: frame.groups.clone(),
            seed: frame.seed(),
            next_block,
        };
        workspace.give_tables_a_place(frame);
        workspace
    }

    /// Gives every group without a usable inode table a new, empty one.
    fn give_tables_a_place(&mut self, frame: &Frame) {
        let table_blocks = u64::from(self.geometry.inode_table_blocks);
        for at in 0..self.groups.len() {
            let table = self.groups[at].inode_table;
            let last = BlockNr(table.0.saturating_add(table_blocks).saturating_sub(1));
            let is_usable = frame.has_tables()
                && frame.geometry.contains(table)
                && frame.geometry.contains(last);
            if !is_usable {
                self.groups[at].inode_table = self.take_blocks(table_blocks);
            }
        }
    }

    /// The first of `count` new blocks.
    fn take_blocks(&mut self, count: u64) -> BlockNr {
        let first = BlockNr(self.next_block);
        self.next_block = self.next_block.saturating_add(count);
        first
    }

    /// A new inode number behind those of the source; `None` if numbers are used up.
    pub(crate) fn take_inode(&mut self) -> Option<InodeNr> {
        if self.next_inode > self.geometry.inodes_count {
            let count = self.geometry.inodes_count.checked_add(self.geometry.inodes_per_group)?;
            let inode_table = self.take_blocks(u64::from(self.geometry.inode_table_blocks));
            self.groups.push(GroupDesc { inode_table, ..GroupDesc::default() });
            self.geometry.group_count += 1;
            self.geometry.inodes_count = count;
        }
        let inode = InodeNr(self.next_inode);
        self.next_inode += 1;
        Some(inode)
    }

    /// The files, as rebuilt so far.
    pub(crate) fn files(&self) -> Files<'_> {
        let groups = self.groups.clone();
        Files::new(&self.overlay, self.superblock.clone(), self.geometry.clone(), groups)
            .without_garbage()
    }

    /// Reads one block of the source, or a rebuilt one.
    pub(crate) fn block(&self, block: BlockNr) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.geometry.block_size as usize];
        self.overlay.read_at(self.geometry.offset_bytes(block), &mut bytes)?;
        Ok(bytes)
    }

    /// Reads the bytes of an inode from any place of the source.
    pub(crate) fn inode_at(&self, inode: InodeNr, offset_bytes: u64) -> Option<OwnedInode> {
        let mut raw = vec![0; self.geometry.inode_size as usize];
        self.overlay.read_at(offset_bytes, &mut raw).ok()?;
        OwnedInode::of(inode, raw)
    }

    /// The inode in its place, or as rebuilt; `None` if it cannot be read.
    pub(crate) fn inode(&self, inode: InodeNr) -> Option<OwnedInode> {
        self.inode_at(inode, inode_offset(inode, &self.geometry, &self.groups)?)
    }

    /// A new inode of the usual form.
    pub(crate) fn new_inode(
        &self,
        inode: InodeNr,
        mode: u16,
        generation: u32,
    ) -> Option<OwnedInode> {
        let mut new = OwnedInode::new(inode, self.geometry.inode_size as usize, EXTRA_BYTES)?;
        new.base.mode = mode;
        new.base.links_count = 1;
        new.base.generation = generation;
        Some(new)
    }

    /// Writes an inode over the table of its group, with its checksum. `None` if it has no place.
    ///
    /// # Errors
    /// The temporary file cannot be written.
    pub(crate) fn put_inode(&self, inode: &mut OwnedInode) -> io::Result<Option<()>> {
        let Some(offset) = inode_offset(inode.number, &self.geometry, &self.groups) else {
            return Ok(None);
        };
        let raw = inode.seal(self.seed);
        // A table block that cannot be read is replaced: what it held is lost anyway.
        if self.overlay.write_at(offset, raw).is_err() {
            self.replace_block(offset)?;
            self.overlay.write_at(offset, raw)?;
        }
        Ok(Some(()))
    }

    fn replace_block(&self, offset: u64) -> io::Result<()> {
        let size = u64::from(self.geometry.block_size);
        let zeroes = vec![0; self.geometry.block_size as usize];
        self.overlay.write_at(offset / size * size, &zeroes)
    }

    /// Makes an inode map `extents`, which are sorted and do not overlap; writes the nodes of the
    /// map and the inode.
    ///
    /// # Errors
    /// The temporary file cannot be written.
    pub(crate) fn put_map(
        &mut self,
        inode: &mut OwnedInode,
        extents: &[Extent],
    ) -> io::Result<Option<()>> {
        let block_size = self.geometry.block_size;
        let Ok(needed) = nodes_needed(extents, block_size) else { return Ok(None) };
        let first = self.take_blocks(needed as u64);
        let nodes: Vec<BlockNr> = (0..needed as u64).map(|at| BlockNr(first.0 + at)).collect();
        let form = NodeForm::of(block_size, self.seed, inode.number, inode.base.generation);
        let Ok(built) = build(extents, form, &nodes) else { return Ok(None) };
        for (block, bytes) in built.blocks {
            self.overlay.write_at(self.geometry.offset_bytes(block), &bytes)?;
        }
        inode.base.block = built.root;
        inode.set_flags(InodeFlags::EXTENTS, true);
        inode.set_flags(InodeFlags::INLINE_DATA, false);
        self.put_inode(inode)
    }

    /// Gives a directory new blocks with these entries, and writes its inode.
    ///
    /// # Errors
    /// The temporary file cannot be written.
    pub(crate) fn put_directory(
        &mut self,
        inode: &mut OwnedInode,
        parent: InodeNr,
        entries: Vec<Entry<'_>>,
    ) -> io::Result<Option<()>> {
        let mut format = DirFormat::of(&self.superblock, &self.geometry);
        format.dir_index = false;
        let directory = Directory {
            inode: inode.number,
            parent,
            generation: inode.base.generation,
            encrypted: inode.flags().contains(InodeFlags::ENCRYPT),
            casefolded: inode.flags().contains(InodeFlags::CASEFOLD),
        };
        let content = rebuild(&format, &directory, 1, false, entries).content;
        let blocks = content.len() as u64 / u64::from(self.geometry.block_size);
        let start = self.take_blocks(blocks);
        self.overlay.write_at(self.geometry.offset_bytes(start), &content)?;
        inode.set_flags(InodeFlags::INDEX, false);
        let size = content.len() as u64;
        inode.set_size_bytes(size);
        let run = BlockRun::new(start, blocks);
        let extents: Vec<Extent> =
            cut(run).map(|(logical, run)| Extent { logical, run, unwritten: false }).collect();
        self.put_map(inode, &extents)
    }
}

/// A run as pieces that fit one extent each.
fn cut(run: BlockRun) -> impl Iterator<Item = (LogicalBlock, BlockRun)> {
    const MOST_BLOCKS: u64 = 32768;
    (0..run.len_blocks).step_by(MOST_BLOCKS as usize).map(move |at| {
        let len = MOST_BLOCKS.min(run.len_blocks - at);
        (LogicalBlock(at), BlockRun::new(BlockNr(run.start.0 + at), len))
    })
}
