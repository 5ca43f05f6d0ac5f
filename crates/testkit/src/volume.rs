//! Locates structures in an image that is not damaged (yet): a tiny reader, written independently
//! of the checker's, so that a bug in one is not masked by the same bug in the other.

mod checksums;
mod files;
mod survey;
mod view;

use anyhow::{Context, Result, anyhow, ensure};
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::geometry::Strictness;
use floe_format::{BlockNr, Geometry, GroupNr, InodeNr};

use crate::Image;

pub use files::{Entry, FileMap, Node, NodeKind};
pub use survey::{Place, survey};
pub use view::View;

/// An image with the data for locating structures in it.
///
/// Geometry and superblock are read once by [`Volume::open`]; everything else is read again by each
/// call, so that edits are visible.
#[derive(Debug)]
pub struct Volume<'a> {
    /// The image itself.
    pub image: &'a Image,
    /// The primary superblock.
    pub superblock: Superblock,
    /// Its geometry.
    pub geometry: Geometry,
    /// Replacements for the paths and groups of recipes.
    pub view: View,
}

impl<'a> Volume<'a> {
    /// Opens an image with a valid superblock.
    ///
    /// # Errors
    /// The superblock is invalid or unreadable.
    pub fn open(image: &'a Image) -> Result<Self> {
        let mut bytes = [0; 1024];
        image.read(OFFSET_BYTES, &mut bytes)?;
        let superblock = Superblock::decode(&bytes);
        let geometry = Geometry::new(&superblock, Strictness::Relaxed)
            .map_err(|fault| anyhow!("{} is {}", fault.field, fault.value))?;
        Ok(Self { image, superblock, geometry, view: View::default() })
    }

    /// Bytes of a block, as a `usize`.
    pub fn block_bytes(&self) -> usize {
        self.geometry.block_size as usize
    }

    /// The bytes of a block.
    ///
    /// # Errors
    /// The block lies outside the image.
    pub fn block(&self, block: BlockNr) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.block_bytes()];
        self.image.read(self.geometry.offset_bytes(block), &mut bytes)?;
        Ok(bytes)
    }

    /// Replaces the first bytes of a block.
    ///
    /// # Errors
    /// The block lies outside the image.
    pub fn put_block(&self, block: BlockNr, bytes: &[u8]) -> Result<()> {
        ensure!(bytes.len() <= self.block_bytes(), "more than a block");
        self.image.write(self.geometry.offset_bytes(block), bytes)
    }

    /// Byte offset of a group's primary descriptor in the image.
    pub fn desc_offset(&self, group: GroupNr) -> u64 {
        let per_block = self.geometry.descs_per_block();
        let block = self.geometry.primary_desc_block(group.0 / per_block);
        self.geometry.offset_bytes(block)
            + u64::from(group.0 % per_block) * u64::from(self.geometry.desc_size)
    }

    /// The bytes of the primary descriptor of a group.
    ///
    /// # Errors
    /// The group does not exist, or its descriptor cannot be read.
    pub fn desc_bytes(&self, group: GroupNr) -> Result<Vec<u8>> {
        ensure!(group.0 < self.geometry.group_count, "there is no {group}");
        let mut bytes = vec![0; self.geometry.desc_size as usize];
        self.image.read(self.desc_offset(group), &mut bytes)?;
        Ok(bytes)
    }

    /// The primary descriptor of a group.
    ///
    /// # Errors
    /// As [`Volume::desc_bytes`].
    pub fn desc(&self, group: GroupNr) -> Result<GroupDesc> {
        let bytes = self.desc_bytes(group)?;
        let lo = bytes.first_chunk().context("a descriptor has 32 bytes")?;
        Ok(GroupDesc::decode(lo, bytes.get(32..).and_then(|hi| hi.first_chunk())))
    }

    /// Overwrites a descriptor without updating its checksum.
    ///
    /// # Errors
    /// As [`Volume::desc_bytes`].
    pub fn put_desc(&self, group: GroupNr, desc: &GroupDesc) -> Result<()> {
        let mut bytes = self.desc_bytes(group)?;
        let (lo, hi) = bytes.split_at_mut(32);
        let lo = lo.first_chunk_mut().context("a descriptor has 32 bytes")?;
        desc.encode_into(lo, hi.first_chunk_mut());
        self.image.write(self.desc_offset(group), &bytes)
    }

    /// Byte offset of an inode in the image.
    ///
    /// # Errors
    /// The inode does not exist.
    pub fn inode_offset(&self, inode: InodeNr) -> Result<u64> {
        let (group, index) =
            self.geometry.place_of(inode).with_context(|| format!("there is no {inode}"))?;
        Ok(self.geometry.offset_bytes(self.desc(group)?.inode_table)
            + u64::from(index) * u64::from(self.geometry.inode_size))
    }

    /// The bytes of an inode.
    ///
    /// # Errors
    /// The inode does not exist, or its table lies outside the image.
    pub fn inode_bytes(&self, inode: InodeNr) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.geometry.inode_size as usize];
        self.image.read(self.inode_offset(inode)?, &mut bytes)?;
        Ok(bytes)
    }

    /// Overwrites an inode without updating its checksum.
    ///
    /// # Errors
    /// As [`Volume::inode_bytes`].
    pub fn put_inode(&self, inode: InodeNr, bytes: &[u8]) -> Result<()> {
        ensure!(bytes.len() == self.geometry.inode_size as usize, "not an inode");
        self.image.write(self.inode_offset(inode)?, bytes)
    }

    /// All inodes in use according to the bitmaps.
    ///
    /// # Errors
    /// A bitmap lies outside the image.
    pub fn used_inodes(&self) -> Result<Vec<InodeNr>> {
        let mut used = Vec::new();
        for group in (0..self.geometry.group_count).map(GroupNr) {
            let desc = self.desc(group)?;
            if desc.inode_uninit() && self.geometry.features.group_desc_csum() {
                continue;
            }
            let bitmap = self.block(desc.inode_bitmap)?;
            used.extend(
                (0..self.geometry.inodes_per_group)
                    .filter(|&index| {
                        bitmap
                            .get(index as usize / 8)
                            .is_some_and(|byte| byte >> (index % 8) & 1 == 1)
                    })
                    .map(|index| self.geometry.inode_at(group, index)),
            );
        }
        Ok(used)
    }

    /// Returns the block number if it lies inside the file system.
    fn check_block(&self, block: u64) -> Result<BlockNr> {
        let block = BlockNr(block);
        ensure!(self.geometry.contains(block), "{block} lies outside the file system");
        Ok(block)
    }
}
