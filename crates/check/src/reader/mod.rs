//! Reading single structures of a file system without judging it: for `floe dump`, `floe info` and
//! the paths in reports.
//!
//! Works on damaged file systems as far as it can: every structure is found anew from the
//! superblock, nothing is cached, and no bytes can make it loop.

use std::io;

use floe_blockdev::ReadBlocks;
use floe_ext4::superblocks::each_magic;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::Inode;
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, Superblock};
use floe_format::geometry::{GeometryFault, Strictness};
use floe_format::{BlockNr, Geometry, GroupNr, InodeNr};

mod dirs;
mod map;
mod paths;

pub use dirs::Entry;
pub use map::{MapNode, Mapping};
pub use paths::paths;

/// Why a structure cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum ReaderError {
    /// There is no superblock where one was looked for.
    #[error("there is no ext2, ext3 or ext4 superblock at byte {offset_bytes}")]
    NoMagic {
        /// Where it was looked for.
        offset_bytes: u64,
    },
    /// The superblock makes no sense.
    #[error("superblock field {} has the impossible value {}", .0.field, .0.value)]
    Geometry(GeometryFault),
    /// There is no such inode, group or block.
    #[error("there is no {0}; the file system has {1}")]
    NoSuch(String, String),
    /// A path leads nowhere.
    #[error("{path}: {why}")]
    Path {
        /// The path as given.
        path: String,
        /// Why it leads nowhere.
        why: String,
    },
    /// Something could not be read.
    #[error("cannot read {what}: {source}")]
    Read {
        /// The structure that could not be read.
        what: String,
        /// The error of the system.
        source: io::Error,
    },
}

/// A file system seen one structure at a time.
pub struct Reader<'d> {
    device: &'d dyn ReadBlocks,
    /// The superblock in use.
    pub superblock: Superblock,
    /// Its bytes.
    pub superblock_bytes: Box<[u8; 1024]>,
    /// Byte of the device at which it lies.
    pub superblock_offset_bytes: u64,
    /// The geometry derived from it.
    pub geometry: Geometry,
}

impl<'d> Reader<'d> {
    /// Looks at the primary superblock, or at the one at block `superblock`, counted in
    /// `block_size` (without which every size is tried, the smallest first).
    ///
    /// # Errors
    /// [`ReaderError::NoMagic`], [`ReaderError::Geometry`], or that it cannot be read.
    pub fn open(
        device: &'d dyn ReadBlocks,
        superblock: Option<BlockNr>,
        block_size: Option<u32>,
    ) -> Result<Self, ReaderError> {
        let offsets: Vec<u64> = match (superblock, block_size) {
            (None, _) => vec![OFFSET_BYTES],
            (Some(block), Some(size)) => vec![backup_offset(block, u64::from(size))],
            (Some(block), None) => (10..=16).map(|bits| backup_offset(block, 1 << bits)).collect(),
        };
        let mut first_error = None;
        for offset_bytes in offsets {
            match Self::open_at(device, offset_bytes) {
                Ok(reader) => return Ok(reader),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        Err(first_error.unwrap_or(ReaderError::NoMagic { offset_bytes: OFFSET_BYTES }))
    }

    /// Looks at the superblock at a byte of the device.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn open_at(device: &'d dyn ReadBlocks, offset_bytes: u64) -> Result<Self, ReaderError> {
        let mut bytes = Box::new([0; 1024]);
        match device.read_at(offset_bytes, &mut bytes[..]) {
            Ok(()) => {}
            // Too short for a superblock: none is there.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(ReaderError::NoMagic { offset_bytes });
            }
            Err(source) => return Err(ReaderError::Read { what: "the superblock".into(), source }),
        }
        let superblock = Superblock::decode(&bytes);
        if superblock.magic != MAGIC {
            return Err(ReaderError::NoMagic { offset_bytes });
        }
        let geometry =
            Geometry::new(&superblock, Strictness::Relaxed).map_err(ReaderError::Geometry)?;
        let superblock_bytes = bytes;
        let superblock_offset_bytes = offset_bytes;
        Ok(Self { device, superblock, superblock_bytes, superblock_offset_bytes, geometry })
    }

    /// The device below.
    pub fn device(&self) -> &'d dyn ReadBlocks {
        self.device
    }

    /// One block.
    ///
    /// # Errors
    /// [`ReaderError::NoSuch`] outside the file system, or that it cannot be read.
    pub fn block(&self, block: BlockNr) -> Result<Vec<u8>, ReaderError> {
        if block.0 >= self.geometry.blocks_count {
            let last = format!("blocks 0 to {}", self.geometry.blocks_count - 1);
            return Err(ReaderError::NoSuch(block.to_string(), last));
        }
        let mut bytes = vec![0; self.geometry.block_size as usize];
        self.device
            .read_at(self.geometry.offset_bytes(block), &mut bytes)
            .map_err(|source| ReaderError::Read { what: block.to_string(), source })?;
        Ok(bytes)
    }

    /// The bytes of a group's descriptor, and its meaning.
    ///
    /// # Errors
    /// [`ReaderError::NoSuch`] past the last group, or that it cannot be read.
    pub fn group(&self, group: GroupNr) -> Result<(Vec<u8>, GroupDesc), ReaderError> {
        let geometry = &self.geometry;
        if group.0 >= geometry.group_count {
            let last = format!("groups 0 to {}", geometry.group_count - 1);
            return Err(ReaderError::NoSuch(group.to_string(), last));
        }
        let per_block = geometry.descs_per_block();
        let block = self.block(geometry.primary_desc_block(group.0 / per_block))?;
        let start = (group.0 % per_block * geometry.desc_size) as usize;
        // Whole descriptors fit a block: both sizes are powers of two.
        let bytes = block.get(start..start + geometry.desc_size as usize).unwrap_or(&[]).to_vec();
        let hi = bytes.get(32..).and_then(|rest| rest.first_chunk());
        let desc = GroupDesc::decode(bytes.first_chunk().unwrap_or(&[0; 32]), hi);
        Ok((bytes, desc))
    }

    /// Where an inode lies: its block, and its byte in that block.
    ///
    /// # Errors
    /// [`ReaderError::NoSuch`] for inode 0 and past the last, or that the descriptor of its group
    /// cannot be read.
    pub fn place_of(&self, inode: InodeNr) -> Result<(BlockNr, usize), ReaderError> {
        let geometry = &self.geometry;
        let Some((group, index)) = geometry.place_of(inode) else {
            let last = format!("inodes 1 to {}", geometry.inodes_count);
            return Err(ReaderError::NoSuch(inode.to_string(), last));
        };
        let (_, desc) = self.group(group)?;
        let offset = u64::from(index) * u64::from(geometry.inode_size);
        let block_size = u64::from(geometry.block_size);
        let block = BlockNr(desc.inode_table.0.saturating_add(offset / block_size));
        Ok((block, (offset % block_size) as usize))
    }

    /// The bytes of an inode (`s_inode_size` of them).
    ///
    /// # Errors
    /// As [`Reader::place_of`], or that its block cannot be read.
    pub fn inode_bytes(&self, inode: InodeNr) -> Result<Vec<u8>, ReaderError> {
        let (block, at) = self.place_of(inode)?;
        let block = self.block(block)?;
        let size = self.geometry.inode_size as usize;
        Ok(block.get(at..at + size).map_or_else(|| vec![0; size], <[u8]>::to_vec))
    }

    /// The value of an inode read by [`Reader::inode_bytes`], which always has 128 bytes and more.
    ///
    /// # Errors
    /// The bytes are too short for an inode.
    pub fn decode<'b>(&self, bytes: &'b [u8]) -> Result<Inode<'b>, ReaderError> {
        Inode::decode(bytes).ok_or_else(|| {
            ReaderError::NoSuch("inode".into(), format!("inodes of {} bytes", bytes.len()))
        })
    }

    /// Backup superblocks that have the magic number and a sane geometry: their block and block
    /// size. Looks at the places that a file system of any block size would have.
    pub fn backups(device: &dyn ReadBlocks) -> Vec<(BlockNr, u32)> {
        let mut found = Vec::new();
        for bits in 10..=16u32 {
            let block_size = 1u64 << bits;
            let first_data_block = u64::from(bits == 10);
            for group in [1u64, 3, 5, 7, 9, 25, 27, 49, 81] {
                let block = group * block_size * 8 + first_data_block;
                let Ok(reader) = Reader::open_at(device, block * block_size) else { continue };
                let checksum_ok = Superblock::checksum_ok(&reader.superblock_bytes);
                if u64::from(reader.geometry.block_size) == block_size && checksum_ok {
                    found.push((BlockNr(block), reader.geometry.block_size));
                }
            }
        }
        found
    }

    /// Backup superblocks anywhere in the first `limit_bytes`, for file systems whose groups are of
    /// an unusual size. Each must have its magic number, a sane geometry, a good checksum if it
    /// has one, and lie where its own group begins: data that only look like one do not.
    pub fn scan(device: &dyn ReadBlocks, limit_bytes: u64) -> Vec<(BlockNr, u32)> {
        let backup = |at: u64| {
            let reader = Reader::open_at(device, at).ok()?;
            let group = GroupNr(u32::from(reader.superblock.block_group_nr));
            let block = BlockNr(at / u64::from(reader.geometry.block_size));
            let is_home = group.0 != 0
                && reader.geometry.superblock_of(group) == Some(block)
                && reader.geometry.offset_bytes(block) == at;
            let is_backup = is_home && Superblock::checksum_ok(&reader.superblock_bytes);
            is_backup.then_some((block, reader.geometry.block_size))
        };
        let mut found = Vec::new();
        each_magic(device, limit_bytes, 1024, &mut |at| {
            found.extend(backup(at));
            true
        });
        found
    }
}

/// Byte of a superblock copy at `block`. The primary of larger blocks lies inside block 0.
fn backup_offset(block: BlockNr, block_size: u64) -> u64 {
    if block.0 == 0 { OFFSET_BYTES } else { block.0.saturating_mul(block_size) }
}
