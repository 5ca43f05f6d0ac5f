//! An inode of 256 bytes, the usual size, read in place: for the checker's path for plain inodes,
//! which most inodes take.

use crate::InodeNr;
use crate::crc::{Seed, WordThenBytes, ZeroedBytes, crc32c};
use crate::layout::le;

/// The bytes of an inode of 256 bytes. Fields are read in place, at the offsets of
/// [`super::inode::InodeBase`] and [`super::inode::InodeExtra`].
#[derive(Clone, Copy, Debug)]
pub struct Inode256<'a> {
    raw: &'a [u8; 256],
}

/// Computes the checksum over an inode's number, generation and bytes.
static CHECKSUM: WordThenBytes = WordThenBytes::new(256);
/// Take the two halves of the stored checksum out of it, because they count as zero.
static CHECKSUM_BYTES: [ZeroedBytes; 2] =
    [ZeroedBytes::new(256 - 0x7c), ZeroedBytes::new(256 - 0x82)];

/// The most inodes that one checksum proves together: 4 KiB of a table.
pub(crate) const MOST_TOGETHER: usize = 16;

impl<'a> Inode256<'a> {
    /// Reads `raw` as an inode.
    #[inline]
    pub const fn new(raw: &'a [u8; 256]) -> Self {
        Self { raw }
    }

    /// `i_mode`.
    #[inline]
    pub fn mode(&self) -> u16 {
        le::<u16, 0x00, 256>(self.raw)
    }

    /// `i_size`, low half.
    #[inline]
    pub fn size_lo(&self) -> u32 {
        le::<u32, 0x04, 256>(self.raw)
    }

    /// `i_links_count`.
    #[inline]
    pub fn links_count(&self) -> u16 {
        le::<u16, 0x1a, 256>(self.raw)
    }

    /// `i_blocks`, low half.
    #[inline]
    pub fn blocks_lo(&self) -> u32 {
        le::<u32, 0x1c, 256>(self.raw)
    }

    /// `i_flags`.
    #[inline]
    pub fn flags(&self) -> u32 {
        le::<u32, 0x20, 256>(self.raw)
    }

    /// `i_block`.
    #[inline]
    pub fn block(&self) -> &'a [u8; 60] {
        self.raw[0x28..].first_chunk().unwrap_or(&[0; 60])
    }

    /// `i_generation`.
    #[inline]
    pub fn generation(&self) -> u32 {
        le::<u32, 0x64, 256>(self.raw)
    }

    /// All bits that are set in `i_dtime`, `i_file_acl`, the upper half of `i_size`, `i_faddr`, and
    /// the upper halves of `i_blocks` and `i_file_acl`: zero in most inodes in use.
    #[inline]
    pub fn rarely_set(&self) -> u32 {
        le::<u32, 0x14, 256>(self.raw)
            | le::<u32, 0x68, 256>(self.raw)
            | le::<u32, 0x6c, 256>(self.raw)
            | le::<u32, 0x70, 256>(self.raw)
            | le::<u32, 0x74, 256>(self.raw)
    }

    /// `i_extra_isize`.
    #[inline]
    pub fn extra_isize(&self) -> u16 {
        le::<u16, 0x80, 256>(self.raw)
    }

    /// The extra words of `i_ctime`, `i_mtime`, `i_atime` and `i_crtime`. With less than 24 bytes
    /// of extra fields, some of them hold attributes instead.
    #[inline]
    pub fn extra_times(&self) -> [u32; 4] {
        [
            le::<u32, 0x84, 256>(self.raw),
            le::<u32, 0x88, 256>(self.raw),
            le::<u32, 0x8c, 256>(self.raw),
            le::<u32, 0x94, 256>(self.raw),
        ]
    }

    /// Owner and group.
    #[inline]
    pub fn owners(&self) -> [u32; 2] {
        let wide = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
        [
            wide(le::<u16, 0x02, 256>(self.raw), le::<u16, 0x78, 256>(self.raw)),
            wide(le::<u16, 0x18, 256>(self.raw), le::<u16, 0x7a, 256>(self.raw)),
        ]
    }

    /// `i_projid`. With less than 32 bytes of extra fields, these bytes hold attributes instead.
    #[inline]
    pub fn projid(&self) -> u32 {
        le::<u32, 0x9c, 256>(self.raw)
    }

    /// The bytes behind the extra fields, where attributes may be; empty if `i_extra_isize` passes
    /// the end.
    #[inline]
    pub fn xattr_area(&self) -> &'a [u8] {
        self.raw.get(128 + usize::from(self.extra_isize())..).unwrap_or(&[])
    }

    /// Whether attributes lie behind the extra fields.
    #[inline]
    pub fn has_xattrs(&self) -> bool {
        self.xattr_area().first_chunk() == Some(&super::xattr::MAGIC.to_le_bytes())
    }

    /// A bit mask of those of at most 64 consecutive inodes, starting with `first`, whose checksum
    /// fits; the lowest bit is `first`. Inodes without links count as not fitting. A CRC is one
    /// long dependency chain, so a tight loop lets the processor work on several inodes at a time.
    pub fn checksums_ok(raws: &[u8], seed: Seed, first: InodeNr) -> u64 {
        let mut fits = 0;
        for (at, raw) in (0..64).zip(raws.as_chunks().0) {
            let inode = Inode256::new(raw);
            let number = InodeNr(first.0.wrapping_add(at));
            fits |= u64::from(inode.links_count() != 0 && inode.checksum_ok(seed, number)) << at;
        }
        fits
    }

    /// Like [`Self::checksums_ok`], but computes one checksum over each run of adjacent inodes with
    /// links, at most [`MOST_TOGETHER`] of them. A single wrong inode in a run is always found;
    /// several are missed with probability 2^-32 (`docs/fingerprint.md`). The function changes the
    /// bytes in place and restores them before it returns.
    pub fn checksums_ok_together(raws: &mut [u8], seed: Seed, first: InodeNr) -> u64 {
        let has_links = |raw: &[u8; 256]| Inode256::new(raw).links_count() != 0;
        let (raws, _) = raws.as_chunks_mut();
        let count = raws.len().min(64);
        let (mut fits, mut at) = (0, 0);
        for batch in raws[..count].chunks_mut(MOST_TOGETHER) {
            for run in batch.chunk_by_mut(|one, next| has_links(one) == has_links(next)) {
                if run.first().is_some_and(has_links) {
                    let first = InodeNr(first.0.wrapping_add(at));
                    let of_run = if all_checksums_ok(run, seed, first) {
                        (1 << run.len()) - 1
                    } else {
                        Self::checksums_ok(run.as_flattened(), seed, first)
                    };
                    fits |= of_run << at;
                }
                at += run.len() as u32;
            }
        }
        fits
    }

    /// The stored checksum, both halves; the inode must have at least 4 bytes of extra fields.
    #[inline]
    fn stored_checksum(&self) -> u32 {
        u32::from(le::<u16, 0x7c, 256>(self.raw)) | u32::from(le::<u16, 0x82, 256>(self.raw)) << 16
    }

    /// Whether the checksum fits, both halves of it; the inode must have at least 4 bytes of extra
    /// fields.
    #[inline]
    pub fn checksum_ok(&self, seed: Seed, inode: InodeNr) -> bool {
        let (low, high) = (le::<u16, 0x7c, 256>(self.raw), le::<u16, 0x82, 256>(self.raw));
        let word = Seed::word_of(inode, self.generation());
        let with_stored = CHECKSUM.crc(seed.0, word, self.raw);
        let [of_low, of_high] = &CHECKSUM_BYTES;
        with_stored ^ of_low.effect(low) ^ of_high.effect(high) == self.stored_checksum()
    }
}

/// Whether the checksums of adjacent inodes, at most [`MOST_TOGETHER`], all fit, by one checksum
/// over all of them.
fn all_checksums_ok(run: &mut [[u8; 256]], seed: Seed, first: InodeNr) -> bool {
    let Some(last) = run.len().checked_sub(1) else { return true };
    let mut stored = [0; MOST_TOGETHER];
    toggle_joints(run, seed, first, &mut stored, |raw, stored| {
        *stored = Inode256::new(raw).stored_checksum();
        write_stored_checksum(raw, 0);
    });
    let start = seed.of_inode(first, Inode256::new(&run[0]).generation());
    let end = crc32c(start, run.as_flattened());
    toggle_joints(run, seed, first, &mut stored, |raw, stored| write_stored_checksum(raw, *stored));
    end == stored[last]
}

/// Turns one checksum over a run into the checksums of its inodes, or, the second time, restores
/// the bytes. A CRC is linear: a value XORed into a byte is XORed into the CRC state at that byte.
/// So the function XORs the word that starts an inode's checksum into the last bytes of the inode
/// before, and the expected checksum of that inode, which cancels its CRC state, into the first
/// bytes of this one. `exchange` is called with each inode and returns its expected checksum.
#[inline]
fn toggle_joints(
    run: &mut [[u8; 256]],
    seed: Seed,
    first: InodeNr,
    stored: &mut [u32; MOST_TOGETHER],
    exchange: impl Fn(&mut [u8; 256], &mut u32),
) {
    let mut rows = run.iter_mut().zip(stored).zip(0..);
    let Some(((mut before, mut sum_before), _)) = rows.next() else { return };
    exchange(before, sum_before);
    for ((raw, stored), at) in rows {
        exchange(raw, stored);
        let generation = Inode256::new(raw).generation();
        let word = Seed::word_of(InodeNr(first.0.wrapping_add(at)), generation);
        if let (Some(end), Some(begin)) = (before.last_chunk_mut(), raw.first_chunk_mut()) {
            *end = (u64::from_le_bytes(*end) ^ word ^ u64::from(seed.0)).to_le_bytes();
            *begin = (u32::from_le_bytes(*begin) ^ *sum_before).to_le_bytes();
        }
        (before, sum_before) = (raw, stored);
    }
}

/// Stores both halves of an inode's checksum.
#[inline]
fn write_stored_checksum(raw: &mut [u8; 256], value: u32) {
    let [low @ .., high_0, high_1] = value.to_le_bytes();
    raw[0x7c..0x7e].copy_from_slice(&low);
    raw[0x82..0x84].copy_from_slice(&[high_0, high_1]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ext::inode::{Inode, write_checksum};

    /// The contribution of an error in the first inode of a run to the checksum of the run, if
    /// `after` inodes follow: `x^(8 * 256 * after)`.
    fn carried(error: u32, after: usize) -> u32 {
        crc32c(error, &vec![0; 256 * after])
    }

    #[test]
    fn the_same_error_in_some_inodes_is_always_found() {
        let error = 0x1234_5678;
        let carried: Vec<u32> = (0..MOST_TOGETHER).map(|after| carried(error, after)).collect();
        for set in 1u32..1 << MOST_TOGETHER {
            let left = carried.iter().enumerate().filter(|(at, _)| set >> at & 1 == 1);
            assert_ne!(left.fold(0, |sum, (_, carried)| sum ^ carried), 0, "{set:#x}");
        }
    }

    proptest! {
        #[test]
        fn together_they_are_judged_as_in_a_row(
            mut bytes in proptest::collection::vec(any::<u8>(), 256 * 64),
            count in 0..=64usize,
            used in prop_oneof![Just(u16::MAX), any::<u16>()],
            wrong in prop_oneof![Just(0u16), any::<u16>(), (0..16u32).prop_map(|at| 1 << at)],
            seed: u32,
            first in 0u32..=u32::MAX - 64,
        ) {
            let (seed, bytes) = (Seed(seed), &mut bytes[..256 * count]);
            for (raw, at) in bytes.chunks_mut(256).zip(0..) {
                raw[0x1a..0x1c].copy_from_slice(&(used >> (at % 16) & 1).to_le_bytes());
                raw[0x80..0x82].copy_from_slice(&28u16.to_le_bytes());
                write_checksum(raw, seed, InodeNr(first + at)).unwrap();
                // A byte of the inode, or of its checksum.
                raw[if at % 3 == 0 { 0x7c } else { 0x40 }] ^= (wrong >> (at % 16) & 1) as u8;
            }
            let before = bytes.to_vec();
            let together = Inode256::checksums_ok_together(bytes, seed, InodeNr(first));
            prop_assert_eq!(&bytes, &before, "changed");
            prop_assert_eq!(together, Inode256::checksums_ok(bytes, seed, InodeNr(first)));
            let right: u64 = (0..count).filter(|at| (used & !wrong) >> (at % 16) & 1 == 1).map(|at| 1 << at).sum();
            prop_assert_eq!(together, right);
        }

        #[test]
        fn in_a_row_each_is_judged_as_alone(
            mut bytes in proptest::collection::vec(any::<u8>(), 256 * 20),
            right in proptest::collection::vec(any::<bool>(), 20),
            seed: u32,
            first in 0u32..=u32::MAX - 20,
        ) {
            let seed = Seed(seed);
            for ((raw, right), at) in bytes.chunks_mut(256).zip(&right).zip(0..) {
                raw[0x80..0x82].copy_from_slice(&28u16.to_le_bytes());
                if *right {
                    write_checksum(raw, seed, InodeNr(first + at)).unwrap();
                }
            }
            // An inode without links.
            bytes[256 * 3 + 0x1a..256 * 3 + 0x1c].fill(0);
            let fits = Inode256::checksums_ok(&bytes, seed, InodeNr(first));
            for (raw, at) in bytes.chunks(256).zip(0..) {
                let alone = Inode256::new(raw.first_chunk().unwrap());
                let expected = alone.links_count() != 0 && alone.checksum_ok(seed, InodeNr(first + at));
                prop_assert_eq!(fits >> at & 1 == 1, expected, "{}", at);
                let made_right = right[at as usize] && at != 3 && alone.links_count() != 0;
                prop_assert!(!made_right || expected);
            }
            prop_assert_eq!(fits >> 20, 0);
        }

        #[test]
        fn agrees_with_the_general_inode(
            mut bytes in proptest::collection::vec(any::<u8>(), 256),
            extra in 0u16..=128,
            seed: u32,
            number: u32,
            right: bool,
        ) {
            bytes[0x80..0x82].copy_from_slice(&extra.max(4).to_le_bytes());
            let (seed, number) = (Seed(seed), InodeNr(number));
            if right {
                write_checksum(&mut bytes, seed, number).unwrap();
            }
            let one = Inode256::new(bytes.first_chunk().unwrap());
            let other = Inode::decode(&bytes).unwrap();
            let base = &other.base;
            prop_assert_eq!((one.mode(), one.size_lo(), one.links_count()), (base.mode, base.size_lo, base.links_count));
            prop_assert_eq!((one.blocks_lo(), one.flags(), one.generation()), (base.blocks_lo, base.flags, base.generation));
            prop_assert_eq!(one.block(), &base.block);
            let extra = &other.extra;
            prop_assert_eq!(one.extra_isize(), extra.extra_isize);
            prop_assert_eq!(one.extra_times(), [extra.ctime_extra, extra.mtime_extra, extra.atime_extra, extra.crtime_extra]);
            prop_assert_eq!(one.xattr_area(), other.xattr_area());
            prop_assert_eq!(one.owners(), [other.uid(), other.gid()]);
            prop_assert_eq!(one.projid(), extra.projid);
            let rarely = [base.dtime, base.file_acl_lo, base.size_high, base.faddr, base.blocks_high.into(), base.file_acl_high.into()];
            prop_assert_eq!(one.rarely_set() == 0, rarely == [0; 6]);
            prop_assert_eq!(one.checksum_ok(seed, number), other.checksum_ok(seed, number));
            prop_assert!(!right || one.checksum_ok(seed, number));
        }
    }
}
