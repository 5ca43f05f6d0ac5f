//! Multiple-mount protection (`struct mmp_struct`): one block that a mounted file system keeps
//! changing.
//!
//! Source: `Documentation/filesystems/ext4/mmp.rst`.

use crate::crc::{Seed, crc32c};
use crate::layout::le;

/// `mmp_magic`: "PMM" and a zero.
pub const MAGIC: u32 = 0x004d_4d50;
/// `mmp_seq`: unmounted cleanly.
pub const SEQ_CLEAN: u32 = 0xff4d_4d50;
/// `mmp_seq`: a checker is at work.
pub const SEQ_FSCK: u32 = 0xe24d_4d50;
/// `mmp_seq`: the largest number of a mounted file system.
pub const SEQ_MAX: u32 = 0xe24d_4d4f;

layout! {
    /// The MMP block's first 1024 bytes; the rest of a larger block is unused.
    pub struct Mmp[1024] little {
        /// 0x004D4D50.
        0x000 magic: u32,
        /// Changed at each update; or `SEQ_CLEAN`, `SEQ_FSCK`.
        0x004 seq: u32,
        /// Last update, seconds since 1970.
        0x008 time: u64,
        /// Host that updates it, NUL padded.
        0x010 nodename: [u8; 64],
        /// Device as that host calls it, NUL padded.
        0x050 bdevname: [u8; 32],
        /// Seconds between updates.
        0x070 check_interval: u16,
        /// Padding.
        0x072 pad1: u16,
        /// Padding.
        0x074 pad2: [u32; 226],
        /// crc32c (metadata_csum).
        0x3fc checksum: u32,
    }
}

impl Mmp {
    /// The checksum `bytes` should carry (metadata_csum).
    pub fn compute_checksum(seed: Seed, bytes: &[u8; 1024]) -> u32 {
        crc32c(seed.0, &bytes[..0x3fc])
    }

    /// Whether the stored checksum fits (metadata_csum).
    pub fn checksum_ok(seed: Seed, bytes: &[u8; 1024]) -> bool {
        Self::compute_checksum(seed, bytes) == le::<u32, 0x3fc, 1024>(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_cover_the_structure() {
        let mut bytes = [0u8; 1024];
        let mut mmp = Mmp::decode(&bytes);
        mmp.magic = MAGIC;
        mmp.seq = SEQ_FSCK;
        mmp.pad2[225] = 9;
        mmp.encode_into(&mut bytes);
        assert_eq!(bytes[..4], [0x50, 0x4d, 0x4d, 0]);
        assert_eq!(bytes[0x3f8], 9);
        assert!(!Mmp::checksum_ok(Seed(3), &bytes));
        mmp.checksum = Mmp::compute_checksum(Seed(3), &bytes);
        mmp.encode_into(&mut bytes);
        assert!(Mmp::checksum_ok(Seed(3), &bytes));
    }
}
