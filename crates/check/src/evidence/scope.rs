//! The groups whose evidence is kept object by object. The other groups are proved by fingerprints
//! (`evidence/fingerprint.rs`), or need no proof.

use floe_format::GroupNr;
use floe_sync::Arc;

/// A set of groups; all of them by default. Cheap to copy.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// One bit a group; `None`: every group.
    bits: Option<Arc<Vec<u64>>>,
}

impl Scope {
    /// The groups given, of `count`.
    pub fn of(groups: impl IntoIterator<Item = GroupNr>, count: u32) -> Self {
        let mut bits = vec![0u64; count.div_ceil(64) as usize];
        for group in groups {
            if let Some(word) = bits.get_mut(group.0 as usize / 64) {
                *word |= 1 << (group.0 % 64);
            }
        }
        Self { bits: Some(Arc::new(bits)) }
    }

    /// Its groups and some more, of `count`.
    pub fn with(&self, groups: impl IntoIterator<Item = GroupNr>, count: u32) -> Self {
        let Some(mine) = &self.bits else { return Self::default() };
        let mut bits = Self::of(groups, count).bits.map_or_else(Vec::new, Arc::unwrap_or_clone);
        bits.iter_mut().zip(mine.iter()).for_each(|(bits, mine)| *bits |= mine);
        Self { bits: Some(Arc::new(bits)) }
    }

    /// Its groups but for some. All groups stay all.
    pub fn without(&self, groups: impl IntoIterator<Item = GroupNr>) -> Self {
        let Some(mine) = &self.bits else { return Self::default() };
        let mut bits = Vec::clone(mine);
        for group in groups {
            if let Some(word) = bits.get_mut(group.0 as usize / 64) {
                *word &= !(1 << (group.0 % 64));
            }
        }
        Self { bits: Some(Arc::new(bits)) }
    }

    /// Whether it is every group.
    #[inline]
    pub fn is_all(&self) -> bool {
        self.bits.is_none()
    }

    /// Whether a group is in it.
    #[inline]
    pub fn contains(&self, group: GroupNr) -> bool {
        self.bits.as_ref().is_none_or(|bits| {
            bits.get(group.0 as usize / 64).is_some_and(|word| word >> (group.0 % 64) & 1 == 1)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_in_it_or_not() {
        let scope = Scope::of([0, 63, 64, 99].map(GroupNr), 100);
        let inside: Vec<u32> = (0..200).filter(|&group| scope.contains(GroupNr(group))).collect();
        assert_eq!(inside, [0, 63, 64, 99]);
        assert!(!scope.is_all() && Scope::default().is_all());
        assert!(Scope::default().contains(GroupNr(7)));
        let wider = scope.with([GroupNr(64), GroupNr(65)], 100);
        let inside: Vec<u32> = (0..200).filter(|&group| wider.contains(GroupNr(group))).collect();
        assert_eq!(inside, [0, 63, 64, 65, 99]);
        assert!(Scope::default().with([GroupNr(1)], 100).is_all());
        let fewer = wider.without([0, 65, 98].map(GroupNr));
        let inside: Vec<u32> = (0..200).filter(|&group| fewer.contains(GroupNr(group))).collect();
        assert_eq!(inside, [63, 64, 99]);
    }
}
