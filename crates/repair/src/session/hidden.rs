//! Decides which repairs are possible while part of the device is unreadable, or must not be overwritten.
//!
//! A copy of the device may recover the unreadable part, so nothing that depends on it counts as
//! damage: no name, block or file is given up because its owner or content cannot be read. Damage
//! that an inode, a map or a directory block shows by itself is repaired all the same.

use std::collections::{BTreeMap, BTreeSet};

use floe_check::{Examination, Problem};
use floe_ext4::inode_table::read_inode;
use floe_ext4::map::runs::BlockMap;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::{BlockNr, InodeNr};

use super::in_place::{self, InPlace};
use crate::edit::{
    AttributeBlockEdit, DirectoryEdit, Edit, EntryEdit, GroupEdit, InodeEdit, SuperblockEdit,
};

mod guard;

pub(super) use guard::Guard;

/// The parts that an examination could not read.
#[derive(Clone, Debug, Default)]
pub(super) struct HiddenParts {
    level: Level,
    /// Objects in unreadable blocks that must not change; `None` if the user allows such blocks to
    /// be overwritten.
    guard: Option<Guard>,
    /// Blocks of files in the place of metadata.
    in_place: InPlace,
}

/// The extent of hidden information, in ascending order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    /// Nothing that others depend on.
    #[default]
    No,
    /// Nodes of maps: blocks that seem unused may belong to them.
    Maps,
    /// Inodes: objects that seem unused, unnamed or unconnected may belong to them.
    Inodes,
    /// Descriptors: nothing can be located with certainty.
    Descriptors,
    /// Part of the file system is not on this device, and might be intact.
    Absent,
}

impl Level {
    fn of(examination: &Examination<'_>, guarded: bool) -> Self {
        let report = &examination.report;
        let hidden = |problem: &Problem| match *problem {
            Problem::FilesystemExceedsDevice { .. } => Self::Absent,
            Problem::UnreadableBlock { inode, .. } if hides_no_map(examination, inode) => Self::No,
            Problem::UnreadableBlock { .. } => Self::Maps,
            Problem::UnreadableInodeTable { .. } => Self::Inodes,
            // With a backup in use its descriptors were readable, but the primary ones may not be
            // writable.
            Problem::UnreadableGroupDescriptors { block, .. } => {
                let geometry = &report.geometry;
                let is_primary = (0..geometry.desc_blocks)
                    .any(|index| geometry.primary_desc_block(index) == block);
                let is_spare = report.used_backup.is_some() && is_primary && !guarded;
                if is_spare { Self::No } else { Self::Descriptors }
            }
            _ => Self::No,
        };
        report.found.iter().map(hidden).max().unwrap_or_default()
    }
}

/// Whether the blocks of an inode are known although a block of it cannot be read: the map of a symlink is
/// complete if only its target is hidden, that of an inode with the value of an attribute if only bytes of it are, and the
/// geometry tells what the resize inode holds.
fn hides_no_map(examination: &Examination<'_>, inode: InodeNr) -> bool {
    let volume = &examination.volume;
    let geometry = &volume.geometry;
    if inode == InodeNr::RESIZE {
        return true;
    }
    let raw = read_inode(inode, volume.device, geometry, &volume.groups);
    let file = raw.as_deref().and_then(Inode::decode);
    let Some(file) = file else { return false };
    let blocks = file.size_bytes().div_ceil(u64::from(geometry.block_size));
    let limit = match file.file_type() {
        Some(FileType::Symlink) => blocks.min(1),
        _ if file.flags().contains(InodeFlags::EA_INODE) => blocks,
        _ => return false,
    };
    BlockMap::of(&file, volume.device, geometry, limit).is_ok()
}

impl HiddenParts {
    /// The parts that an examination could not read. `unreadable`: device offsets of all blocks
    /// found unreadable so far, unless they may be overwritten.
    pub(super) fn of(examination: &Examination<'_>, unreadable: Option<&[u64]>) -> Self {
        let guard = unreadable.map(|offsets| Guard::of(examination, offsets));
        let mut level = Level::of(examination, guard.is_some());
        if guard.as_ref().is_some_and(Guard::hides_superblock) {
            level = level.max(Level::Descriptors);
        }
        Self { level, guard, in_place: InPlace::default() }
    }

    /// Blocks of files in the place of metadata, of which no copies are made.
    pub(super) fn leave(&mut self, in_place: InPlace) {
        self.in_place = in_place;
    }

    /// Blocks to which no metadata is written.
    pub(super) const fn left_in_place(&self) -> &BTreeSet<BlockNr> {
        &self.in_place.blocks
    }

    /// Whether one of them is among others.
    pub(super) fn leaves_any_of(&self, others: &BTreeMap<BlockNr, Vec<u8>>) -> bool {
        self.in_place.is_among(others)
    }

    /// Whether hidden objects may use blocks or inodes that seem unused.
    pub(super) fn hides_owners(&self) -> bool {
        self.level > Level::No
    }

    /// Whether superblock and descriptors must not be written.
    pub(super) fn hides_ground(&self) -> bool {
        self.level >= Level::Descriptors || self.in_place.descriptors
    }

    /// The reason why an edit for a finding must not be made, because hidden data might contradict
    /// it. `None`: the edit is certain.
    pub(super) fn objection(&self, problem: &Problem, edit: &Edit) -> Option<&'static str> {
        if let Some(guard) = &self.guard
            && guard.covers(problem, edit)
        {
            return Some(
                "it depends on a block that cannot be read, which is not overwritten because a \
                 copy of the device may recover it: copy the device first (ddrescue) and repair \
                 the copy, or give the block up with `floe repair --overwrite-unreadable`",
            );
        }
        if self.in_place.is_in_the_way_of(edit) {
            return Some(in_place::WHY);
        }
        let is_certain = match self.level {
            Level::No => true,
            Level::Maps => match edit {
                Edit::GroupMaps { .. } => is_used_after_all(problem),
                Edit::Totals
                | Edit::QuotaFile { .. }
                | Edit::Backpointers
                | Edit::OwnDirectories
                | Edit::Reservation { .. }
                | Edit::MoveInode { .. }
                | Edit::MoveHome { .. }
                | Edit::Cube { .. } => false,
                // A bitmap written now would mark hidden blocks as free.
                Edit::Group { edit, .. } => !matches!(edit, GroupEdit::MoveBlockBitmap),
                _ => true,
            },
            Level::Inodes => is_certain_without_inodes(problem, edit),
            Level::Descriptors | Level::Absent => false,
        };
        match self.level {
            _ if is_certain => None,
            Level::Absent => {
                Some("part of the file system is not on this device: provide all of it first")
            }
            _ => Some("part of the device cannot be read: copy it first (ddrescue)"),
        }
    }
}

/// Whether a link count is too low for the names that were read: hidden names only add to them.
fn raises_link_count(problem: &Problem) -> bool {
    match *problem {
        Problem::InodeLinkCountWrong { stored, counted, .. } => counted > u32::from(stored),
        // No name leads to it.
        Problem::QuotaInodeWithoutLinks { .. } => true,
        _ => false,
    }
}

/// Whether an object in use is marked free, which holds regardless of hidden data.
fn is_used_after_all(problem: &Problem) -> bool {
    matches!(
        problem,
        Problem::BlockBitmapMissingBlock { .. }
            | Problem::BlockBitmapMissingRange { .. }
            | Problem::InodeBitmapMissingInode { .. }
            | Problem::InodeBitmapMissingRange { .. }
            | Problem::BlockUsedInUninitGroup { .. }
            | Problem::InodeUsedInUninitGroup { .. }
    )
}

#[allow(clippy::too_many_lines)] // one arm an edit
fn is_certain_without_inodes(problem: &Problem, edit: &Edit) -> bool {
    match edit {
        // Unreadable inodes may hold attribute values.
        Edit::Inode { edit, .. } => {
            !matches!(edit, InodeEdit::EaReferences(_))
                && !matches!(
                    problem,
                    Problem::XattrEaInodeNumberBad { .. }
                        | Problem::XattrValueSizeBad { .. }
                        | Problem::XattrHashBad { .. }
                        | Problem::XattrValueUnreadable { .. }
                        | Problem::EaInodeFlagUnreferenced { .. }
                        | Problem::OrphanInodeProcessed { .. }
                )
        }
        Edit::Map { .. } | Edit::RebuildExtents { .. } | Edit::RebuildDirectory { .. } => true,
        // Copies go to blocks that nothing uses and no bitmap marks.
        Edit::CloneShared { .. } => true,
        Edit::AttributeBlock { edit, .. } => !matches!(edit, AttributeBlockEdit::References(_)),
        // The content of an unreadable block is not given up either.
        Edit::Directory { edit, .. } => {
            *edit != DirectoryEdit::Empty
                && !matches!(problem, Problem::DirentInodeOnBadBlock { .. })
        }
        Edit::Entry { edit, .. } => {
            *edit != EntryEdit::Clear
                || matches!(
                    problem,
                    Problem::DirentInodeIllegal { .. }
                        // Reported only for readable inodes.
                        | Problem::DirentInodeUnused { .. }
                        | Problem::DirentLinksToOwnDirectory { .. }
                        | Problem::DirentNameEmpty { .. }
                        | Problem::DotEntryDuplicate { .. }
                        | Problem::DotdotEntryDuplicate { .. }
                )
        }
        Edit::Group { edit, .. } => matches!(
            edit,
            GroupEdit::Distrust
                | GroupEdit::ClearUninit
                | GroupEdit::ItableUnusedZero
                | GroupEdit::ClearBlockUninit
                | GroupEdit::ClearInodeUninit
        ),
        Edit::Superblock(edit) => matches!(
            edit,
            SuperblockEdit::PrimaryFromBackup
                | SuperblockEdit::RandomUuid
                | SuperblockEdit::Revision1
                | SuperblockEdit::ClearTestFlag
                | SuperblockEdit::HashSignedness
                | SuperblockEdit::MountTimeNow
                | SuperblockEdit::WriteTimeNow
                | SuperblockEdit::MinExtraIsize(_)
                | SuperblockEdit::WantExtraIsize(_)
                | SuperblockEdit::DefaultHash
                | SuperblockEdit::SetCompat(_)
                | SuperblockEdit::SetIncompat(_)
                | SuperblockEdit::SetRoCompat(_)
        ),
        Edit::GroupMaps { .. } => is_used_after_all(problem),
        Edit::LinkCount { .. } => raises_link_count(problem),
        // Names, links and parents may be in unreadable directories; counts and quotas may include
        // unreadable files.
        Edit::Journal(_)
        | Edit::CleanMmp
        | Edit::Orphans(_)
        | Edit::RecreateResizeInode
        | Edit::NotBad { .. }
        | Edit::BadBlocks { .. }
        | Edit::Tree(_)
        | Edit::Attach { .. }
        | Edit::Release { .. }
        | Edit::Totals
        | Edit::QuotaFile { .. }
        | Edit::Backpointers
        | Edit::OwnDirectories
        | Edit::Reservation { .. }
        | Edit::Cube { .. }
        | Edit::MoveInode { .. }
        | Edit::MoveHome { .. }
        | Edit::OrphanFile(_)
        | Edit::Backups => false,
    }
}
