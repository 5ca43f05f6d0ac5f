//! Unreadable blocks and the objects that depend on them: their owners, the names in them, and
//! internal files that may lie there. None of these is given up, because a copy of the device may
//! recover them.

use std::collections::BTreeSet;

use floe_check::{Examination, Problem, Volume};
use floe_ext4::inode_table::read_inode;
use floe_ext4::map::runs::BlockMap;
use floe_format::ext::inode::Inode;
use floe_format::ext::superblock::OFFSET_BYTES as SUPERBLOCK_AT;
use floe_format::features::Incompat;
use floe_format::{BlockNr, InodeNr};

use crate::edit::{DirectoryEdit, Edit, InodeEdit};

/// Unreadable blocks and the objects that depend on them.
#[derive(Clone, Debug, Default)]
pub(in crate::session) struct Guard {
    /// The blocks.
    blocks: BTreeSet<BlockNr>,
    /// Inodes with a map node, symlink target or attributes in such a block.
    owners: BTreeSet<InodeNr>,
    /// Directories with an unreadable block or map node.
    directories: BTreeSet<InodeNr>,
    /// Attributes are hidden that may refer to value inodes.
    attributes: bool,
    /// A block may belong to the journal, a quota file, the orphan file, or be the MMP block.
    system: bool,
    superblock: bool,
}

impl Guard {
    /// Collects the objects that depend on the blocks at `offsets`, in bytes of the device.
    pub(super) fn of(examination: &Examination<'_>, offsets: &[u64]) -> Self {
        let mut guard = Self::default();
        if offsets.is_empty() {
            return guard;
        }
        let geometry = &examination.report.geometry;
        let block_bytes = u64::from(geometry.block_size);
        guard.blocks = offsets.iter().map(|offset| BlockNr(offset / block_bytes)).collect();
        guard.superblock = guard.blocks.contains(&BlockNr(SUPERBLOCK_AT / block_bytes));
        for problem in &examination.report.found {
            guard.note(examination, problem);
        }
        guard.system = may_be_of_system(examination, &guard.blocks);
        guard
    }

    /// Records the owner of an unreadable block.
    fn note(&mut self, examination: &Examination<'_>, problem: &Problem) {
        match *problem {
            Problem::UnreadableBlock { inode, .. } => {
                self.owners.insert(inode);
                if examination.facts.get(inode).is_dir() {
                    self.directories.insert(inode);
                }
            }
            Problem::DirBlockReadError { dir, .. } => {
                self.directories.insert(dir);
            }
            Problem::XattrBlockUnreadable { inode, block } if self.blocks.contains(&block) => {
                // Also because the values that they refer to count towards the owner's blocks.
                self.owners.insert(inode);
                self.attributes |= examination.volume.has_incompat(Incompat::EA_INODE);
            }
            _ => {}
        }
    }

    /// Whether the primary superblock is in an unreadable block.
    pub(super) const fn hides_superblock(&self) -> bool {
        self.superblock
    }

    /// Whether an edit, or the conclusion of a finding, depends on an unreadable block.
    pub(super) fn covers(&self, problem: &Problem, edit: &Edit) -> bool {
        if self.blocks.is_empty() {
            return false;
        }
        let of_owner = |inode: Option<InodeNr>| inode.is_some_and(|it| self.owners.contains(&it));
        if of_owner(edit.inode()) || of_owner(problem.inode()) || self.is_about(problem) {
            return true;
        }
        let names_are_hidden = !self.directories.is_empty();
        match edit {
            // The hidden block may hold the names or parent of objects that seem to lack them.
            Edit::Attach { .. } | Edit::Release { .. } => names_are_hidden || self.attributes,
            Edit::Tree(_) => names_are_hidden,
            Edit::LinkCount { .. } => names_are_hidden && !super::raises_link_count(problem),
            Edit::RecreateResizeInode => self.owners.contains(&InodeNr::RESIZE),
            Edit::RebuildDirectory { dir } => self.directories.contains(dir),
            Edit::Directory { dir, edit, .. } => {
                self.directories.contains(dir) && !matches!(edit, DirectoryEdit::Checksum)
            }
            Edit::Inode { inode, edit } => match edit {
                InodeEdit::EaReferences(_) => self.attributes,
                InodeEdit::Clear | InodeEdit::Zero | InodeEdit::Size(_) => {
                    self.directories.contains(inode)
                }
                _ => self.attributes && matches!(problem, Problem::EaInodeFlagUnreferenced { .. }),
            },
            Edit::Map { inode, .. } | Edit::RebuildExtents { inode } => {
                self.directories.contains(inode)
            }
            Edit::QuotaFile { .. } => self.system || self.attributes,
            Edit::Journal(_) | Edit::CleanMmp | Edit::Orphans(_) | Edit::OrphanFile(_) => {
                self.system
            }
            _ => false,
        }
    }

    /// Whether a finding is about one of the blocks, and its repair would give up its content.
    fn is_about(&self, problem: &Problem) -> bool {
        match problem {
            Problem::DirBlockReadError { .. } | Problem::DirentInodeOnBadBlock { .. } => true,
            Problem::XattrBlockUnreadable { block, .. }
            | Problem::BadBlockListUnreadable { block, .. }
            | Problem::BackupSuperblockBad { block, .. }
            | Problem::BackupDescriptorsBad { block, .. } => self.blocks.contains(block),
            _ => false,
        }
    }
}

/// Whether one of the blocks may belong to an internal file that no other finding names.
fn may_be_of_system(examination: &Examination<'_>, blocks: &BTreeSet<BlockNr>) -> bool {
    let (volume, superblock) = (&examination.volume, &examination.report.superblock);
    let files = [
        superblock.journal_inum,
        superblock.usr_quota_inum,
        superblock.grp_quota_inum,
        superblock.prj_quota_inum,
        superblock.orphan_file_inum,
    ];
    let of_file = |&inode: &u32| may_be_of(volume, InodeNr(inode), blocks);
    blocks.contains(&BlockNr(superblock.mmp_block))
        || files.iter().filter(|&&inode| inode != 0).any(of_file)
}

/// Whether one of the blocks belongs to a file, or might because its map is incomplete.
fn may_be_of(volume: &Volume<'_>, inode: InodeNr, blocks: &BTreeSet<BlockNr>) -> bool {
    let geometry = &volume.geometry;
    let raw = read_inode(inode, volume.device, geometry, &volume.groups);
    let Some(file) = raw.as_deref().and_then(Inode::decode) else { return true };
    let limit = file.size_bytes().div_ceil(u64::from(geometry.block_size));
    let Ok(map) = BlockMap::of(&file, volume.device, geometry, limit.min(geometry.blocks_count))
    else {
        return true;
    };
    (0..map.blocks_without_hole()).filter_map(|at| map.block(at)).any(|it| blocks.contains(&it))
}
