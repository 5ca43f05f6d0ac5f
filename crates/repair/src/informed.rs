//! Better repairs than a finding alone asks for: what a backup, a count or a hash still says saves
//! what the plan would give up.

use floe_check::{Examination, Problem};
use floe_format::features::{Compat, Incompat};
use floe_format::{GroupNr, InodeNr};
use std::cell::LazyCell;

use crate::edit::{Edit, GroupEdit, SuperblockEdit, TreeEdit};
use crate::fixes;
use crate::plan::Wanted;
use crate::stage::Stage;

/// What is wanted, with better edits where there are any. `stage` is opened if one must be looked
/// for on the device.
pub(crate) fn informed<'a>(
    examination: &Examination<'_>,
    stage: &LazyCell<Stage<'a>, impl FnOnce() -> Stage<'a>>,
    wanted: Wanted,
) -> Wanted {
    let better = |(edit, cause): (Edit, Option<Problem>)| {
        let better = match (&edit, &cause) {
            (Edit::Tree(TreeEdit::CreateRoot), Some(_)) => used_after_all(examination, GroupNr(0)),
            (&Edit::GroupMaps { group }, Some(_)) => used_after_all(examination, group),
            (Edit::Superblock(SuperblockEdit::DropMetaBg), _) => fixes::first_meta_bg(stage)
                .map(|first| Edit::Superblock(SuperblockEdit::FirstMetaBg(first))),
            (
                Edit::Inode { .. },
                Some(
                    problem @ (Problem::XattrValueSizeBad { .. }
                    | Problem::XattrEaInodeNumberBad { .. }
                    | Problem::XattrHashBad { .. }),
                ),
            ) => fixes::mended_value(stage, problem),
            // All of its map is known: nothing is written to where a wrong pointer leads.
            (Edit::Map { inode: InodeNr::RESIZE, .. }, _) if has_resize_inode(examination) => {
                Some(Edit::RecreateResizeInode)
            }
            _ => None,
        };
        (better.unwrap_or(edit), cause)
    };
    wanted.into_iter().map(better).collect()
}

/// Whether inode 7 reserves blocks for growing.
fn has_resize_inode(examination: &Examination<'_>) -> bool {
    let volume = &examination.volume;
    volume.has_compat(Compat::RESIZE_INODE) && !volume.has_incompat(Incompat::META_BG)
}

/// A group whose descriptor says that its inodes were never used, and yet counts some that are: the
/// flag is wrong, not every file of the group. The first group always has the root.
fn used_after_all(examination: &Examination<'_>, group: GroupNr) -> Option<Edit> {
    let volume = &examination.volume;
    let per_group = volume.geometry.inodes_per_group;
    let desc = volume.group(group);
    let counted = desc.free_inodes_count < per_group && desc.itable_unused < per_group;
    (desc.inode_uninit() && volume.features().group_desc_csum() && (counted || group.0 == 0))
        .then_some(Edit::Group { group, edit: GroupEdit::ClearInodeUninit })
}
