//! An inode of 256 bytes, the usual size, read in place: for the path that most inodes of a check take.

use crate::InodeNr;
use crate::crc::{Seed, WordThenBytes, ZeroedBytes, crc32c};
use crate::layout::le;

/// The bytes of an inode of 256 bytes. Fields are read where they lie, at the offsets of
/// [`super::inode::InodeBase`] and [`super::inode::InodeExtra`].
#[derive(Clone, Copy, Debug)]
pub struct Inode256<'a> {
    raw: &'a [u8; 256],
}

/// The checksum of an inode's number, generation and bytes.
static CHECKSUM: WordThenBytes = WordThenBytes::new(256);
/// What the bytes of the checksum, which count as zero, have to be taken out of it for.
static CHECKSUM_BYTES: [ZeroedBytes; 2] =
    [ZeroedBytes::new(256 - 0x7c), ZeroedBytes::new(256 - 0x82)];

/// The most inodes whose checksums [`Inode256::checksums_ok_together`] looks at: 4 KiB of a table.
pub const MOST_TOGETHER: usize = 16;

/// The word and the bytes of one of them.
type SummedInode = [u8; 8 + 256];

/// Room for [`Inode256::checksums_ok_together`], to be used again.
#[derive(Clone, Debug)]
pub struct SumRoom(Box<[SummedInode; MOST_TOGETHER]>);

impl Default for SumRoom {
    fn default() -> Self {
        Self(Box::new([[0; 8 + 256]; MOST_TOGETHER]))
    }
}

impl<'a> Inode256<'a> {
    /// Looks at `raw` as an inode.
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

    /// The extra words of `i_ctime`, `i_mtime`, `i_atime` and `i_crtime`. With less than 24 bytes of
    /// extra fields some of them are something else.
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

    /// `i_projid`. With less than 32 bytes of extra fields it is something else.
    #[inline]
    pub fn projid(&self) -> u32 {
        le::<u32, 0x9c, 256>(self.raw)
    }

    /// What lies behind the extra fields, where attributes may be; empty if they pass the end.
    #[inline]
    pub fn xattr_area(&self) -> &'a [u8] {
        self.raw.get(128 + usize::from(self.extra_isize())..).unwrap_or(&[])
    }

    /// Whether attributes lie behind the extra fields.
    #[inline]
    pub fn has_xattrs(&self) -> bool {
        self.xattr_area().first_chunk() == Some(&super::xattr::MAGIC.to_le_bytes())
    }

    /// Which of at most 64 inodes in a row, the first of them `first`, have a checksum that fits, the
    /// first one's the lowest bit. Those without links count as not fitting. A checksum is one long chain
    /// of steps; with nothing between them, the processor works at several inodes at a time.
    pub fn checksums_ok(raws: &[u8], seed: Seed, first: InodeNr) -> u64 {
        let mut fits = 0;
        for (at, raw) in (0..64).zip(raws.as_chunks().0) {
            let inode = Inode256::new(raw);
            let number = InodeNr(first.0.wrapping_add(at));
            fits |= u64::from(inode.links_count() != 0 && inode.checksum_ok(seed, number)) << at;
        }
        fits
    }

    /// As [`Self::checksums_ok`] of at most [`MOST_TOGETHER`] inodes, by one checksum over all of them. If exactly one
    /// is wrong, that is always found; if several are, it is missed with probability 2^-32
    /// (`docs/fingerprint.md`).
    pub fn checksums_ok_together(
        raws: &[u8],
        seed: Seed,
        first: InodeNr,
        room: &mut SumRoom,
    ) -> u64 {
        let (mut used, mut filled) = (0, 0);
        // By what the checksum so far is to be changed, so that it goes on from the seed if it was right.
        let mut to_seed = 0;
        for (at, raw) in (0..).zip(raws.as_chunks().0) {
            let inode = Inode256::new(raw);
            if inode.links_count() == 0 {
                continue;
            }
            let Some(record) = room.0.get_mut(filled) else { break };
            let word = Seed::word_of(InodeNr(first.0.wrapping_add(at)), inode.generation());
            inode.write_summed(word ^ u64::from(to_seed), record);
            to_seed = inode.stored_checksum() ^ seed.0;
            used |= 1 << at;
            filled += 1;
        }
        let Some(records) = room.0.get(..filled).filter(|records| !records.is_empty()) else {
            return 0;
        };
        let all_fit = crc32c(seed.0, records.as_flattened()) ^ to_seed == seed.0;
        if all_fit { used } else { Self::checksums_ok(raws, seed, first) }
    }

    /// What its checksum is over: a word and its bytes, those of the checksum zero.
    #[inline]
    fn write_summed(&self, word: u64, record: &mut SummedInode) {
        if let Some((of_word, record)) = record.split_first_chunk_mut() {
            *of_word = word.to_le_bytes();
            // In pieces: to copy all at once is a call, which takes as long as the copy.
            for (to, from) in record.as_chunks_mut::<64>().0.iter_mut().zip(self.raw.as_chunks().0)
            {
                *to = *from;
            }
            record[0x7c..0x7e].fill(0);
            record[0x82..0x84].fill(0);
        }
    }

    /// Both halves of the checksum that it holds: there must be 4 bytes of extra fields.
    #[inline]
    fn stored_checksum(&self) -> u32 {
        u32::from(le::<u16, 0x7c, 256>(self.raw)) | u32::from(le::<u16, 0x82, 256>(self.raw)) << 16
    }

    /// Whether the checksum fits, both halves of it: there must be 4 bytes of extra fields.
    #[inline]
    pub fn checksum_ok(&self, seed: Seed, inode: InodeNr) -> bool {
        let (low, high) = (le::<u16, 0x7c, 256>(self.raw), le::<u16, 0x82, 256>(self.raw));
        let word = Seed::word_of(inode, self.generation());
        let with_stored = CHECKSUM.crc(seed.0, word, self.raw);
        let [of_low, of_high] = &CHECKSUM_BYTES;
        with_stored ^ of_low.effect(low) ^ of_high.effect(high) == self.stored_checksum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ext::inode::{Inode, write_checksum};

    /// What an error in the first of so many records leaves of the checksum of all: `x^(8 * 264 * after)`.
    fn carried(error: u32, after: usize) -> u32 {
        crc32c(error, &vec![0; size_of::<SummedInode>() * after])
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
            mut bytes in proptest::collection::vec(any::<u8>(), 256 * MOST_TOGETHER),
            count in 0..=MOST_TOGETHER,
            used: u16,
            wrong in prop_oneof![Just(0u16), any::<u16>(), (0..16u32).prop_map(|at| 1 << at)],
            seed: u32,
            first in 0u32..=u32::MAX - 20,
        ) {
            let (seed, bytes) = (Seed(seed), &mut bytes[..256 * count]);
            for (raw, at) in bytes.chunks_mut(256).zip(0..) {
                raw[0x1a..0x1c].copy_from_slice(&(used >> at & 1).to_le_bytes());
                raw[0x80..0x82].copy_from_slice(&28u16.to_le_bytes());
                write_checksum(raw, seed, InodeNr(first + at)).unwrap();
                // A byte of the inode, or of its checksum.
                raw[if at % 3 == 0 { 0x7c } else { 0x40 }] ^= (wrong >> at & 1) as u8;
            }
            let mut room = SumRoom::default();
            for _ in 0..2 {
                let together = Inode256::checksums_ok_together(bytes, seed, InodeNr(first), &mut room);
                prop_assert_eq!(together, Inode256::checksums_ok(bytes, seed, InodeNr(first)));
                let all = (1 << count) - 1;
                prop_assert_eq!(together, u64::from(used & !wrong) & all);
            }
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
            // One without links.
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
