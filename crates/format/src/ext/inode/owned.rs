//! An inode that owns its bytes, to be changed and written.

use super::{FileType, Inode, InodeBase, InodeExtra, InodeFlags, write_checksum};
use crate::crc::Seed;
use crate::layout::le32_at;
use crate::{BlockNr, InodeNr};

/// Bytes of `i_block`: block map, extent root, short symbolic link or device number.
pub const BLOCK_BYTES: usize = 60;
/// The largest value of a count of 48 bits (`i_blocks` with its high half).
const MOST_BLOCKS: u64 = (1 << 48) - 1;
/// Bytes of the fields every inode has.
const BASE_BYTES: usize = InodeBase::SIZE;

/// A point in time. An inode stores seconds from -2^31 up to 15,032,385,535 (in the year 2446) if
/// it has room for the extra word of that field, else up to 2^31 - 1; times outside become the
/// nearest of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970, negative before.
    pub seconds: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub nanoseconds: u32,
}

/// Which of an inode's times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeField {
    /// Last access (`i_atime`).
    Access,
    /// Last change of the inode (`i_ctime`).
    Change,
    /// Last change of the content (`i_mtime`).
    Modification,
    /// Creation (`i_crtime`), which only inodes of more than 128 bytes have.
    Creation,
}

/// A decoded inode: its fields, which may be changed, and its bytes, over which
/// [`OwnedInode::seal`] writes them. Bytes that no field covers (attributes in the inode, fields
/// newer than Floe) stay as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedInode {
    /// Its number, which is part of its checksum.
    pub number: InodeNr,
    /// The first 128 bytes.
    pub base: InodeBase,
    /// The extra fields, zero where the inode is too short. Those past `extra_isize` are not written.
    pub extra: InodeExtra,
    /// All bytes, `s_inode_size` of them; those of `base` and `extra` are replaced when it is sealed.
    pub raw: Vec<u8>,
}

impl OwnedInode {
    /// Decodes an inode; `None` below 128 bytes.
    pub fn of(number: InodeNr, raw: Vec<u8>) -> Option<Self> {
        let inode = Inode::decode(&raw)?;
        let (base, extra) = (inode.base.clone(), inode.extra.clone());
        Some(Self { number, base, extra, raw })
    }

    /// A zeroed inode of `size` bytes (`s_inode_size`). `extra_isize` counts only above 128 bytes:
    /// it is rounded down to a multiple of 4, limited to the bytes there are, and is at least 4.
    /// `None` below 128 bytes.
    pub fn new(number: InodeNr, size: usize, extra_isize: u16) -> Option<Self> {
        let mut inode = Self::of(number, vec![0; size])?;
        let room = size - BASE_BYTES;
        if room >= InodeExtra::SIZE {
            // At most 65,535, which came from a u16.
            inode.extra.extra_isize = usize::from(extra_isize).clamp(4, room) as u16 & !3;
        }
        Some(inode)
    }

    /// `i_flags`, unknown ones kept.
    pub const fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.base.flags)
    }

    /// Sets or clears flags.
    pub const fn set_flags(&mut self, flags: InodeFlags, value: bool) {
        if value {
            self.base.flags |= flags.bits();
        } else {
            self.base.flags &= !flags.bits();
        }
    }

    /// The type, or `None` for an undefined one.
    pub const fn file_type(&self) -> Option<FileType> {
        FileType::of_mode(self.base.mode)
    }

    /// `i_size` with its high half, in bytes.
    pub fn size_bytes(&self) -> u64 {
        u64::from(self.base.size_lo) | u64::from(self.base.size_high) << 32
    }

    /// Sets `i_size`, in bytes.
    pub const fn set_size_bytes(&mut self, size: u64) {
        self.base.size_lo = (size & 0xffff_ffff) as u32;
        self.base.size_high = (size >> 32) as u32;
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        u32::from(self.base.uid_lo) | u32::from(self.base.uid_high) << 16
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        u32::from(self.base.gid_lo) | u32::from(self.base.gid_high) << 16
    }

    /// Sets owner and group.
    pub const fn set_owner(&mut self, uid: u32, gid: u32) {
        (self.base.uid_lo, self.base.uid_high) = ((uid & 0xffff) as u16, (uid >> 16) as u16);
        (self.base.gid_lo, self.base.gid_high) = ((gid & 0xffff) as u16, (gid >> 16) as u16);
    }

    /// `i_blocks` with its high half, in the units of [`crate::Geometry::count_units`].
    pub fn blocks(&self) -> u64 {
        u64::from(self.base.blocks_lo) | u64::from(self.base.blocks_high) << 32
    }

    /// Sets `i_blocks`, in the units of [`crate::Geometry::count_units`]; counts above 2^48 - 1 become that.
    pub fn set_blocks(&mut self, units: u64) {
        let units = units.min(MOST_BLOCKS);
        self.base.blocks_lo = (units & 0xffff_ffff) as u32;
        self.base.blocks_high = (units >> 32) as u16;
    }

    /// The block of extended attributes; block 0 for none. The high half counts only with 64bit.
    pub fn file_acl(&self, bit64: bool) -> BlockNr {
        let high = if bit64 { u64::from(self.base.file_acl_high) } else { 0 };
        BlockNr(u64::from(self.base.file_acl_lo) | high << 32)
    }

    /// Names the block of extended attributes, of at most 48 bits; block 0 for none.
    pub const fn set_file_acl(&mut self, block: BlockNr) {
        self.base.file_acl_lo = (block.0 & 0xffff_ffff) as u32;
        self.base.file_acl_high = (block.0 >> 32 & 0xffff) as u16;
    }

    /// The word of `i_block` at `index` (0 to 14) as a block number of the block map.
    pub fn block_word(&self, index: usize) -> Option<u32> {
        le32_at(&self.base.block, index.checked_mul(4)?)
    }

    /// Sets the word of `i_block` at `index`; `false`, and nothing changed, from 15 on.
    pub fn set_block_word(&mut self, index: usize, value: u32) -> bool {
        let words = self.base.block.as_chunks_mut::<4>().0;
        words.get_mut(index).map(|word| *word = value.to_le_bytes()).is_some()
    }

    /// Stores the target of a symbolic link in `i_block` (a fast symlink) and sets the size.
    /// `false`, and nothing changed, for 60 bytes or more: such a target needs a block.
    pub fn set_fast_symlink(&mut self, target: &[u8]) -> bool {
        if target.len() >= BLOCK_BYTES {
            return false;
        }
        self.base.block = [0; BLOCK_BYTES];
        self.base.block[..target.len()].copy_from_slice(target);
        self.set_size_bytes(target.len() as u64);
        true
    }

    /// Stores a device number in `i_block`: see [`device_block`].
    pub fn set_device(&mut self, major: u32, minor: u32) {
        self.base.block = device_block(major, minor);
    }

    /// The device number in `i_block`: major and minor.
    pub fn device(&self) -> (u32, u32) {
        device_number(&self.base.block)
    }

    /// Whether a field that ends `end` bytes behind byte 128 is there.
    const fn has_extra(&self, end: u16) -> bool {
        self.raw.len() >= BASE_BYTES + end as usize && self.extra.extra_isize >= end
    }

    /// Sets a time, as far as the inode can store it: see [`Timestamp`]. Without the extra word the
    /// nanoseconds are lost; an inode without `i_crtime` stores no time of creation.
    pub fn set_time(&mut self, field: TimeField, time: Timestamp) {
        let (seconds, extra, end) = match field {
            TimeField::Change => (&mut self.base.ctime, &mut self.extra.ctime_extra, 0x08),
            TimeField::Modification => (&mut self.base.mtime, &mut self.extra.mtime_extra, 0x0c),
            TimeField::Access => (&mut self.base.atime, &mut self.extra.atime_extra, 0x10),
            TimeField::Creation => (&mut self.extra.crtime, &mut self.extra.crtime_extra, 0x18),
        };
        let wide = self.raw.len() >= BASE_BYTES + end && usize::from(self.extra.extra_isize) >= end;
        (*seconds, *extra) = encode_time(time, wide);
    }

    /// Sets the project; `false`, and nothing changed, if the inode has no room for it.
    pub const fn set_project(&mut self, project: u32) -> bool {
        let fits = self.has_extra(0x20);
        if fits {
            self.extra.projid = project;
        }
        fits
    }

    /// The byte at which in-inode attributes begin with their magic; `None` if the inode has no room for them.
    pub fn attributes_offset(&self) -> Option<usize> {
        let at = BASE_BYTES + usize::from(self.extra.extra_isize);
        (self.raw.len() > BASE_BYTES && at.is_multiple_of(4) && at + 4 <= self.raw.len())
            .then_some(at)
    }

    /// The bytes for in-inode attributes, magic included; empty if the inode has no room for them.
    pub fn attributes(&self) -> &[u8] {
        self.attributes_offset().and_then(|at| self.raw.get(at..)).unwrap_or(&[])
    }

    /// As [`OwnedInode::attributes`], to be changed.
    pub fn attributes_mut(&mut self) -> &mut [u8] {
        let at = self.attributes_offset().unwrap_or(self.raw.len());
        self.raw.get_mut(at..).unwrap_or_default()
    }

    /// The seed of the checksums of the inode's extent nodes and directory blocks.
    pub fn seed(&self, seed: Seed) -> u32 {
        seed.of_inode(self.number, self.base.generation)
    }

    /// Writes the fields over the bytes, then the checksum if there is a `seed` (metadata_csum),
    /// and returns all bytes, `s_inode_size` of them. The checksum fields of `base` and `extra`
    /// keep their old values.
    pub fn seal(&mut self, seed: Option<Seed>) -> &[u8] {
        if let Some(base) = self.raw.first_chunk_mut::<BASE_BYTES>() {
            self.base.encode_into(base);
        }
        let behind = self.raw.get_mut(BASE_BYTES..);
        if let Some(bytes) = behind.and_then(|rest| rest.first_chunk_mut()) {
            let old = *bytes;
            self.extra.encode_into(bytes);
            // The bytes past `extra_isize` belong to the attributes.
            let len = usize::from(self.extra.extra_isize).clamp(4, old.len());
            bytes[len..].copy_from_slice(&old[len..]);
        }
        if let Some(seed) = seed {
            // Fails only below 128 bytes, and the inode has at least that.
            let _ = write_checksum(&mut self.raw, seed, self.number);
        }
        &self.raw
    }
}

/// `i_block` of a device, as Linux stores its number: in the first word, as 16 bits, if both parts
/// are below 256; else in the second, as 32 bits (20 for the minor number, 12 for the major; higher
/// bits are lost).
pub fn device_block(major: u32, minor: u32) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    let (at, value) = if major < 256 && minor < 256 {
        (0, major << 8 | minor)
    } else {
        (4, minor & 0xff | (major & 0xfff) << 8 | (minor & !0xff) << 12)
    };
    block[at..at + 4].copy_from_slice(&value.to_le_bytes());
    block
}

/// Major and minor number of a device from its `i_block`: the inverse of [`device_block`].
pub fn device_number(block: &[u8; BLOCK_BYTES]) -> (u32, u32) {
    match (le32_at(block, 0).unwrap_or(0), le32_at(block, 4).unwrap_or(0)) {
        (0, new) => (new >> 8 & 0xfff, new & 0xff | new >> 12 & 0xf_ff00),
        (old, _) => (old >> 8 & 0xff, old & 0xff),
    }
}

/// The two words of a time. `wide` is false if the inode has no room for the second, which is then
/// 0.
fn encode_time(time: Timestamp, wide: bool) -> (u32, u32) {
    const LEAST: i64 = i32::MIN as i64;
    let most = if wide { i64::from(i32::MAX) + (3 << 32) } else { i64::from(i32::MAX) };
    let seconds = time.seconds.clamp(LEAST, most);
    // The low word is signed. The epoch bits add 0 to 3 times 2^32.
    let low = (seconds & 0xffff_ffff) as u32;
    let epoch = ((seconds - i64::from(low.cast_signed())) >> 32) as u32 & 3;
    (low, if wide { time.nanoseconds.min(999_999_999) << 2 | epoch } else { 0 })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{decode_nanoseconds, decode_seconds};
    use super::*;

    const NUMBER: InodeNr = InodeNr(12);

    proptest! {
        /// Any bytes come back unchanged, except that sealing with a checksum makes the checksum
        /// fit.
        #[test]
        fn an_unchanged_inode_stays(raw in proptest::collection::vec(any::<u8>(), 1024), extra in 0u16..40) {
            for size in [128, 160, 256, 1024] {
                let mut raw = raw[..size].to_vec();
                if size > 128 {
                    raw[128..130].copy_from_slice(&extra.to_le_bytes());
                }
                let mut inode = OwnedInode::of(NUMBER, raw.clone()).unwrap();
                prop_assert_eq!(inode.seal(None), &raw);
                let sealed = inode.seal(Some(Seed(3))).to_vec();
                prop_assert!(Inode::decode(&sealed).unwrap().checksum_ok(Seed(3), NUMBER));
                let differs = (0..size).filter(|&at| sealed[at] != raw[at]);
                prop_assert!(differs.into_iter().all(|at| matches!(at, 0x7c | 0x7d | 0x82 | 0x83)));
            }
        }

        #[test]
        fn values_come_back(
            (size, blocks, acl) in (any::<u64>(), 0u64..1 << 48, 0u64..1 << 48),
            (uid, gid, project) in any::<(u32, u32, u32)>(),
            (major, minor) in (1u32..1 << 12, 0u32..1 << 20),
        ) {
            let mut inode = OwnedInode::new(NUMBER, 256, 32).unwrap();
            inode.set_size_bytes(size);
            inode.set_blocks(blocks);
            inode.set_file_acl(BlockNr(acl));
            inode.set_owner(uid, gid);
            inode.set_device(major, minor);
            prop_assert!(inode.set_project(project));
            let again = OwnedInode::of(NUMBER, inode.seal(Some(Seed(1))).to_vec()).unwrap();
            prop_assert_eq!((again.size_bytes(), again.blocks()), (size, blocks));
            prop_assert_eq!(again.file_acl(true), BlockNr(acl));
            prop_assert_eq!((again.uid(), again.gid(), again.extra.projid), (uid, gid, project));
            prop_assert_eq!(again.device(), (major, minor));
        }

        #[test]
        fn times_come_back(seconds in -(1i64 << 31)..=0x3_7fff_ffff, nanoseconds in 0u32..1_000_000_000) {
            let time = Timestamp { seconds, nanoseconds };
            let mut inode = OwnedInode::new(NUMBER, 256, 32).unwrap();
            for field in [TimeField::Access, TimeField::Change, TimeField::Modification, TimeField::Creation] {
                inode.set_time(field, time);
            }
            let (base, extra) = (&inode.base, &inode.extra);
            for (low, extra) in [
                (base.atime, extra.atime_extra),
                (base.ctime, extra.ctime_extra),
                (base.mtime, extra.mtime_extra),
                (extra.crtime, extra.crtime_extra),
            ] {
                prop_assert_eq!(decode_seconds(low, extra), seconds);
                prop_assert_eq!(decode_nanoseconds(extra), nanoseconds);
            }
        }
    }

    #[test]
    fn times_beyond_the_room_are_the_nearest() {
        let mut short = OwnedInode::new(NUMBER, 128, 32).unwrap();
        short.set_time(TimeField::Access, Timestamp { seconds: 1 << 40, nanoseconds: 5 });
        assert_eq!((short.base.atime, short.extra.atime_extra), (0x7fff_ffff, 0));
        let mut long = OwnedInode::new(NUMBER, 256, 32).unwrap();
        long.set_time(TimeField::Change, Timestamp { seconds: i64::MAX, nanoseconds: u32::MAX });
        assert_eq!(decode_seconds(long.base.ctime, long.extra.ctime_extra), 0x3_7fff_ffff);
        assert_eq!(decode_nanoseconds(long.extra.ctime_extra), 999_999_999);
        long.set_time(TimeField::Change, Timestamp { seconds: i64::MIN, nanoseconds: 0 });
        assert_eq!(decode_seconds(long.base.ctime, long.extra.ctime_extra), -(1 << 31));
    }

    #[test]
    fn attributes_lie_behind_the_extra_fields() {
        let mut inode = OwnedInode::new(NUMBER, 256, 32).unwrap();
        assert_eq!((inode.attributes_offset(), inode.attributes().len()), (Some(160), 96));
        inode.attributes_mut()[0] = 9;
        assert_eq!(inode.seal(None)[160], 9);
        let mut short = OwnedInode::new(NUMBER, 128, 32).unwrap();
        assert!(short.attributes_mut().is_empty() && !short.set_project(4));
        assert!(OwnedInode::new(NUMBER, 127, 32).is_none());
    }

    #[test]
    fn short_symlinks_and_old_device_numbers() {
        let mut inode = OwnedInode::new(NUMBER, 128, 0).unwrap();
        assert!(inode.set_fast_symlink(&[b'x'; 59]) && !inode.set_fast_symlink(&[b'y'; 60]));
        assert_eq!((inode.size_bytes(), inode.base.block[58], inode.base.block[59]), (59, b'x', 0));
        inode.set_device(8, 1);
        assert_eq!((inode.block_word(0), inode.block_word(1)), (Some(0x801), Some(0)));
        assert_eq!(inode.device(), (8, 1));
        assert!(!inode.set_block_word(15, 1));
    }
}
