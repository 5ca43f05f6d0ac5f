//! Faults of journals in words, for messages.

use std::fmt;

use super::event::{InodeFault, JournalEvent, OrphanFault, RecoveryFault, SuperblockFault};

impl InodeFault {
    /// The fault of the inode of a journal, to follow a colon.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Number => "its number is not that of an inode",
            Self::Unreadable => "the inode cannot be read",
            Self::NotAJournalFile => "the inode is not that of a journal",
            Self::TooShort => "it has fewer than 1024 blocks",
            Self::Map => "its blocks cannot be found",
            Self::NoMagic => "it does not begin with a journal superblock",
            Self::BadSuperblock => "its superblock is damaged",
        }
    }
}

impl SuperblockFault {
    /// The fault of the superblock of a journal, to follow a colon.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::BlockType(_) => "it is another kind of journal block",
            Self::ChecksumVersions => "it names two kinds of checksums",
            Self::ChecksumType(_) => "its checksums are of an unknown kind",
            Self::Checksum => "its checksum is wrong",
            Self::BlockSize(_) => "its block size is not that of the file system",
            Self::TooLong { .. } => "it says to be longer than it is",
            Self::FastCommitArea(_) => "its area of fast commits leaves no room",
        }
    }
}

impl RecoveryFault {
    /// The fault of a transaction or of the log, to follow a colon.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::LogBounds => "the places where the log begins and ends contradict each other",
            Self::Unreadable { .. } => "a block of the log cannot be read",
            Self::ControlChecksum { .. } => "the checksum of a descriptor or revoke block is wrong",
            Self::EndsEarly { .. } => "it is not there, and later ones were committed",
            Self::RevokeCount { .. } => "a revoke block counts more than it holds",
            Self::DataChecksum { .. } => "the checksum of a data block is wrong",
            Self::TargetOutOfRange { .. } => "a block belongs outside the file system",
            Self::FastCommitFeatures { .. } => "they need features that are not known",
            Self::FastCommitDamaged => "one is damaged, and those behind it do not count",
            Self::FastCommitImpossible { .. } => "one asks for what cannot be done",
        }
    }
}

impl fmt::Display for RecoveryFault {
    fn fmt(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.reason();
        match self {
            Self::LogBounds | Self::Unreadable { .. } => into.write_str(reason),
            Self::ControlChecksum { sequence }
            | Self::EndsEarly { sequence }
            | Self::RevokeCount { sequence }
            | Self::DataChecksum { sequence, .. }
            | Self::TargetOutOfRange { sequence, .. } => {
                write!(into, "transaction {sequence} is damaged: {reason}")
            }
            Self::FastCommitFeatures { .. }
            | Self::FastCommitDamaged
            | Self::FastCommitImpossible { .. } => {
                write!(into, "the fast commits are damaged: {reason}")
            }
        }
    }
}

impl fmt::Display for OrphanFault {
    fn fmt(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stray { cube, inode } => {
                write!(into, "the orphans of cube {cube} name {inode} of another one")
            }
            Self::Head(inode) => write!(into, "the list of orphans begins with {inode}"),
            Self::Next { inode, next } => {
                write!(into, "{next} follows {inode} in the list of orphans")
            }
            Self::Loop(inode) => write!(into, "the list of orphans returns to {inode}"),
            Self::Unreadable(inode) => write!(into, "the orphan {inode} cannot be read"),
            Self::Slot(inode) => write!(into, "the orphan file names {inode}"),
            Self::Hole(_) => into.write_str("the orphan file has a hole"),
            Self::Magic(block) | Self::Checksum(block) => {
                write!(into, "{block} of the orphan file is damaged")
            }
            Self::Unaligned { .. } => into.write_str("the orphan file ends within a block"),
        }
    }
}

impl fmt::Display for JournalEvent {
    fn fmt(&self, into: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InodeInvalid { inode, fault } | Self::InodeFromBackup { inode, fault } => {
                write!(into, "the journal cannot be {inode}: {}", fault.reason())
            }
            Self::MultipleUsers { users } => {
                write!(into, "{users} file systems share the external journal")
            }
            Self::ExternalNotFound { .. } => into.write_str("the journal lies on another device"),
            Self::ExternalNotAJournal => into.write_str("the device holds no external journal"),
            Self::ExternalUuidMismatch { .. } => {
                into.write_str("the device holds the journal of another file system")
            }
            Self::ExternalChecksum => {
                into.write_str("the checksum of the external journal's superblock is wrong")
            }
            Self::SuperblockCorrupt { fault } => {
                write!(into, "the journal's superblock is damaged: {}", fault.reason())
            }
            Self::SuperblockBit { bit } => write!(
                into,
                "bit {} of byte {:#x} of the journal's superblock is wrong, as its checksum tells; floe repair corrects it",
                bit % 8,
                bit / 8
            ),
            Self::SuperblockRebuilt { reason } => {
                write!(into, "the journal's superblock is lost: {reason}; floe repair may help")
            }
            Self::BoundsWrong { .. } => into.write_str("the bounds of the log leave no room"),
            Self::PresentWithoutFeature => into.write_str("has_journal is not set"),
            Self::NeedsRecoveryWithoutJournal => {
                into.write_str("recovery is needed, but there is no journal")
            }
            Self::DataWithoutNeedsRecovery => {
                into.write_str("the log holds transactions, but needs_recovery is not set")
            }
            Self::UnknownRoCompat { bits } | Self::UnknownIncompat { bits } => {
                write!(into, "the journal has unknown features ({bits:#x})")
            }
            Self::UnknownVersion { .. } | Self::StaleV2Fields => {
                into.write_str("the journal's superblock is of another version")
            }
            Self::InodeNotReserved { inode } => write!(into, "the journal is {inode}"),
            Self::InodeBackupStale { .. } => {
                into.write_str("the copy of the journal's inode is out of date")
            }
            Self::ErrorRecorded { errno } => write!(into, "the journal recorded error {errno}"),
            Self::TransactionCorrupt { sequence } => write!(
                into,
                "transaction {sequence} is damaged: the checksum of its commit block is wrong"
            ),
            Self::EndsEarly { sequence, last } => write!(
                into,
                "transaction {sequence} is not there, and later ones, up to {last}, were committed"
            ),
            Self::RecoveryFailed(fault) => fault.fmt(into),
            Self::Orphan { inode } => write!(into, "{inode} is an orphan"),
            Self::OrphansDamaged(fault) => fault.fmt(into),
        }
    }
}

/// Events of a journal in one line.
pub fn in_words(events: &[JournalEvent]) -> String {
    let words: Vec<String> = events.iter().map(ToString::to_string).collect();
    words.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mount prints them as they are.
    #[test]
    fn faults_are_sentences() {
        let events = [
            JournalEvent::TransactionCorrupt { sequence: 6 },
            JournalEvent::RecoveryFailed(RecoveryFault::EndsEarly { sequence: 7 }),
        ];
        assert_eq!(
            in_words(&events),
            "transaction 6 is damaged: the checksum of its commit block is wrong; \
             transaction 7 is damaged: it is not there, and later ones were committed"
        );
    }
}
