//! Files that another system, which does not know cubes, has put into lots of other cubes: their blocks move back.

use floe_blockdev::WriteBlocks;
use floe_ext4::map::file;
use floe_ext4::map::runs::BlockMap;
use floe_ext4::map::walk::{Depths, has_map};
use floe_ext4::tx::Tx;
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::{FileType, OwnedInode};
use floe_format::native::identity::Identity;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::content::DAMAGED;
use super::staged::Op;
use super::{Caller, OpError};
use crate::volume::Volume;

/// Blocks that one transaction moves at most.
const MOST_MOVED: u64 = 256;

/// Blocks that were moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// How many.
    pub blocks: u64,
    /// Nothing of the inode is left in another cube.
    pub is_done: bool,
}

impl Volume {
    /// Moves some blocks of an inode that lie in other cubes into its own: content, nodes of its map, its block of attributes. To
    /// be called until it is done. Times stay as they are. `data` has the content of files, which is written there before the
    /// transaction.
    ///
    /// # Errors
    /// [`OpError::NoSpace`], or the map cannot be followed or changed: blocks that were not moved before stay where they are.
    pub fn move_home(
        &mut self,
        tx: &mut dyn Tx,
        data: &dyn WriteBlocks,
        caller: &Caller,
        inode: InodeNr,
    ) -> Result<Moved, OpError> {
        self.op(tx, caller, |op| op.move_home(data, inode))
    }

    /// From now on, references from one cube into another are damage: none is left.
    ///
    /// # Errors
    /// The superblock cannot be changed.
    pub fn uncouple(&mut self, tx: &mut dyn Tx, caller: &Caller) -> Result<(), OpError> {
        self.op(tx, caller, |op| op.edit_superblock(|sb| Identity::put_in_use(sb, false)))?;
        self.fs.space.uncouple();
        Ok(())
    }

    /// Says in the superblock that sub-superblocks tell which cubes are coupled.
    ///
    /// # Errors
    /// The superblock cannot be changed.
    pub fn note_couples_known(&mut self, tx: &mut dyn Tx, caller: &Caller) -> Result<(), OpError> {
        self.op(tx, caller, |op| op.edit_superblock(Identity::put_couples_known))
    }
}

impl Op<'_> {
    fn move_home(&mut self, data: &dyn WriteBlocks, number: InodeNr) -> Result<Moved, OpError> {
        if self.volume.geometry().cluster_bits > 0 {
            return Err(OpError::Unsupported("cubes with clusters of several blocks"));
        }
        let mut inode = self.inode(number)?;
        let mut blocks = u64::from(self.move_attributes(&mut inode)?);
        let mut is_done = true;
        if has_map(&inode.base) {
            let mut at = LogicalBlock(0);
            while let Some(part) = self.next_foreign(&inode, at)? {
                if blocks >= MOST_MOVED || self.is_half_full() {
                    is_done = false;
                    break;
                }
                let Some(len) = self.move_part(data, &mut inode, part)? else {
                    // Moved blocks are kept: else each try would write the same again.
                    if blocks == 0 {
                        return Err(OpError::NoSpace);
                    }
                    is_done = false;
                    break;
                };
                at = LogicalBlock(part.logical.0 + len);
                blocks += len;
            }
            let foreign = if is_done { self.foreign_nodes(&inode)? } else { 0 };
            if foreign > 0 && blocks > 0 {
                is_done = false;
            } else if foreign > 0 {
                self.rebuild_map(&mut inode)?;
                blocks = foreign;
            }
        }
        if blocks > 0 {
            self.put(&mut inode)?;
        }
        Ok(Moved { blocks, is_done })
    }

    fn is_foreign(&self, inode: InodeNr, block: BlockNr) -> bool {
        !self.is_own(inode, block)
    }

    /// The next part of a file that lies in another cube, within one group.
    fn next_foreign(
        &mut self,
        inode: &OwnedInode,
        from: LogicalBlock,
    ) -> Result<Option<Extent>, OpError> {
        let mut at = from;
        while let Some(extent) = self.next_extent(inode, at)? {
            let skipped = at.0.saturating_sub(extent.logical.0);
            let end = extent.logical.0 + extent.run.len_blocks;
            let mut place = extent.run.start.0 + skipped;
            while place < extent.run.end().0 {
                let geo = self.volume.geometry();
                let group = geo.group_of(BlockNr(place)).ok_or(DAMAGED)?;
                let behind = geo.blocks_of(group).end().0.min(extent.run.end().0);
                if self.is_foreign(inode.number, BlockNr(place)) {
                    let logical = LogicalBlock(extent.logical.0 + (place - extent.run.start.0));
                    let run = BlockRun::new(BlockNr(place), (behind - place).min(MOST_MOVED));
                    return Ok(Some(Extent { logical, run, ..extent }));
                }
                place = behind;
            }
            at = LogicalBlock(end);
        }
        Ok(None)
    }

    /// Moves as much of a part as one run of free blocks takes; returns how many blocks, or `None` where there is no room and nothing
    /// was written.
    fn move_part(
        &mut self,
        data: &dyn WriteBlocks,
        inode: &mut OwnedInode,
        part: Extent,
    ) -> Result<Option<u64>, OpError> {
        let is_data = inode.file_type() == Some(FileType::Regular);
        let run = match self.allocate(inode, part.logical, part.run.len_blocks) {
            Ok(run) => run,
            Err(OpError::NoSpace) => return Ok(None),
            Err(error) => return Err(error),
        };
        if self.is_foreign(inode.number, run.start) {
            // It would be moved again and again.
            self.release_part(inode, run, is_data)?;
            return Ok(None);
        }
        let old = BlockRun::new(part.run.start, run.len_blocks);
        let range = part.logical.0..part.logical.0 + run.len_blocks;
        file::remove(&mut self.tx, &mut self.volume.fs, inode, range)?;
        self.map_run(inode, part.logical, run, part.unwritten)?;
        if !part.unwritten {
            for at in 0..run.len_blocks {
                let (from, to) = (BlockNr(old.start.0 + at), BlockNr(run.start.0 + at));
                self.copy_block(data, from, to, is_data)?;
            }
        }
        self.release_part(inode, old, is_data)?;
        Ok(Some(run.len_blocks))
    }

    /// Gives back blocks that a file has no more.
    fn release_part(
        &mut self,
        inode: &mut OwnedInode,
        run: BlockRun,
        is_data: bool,
    ) -> Result<(), OpError> {
        if is_data && !self.volume.fs.space.logs_data(run.start) {
            self.volume.fs.space.release_data(&mut self.tx, run)?;
        } else {
            self.release_metadata(run)?;
        }
        file::count(&self.volume.fs, inode, -run.len_blocks.cast_signed());
        Ok(())
    }

    fn copy_block(
        &mut self,
        data: &dyn WriteBlocks,
        from: BlockNr,
        to: BlockNr,
        is_data: bool,
    ) -> Result<(), OpError> {
        if !is_data {
            let bytes = self.tx.block(from)?;
            self.tx.put(to, bytes)?;
            return Ok(());
        }
        let geo = self.volume.geometry();
        let mut bytes = vec![0; geo.block_size as usize];
        let failed = |block| move |source| OpError::Data { block, source };
        data.read_at(geo.offset_bytes(from), &mut bytes).map_err(failed(from))?;
        let at = geo.offset_bytes(to);
        self.write_at(data, to, at, &bytes)
    }

    pub(super) fn map_of(&mut self, inode: &OwnedInode) -> Result<BlockMap, OpError> {
        let geo = self.volume.geometry().clone();
        let (words, flags) = (&inode.base.block, inode.flags());
        let mut read = |block| self.tx.block(block).ok().map(|bytes| bytes.to_vec());
        let map = BlockMap::follow(words, flags, &geo, Depths::Agree, u64::MAX, &mut read);
        map.map_err(|_| DAMAGED)
    }

    /// Nodes of a map that lie in another cube.
    fn foreign_nodes(&mut self, inode: &OwnedInode) -> Result<u64, OpError> {
        let nodes = self.map_of(inode)?.nodes;
        Ok(nodes.into_iter().filter(|node| self.is_foreign(inode.number, *node)).count() as u64)
    }

    /// Makes the nodes of a map anew, in the cube of the inode.
    fn rebuild_map(&mut self, inode: &mut OwnedInode) -> Result<(), OpError> {
        let map = self.map_of(inode)?;
        let end = map.runs().last().map_or(0, |last| last.logical.0 + last.run.len_blocks);
        file::remove(&mut self.tx, &mut self.volume.fs, inode, 0..end)?;
        for extent in map.runs() {
            self.map_run(inode, extent.logical, extent.run, extent.unwritten)?;
        }
        Ok(())
    }
}
