//! Absorption: what came and went between two flushes never reaches the disk.

use std::collections::BTreeSet;

use floe_format::InodeNr;

use super::log::Log;
use super::record::{Action, Record, Stamp};

/// Takes all changes of an inode out of the log that is gone for good, if its creation is among them; returns them, or
/// nothing if one of them must reach the disk.
///
/// All halves go together: each change that is taken out concerns the inode and directories that it had a name in, and no
/// other file. A rename stays that replaced another file, or that noted the directories above a new place; so does a directory
/// that has changes of its own in the log.
pub(crate) fn absorb(log: &mut Log, inode: InodeNr) -> Vec<Record> {
    let own = |action: &Action| match action {
        Action::Create { reserved, .. } => reserved.inode == inode,
        Action::Link { inode: of, .. }
        | Action::Unlink { inode: of, .. }
        | Action::RemoveDirectory { inode: of, .. }
        | Action::Change { inode: of, .. }
        | Action::SetAttribute { inode: of, .. } => *of == inode,
        Action::Rename { moved, replaced: None, ancestors, .. } => {
            *moved == inode && ancestors.is_empty()
        }
        Action::Rename { .. } | Action::Release { .. } => false,
    };
    let mut stamps: Vec<Stamp> = Vec::new();
    for (stamp, record) in log.records_of(inode) {
        let is_birth = matches!(record.action, Action::Create { .. });
        if stamps.is_empty() && !is_birth || !own(&record.action) {
            return Vec::new();
        }
        stamps.push(stamp);
    }
    stamps.into_iter().filter_map(|stamp| log.remove(stamp)).collect()
}

/// The directories that absorbed changes gave a name to or took one from: their times changed all the same.
pub(crate) fn directories(absorbed: &[Record], inode: InodeNr) -> BTreeSet<InodeNr> {
    let mut all = BTreeSet::new();
    for record in absorbed {
        record.each_mnode(|mnode| {
            all.insert(mnode);
        });
    }
    all.remove(&inode);
    all
}

#[cfg(test)]
mod tests {
    use floe_disk::ops::Reserved;

    use super::super::record::{BornKind, OwnedPlace, OwnedWay};
    use super::*;
    use crate::Timestamp;

    fn record(action: Action) -> Record {
        Record { uid: 0, gid: 0, time: Timestamp::default(), action }
    }

    fn place(directory: u32) -> OwnedPlace {
        OwnedPlace { directory: InodeNr(directory), name: b"n".as_slice().into() }
    }

    fn create(directory: u32, inode: u32) -> Record {
        record(Action::Create {
            place: place(directory),
            kind: BornKind::Directory,
            permissions: 0,
            umask: 0,
            reserved: Reserved { inode: InodeNr(inode), generation: 1 },
        })
    }

    #[test]
    fn a_file_that_came_and_went_leaves_the_log() {
        let mut log = Log::default();
        let inode = InodeNr(20);
        log.push(create(11, 20));
        log.push(create(11, 21));
        log.push(record(Action::Link { inode, place: place(12) }));
        log.push(record(Action::Unlink { inode, place: place(11) }));
        log.push(record(Action::Unlink { inode, place: place(12) }));
        let gone = absorb(&mut log, inode);
        assert_eq!(gone.len(), 4);
        assert_eq!(directories(&gone, inode), [InodeNr(11), InodeNr(12)].into());
        assert_eq!(log.len(), 1);
        assert!(!log.concerns(inode) && !log.concerns(InodeNr(12)));
    }

    #[test]
    fn what_the_disk_knows_or_replaced_another_stays() {
        let mut log = Log::default();
        let inode = InodeNr(20);
        log.push(record(Action::Unlink { inode, place: place(11) }));
        assert!(absorb(&mut log, inode).is_empty(), "its name is on the disk");
        log.push(create(11, 21));
        let (moved, replaced, ancestors) = (InodeNr(21), Some(InodeNr(5)), Box::default());
        let way = Box::new(OwnedWay { from: place(11), to: place(12) });
        log.push(record(Action::Rename { moved, replaced, way, ancestors }));
        log.push(record(Action::Unlink { inode: moved, place: place(12) }));
        assert!(absorb(&mut log, moved).is_empty(), "the file that it replaced must go");
        assert_eq!(log.len(), 4);
    }

    #[test]
    fn what_was_renamed_in_between_leaves_the_log_as_well() {
        let mut log = Log::default();
        let rename = |moved, from, to, ancestors: &[u32]| {
            record(Action::Rename {
                moved: InodeNr(moved),
                replaced: None,
                way: Box::new(OwnedWay { from: place(from), to: place(to) }),
                ancestors: ancestors.iter().copied().map(InodeNr).collect(),
            })
        };
        let inode = InodeNr(20);
        log.push(create(11, 20));
        log.push(rename(20, 11, 12, &[]));
        log.push(record(Action::Unlink { inode, place: place(12) }));
        let gone = absorb(&mut log, inode);
        assert_eq!((gone.len(), log.len()), (3, 0));
        assert_eq!(directories(&gone, inode), [InodeNr(11), InodeNr(12)].into());
        // A directory that was moved below others, or that another was moved through.
        log.push(create(11, 20));
        log.push(rename(20, 11, 12, &[13]));
        assert!(absorb(&mut log, inode).is_empty());
        log.push(create(11, 21));
        log.push(rename(22, 11, 12, &[21]));
        assert!(absorb(&mut log, InodeNr(21)).is_empty());
    }

    #[test]
    fn a_directory_with_changes_of_children_stays() {
        let mut log = Log::default();
        log.push(create(2, 20));
        log.push(create(20, 21));
        assert!(absorb(&mut log, InodeNr(20)).is_empty());
    }
}
