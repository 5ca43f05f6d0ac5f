//! Sorting pairs of a number and something else.

/// Bits by which pairs are dealt at once.
const DIGIT_BITS: u32 = 11;
/// Fewer pairs than this are compared.
const FEW: usize = 1024;

/// As [`slice::sort_unstable`], for many pairs in no order, such as the names of a shard whose directories are large: in a
/// few passes, none of which compares anything.
pub(crate) fn sort_pairs<T: Copy + Ord>(all: &mut Vec<(u32, T)>) {
    if all.is_sorted() {
        return;
    }
    if all.len() < FEW {
        all.sort_unstable();
        return;
    }
    let most = all.iter().map(|(number, _)| *number).max().unwrap_or(0);
    let mut dealt = all.clone();
    for shift in (0..u32::BITS - most.leading_zeros()).step_by(DIGIT_BITS as usize) {
        let digit = |number: u32| (number >> shift) as usize & ((1 << DIGIT_BITS) - 1);
        let mut places = [0; 1 << DIGIT_BITS];
        all.iter().for_each(|(number, _)| places[digit(*number)] += 1);
        let mut before = 0;
        for place in &mut places {
            before += std::mem::replace(place, before);
        }
        for pair in all.iter() {
            let place = &mut places[digit(pair.0)];
            dealt[*place] = *pair;
            *place += 1;
        }
        std::mem::swap(all, &mut dealt);
    }
    for same in all.chunk_by_mut(|one, next| one.0 == next.0).filter(|same| same.len() > 1) {
        same.sort_unstable();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn pairs_are_sorted(
            most in prop::sample::select(vec![1u32, 300, 1 << 12, 1 << 23, u32::MAX]),
            seed in any::<u64>(),
            len in 0usize..5000,
        ) {
            let mut state = seed | 1;
            let mut draw = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 32) as u32
            };
            let mut all: Vec<(u32, u32)> = (0..len).map(|_| (draw() % most, draw() % 4)).collect();
            let mut expected = all.clone();
            expected.sort_unstable();
            sort_pairs(&mut all);
            prop_assert_eq!(all, expected);
        }
    }
}
