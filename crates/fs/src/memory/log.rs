//! The log of operations: all changes that the disk has not got yet, in their order, with an index by mnode.
//!
//! The paper's logs are per mnode and core, and merged by stamp. Here they are per slot ([`Own`](super::own::Own)), and are
//! merged before anybody looks at them: one map in the order of stamps is the merged log, and the logs of mnodes are lists of
//! stamps.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use floe_format::InodeNr;

use super::record::{Record, Stamp};

/// Changes that the disk has not got yet.
#[derive(Debug, Default)]
pub(crate) struct Log {
    records: BTreeMap<Stamp, Record>,
    /// The stamps of the changes that concern an mnode, ascending. No list is empty.
    of_mnodes: HashMap<InodeNr, VecDeque<Stamp>>,
    last: Stamp,
}

impl Log {
    /// Adds a change behind all others.
    pub(crate) fn push(&mut self, record: Record) -> Stamp {
        let stamp = Stamp(self.last.0 + 1);
        self.insert(stamp, record);
        stamp
    }

    /// Adds a change of this stamp. A slot may have logged it after others merged later ones, which share no lock with it.
    pub(crate) fn insert(&mut self, stamp: Stamp, record: Record) {
        self.last = self.last.max(stamp);
        record.each_mnode(|mnode| {
            let stamps = self.of_mnodes.entry(mnode).or_default();
            if stamps.back().is_none_or(|last| *last < stamp) {
                stamps.push_back(stamp);
            } else if let Err(at) = stamps.binary_search(&stamp) {
                stamps.insert(at, stamp);
            }
        });
        self.records.insert(stamp, record);
    }

    /// Takes a change out.
    pub(crate) fn remove(&mut self, stamp: Stamp) -> Option<Record> {
        let record = self.records.remove(&stamp)?;
        record.each_mnode(|mnode| {
            let Some(stamps) = self.of_mnodes.get_mut(&mnode) else { return };
            if let Ok(at) = stamps.binary_search(&stamp) {
                stamps.remove(at);
            }
            if stamps.is_empty() {
                self.of_mnodes.remove(&mnode);
            }
        });
        Some(record)
    }

    pub(crate) fn get(&self, stamp: Stamp) -> Option<&Record> {
        self.records.get(&stamp)
    }

    /// The stamps of the changes that concern an mnode, ascending.
    pub(crate) fn of_mnode(
        &self,
        mnode: InodeNr,
    ) -> impl DoubleEndedIterator<Item = Stamp> + use<'_> {
        self.of_mnodes.get(&mnode).into_iter().flatten().copied()
    }

    /// Whether a change concerns an mnode.
    pub(crate) fn concerns(&self, mnode: InodeNr) -> bool {
        self.of_mnodes.contains_key(&mnode)
    }

    /// The stamp of the last change that was ever pushed.
    pub(crate) const fn last(&self) -> Stamp {
        self.last
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// The oldest changes up to a stamp, at most so many.
    pub(crate) fn oldest(&self, until: Stamp, most: usize) -> BTreeSet<Stamp> {
        self.records.range(..=until).map(|(stamp, _)| *stamp).take(most).collect()
    }
}
