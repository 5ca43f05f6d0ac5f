//! A set of block or cluster numbers kept as sorted runs: static metadata lies in few long runs, one
//! for each flexible group, so that the set takes 16 bytes a run, however many blocks it holds.

use std::collections::BTreeMap;

/// Sorted runs of set bits, which neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunSet {
    runs: Box<[Run]>,
}

/// Bits `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    start: u64,
    end: u64,
}

impl RunSet {
    /// Whether a bit is set.
    #[inline]
    pub fn contains(&self, bit: u64) -> bool {
        let at = self.first_behind(bit);
        self.runs.get(at).is_some_and(|run| run.start <= bit)
    }

    /// The runs of set bits inside `start..start + len`, in order, as (first bit, number of bits).
    pub fn runs_in(&self, start: u64, len: u64) -> impl Iterator<Item = (u64, u64)> {
        let end = start.saturating_add(len);
        let runs = self.runs.get(self.first_behind(start)..).unwrap_or(&[]).iter();
        runs.take_while(move |run| start < end && run.start < end).map(move |run| {
            let from = run.start.max(start);
            (from, run.end.min(end) - from)
        })
    }

    /// All runs of set bits, in order, as (first bit, number of bits).
    pub fn runs(&self) -> impl Iterator<Item = (u64, u64)> {
        self.runs.iter().map(|run| (run.start, run.end - run.start))
    }

    /// Whether no bit of `start..start + len` is set.
    pub fn is_clear_in(&self, start: u64, len: u64) -> bool {
        self.runs_in(start, len).next().is_none()
    }

    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.runs)
    }

    /// The first run that ends behind a bit.
    #[inline]
    fn first_behind(&self, bit: u64) -> usize {
        self.runs.partition_point(|run| run.end <= bit)
    }
}

/// A [`RunSet`] that is being put together, in any order: a map, because to make room in the middle
/// of a list would take time that grows with the square of what a stranger's descriptors claim.
#[derive(Clone, Debug, Default)]
pub struct RunSetBuilder {
    /// First bit of each run: the bit behind its last one.
    runs: BTreeMap<u64, u64>,
}

impl RunSetBuilder {
    /// Sets `len` bits from `start` on, whether or not some are set.
    pub fn insert(&mut self, start: u64, len: u64) {
        let (mut first, mut behind) = (start, start.saturating_add(len));
        if first >= behind {
            return;
        }
        // Metadata comes in order, so most runs just grow: that takes no memory and gives none back.
        match self.runs.range_mut(..=first).next_back() {
            Some((&before, end)) if *end >= first => {
                if *end >= behind {
                    return;
                }
                *end = behind;
                first = before;
            }
            _ => drop(self.runs.insert(first, behind)),
        }
        // Merge the runs that it overlaps or touches.
        let mut grown = false;
        while let Some((&next, &end)) = self.runs.range(first + 1..=behind).next() {
            self.runs.remove(&next);
            behind = behind.max(end);
            grown = true;
        }
        if grown && let Some(end) = self.runs.get_mut(&first) {
            *end = behind;
        }
    }

    /// The first set bit of `start..start + len`.
    pub(crate) fn first_in(&self, start: u64, len: u64) -> Option<u64> {
        let end = start.saturating_add(len);
        let before = self.runs.range(..=start).next_back();
        if before.is_some_and(|(_, behind)| *behind > start) && start < end {
            return Some(start);
        }
        self.runs.range(start..end).next().map(|(&first, _)| first)
    }

    /// The set.
    pub fn build(self) -> RunSet {
        RunSet { runs: self.runs.into_iter().map(|(start, end)| Run { start, end }).collect() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn agrees_with_single_bits(
            runs in proptest::collection::vec((0u64..300, 0u64..40), 0..20),
            asked in proptest::collection::vec((0u64..350, 0u64..90), 1..20),
        ) {
            let (mut builder, mut model) = (RunSetBuilder::default(), BTreeSet::new());
            for &(start, len) in &runs {
                for &(from, len) in &asked {
                    let expected = model.range(from..from + len).next().copied();
                    prop_assert_eq!(builder.first_in(from, len), expected);
                }
                builder.insert(start, len);
                model.extend(start..start + len);
            }
            let set = builder.build();
            prop_assert!(set.runs.windows(2).all(|pair| pair[0].end < pair[1].start));
            prop_assert!(set.runs.iter().all(|run| run.start < run.end));
            let bits = |runs: &mut dyn Iterator<Item = (u64, u64)>| -> Vec<u64> {
                runs.flat_map(|(start, len)| start..start + len).collect()
            };
            prop_assert!(bits(&mut set.runs()).iter().eq(&model));
            for bit in 0..350 {
                prop_assert_eq!(set.contains(bit), model.contains(&bit));
            }
            for (start, len) in asked {
                let inside: Vec<u64> = model.range(start..start + len).copied().collect();
                prop_assert_eq!(bits(&mut set.runs_in(start, len)), inside.clone());
                prop_assert_eq!(set.is_clear_in(start, len), inside.is_empty());
            }
        }
    }

    #[test]
    fn the_last_numbers_are_like_any_others() {
        let mut builder = RunSetBuilder::default();
        builder.insert(u64::MAX - 1, 9);
        builder.insert(7, 0);
        let set = builder.build();
        assert!(set.contains(u64::MAX - 1) && !set.contains(7) && set.bytes() == 16);
    }
}
