//! Defines the safe changes: they remove, truncate or replace no user data, name or attribute, and
//! switch off no feature that protects data. `docs/automation.md` lists them.
//!
//! A match without a catch-all arm, so that every new change must be classified.

use floe_check::Problem;

use crate::edit::{
    AttributeBlockEdit, CubeEdit, DirectoryEdit, Edit, EntryEdit, GroupEdit, InodeEdit,
    JournalEdit, MapEdit, OrphanEdit, OrphanFileEdit, ReservationEdit, SuperblockEdit, TreeEdit,
};

/// Whether the change for a finding is safe. A change that is not may still be harmless; a person
/// must judge it.
pub(crate) fn is_safe(edit: &Edit, problem: Option<&Problem>) -> bool {
    match edit {
        Edit::Superblock(edit) => superblock(edit),
        Edit::Group { edit, .. } => group(*edit),
        // Nothing is lost, but as long as nothing is written, any tool can tell what a damaged log has.
        Edit::Journal(JournalEdit::FlipBack(_)) => {
            matches!(problem, Some(Problem::EmptyJournalSuperblockBit { .. }))
        }
        Edit::Journal(edit) => journal(edit),
        // Another host may be using the file system.
        Edit::CleanMmp => false,
        // Inodes on the list were deleted by their owner, and every mount releases them.
        Edit::Orphans(edit) => matches!(edit, OrphanEdit::Finish(_)),
        // Later writes may go to a block that does not retain them.
        Edit::NotBad { .. } | Edit::BadBlocks { .. } => false,
        Edit::Inode { edit, .. } => inode(*edit, problem),
        Edit::Map { edit, .. } => match edit {
            MapEdit::Checksum { .. }
            | MapEdit::Depth { .. }
            | MapEdit::Header { .. }
            | MapEdit::IndexStarts
            | MapEdit::ToExtents => true,
            MapEdit::RemoveExtent { .. }
            | MapEdit::ZeroPointer { .. }
            | MapEdit::CutAt { .. }
            | MapEdit::CloseGap { .. }
            | MapEdit::MarkWritten
            | MapEdit::Gather => false,
        },
        // One of the files holds another's data, and afterwards only the report tells which.
        Edit::CloneShared { .. } => false,
        Edit::Directory { edit, .. } => match edit {
            DirectoryEdit::Fill | DirectoryEdit::Checksum | DirectoryEdit::TrimDot => true,
            DirectoryEdit::Salvage
            | DirectoryEdit::Empty
            | DirectoryEdit::MakeDot
            | DirectoryEdit::MakeDotdot => false,
        },
        Edit::Entry { edit, .. } => match edit {
            EntryEdit::Type(_) => true,
            EntryEdit::Clear | EntryEdit::LegalCharacters | EntryEdit::ValidText => false,
        },
        Edit::Tree(edit) => match edit {
            TreeEdit::CreateLostFound | TreeEdit::Reconnect(_) | TreeEdit::Parent { .. } => true,
            TreeEdit::CreateRoot | TreeEdit::UnlinkLostFound | TreeEdit::Unlink { .. } => false,
        },
        // Deletes an inode, although an empty one.
        Edit::Release { .. } => false,
        // It may hold the only copy of the latest changes.
        Edit::Cube { edit: CubeEdit::Journal, .. } => {
            !matches!(problem, Some(Problem::CubeJournalDamaged { .. }))
        }
        Edit::Cube { .. } => true,
        Edit::OrphanFile(edit) => match edit {
            OrphanFileEdit::Forget
            | OrphanFileEdit::Adopt(_)
            | OrphanFileEdit::Clean
            | OrphanFileEdit::ClearPresent => true,
            OrphanFileEdit::Remove | OrphanFileEdit::Recreate => false,
        },
        Edit::Reservation { edit, .. } => *edit != ReservationEdit::Empty,
        Edit::AttributeBlock { edit, .. } => !matches!(edit, AttributeBlockEdit::Salvage { .. }),
        Edit::RecreateResizeInode
        | Edit::RebuildDirectory { .. }
        | Edit::RebuildExtents { .. }
        // The inode had no name, and gets one.
        | Edit::Attach { .. }
        | Edit::LinkCount { .. }
        | Edit::GroupMaps { .. }
        | Edit::Totals
        | Edit::QuotaFile { .. }
        | Edit::Backpointers
        | Edit::OwnDirectories
        | Edit::MoveInode { .. }
        | Edit::MoveHome { .. }
        | Edit::Backups => true,
    }
}

fn superblock(edit: &SuperblockEdit) -> bool {
    use SuperblockEdit as E;
    match edit {
        E::RandomUuid
        | E::NativeIdentity
        | E::InodesCount(_)
        | E::Revision1
        | E::ClearTestFlag
        | E::HashSignedness
        | E::MountTimeNow
        | E::WriteTimeNow
        | E::MinExtraIsize(_)
        | E::WantExtraIsize(_)
        | E::DefaultHash
        | E::NoEncryptionLevel
        | E::NoReservedDescriptors
        | E::SetCompat(_)
        | E::SetIncompat(_)
        | E::SetRoCompat(_)
        | E::NoJournalDevice
        | E::DropFastCommit
        | E::MadeByLinux
        | E::MmpBlock(_)
        | E::AsExamined(_)
        | E::MendQuotaInode(_)
        | E::ProjectQuotaInode(_)
        | E::MoveQuotaInode(_) => true,
        E::PrimaryFromBackup
        | E::PrimaryFromJournal
        | E::FirstMetaBg(_)
        | E::InodesPerGroup(_)
        | E::DescriptorSize(_)
        | E::DropMetaBg
        | E::DropResizeInodeFeature
        | E::DropChecksumSeed
        | E::DropGroupChecksums
        | E::DropFiletype
        | E::DropMmp
        | E::ClearRoCompat(_) => false,
    }
}

fn group(edit: GroupEdit) -> bool {
    match edit {
        GroupEdit::Distrust
        | GroupEdit::ClearUninit
        | GroupEdit::ItableUnusedZero
        | GroupEdit::ClearBlockUninit
        | GroupEdit::ClearInodeUninit
        | GroupEdit::PlaceBlockBitmap
        | GroupEdit::PlaceInodeBitmap
        | GroupEdit::MoveBlockBitmap
        | GroupEdit::MoveInodeBitmap
        | GroupEdit::LotRecord => true,
        GroupEdit::PlaceInodeTable
        | GroupEdit::InodeTableFromBackup
        | GroupEdit::MoveInodeTable => false,
    }
}

fn journal(edit: &JournalEdit) -> bool {
    match edit {
        JournalEdit::Replay
        | JournalEdit::ZeroStaleFields
        | JournalEdit::Version2
        | JournalEdit::Bounds { .. }
        | JournalEdit::FastCommits(_)
        | JournalEdit::OneUser
        | JournalEdit::ClearError
        | JournalEdit::Create
        | JournalEdit::BackUpMap
        | JournalEdit::Hide(_)
        | JournalEdit::ExternalChecksum => true,
        // The journal may hold the only copy of the latest changes.
        JournalEdit::Drop
        | JournalEdit::Reset
        | JournalEdit::LoseTransactions
        | JournalEdit::LoseFastCommits
        | JournalEdit::FlipBack(_)
        | JournalEdit::Forget
        | JournalEdit::ClearNeedsRecovery => false,
    }
}

fn inode(edit: InodeEdit, problem: Option<&Problem>) -> bool {
    use InodeEdit as E;
    match edit {
        // Only if the size grows: a smaller size hides data from the user.
        E::Size(to) => {
            matches!(problem, Some(Problem::InodeSizeWrong { stored, .. }) if to >= *stored)
        }
        // Internal inodes have no user attributes to lose.
        E::ExtraIsize | E::DropAttributeBlock | E::DropOwnAttributes | E::ClearFlags(_)
            if is_of_special_inode(problem) =>
        {
            true
        }
        E::Checksum
        | E::Keep
        | E::FlipBack(_)
        | E::DtimeZero
        | E::DtimeNow
        | E::SettleDtime
        | E::Sectors(_)
        | E::FaddrZero
        | E::FragZero
        | E::FsizeZero
        | E::BlocksHighZero
        | E::Epoch(_)
        | E::EaReferences(_) => true,
        E::Clear
        | E::Zero
        | E::ZeroBase
        | E::Mode(_)
        | E::BecomeDirectory
        | E::SetFlags(_)
        | E::Undelete
        | E::ClearFlags(_)
        | E::SizeHighZero
        | E::FileAclHighZero
        | E::DropAttributeBlock
        | E::DropOwnAttributes
        | E::SalvageAttributes { .. }
        | E::ValueHash(_)
        | E::ExtraIsize
        | E::EmptyInline
        | E::InlineDirectorySize
        | E::ValueSize { .. }
        | E::ValueHere { .. }
        | E::AttributeName { .. }
        | E::AccessList { .. } => false,
    }
}

/// Whether the finding is about a field of an internal inode that holds no user data.
fn is_of_special_inode(problem: Option<&Problem>) -> bool {
    matches!(
        problem,
        Some(
            Problem::SpecialInodeExtraSizeBad { .. }
                | Problem::SpecialInodeAttributeBlockBad { .. }
                | Problem::SpecialInodeAttributesBad { .. }
                | Problem::SpecialInodeFlagBad { .. }
        )
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edit::Loss;
    use floe_format::InodeNr;

    #[test]
    fn a_file_may_grow_and_not_shrink() {
        let inode = InodeNr(12);
        let to = |stored, expected| {
            let edit = Edit::Inode { inode, edit: InodeEdit::Size(expected) };
            is_safe(&edit, Some(&Problem::InodeSizeWrong { inode, stored, expected }))
        };
        assert!(to(10, 20) && to(10, 10) && !to(20, 10));
        assert!(!is_safe(&Edit::Inode { inode, edit: InodeEdit::Size(1) }, None));
    }

    #[test]
    fn what_costs_something_is_not_safe() {
        let inode = InodeNr(12);
        let edits = [
            Edit::Inode { inode, edit: InodeEdit::Clear },
            Edit::CloneShared { inode },
            Edit::Release { inode },
            Edit::Directory {
                dir: inode,
                logical: floe_format::LogicalBlock(0),
                edit: DirectoryEdit::Salvage,
            },
        ];
        for edit in edits {
            assert!(edit.loss() > Loss::Moved && !is_safe(&edit, None), "{edit:?}");
        }
        assert!(is_safe(&Edit::Attach { inode }, None), "it is in lost+found, whole");
    }
}
