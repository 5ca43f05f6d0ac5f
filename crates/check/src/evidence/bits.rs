//! Ranges of bits in a slice of words, lowest bit first. Bits past the end of the slice are never set.

use super::block_set::word_mask;

/// The words that hold the bits `from..to`, each with the mask of those of its bits.
fn masks(from: usize, to: usize) -> impl Iterator<Item = (usize, u64)> {
    (from / 64..to.div_ceil(64)).map(move |index| {
        let start = index * 64;
        let (first, end) = (from.saturating_sub(start), to - start);
        (index, word_mask(first as u64, end.min(64) as u64))
    })
}

/// Whether the bits `from..to` are all set.
pub(crate) fn all_set(words: &[u64], from: usize, to: usize) -> bool {
    masks(from, to).all(|(index, mask)| words.get(index).is_some_and(|word| word & mask == mask))
}

/// Whether the words have the bits `from..to`, and none of them is set.
pub(crate) fn all_clear(words: &[u64], from: usize, to: usize) -> bool {
    masks(from, to).all(|(index, mask)| words.get(index).is_some_and(|word| word & mask == 0))
}

/// Sets the bits `from..to`.
pub fn set(words: &mut [u64], from: usize, to: usize) {
    for (index, mask) in masks(from, to) {
        if let Some(word) = words.get_mut(index) {
            *word |= mask;
        }
    }
}

/// Clears the bits `from..to`.
pub fn clear(words: &mut [u64], from: usize, to: usize) {
    for (index, mask) in masks(from, to) {
        if let Some(word) = words.get_mut(index) {
            *word &= !mask;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_set_in_ranges_and_cleared() {
        for (from, to) in [(0, 1), (3, 64), (63, 65), (60, 200), (64, 128), (10, 10)] {
            let mut words = [0; 4];
            assert!(all_clear(&words, from, to));
            set(&mut words, from, to);
            assert!(all_set(&words, from, to));
            for bit in 0..256 {
                let is_set = words[bit / 64] >> (bit % 64) & 1 == 1;
                assert_eq!(is_set, (from..to).contains(&bit), "{from}..{to}: {bit}");
            }
            clear(&mut words, from, from + 1);
            assert_eq!(words[from / 64] >> (from % 64) & 1, 0);
            assert!(from == to || !all_set(&words, from, to));
        }
        assert!(!all_set(&[u64::MAX], 60, 65) && !all_clear(&[0], 60, 65), "past the end");
    }
}
