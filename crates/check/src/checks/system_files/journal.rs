//! Check: Linux can use the journal with the features of the file system, which it adds to the journal
//! when it mounts.
//! Reads: the journal superblock.  Keeps: nothing.  Emits: `JournalVersionTooOld`,
//! `FastCommitAreaTooLarge`, `ExternalJournalWithoutUser`.
//! Does not verify: anything that prevents recovery (`floe_ext4::journal::find`).

use floe_ext4::journal::{Journal, JournalPlace};
use floe_format::InodeNr;
use floe_format::ext::jbd2::{JournalIncompat, fast_commit_area, leaves_room};
use floe_format::features::{Compat, Features, Incompat};

use crate::problem::{Problem, Sink};

/// Judges a journal that can be recovered, of a file system with these features.
pub(crate) fn check_mountable(journal: &Journal, features: Features, found: &mut impl Sink) {
    // Without the feature Linux does not look at a journal.
    if !features.compat.contains(Compat::HAS_JOURNAL) {
        return;
    }
    let superblock = &journal.superblock;
    let inode = match journal.place {
        JournalPlace::Inode(inode) | JournalPlace::InodeBackup(inode) => Some(inode),
        JournalPlace::External => None,
    };
    let fast_commits = features.compat.contains(Compat::FAST_COMMIT);
    if !superblock.is_v2() {
        let of_version_2 = features.metadata_csum()
            || features.incompat.contains(Incompat::BIT64)
            || fast_commits
            || inode.is_none();
        if of_version_2 {
            found.push(Problem::JournalVersionTooOld { inode: inode.unwrap_or(InodeNr(0)) });
        }
        return;
    }
    if inode.is_none() && superblock.nr_users == 0 {
        found.push(Problem::ExternalJournalWithoutUser);
    }
    // With the journal's own feature, a wrong area prevents recovery.
    let waits = fast_commits && !superblock.incompat().contains(JournalIncompat::FAST_COMMIT);
    let stored = superblock.stored_fast_commit_blocks();
    if waits && !leaves_room(superblock.maxlen, stored) {
        found.push(Problem::FastCommitAreaTooLarge {
            stored,
            blocks: superblock.maxlen,
            expected: fast_commit_area(superblock.maxlen).unwrap_or(0),
        });
    }
}
