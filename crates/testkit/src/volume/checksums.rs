//! Sets checksums right after an edit, so that damage gets past them.
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

    /// Sets the checksum of the primary superblock right (or of the copy at `offset_bytes`).
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

    /// Sets the checksum of the primary superblock right.
    ///
    /// # Errors
    /// The image cannot be read or written.
    pub fn fix_superblock(&self) -> Result<()> {
        self.fix_superblock_at(OFFSET_BYTES)
    }

    /// Sets the checksum of a group's descriptor right.
    ///
    /// # Errors
    /// There is no such group.
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

    /// Sets the checksums of a group's two bitmaps right, and that of its descriptor.
    ///
    /// # Errors
    /// There is no such group, or a bitmap lies outside the image.
    pub fn fix_bitmaps(&self, group: GroupNr) -> Result<()> {
        if self.metadata_csum() {
            let mut desc = self.desc(group)?;
            let seed = self.superblock.seed().0;
            let sum = |block: BlockNr, bits: u32| -> Result<u32> {
                Ok(crc32c(seed, self.block(block)?.get(..bits as usize / 8).context("a bitmap")?))
            };
            // A bitmap that was never written has no checksum.
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

    /// Sets the checksum of an inode right.
    ///
    /// # Errors
    /// There is no such inode.
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

    /// The start of the checksums of what an inode owns.
    ///
    /// # Errors
    /// There is no such inode.
    pub fn inode_seed(&self, inode: InodeNr) -> Result<u32> {
        let bytes = self.inode_bytes(inode)?;
        let generation = le32_at(&bytes, 0x64).context("an inode has 128 bytes")?;
        Ok(self.superblock.seed().of_inode(inode, generation))
    }

    /// Sets the checksum of an extent node in a block right.
    ///
    /// # Errors
    /// The block lies outside the image. A node whose tail would do so stays as it is.
    pub fn fix_extent_node(&self, owner: InodeNr, block: BlockNr) -> Result<()> {
        if !self.metadata_csum() {
            return Ok(());
        }
        let mut bytes = self.block(block)?;
        let node = ExtentNode::new(&bytes).context("an extent node")?;
        // The tail lies behind the entries that fit by `eh_max`, which damage may have changed.
        let tail = 12 * (usize::from(node.header().max) + 1);
        let crc = node.compute_checksum(self.inode_seed(owner)?);
        if let Some(slot) = bytes.get_mut(tail..tail + 4) {
            slot.copy_from_slice(&crc.to_le_bytes());
            self.put_block(block, &bytes)?;
        }
        Ok(())
    }

    /// Sets the checksum of a directory block right: of its tail if it ends in one, else of an
    /// index root or node.
    ///
    /// # Errors
    /// The block lies outside the image. A block with neither stays as it is.
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

    /// Sets the checksum of a block of extended attributes right.
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

    /// Sets the checksum of the multiple-mount protection block right.
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

    /// Sets the checksum of a block of the orphan file right.
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

    /// Sets the checksum of a journal superblock right, where it says that it has one.
    ///
    /// # Errors
    /// The block lies outside the image.
    pub fn fix_journal_superblock(&self, block: BlockNr) -> Result<()> {
        const CSUM_V2_V3: u8 = 0x18;
        let mut bytes = self.block(block)?;
        // Big-endian: the lowest byte of s_feature_incompat is its last.
        if bytes[0x2b] & CSUM_V2_V3 == 0 {
            return Ok(());
        }
        bytes[0xfc..0x100].fill(0);
        let crc = crc32c(u32::MAX, &bytes[..1024]);
        bytes[0xfc..0x100].copy_from_slice(&crc.to_be_bytes());
        self.put_block(block, &bytes)
    }
}

/// Place and value of the checksum of an index root or node; `None` if the block is neither.
fn index_checksum(bytes: &[u8], seed: u32) -> Option<(usize, u32)> {
    // A node starts with an empty entry over the whole block; a root with `.` and `..`, whose
    // record holds the root's own fields.
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
