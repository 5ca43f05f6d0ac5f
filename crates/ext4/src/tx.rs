//! Sets of blocks that are changed together.

use std::collections::BTreeMap;
use std::io;

use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_format::{BlockNr, BlockRun, Geometry};
use floe_sync::Arc;

/// The bytes of a block. All who have seen this content share them; whoever changes them gets a copy
/// ([`own_bytes`]).
pub type Block = Arc<Vec<u8>>;

/// The bytes of a block, to be changed: a copy, unless nobody else has them.
pub fn own_bytes(block: &mut Block) -> &mut [u8] {
    Arc::make_mut(block).as_mut_slice()
}

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A block outside the file system.
    #[error("{0} lies outside the file system")]
    Outside(BlockNr),
    /// A block cannot be read or written.
    #[error("{block} cannot be read or written: {source}")]
    Io {
        /// The block.
        block: BlockNr,
        /// The device's error.
        source: io::Error,
    },
    /// An inode, group or table that does not exist.
    #[error("there is no {0}")]
    Missing(&'static str),
    /// No free cluster or inode is left.
    #[error("no {0} is free")]
    Full(&'static str),
    /// A structure that cannot be followed, so that it must not be changed.
    #[error("{0} is damaged")]
    Damaged(&'static str),
    /// A structure whose checksum is wrong, in a transaction that verifies ([`Tx::verifies`]).
    #[error("the checksum of {0} is wrong")]
    Checksum(&'static str),
    /// More than the structure can hold.
    #[error("{0}")]
    TooMuch(&'static str),
    /// Another handle has the block, and must not be waited for: the change is to be begun again.
    #[error("another change has {0}")]
    Busy(BlockNr),
}

/// Blocks of a file system that are changed together. Later reads see all changes. The
/// implementation decides when and how they reach the device.
pub trait Tx {
    /// The current content of a block, including changes.
    ///
    /// # Errors
    /// [`Refusal::Outside`], [`Refusal::Io`].
    fn block(&mut self, block: BlockNr) -> Result<Block, Refusal>;

    /// A block to modify: its current bytes are read, and changes to them are kept.
    ///
    /// # Errors
    /// Those of [`Tx::block`].
    fn block_mut(&mut self, block: BlockNr) -> Result<&mut [u8], Refusal>;

    /// A block to overwrite: its old bytes are not read; it starts as zeroes.
    ///
    /// # Errors
    /// [`Refusal::Outside`].
    fn zeroed(&mut self, block: BlockNr) -> Result<&mut [u8], Refusal>;

    /// A block to overwrite with these bytes, which are as many as a block has. They are not copied.
    ///
    /// # Errors
    /// As [`Tx::zeroed`].
    fn put(&mut self, block: BlockNr, bytes: Block) -> Result<(), Refusal> {
        self.zeroed(block)?.copy_from_slice(&bytes);
        Ok(())
    }

    /// Whether a block can be changed here: for a transaction over this one, which changes nothing here before its end.
    ///
    /// # Errors
    /// As [`Tx::zeroed`].
    fn may_change(&mut self, _block: BlockNr) -> Result<(), Refusal> {
        Ok(())
    }

    /// Frees blocks that were changed in transactions: changes of them need not be written, and no
    /// older copy of them may be replayed over their new content.
    fn revoke(&mut self, run: BlockRun);

    /// Whether a transaction that is not home yet, or this one, has changed one of these blocks: then whatever is written past
    /// transactions to its place would be replaced by that copy.
    fn is_logged(&mut self, _run: BlockRun) -> bool {
        false
    }

    /// As [`Tx::revoke`], where that is needed: for blocks of which few are changed in transactions.
    fn revoke_logged(&mut self, run: BlockRun) {
        if self.is_logged(run) {
            self.revoke(run);
        }
    }

    /// Whether structures with a wrong checksum are refused. A change writes a new checksum over
    /// the whole structure, so without this it would hide the damage. Repairs read what is damaged,
    /// and do without.
    fn verifies(&self) -> bool {
        false
    }
}

/// `Err` for a wrong checksum, in a transaction that verifies.
///
/// # Errors
/// [`Refusal::Checksum`] with `what`.
pub fn verify(tx: &dyn Tx, what: &'static str, fits: impl FnOnce() -> bool) -> Result<(), Refusal> {
    if tx.verifies() && !fits() { Err(Refusal::Checksum(what)) } else { Ok(()) }
}

/// The changed blocks of a transaction, until they go to a device, a log or another transaction.
#[derive(Debug, Default)]
pub struct ChangedBlocks(BTreeMap<BlockNr, Block>);

impl ChangedBlocks {
    /// No blocks.
    pub const fn new() -> Self {
        Self(BTreeMap::new())
    }

    /// The number of changed blocks.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no block is changed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A block, if it is changed.
    pub fn get(&self, block: BlockNr) -> Option<&Block> {
        self.0.get(&block)
    }

    /// The bytes of a block, to be changed further, if it is changed.
    pub fn get_mut(&mut self, block: BlockNr) -> Option<&mut Vec<u8>> {
        self.0.get_mut(&block).map(Arc::make_mut)
    }

    /// The numbers of the blocks, in order.
    pub fn numbers(&self) -> impl Iterator<Item = BlockNr> + '_ {
        self.0.keys().copied()
    }

    /// The blocks with their bytes, in order.
    pub fn into_blocks(self) -> BTreeMap<BlockNr, Block> {
        self.0
    }

    fn has_any(&self, run: BlockRun) -> bool {
        self.0.range(run.start..run.end()).next().is_some()
    }

    fn forget(&mut self, run: BlockRun) {
        let freed: Vec<BlockNr> =
            self.0.range(run.start..run.end()).map(|(&block, _)| block).collect();
        for block in freed {
            self.0.remove(&block);
        }
    }
}

/// A [`Tx`] that keeps its changes in memory over something that it reads: a device, or another transaction.
pub trait Staging {
    /// The changed blocks.
    fn changed(&mut self) -> &mut ChangedBlocks;

    /// The size of a block in bytes.
    fn block_bytes(&self) -> usize;

    /// Reads a block without the changes.
    ///
    /// # Errors
    /// [`Refusal::Outside`], [`Refusal::Io`].
    fn read_below(&mut self, block: BlockNr) -> Result<Block, Refusal>;

    /// Admits one more block to the changes.
    ///
    /// # Errors
    /// [`Refusal::Outside`], or the transaction would become too long.
    fn admit(&mut self, block: BlockNr) -> Result<(), Refusal>;

    /// Notes that a run of blocks is freed.
    fn note_freed(&mut self, run: BlockRun);

    /// Whether a block of a run was changed below the changes ([`Tx::is_logged`]).
    fn is_logged_below(&mut self, _run: BlockRun) -> bool {
        false
    }

    /// Whether structures with a wrong checksum are refused ([`Tx::verifies`]).
    fn verifies(&self) -> bool {
        false
    }
}

impl<S: Staging> Tx for S {
    fn block(&mut self, block: BlockNr) -> Result<Block, Refusal> {
        match self.changed().get(block) {
            Some(bytes) => Ok(Arc::clone(bytes)),
            None => self.read_below(block),
        }
    }

    fn block_mut(&mut self, block: BlockNr) -> Result<&mut [u8], Refusal> {
        if self.changed().get(block).is_none() {
            self.admit(block)?;
            let bytes = self.read_below(block)?;
            self.changed().0.insert(block, bytes);
        }
        Ok(own_bytes(self.changed().0.entry(block).or_default()))
    }

    fn zeroed(&mut self, block: BlockNr) -> Result<&mut [u8], Refusal> {
        let size = self.block_bytes();
        self.put(block, Arc::new(vec![0; size]))?;
        Ok(own_bytes(self.changed().0.entry(block).or_default()))
    }

    fn put(&mut self, block: BlockNr, bytes: Block) -> Result<(), Refusal> {
        debug_assert_eq!(bytes.len(), self.block_bytes());
        self.may_change(block)?;
        self.changed().0.insert(block, bytes);
        Ok(())
    }

    fn may_change(&mut self, block: BlockNr) -> Result<(), Refusal> {
        if self.changed().get(block).is_some() { Ok(()) } else { self.admit(block) }
    }

    fn revoke(&mut self, run: BlockRun) {
        self.changed().forget(run);
        self.note_freed(run);
    }

    fn is_logged(&mut self, run: BlockRun) -> bool {
        self.changed().has_any(run) || self.is_logged_below(run)
    }

    fn verifies(&self) -> bool {
        Staging::verifies(self)
    }
}

/// Changed blocks kept in memory: 16 MiB with blocks of 4 KiB.
const MOST_KEPT: usize = 4096;

/// A transaction without a journal: changes go to the device in block order. For an overlay, whose
/// writes are staged anyway, or for a device not yet in use, such as a new file system.
///
/// Changed blocks are kept in memory until [`DirectTx::commit`], or until there are 4,096 of them.
/// Dropping it without a commit loses the changes.
pub struct DirectTx<'a, D: ?Sized> {
    device: &'a D,
    geometry: Geometry,
    changed: ChangedBlocks,
}

impl<'a, D: ReadBlocks + WriteBlocks + ?Sized> DirectTx<'a, D> {
    /// A transaction on `device`, whose file system has this geometry.
    pub const fn new(device: &'a D, geometry: Geometry) -> Self {
        Self { device, geometry, changed: ChangedBlocks::new() }
    }

    /// Writes all changes to the device, without flushing it.
    ///
    /// # Errors
    /// [`Refusal::Io`]; blocks that could not be written are kept.
    pub fn commit(&mut self) -> Result<(), Refusal> {
        while let Some(entry) = self.changed.0.first_entry() {
            let block = *entry.key();
            let written = self.device.write_at(self.geometry.offset_bytes(block), entry.get());
            written.map_err(|source| Refusal::Io { block, source })?;
            entry.remove();
        }
        Ok(())
    }
}

impl<D: ReadBlocks + WriteBlocks + ?Sized> Staging for DirectTx<'_, D> {
    fn changed(&mut self) -> &mut ChangedBlocks {
        &mut self.changed
    }

    fn block_bytes(&self) -> usize {
        self.geometry.block_size as usize
    }

    fn read_below(&mut self, block: BlockNr) -> Result<Block, Refusal> {
        read_block(self.device, &self.geometry, block)
    }

    fn admit(&mut self, block: BlockNr) -> Result<(), Refusal> {
        judge_inside(&self.geometry, block)?;
        if self.changed.len() < MOST_KEPT { Ok(()) } else { self.commit() }
    }

    fn note_freed(&mut self, _run: BlockRun) {}
}

/// Reads a block of a file system from its device.
///
/// # Errors
/// [`Refusal::Outside`], [`Refusal::Io`].
pub fn read_block<D: ReadBlocks + ?Sized>(
    device: &D,
    geometry: &Geometry,
    block: BlockNr,
) -> Result<Block, Refusal> {
    judge_inside(geometry, block)?;
    let mut bytes = vec![0; geometry.block_size as usize];
    let read = device.read_at(geometry.offset_bytes(block), &mut bytes);
    read.map(|()| Arc::new(bytes)).map_err(|source| Refusal::Io { block, source })
}

/// Refuses a block outside the file system.
///
/// # Errors
/// [`Refusal::Outside`].
pub fn judge_inside(geometry: &Geometry, block: BlockNr) -> Result<(), Refusal> {
    if geometry.contains(block) { Ok(()) } else { Err(Refusal::Outside(block)) }
}

#[cfg(test)]
mod tests {
    use floe_blockdev::{MemDevice, Overlay};
    use floe_format::ext::superblock::Superblock;
    use floe_format::geometry::Strictness;

    use super::*;

    /// A file system of 8,192 blocks of 1 KiB.
    fn geometry() -> Geometry {
        let mut superblock = Superblock::decode(&[0; 1024]);
        superblock.magic = floe_format::ext::superblock::MAGIC;
        superblock.blocks_count_lo = 8193;
        superblock.first_data_block = 1;
        superblock.inodes_count = 64;
        (superblock.blocks_per_group, superblock.clusters_per_group) = (8192, 8192);
        superblock.inodes_per_group = 64;
        superblock.rev_level = 1;
        (superblock.inode_size, superblock.first_ino) = (128, 11);
        Geometry::new(&superblock, Strictness::Strict).unwrap()
    }

    #[test]
    fn changes_are_seen_at_once_and_written_together() {
        let device = MemDevice::new(vec![7; 8193 * 1024]);
        let overlay = Overlay::new(&device, 1024);
        let mut tx = DirectTx::new(&overlay, geometry());
        tx.block_mut(BlockNr(5)).unwrap()[0] = 1;
        tx.zeroed(BlockNr(6)).unwrap()[1] = 2;
        assert_eq!(tx.block(BlockNr(5)).unwrap()[..2], [1, 7]);
        assert_eq!(tx.block(BlockNr(6)).unwrap()[..3], [0, 2, 0]);
        assert!(overlay.is_empty(), "nothing is written yet");
        tx.commit().unwrap();
        let mut bytes = [0; 2048];
        overlay.read_at(5 * 1024, &mut bytes).unwrap();
        assert_eq!((bytes[0], bytes[1], bytes[1025]), (1, 7, 2));
    }

    #[test]
    fn what_is_revoked_is_not_written() {
        let device = MemDevice::new(vec![7; 8193 * 1024]);
        let mut tx = DirectTx::new(&device, geometry());
        for block in 10..20 {
            tx.zeroed(BlockNr(block)).unwrap();
        }
        tx.revoke(BlockRun::new(BlockNr(11), 8));
        tx.commit().unwrap();
        let bytes = device.to_vec();
        let zeroes = (0..8193).filter(|at| bytes[at * 1024] == 0).collect::<Vec<_>>();
        assert_eq!(zeroes, [10, 19]);
    }

    #[test]
    fn many_changes_are_written_before_the_end_and_none_outside() {
        let device = MemDevice::new(vec![7; 8193 * 1024]);
        let mut tx = DirectTx::new(&device, geometry());
        for block in 1..=MOST_KEPT as u64 + 1 {
            tx.zeroed(BlockNr(block)).unwrap();
        }
        assert_eq!(device.to_vec()[1024], 0);
        for outside in [0, 8193, u64::MAX] {
            assert!(matches!(tx.block(BlockNr(outside)), Err(Refusal::Outside(_))));
            assert!(matches!(tx.block_mut(BlockNr(outside)), Err(Refusal::Outside(_))));
            assert!(matches!(tx.zeroed(BlockNr(outside)), Err(Refusal::Outside(_))));
        }
    }
}
