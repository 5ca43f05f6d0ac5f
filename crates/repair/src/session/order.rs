//! Which of the edits that are wanted a round makes.

use std::collections::{BTreeMap, BTreeSet};

use floe_check::Problem;
use floe_format::InodeNr;

use crate::edit::{Edit, InodeEdit, MapEdit, Phase};

/// The edits of the first phase that has some; and, as long as a phase changes nothing that others are
/// found by, those of the next: the examination counted as things will be then.
pub(super) fn first_phases(
    mut wanted: BTreeMap<Edit, Option<Problem>>,
) -> BTreeMap<Edit, Option<Problem>> {
    let phases: BTreeSet<Phase> = wanted.keys().map(Edit::phase).collect();
    let disturbs =
        |phase: &Phase| wanted.keys().any(|edit| edit.phase() == *phase && !edit.is_quiet());
    let last = phases.iter().copied().find(disturbs);
    if let Some(last) = last {
        wanted.retain(|edit, _| edit.phase() <= last);
    }
    wanted
}

/// Where the list of bad blocks cannot be right, it goes first: nothing is moved away from blocks that
/// it calls bad. (e2fsck starts again then.)
pub(super) fn without_a_wrong_list(
    mut wanted: BTreeMap<Edit, Option<Problem>>,
) -> BTreeMap<Edit, Option<Problem>> {
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

/// Leaves out what a later examination will judge better: deletions of files that may be whole once
/// what else is wrong with them is mended: a symbolic link with a wrong flag, a directory that was
/// taken for a pipe, a device that says its data is in the inode. (e2fsck judges them later for that
/// reason.)
pub(super) fn without_hasty_edits(
    wanted: BTreeMap<Edit, Option<Problem>>,
) -> BTreeMap<Edit, Option<Problem>> {
    let mended: BTreeSet<InodeNr> = wanted
        .keys()
        .filter_map(|edit| match edit {
            Edit::Inode { edit: InodeEdit::Clear | InodeEdit::Checksum, .. } => None,
            Edit::Inode { inode, .. } | Edit::Map { inode, .. } => Some(*inode),
            _ => None,
        })
        .collect();
    let remapped: BTreeSet<InodeNr> = wanted
        .keys()
        .filter_map(|edit| match edit {
            Edit::Map { edit: MapEdit::Checksum { .. }, .. } => None,
            Edit::Map { inode, .. } => Some(*inode),
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
    // A device or pipe has no data, wherever its flags say that they are.
    let special: BTreeSet<InodeNr> = wanted
        .values()
        .filter_map(|cause| match cause {
            Some(Problem::SpecialFileExtentsOrInlineFlag { inode, .. }) => Some(*inode),
            _ => None,
        })
        .collect();
    let is_hasty = |edit: &Edit, cause: &Option<Problem>| {
        // Size and block count follow from the map as it will be, and the attribute block counts: that
        // a short symbolic link has no blocks says that its target is in the inode.
        if let Edit::Inode { inode, edit: InodeEdit::Size(_) | InodeEdit::Sectors(_) } = edit {
            return remapped.contains(inode) || without_attributes.contains(inode);
        }
        let may_wait = matches!(
            cause,
            Some(
                Problem::SymlinkInvalid { .. }
                    | Problem::CharDeviceInvalid { .. }
                    | Problem::BlockDeviceInvalid { .. }
                    | Problem::FifoInvalid { .. }
                    | Problem::SocketInvalid { .. }
            )
        );
        let of_its_data = matches!(
            cause,
            Some(
                Problem::InlineDataFlagUnsupported { .. } | Problem::ExtentsFlagUnsupported { .. }
            )
        );
        let Edit::Inode { inode, edit: InodeEdit::Clear } = edit else { return false };
        (may_wait && mended.contains(inode)) || (of_its_data && special.contains(inode))
    };
    wanted.into_iter().filter(|(edit, cause)| !is_hasty(edit, cause)).collect()
}
