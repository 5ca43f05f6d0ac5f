//! Carries out the edits. One file per object, named as in `check/checks`.

use floe_format::InodeNr;

use crate::edit::{Edit, MapEdit, TreeEdit};
use crate::failure::Failure;
use crate::stage::Stage;

mod backpointers;
mod bad_blocks;
mod bitmaps;
mod connectivity;
mod cube_top;
mod cubes;
mod dirents;
mod extent_order;
mod gathered;
mod group_desc;
mod home;
mod htree;
mod inline_data;
mod inodes;
mod journal;
mod lost_found;
mod lots;
mod maps;
mod mmp;
mod names;
mod orphan_file;
mod orphan_values;
mod orphans;
mod own_directories;
mod quota;
mod reservations;
mod resize_inode;
mod shared_blocks;
mod superblock;
mod xattr_values;
mod xattrs;

pub(crate) use gathered::{finds_lost_blocks, size_of_newer_map};
pub(crate) use group_desc::misplaced_tables;
pub(crate) use mmp::clean as clean_mmp;
pub(crate) use superblock::{first_meta_bg, time};
pub(crate) use xattr_values::{better_than_dropping, flipped_attribute_block};

/// Result of an edit, and notes for the report.
pub type Made = (Result<(), Failure>, Vec<String>);

/// Carries out edits in order.
pub(crate) fn apply_all(stage: &mut Stage<'_>, edits: &[Edit]) -> Vec<Made> {
    let together = |one: &Edit, other: &Edit| match (one, other) {
        // Make all changes of one map together, so that the map is rebuilt once.
        (Edit::Map { inode: left, .. }, Edit::Map { inode: right, .. }) => left == right,
        // Open a directory only once.
        (Edit::Directory { dir: left, .. }, Edit::Directory { dir: right, .. })
        | (Edit::Entry { dir: left, .. }, Edit::Entry { dir: right, .. }) => left == right,
        // Read the places of orphans only once.
        (Edit::Orphans(_), Edit::Orphans(_))
        | (Edit::Attach { .. }, Edit::Attach { .. })
        | (Edit::Tree(TreeEdit::Reconnect(_)), Edit::Tree(TreeEdit::Reconnect(_)))
        // Open the file system for writing only once.
        | (Edit::MoveHome { .. }, Edit::MoveHome { .. })
        | (Edit::MoveInode { .. }, Edit::MoveInode { .. }) => true,
        _ => false,
    };
    let mut results = Vec::with_capacity(edits.len());
    for group in edits.chunk_by(together) {
        match group.first() {
            Some(Edit::Map { inode, .. }) => results.extend(map(stage, *inode, group)),
            Some(Edit::Directory { dir, .. } | Edit::Entry { dir, .. }) => {
                results.extend(dirents::apply_all(stage, *dir, group));
            }
            Some(Edit::Orphans(_)) => results.extend(orphans::apply_all(stage, group)),
            Some(Edit::Attach { .. }) => {
                results.extend(lost_found::enter_all(stage, &inodes(group), |_, _, _| Ok(())));
            }
            Some(Edit::Tree(TreeEdit::Reconnect(_))) => {
                results.extend(connectivity::reconnect(stage, &inodes(group)));
            }
            Some(Edit::MoveInode { .. }) => {
                results.extend(home::move_inodes(stage, &inodes(group)));
            }
            Some(Edit::MoveHome { .. }) => results.extend(home::move_all(stage, &inodes(group))),
            _ => results.extend(group.iter().map(|edit| {
                let result = apply(stage, edit);
                (result, stage.take_notes())
            })),
        }
    }
    results
}

/// The inodes that edits change.
fn inodes(edits: &[Edit]) -> Vec<InodeNr> {
    edits.iter().filter_map(Edit::inode).collect()
}

/// Makes all changes of one map.
fn map(stage: &mut Stage<'_>, inode: InodeNr, edits: &[Edit]) -> Vec<Made> {
    let of_map = |edit: &Edit| match edit {
        Edit::Map { edit, .. } => Some(*edit),
        _ => None,
    };
    let of_map: Vec<MapEdit> = edits.iter().filter_map(of_map).collect();
    let result = maps::apply_all(stage, inode, &of_map);
    let same = |_| (result.as_ref().map_err(Failure::again).copied(), Vec::new());
    let others: Vec<Made> = edits.iter().skip(1).map(same).collect();
    let mut made = vec![(result, stage.take_notes())];
    made.extend(others);
    made
}

/// Makes one edit. A failed edit may leave partial changes in the stage; the next examination
/// judges them.
fn apply(stage: &mut Stage<'_>, edit: &Edit) -> Result<(), Failure> {
    match edit {
        Edit::Superblock(edit) => superblock::apply(stage, edit),
        Edit::Group { group, edit } => group_desc::apply(stage, *group, *edit),
        Edit::Journal(edit) => journal::apply(stage, edit),
        // Made before the first round, because a bad MMP block stops any examination.
        Edit::CleanMmp => Ok(()),
        Edit::RecreateResizeInode => resize_inode::apply(stage),
        Edit::BadBlocks { blocks, replace } => bad_blocks::list(stage, blocks, *replace),
        Edit::NotBad { block } => bad_blocks::forget(stage, *block),
        Edit::Inode { inode, edit } => inodes::apply(stage, *inode, *edit),
        Edit::Map { inode, edit } => maps::apply_all(stage, *inode, &[*edit]),
        Edit::AttributeBlock { block, edit } => xattrs::apply(stage, *block, *edit),
        Edit::CloneShared { inode } => shared_blocks::clone(stage, *inode),
        // Handled together with others of their kind.
        Edit::Directory { .. }
        | Edit::Entry { .. }
        | Edit::Attach { .. }
        | Edit::Orphans(_)
        | Edit::MoveInode { .. }
        | Edit::MoveHome { .. } => Ok(()),
        Edit::Tree(edit) => connectivity::apply(stage, *edit),
        Edit::RebuildDirectory { dir } => htree::rebuild(stage, *dir),
        Edit::RebuildExtents { inode } => maps::rebuild(stage, *inode),
        Edit::Release { inode } => inodes::clear(stage, *inode),
        Edit::LinkCount { inode, links } => inodes::set_links(stage, *inode, *links),
        Edit::GroupMaps { group } => bitmaps::write(stage, *group),
        Edit::Totals => bitmaps::write_totals(stage),
        Edit::Reservation { group, edit } => reservations::apply(stage, *group, *edit),
        Edit::OwnDirectories => own_directories::make(stage),
        Edit::Backpointers => {
            backpointers::mend(stage);
            Ok(())
        }
        Edit::Cube { cube, edit } => cubes::apply(stage, *cube, *edit),
        Edit::QuotaFile { kind } => quota::rewrite(stage, kind),
        Edit::OrphanFile(edit) => orphan_file::apply(stage, *edit),
        Edit::Backups => {
            stage.write_backups();
            Ok(())
        }
    }
}
