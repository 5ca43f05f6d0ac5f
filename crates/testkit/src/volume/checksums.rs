//! Updates checksums after an edit, so that verification does not detect the damage.
//!
//! Rules: kernel documentation, `filesystems/ext4/checksums`.

use anyhow::{Context, Result};
use floe_format::crc::crc32c;
use floe_format::ext::extent::ExtentNode;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::Inode;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::features::RoCompat;
use floe_format::layout::{le16_at, le32_at};
use floe_format::{BlockNr, GroupNr, InodeNr};

use super::Volume;

impl Volume<'_> {
    fn metadata_csum(&self) -> bool {
        self.geometry.features.metadata_csum()
    }

    /// Updates the checksum of the primary superblock, or of the backup at `offset_bytes`.
    ///
    /// # Errors
    /// The image cannot be read or written.
    pub fn fix_superblock_at(&self, offset_bytes: u64) -> Result<()> {
        let mut bytes = [0; 1024];
        self.image.read(offset_bytes, &mut bytes)?;
        if self.metadata_csum() {
            let crc = Superblock::compute_checksum(&bytes);
            self.image.write(offset_bytes + 0x3fc, &crc.to_le_bytes())?;
        }
        Ok(())
    }

    /// Updates the checksum of the primary superblock.
    ///
    /// # Errors
    /// The image cannot be read or written.
    pub fn fix_superblock(&self) -> Result<()> {
        self.fix_superblock_at(OFFSET_BYTES)
    }

    /// Updates the checksum of a group descriptor.
    ///
    /// # Errors
    /// The group does not exist.
    pub fn fix_desc(&self, group: GroupNr) -> Result<()> {
        let bytes = self.desc_bytes(group)?;
        let crc = if self.metadata_csum() {
            GroupDesc::crc32c(self.superblock.seed(), group, &bytes)
        } else if self.geometry.features.ro_compat.contains(RoCompat::GDT_CSUM) {
            GroupDesc::crc16(&self.superblock.uuid, group, &bytes)
        } else {
            return Ok(());
        };
        self.image.write(self.desc_offset(group) + 0x1e, &crc.to_le_bytes())
    }

    /// Updates the checksums of a group's two bitmaps, and of its descriptor.
    ///
    /// # Errors
    /// The group does not exist, or a bitmap lies outside the image.
    pub fn fix_bitmaps(&self, group: GroupNr) -> Result<()> {
        if self.metadata_csum() {
            let mut desc = self.desc(group)?;
            let seed = self.superblock.seed().0;
            let sum = |block: BlockNr, bits: u32| -> Result<u32> {
                Ok(crc32c(seed, self.block(block)?.get(..bits as usize / 8).context("a bitmap")?))
            };
            // An uninitialised bitmap has no checksum.
            if !desc.block_uninit() {
                desc.block_bitmap_csum = sum(desc.block_bitmap, self.geometry.clusters_per_group)?;
            }
            if !desc.inode_uninit() {
                desc.inode_bitmap_csum = sum(desc.inode_bitmap, self.geometry.inodes_per_group)?;
            }
            self.put_desc(group, &desc)?;
        }
        self.fix_desc(group)
    }

    /// Updates the checksum of an inode.
    ///
    /// # Errors
    /// The inode does not exist.
    pub fn fix_inode(&self, inode: InodeNr) -> Result<()> {
        if !self.metadata_csum() {
            return Ok(());
        }
        let bytes = self.inode_bytes(inode)?;
        let decoded = Inode::decode(&bytes).context("an inode has 128 bytes")?;
        let crc = decoded.compute_checksum(self.superblock.seed(), inode).to_le_bytes();
        let at = self.inode_offset(inode)?;
        self.image.write(at + 0x7c, &crc[..2])?;
        if decoded.has_extra(4) {
            self.image.write(at + 0x82, &crc[2..])?;
        }
        Ok(())
    }

    /// Checksum seed of the metadata that belongs to an inode.
    ///
    /// # Errors
    /// The inode does not exist.
    pub fn inode_seed(&self, inode: InodeNr) -> Result<u32> {
        let bytes = self.inode_bytes(inode)?;
        let generation = le32_at(&bytes, 0x64).context("an inode has 128 bytes")?;
        Ok(self.superblock.seed().of_inode(inode, generation))
    }

    /// Updates the checksum of an extent node in a block.
    ///
    /// # Errors
    /// The block lies outside the image. A node whose tail would exceed the block stays unchanged.
    pub fn fix_extent_node(&self, owner: InodeNr, block: BlockNr) -> Result<()> {
        if !self.metadata_csum() {
            return Ok(());
        }
        let mut bytes = self.block(block)?;
        let node = ExtentNode::new(&bytes).context("an extent node")?;
        // `eh_max` locates the tail after the entries, and damage may have changed it.
        let tail = 12 * (usize::from(node.header().max) + 1);
        let crc = node.compute_checksum(self.inode_seed(owner)?);
        if let Some(slot) = bytes.get_mut(tail..tail + 4) {
            slot.copy_from_slice(&crc.to_le_bytes());
            self.put_block(block, &bytes)?;
        }
        Ok(())
    }

    /// Updates the checksum of a directory block: in its tail if it has one, else that of an index
    /// root or node.
    ///
    /// # Errors
    /// The block lies outside the image. A block of neither kind stays unchanged.
    pub fn fix_dir_block(&self, owner: InodeNr, block: BlockNr) -> Result<()> {
        if !self.metadata_csum() {
            return Ok(());
        }
        let mut bytes = self.block(block)?;
        let seed = self.inode_seed(owner)?;
        let tail = bytes.len() - 12;
        if bytes[tail..tail + 8] == [0, 0, 0, 0, 12, 0, 0, 0xde] {
            let crc = crc32c(seed, &bytes[..tail]);
            bytes[tail + 8..].copy_from_slice(&crc.to_le_bytes());
            return self.put_block(block, &bytes);
        }
        if let Some((crc_at, crc)) = index_checksum(&bytes, seed) {
            bytes[crc_at..crc_at + 4].copy_from_slice(&crc.to_le_bytes());
            return self.put_block(block, &bytes);
        }
        Ok(())
    }

    /// Updates the checksum of an attribute block.
    ///
    /// # Errors
    /// The block lies outside the image.
    pub fn fix_xattr_block(&self, block: BlockNr) -> Result<()> {
        if !self.metadata_csum() {
            return Ok(());
        }
        let mut bytes = self.block(block)?;
        bytes[16..20].fill(0);
        let crc = crc32c(self.superblock.seed().0, &block.0.to_le_bytes());
        let crc = crc32c(crc, &bytes);
        bytes[16..20].copy_from_slice(&crc.to_le_bytes());
        self.put_block(block, &bytes)
    }

    /// Updates the checksum of the MMP block.
    ///
    /// # Errors
    /// The block lies outside the image.
    pub fn fix_mmp(&self, block: BlockNr) -> Result<()> {
        if !self.metadata_csum() {
            return Ok(());
        }
        let bytes = self.block(block)?;
        let crc = crc32c(self.superblock.seed().0, &bytes[..1020]);
        self.image.write(self.geometry.offset_bytes(block) + 1020, &crc.to_le_bytes())
    }

    /// Updates the checksum of a block of the orphan file.
    ///
    /// # Errors
    /// The block lies outside the image.
    pub fn fix_orphan_block(&self, owner: InodeNr, block: BlockNr) -> Result<()> {
        if !self.metadata_csum() {
            return Ok(());
        }
        let bytes = self.block(block)?;
        let tail = bytes.len() - 8;
        let crc = crc32c(self.inode_seed(owner)?, &block.0.to_le_bytes());
        let crc = crc32c(crc, &bytes[..tail]);
        self.image.write(self.geometry.offset_bytes(block) + tail as u64 + 4, &crc.to_le_bytes())
    }

    /// Updates the checksum of a journal superblock, if its features declare one.
    ///
    /// # Errors
    /// The block lies outside the image.
    pub fn fix_journal_superblock(&self, block: BlockNr) -> Result<()> {
        const CSUM_V2_V3: u8 = 0x18;
        let mut bytes = self.block(block)?;
        // Big-endian: the low byte of s_feature_incompat is the last.
        if bytes[0x2b] & CSUM_V2_V3 == 0 {
            return Ok(());
        }
        bytes[0xfc..0x100].fill(0);
        let crc = crc32c(u32::MAX, &bytes[..1024]);
        bytes[0xfc..0x100].copy_from_slice(&crc.to_be_bytes());
        self.put_block(block, &bytes)
    }
}

/// Offset and value of the checksum of an index root or node; `None` if the block is neither.
fn index_checksum(bytes: &[u8], seed: u32) -> Option<(usize, u32)> {
    // A node starts with an empty entry that spans the block; a root with `.` and `..`, whose
    // record contains the root's own fields.
    let first = usize::from(le16_at(bytes, 4)?);
    let count_at =
        if first == bytes.len() || first == 65532 || le32_at(bytes, 0)? == 0 { 8 } else { 0x20 };
    let limit = usize::from(le16_at(bytes, count_at)?);
    let count = usize::from(le16_at(bytes, count_at + 2)?);
    let tail = count_at + 8 * limit;
    let used = bytes.get(..count_at + 8 * count)?;
    let reserved = bytes.get(tail..tail + 4)?;
    bytes.get(tail..tail + 8)?;
    let crc = crc32c(seed, used);
    let crc = crc32c(crc, reserved);
    Some((tail + 4, crc32c(crc, &[0; 4])))
}
