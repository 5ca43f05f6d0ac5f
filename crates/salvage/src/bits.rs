//! A set of numbers as bits.

/// A set of numbers below a limit, one bit each.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bits {
    words: Vec<u64>,
}

impl Bits {
    /// An empty set of numbers below `limit`.
    pub(crate) fn below(limit: u64) -> Self {
        let words = usize::try_from(limit.div_ceil(64)).unwrap_or(0);
        Self { words: vec![0; words] }
    }

    fn place(number: u64) -> (usize, u64) {
        (usize::try_from(number / 64).unwrap_or(usize::MAX), 1 << (number % 64))
    }

    /// Adds a number; those at or above the limit are ignored.
    pub(crate) fn insert(&mut self, number: u64) {
        let (at, bit) = Self::place(number);
        if let Some(word) = self.words.get_mut(at) {
            *word |= bit;
        }
    }

    /// Adds `len` numbers from `start` on.
    pub(crate) fn insert_run(&mut self, start: u64, len: u64) {
        let limit = self.words.len() as u64 * 64;
        for number in start..start.saturating_add(len).min(limit) {
            self.insert(number);
        }
    }

    /// Whether a number is in the set.
    pub(crate) fn contains(&self, number: u64) -> bool {
        let (at, bit) = Self::place(number);
        self.words.get(at).is_some_and(|word| word & bit != 0)
    }

    /// Whether one of `len` numbers from `start` on is in the set.
    pub(crate) fn meets_run(&self, start: u64, len: u64) -> bool {
        let limit = self.words.len() as u64 * 64;
        (start..start.saturating_add(len).min(limit)).any(|number| self.contains(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_limits() {
        let mut bits = Bits::below(100);
        bits.insert_run(62, 4);
        bits.insert(u64::MAX);
        bits.insert_run(u64::MAX - 1, 9);
        assert_eq!((60..70).filter(|at| bits.contains(*at)).collect::<Vec<_>>(), [62, 63, 64, 65]);
        assert!(bits.meets_run(0, 63) && !bits.meets_run(0, 62) && !bits.meets_run(66, u64::MAX));
        assert!(!bits.contains(u64::MAX));
    }
}
