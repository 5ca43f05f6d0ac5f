//! The two checksums of ext4: crc32c (metadata_csum, jbd2) and crc16 (gdt_csum).

use crc_fast::{CrcAlgorithm, Digest};

/// Continues a crc32c from `crc`, as the kernel's `ext4_chksum` and `jbd2_chksum` do: no inversion
/// before or after. The usual start is `u32::MAX`.
pub fn crc32c(crc: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(crc));
    digest.update(bytes);
    // The crate inverts the result, as the usual definition requires: undo that. The result fits in
    // 32 bits.
    !(digest.finalize() as u32)
}

/// A big-endian CRC-32 (polynomial 0x04c11db7, most significant bit first, no inversion), as the
/// kernel's `crc32_be`: the jbd2 commit checksum of version 1.
pub fn crc32_be(crc: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(CrcAlgorithm::Crc32Mpeg2, u64::from(crc));
    digest.update(bytes);
    // The result fits in 32 bits.
    digest.finalize() as u32
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

/// The polynomial of crc32c, reflected.
const CRC32C_POLY: u32 = 0x82f6_3b78;

/// Continues a crc32c over `len` zero bytes.
pub(crate) const fn over_zeroes(mut crc: u32, len: usize) -> u32 {
    let mut bits = 8 * len;
    while bits > 0 {
        crc = if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ CRC32C_POLY };
        bits -= 1;
    }
    crc
}

/// The crc32c from before `len` zero bytes were added: the inverse of [`over_zeroes`].
pub(crate) const fn backwards_over_zeroes(mut crc: u32, len: usize) -> u32 {
    let mut bits = 8 * len;
    while bits > 0 {
        // The polynomial alone has the highest bit, so that this bit tells whether it was added.
        crc = if crc >> 31 == 0 { crc << 1 } else { (crc ^ CRC32C_POLY) << 1 | 1 };
        bits -= 1;
    }
    crc
}

/// The crc32c, from a start of 0, of one byte and `len` zero bytes behind it, for each of the 256
/// values. A CRC is linear, so the entry of a value is the XOR of the entries of its bits.
const fn byte_effects(len: usize) -> [u32; 256] {
    let mut effects = [0; 256];
    let mut value = 1usize;
    while value < 256 {
        let lowest = value & value.wrapping_neg();
        effects[value] = if value == lowest {
            over_zeroes(value as u32, len + 1)
        } else {
            effects[lowest] ^ effects[value ^ lowest]
        };
        value += 1;
    }
    effects
}

/// The contribution of two bytes in the middle of a crc32c's input that must count as zero although
/// they are not (a stored checksum). Taking them out costs less than feeding the input in pieces.
#[derive(Debug)]
pub(crate) struct ZeroedBytes {
    first: [u32; 256],
    second: [u32; 256],
}

impl ZeroedBytes {
    /// For two bytes that start `from_end` bytes (at least 2) before the end of the input.
    pub(crate) const fn new(from_end: usize) -> Self {
        Self { first: byte_effects(from_end - 1), second: byte_effects(from_end - 2) }
    }

    /// The XOR between the checksum over the two bytes as they are and the checksum over zeroes.
    #[inline]
    pub(crate) fn effect(&self, bytes: u16) -> u32 {
        let [first, second] = bytes.to_le_bytes();
        self.first[usize::from(first)] ^ self.second[usize::from(second)]
    }
}

/// A crc32c over a word of eight bytes and then a fixed number of bytes, without the set-up cost of
/// a checksum of any length from any start.
pub(crate) struct WordThenBytes {
    /// The contribution of each byte of the word, by its value.
    word: [[u32; 256]; 8],
    /// The XOR between the result from a start of all ones and the result from a start of zero.
    ones: u32,
    len: usize,
}

impl WordThenBytes {
    /// For `len` bytes behind the word.
    pub(crate) const fn new(len: usize) -> Self {
        let mut word = [[0; 256]; 8];
        let mut at = 0;
        while at < 8 {
            word[at] = byte_effects(7 - at + len);
            at += 1;
        }
        Self { word, ones: over_zeroes(u32::MAX, len), len }
    }

    /// The contribution of the word, as if the bytes behind it were zero.
    #[inline]
    fn of_word(&self, crc: u32, word: u64) -> u32 {
        let word = (word ^ u64::from(crc)).to_le_bytes();
        word.iter().zip(&self.word).fold(0, |sum, (&byte, table)| sum ^ table[usize::from(byte)])
    }

    /// [`crc32c`] over both. The length of `bytes` must be the one given to [`WordThenBytes::new`].
    #[inline]
    pub(crate) fn crc(&self, crc: u32, word: u64, bytes: &[u8]) -> u32 {
        debug_assert_eq!(bytes.len(), self.len);
        // The crate starts from all ones and inverts at the end.
        self.of_word(crc, word) ^ self.ones ^ !crc_fast::crc32_iscsi(bytes)
    }
}

/// For a word of eight bytes with nothing behind it.
static WORD: WordThenBytes = WordThenBytes::new(0);

/// [`crc32c`] over eight bytes.
#[inline]
fn crc32c_word(crc: u32, word: u64) -> u32 {
    WORD.of_word(crc, word)
}

/// [`crc32c`] for a few bytes, as those of a name, without the set-up cost of any length.
#[inline]
pub fn crc32c_of_few(mut crc: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks();
    for word in words {
        crc = crc32c_word(crc, u64::from_le_bytes(*word));
    }
    let of_byte = |crc: u32, byte: &u8| crc >> 8 ^ WORD.word[7][usize::from(crc as u8 ^ byte)];
    rest.iter().fold(crc, of_byte)
}

/// The crc32c that all metadata checksums of one file system start from: `s_checksum_seed`, or
/// the crc32c of the UUID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub u32);

impl Seed {
    /// Continues over the number and generation of an inode: the seed of the checksums of the inode
    /// itself, its extent nodes and its directory blocks.
    #[inline]
    pub fn of_inode(self, inode: crate::InodeNr, generation: u32) -> u32 {
        crc32c_word(self.0, Self::word_of(inode, generation))
    }

    /// The number and the generation of an inode as one word, which its checksum covers before its
    /// bytes.
    #[inline]
    pub(crate) fn word_of(inode: crate::InodeNr, generation: u32) -> u64 {
        u64::from(inode.0) | u64::from(generation) << 32
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn known_vectors() {
        // The check values of CRC-32C, CRC-16/ARC and CRC-32/MPEG-2 for "123456789".
        assert_eq!(!crc32c(u32::MAX, b"123456789"), 0xe306_9283);
        assert_eq!(crc16(0, b"123456789"), 0xbb3d);
        assert_eq!(crc32_be(u32::MAX, b"123456789"), 0x0376_e6e7);
    }

    proptest! {
        #[test]
        fn a_word_counts_like_its_bytes(crc: u32, word: u64) {
            prop_assert_eq!(crc32c_word(crc, word), crc32c(crc, &word.to_le_bytes()));
        }

        #[test]
        fn a_word_and_bytes_count_like_one_after_the_other(
            crc: u32,
            word: u64,
            bytes in proptest::collection::vec(any::<u8>(), 256),
        ) {
            let expected = crc32c(crc32c(crc, &word.to_le_bytes()), &bytes);
            prop_assert_eq!(WordThenBytes::new(256).crc(crc, word, &bytes), expected);
        }

        #[test]
        fn zeroes_are_taken_back(crc: u32, len in 0usize..300) {
            prop_assert_eq!(backwards_over_zeroes(over_zeroes(crc, len), len), crc);
        }

        #[test]
        fn bytes_are_taken_out(
            crc: u32,
            mut bytes in proptest::collection::vec(any::<u8>(), 256),
            at in 0usize..=254,
        ) {
            let pair = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let effect = ZeroedBytes::new(256 - at).effect(pair);
            let whole = crc32c(crc, &bytes);
            bytes[at..at + 2].fill(0);
            prop_assert_eq!(whole ^ effect, crc32c(crc, &bytes));
        }
    }

    /// The definition, bit by bit.
    fn crc32_be_by_bits(crc: u32, bytes: &[u8]) -> u32 {
        let bits = bytes.iter().flat_map(|byte| (0..8).rev().map(move |bit| byte >> bit & 1));
        bits.fold(crc, |crc, bit| {
            (crc << 1) ^ if crc >> 31 == u32::from(bit) { 0 } else { 0x04c1_1db7 }
        })
    }

    proptest! {
        #[test]
        fn crc32_be_is_as_defined_and_goes_on(
            crc: u32,
            bytes in proptest::collection::vec(any::<u8>(), 0..900),
            at in 0usize..900,
        ) {
            let (first, rest) = bytes.split_at(at.min(bytes.len()));
            let whole = crc32_be(crc, &bytes);
            prop_assert_eq!(whole, crc32_be_by_bits(crc, &bytes));
            prop_assert_eq!(whole, crc32_be(crc32_be(crc, first), rest));
        }
    }

    #[test]
    fn crc32c_goes_on() {
        let whole = crc32c(u32::MAX, b"123456789");
        assert_eq!(crc32c(crc32c(u32::MAX, b"1234"), b"56789"), whole);
        for start in [0, 1, u32::MAX] {
            let bytes: Vec<u8> = (0..=254u8).map(|byte| byte.wrapping_mul(29)).collect();
            for len in 0..=bytes.len() {
                assert_eq!(crc32c_of_few(start, &bytes[..len]), crc32c(start, &bytes[..len]));
            }
        }
    }
}
