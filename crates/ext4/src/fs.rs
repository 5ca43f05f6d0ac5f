//! A file system open for changes: its superblock, its groups, and access to inodes.

use floe_blockdev::{Noting, ReadBlocks};
use floe_format::crc::Seed;
use floe_format::ext::inode::{Inode, OwnedInode};
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, Superblock};
use floe_format::geometry::Strictness;
use floe_format::native::identity::Identity;
use floe_format::native::lot::is_desc_size;
use floe_format::{BlockNr, Geometry, InodeNr};

use crate::alloc::{FromBitmaps, Space};
use crate::group::Groups;
use crate::inode_table::{inode_place, read_groups};
use crate::tx::{Refusal, Tx, verify};

/// Reads the primary superblock, and what follows from it.
///
/// # Errors
/// [`Refusal::Io`], or [`Refusal::Damaged`] if there is no superblock, or one that contradicts itself.
pub fn read_superblock(device: &dyn ReadBlocks) -> Result<(Superblock, Geometry), Refusal> {
    let mut bytes = [0; 1024];
    let read = device.read_at(OFFSET_BYTES, &mut bytes);
    read.map_err(|source| Refusal::Io { block: BlockNr(0), source })?;
    let superblock = Superblock::decode(&bytes);
    if superblock.magic != MAGIC {
        return Err(Refusal::Damaged("the superblock"));
    }
    let geometry = Geometry::new(&superblock, Strictness::Strict)
        .map_err(|_| Refusal::Damaged("the superblock"))?;
    Ok((superblock, geometry))
}

/// A file system open for changes. It is not checked: structures that cannot be followed are
/// refused.
#[derive(Clone, Debug)]
pub struct FileSystem<S = FromBitmaps> {
    /// The primary superblock. [`FileSystem::finish`] updates its totals of free blocks and inodes.
    pub superblock: Superblock,
    /// The groups and the allocator.
    pub space: S,
}

impl FileSystem {
    /// Reads the primary superblock and all descriptors.
    ///
    /// # Errors
    /// [`Refusal::Io`], or [`Refusal::Damaged`] if there is no superblock, or one that contradicts
    /// itself.
    pub fn open(device: &dyn ReadBlocks) -> Result<Self, Refusal> {
        let (superblock, geometry) = read_superblock(device)?;
        Self::of(device, superblock, geometry)
    }

    /// Like [`FileSystem::open`], with a superblock and geometry that the caller has read and
    /// validated.
    ///
    /// # Errors
    /// [`Refusal::Io`], or [`Refusal::Damaged`] if a descriptor has no place on the device.
    pub fn of(
        device: &dyn ReadBlocks,
        superblock: Superblock,
        geometry: Geometry,
    ) -> Result<Self, Refusal> {
        let noting = Noting::new(device);
        let descs = read_groups(&noting, &geometry);
        let block = geometry.primary_desc_block(0);
        noting.judge().map_err(|source| Refusal::Io { block, source })?;
        let descs = descs.ok_or(Refusal::Damaged("the group table"))?;
        let groups = Groups::new(&superblock, geometry, descs);
        Ok(Self { superblock, space: FromBitmaps::new(groups) })
    }
}

impl<S: Space> FileSystem<S> {
    /// The geometry.
    pub fn geometry(&self) -> &Geometry {
        self.space.groups().geometry()
    }

    /// Whether Floe made the file system as a native one (`docs/native.md`).
    pub fn is_native(&self) -> bool {
        // Others have smaller descriptors, so that most need no closer look.
        is_desc_size(self.geometry().desc_size) && Identity::of(&self.superblock).is_some()
    }

    /// The seed of metadata checksums; `None` without metadata_csum.
    pub fn seed(&self) -> Option<Seed> {
        self.geometry().features.metadata_csum().then(|| self.superblock.seed())
    }

    /// The block of an inode, and its offset in it.
    fn place(&self, number: InodeNr) -> Result<(BlockNr, usize), Refusal> {
        inode_place(number, self.geometry(), self.space.groups().descs())
            .ok_or(Refusal::Missing("such inode, or its table has no place"))
    }

    /// An inode, including changes in `tx`.
    ///
    /// # Errors
    /// [`Refusal::Missing`], [`Refusal::Checksum`], or an error of reading it.
    pub fn inode(&self, tx: &mut dyn Tx, number: InodeNr) -> Result<OwnedInode, Refusal> {
        let (block, at) = self.place(number)?;
        let bytes = tx.block(block)?;
        let raw = bytes.get(at..at + self.geometry().inode_size as usize);
        if let (Some(raw), Some(seed)) = (raw, self.seed()) {
            let decoded = Inode::decode(raw);
            let fits = || decoded.is_some_and(|inode| inode.checksum_ok(seed, number));
            verify(tx, "an inode", fits)?;
        }
        raw.and_then(|raw| OwnedInode::of(number, raw.to_vec())).ok_or(Refusal::Damaged("an inode"))
    }

    /// Writes an inode, with its checksum if the file system has them.
    ///
    /// # Errors
    /// Those of [`FileSystem::inode`].
    pub fn put_inode(&self, tx: &mut dyn Tx, inode: &mut OwnedInode) -> Result<(), Refusal> {
        let (block, at) = self.place(inode.number)?;
        let raw = inode.seal(self.seed());
        let place = tx.block_mut(block)?.get_mut(at..at + raw.len());
        place.ok_or(Refusal::Damaged("an inode"))?.copy_from_slice(raw);
        Ok(())
    }

    /// Writes the primary superblock, with the totals of free blocks and inodes from the
    /// descriptors.
    ///
    /// # Errors
    /// If its block cannot be read or changed.
    pub fn finish(&mut self, tx: &mut dyn Tx) -> Result<(), Refusal> {
        let groups = self.space.groups();
        let blocks = groups.free_clusters() << groups.geometry().cluster_bits;
        self.superblock.free_blocks_count_lo = (blocks & 0xffff_ffff) as u32;
        self.superblock.free_blocks_count_hi = (blocks >> 32) as u32;
        // At most the number of inodes, which fits 32 bits.
        self.superblock.free_inodes_count = u32::try_from(groups.free_inodes()).unwrap_or(u32::MAX);
        let size = u64::from(groups.geometry().block_size);
        let bytes = tx.block_mut(BlockNr(OFFSET_BYTES / size))?;
        // Less than the size of a block.
        let place = bytes.get_mut((OFFSET_BYTES % size) as usize..);
        let place = place.and_then(|rest| rest.first_chunk_mut());
        self.superblock.encode_with_checksum(place.ok_or(Refusal::Damaged("the superblock"))?);
        Ok(())
    }
}
