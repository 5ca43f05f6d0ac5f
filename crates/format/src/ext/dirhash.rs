//! Hashes of names for directory indexes: legacy, half-MD4, TEA (each over signed or unsigned
//! characters) and SipHash.
//!
//! With casefolding the folded name is hashed ([`crate::ext::casefold`]), or the plain one if it
//! is not valid in the encoding.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::ext::htree::HashVersion;

/// A hash that no entry has (`EXT4_HTREE_EOF_32BIT << 1`); names that hash to it get [`LAST_HASH`].
const EOF_HASH: u32 = 0xffff_fffe;
/// The largest hash of a name.
pub(crate) const LAST_HASH: u32 = 0xffff_fffc;

/// The position of a name in a directory index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirHash {
    /// The hash; its low bit is 0.
    pub hash: u32,
    /// Orders names of the same hash; 0 for the legacy hash.
    pub minor_hash: u32,
}

impl DirHash {
    /// Clears the low bit and keeps the end-of-directory value free, as `ext4fs_dirhash` does.
    /// (e2fsck does only the former; one name in 2^31 is 4 lower here.)
    #[inline]
    pub fn new(hash: u32, minor_hash: u32) -> Self {
        let hash = if hash & !1 == EOF_HASH { LAST_HASH } else { hash & !1 };
        Self { hash, minor_hash }
    }
}

/// Hashes a name of any length. `seed` is `s_hash_seed`; if it is all zero, the initial values of
/// MD4 replace it. `None` for SipHash, which needs a key: see [`siphash`].
#[inline]
pub fn dirhash(version: HashVersion, name: &[u8], seed: &[u32; 4]) -> Option<DirHash> {
    match version {
        HashVersion::Legacy => Some(DirHash::new(legacy(name, sign_extended), 0)),
        HashVersion::LegacyUnsigned => Some(DirHash::new(legacy(name, zero_extended), 0)),
        HashVersion::HalfMd4 => Some(half_md4(name, seed, sign_extended)),
        HashVersion::HalfMd4Unsigned => Some(half_md4(name, seed, zero_extended)),
        HashVersion::Tea => Some(tea(name, seed, sign_extended)),
        HashVersion::TeaUnsigned => Some(tea(name, seed, zero_extended)),
        HashVersion::SipHash => None,
    }
}

/// SipHash-2-4 of a casefolded name under the directory's hash key; its high half is the hash.
pub fn siphash(name: &[u8], key: &[u8; 16]) -> DirHash {
    let mut hasher = SipHasher24::new_with_key(key);
    hasher.write(name);
    let both = hasher.finish();
    DirHash::new((both >> 32) as u32, (both & 0xffff_ffff) as u32)
}

#[inline]
fn sign_extended(byte: u8) -> u32 {
    i32::from(byte.cast_signed()).cast_unsigned()
}

#[inline]
fn zero_extended(byte: u8) -> u32 {
    u32::from(byte)
}

fn legacy(name: &[u8], widen: impl Fn(u8) -> u32) -> u32 {
    let (mut last, mut before) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
    for &byte in name {
        let mut hash = before.wrapping_add(last ^ widen(byte).wrapping_mul(7_152_373));
        if hash & 0x8000_0000 != 0 {
            hash = hash.wrapping_sub(0x7fff_ffff);
        }
        (before, last) = (last, hash);
    }
    last << 1
}

fn start(seed: &[u32; 4]) -> [u32; 4] {
    if *seed == [0; 4] { [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476] } else { *seed }
}

/// Packs up to `4 * WORDS` bytes of a name, high byte first, into words. The rest of the last word
/// and the words behind it are padded with `rest_len`, the number of bytes of the name from here
/// on.
#[inline]
fn pack<const WORDS: usize>(
    chunk: &[u8],
    rest_len: usize,
    widen: impl Fn(u8) -> u32,
) -> [u32; WORDS] {
    // Lengths above 255 wrap as in the kernel; names are shorter, folded ones may not be.
    let pad = (rest_len & 0xffff_ffff) as u32;
    let pad = pad | pad << 8;
    let pad = pad | pad << 16;
    let mut words = [pad; WORDS];
    for (word, bytes) in words.iter_mut().zip(chunk.chunks(4)) {
        *word = bytes.iter().fold(pad, |word, &byte| widen(byte).wrapping_add(word << 8));
    }
    words
}

fn half_md4(name: &[u8], seed: &[u32; 4], widen: impl Fn(u8) -> u32 + Copy) -> DirHash {
    let mut state = start(seed);
    for (index, chunk) in name.chunks(32).enumerate() {
        half_md4_round(&mut state, &pack::<8>(chunk, name.len() - index * 32, widen));
    }
    DirHash::new(state[1], state[2])
}

/// MD4 cut to three rounds of eight steps each (`half_md4_transform`).
fn half_md4_round(state: &mut [u32; 4], words: &[u32; 8]) {
    const ORDERS: [[usize; 8]; 3] =
        [[0, 1, 2, 3, 4, 5, 6, 7], [1, 3, 5, 7, 0, 2, 4, 6], [3, 7, 2, 6, 1, 5, 0, 4]];
    const SHIFTS: [[u32; 4]; 3] = [[3, 7, 11, 19], [3, 5, 9, 13], [3, 9, 11, 15]];
    const CONSTANTS: [u32; 3] = [0, 0x5a82_7999, 0x6ed9_eba1];
    let [mut a, mut b, mut c, mut d] = *state;
    for round in 0..3 {
        for (step, &word) in ORDERS[round].iter().enumerate() {
            let mixed = match round {
                0 => d ^ (b & (c ^ d)),
                1 => (b & c).wrapping_add((b ^ c) & d),
                _ => b ^ c ^ d,
            };
            let sum =
                a.wrapping_add(mixed).wrapping_add(words[word]).wrapping_add(CONSTANTS[round]);
            // Rotates the values through the registers instead of the roles of the registers.
            (a, d, c, b) = (d, c, b, sum.rotate_left(SHIFTS[round][step % 4]));
        }
    }
    for (into, value) in state.iter_mut().zip([a, b, c, d]) {
        *into = into.wrapping_add(value);
    }
}

fn tea(name: &[u8], seed: &[u32; 4], widen: impl Fn(u8) -> u32 + Copy) -> DirHash {
    let mut state = start(seed);
    for (index, chunk) in name.chunks(16).enumerate() {
        tea_round(&mut state, pack::<4>(chunk, name.len() - index * 16, widen));
    }
    DirHash::new(state[0], state[1])
}

fn tea_round(state: &mut [u32; 4], [a, b, c, d]: [u32; 4]) {
    const DELTA: u32 = 0x9e37_79b9;
    let (mut left, mut right) = (state[0], state[1]);
    let mut sum = 0u32;
    for _ in 0..16 {
        sum = sum.wrapping_add(DELTA);
        let mix = |word: u32, first: u32, second: u32| {
            (word << 4).wrapping_add(first)
                ^ word.wrapping_add(sum)
                ^ (word >> 5).wrapping_add(second)
        };
        left = left.wrapping_add(mix(right, a, b));
        right = right.wrapping_add(mix(left, c, d));
    }
    state[0] = state[0].wrapping_add(left);
    state[1] = state[1].wrapping_add(right);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn siphash_reference_vector() {
        // The vector of the SipHash paper: key 00..0f, message 00..0e.
        let key: [u8; 16] = std::array::from_fn(|at| at as u8);
        let message: Vec<u8> = (0..15).collect();
        assert_eq!(siphash(&message, &key), DirHash::new(0xa129_ca61, 0x49be_45e5));
    }

    #[test]
    fn the_end_value_stays_free() {
        assert_eq!(DirHash::new(0xffff_ffff, 1).hash, LAST_HASH);
        assert_eq!(DirHash::new(0xffff_fffd, 1).hash, LAST_HASH);
        assert_eq!(DirHash::new(5, 1).hash, 4);
    }

    #[test]
    fn siphash_needs_a_key() {
        assert_eq!(dirhash(HashVersion::SipHash, b"name", &[0; 4]), None);
    }
}
