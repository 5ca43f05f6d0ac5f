//! Inodes of the file system under repair.

use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_format::ext::group_desc;
use floe_format::ext::inode::{self, FileType, InodeBase, InodeExtra, InodeFlags};
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun, InodeNr};

use super::Stage;
use crate::failure::Failure;

/// A decoded inode.
#[derive(Clone, Debug)]
pub struct InodeImage {
    /// Its number.
    pub number: InodeNr,
    /// The first 128 bytes.
    pub base: InodeBase,
    /// The fields beyond 128 bytes, zero if the inode is too short.
    pub extra: InodeExtra,
    /// All `s_inode_size` bytes; `base` and `extra` overwrite theirs when the inode is written.
    pub raw: Vec<u8>,
}

impl InodeImage {
    /// Decodes an inode; `None` if it has fewer than 128 bytes.
    pub fn of(number: InodeNr, raw: Vec<u8>) -> Option<Self> {
        let inode = inode::Inode::decode(&raw)?;
        let (base, extra) = (inode.base.clone(), inode.extra.clone());
        Some(Self { number, base, extra, raw })
    }

    /// `i_flags`.
    pub fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.base.flags)
    }

    /// `i_size`.
    pub fn size_bytes(&self) -> u64 {
        u64::from(self.base.size_lo) | u64::from(self.base.size_high) << 32
    }

    /// Sets `i_size`.
    pub fn set_size_bytes(&mut self, size: u64) {
        self.base.size_lo = (size & 0xffff_ffff) as u32;
        self.base.size_high = (size >> 32) as u32;
    }

    /// Offset of the in-inode attributes; `None` if the inode has no room for any.
    pub fn attributes_offset(&self) -> Option<usize> {
        let at = 128 + usize::from(self.extra.extra_isize);
        (self.raw.len() > 128 && at.is_multiple_of(4) && at + 4 <= self.raw.len()).then_some(at)
    }

    /// Whether the inode can serve as lost+found.
    pub(super) fn serves_as_lost_found(&self) -> bool {
        let unfit = InodeFlags::ENCRYPT | InodeFlags::INLINE_DATA;
        FileType::of_mode(self.base.mode) == Some(FileType::Directory)
            && !self.flags().intersects(unfit)
    }
}

impl Stage<'_> {
    /// The attribute block that an inode names; block 0 for none.
    pub fn attribute_block(&self, image: &InodeImage) -> BlockNr {
        let wide = self.geometry.features.incompat.contains(Incompat::BIT64);
        let high = if wide { image.base.file_acl_high } else { 0 };
        BlockNr(u64::from(image.base.file_acl_lo) | u64::from(high) << 32)
    }

    /// Byte offset of an inode on the device.
    fn inode_offset(&self, inode: InodeNr) -> Result<u64, Failure> {
        let place = self.geometry.place_of(inode);
        let (group, index) = place.ok_or(Failure::NotNow("there is no such inode"))?;
        let table = self.group(group).inode_table;
        let run = BlockRun::new(table, u64::from(self.geometry.inode_table_blocks));
        if table.0 == 0
            || !self.geometry.contains(table)
            || run.end().0 > self.geometry.blocks_count
        {
            return Err(Failure::NotNow("the inode table has no location yet"));
        }
        let within = u64::from(index) * u64::from(self.geometry.inode_size);
        Ok(self.geometry.offset_bytes(table) + within)
    }

    /// Stages the bytes of an inode.
    fn stage_inode(&self, inode: InodeNr, bytes: &[u8]) -> Result<(), Failure> {
        let offset = self.inode_offset(inode)?;
        self.must_not_leave_alone(BlockNr(offset / u64::from(self.geometry.block_size)))?;
        self.overlay.write_at(offset, bytes)?;
        Ok(())
    }

    /// Reads an inode with its staged edits.
    ///
    /// # Errors
    /// No such inode, a table without a valid location, or a read error.
    pub fn read_inode(&self, number: InodeNr) -> Result<InodeImage, Failure> {
        let mut raw = vec![0; self.geometry.inode_size as usize];
        self.overlay.read_at(self.inode_offset(number)?, &mut raw)?;
        InodeImage::of(number, raw).ok_or(Failure::NotNow("inodes are too short"))
    }

    /// Stages the raw bytes of an inode.
    ///
    /// # Errors
    /// As [`Stage::read_inode`].
    pub(crate) fn write_raw_inode(&self, number: InodeNr, raw: &[u8]) -> Result<(), Failure> {
        self.stage_inode(number, raw)?;
        Ok(())
    }

    /// Stages an inode and updates its checksum.
    ///
    /// # Errors
    /// As [`Stage::read_inode`].
    pub fn write_inode(&self, image: &InodeImage) -> Result<(), Failure> {
        let mut raw = image.raw.clone();
        if let Some(base) = raw.first_chunk_mut::<128>() {
            image.base.encode_into(base);
        }
        if let Some(extra) = raw.get_mut(128..).and_then(|rest| rest.first_chunk_mut::<32>()) {
            // Bytes beyond `extra_isize` belong to the attributes.
            let mut all = [0; 32];
            image.extra.encode_into(&mut all);
            let len = usize::from(image.extra.extra_isize).clamp(4, 32);
            extra[..len].copy_from_slice(&all[..len]);
        }
        if self.checksummed() {
            // Fails only for fewer than 128 bytes.
            let _ = inode::write_checksum(&mut raw, self.seed, image.number);
        }
        self.stage_inode(image.number, &raw)?;
        Ok(())
    }

    /// A new inode: one link, no content, with the current time.
    ///
    /// # Errors
    /// Inodes have fewer than 128 bytes.
    pub fn new_inode(&self, number: InodeNr, mode: u16) -> Result<InodeImage, Failure> {
        let mut image = InodeImage::of(number, vec![0; self.geometry.inode_size as usize])
            .ok_or(Failure::NotNow("inodes are too short"))?;
        let now = self.now32();
        image.base.mode = mode;
        image.base.links_count = 1;
        (image.base.mtime, image.base.ctime, image.base.atime) = (now, now, now);
        if self.geometry.inode_size > 128 {
            // A damaged `s_want_extra_isize` must not corrupt the inode.
            let most = u16::try_from(self.geometry.inode_size - 128).unwrap_or(u16::MAX);
            image.extra.extra_isize = self.superblock().want_extra_isize.clamp(4, most.max(4)) & !3;
        }
        Ok(image)
    }

    /// Edits an inode.
    ///
    /// # Errors
    /// As [`Stage::read_inode`].
    pub fn edit_inode(
        &self,
        number: InodeNr,
        edit: impl FnOnce(&mut InodeImage),
    ) -> Result<(), Failure> {
        let mut image = self.read_inode(number)?;
        edit(&mut image);
        self.write_inode(&image)
    }

    /// Checksum seed of the extent nodes and directory blocks of an inode.
    pub fn inode_seed(&self, image: &InodeImage) -> u32 {
        self.seed.of_inode(image.number, image.base.generation)
    }

    /// Clears the uninit flags of a group and lowers its unused inode count as far as an inode
    /// requires. That part of the table was never written, so it is zeroed up to the inode.
    ///
    /// # Errors
    /// The table cannot be staged.
    pub(crate) fn uncover_inode(&mut self, inode: InodeNr) -> Result<(), Failure> {
        if !self.geometry.features.group_desc_csum() {
            return Ok(());
        }
        let Some((group, index)) = self.geometry.place_of(inode) else { return Ok(()) };
        let desc = self.group(group);
        let per_group = self.geometry.inodes_per_group;
        let bound =
            if desc.inode_uninit() { 0 } else { per_group.saturating_sub(desc.itable_unused) };
        if index < bound {
            return Ok(());
        }
        let zeroes = vec![0; self.geometry.inode_size as usize];
        for hidden in bound..=index {
            self.stage_inode(self.geometry.inode_at(group, hidden), &zeroes)?;
        }
        self.edit_group(group, |desc| {
            if desc.inode_uninit() {
                desc.flags &= !group_desc::FLAG_INODE_UNINIT;
            }
            desc.itable_unused = per_group - index - 1;
        });
        Ok(())
    }
}
