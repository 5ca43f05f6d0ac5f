//! Reads of a device: at how many places, of how many bytes, and how long that takes.

use std::time::Duration;

use super::{Expected, weights};
use crate::evidence::dirs::DirRun;
use crate::scan::directory_blocks::{READ_BYTES, gap_bytes_if};
use crate::scan::map_reads::{self, MapReads};
use crate::volume::Volume;

/// Reads from a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Reads {
    /// Places that do not follow each other.
    pub(super) places: f64,
    /// Bytes.
    pub(super) bytes: f64,
}

impl Reads {
    /// The work of reading this, and of so many nanoseconds of processors besides.
    pub(super) fn with(self, nanoseconds: f64, threads: usize) -> Expected {
        use weights::{BYTE, BYTE_WAIT, PLACE_WAIT};
        // As u64: far below 2^64 for any file system.
        let time = |nanoseconds: f64| Duration::from_nanos(nanoseconds as u64);
        Expected {
            busy: time(nanoseconds + self.bytes * BYTE),
            places: time(self.places * PLACE_WAIT),
            bytes: time(self.bytes * BYTE_WAIT),
            threads,
        }
    }

    /// The same, where the device is told of many before the first is waited for.
    pub(super) fn announced(self) -> Self {
        Self { places: self.places * weights::ANNOUNCED, ..self }
    }

    pub(super) fn add(&mut self, other: Self) {
        self.places += other.places;
        self.bytes += other.bytes;
    }
}

/// The work of reading and following mapping blocks that were read since the last call; `None` if there were
/// none.
pub fn take_maps(reads: &mut MapReads, volume: &Volume<'_>) -> Option<Expected> {
    let MapReads { blocks, places, .. } = reads.take();
    let bytes = blocks as f64 * f64::from(volume.geometry.block_size);
    let reads = Reads { places: places as f64, bytes }.announced();
    (blocks > 0).then(|| reads.with(blocks as f64 * weights::MAP_BLOCK, 1))
}

/// Estimated reads of `wanted` directory blocks scattered at random among `used` blocks, given the
/// average number of blocks near enough to each other to be read together.
pub(super) fn scattered(wanted: f64, used: f64, block_bytes: f64, at_hand: bool) -> Reads {
    let (most, gap) = reach(block_bytes, at_hand);
    let density = (wanted / used.max(wanted).max(1.0)).min(1.0);
    // The next wanted block is so many blocks further with this chance; and how far it is on average
    // where both are read together.
    let chance = |blocks: u32| density * (1.0 - density).powf(f64::from(blocks) - 1.0);
    let near = 1..=gap as u32 + 1;
    let joined = near.clone().map(chance).sum::<f64>().min(1.0);
    let step = near.map(|blocks| f64::from(blocks) * chance(blocks)).sum::<f64>()
        / joined.max(f64::MIN_POSITIVE);
    // Wanted blocks of a read: until the next one is too far away, or there is no more room.
    let room = (most / step.max(1.0)).max(1.0);
    let each = if joined < 1.0 { (1.0 - joined.powf(room)) / (1.0 - joined) } else { room };
    let reads = wanted / each;
    let bytes = (wanted + (wanted - reads) * (step - 1.0).max(0.0)) * block_bytes;
    let places = wanted * (1.0 - density).powf(NEAR_BYTES / block_bytes.max(1.0));
    Reads { places: places.max(wanted.min(1.0)), bytes }
}

/// See [`map_reads::NEAR_BYTES`].
const NEAR_BYTES: f64 = map_reads::NEAR_BYTES as f64;

/// Blocks of one read of directories at most, and blocks between two that are read together.
fn reach(block_bytes: f64, at_hand: bool) -> (f64, f64) {
    let block_bytes = block_bytes.max(1.0);
    let gap_bytes = f64::from(gap_bytes_if(at_hand));
    ((f64::from(READ_BYTES) / block_bytes).max(1.0), (gap_bytes / block_bytes).floor())
}

/// Reads of directories whose blocks are known, in disk order; from the page cache if `at_hand`.
pub fn directory_reads<'r>(
    runs: impl Iterator<Item = &'r DirRun>,
    block_bytes: u32,
    at_hand: bool,
) -> (f64, f64) {
    let block_bytes = f64::from(block_bytes);
    let (most, gap) = reach(block_bytes, at_hand);
    let near = NEAR_BYTES / block_bytes.max(1.0);
    let mut all = Reads::default();
    // The read that is being made: where it begins and ends.
    let (mut begin, mut end) = (0.0, f64::NEG_INFINITY);
    for run in runs {
        let (start, after) = (run.block.0 as f64, run.block.0 as f64 + f64::from(run.len_blocks));
        if start - end > gap || after - begin > most {
            all.places += if start - end > near { 1.0 } else { 0.0 };
            begin = start;
        } else {
            all.bytes += (start - end).max(0.0) * block_bytes;
        }
        all.bytes += (after - start) * block_bytes;
        end = after;
    }
    (all.places, all.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::work::tests::run;

    #[test]
    fn reads_of_directories_are_guessed_as_they_will_be() {
        // Blocks that lie anywhere: one in so many is a directory's, by a rule that looks random.
        for one_in in [2u64, 3, 5, 20, 100] {
            let is_wanted = |block: &u64| {
                let mixed = block.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                mixed >> 40 < (1 << 24) / one_in
            };
            let wanted: Vec<DirRun> = (0..200_000).filter(is_wanted).map(run).collect();
            let guess = scattered(wanted.len() as f64, 200_000.0, 4096.0, false);
            let (places, bytes) = directory_reads(wanted.iter(), 4096, false);
            let off = (guess.places - places).abs();
            // Where nearly all lie near each other, the few others are a matter of luck.
            let few = wanted.len() as f64 / 1000.0;
            assert!(off < 0.1 * places + few, "{one_in}: {guess:?} {places}");
            assert!((guess.bytes / bytes - 1.0).abs() < 0.1, "{one_in}: {guess:?} {bytes}");
        }
        // All of them, one after the other.
        let all: Vec<DirRun> = (0..8000).map(run).collect();
        assert_eq!(directory_reads(all.iter(), 4096, false), (1.0, 8000.0 * 4096.0));
        let guess = scattered(8000.0, 8000.0, 4096.0, false);
        assert_eq!((guess.places, guess.bytes), (1.0, 8000.0 * 4096.0));
        let none = scattered(0.0, 0.0, 4096.0, false);
        assert_eq!((none.places, none.bytes), (0.0, 0.0));
    }
}
