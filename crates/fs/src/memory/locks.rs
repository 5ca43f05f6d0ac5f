//! The locks of a change: those of stripes of names in their order, then those of inodes in theirs.

use floe_format::InodeNr;
use floe_sync::MutexGuard;

use super::mnode::{Guarded, Mnode};
use super::record::Stamp;
use super::stripes::{Inside, Spot};

/// A stripe that is locked.
struct Part<'s> {
    spot: Spot<'s>,
    inside: MutexGuard<'s, Inside>,
}

impl<'s> Part<'s> {
    fn lock(spot: Spot<'s>) -> Self {
        Self { spot, inside: spot.lock() }
    }
}

/// Stripes that are locked, each once.
#[derive(Default)]
pub(super) struct Locked<'s> {
    /// Those of most changes: they take no memory.
    few: [Option<Part<'s>>; 2],
    more: Vec<Part<'s>>,
}

impl<'s> Locked<'s> {
    pub(super) fn one(spot: Spot<'s>) -> Self {
        Self { few: [Some(Part::lock(spot)), None], more: Vec::new() }
    }

    pub(super) fn two(one: Spot<'s>, other: Spot<'s>) -> Self {
        let (first, second) = if one.place <= other.place { (one, other) } else { (other, one) };
        let second = (first.place != second.place).then_some(second);
        Self { few: [Some(Part::lock(first)), second.map(Part::lock)], more: Vec::new() }
    }

    pub(super) fn all(mut of: Vec<Spot<'s>>) -> Self {
        of.sort_unstable_by_key(|spot| spot.place);
        of.dedup_by_key(|spot| spot.place);
        Self { few: [None, None], more: of.into_iter().map(Part::lock).collect() }
    }

    fn parts(&mut self) -> impl Iterator<Item = &mut Part<'s>> {
        self.few.iter_mut().flatten().chain(&mut self.more)
    }

    /// The last change of any of them.
    pub(super) fn last(&mut self) -> Stamp {
        let lasts = self.parts().map(|part| part.inside.last.max(part.spot.born()));
        lasts.fold(Stamp::default(), Stamp::max)
    }

    /// Lets readers wait, and notes the change.
    pub(super) fn begin(&mut self, stamp: Stamp) {
        for Part { spot, inside } in self.parts() {
            inside.last = stamp;
            spot.begin();
        }
    }

    pub(super) fn end(mut self) {
        self.parts().for_each(|part| part.spot.end());
    }

    /// The fields that the lock of a stripe guards.
    pub(super) fn inside(&mut self, spot: &Spot<'_>) -> Option<&mut Inside> {
        let found = self.parts().find(|part| part.spot.place == spot.place);
        found.map(|part| &mut *part.inside)
    }
}

/// An inode that a change locks.
pub(super) struct Held<'s> {
    pub(super) node: &'s Mnode,
    pub(super) guarded: MutexGuard<'s, Guarded>,
}

impl<'s> Held<'s> {
    pub(super) fn lock(node: &'s Mnode) -> Self {
        Self { node, guarded: node.lock() }
    }
}

/// Locks inodes, each once, in the order of their numbers.
pub(super) fn hold<'s>(mut of: Vec<(InodeNr, &'s Mnode)>) -> Vec<Held<'s>> {
    of.sort_unstable_by_key(|(inode, _)| *inode);
    of.dedup_by_key(|(inode, _)| *inode);
    of.into_iter().map(|(_, node)| Held::lock(node)).collect()
}
