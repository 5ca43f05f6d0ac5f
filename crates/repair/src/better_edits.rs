//! Improves on the edits that a finding alone suggests: a backup, a count or a hash may save data
//! that the plan would give up.

use floe_check::{Examination, Problem};
use floe_ext4::files::Files;
use floe_format::ext::crypt::MIN_NAME_LEN;
use floe_format::ext::indirect;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::features::{Compat, Incompat};
use floe_format::{BlockNr, GroupNr, InodeNr, LogicalBlock};
use std::cell::LazyCell;
use std::collections::{BTreeMap, BTreeSet};

use crate::edit::{
    AttributeBlockEdit, Edit, GroupEdit, InodeEdit, MapEdit, OrphanEdit, SuperblockEdit, TreeEdit,
};
use crate::fixes;
use crate::plan::Wanted;
use crate::stage::{InodeImage, Stage};

/// Replaces edits by better ones where possible. Opens `stage` only if it must read the device.
pub(crate) fn with_better_edits<'a>(
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
                Edit::Inode {
                    edit:
                        InodeEdit::DropAttributeBlock
                        | InodeEdit::AttributeName { .. }
                        | InodeEdit::AccessList { .. },
                    ..
                }
                | Edit::AttributeBlock { edit: AttributeBlockEdit::Checksum, .. },
                Some(problem),
            ) if let Some(edit) = fixes::flipped_attribute_block(stage, problem) => Some(edit),
            (
                Edit::Inode {
                    edit: InodeEdit::DropAttributeBlock | InodeEdit::DropOwnAttributes,
                    ..
                },
                Some(problem),
            ) => fixes::better_than_dropping(stage, problem),
            (
                &Edit::Map { inode, edit: MapEdit::CutAt { first } },
                Some(Problem::BlocksPastAgreedSize { .. }),
            ) => fixes::size_of_newer_map(stage, inode, first)
                .map(|size| Edit::Inode { inode, edit: InodeEdit::Size(size) }),
            // The whole map is known, so it is recreated without writing to the target of a wrong
            // pointer.
            (Edit::Map { inode: InodeNr::RESIZE, .. }, _) if has_resize_inode(examination) => {
                Some(Edit::RecreateResizeInode)
            }
            _ => None,
        };
        (better.unwrap_or(edit), cause)
    };
    let wanted = wanted.into_iter().map(better).collect();
    let wanted = with_plain_directories(examination, wanted);
    let wanted = without_used_values(with_named_files(examination, stage, wanted));
    with_gathered_blocks(stage, wanted)
}

/// The answers of `of` for each edit and the finding that asked for it.
fn those<T, C: FromIterator<T>>(
    wanted: &Wanted,
    of: impl Fn(&Edit, &Option<Problem>) -> Option<T>,
) -> C {
    wanted.iter().filter_map(|(edit, cause)| of(edit, cause)).collect()
}

/// Clears the mark of encryption of directories in which no entry agrees with it, instead of removing all their names.
fn with_plain_directories(examination: &Examination<'_>, mut wanted: Wanted) -> Wanted {
    let mut marked: BTreeMap<InodeNr, Problem> = those(&wanted, |_, cause| match cause {
        Some(cause @ Problem::EncryptedNameTooShort { dir, .. }) => Some((*dir, cause.clone())),
        _ => None,
    });
    let files = examination.volume.files();
    marked.retain(|dir, _| {
        let against = wanted.iter().filter(|(edit, cause)| contradicts_mark(edit, cause, *dir));
        holds_plain_names(&files, *dir, against.count())
    });
    for (dir, cause) in marked {
        wanted.retain(|edit, cause| !contradicts_mark(edit, cause, dir));
        let edit = InodeEdit::ClearFlags(InodeFlags::ENCRYPT.bits());
        wanted.insert(Edit::Inode { inode: dir, edit }, Some(cause));
    }
    wanted
}

/// Whether an edit removes an entry because the directory is marked as encrypted.
fn contradicts_mark(edit: &Edit, cause: &Option<Problem>, dir: InodeNr) -> bool {
    let of_marked = matches!(cause, Some(Problem::EncryptedNameTooShort { dir: of, .. }
        | Problem::EncryptedDirPlainFile { dir: of, .. }
        | Problem::EncryptedDirPolicyMismatch { dir: of, .. }) if *of == dir);
    of_marked && matches!(edit, Edit::Entry { .. })
}

/// Whether all entries of a directory contradict its mark of encryption, so many as `against` says, and one of them does so twice: its
/// name is too short for an encrypted one, and its file is not encrypted.
///
/// An encrypted file in a directory that is not is nothing unusual: each encrypted tree begins so, and Linux opens such a file.
fn holds_plain_names(files: &Files<'_>, dir: InodeNr, against: usize) -> bool {
    let listing = files.node(dir).and_then(|node| files.list(&node));
    let Ok(listing) = listing else { return false };
    let is_plain =
        |inode| files.node(inode).is_ok_and(|node| !node.flags().contains(InodeFlags::ENCRYPT));
    let named = listing.entries.iter().filter(|entry| entry.name != b"." && entry.name != b"..");
    let mut plain =
        named.clone().filter(|entry| entry.name.len() < MIN_NAME_LEN && is_plain(entry.inode));
    listing.faults.is_empty() && plain.next().is_some() && named.count() == against
}

/// Gives a link, instead of a deletion time, to inodes that a directory names although they count no links, and keeps their names.
///
/// A deletion takes the name first, sets the deletion time, and frees the inode in its bitmap. An inode that lacks all three, and whose
/// checksum is right, was never deleted. (e2fsck gives it a deletion time and drops the name.) The next examination judges what it
/// holds.
fn with_named_files<'a>(
    examination: &Examination<'_>,
    stage: &LazyCell<Stage<'a>, impl FnOnce() -> Stage<'a>>,
    mut wanted: Wanted,
) -> Wanted {
    let unlinked: BTreeMap<InodeNr, Problem> = those(&wanted, |edit, cause| match (edit, cause) {
        (
            Edit::Inode { inode, edit: InodeEdit::DtimeNow },
            Some(cause @ Problem::DeletedInodeDtimeMissing { .. }),
        ) => Some((*inode, cause.clone())),
        _ => None,
    });
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

/// Leaves an orphan alone that holds the value of an attribute: it gets its link back first, and is then no longer released.
fn without_used_values(mut wanted: Wanted) -> Wanted {
    let used: Vec<InodeNr> = those(&wanted, |edit, _| match edit {
        Edit::Inode { inode, edit: InodeEdit::Undelete } => Some(*inode),
        _ => None,
    });
    for inode in used {
        wanted.remove(&Edit::Orphans(OrphanEdit::Finish(inode)));
    }
    wanted
}

/// Whether a finding says that a map no longer leads to blocks of the file.
pub(crate) const fn loses_blocks(problem: &Problem) -> bool {
    matches!(
        problem,
        Problem::InodeExtentHeaderCorrupt { .. }
            | Problem::ExtentTreeWalkFailed { .. }
            | Problem::ExtentNodeHeaderCorrupt { .. }
            | Problem::ExtentStartOutOfRange { .. }
    )
}

/// Puts blocks back that damaged maps no longer lead to, where some are found that say whose they are, instead of giving up the file,
/// or besides removing the entry that led there.
fn with_gathered_blocks<'a>(
    stage: &LazyCell<Stage<'a>, impl FnOnce() -> Stage<'a>>,
    mut wanted: Wanted,
) -> Wanted {
    let damaged: Vec<(Edit, Option<Problem>)> = those(&wanted, |edit, cause| {
        let loses = match edit {
            Edit::Inode { edit: InodeEdit::Clear, .. } => cause.as_ref().is_some_and(loses_blocks),
            Edit::Map { edit, .. } => matches!(edit, MapEdit::RemoveExtent { .. }),
            _ => false,
        };
        loses.then(|| (edit.clone(), cause.clone()))
    });
    for (edit, cause) in damaged {
        let Some(inode) = edit.inode().filter(|inode| fixes::finds_lost_blocks(stage, *inode))
        else {
            continue;
        };
        if matches!(edit, Edit::Inode { .. }) {
            wanted.remove(&edit);
        }
        wanted.entry(Edit::Map { inode, edit: MapEdit::Gather }).or_insert(cause);
    }
    wanted
}

/// Removes the pointer to a block map node that overlaps metadata and does not look like pointers,
/// and keeps the rest of the file. Cloning such a node would map arbitrary blocks.
pub(crate) fn without_metadata_as_maps<'a>(
    examination: &Examination<'_>,
    stage: &LazyCell<Stage<'a>, impl FnOnce() -> Stage<'a>>,
    mut wanted: Wanted,
) -> Wanted {
    let cloned: BTreeSet<InodeNr> = those(&wanted, |edit, _| match edit {
        Edit::CloneShared { inode } => Some(*inode),
        _ => None,
    });
    for problem in &examination.report.found {
        let &Problem::MapNodeOverlapsCriticalMetadata { inode, logical, block } = problem else {
            continue;
        };
        if !cloned.contains(&inode) {
            continue;
        }
        let Some(level) = level_of_wrong_node(stage, inode, logical, block) else { continue };
        wanted.remove(&Edit::CloneShared { inode });
        let edit = Edit::Map { inode, edit: MapEdit::ZeroPointer { logical, level, block } };
        wanted.insert(edit, Some(problem.clone()));
    }
    wanted
}

/// The level of a block map node whose content is implausible: more than half of its pointers lead
/// to metadata, or one is out of range. `None`: it may be a node, or there is no such node.
fn level_of_wrong_node<'a>(
    stage: &LazyCell<Stage<'a>, impl FnOnce() -> Stage<'a>>,
    inode: InodeNr,
    logical: LogicalBlock,
    block: BlockNr,
) -> Option<u8> {
    let image = stage.read_inode(inode).ok()?;
    if image.flags().contains(InodeFlags::EXTENTS) {
        return None;
    }
    let bytes = stage.read_block(block).ok()?;
    let form = stage.geometry.indirect();
    let pointers = || indirect::pointers(form.body(&bytes)).filter(|word| *word != 0);
    let to_metadata = |word: &u32| stage.evidence.volume.is_metadata(BlockNr(u64::from(*word)));
    let leads_out = pointers().any(|word| !stage.geometry.contains(BlockNr(u64::from(word))));
    if !leads_out && 2 * pointers().filter(to_metadata).count() <= pointers().count() {
        return None;
    }
    level_of_node(stage, &image, logical, block)
}

/// The level of the block map node that covers `logical` and lies in `block`; `None` if there is
/// none.
fn level_of_node<'a>(
    stage: &LazyCell<Stage<'a>, impl FnOnce() -> Stage<'a>>,
    image: &InodeImage,
    logical: LogicalBlock,
    block: BlockNr,
) -> Option<u8> {
    let form = stage.geometry.indirect();
    let mut roots =
        indirect::pointers(&image.base.block).enumerate().filter_map(|(index, word)| {
            let (first, level) = form.root_slot(index)?;
            let behind = first.0 + form.span_blocks(level);
            (first..LogicalBlock(behind)).contains(&logical).then_some((first, level, word))
        });
    let (mut first, mut level, mut word) = roots.next()?;
    while level > 0 {
        let node = BlockNr(u64::from(word));
        if node == block && first == logical {
            return u8::try_from(level).ok();
        }
        let bytes = stage.read_block(node).ok()?;
        level -= 1;
        let span = form.span_blocks(level);
        let at = (logical.0 - first.0) / span;
        first = LogicalBlock(first.0 + at * span);
        word = indirect::pointers(form.body(&bytes)).nth(usize::try_from(at).ok()?)?;
    }
    None
}

/// Whether inode 7 is in use as the resize inode.
fn has_resize_inode(examination: &Examination<'_>) -> bool {
    let volume = &examination.volume;
    volume.has_compat(Compat::RESIZE_INODE) && !volume.has_incompat(Incompat::META_BG)
}

/// For a group with the inode bitmap marked uninitialised but a count of used inodes: the flag is
/// wrong, rather than every file of the group. The first group always has the root.
fn used_after_all(examination: &Examination<'_>, group: GroupNr) -> Option<Edit> {
    let volume = &examination.volume;
    let per_group = volume.geometry.inodes_per_group;
    let desc = volume.group(group);
    let counted = desc.free_inodes_count < per_group && desc.itable_unused < per_group;
    (desc.inode_uninit() && volume.features().group_desc_csum() && (counted || group.0 == 0))
        .then_some(Edit::Group { group, edit: GroupEdit::ClearInodeUninit })
}
