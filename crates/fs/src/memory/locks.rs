//! The locks of a change: those of stripes of names in their order, then those of inodes in theirs.

use floe_format::InodeNr;
use floe_sync::MutexGuard;

use super::departures::Departing;
use super::mnode::{Mnode, Whole};
use super::record::Stamp;
use super::stripes::{Inside, Spot};
use crate::Timestamp;

/// A stripe that is locked.
struct Part<'s> {
    spot: Spot<'s>,
    inside: MutexGuard<'s, Inside>,
    /// A name comes or goes.
    names: bool,
}

impl<'s> Part<'s> {
    fn lock(spot: Spot<'s>) -> Self {
        Self { spot, inside: spot.lock(), names: false }
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
        for Part { spot, inside, .. } in self.parts() {
            inside.last = stamp;
            spot.begin();
        }
    }

    /// Lets those wait, too, who ask which names there are. Behind [`Locked::begin`], before the change.
    pub(super) fn begin_names(&mut self, spot: &Spot<'_>) {
        let found = self.parts().find(|part| part.spot.place == spot.place);
        if let Some(part) = found.filter(|part| !part.names) {
            part.names = true;
            part.spot.begin_names();
        }
    }

    pub(super) fn end(mut self) {
        for part in self.parts() {
            part.spot.end();
            if part.names {
                part.spot.end_names();
            }
        }
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
    right: Right<'s>,
}

enum Right<'s> {
    /// To any change.
    Whole(Whole<'s>),
    /// To remove a name of a file that has several, or had.
    Departing(Departing<'s>),
}

impl<'s> Held<'s> {
    pub(super) fn lock(node: &'s Mnode) -> Self {
        Self { node, right: Right::Whole(node.lock()) }
    }

    /// Locks an inode of which this thread removes a name.
    pub(super) fn departing(node: &'s Mnode) -> Self {
        match node.share() {
            Some(departing) => Self { node, right: Right::Departing(departing) },
            None => Self::lock(node),
        }
    }

    /// The last change that the next one must be behind.
    pub(super) fn last(&self) -> Stamp {
        match &self.right {
            Right::Whole(whole) => whole.last(),
            Right::Departing(departing) => departing.last(),
        }
    }

    /// Notes a change.
    pub(super) fn note(&mut self, stamp: Stamp) {
        if let Right::Whole(whole) = &mut self.right {
            whole.note(stamp);
        }
    }

    /// The inode loses a name by the change with this stamp; a directory loses all. Returns whether it may have none.
    pub(super) fn lose_name(&mut self, stamp: Stamp, time: Timestamp) -> bool {
        let all = self.node.is_directory();
        let fewer = |links: u32| if all { 0 } else { links.saturating_sub(1) };
        match &mut self.right {
            Right::Whole(whole) => {
                whole.note(stamp);
                self.node.status.count_links(fewer, time) == 0
            }
            // Whoever adds them up finds out.
            Right::Departing(departing) => {
                departing.count(stamp, time);
                true
            }
        }
    }
}

/// Locks inodes, each once, in the order of their numbers.
pub(super) fn hold<'s>(mut of: Vec<(InodeNr, &'s Mnode)>) -> Vec<Held<'s>> {
    of.sort_unstable_by_key(|(inode, _)| *inode);
    of.dedup_by_key(|(inode, _)| *inode);
    of.into_iter().map(|(_, node)| Held::lock(node)).collect()
}
