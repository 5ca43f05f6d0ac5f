//! Which encrypted inode has which encryption policy.

use std::collections::HashMap;

use floe_exec::Accumulator;
use floe_format::InodeNr;
use floe_format::ext::crypt::Policy;

use crate::saved::{Decoder, Encoder, Fault, Saved, cell};

/// A policy, as a number that only means something within one [`Policies`]: equal policies have
/// equal numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyNr(u32);

impl PolicyNr {
    /// The inode is encrypted, but has no readable context (reported by the inode pass).
    pub(crate) const NO_CONTEXT: Self = Self(u32::MAX);

    /// Whether two inodes may lie in one directory: equal policies, or one that is not known, about
    /// which the inode pass has said all there is to say.
    pub(crate) fn agrees_with(self, other: Self) -> bool {
        self == other || self == Self::NO_CONTEXT || other == Self::NO_CONTEXT
    }
}

/// Encryption policies of encrypted inodes: 8 bytes an inode, and each policy once.
///
/// Law: the order of additions and merges is invisible but for the numbers themselves, of which only
/// equality counts.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    by_inode: Vec<(InodeNr, PolicyNr)>,
    numbers: HashMap<Policy, PolicyNr>,
}

impl Policies {
    /// Notes the policy of an encrypted inode; `None` if it has no readable context.
    pub fn add(&mut self, inode: InodeNr, policy: Option<Policy>) {
        let number = policy.map_or(PolicyNr::NO_CONTEXT, |policy| self.number(policy));
        self.by_inode.push((inode, number));
    }

    fn number(&mut self, policy: Policy) -> PolicyNr {
        // There are fewer policies than inodes, whose numbers fit 32 bits.
        let next = PolicyNr(self.numbers.len() as u32);
        *self.numbers.entry(policy).or_insert(next)
    }

    /// Puts the inodes in order, so that [`Policies::get`] finds them.
    pub fn sort(&mut self) {
        self.by_inode.sort_unstable();
    }

    /// The policy of an inode, once sorted; `None` if it is not encrypted.
    pub fn get(&self, inode: InodeNr) -> Option<PolicyNr> {
        let at = self.by_inode.binary_search_by_key(&inode, |(inode, _)| *inode).ok()?;
        self.by_inode.get(at).map(|(_, policy)| *policy)
    }

    /// Number of encrypted inodes.
    pub fn len(&self) -> usize {
        self.by_inode.len()
    }

    /// Whether no inode is encrypted.
    pub fn is_empty(&self) -> bool {
        self.by_inode.is_empty()
    }
}

impl Accumulator for Policies {
    fn merge(&mut self, other: Self) {
        if self.by_inode.is_empty() {
            *self = other;
            return;
        }
        let Self { numbers, by_inode } = other;
        let renumber: HashMap<PolicyNr, PolicyNr> =
            numbers.into_iter().map(|(policy, old)| (old, self.number(policy))).collect();
        self.by_inode.extend(by_inode.into_iter().map(|(inode, old)| {
            (inode, renumber.get(&old).copied().unwrap_or(PolicyNr::NO_CONTEXT))
        }));
    }
}

impl Saved for Policy {
    fn save(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Unknown => to.put(0),
            Self::V1(bytes) => {
                to.put(1);
                bytes.save(to);
            }
            Self::V2(bytes) => {
                to.put(2);
                bytes.save(to);
            }
        }
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        Ok(match from.below(3)? {
            1 => Self::V1(Saved::load(from)?),
            2 => Self::V2(Saved::load(from)?),
            _ => Self::Unknown,
        })
    }
}

impl Saved for Policies {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self { by_inode, numbers } = self;
        let mut policies: Vec<_> =
            numbers.iter().map(|(policy, number)| (number, policy)).collect();
        policies.sort_unstable();
        to.put(policies.len() as u64);
        policies.iter().for_each(|(_, policy)| policy.save(to));
        to.put_rows(by_inode.iter().map(|(inode, number)| [inode.0.into(), number.0.into()]));
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let mut all = Self::default();
        for policy in Vec::<Policy>::load(from)? {
            all.number(policy);
        }
        all.by_inode = from.rows(|[inode, number]| {
            let number = PolicyNr(cell(number)?);
            let known = number == PolicyNr::NO_CONTEXT || (number.0 as usize) < all.numbers.len();
            known.then_some((InodeNr(cell(inode)?), number))
        })?;
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::saved::tests::same;

    fn seen(policies: Policies) -> Vec<(InodeNr, Option<Policy>)> {
        let policy = |number| policies.numbers.iter().find(|(_, own)| **own == number);
        let mut seen: Vec<_> = policies
            .by_inode
            .iter()
            .map(|&(inode, number)| (inode, policy(number).map(|(policy, _)| *policy)))
            .collect();
        seen.sort_unstable();
        seen
    }

    floe_exec::accumulator_laws!(
        Policies,
        (1u32..50, proptest::option::of(0u8..6)),
        |all: &mut Policies, (inode, byte): (u32, Option<u8>)| {
            all.add(InodeNr(inode), byte.map(|byte| Policy::V1([byte; 12])));
        },
        |all: Policies| same(all, seen)
    );

    fn policies(list: &[(u32, Option<u8>)]) -> Policies {
        let mut policies = Policies::default();
        for &(inode, policy) in list {
            policies.add(InodeNr(inode), policy.map(|byte| Policy::V1([byte; 12])));
        }
        policies
    }

    #[test]
    fn merging_keeps_what_is_equal() {
        let left = policies(&[(12, Some(1)), (14, Some(2)), (16, None)]);
        let right = policies(&[(13, Some(2)), (15, Some(3)), (17, Some(1)), (18, None)]);
        for (mut all, other) in [(left.clone(), right.clone()), (right, left)] {
            all.merge(other);
            all.sort();
            let get = |inode| all.get(InodeNr(inode)).unwrap();
            assert_eq!((get(12), get(13)), (get(17), get(14)));
            assert_ne!(get(12), get(14));
            assert_ne!(get(15), get(12));
            assert!(get(16) == PolicyNr::NO_CONTEXT && get(18) == get(16));
            assert!(get(16).agrees_with(get(12)) && !get(12).agrees_with(get(13)));
            assert_eq!(all.get(InodeNr(99)), None);
        }
    }
}
