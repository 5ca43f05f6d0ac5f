//! Flipped bits of an inode, found by running its checksum backwards.
//!
//! CRC32C is linear: a flipped bit changes the checksum by a value, its syndrome, that depends only
//! on the bit's position. The XOR of the stored and the computed checksum is the XOR of the
//! syndromes of all flipped bits, so it identifies one flipped bit, or two. Up to 5243 bits, CRC32C
//! has Hamming distance 6 (Koopman, "32-Bit Cyclic Redundancy Codes for Internet Applications", DSN
//! 2002), so an inode of 256 bytes with one or two flipped bits cannot be mistaken for another one
//! with one or two. Bytes that were never an inode look like one flipped bit with probability
//! 2^-21, like one wrong byte with probability 2^-16, and like two flipped bits with probability
//! 2^-11: a repair of more than one bit needs other evidence.

use super::inode::Inode;
use crate::InodeNr;
use crate::crc::{Seed, backwards_over_zeroes, crc32c, over_zeroes};

/// Offset of the low half of `i_checksum`. Both halves count as zero in the checksum.
const CHECKSUM_LOW: usize = 0x7c;
const CHECKSUM_HIGH: usize = 0x82;
/// Offset of `i_generation`, which the checksum covers twice: before the inode, and in it.
const GENERATION: usize = 0x64;
/// Bytes before the inode in its checksum: number and generation.
const BEFORE: usize = 8;

/// The wrong bits of an inode: one, two, or any number in one byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flips {
    /// A bit, counted from the lowest bit of the first byte.
    One(u16),
    /// Two bits of different bytes, in ascending order.
    Two(u16, u16),
    /// Several bits of the byte at an offset, those that are set in the mask.
    Byte(u16, u8),
}

impl Flips {
    /// The bytes that are wrong, and their wrong bits.
    pub fn bytes(self) -> impl Iterator<Item = (usize, u8)> {
        let of_bit = |bit: u16| (usize::from(bit / 8), 1 << (bit % 8));
        let (first, second) = match self {
            Self::One(bit) => (of_bit(bit), None),
            Self::Two(first, second) => (of_bit(first), Some(of_bit(second))),
            Self::Byte(at, bits) => ((usize::from(at), bits), None),
        };
        [Some(first), second].into_iter().flatten()
    }

    /// Whether it is a single bit, which needs no other evidence.
    pub const fn is_single(self) -> bool {
        matches!(self, Self::One(_))
    }

    /// Flips the bits; those past the end of `raw` are ignored.
    pub fn apply(self, raw: &mut [u8]) {
        for (at, bits) in self.bytes() {
            if let Some(byte) = raw.get_mut(at) {
                *byte ^= bits;
            }
        }
    }
}

/// The syndromes of all bits of an inode of one size, in ascending order.
#[derive(Clone, Debug)]
pub struct Syndromes {
    inode_bytes: usize,
    of_bits: Vec<(u32, u16)>,
}

impl Syndromes {
    /// For inodes of `inode_bytes` bytes. `None` below 132 bytes, because a checksum of 16 bits
    /// proves nothing, and above 8 KiB, because bit numbers have 16 bits.
    pub fn of_size(inode_bytes: usize) -> Option<Self> {
        if !(CHECKSUM_HIGH + 2..=8192).contains(&inode_bytes) {
            return None;
        }
        let last = u16::try_from(inode_bytes * 8 - 1).ok()?;
        let mut of_bits: Vec<(u32, u16)> =
            (0..=last).map(|bit| (syndrome(inode_bytes, usize::from(bit)), bit)).collect();
        of_bits.sort_unstable();
        Some(Self { inode_bytes, of_bits })
    }

    /// The bits that must be flipped to make an inode's checksum right: one, else those of one byte,
    /// else two. `None` if the checksum is right or has only 16 bits, if nothing of that kind
    /// explains it, or if several bytes or pairs do.
    pub fn find(&self, raw: &[u8], seed: Seed, inode: InodeNr) -> Option<Flips> {
        let difference = difference(raw, seed, inode)?;
        if raw.len() != self.inode_bytes || difference == 0 {
            return None;
        }
        let flips = match self.bit_of(difference) {
            Some(bit) => Flips::One(bit),
            None => match self.bytes_of(difference)[..] {
                [] => self.pair_of(difference)?,
                [byte] => byte,
                _ => return None,
            },
        };
        let mut mended = raw.to_vec();
        flips.apply(&mut mended);
        let mended = Inode::decode(&mended)?;
        (mended.has_extra(4) && mended.checksum_ok(seed, inode)).then_some(flips)
    }

    fn bit_of(&self, syndrome: u32) -> Option<u16> {
        let at = self.of_bits.binary_search_by_key(&syndrome, |(syndrome, _)| *syndrome).ok()?;
        self.of_bits.get(at).map(|(_, bit)| *bit)
    }

    /// The bytes that explain this syndrome, which is no single bit's, by several wrong bits.
    fn bytes_of(&self, sum: u32) -> Vec<Flips> {
        let mut found = Vec::new();
        // The sum before the bytes from `at` on.
        let mut before = sum;
        for at in (0..self.inode_bytes).rev() {
            before = backwards_over_zeroes(before, 1);
            let bits = match at {
                CHECKSUM_LOW..=0x7d | CHECKSUM_HIGH..=0x83 | GENERATION..=0x67 => {
                    self.mask_of(at, sum)
                }
                _ => u8::try_from(before).ok(),
            };
            found.extend(bits.map(|bits| Flips::Byte(at as u16, bits)));
        }
        found
    }

    /// The bits of the byte at `at` whose flips together have this syndrome: by trying all, for bytes that
    /// do not take the usual way into the checksum.
    fn mask_of(&self, at: usize, sum: u32) -> Option<u8> {
        let of_bits: [u32; 8] = std::array::from_fn(|bit| syndrome(self.inode_bytes, 8 * at + bit));
        let of_mask = |mask: u8| {
            let bits = of_bits.iter().enumerate().filter(|(bit, _)| mask >> bit & 1 == 1);
            bits.fold(0, |sum, (_, syndrome)| sum ^ syndrome)
        };
        (1..=u8::MAX).find(|&mask| of_mask(mask) == sum)
    }

    /// The pair of bits with this syndrome, if there is exactly one.
    fn pair_of(&self, sum: u32) -> Option<Flips> {
        let mut pairs = self.of_bits.iter().filter_map(|&(syndrome, bit)| {
            let other = self.bit_of(sum ^ syndrome)?;
            (bit < other).then_some(Flips::Two(bit, other))
        });
        let pair = pairs.next()?;
        pairs.next().is_none().then_some(pair)
    }
}

/// The inode number that the stored checksum belongs to, on the assumption that these bytes are an
/// inode. For other bytes the result is not a valid inode number with probability `1 - inodes /
/// 2^32`. `None` if the checksum has only 16 bits.
pub fn owner_by_checksum(raw: &[u8], seed: Seed, inode: InodeNr) -> Option<InodeNr> {
    let extra = Inode::decode(raw)?;
    let difference = difference(raw, seed, inode).filter(|_| extra.has_extra(4))?;
    // The number is the first word of the input, so undoing all steps after it turns the difference
    // of the checksums into the difference of the numbers.
    Some(InodeNr(inode.0 ^ backwards_over_zeroes(difference, BEFORE + raw.len())))
}

/// The change that one flipped bit makes to the XOR of stored and computed checksum.
fn syndrome(inode_bytes: usize, bit: usize) -> u32 {
    let (at, value) = (bit / 8, 1u32 << (bit % 8));
    match at {
        CHECKSUM_LOW | 0x7d => value << (8 * (at - CHECKSUM_LOW)),
        CHECKSUM_HIGH | 0x83 => value << (8 * (at - CHECKSUM_HIGH) + 16),
        GENERATION..=0x67 => {
            let before = inode_bytes + 0x68 - at;
            over_zeroes(value, inode_bytes - at) ^ over_zeroes(value, before)
        }
        _ => over_zeroes(value, inode_bytes - at),
    }
}

/// The XOR of stored and computed checksum, both with 32 bits whatever `i_extra_isize` says. `None`
/// for inodes without room for the upper half.
fn difference(raw: &[u8], seed: Seed, inode: InodeNr) -> Option<u32> {
    let generation = raw.get(GENERATION..)?.first_chunk()?;
    let [low_0, low_1] = *raw.get(CHECKSUM_LOW..)?.first_chunk()?;
    let [high_0, high_1] = *raw.get(CHECKSUM_HIGH..)?.first_chunk()?;
    let mut bytes = raw.to_vec();
    for at in [CHECKSUM_LOW, CHECKSUM_HIGH] {
        bytes.get_mut(at..at + 2)?.fill(0);
    }
    let start = seed.of_inode(inode, u32::from_le_bytes(*generation));
    Some(crc32c(start, &bytes) ^ u32::from_le_bytes([low_0, low_1, high_0, high_1]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ext::inode::write_checksum;

    const SEED: Seed = Seed(0x1234_5678);

    /// An inode with some bytes, 32 bytes of extra fields and the right checksum.
    fn sealed(mut raw: Vec<u8>, inode: InodeNr) -> Vec<u8> {
        raw[0x80..0x82].copy_from_slice(&[32, 0]);
        write_checksum(&mut raw, SEED, inode).unwrap();
        raw
    }

    fn any_inode(inode_bytes: usize) -> impl Strategy<Value = (Vec<u8>, InodeNr)> {
        (proptest::collection::vec(any::<u8>(), inode_bytes), 1u32..1 << 20)
            .prop_map(|(raw, number)| (sealed(raw, InodeNr(number)), InodeNr(number)))
    }

    #[test]
    fn every_single_bit_is_found() {
        let inode = InodeNr(77);
        let right = sealed((0..=255).collect(), inode);
        let syndromes = Syndromes::of_size(256).unwrap();
        for bit in 0..2048u16 {
            let mut raw = right.clone();
            let flips = Flips::One(bit);
            flips.apply(&mut raw);
            assert_eq!(syndromes.find(&raw, SEED, inode), Some(flips), "bit {bit}");
        }
        assert_eq!(syndromes.find(&right, SEED, inode), None);
    }

    #[test]
    fn every_wrong_byte_is_found() {
        let inode = InodeNr(77);
        let right = sealed((0..=255).collect(), inode);
        let syndromes = Syndromes::of_size(256).unwrap();
        for at in 0..256u16 {
            for bits in [0x01, 0x03, 0x80, 0x7f, 0xff, at as u8 | 0x11] {
                let mut raw = right.clone();
                raw[usize::from(at)] ^= bits;
                let found = syndromes.find(&raw, SEED, inode);
                let expected = match bits.count_ones() {
                    1 => Flips::One(8 * at + bits.trailing_zeros() as u16),
                    _ => Flips::Byte(at, bits),
                };
                // `i_extra_isize` says whether the checksum has 32 bits, and that it is right.
                let says_extra = matches!(at, 0x80 | 0x81);
                assert!(found == Some(expected) || says_extra, "{at:#x}: {bits:#x}: {found:?}");
            }
        }
    }

    #[test]
    fn syndromes_of_pairs_are_no_syndromes_of_bits() {
        let syndromes = Syndromes::of_size(256).unwrap();
        for pair in syndromes.of_bits.windows(2) {
            assert_ne!(pair[0].0, pair[1].0);
        }
        // The checksum covers the bits of the generation twice, so the code's distance alone does
        // not prove this for them.
        for bit in GENERATION * 8..(GENERATION + 4) * 8 {
            let one = syndrome(256, bit);
            for (other, _) in syndromes.of_bits.iter().filter(|(other, _)| *other != one) {
                assert_eq!(syndromes.bit_of(one ^ other), None);
            }
        }
    }

    #[test]
    fn short_checksums_prove_nothing() {
        assert!(Syndromes::of_size(128).is_none());
        assert!(Syndromes::of_size(0).is_none());
        assert!(Syndromes::of_size(1 << 20).is_none());
        assert_eq!(owner_by_checksum(&[1; 128], SEED, InodeNr(5)), None);
    }

    proptest! {
        #[test]
        fn two_bits_are_found(
            (right, inode) in any_inode(256),
            pair in proptest::collection::btree_set(0u16..2048, 2),
        ) {
            let mut bits = pair.into_iter();
            let (first, second) = (bits.next().unwrap(), bits.next().unwrap());
            // Two bits of one byte are found as that byte.
            let flips = match first / 8 == second / 8 {
                true => Flips::Byte(first / 8, 1 << (first % 8) | 1 << (second % 8)),
                false => Flips::Two(first, second),
            };
            let mut raw = right.clone();
            flips.apply(&mut raw);
            let found = Syndromes::of_size(256).unwrap().find(&raw, SEED, inode);
            prop_assert_eq!(found, Some(flips));
        }

        #[test]
        fn what_is_found_makes_the_checksum_right(
            raw in proptest::collection::vec(any::<u8>(), 512),
            (mut right, inode) in any_inode(512),
            bit in 0usize..4096,
        ) {
            let syndromes = Syndromes::of_size(512).unwrap();
            right[bit / 8] ^= 1 << (bit % 8);
            for mut raw in [raw, right] {
                if let Some(flips) = syndromes.find(&raw, SEED, inode) {
                    flips.apply(&mut raw);
                    prop_assert!(Inode::decode(&raw).unwrap().checksum_ok(SEED, inode));
                }
            }
        }

        #[test]
        fn a_misplaced_inode_tells_its_number((raw, inode) in any_inode(256), other in 1u32..9999) {
            prop_assert_eq!(owner_by_checksum(&raw, SEED, InodeNr(other)), Some(inode));
        }

        #[test]
        fn no_bytes_panic(raw in proptest::collection::vec(any::<u8>(), 0..300)) {
            for bytes in [132, 256, raw.len()] {
                let found = Syndromes::of_size(bytes).and_then(|all| all.find(&raw, SEED, InodeNr(3)));
                let _ = (found, owner_by_checksum(&raw, SEED, InodeNr(3)));
            }
        }
    }
}
