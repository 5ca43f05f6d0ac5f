//! What may be mended although a part of the device cannot be read.
//!
//! What is there may come back from a copy of the device, so nothing that depends on it is taken for
//! damage: no name, block or file is given up because its owner or its content cannot be seen. What
//! an inode, a map or a directory block says of itself is mended all the same.

use floe_check::{Examination, Problem, Report};

use crate::edit::{
    AttributeBlockEdit, DirectoryEdit, Edit, EntryEdit, GroupEdit, InodeEdit, SuperblockEdit,
};

mod guard;

pub(super) use guard::Guard;

/// What an examination could not see.
#[derive(Clone, Debug, Default)]
pub(super) struct Blind {
    level: Level,
    /// What concerns unreadable blocks, and is left as it is; `None` if somebody allowed that they are
    /// written over.
    guard: Option<Guard>,
}

/// How much is hidden from others, the least first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    /// Nothing that matters to others.
    #[default]
    No,
    /// Nodes of maps: what looks unused may be theirs.
    Maps,
    /// Inodes: what looks unused, unnamed or unconnected may be theirs.
    Inodes,
    /// Descriptors: nothing can be found for certain.
    Descriptors,
    /// A part of the file system is not on this device: with the whole of it, all may be well.
    Absent,
}

impl Level {
    fn of(report: &Report, guarded: bool) -> Self {
        let hidden = |problem: &Problem| match *problem {
            Problem::FilesystemExceedsDevice { .. } => Self::Absent,
            Problem::UnreadableBlock { .. } => Self::Maps,
            Problem::UnreadableInodeTable { .. } => Self::Inodes,
            // With a backup in use its own descriptors were read; but the primary ones could not be
            // written.
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

impl Blind {
    /// What an examination could not see. `unreadable` are the bytes of the device at which blocks begin
    /// that could not be read so far, if they are not to be written over.
    pub(super) fn of(examination: &Examination<'_>, unreadable: Option<&[u64]>) -> Self {
        let guard = unreadable.map(|offsets| Guard::of(examination, offsets));
        let mut level = Level::of(&examination.report, guard.is_some());
        if guard.as_ref().is_some_and(Guard::hides_superblock) {
            level = level.max(Level::Descriptors);
        }
        Self { level, guard }
    }

    /// Whether others may use what looks unused.
    pub(super) fn hides_owners(&self) -> bool {
        self.level > Level::No
    }

    /// Whether the ground itself is not to be written.
    pub(super) fn hides_ground(&self) -> bool {
        self.level >= Level::Descriptors
    }

    /// Why an edit that a finding asks for is not to be made: what is hidden might tell otherwise. `None`:
    /// it is certain.
    pub(super) fn objection(&self, problem: &Problem, edit: &Edit) -> Option<&'static str> {
        if let Some(guard) = &self.guard
            && guard.covers(problem, edit)
        {
            return Some(
                "it depends on a block that cannot be read, which is not written over because it may \
                 come back: copy the device first (ddrescue) and repair the copy, or give the block up \
                 with `floe repair --overwrite-unreadable`",
            );
        }
        let is_certain = match self.level {
            Level::No => true,
            Level::Maps => match edit {
                Edit::GroupMaps { .. } => is_used_after_all(problem),
                Edit::Totals | Edit::QuotaFile { .. } => false,
                // What it would hold now would free what is hidden.
                Edit::Group { edit, .. } => !matches!(edit, GroupEdit::MoveBlockBitmap),
                _ => true,
            },
            Level::Inodes => is_certain_without_inodes(problem, edit),
            Level::Descriptors | Level::Absent => false,
        };
        match self.level {
            _ if is_certain => None,
            Level::Absent => {
                Some("a part of the file system is not on this device: find the whole first")
            }
            _ => Some("a part of the device cannot be read: copy it first (ddrescue)"),
        }
    }
}

/// Something is in use and said to be free: true whatever else is.
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

fn is_certain_without_inodes(problem: &Problem, edit: &Edit) -> bool {
    match edit {
        // Values of attributes may lie in inodes that cannot be read.
        Edit::Inode { edit, .. } => {
            !matches!(edit, InodeEdit::EaReferences(_))
                && !matches!(
                    problem,
                    Problem::XattrEaInodeNumberBad { .. }
                        | Problem::XattrValueSizeBad { .. }
                        | Problem::XattrHashBad { .. }
                        | Problem::EaInodeFlagUnreferenced { .. }
                        | Problem::OrphanInodeProcessed { .. }
                )
        }
        Edit::Map { .. } | Edit::RebuildExtents { .. } | Edit::RebuildDirectory { .. } => true,
        // Copies go to blocks that nothing uses and that no bitmap names.
        Edit::CloneShared { .. } => true,
        Edit::AttributeBlock { edit, .. } => *edit == AttributeBlockEdit::Checksum,
        // What a block holds that cannot be read is not given up either.
        Edit::Directory { edit, .. } => {
            *edit != DirectoryEdit::Empty
                && !matches!(problem, Problem::DirentInodeOnBadBlock { .. })
        }
        Edit::Entry { edit, .. } => {
            *edit != EntryEdit::Clear
                || matches!(
                    problem,
                    Problem::DirentInodeIllegal { .. }
                        // Of an inode that can be read: of others this is not said.
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
                | SuperblockEdit::SetIncompat(_)
                | SuperblockEdit::SetRoCompat(_)
        ),
        Edit::GroupMaps { .. } => is_used_after_all(problem),
        // Names, links and parents may be in directories that cannot be read; counts and quotas may
        // be of files that cannot.
        Edit::Journal(_)
        | Edit::CleanMmp
        | Edit::Orphans(_)
        | Edit::RecreateResizeInode
        | Edit::NotBad { .. }
        | Edit::BadBlocks { .. }
        | Edit::Tree(_)
        | Edit::Attach { .. }
        | Edit::Release { .. }
        | Edit::LinkCount { .. }
        | Edit::Totals
        | Edit::QuotaFile { .. }
        | Edit::OrphanFile(_)
        | Edit::Backups => false,
    }
}
