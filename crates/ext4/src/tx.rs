//! Blocks that are changed together.

use std::collections::BTreeMap;
use std::io;

use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_format::{BlockNr, BlockRun, Geometry};

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
        /// What the device said.
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
    /// More than the structure can hold.
    #[error("{0}")]
    TooMuch(&'static str),
}

/// Blocks of a file system that are changed together. All changes are seen by later reads; when and how they reach the
/// device is up to the implementation.
pub trait Tx {
    /// A block as it is, with all changes.
    ///
    /// # Errors
    /// [`Refusal::Outside`], [`Refusal::Io`].
    fn block(&mut self, block: BlockNr) -> Result<Vec<u8>, Refusal>;

    /// A block to be changed: its bytes are read, and what is done to them is kept.
    ///
    /// # Errors
    /// As [`Tx::block`].
    fn block_mut(&mut self, block: BlockNr) -> Result<&mut [u8], Refusal>;

    /// A block to be written anew: its old bytes do not matter and are not read, it begins as zeroes.
    ///
    /// # Errors
    /// [`Refusal::Outside`].
    fn zeroed(&mut self, block: BlockNr) -> Result<&mut [u8], Refusal>;

    /// Blocks of metadata that are free from now on: changes of them need not be written, and no older copy of them may be
    /// replayed over whatever comes to lie there.
    fn revoke(&mut self, run: BlockRun);
}

/// Changed blocks that are kept before they are written: 16 MiB with blocks of 4 KiB.
const MOST_KEPT: usize = 4096;

/// Changes that go to a device without a journal, in the order of blocks: an overlay, whose writes are staged anyway, or a
/// device that nobody uses yet, as that of a new file system.
///
/// Blocks are kept until [`DirectTx::commit`], or until there are 4,096 of them. Dropped without it, changes are lost.
pub struct DirectTx<'a, D: ?Sized> {
    device: &'a D,
    geometry: Geometry,
    changed: BTreeMap<BlockNr, Vec<u8>>,
}

impl<'a, D: ReadBlocks + WriteBlocks + ?Sized> DirectTx<'a, D> {
    /// Changes of the file system of that geometry on `device`.
    pub const fn new(device: &'a D, geometry: Geometry) -> Self {
        Self { device, geometry, changed: BTreeMap::new() }
    }

    /// Writes all changes to the device, without flushing it.
    ///
    /// # Errors
    /// [`Refusal::Io`]; blocks that were not written are kept.
    pub fn commit(&mut self) -> Result<(), Refusal> {
        while let Some(entry) = self.changed.first_entry() {
            let block = *entry.key();
            let written = self.device.write_at(self.geometry.offset_bytes(block), entry.get());
            written.map_err(|source| Refusal::Io { block, source })?;
            entry.remove();
        }
        Ok(())
    }

    fn judge(&self, block: BlockNr) -> Result<(), Refusal> {
        if self.geometry.contains(block) { Ok(()) } else { Err(Refusal::Outside(block)) }
    }

    fn read(&self, block: BlockNr) -> Result<Vec<u8>, Refusal> {
        let mut bytes = vec![0; self.geometry.block_size as usize];
        let read = self.device.read_at(self.geometry.offset_bytes(block), &mut bytes);
        read.map(|()| bytes).map_err(|source| Refusal::Io { block, source })
    }

    /// Makes room for one more.
    fn make_room(&mut self) -> Result<(), Refusal> {
        if self.changed.len() < MOST_KEPT { Ok(()) } else { self.commit() }
    }
}

impl<D: ReadBlocks + WriteBlocks + ?Sized> Tx for DirectTx<'_, D> {
    fn block(&mut self, block: BlockNr) -> Result<Vec<u8>, Refusal> {
        self.judge(block)?;
        match self.changed.get(&block) {
            Some(bytes) => Ok(bytes.clone()),
            None => self.read(block),
        }
    }

    fn block_mut(&mut self, block: BlockNr) -> Result<&mut [u8], Refusal> {
        self.judge(block)?;
        if !self.changed.contains_key(&block) {
            self.make_room()?;
            let bytes = self.read(block)?;
            self.changed.insert(block, bytes);
        }
        Ok(self.changed.entry(block).or_default())
    }

    fn zeroed(&mut self, block: BlockNr) -> Result<&mut [u8], Refusal> {
        self.judge(block)?;
        if !self.changed.contains_key(&block) {
            self.make_room()?;
        }
        let bytes = self.changed.entry(block).or_default();
        bytes.clear();
        bytes.resize(self.geometry.block_size as usize, 0);
        Ok(bytes)
    }

    fn revoke(&mut self, run: BlockRun) {
        let pending: Vec<BlockNr> =
            self.changed.range(run.start..run.end()).map(|(&block, _)| block).collect();
        for block in pending {
            self.changed.remove(&block);
        }
    }
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
