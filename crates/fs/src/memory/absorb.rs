//! Absorption: what came and went between two flushes never reaches the disk.

use floe_format::InodeNr;

use super::log::Log;
use super::record::{Action, Record};

/// Takes all changes of an inode out of the log that is gone for good, if its creation is among them, and calls `each` for
/// them; `false` if one of them must reach the disk.
///
/// All halves go together: each change that is taken out concerns the inode and directories that it had a name in, and no
/// other file. A rename stays that replaced another file, or that noted the directories above a new place; so does a directory
/// that has changes of its own in the log.
pub(crate) fn absorb(log: &mut Log, inode: InodeNr, each: impl FnMut(&Record)) -> bool {
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
    let is_birth = |action: &Action| matches!(action, Action::Create { .. });
    let may_go = |first: bool, action: &Action| (!first || is_birth(action)) && own(action);
    log.remove_all_of(inode, may_go, each)
}

/// The directories that an absorbed change gave a name to or took one from: their times changed all the same.
pub(crate) fn directories(absorbed: &Record, inode: InodeNr, mut each: impl FnMut(InodeNr)) {
    absorbed.each_mnode(|mnode| {
        if mnode != inode {
            each(mnode);
        }
    });
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use floe_disk::ops::Reserved;

    use super::super::record::{BornKind, OwnedPlace, OwnedWay};
    use super::*;
    use crate::Timestamp;

    /// The absorbed changes, and the directories whose times changed.
    fn absorbed(log: &mut Log, inode: InodeNr) -> (usize, BTreeSet<InodeNr>) {
        let (mut count, mut touched) = (0, BTreeSet::new());
        let done = absorb(log, inode, |record| {
            count += 1;
            directories(record, inode, |directory| touched.extend([directory]));
        });
        assert_eq!(done, count > 0);
        (count, touched)
    }

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
        assert_eq!(absorbed(&mut log, inode), (4, [InodeNr(11), InodeNr(12)].into()));
        assert_eq!(log.len(), 1);
        assert!(!log.concerns(inode) && !log.concerns(InodeNr(12)));
    }

    #[test]
    fn what_the_disk_knows_or_replaced_another_stays() {
        let mut log = Log::default();
        let inode = InodeNr(20);
        log.push(record(Action::Unlink { inode, place: place(11) }));
        assert!(absorbed(&mut log, inode).1.is_empty(), "its name is on the disk");
        log.push(create(11, 21));
        let (moved, replaced, ancestors) = (InodeNr(21), Some(InodeNr(5)), Box::default());
        let way = Box::new(OwnedWay { from: place(11), to: place(12) });
        log.push(record(Action::Rename { moved, replaced, way, ancestors }));
        log.push(record(Action::Unlink { inode: moved, place: place(12) }));
        assert!(absorbed(&mut log, moved).1.is_empty(), "the file that it replaced must go");
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
        assert_eq!(absorbed(&mut log, inode), (3, [InodeNr(11), InodeNr(12)].into()));
        assert_eq!(log.len(), 0);
        // A directory that was moved below others, or that another was moved through.
        log.push(create(11, 20));
        log.push(rename(20, 11, 12, &[13]));
        assert!(absorbed(&mut log, inode).1.is_empty());
        log.push(create(11, 21));
        log.push(rename(22, 11, 12, &[21]));
        assert!(absorbed(&mut log, InodeNr(21)).1.is_empty());
    }

    #[test]
    fn a_directory_with_changes_of_children_stays() {
        let mut log = Log::default();
        log.push(create(2, 20));
        log.push(create(20, 21));
        assert!(absorbed(&mut log, InodeNr(20)).1.is_empty());
    }
}
