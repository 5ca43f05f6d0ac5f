//! Files whose count of links is zero although a directory names them: the count is wrong, not the name.
//!
//! A deletion takes the name first, sets the deletion time, and frees the inode in its bitmap. An inode that lacks all three, and whose
//! checksum is right, was never deleted. (e2fsck gives it a deletion time and drops the name.)

use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use floe_check::{Examination, Problem};
use floe_format::InodeNr;
use floe_format::ext::inode::FileType;

use crate::edit::{Edit, InodeEdit};
use crate::plan::Wanted;
use crate::stage::Stage;

/// Gives such inodes a link instead of a deletion time, and keeps their names. The next examination judges what they hold.
pub(crate) fn with_named_files<'a>(
    examination: &Examination<'_>,
    stage: &LazyCell<Stage<'a>, impl FnOnce() -> Stage<'a>>,
    mut wanted: Wanted,
) -> Wanted {
    let unlinked: BTreeMap<InodeNr, Problem> = wanted
        .iter()
        .filter_map(|(edit, cause)| match (edit, cause) {
            (
                Edit::Inode { inode, edit: InodeEdit::DtimeNow },
                Some(cause @ Problem::DeletedInodeDtimeMissing { .. }),
            ) => Some((*inode, cause.clone())),
            _ => None,
        })
        .collect();
    if unlinked.is_empty() {
        return wanted;
    }
    let named: BTreeSet<InodeNr> = wanted.values().filter_map(named_by_file_name).collect();
    let found = &examination.report.found;
    let is_marked = |inode: InodeNr| {
        found.iter().any(|problem| match *problem {
            Problem::InodeBitmapLeakedInode { inode: leaked, .. } => leaked == inode,
            Problem::InodeBitmapLeakedRange { inode: first, len, .. } => {
                (first.0..first.0.saturating_add(len)).contains(&inode.0)
            }
            _ => false,
        })
    };
    let is_doubted = |inode: InodeNr| {
        found.iter().any(|problem| {
            matches!(problem, Problem::InodeChecksumBad { inode: bad, .. } if *bad == inode)
        })
    };
    let has_type = |inode: InodeNr| {
        stage.read_inode(inode).is_ok_and(|image| FileType::of_mode(image.base.mode).is_some())
    };
    for (inode, cause) in unlinked {
        if !named.contains(&inode) || !is_marked(inode) || is_doubted(inode) || !has_type(inode) {
            continue;
        }
        wanted.remove(&Edit::Inode { inode, edit: InodeEdit::DtimeNow });
        wanted.retain(|_, cause| named_by_file_name(cause) != Some(inode));
        wanted.insert(Edit::Inode { inode, edit: InodeEdit::Undelete }, Some(cause));
    }
    wanted
}

/// The unused inode that an entry names, by a name that a user gave.
fn named_by_file_name(cause: &Option<Problem>) -> Option<InodeNr> {
    match cause {
        Some(Problem::DirentInodeUnused { inode_named, name, .. })
            if *name.0 != *b"." && *name.0 != *b".." =>
        {
            Some(*inode_named)
        }
        _ => None,
    }
}
