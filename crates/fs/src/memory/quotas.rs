//! Quotas: which changes may wait although usage is counted and limited.
//!
//! The disk counts usage when a change reaches it. An owner whom its quota files do not know gets an entry there at once: the
//! first creation for him passes. Where limits count, a slot leases a part of what is left to user, group and project, so no
//! change that waits can pass a limit later. A change that does not fit in a lease passes behind all that wait, with all
//! leases ended: then the disk judges exactly.

use std::collections::{HashMap, HashSet};

use floe_format::ext::quota::QuotaKind;
use floe_sync::{Mutex, PoisonError};

use super::MemFs;
use super::attempt::{Attempt, Stop};
use super::lower::Lower;
use super::mnode::Mnode;
use super::own::Own;
use super::room::Cost;
use crate::{Attributes, FsError};

/// How quotas limit changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Quotas {
    /// There are none.
    #[default]
    None,
    /// Usage is counted.
    Counted,
    /// Limits count.
    Enforced,
}

/// A lease is this part of what is left.
const PART_PER_LEASE: u64 = 64;

/// User, group and project, in the order of [`QuotaKind::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner(pub(crate) [u32; 3]);

impl Owner {
    pub(crate) const fn of(attributes: &Attributes) -> Self {
        Self([attributes.uid, attributes.gid, attributes.project])
    }
}

/// Bytes and inodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    bytes: u64,
    inodes: u64,
}

impl Usage {
    const fn less(self, other: Self) -> Option<Self> {
        match (self.bytes.checked_sub(other.bytes), self.inodes.checked_sub(other.inodes)) {
            (Some(bytes), Some(inodes)) => Some(Self { bytes, inodes }),
            _ => None,
        }
    }

    fn least(self, other: Self) -> Self {
        let (bytes, inodes) = (self.bytes.min(other.bytes), self.inodes.min(other.inodes));
        Self { bytes, inodes }
    }

    fn plus(self, other: Self) -> Self {
        let bytes = self.bytes.saturating_add(other.bytes);
        Self { bytes, inodes: self.inodes.saturating_add(other.inodes) }
    }
}

/// Quota that a slot may let owners use.
pub(crate) type Leases = HashMap<Owner, Usage>;

/// Owners whom the quota files know, and what is leased of the rest of each user, group and project.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    owners: HashSet<Owner>,
    leased: Mutex<HashMap<(usize, u32), Usage>>,
}

impl Accounts {
    /// The disk counts something for an owner.
    pub(crate) fn note(&mut self, owner: Owner) {
        self.owners.insert(owner);
    }

    /// Ends all leases. Nothing may wait.
    pub(crate) fn end_leases<'o>(&mut self, slots: impl IntoIterator<Item = &'o mut Own>) {
        self.leased.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        slots.into_iter().for_each(|own| own.quota.clear());
    }

    /// Leases a part of what is left to an owner; `None` if that is less than is needed.
    fn lease(
        &self,
        owner: Owner,
        needed: Usage,
        left: impl Fn(QuotaKind, u32) -> Result<(u64, u64), FsError>,
    ) -> Result<Option<Usage>, FsError> {
        let mut leased = self.leased.lock().unwrap_or_else(PoisonError::into_inner);
        let all = (0..).zip(QuotaKind::ALL).zip(owner.0);
        let mut rest = Usage { bytes: u64::MAX, inodes: u64::MAX };
        for ((at, kind), id) in all.clone() {
            let (bytes, inodes) = left(kind, id)?;
            let taken = leased.get(&(at, id)).copied().unwrap_or_default();
            let Some(left) = (Usage { bytes, inodes }).less(taken) else { return Ok(None) };
            rest = rest.least(left);
        }
        let part =
            Usage { bytes: rest.bytes / PART_PER_LEASE, inodes: rest.inodes / PART_PER_LEASE };
        if part.less(needed).is_none() {
            return Ok(None);
        }
        for ((at, _), id) in all {
            let taken = leased.entry((at, id)).or_default();
            *taken = taken.plus(part);
        }
        Ok(Some(part))
    }
}

impl<L: Lower> Attempt<'_, L> {
    /// Judges whether something new of an owner may wait.
    pub(super) fn charge_new(&mut self, owner: Owner, cost: &Cost) -> Result<(), Stop> {
        let is_known = || self.state.accounts.owners.contains(&owner);
        if self.fs.facts.quotas != Quotas::None && !is_known() {
            return Err(Stop::Pass);
        }
        self.charge(owner, cost.own_blocks(), cost.inodes())
    }

    /// Judges whether the owner of an inode may use so many blocks more.
    pub(super) fn charge_blocks(&mut self, node: &Mnode, blocks: u64) -> Result<(), Stop> {
        if self.fs.facts.quotas != Quotas::Enforced {
            return Ok(());
        }
        self.charge(Owner::of(&node.status.who()), blocks, 0)
    }

    fn charge(&mut self, owner: Owner, blocks: u64, inodes: u64) -> Result<(), Stop> {
        if self.fs.facts.quotas != Quotas::Enforced {
            return Ok(());
        }
        let cluster =
            u64::from(self.fs.lower.block_bytes()) * u64::from(self.fs.facts.cluster_blocks);
        let needed = Usage { bytes: blocks.saturating_mul(cluster), inodes };
        let lease = self.own.quota.get(&owner).copied().unwrap_or_default();
        let rest = match lease.less(needed) {
            Some(rest) => rest,
            None => {
                let left = |kind, id| {
                    let _reading = self.fs.reading_below();
                    self.fs.lower.quota_left(kind, id)
                };
                let more =
                    self.state.accounts.lease(owner, needed, left).map_err(|_| Stop::Pass)?;
                lease.plus(more.ok_or(Stop::Pass)?).less(needed).ok_or(Stop::Pass)?
            }
        };
        self.own.quota.insert(owner, rest);
        Ok(())
    }
}

impl<L: Lower> MemFs<L> {
    /// Whether a change that the disk makes at once is judged by limits.
    pub(super) fn is_limited(&self) -> bool {
        self.facts.quotas == Quotas::Enforced
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn leases_of_owners_who_share_a_limit_never_pass_it() {
        let accounts = Accounts::default();
        let owners: Vec<Owner> = (0..50).map(|user| Owner([user, 7, 0])).collect();
        // The group has a limit.
        let left = |kind, id| {
            Ok(match (kind, id) {
                (QuotaKind::Group, 7) => (64_000, 640),
                _ => (u64::MAX, u64::MAX),
            })
        };
        let needed = Usage { bytes: 100, inodes: 1 };
        let mut leased = Usage::default();
        let mut refused = 0;
        for owner in owners.iter().cycle().take(1000) {
            match accounts.lease(*owner, needed, left).unwrap() {
                Some(lease) => leased = leased.plus(lease),
                None => refused += 1,
            }
        }
        assert!(leased.bytes <= 64_000 && leased.inodes <= 640, "{leased:?}");
        assert!(leased.inodes > 500 && refused > 0, "{leased:?}");
    }
}
