//! Deletions that wait, and when they may go to the disk.

use std::collections::BTreeSet;

use floe_format::InodeNr;

use super::log::Log;
use super::record::Stamp;

/// Deletions that join a batch.
const MOST_JOIN: usize = 256;

/// Deletions that a batch looks at although none of its changes concerns their inodes.
const MOST_OTHERS: usize = 4;

/// Inodes without a name that nobody uses, whose deletion waits.
///
/// A deletion goes with the batch that takes the last other change of its inode: until then the inode takes a place in a list of orphans
/// on the disk, of which a cube has few. So it must be looked at once when it comes, and then whenever a change of its inode goes. Each
/// fsync makes a batch, so a look at all that wait would make it slower the more files were deleted before.
#[derive(Debug, Default)]
pub(crate) struct Deletions {
    /// Not looked at yet.
    fresh: Vec<InodeNr>,
    waiting: BTreeSet<InodeNr>,
    /// Where the others begin that are looked at next.
    cursor: InodeNr,
}

impl Deletions {
    /// The log has the deletion of an inode, its last change.
    pub(crate) fn add(&mut self, inode: InodeNr) {
        self.fresh.push(inode);
    }

    /// Adds to the changes of a batch, which are closed downward, the deletions that can go with them.
    pub(crate) fn join(&mut self, log: &Log, records: &mut BTreeSet<Stamp>) {
        if self.fresh.is_empty() && self.waiting.is_empty() {
            return;
        }
        let mut due = std::mem::take(&mut self.fresh);
        if !self.waiting.is_empty() {
            for record in records.iter().filter_map(|stamp| log.get(*stamp)) {
                record.each_mnode(|inode| {
                    if self.waiting.contains(&inode) {
                        due.push(inode);
                    }
                });
            }
            due.extend(self.others());
        }
        let mut joined = 0;
        for inode in due {
            if joined == MOST_JOIN {
                self.waiting.remove(&inode);
                self.fresh.push(inode);
                continue;
            }
            let mut outside = log.of_mnode(inode).filter(|stamp| !records.contains(stamp));
            match (outside.next(), outside.next()) {
                (None, _) => drop(self.waiting.remove(&inode)),
                (Some(deletion), None) => {
                    records.insert(deletion);
                    self.waiting.remove(&inode);
                    joined += 1;
                }
                _ => drop(self.waiting.insert(inode)),
            }
        }
    }

    /// A few by turns, should a change of theirs have gone in another way.
    fn others(&mut self) -> Vec<InodeNr> {
        let few: Vec<InodeNr> =
            self.waiting.range(self.cursor..).take(MOST_OTHERS).copied().collect();
        self.cursor = match few.last() {
            Some(last) if few.len() == MOST_OTHERS => InodeNr(last.0.saturating_add(1)),
            _ => InodeNr::default(),
        };
        few
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::super::record::{Action, OwnedPlace, Record};
    use super::*;
    use crate::Timestamp;

    fn record(action: Action) -> Record {
        Record { uid: 0, gid: 0, time: Timestamp::default(), action }
    }

    /// Unlinks a file in a directory; the stamps of both changes.
    fn delete(log: &mut Log, deletions: &mut Deletions, directory: u32, inode: u32) -> [Stamp; 2] {
        let (directory, inode) = (InodeNr(directory), InodeNr(inode));
        let place = OwnedPlace { directory, name: b"name".as_slice().into() };
        let unlinked = log.push(record(Action::Unlink { inode, place }));
        let deleted = log.push(record(Action::Release { inode }));
        deletions.add(inode);
        [unlinked, deleted]
    }

    fn joined(deletions: &mut Deletions, log: &Log, records: &[Stamp]) -> Vec<Stamp> {
        let mut all: BTreeSet<Stamp> = records.iter().copied().collect();
        deletions.join(log, &mut all);
        all.into_iter().collect()
    }

    #[test]
    fn a_deletion_goes_with_the_last_name() {
        let (mut log, mut deletions) = (Log::default(), Deletions::default());
        let [one, one_gone] = delete(&mut log, &mut deletions, 11, 20);
        let [other, other_gone] = delete(&mut log, &mut deletions, 12, 21);
        assert_eq!(joined(&mut deletions, &log, &[one]), [one, one_gone]);
        for stamp in [one, one_gone] {
            log.remove(stamp);
        }
        // The other one was looked at and waits until a change of its inode goes.
        assert_eq!(joined(&mut deletions, &log, &[other]), [other, other_gone]);
        assert!(deletions.waiting.is_empty() && deletions.fresh.is_empty());
    }

    #[test]
    fn a_deletion_whose_name_went_before_goes_at_once() {
        let (mut log, mut deletions) = (Log::default(), Deletions::default());
        let gone = log.push(record(Action::Release { inode: InodeNr(20) }));
        deletions.add(InodeNr(20));
        assert_eq!(joined(&mut deletions, &log, &[]), [gone]);
    }

    #[test]
    fn whatever_went_in_another_way_is_found_by_turns() {
        let (mut log, mut deletions) = (Log::default(), Deletions::default());
        let all: Vec<[Stamp; 2]> =
            (0..40).map(|at| delete(&mut log, &mut deletions, 11, 20 + at)).collect();
        assert!(joined(&mut deletions, &log, &[]).is_empty());
        for [unlinked, _] in &all {
            log.remove(*unlinked);
        }
        let turns = (0..10).flat_map(|_| joined(&mut deletions, &log, &[])).count();
        assert_eq!((turns, deletions.waiting.len()), (40, 0));
    }

    /// More than a batch takes; the rest goes with the next ones.
    #[test]
    fn a_batch_takes_so_many() {
        let (mut log, mut deletions) = (Log::default(), Deletions::default());
        let all = (0..600).map(|at| delete(&mut log, &mut deletions, 11, 20 + at));
        let unlinked: Vec<Stamp> = all.map(|[unlinked, _]| unlinked).collect();
        let counts = [&unlinked[..], &[], &[]].map(|records| {
            let taken = joined(&mut deletions, &log, records);
            taken.iter().for_each(|stamp| drop(log.remove(*stamp)));
            taken.len() - records.len()
        });
        assert_eq!(counts, [256, 256, 88]);
    }
}
