//! Sets of bits, written down: window by window, what is set as runs or as it is, whichever is smaller.

use super::block_set::{BlockSet, bit_runs};
use crate::saved::{Decoder, Encoder, Fault, Saved};

/// Words of a window: as many clusters as a group of common size has.
const WINDOW_WORDS: u64 = 512;
const WINDOW_BITS: u64 = WINDOW_WORDS * 64;

/// Runs of a window that take about as many bytes as its words: two numbers each, of two bytes at most
/// but for few.
const MOST_RUNS: usize = WINDOW_WORDS as usize * 8 / 4;

/// The runs of set bits of some words, as (bits between it and the one before, its length).
fn runs_of(words: impl Iterator<Item = u64>) -> Vec<(u64, u64)> {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let mut end = 0;
    for (base, word) in (0..).step_by(64).zip(words) {
        for (from, len) in bit_runs(word) {
            match runs.last_mut() {
                Some(last) if end == base + from => last.1 += len,
                _ => runs.push((base + from - end, len)),
            }
            end = base + from + len;
        }
    }
    runs
}

/// Writes a few words; the reader must know how many.
pub(super) fn save_words(words: &[u64], to: &mut Encoder<'_>) {
    let runs = runs_of(words.iter().copied());
    if runs.len() * 4 > words.len() * 8 || runs.len() > MOST_RUNS {
        to.put(0);
        words.iter().for_each(|word| to.put_bytes(&word.to_le_bytes()));
        return;
    }
    // The number of runs, plus 1.
    to.put(runs.len() as u64 + 1);
    for (gap, len) in runs {
        to.put(gap);
        to.put(len);
    }
}

/// Hands out the runs of `words` words that [`save_words`] wrote, as (first bit, number).
pub(super) fn load_runs(
    from: &mut Decoder<'_>,
    words: u64,
    mut each: impl FnMut(u64, u64),
) -> Result<(), Fault> {
    let form = from.below(MOST_RUNS as u64 + 2)?;
    if form == 0 {
        for base in (0..words * 64).step_by(64) {
            let word = u64::from_le_bytes(from.bytes()?);
            bit_runs(word).for_each(|(first, len)| each(base + first, len));
        }
        return Ok(());
    }
    let mut at = 0;
    for _ in 1..form {
        let first = at + from.below(words * 64 - at)?;
        let len = from.below(words * 64 - first + 1)?;
        each(first, len);
        at = first + len;
    }
    Ok(())
}

impl Saved for BlockSet {
    fn save(&self, to: &mut Encoder<'_>) {
        let mut next = 0;
        for start in (0..self.end()).step_by(WINDOW_BITS as usize) {
            if self.is_clear_in(start, WINDOW_BITS) {
                continue;
            }
            // How many windows lie between, plus 1: 0 is the end.
            to.put((start - next) / WINDOW_BITS + 1);
            let words: Vec<u64> =
                (0..WINDOW_WORDS).map(|word| self.word(start + word * 64)).collect();
            save_words(&words, to);
            next = start + WINDOW_BITS;
        }
        to.put(0);
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        // Memory is in proportion to the largest bit, so none is believed past the last cluster.
        let windows = from.bounds.clusters.div_ceil(WINDOW_BITS);
        let (mut set, mut next) = (Self::default(), 0);
        loop {
            match from.below(windows - next + 1)? {
                0 => return Ok(set),
                skipped => next += skipped,
            }
            let start = (next - 1) * WINDOW_BITS;
            load_runs(from, WINDOW_WORDS, |first, len| set.insert(start + first, len, |_, _| ()))?;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::saved::Bounds;
    use crate::saved::tests::{BOUNDS, again, bytes_of, of_bytes};

    proptest! {
        #[test]
        fn sets_come_back(
            runs in proptest::collection::vec(
                (0u64..400_000, prop_oneof![1u64..90, 30_000u64..70_000]), 0..20),
            dense in proptest::collection::vec(any::<u64>(), 0..600),
            at in 0u64..200_000,
        ) {
            let mut set = BlockSet::default();
            for (start, len) in runs {
                set.insert(start, len, |_, _| ());
            }
            for (base, word) in (at..).step_by(64).zip(dense) {
                set.insert_word(base, word);
            }
            prop_assert_eq!(again(&set).runs(), set.runs());
        }
    }

    #[test]
    fn a_bit_is_a_bit_at_most() {
        let mut set = BlockSet::default();
        (0..1 << 20).step_by(2).for_each(|bit| set.insert(bit, 1, |_, _| ()));
        let len = bytes_of(&set).len();
        assert!(len < (1 << 20) / 8 * 102 / 100, "{len} bytes");
        let mut full = BlockSet::default();
        full.insert(0, 1 << 30, |_, _| ());
        let len = bytes_of(&full).len();
        assert!(len < (1 << 30) / 32768 * 8, "{len} bytes");
    }

    #[test]
    fn bits_past_the_end_are_refused() {
        let mut set = BlockSet::default();
        set.insert(1 << 30, 1, |_, _| ());
        let bytes = bytes_of(&set);
        assert!(of_bytes::<BlockSet>(&bytes, BOUNDS).is_ok());
        let bounds = Bounds { clusters: 1 << 30, ..BOUNDS };
        assert!(of_bytes::<BlockSet>(&bytes, bounds).is_err());
        let bounds = Bounds { clusters: (1 << 30) + 1, ..BOUNDS };
        assert!(of_bytes::<BlockSet>(&bytes, bounds).is_ok());
    }
}
