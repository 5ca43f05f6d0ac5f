//! Check: Linux can use the journal with the features of the file system, which it adds to the journal
//! when it mounts.
//! Reads: the journal superblock.  Keeps: nothing.  Emits: `JournalVersionTooOld`,
//! `FastCommitAreaTooLarge`, `ExternalJournalWithoutUser`.
//! Does not verify: anything that prevents recovery (`floe_ext4::journal::find`).

use floe_ext4::journal::{CubeJournal, Journal, JournalPlace, SuperblockDamage, inode_of};
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

/// Words for the journal that the superblock names, to follow its kind.
pub(crate) const fn root_words(inode: InodeNr) -> &'static str {
    match inode.0 {
        0 => "on the other device",
        _ => "of the file system",
    }
}

/// Words for a further journal, to follow its kind.
pub(crate) const fn words_of(own: &CubeJournal) -> &'static str {
    match own.cube {
        0 => "of a further journal",
        _ => "of a cube",
    }
}

/// Damage of a journal superblock that was overcome; `is_used`: the log may hold transactions.
const fn overcome(
    damage: SuperblockDamage,
    (log, inode): (&'static str, InodeNr),
    is_used: bool,
) -> Problem {
    let bit = match damage {
        SuperblockDamage::Bit(bit) => bit,
        SuperblockDamage::Rebuilt(reason) => {
            return Problem::JournalSuperblockLost { log, inode, reason };
        }
    };
    let (byte, bit) = (bit / 8, bit % 8);
    match is_used {
        true => Problem::JournalSuperblockBit { log, inode, byte, bit },
        false => Problem::EmptyJournalSuperblockBit { log, inode, byte, bit },
    }
}

/// The same of the journal that the superblock names.
pub(crate) fn root_damage(journal: &Journal) -> Option<Problem> {
    let inode = InodeNr(inode_of(journal));
    journal.damage.map(|damage| overcome(damage, (root_words(inode), inode), journal.needs_replay))
}

/// The same of a further journal. Without the mark of a file system in use its log is old.
pub(crate) fn superblock_damage(own: &CubeJournal, is_locked: bool) -> Option<Problem> {
    let is_used = is_locked && own.journal.needs_replay;
    own.journal.damage.map(|damage| overcome(damage, (words_of(own), own.inode), is_used))
}
