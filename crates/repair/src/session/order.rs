//! Selects the edits that a round makes.

use std::collections::BTreeSet;

use floe_check::Problem;
use floe_format::InodeNr;
use floe_format::ext::inode::InodeFlags;

use crate::edit::{
    CubeEdit, DirectoryEdit, Edit, GroupEdit, InodeEdit, JournalEdit, Phase, SuperblockEdit,
    TreeEdit,
};
use crate::plan::Wanted;
use crate::proof::{clears_garbage, is_of_special};

/// The edits of the first phase that has any. As long as a phase changes nothing that others depend
/// on, the edits of the next one too: the examination already counted their result.
pub(super) fn first_phases(mut wanted: Wanted) -> Wanted {
    let phases: BTreeSet<Phase> = wanted.keys().map(Edit::phase).collect();
    let disturbs =
        |phase: &Phase| wanted.keys().any(|edit| edit.phase() == *phase && !edit.is_quiet());
    let last = phases.iter().copied().find(disturbs);
    if let Some(last) = last {
        wanted.retain(|edit, _| edit.phase() <= last);
    }
    wanted
}

/// If the bad block list is damaged, repairs only the list, so that nothing is moved off blocks
/// that it wrongly lists. (e2fsck restarts in that case.) Not if its inode was read from a
/// misplaced inode table or with a wrong inode size, because the edit would be written there.
pub(super) fn without_a_wrong_list(mut wanted: Wanted) -> Wanted {
    let of_table = |edit: &Edit| {
        matches!(
            edit,
            Edit::Group { edit: GroupEdit::InodeTableFromBackup, .. }
                | Edit::Superblock(SuperblockEdit::Revision1)
        )
    };
    if wanted.keys().any(of_table) {
        return wanted;
    }
    let of_list = |cause: &Option<Problem>| {
        matches!(
            cause,
            Some(
                Problem::BadblocksListContainsItself { .. } | Problem::BadblocksInodeInvalid { .. }
            )
        )
    };
    if wanted.values().any(of_list) {
        wanted.retain(|_, cause| of_list(cause));
    }
    wanted
}

/// Defers writes to a journal that is to be dropped, because its blocks may belong to other owners.
pub(super) fn without_a_lost_journal(mut wanted: Wanted) -> Wanted {
    if wanted.contains_key(&Edit::Journal(JournalEdit::Drop)) {
        wanted.retain(|edit, _| match edit {
            Edit::Journal(edit) => *edit == JournalEdit::Drop,
            _ => true,
        });
    }
    wanted
}

/// Where an attribute proves that an inode holds its value although the inode has another type, hash or size, nothing else counts
/// that was found about that inode: its value is no directory, and no device lacks a number.
pub(super) fn without_misread_values(mut wanted: Wanted) -> Wanted {
    let is_of_value = |edit: &Edit, cause: &Option<Problem>| match cause {
        Some(
            Problem::EaInodeModeBad { .. }
            | Problem::XattrEaInodeFlagMissing { .. }
            | Problem::EaInodeDeleted { .. }
            | Problem::EaInodeWithAttributes { .. }
            | Problem::InodeChecksumBad { .. },
        ) => true,
        // These concern the inode with the value, not that with the attribute.
        Some(
            problem @ (Problem::XattrHashBad { .. }
            | Problem::XattrValueSizeBad { .. }
            | Problem::XattrEaInodeNumberBad { .. }),
        ) => edit.inode() != problem.inode(),
        _ => false,
    };
    let misread: BTreeSet<InodeNr> = wanted
        .iter()
        .filter(|(edit, cause)| {
            is_of_value(edit, cause) && !matches!(cause, Some(Problem::InodeChecksumBad { .. }))
        })
        .filter_map(|(edit, _)| edit.inode())
        .collect();
    wanted.retain(|edit, cause| {
        edit.inode().is_none_or(|inode| !misread.contains(&inode)) || is_of_value(edit, cause)
    });
    wanted
}

/// Defers deletions of devices, FIFOs and sockets for their flags, and of inodes amid garbage with their names, as long as
/// directories are to be salvaged: an entry that cannot be read yet may prove what they are.
pub(super) fn until_names_are_read(mut wanted: Wanted) -> Wanted {
    let salvages =
        |edit: &Edit| matches!(edit, Edit::Directory { edit: DirectoryEdit::Salvage, .. });
    if !wanted.keys().any(salvages) {
        return wanted;
    }
    let amid_garbage: BTreeSet<InodeNr> = wanted.iter().filter_map(clears_garbage).collect();
    wanted.retain(|edit, cause| match (edit, cause) {
        (Edit::Inode { inode, edit: InodeEdit::Clear }, cause) => {
            !is_of_special(cause) && !amid_garbage.contains(inode)
        }
        (Edit::Entry { .. }, Some(Problem::DirentInodeUnused { inode_named, .. })) => {
            !amid_garbage.contains(inode_named)
        }
        _ => true,
    });
    wanted
}

/// The edits of one phase that are made now. Findings that rest on a wrong geometry, or on a
/// directory of the wrong type, are judged again after that repair; until then the free space is
/// unknown too.
pub(super) fn in_turn(wanted: Wanted) -> Wanted {
    let locates = |edit: &Edit| {
        matches!(
            edit,
            Edit::Superblock(
                SuperblockEdit::FirstMetaBg(_)
                    | SuperblockEdit::DropMetaBg
                    // Inodes of revision 0 have a different size.
                    | SuperblockEdit::Revision1
                    | SuperblockEdit::PrimaryFromBackup
            ) | Edit::Group { edit: GroupEdit::InodeTableFromBackup, .. }
        )
    };
    let moves = wanted
        .keys()
        .any(|edit| locates(edit) && *edit != Edit::Superblock(SuperblockEdit::PrimaryFromBackup));
    let directories: BTreeSet<InodeNr> = wanted
        .keys()
        .filter_map(|edit| match edit {
            Edit::Inode { inode, edit: InodeEdit::BecomeDirectory } => Some(*inode),
            _ => None,
        })
        .collect();
    let makes_own = wanted.contains_key(&Edit::OwnDirectories);
    let attaches = wanted.keys().any(|edit| matches!(edit, Edit::Attach { .. }));
    let waits = |edit: &Edit| match edit {
        Edit::Inode { edit: InodeEdit::BecomeDirectory, .. } => false,
        Edit::Inode { inode, .. } | Edit::Map { inode, .. } => directories.contains(inode),
        // Files without a name may need the directory of the cube, which then comes back.
        Edit::Cube { edit: CubeEdit::Rebuild, .. } => attaches || moves,
        // It may be one of the directories that get their places back.
        Edit::Tree(TreeEdit::Reconnect(_)) => makes_own || (moves && !locates(edit)),
        _ => moves && !locates(edit),
    };
    wanted.into_iter().filter(|(edit, _)| !waits(edit)).collect()
}

/// Defers edits that a later examination will judge better: deletions of files that may be intact
/// once their other damage is repaired, such as a symlink with a wrong flag, a directory marked as
/// a FIFO, or a device with the inline data flag. (e2fsck defers them for the same reason.)
pub(super) fn without_hasty_edits(wanted: Wanted) -> Wanted {
    let mended: BTreeSet<InodeNr> = wanted
        .keys()
        .filter_map(|edit| match edit {
            Edit::Inode { edit: InodeEdit::Clear | InodeEdit::Checksum, .. } => None,
            Edit::Inode { inode, .. } | Edit::Map { inode, .. } => Some(*inode),
            _ => None,
        })
        .collect();
    let says_where = (InodeFlags::EXTENTS | InodeFlags::INLINE_DATA).bits();
    let remapped: BTreeSet<InodeNr> = wanted
        .keys()
        .filter_map(|edit| match edit {
            Edit::Map { edit, .. } if edit.keeps_entries() => None,
            Edit::Map { inode, .. } => Some(*inode),
            Edit::Inode {
                inode,
                edit: InodeEdit::SetFlags(flags) | InodeEdit::ClearFlags(flags),
            } if flags & says_where != 0 => Some(*inode),
            _ => None,
        })
        .collect();
    let without_attributes: BTreeSet<InodeNr> = wanted
        .keys()
        .filter_map(|edit| match edit {
            Edit::Inode { inode, edit: InodeEdit::DropAttributeBlock } => Some(*inode),
            _ => None,
        })
        .collect();
    let special = special_files(&wanted);
    let is_hasty = |edit: &Edit, cause: &Option<Problem>| {
        // Size and block count depend on the repaired map, on flags that decide whether there is a
        // map, and on the attribute block: a short symlink without blocks stores its target in the
        // inode. A block count of zero holds even without the attribute block.
        if let Edit::Inode { inode, edit: of_map @ (InodeEdit::Size(_) | InodeEdit::Sectors(_)) } =
            edit
        {
            let may_count = !matches!(of_map, InodeEdit::Sectors(0));
            return remapped.contains(inode) || (may_count && without_attributes.contains(inode));
        }
        let may_wait =
            matches!(cause, Some(Problem::SymlinkInvalid { .. })) || is_of_special(cause);
        let of_its_data = matches!(
            cause,
            Some(
                Problem::InlineDataFlagUnsupported { .. } | Problem::ExtentsFlagUnsupported { .. }
            )
        );
        if let Edit::Inode {
            inode,
            edit: InodeEdit::EmptyInline | InodeEdit::InlineDirectorySize,
        } = edit
        {
            // The words of the map hold the device number.
            return special.contains(inode);
        }
        let Edit::Inode { inode, edit: InodeEdit::Clear } = edit else { return false };
        (may_wait && mended.contains(inode)) || (of_its_data && special.contains(inode))
    };
    let with_attribute = with_mended_attribute(&wanted);
    let waits = |edit: &Edit, cause: &Option<Problem>| {
        is_hasty(edit, cause)
            || edit.inode().is_some_and(|inode| with_attribute.contains(&inode)) && is_of_data(edit)
    };
    wanted.into_iter().filter(|(edit, cause)| !waits(edit, cause)).collect()
}

/// Leaves only the deletion of what is deleted. Any other edit of such an inode would take it back in part, as one that sets its
/// deletion time to 0, or follow its map, which may lead to blocks of other owners.
pub(super) fn without_edits_of_cleared(mut wanted: Wanted) -> Wanted {
    let clears = |edit: &Edit| match edit {
        Edit::Inode { inode, edit: InodeEdit::Clear | InodeEdit::Zero }
        | Edit::Release { inode } => Some(*inode),
        _ => None,
    };
    let cleared: BTreeSet<InodeNr> = wanted.keys().filter_map(clears).collect();
    wanted.retain(|edit, _| {
        clears(edit).is_some() || edit.inode().is_none_or(|inode| !cleared.contains(&inode))
    });
    wanted
}

/// Devices and FIFOs, which have no data even if their flags say so.
fn special_files(wanted: &Wanted) -> BTreeSet<InodeNr> {
    let special = |cause: &Option<Problem>| match cause {
        Some(Problem::SpecialFileExtentsOrInlineFlag { inode, .. }) => Some(*inode),
        _ => None,
    };
    wanted.values().filter_map(special).collect()
}

/// Inodes with a repaired attribute that may hold their data.
fn with_mended_attribute(wanted: &Wanted) -> BTreeSet<InodeNr> {
    let mended = |edit: &Edit| match edit {
        Edit::Inode {
            inode,
            edit:
                InodeEdit::ValueHere { .. }
                | InodeEdit::AttributeName { .. }
                | InodeEdit::SalvageAttributes { .. },
        } => Some(*inode),
        _ => None,
    };
    wanted.keys().filter_map(mended).collect()
}

/// Whether an edit follows from findings about the data of an inode.
const fn is_of_data(edit: &Edit) -> bool {
    matches!(
        edit,
        Edit::Inode {
            edit: InodeEdit::EmptyInline
                | InodeEdit::InlineDirectorySize
                | InodeEdit::Size(_)
                | InodeEdit::Sectors(_)
                | InodeEdit::Clear,
            ..
        }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edit::MapEdit;
    use floe_format::{BlockNr, GroupNr, LogicalBlock};

    fn map(edits: Vec<(Edit, Option<Problem>)>) -> Wanted {
        edits.into_iter().collect()
    }

    fn of(inode: u32, edit: InodeEdit) -> Edit {
        Edit::Inode { inode: InodeNr(inode), edit }
    }

    fn edits(wanted: &Wanted) -> Vec<&Edit> {
        wanted.keys().collect()
    }

    #[test]
    fn a_round_ends_with_the_first_phase_that_disturbs() {
        let counts = Edit::GroupMaps { group: GroupNr(0) };
        let quiet = of(12, InodeEdit::DtimeZero);
        let wanted = map(vec![(quiet.clone(), None), (counts.clone(), None)]);
        assert_eq!(edits(&first_phases(wanted)), [&quiet, &counts]);
        let disturbing = of(12, InodeEdit::Clear);
        let wanted = map(vec![(disturbing.clone(), None), (counts.clone(), None)]);
        assert_eq!(edits(&first_phases(wanted)), [&disturbing]);
        let ground = Edit::Superblock(SuperblockEdit::RandomUuid);
        let wanted = map(vec![(ground.clone(), None), (disturbing, None), (counts, None)]);
        assert_eq!(edits(&first_phases(wanted)), [&ground]);
        assert!(first_phases(Wanted::new()).is_empty());
    }

    #[test]
    fn what_may_be_whole_is_not_deleted_in_haste() {
        let inode = InodeNr(12);
        let clear = of(12, InodeEdit::Clear);
        let invalid = Some(Problem::SymlinkInvalid { inode, size: 4, reason: "" });
        // Alone it is made; beside another repair it is deferred.
        let wanted = map(vec![(clear.clone(), invalid.clone())]);
        assert_eq!(edits(&without_hasty_edits(wanted)), [&clear]);
        let flags = of(12, InodeEdit::ClearFlags(8));
        let wanted = map(vec![(clear.clone(), invalid), (flags.clone(), None)]);
        assert_eq!(edits(&without_hasty_edits(wanted)), [&flags]);
        // A device has no data regardless of its flags; a file has.
        let unsupported = Some(Problem::InlineDataFlagUnsupported { inode });
        let special = Some(Problem::SpecialFileExtentsOrInlineFlag { inode, flags: 8 });
        let wanted = map(vec![(clear.clone(), unsupported.clone()), (flags.clone(), special)]);
        assert_eq!(edits(&without_hasty_edits(wanted)), [&flags]);
        let wanted = map(vec![(clear.clone(), unsupported), (flags.clone(), None)]);
        assert_eq!(edits(&without_hasty_edits(wanted)), [&clear, &flags]);
        let empty = of(12, InodeEdit::EmptyInline);
        let special = Some(Problem::SpecialFileExtentsOrInlineFlag { inode, flags: 8 });
        let wanted = map(vec![(empty.clone(), None), (flags.clone(), special)]);
        assert_eq!(edits(&without_hasty_edits(wanted)), [&flags]);
        let wanted = map(vec![(empty.clone(), None), (flags.clone(), None)]);
        assert_eq!(edits(&without_hasty_edits(wanted)), [&flags, &empty]);
    }

    #[test]
    fn nothing_is_written_where_a_wrong_inode_table_makes_it_look_free() {
        let table = Edit::Group { group: GroupNr(0), edit: GroupEdit::InodeTableFromBackup };
        let resize = Edit::RecreateResizeInode;
        let primary = Edit::Superblock(SuperblockEdit::PrimaryFromBackup);
        let wanted = map(vec![(table.clone(), None), (resize.clone(), None)]);
        assert_eq!(edits(&in_turn(wanted)), [&table]);
        let wanted = map(vec![(primary.clone(), None), (resize.clone(), None)]);
        assert_eq!(edits(&in_turn(wanted)), [&primary, &resize]);
    }

    #[test]
    fn counts_of_blocks_wait_for_maps_and_attributes() {
        let sectors = of(12, InodeEdit::Sectors(2));
        let logical = LogicalBlock(0);
        let hole = MapEdit::ZeroPointer { logical, level: 0, block: BlockNr(9) };
        let hole = Edit::Map { inode: InodeNr(12), edit: hole };
        for other in [hole, of(12, InodeEdit::DropAttributeBlock)] {
            let wanted = map(vec![(sectors.clone(), None), (other.clone(), None)]);
            assert_eq!(edits(&without_hasty_edits(wanted)), [&other]);
        }
        // Edits of the flags that decide whether there is a map cause the same deferral.
        let flags = of(12, InodeEdit::ClearFlags(InodeFlags::INLINE_DATA.bits()));
        let wanted = map(vec![(of(12, InodeEdit::Sectors(0)), None), (flags.clone(), None)]);
        assert_eq!(edits(&without_hasty_edits(wanted)), [&flags]);
        let other = of(13, InodeEdit::DropAttributeBlock);
        let wanted = map(vec![(sectors.clone(), None), (other.clone(), None)]);
        assert_eq!(edits(&without_hasty_edits(wanted)), [&sectors, &other]);
        // A short symlink whose attribute block never belonged to it.
        let (none, other) = (of(12, InodeEdit::Sectors(0)), of(12, InodeEdit::DropAttributeBlock));
        let wanted = map(vec![(none.clone(), None), (other.clone(), None)]);
        assert_eq!(edits(&without_hasty_edits(wanted)), [&none, &other]);
    }

    #[test]
    fn data_wait_for_the_attribute_that_may_hold_them() {
        let here = of(12, InodeEdit::ValueHere { block: BlockNr(0), offset_bytes: 0 });
        let empty = of(12, InodeEdit::EmptyInline);
        let other = of(13, InodeEdit::EmptyInline);
        let all = [&here, &empty, &other].map(|edit| (edit.clone(), None));
        assert_eq!(edits(&without_hasty_edits(map(all.to_vec()))), [&here, &other]);
    }

    #[test]
    fn a_journal_that_goes_is_not_written_to() {
        let journal = |edit| (Edit::Journal(edit), None);
        let wanted = map(vec![journal(JournalEdit::Drop), journal(JournalEdit::Reset)]);
        let left = without_a_lost_journal(wanted);
        assert_eq!(edits(&left), [&Edit::Journal(JournalEdit::Drop)]);
        let wanted = map(vec![journal(JournalEdit::ClearError), journal(JournalEdit::Reset)]);
        assert_eq!(without_a_lost_journal(wanted).len(), 2);
    }

    #[test]
    fn a_wrong_list_of_bad_blocks_goes_first_and_alone() {
        let list = of(1, InodeEdit::ZeroBase);
        let itself = Some(Problem::BadblocksListContainsItself {
            inode: InodeNr::BAD_BLOCKS,
            block: BlockNr(11),
        });
        let other = Edit::NotBad { block: BlockNr(1) };
        let wanted = map(vec![(list.clone(), itself), (other.clone(), None)]);
        assert_eq!(edits(&without_a_wrong_list(wanted)), [&list]);
        assert_eq!(edits(&without_a_wrong_list(map(vec![(other.clone(), None)]))), [&other]);
        // The inode table was misplaced, so that was not the list.
        let itself =
            Some(Problem::BadblocksInodeInvalid { inode: InodeNr::BAD_BLOCKS, reason: "" });
        let table = Edit::Group { group: GroupNr(0), edit: GroupEdit::InodeTableFromBackup };
        let wanted = map(vec![(list, itself), (table, None)]);
        assert_eq!(without_a_wrong_list(wanted.clone()), wanted);
    }
}
