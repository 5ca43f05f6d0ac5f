//! Which bytes of an attribute area are taken.

/// Bytes of an area, each taken at most once.
#[derive(Debug, Default)]
pub struct Region {
    words: Vec<u64>,
    len: usize,
}

impl Region {
    /// Starts over with `len` free bytes.
    pub(crate) fn reset(&mut self, len: usize) {
        self.words.clear();
        self.words.resize(len.div_ceil(64), 0);
        self.len = len;
    }

    /// Takes `len` bytes from `start` on. Returns false, and takes nothing, if they are not all
    /// there and free.
    pub(crate) fn take(&mut self, start: usize, len: usize) -> bool {
        let Some(end) = start.checked_add(len).filter(|&end| end <= self.len) else {
            return false;
        };
        let words = start / 64..end.div_ceil(64);
        let mask = |word: usize| {
            let from = start.saturating_sub(word * 64).min(64);
            let to = end.saturating_sub(word * 64).min(64);
            let upper = if to == 64 { u64::MAX } else { (1 << to) - 1 };
            if from == 64 { 0 } else { upper & (u64::MAX << from) }
        };
        if words.clone().any(|word| self.words[word] & mask(word) != 0) {
            return false;
        }
        words.for_each(|word| self.words[word] |= mask(word));
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_a_byte_array(
            len in 0usize..300,
            takes in proptest::collection::vec((0usize..320, 0usize..150), 0..12),
        ) {
            let mut region = Region::default();
            region.reset(len);
            let mut model = vec![false; len];
            for (start, size) in takes {
                let free = model.get(start..start + size).is_some_and(|all| !all.contains(&true));
                prop_assert_eq!(region.take(start, size), free);
                if free {
                    model[start..start + size].fill(true);
                }
            }
        }
    }

    #[test]
    fn nothing_overflows() {
        let mut region = Region::default();
        region.reset(64);
        assert!(!region.take(usize::MAX, 2));
        assert!(region.take(0, 64) && !region.take(63, 1) && region.take(64, 0));
    }
}
