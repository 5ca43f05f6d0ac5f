//! The inode (`struct ext4_inode`): 128 bytes, or more with extra fields and in-inode attributes.

mod owned;

use bitflags::bitflags;

pub use owned::{BLOCK_BYTES, OwnedInode, TimeField, Timestamp, device_block, device_number};

use crate::InodeNr;
use crate::crc::{Seed, crc32c};

bitflags! {
    /// `i_flags`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct InodeFlags: u32 {
        /// Secure deletion.
        const SECRM = 0x0000_0001;
        /// Undelete.
        const UNRM = 0x0000_0002;
        /// Compress.
        const COMPR = 0x0000_0004;
        /// Synchronous updates.
        const SYNC = 0x0000_0008;
        /// Cannot be changed.
        const IMMUTABLE = 0x0000_0010;
        /// Can only be appended to.
        const APPEND = 0x0000_0020;
        /// Not dumped.
        const NODUMP = 0x0000_0040;
        /// Access time is not kept.
        const NOATIME = 0x0000_0080;
        /// Encrypted.
        const ENCRYPT = 0x0000_0800;
        /// An indexed directory.
        const INDEX = 0x0000_1000;
        /// AFS server inode.
        const IMAGIC = 0x0000_2000;
        /// Data is journalled.
        const JOURNAL_DATA = 0x0000_4000;
        /// The tail is not merged.
        const NOTAIL = 0x0000_8000;
        /// Directory changes are synchronous.
        const DIRSYNC = 0x0001_0000;
        /// Top of a directory hierarchy.
        const TOPDIR = 0x0002_0000;
        /// `i_blocks` counts blocks, not sectors.
        const HUGE_FILE = 0x0004_0000;
        /// Uses extents.
        const EXTENTS = 0x0008_0000;
        /// Under fs-verity.
        const VERITY = 0x0010_0000;
        /// Holds a big extended attribute.
        const EA_INODE = 0x0020_0000;
        /// Blocks past the end of the file are allowed; obsolete.
        const EOFBLOCKS = 0x0040_0000;
        /// A snapshot; unused.
        const SNAPFILE = 0x0100_0000;
        /// Direct access.
        const DAX = 0x0200_0000;
        /// Data lives in the inode.
        const INLINE_DATA = 0x1000_0000;
        /// Children get this project.
        const PROJINHERIT = 0x2000_0000;
        /// Names are compared without case.
        const CASEFOLD = 0x4000_0000;
    }
}

/// The seven types of `i_mode`, numbered as in directory entries (`EXT4_FT_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FileType {
    /// A regular file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A character device.
    CharDevice = 3,
    /// A block device.
    BlockDevice = 4,
    /// A FIFO.
    Fifo = 5,
    /// A socket.
    Socket = 6,
    /// A symbolic link.
    Symlink = 7,
}

impl FileType {
    /// The type in the upper four bits of `i_mode`, or `None` for an undefined one.
    #[inline]
    pub const fn of_mode(mode: u16) -> Option<Self> {
        Some(match mode >> 12 {
            0o10 => Self::Regular,
            0o04 => Self::Directory,
            0o02 => Self::CharDevice,
            0o06 => Self::BlockDevice,
            0o01 => Self::Fifo,
            0o14 => Self::Socket,
            0o12 => Self::Symlink,
            _ => return None,
        })
    }

    /// `i_mode` of this type with these permissions, of which the lower twelve bits count.
    pub const fn mode(self, permissions: u16) -> u16 {
        let kind = match self {
            Self::Regular => 0o10,
            Self::Directory => 0o04,
            Self::CharDevice => 0o02,
            Self::BlockDevice => 0o06,
            Self::Fifo => 0o01,
            Self::Socket => 0o14,
            Self::Symlink => 0o12,
        };
        kind << 12 | permissions & 0o7777
    }

    /// The type of a directory entry's `file_type` byte; `None` for 0 ("unknown") and above 7.
    pub const fn of_entry(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            _ => return None,
        })
    }
}

layout! {
    /// The first 128 bytes, which every inode has.
    pub struct InodeBase[128] little {
        /// Type and permissions.
        0x00 mode: u16,
        /// Owner, low half.
        0x02 uid_lo: u16,
        /// Bytes, low half.
        0x04 size_lo: u32,
        /// Last access, seconds since 1970.
        0x08 atime: u32,
        /// Last inode change, seconds since 1970.
        0x0c ctime: u32,
        /// Last data change, seconds since 1970.
        0x10 mtime: u32,
        /// Deletion, seconds since 1970; or the next orphan.
        0x14 dtime: u32,
        /// Group, low half.
        0x18 gid_lo: u16,
        /// Hard links.
        0x1a links_count: u16,
        /// Sectors of 512 bytes (or blocks, with HUGE_FILE), low half.
        0x1c blocks_lo: u32,
        /// `InodeFlags` bits.
        0x20 flags: u32,
        /// Version, low half; on EA inodes the low half of the reference count.
        0x24 version: u32,
        /// Block map, extent root, fast symlink, inline data or device number.
        0x28 block: [u8; 60],
        /// Generation, for NFS and checksums.
        0x64 generation: u32,
        /// Block of extended attributes, low half.
        0x68 file_acl_lo: u32,
        /// Bytes, high half.
        0x6c size_high: u32,
        /// Fragment address; obsolete.
        0x70 faddr: u32,
        /// `i_blocks`, high half. On Hurd: fragment number and size.
        0x74 blocks_high: u16,
        /// Block of extended attributes, high half.
        0x76 file_acl_high: u16,
        /// Owner, high half.
        0x78 uid_high: u16,
        /// Group, high half.
        0x7a gid_high: u16,
        /// crc32c, low half.
        0x7c checksum_lo: u16,
        /// Reserved.
        0x7e reserved: u16,
    }
}

layout! {
    /// The extra fields behind the first 128 bytes. `extra_isize` says how many of them are in use.
    pub struct InodeExtra[32] little {
        /// Bytes of extra fields, this one included.
        0x00 extra_isize: u16,
        /// crc32c, high half.
        0x02 checksum_hi: u16,
        /// Change time: nanoseconds << 2 | epoch.
        0x04 ctime_extra: u32,
        /// Modification time: nanoseconds << 2 | epoch.
        0x08 mtime_extra: u32,
        /// Access time: nanoseconds << 2 | epoch.
        0x0c atime_extra: u32,
        /// Creation, seconds since 1970.
        0x10 crtime: u32,
        /// Creation: nanoseconds << 2 | epoch.
        0x14 crtime_extra: u32,
        /// Version, high half.
        0x18 version_hi: u32,
        /// Project.
        0x1c projid: u32,
    }
}

/// An inode: its base, its extra fields where it has them, and its bytes.
///
/// `raw` is the whole inode as it lies on the disk (`s_inode_size` bytes); the fields are decoded
/// from it, so in-inode attributes are reached without another copy.
#[derive(Clone, Debug)]
pub struct Inode<'a> {
    /// The first 128 bytes.
    pub base: InodeBase,
    /// Bytes 128 to 160, zero where the inode is 128 bytes long. Not yet cut to `extra_isize`.
    pub extra: InodeExtra,
    /// All bytes of the inode.
    pub raw: &'a [u8],
}

impl<'a> Inode<'a> {
    /// Decodes an inode of at least 128 bytes; `None` if `raw` is shorter.
    #[inline]
    pub fn decode(raw: &'a [u8]) -> Option<Self> {
        let base = InodeBase::decode(raw.first_chunk()?);
        let extra = raw.get(128..).and_then(|rest| rest.first_chunk()).unwrap_or(&[0; 32]);
        Some(Self { base, extra: InodeExtra::decode(extra), raw })
    }

    /// The flags, unknown ones kept.
    #[inline]
    pub fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.base.flags)
    }

    /// The type, or `None` for an undefined one.
    #[inline]
    pub fn file_type(&self) -> Option<FileType> {
        FileType::of_mode(self.base.mode)
    }

    /// `i_size` with its high half, whatever the type.
    #[inline]
    pub fn size_bytes(&self) -> u64 {
        u64::from(self.base.size_lo) | u64::from(self.base.size_high) << 32
    }

    /// The block of extended attributes; the high half counts only with 64bit.
    #[inline]
    pub fn file_acl(&self, bit64: bool) -> u64 {
        let high = if bit64 { u64::from(self.base.file_acl_high) } else { 0 };
        u64::from(self.base.file_acl_lo) | high << 32
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        u32::from(self.base.uid_lo) | u32::from(self.base.uid_high) << 16
    }

    /// Group.
    pub fn gid(&self) -> u32 {
        u32::from(self.base.gid_lo) | u32::from(self.base.gid_high) << 16
    }

    /// The word of `i_block` at `index` (0 to 14) as a block number of the block map.
    #[inline]
    pub fn block_word(&self, index: usize) -> Option<u32> {
        crate::layout::le32_at(&self.base.block, index.checked_mul(4)?)
    }

    /// Whether an extra field that ends `end` bytes behind byte 128 is there.
    #[inline]
    pub fn has_extra(&self, end: u16) -> bool {
        self.raw.len() >= 128 + usize::from(end) && self.extra.extra_isize >= end
    }

    /// Bytes of in-inode attributes: from their magic to the end of the inode; empty if none fit.
    #[inline]
    pub fn xattr_area(&self) -> &'a [u8] {
        self.raw.get(128 + usize::from(self.extra.extra_isize)..).unwrap_or(&[])
    }

    /// The stored checksum: 32 bits where the high half is there, else 16.
    pub fn stored_checksum(&self) -> u32 {
        let hi = if self.has_extra(4) { u32::from(self.extra.checksum_hi) << 16 } else { 0 };
        u32::from(self.base.checksum_lo) | hi
    }

    /// The checksum the inode should carry, cut to 16 bits where the high half is not there.
    #[inline]
    pub fn compute_checksum(&self, seed: Seed, inode: InodeNr) -> u32 {
        match <&[u8; 256]>::try_from(self.raw) {
            Ok(raw) if self.has_extra(4) => self.checksum_of_256(raw, seed, inode),
            _ => self.checksum_in_pieces(seed, inode),
        }
    }

    /// Inodes of the usual size in one call: copying 256 bytes costs less than feeding the checksum
    /// routine in short pieces.
    fn checksum_of_256(&self, raw: &[u8; 256], seed: Seed, inode: InodeNr) -> u32 {
        let mut bytes = [0; 8 + 256];
        bytes[..4].copy_from_slice(&inode.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.base.generation.to_le_bytes());
        bytes[8..].copy_from_slice(raw);
        bytes[8 + 0x7c..8 + 0x7e].fill(0);
        bytes[8 + 0x82..8 + 0x84].fill(0);
        crc32c(seed.0, &bytes)
    }

    fn checksum_in_pieces(&self, seed: Seed, inode: InodeNr) -> u32 {
        let mut crc = seed.of_inode(inode, self.base.generation);
        crc = crc32c(crc, &self.raw[..0x7c]);
        crc = crc32c(crc, &[0, 0]);
        crc = crc32c(crc, &self.raw[0x7e..128]);
        if self.raw.len() > 128 {
            if self.has_extra(4) {
                crc = crc32c(crc, &self.raw[128..130]);
                crc = crc32c(crc, &[0, 0]);
                crc = crc32c(crc, &self.raw[132..]);
                return crc;
            }
            crc = crc32c(crc, &self.raw[128..]);
        }
        crc & 0xffff
    }

    /// Whether the checksum fits. An inode whose first 128 bytes are zero was never written and
    /// passes, as in libext2fs.
    #[inline]
    pub fn checksum_ok(&self, seed: Seed, inode: InodeNr) -> bool {
        self.stored_checksum() == self.compute_checksum(seed, inode)
            || self.raw.iter().take(128).all(|&byte| byte == 0)
    }
}

/// Writes the checksum of an inode over its bytes: both halves where the high one is there, else the
/// low one. `None`, and nothing written, if `raw` is shorter than 128 bytes.
pub fn write_checksum(raw: &mut [u8], seed: Seed, nr: InodeNr) -> Option<()> {
    let inode = Inode::decode(raw)?;
    let (checksum, has_high) = (inode.compute_checksum(seed, nr), inode.has_extra(4));
    let [low @ .., high_low, high_high] = checksum.to_le_bytes();
    raw.get_mut(0x7c..0x7e)?.copy_from_slice(&low);
    if has_high {
        raw.get_mut(0x82..0x84)?.copy_from_slice(&[high_low, high_high]);
    }
    Some(())
}

/// Seconds since 1970 of a timestamp with its extra word: two epoch bits widen the signed seconds
/// (`ext4_decode_extra_time`).
pub fn decode_seconds(seconds: u32, extra: u32) -> i64 {
    i64::from(seconds.cast_signed()) + (i64::from(extra & 3) << 32)
}

/// Nanoseconds of a timestamp's extra word; values from 1,000,000,000 on are damage.
pub fn decode_nanoseconds(extra: u32) -> u32 {
    extra >> 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_written_checksum_fits(raw in proptest::collection::vec(any::<u8>(), 256), extra in 0u16..40) {
            for size in [128, 256] {
                let mut raw = raw[..size].to_vec();
                if size > 128 {
                    raw[128..130].copy_from_slice(&extra.to_le_bytes());
                }
                write_checksum(&mut raw, Seed(3), InodeNr(12)).unwrap();
                prop_assert!(Inode::decode(&raw).unwrap().checksum_ok(Seed(3), InodeNr(12)));
                raw[0] ^= 1;
                prop_assert!(!Inode::decode(&raw).unwrap().checksum_ok(Seed(3), InodeNr(12)));
            }
        }

        #[test]
        fn one_call_and_pieces_agree(raw in proptest::collection::vec(any::<u8>(), 256), number: u32) {
            let inode = Inode::decode(&raw).unwrap();
            let expected = inode.checksum_in_pieces(Seed(9), InodeNr(number));
            prop_assert_eq!(inode.compute_checksum(Seed(9), InodeNr(number)), expected);
        }

        #[test]
        fn no_bytes_panic(raw in proptest::collection::vec(any::<u8>(), 0..300)) {
            if let Some(inode) = Inode::decode(&raw) {
                let _ = (inode.xattr_area(), inode.checksum_ok(Seed(0), InodeNr(1)), inode.file_type());
                let _ = (inode.block_word(14), inode.block_word(usize::MAX), inode.stored_checksum());
            }
        }
    }

    #[test]
    fn epochs_widen_signed_seconds() {
        assert_eq!(decode_seconds(0xffff_ffff, 0), -1);
        assert_eq!(decode_seconds(0, 1), 1 << 32);
        assert_eq!(decode_seconds(0x7fff_ffff, 3), 0x3_7fff_ffff);
        assert_eq!(decode_nanoseconds(999_999_999 << 2 | 3), 999_999_999);
    }

    #[test]
    fn an_empty_inode_needs_no_checksum() {
        assert!(Inode::decode(&[0; 256]).unwrap().checksum_ok(Seed(9), InodeNr(12)));
        assert!(Inode::decode(&[0; 127]).is_none());
    }
}
