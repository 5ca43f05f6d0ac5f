//! A short column of values most of which are the same.

use std::ops::Range;

/// The values of a chunk: one by one, or the usual one and the others, whichever is smaller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Column<T> {
    /// Each value in its place.
    Dense(Box<[T]>),
    /// One value nearly everywhere.
    Sparse {
        /// The value of all places not listed.
        usual: T,
        /// Number of places.
        len: u16,
        /// The other places, ascending, with their values.
        others: Box<[(u16, T)]>,
    },
}

impl<T: Copy + Eq> Column<T> {
    /// Packs at most 65,535 values.
    pub fn pack(values: &[T]) -> Self {
        let dense = || Self::Dense(values.into());
        let differ = |usual: T| values.iter().filter(|&&value| value != usual).count();
        // The middle value nearly always is the most frequent one.
        let guess = values.get(values.len() / 2).map(|&usual| (usual, differ(usual)));
        let guess = guess.filter(|(_, others)| others * 2 <= values.len());
        let usual = guess.or_else(|| majority(values).map(|usual| (usual, differ(usual))));
        let (Some((usual, others)), Ok(len)) = (usual, u16::try_from(values.len())) else {
            return dense();
        };
        // Searching costs more than indexing: be sparse only where it saves much.
        if others * size_of::<(u16, T)>() * 2 > size_of_val(values) {
            return dense();
        }
        let mut list = Vec::with_capacity(others);
        if others > 0 {
            let differ = (0..len).zip(values).filter(|&(_, &value)| value != usual);
            list.extend(differ.map(|(at, &value)| (at, value)));
        }
        Self::Sparse { usual, len, others: list.into() }
    }

    /// The value at a place, or `None` past the end.
    #[inline]
    pub fn get(&self, at: usize) -> Option<T> {
        match self {
            Self::Dense(values) => values.get(at).copied(),
            Self::Sparse { usual, len, others } => {
                if at >= usize::from(*len) {
                    return None;
                }
                // In range, so it fits.
                let found = others.binary_search_by_key(&(at as u16), |&(place, _)| place);
                Some(found.ok().and_then(|found| others.get(found)).map_or(*usual, |other| other.1))
            }
        }
    }

    /// The value at a place and a range of places around it that have the same: as far as that is
    /// known without looking for it. `None` past the end.
    #[inline]
    pub(crate) fn run_at(&self, at: usize) -> Option<(Range<usize>, T)> {
        match self {
            Self::Dense(values) => values.get(at).map(|&value| (at..at + 1, value)),
            Self::Sparse { usual, len, others } => {
                if at >= usize::from(*len) {
                    return None;
                }
                let next = others.partition_point(|&(place, _)| usize::from(place) < at);
                let end = match others.get(next) {
                    Some(&(place, value)) if usize::from(place) == at => {
                        return Some((at..at + 1, value));
                    }
                    Some(&(place, _)) => usize::from(place),
                    None => usize::from(*len),
                };
                let before = next.checked_sub(1).and_then(|before| others.get(before));
                let start = before.map_or(0, |&(place, _)| usize::from(place) + 1);
                Some((start..end, *usual))
            }
        }
    }

    /// The value of nearly all places, and the others, if there is such a value.
    pub fn usual(&self) -> Option<(T, &[(u16, T)])> {
        match self {
            Self::Dense(_) => None,
            Self::Sparse { usual, others, .. } => Some((*usual, others)),
        }
    }

    /// Number of places.
    pub fn len(&self) -> usize {
        match self {
            Self::Dense(values) => values.len(),
            Self::Sparse { len, .. } => usize::from(*len),
        }
    }

    /// Whether there is no place.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All values in order.
    pub fn iter(&self) -> Iter<'_, T> {
        Iter { column: self, at: 0, next_other: 0 }
    }
}

/// The value that more than half of `values` have, if there is one; else any of them. `None` if empty.
fn majority<T: Copy + Eq>(values: &[T]) -> Option<T> {
    let (mut candidate, mut lead) = (*values.first()?, 0usize);
    for &value in values {
        if lead == 0 {
            candidate = value;
        }
        lead = if value == candidate { lead + 1 } else { lead - 1 };
    }
    Some(candidate)
}

/// Walks a [`Column`].
#[derive(Debug)]
pub struct Iter<'a, T> {
    column: &'a Column<T>,
    at: usize,
    next_other: usize,
}

impl<T: Copy> Iterator for Iter<'_, T> {
    type Item = T;

    #[inline]
    fn next(&mut self) -> Option<T> {
        let at = self.at;
        self.at += 1;
        match self.column {
            Column::Dense(values) => values.get(at).copied(),
            Column::Sparse { usual, len, others } => {
                if at >= usize::from(*len) {
                    return None;
                }
                match others.get(self.next_other) {
                    Some(&(place, value)) if usize::from(place) == at => {
                        self.next_other += 1;
                        Some(value)
                    }
                    _ => Some(*usual),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn packing_loses_nothing(values in proptest::collection::vec(prop_oneof![9 => Just(1u16), 1 => any::<u16>()], 0..600)) {
            let column = Column::pack(&values);
            prop_assert!(column.iter().eq(values.iter().copied()));
            for at in 0..values.len() + 2 {
                prop_assert_eq!(column.get(at), values.get(at).copied());
                let run = column.run_at(at);
                prop_assert_eq!(run.as_ref().map(|(_, value)| *value), values.get(at).copied());
                if let Some((places, value)) = run {
                    prop_assert!(places.contains(&at));
                    prop_assert!(values[places].iter().all(|&other| other == value));
                }
            }
        }
    }

    #[test]
    fn few_exceptions_are_cheap() {
        let mut values = [1u16; 2048];
        values[7] = 9;
        assert!(
            matches!(Column::pack(&values), Column::Sparse { others, .. } if others.len() == 1)
        );
    }
}
