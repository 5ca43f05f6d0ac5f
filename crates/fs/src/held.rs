//! Inodes that somebody uses, and how often: one whose last name goes stays until nobody does.

use std::collections::HashMap;

use floe_format::InodeNr;
use floe_sync::{Mutex, MutexGuard, PoisonError};

/// How often inodes are held.
#[derive(Debug, Default)]
pub(crate) struct Held(Mutex<HashMap<InodeNr, Count>>);

#[derive(Debug, Default)]
struct Count {
    times: u64,
    /// It has no name any more.
    nameless: bool,
}

impl Held {
    fn table(&self) -> MutexGuard<'_, HashMap<InodeNr, Count>> {
        // Every change of it is one step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether somebody holds an inode.
    pub(crate) fn contains(&self, inode: InodeNr) -> bool {
        self.table().contains_key(&inode)
    }

    /// Whether an inode without a name is held.
    pub(crate) fn has_nameless(&self) -> bool {
        self.table().values().any(|count| count.nameless)
    }

    /// Holds an inode once more.
    pub(crate) fn add(&self, inode: InodeNr) {
        self.table().entry(inode).or_default().times += 1;
    }

    /// Holds an inode that has no name from the start.
    pub(crate) fn add_nameless(&self, inode: InodeNr) {
        let mut table = self.table();
        let count = table.entry(inode).or_default();
        count.times += 1;
        count.nameless = true;
    }

    /// Notes that the last name of an inode went; `false` if nobody holds it.
    pub(crate) fn note_nameless(&self, inode: InodeNr) -> bool {
        let mut table = self.table();
        let Some(count) = table.get_mut(&inode) else { return false };
        count.nameless = true;
        true
    }

    /// Notes that an inode has a name.
    pub(crate) fn note_named(&self, inode: InodeNr) {
        if let Some(count) = self.table().get_mut(&inode) {
            count.nameless = false;
        }
    }

    /// Lets go of an inode so many times; `true` if that was the last time and it has no name.
    pub(crate) fn drop_some(&self, inode: InodeNr, times: u64) -> bool {
        let mut table = self.table();
        let Some(count) = table.get_mut(&inode) else { return false };
        count.times = count.times.saturating_sub(times);
        if count.times > 0 {
            return false;
        }
        table.remove(&inode).is_some_and(|count| count.nameless)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_names_goes_with_its_last_user() {
        let (held, inode) = (Held::default(), InodeNr(12));
        assert!(!held.note_nameless(inode), "nobody holds it: it can go at once");
        held.add(inode);
        held.add(inode);
        assert!(held.note_nameless(inode));
        assert!(!held.drop_some(inode, 1));
        assert!(held.drop_some(inode, 1));
        assert!(!held.drop_some(inode, 1), "it is gone");
    }

    #[test]
    fn a_link_gives_a_nameless_file_a_name() {
        let (held, inode) = (Held::default(), InodeNr(12));
        held.add_nameless(inode);
        held.note_named(inode);
        assert!(!held.drop_some(inode, 1));
    }
}
