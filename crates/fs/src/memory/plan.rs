//! The fsync planner: which changes must reach the disk with those of an mnode.
//!
//! The rule: a set of changes may go to the disk before the others if it is closed downward, that is, if each earlier change
//! that shares an mnode with one of the set is in the set as well. Changes outside then share no mnode with later ones
//! inside, so they commute, and the disk passes through states that a program could have seen had it made its independent
//! changes in another order. `docs/fsync.md` derives the promises from this rule:
//!
//! - a name is never on disk before its inode, nor before the directories above it, because each creation concerns the new
//!   mnode and its directory;
//! - an unlink never takes the last name on disk from a file that has younger names in memory, because the link and the
//!   unlink concern the same mnode (maildir);
//! - a rename between directories takes both with it;
//! - a directory that was moved takes along what made its new place lie outside of it, because the rename notes the
//!   directories above.

use std::collections::BTreeSet;

use floe_format::InodeNr;

use super::log::Log;
use super::record::Stamp;
use crate::by_number::ByNumber;

/// The changes that concern one of `mnodes`, and all on which they depend: in the order of their stamps they can be applied
/// to the disk before all others.
pub(crate) fn plan(log: &Log, mnodes: impl IntoIterator<Item = InodeNr>) -> BTreeSet<Stamp> {
    plan_until(log, mnodes.into_iter().map(|mnode| (mnode, log.last())).collect())
}

/// The same, for the changes of each mnode up to a stamp.
pub(crate) fn plan_until(log: &Log, mut due: Vec<(InodeNr, Stamp)>) -> BTreeSet<Stamp> {
    let mut chosen = BTreeSet::new();
    // Up to which stamp the changes of an mnode are chosen.
    let mut done: ByNumber<InodeNr, Stamp> = ByNumber::default();
    while let Some((mnode, until)) = due.pop() {
        let from = done.insert(mnode, until);
        if let Some(from) = from.filter(|from| *from >= until) {
            done.insert(mnode, from);
            continue;
        }
        let new = |stamp: &Stamp| from.is_none_or(|from| *stamp > from);
        for stamp in log.of_mnode(mnode).rev().skip_while(|stamp| *stamp > until).take_while(new) {
            if chosen.insert(stamp)
                && let Some(record) = log.get(stamp)
            {
                record.each_mnode(|other| due.push((other, stamp)));
            }
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use floe_disk::ops::Reserved;
    use proptest::prelude::*;

    use super::super::record::{Action, BornKind, OwnedPlace, OwnedWay, Record};
    use super::*;
    use crate::Timestamp;

    fn place(directory: u32, name: &str) -> OwnedPlace {
        OwnedPlace { directory: InodeNr(directory), name: name.as_bytes().into() }
    }

    fn record(action: Action) -> Record {
        Record { uid: 0, gid: 0, time: Timestamp::default(), action }
    }

    fn create(directory: u32, name: &str, inode: u32) -> Record {
        record(Action::Create {
            place: place(directory, name),
            kind: BornKind::Regular,
            permissions: 0o644,
            umask: 0,
            reserved: Reserved { inode: InodeNr(inode), generation: 1 },
        })
    }

    fn stamps(log: &Log, mnode: u32) -> Vec<u64> {
        plan(log, [InodeNr(mnode)]).into_iter().map(|stamp| stamp.0).collect()
    }

    #[test]
    fn a_file_takes_its_name_and_the_directories_above() {
        let mut log = Log::default();
        log.push(create(2, "dir", 12)); // 1
        log.push(create(2, "other", 13)); // 2
        log.push(create(12, "file", 14)); // 3
        log.push(create(12, "later", 15)); // 4
        assert_eq!(stamps(&log, 14), [1, 3]);
        assert_eq!(stamps(&log, 13), [1, 2], "the root's changes before it, in their order");
        assert_eq!(stamps(&log, 12), [1, 3, 4]);
        assert_eq!(stamps(&log, 99), [0_u64; 0]);
    }

    #[test]
    fn an_unlink_takes_the_link_that_saves_the_file() {
        let mut log = Log::default();
        let inode = InodeNr(20);
        log.push(record(Action::Link { inode, place: place(12, "new") }));
        log.push(record(Action::Unlink { inode, place: place(11, "tmp") }));
        assert_eq!(stamps(&log, 11), [1, 2], "maildir: fsync of the old directory alone");
    }

    #[test]
    fn a_moved_directory_takes_what_moved_its_new_place_out_of_it() {
        // On disk: 11/d(21), 21/p(22), 22/e(23), 23/t(24). First e moves to 12, then d below t.
        let mut log = Log::default();
        let rename = |moved, from, to, ancestors: &[u32]| {
            record(Action::Rename {
                moved: InodeNr(moved),
                replaced: None,
                way: Box::new(OwnedWay { from: place(from, "x"), to: place(to, "x") }),
                ancestors: ancestors.iter().copied().map(InodeNr).collect(),
            })
        };
        log.push(rename(23, 22, 12, &[12, 2]));
        log.push(rename(21, 11, 24, &[24, 23, 12, 2]));
        assert_eq!(stamps(&log, 24), [1, 2]);
    }

    proptest! {
        /// The plan for any log is the least set that is closed downward and has the changes of the mnode.
        #[test]
        fn a_plan_is_closed_downward_and_no_larger(
            changes in prop::collection::vec((0u32..6, 0u32..6, any::<bool>()), 1..40),
            target in 0u32..6,
        ) {
            let mut log = Log::default();
            for (one, other, alone) in &changes {
                log.push(record(if *alone {
                    Action::Change { inode: InodeNr(*one), change: Box::default() }
                } else {
                    Action::Link { inode: InodeNr(*one), place: place(*other, "n") }
                }));
            }
            let mnodes = |stamp: Stamp| {
                let mut all = BTreeSet::new();
                if let Some(record) = log.get(stamp) {
                    record.each_mnode(|mnode| { all.insert(mnode); });
                }
                all
            };
            let all: Vec<Stamp> = (1..=changes.len() as u64).map(Stamp).collect();
            // The definition, by passes until nothing changes.
            let mut wanted: BTreeSet<Stamp> =
                all.iter().copied().filter(|one| mnodes(*one).contains(&InodeNr(target))).collect();
            loop {
                let more: Vec<Stamp> = all.iter().copied().filter(|early| {
                    !wanted.contains(early) && wanted.iter().any(|late| {
                        late > early && !mnodes(*late).is_disjoint(&mnodes(*early))
                    })
                }).collect();
                if more.is_empty() { break }
                wanted.extend(more);
            }
            prop_assert_eq!(plan(&log, [InodeNr(target)]), wanted);
        }
    }
}
