//! How each edit is made. One file an object, named as in `check/checks`.

use std::collections::BTreeSet;

use floe_format::InodeNr;

use crate::edit::{Edit, InodeEdit, MapEdit};
use crate::failure::Failure;
use crate::stage::Stage;

mod bad_blocks;
mod bitmaps;
mod connectivity;
mod dirents;
mod extent_order;
mod group_desc;
mod htree;
mod inline_data;
mod inodes;
mod journal;
mod maps;
mod mmp;
mod orphan_file;
mod orphans;
mod quota;
mod resize_inode;
mod shared_blocks;
mod superblock;
mod xattrs;

pub(crate) use connectivity::serves_as_lost_found;
pub(crate) use group_desc::misplaced_tables;
pub(crate) use mmp::clean as clean_mmp;
pub(crate) use shared_blocks::SharedLedger;
pub(crate) use superblock::{first_meta_bg, time};
pub(crate) use xattrs::mended_value_size;

/// What came of an edit, and what is to be said of it.
pub type Made = (Result<(), Failure>, Vec<String>);

/// Makes edits in order.
pub fn apply_all(stage: &mut Stage<'_>, edits: &[Edit]) -> Vec<Made> {
    let together = |one: &Edit, other: &Edit| match (one, other) {
        // All changes of one map at once: each is written anew once.
        (Edit::Map { inode: left, .. }, Edit::Map { inode: right, .. }) => left == right,
        _ => false,
    };
    let cleared: BTreeSet<InodeNr> = edits
        .iter()
        .filter_map(|edit| match edit {
            Edit::Inode { inode, edit: InodeEdit::Clear } => Some(*inode),
            _ => None,
        })
        .collect();
    let mut results = Vec::with_capacity(edits.len());
    for group in edits.chunk_by(together) {
        if let [Edit::Map { inode, .. }, ..] = group {
            if cleared.contains(inode) {
                // A map that cannot be right may lead to what others own: it is not followed.
                results.extend(group.iter().map(|_| (Ok(()), Vec::new())));
                continue;
            }
            let of_map: Vec<MapEdit> = group
                .iter()
                .filter_map(|edit| match edit {
                    Edit::Map { edit, .. } => Some(*edit),
                    _ => None,
                })
                .collect();
            let result = maps::apply_all(stage, *inode, &of_map);
            let text = result.as_ref().err().map(Failure::to_string);
            results.push((result, stage.take_notes()));
            for _ in 1..group.len() {
                let same = text.clone().map_or(Ok(()), |text| Err(Failure::Together(text)));
                results.push((same, Vec::new()));
            }
        } else {
            for edit in group {
                let result = apply(stage, edit);
                results.push((result, stage.take_notes()));
            }
        }
    }
    results
}

/// Makes one edit. The stage may hold a part of one that failed; the next examination judges it.
fn apply(stage: &mut Stage<'_>, edit: &Edit) -> Result<(), Failure> {
    match edit {
        Edit::Superblock(edit) => superblock::apply(stage, edit),
        Edit::Group { group, edit } => group_desc::apply(stage, *group, *edit),
        Edit::Journal(edit) => journal::apply(stage, edit),
        // Made before any round: nothing can be examined with a bad block.
        Edit::CleanMmp => Ok(()),
        Edit::Orphans(edit) => orphans::apply(stage, *edit),
        Edit::RecreateResizeInode => resize_inode::apply(stage),
        Edit::BadBlocks { blocks, replace } => bad_blocks::list(stage, blocks, *replace),
        Edit::NotBad { block } => bad_blocks::forget(stage, *block),
        Edit::Inode { inode, edit } => inodes::apply(stage, *inode, *edit),
        Edit::Map { inode, edit } => maps::apply_all(stage, *inode, &[*edit]),
        Edit::AttributeBlock { block, edit } => xattrs::apply(stage, *block, *edit),
        Edit::CloneShared { inode } => shared_blocks::clone(stage, *inode),
        Edit::Directory { dir, logical, edit } => dirents::apply(stage, *dir, *logical, *edit),
        Edit::Entry { dir, logical, offset_bytes, edit } => {
            dirents::apply_to_entry(stage, *dir, *logical, *offset_bytes, *edit)
        }
        Edit::Tree(edit) => connectivity::apply(stage, *edit),
        Edit::RebuildDirectory { dir } => htree::rebuild(stage, *dir),
        Edit::RebuildExtents { inode } => maps::rebuild(stage, *inode),
        Edit::Release { inode } => inodes::clear(stage, *inode),
        Edit::Attach { inode } => connectivity::attach(stage, *inode),
        Edit::LinkCount { inode, links } => inodes::set_links(stage, *inode, *links),
        Edit::GroupMaps { group } => bitmaps::write(stage, *group),
        Edit::Totals => bitmaps::write_totals(stage),
        Edit::QuotaFile { kind } => quota::rewrite(stage, kind),
        Edit::OrphanFile(edit) => orphan_file::apply(stage, *edit),
        Edit::Backups => {
            stage.write_backups();
            Ok(())
        }
    }
}
