//! The two checksums of ext4: crc32c (metadata_csum, jbd2) and crc16 (gdt_csum).

/// A crc32c that goes on from `crc`, as the kernel's `ext4_chksum` and `jbd2_chksum`: no inversion
/// before or after. The usual start is `u32::MAX`.
#[inline]
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    // The crate inverts before and after, as the usual definition does; undo both.
    !crc32c::crc32c_append(!crc, bytes)
}

/// A big-endian CRC-32 (polynomial 0x04c11db7, most significant bit first, no inversion), as the
/// kernel's `crc32_be`: the jbd2 commit checksum of version 1.
pub fn crc32_be(crc: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(crc, |crc, &byte| {
        let [high, ..] = crc.to_be_bytes();
        (crc << 8) ^ CRC32_BE_TABLE[usize::from(high ^ byte)]
    })
}

const CRC32_BE_TABLE: [u32; 256] = crc32_be_table();

const fn crc32_be_table() -> [u32; 256] {
    let mut table = [0u32; 256];
    let mut at = 0;
    while at < 256 {
        let mut crc = (at as u32) << 24;
        let mut bit = 0;
        while bit < 8 {
            crc = (crc << 1) ^ (if crc & 0x8000_0000 == 0 { 0 } else { 0x04c1_1db7 });
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
}

const CRC16_TABLE: [u16; 256] = crc16_table();

const fn crc16_table() -> [u16; 256] {
    let mut table = [0u16; 256];
    let mut at = 0;
    while at < 256 {
        let mut crc = at as u16;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ 0xa001 };
            bit += 1;
        }
        table[at] = crc;
        at += 1;
    }
    table
}

/// CRC-16 with polynomial 0x8005, reflected, as the kernel's `crc16`. The usual start is `u16::MAX`.
pub fn crc16(crc: u16, bytes: &[u8]) -> u16 {
    bytes.iter().fold(crc, |crc, &byte| {
        let [low, _] = crc.to_le_bytes();
        (crc >> 8) ^ CRC16_TABLE[usize::from(low ^ byte)]
    })
}

/// The crc32c that all metadata checksums of one file system start from: `s_checksum_seed`, or
/// the crc32c of the UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u32);

impl Seed {
    /// Goes on over the number and generation of an inode: the start of the checksums of the inode
    /// itself, its extent nodes and its directory blocks.
    #[inline]
    pub fn of_inode(self, inode: crate::InodeNr, generation: u32) -> u32 {
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&inode.0.to_le_bytes());
        bytes[4..].copy_from_slice(&generation.to_le_bytes());
        crc32c(self.0, &bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_vectors() {
        // The check values of CRC-32C, CRC-16/ARC and CRC-32/MPEG-2 for "123456789".
        assert_eq!(!crc32c(u32::MAX, b"123456789"), 0xe306_9283);
        assert_eq!(crc16(0, b"123456789"), 0xbb3d);
        assert_eq!(crc32_be(u32::MAX, b"123456789"), 0x0376_e6e7);
    }

    #[test]
    fn crc32c_goes_on() {
        let whole = crc32c(u32::MAX, b"123456789");
        assert_eq!(crc32c(crc32c(u32::MAX, b"1234"), b"56789"), whole);
    }
}
