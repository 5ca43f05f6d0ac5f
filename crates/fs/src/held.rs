//! Inodes that somebody uses, and how often: one whose last name goes stays until nobody does.
//!
//! Each slot counts by itself, below zero where another slot held what this one lets go. Only the sum counts, which
//! [`Held::settle`] makes.

use std::collections::BTreeSet;

use floe_format::InodeNr;
use floe_sync::atomic::{AtomicBool, Ordering};

use crate::by_number::ByNumber;
use crate::memory::apart::Apart;

/// Inodes that a slot counts before its counts are added to the others.
const MOST_COUNTED: usize = 1024;
/// Inodes without names that a slot notes, likewise.
const MOST_NAMELESS: usize = 64;

/// How often inodes are held, as of the last sum.
#[derive(Debug, Default)]
pub(crate) struct Held {
    times: ByNumber<InodeNr, i64>,
    /// Those that have no name any more, or never had one.
    nameless: BTreeSet<InodeNr>,
}

/// Counts of one slot since then.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    /// The number of the slot.
    number: usize,
    times: ByNumber<InodeNr, i64>,
    nameless: Vec<InodeNr>,
}

/// Which slots have noted an inode without a name since the last sum.
#[derive(Debug)]
pub(crate) struct Unsettled(Box<[Apart<AtomicBool>]>);

impl Unsettled {
    /// None of these has, which are numbered here.
    pub(crate) fn of<'c>(slots: impl IntoIterator<Item = &'c mut Counted>) -> Self {
        let number = |(number, slot): (usize, &mut Counted)| {
            slot.number = number;
            Apart::default()
        };
        Self(slots.into_iter().enumerate().map(number).collect())
    }

    /// A slot has.
    pub(crate) fn note(&self, slot: &Counted) {
        self.0.get(slot.number).into_iter().for_each(|noted| noted.store(true, Ordering::Relaxed));
    }

    pub(crate) fn is_any(&self) -> bool {
        self.0.iter().any(|noted| noted.load(Ordering::Relaxed))
    }

    /// All are added up.
    pub(crate) fn clear(&self) {
        self.0.iter().for_each(|noted| noted.store(false, Ordering::Relaxed));
    }
}

impl Counted {
    /// Holds an inode so many times more, or fewer.
    pub(crate) fn add(&mut self, inode: InodeNr, times: i64) {
        let count = self.times.entry(inode).or_default();
        *count = count.saturating_add(times);
        if *count == 0 {
            self.times.remove(&inode);
        }
    }

    /// Notes that an inode has no name.
    pub(crate) fn note_nameless(&mut self, inode: InodeNr) {
        self.nameless.push(inode);
    }

    /// Whether so much was counted that it is to be added up.
    pub(crate) fn is_full(&self) -> bool {
        self.times.len() > MOST_COUNTED || self.nameless.len() > MOST_NAMELESS
    }

    /// Whether an inode is noted as one without a name.
    pub(crate) fn has_nameless(&self, inode: InodeNr) -> bool {
        self.nameless.contains(&inode)
    }

    /// Whether any is.
    pub(crate) const fn has_any_nameless(&self) -> bool {
        !self.nameless.is_empty()
    }
}

impl Held {
    /// Adds up what slots have counted; `has_name` judges inodes noted as nameless, which another name may have. Returns inodes
    /// without names that nobody holds; they are forgotten here.
    pub(crate) fn settle<'c>(
        &mut self,
        slots: impl IntoIterator<Item = &'c mut Counted>,
        has_name: impl Fn(InodeNr) -> bool,
    ) -> Vec<InodeNr> {
        // Those that nobody may hold any more: others are as many as files are known to the kernel.
        let mut fewer = Vec::new();
        for slot in slots {
            for (inode, times) in slot.times.drain() {
                let count = self.times.entry(inode).or_default();
                *count = count.saturating_add(times);
                if *count <= 0 {
                    fewer.push(inode);
                }
            }
            self.nameless.extend(slot.nameless.drain(..).filter(|inode| !has_name(*inode)));
        }
        for inode in fewer {
            // Another slot may have held it meanwhile.
            if self.times.get(&inode).is_some_and(|count| *count <= 0) {
                self.times.remove(&inode);
            }
        }
        let unused = self.nameless.iter().filter(|inode| !self.times.contains_key(inode));
        let unused: Vec<InodeNr> = unused.copied().collect();
        for inode in &unused {
            self.nameless.remove(inode);
        }
        unused
    }

    /// Whether somebody held an inode at the last sum.
    pub(crate) fn contains(&self, inode: InodeNr) -> bool {
        self.times.contains_key(&inode)
    }

    /// Whether an inode without a name was held at the last sum.
    pub(crate) fn has_nameless(&self) -> bool {
        !self.nameless.is_empty()
    }

    /// Whether an inode is noted as one without a name.
    pub(crate) fn is_nameless(&self, inode: InodeNr) -> bool {
        self.nameless.contains(&inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_names_goes_with_its_last_user() {
        let (mut held, inode) = (Held::default(), InodeNr(12));
        let mut slots = [Counted::default(), Counted::default()];
        slots[0].note_nameless(inode);
        assert_eq!(
            held.settle(&mut slots, |_| false),
            [inode],
            "nobody holds it: it can go at once"
        );
        slots[0].add(inode, 2);
        slots[1].note_nameless(inode);
        assert_eq!(held.settle(&mut slots, |_| false), []);
        slots[1].add(inode, -1);
        assert_eq!(held.settle(&mut slots, |_| false), []);
        assert!(held.contains(inode) && held.is_nameless(inode));
        slots[1].add(inode, -1);
        assert_eq!(held.settle(&mut slots, |_| false), [inode]);
        assert_eq!(held.settle(&mut slots, |_| false), [], "it is gone");
        assert!(!held.contains(inode) && !held.has_nameless());
    }

    #[test]
    fn one_slot_lets_go_what_another_holds() {
        let (mut held, inode) = (Held::default(), InodeNr(12));
        let mut slots = [Counted::default(), Counted::default()];
        slots[0].add(inode, 1);
        slots[1].add(inode, -1);
        slots[1].note_nameless(inode);
        assert!(slots[1].has_nameless(inode));
        assert_eq!(held.settle(&mut slots, |_| false), [inode]);
    }
}
