//! Optional work besides repairs: the options of e2fsck's `-D` and `-E`, and indexes for large
//! directories. Done only on a file system without damage.

use floe_check::scan::inode_reader::InodeReader;
use floe_check::{Examination, Problem};
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::features::{Compat, Incompat, RoCompat};

use crate::edit::{Edit, MapEdit, SuperblockEdit};

/// Directories of at least this many blocks get an index.
const INDEX_FROM_BLOCKS: u32 = 3;
/// A symlink target shorter than this lies in the inode.
const FAST_SYMLINK_BYTES: u64 = 60;

/// Optional work of a repair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // options of a command line
pub struct Extras {
    /// Replay the journal, and neither repair nor examine anything else.
    pub journal_only: bool,
    /// Give every file its own copy of shared blocks, so that the file system becomes writable
    /// again.
    pub unshare_blocks: bool,
    /// Convert block maps to extents.
    pub to_extents: bool,
    /// Rebuild all directories.
    pub rebuild_directories: bool,
    /// Index large directories that have no index.
    pub index_directories: bool,
    /// Rebuild valid extent trees that could be smaller.
    pub shrink_extent_trees: bool,
}

impl Default for Extras {
    fn default() -> Self {
        Self {
            journal_only: false,
            unshare_blocks: false,
            to_extents: false,
            rebuild_directories: false,
            index_directories: true,
            shrink_extent_trees: true,
        }
    }
}

impl Extras {
    /// The steps, in order.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let directories = if self.rebuild_directories {
            Step::RebuildDirectories
        } else {
            Step::IndexDirectories
        };
        let steps = [
            (self.unshare_blocks, Step::UnshareBlocks),
            (self.to_extents, Step::ToExtents),
            (self.rebuild_directories || self.index_directories, directories),
        ];
        steps.into_iter().filter(|(asked, _)| *asked).map(|(_, step)| step).collect()
    }

    /// Whether a finding is left although it could be repaired.
    pub(crate) fn skips(&self, problem: &Problem) -> bool {
        let of_trees = matches!(
            problem,
            Problem::ExtentTreeTooDeep { .. }
                | Problem::ExtentTreeCollapsible { .. }
                | Problem::ExtentTreeNarrowable { .. }
        );
        of_trees && !self.shrink_extent_trees
    }
}

/// One step on a file system without damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Drops the shared_blocks feature; the shared blocks then count as damage and are repaired as
    /// such.
    UnshareBlocks,
    ToExtents,
    RebuildDirectories,
    IndexDirectories,
}

impl Step {
    /// The edits of the step, all in one phase.
    pub(crate) fn edits(self, examination: &Examination<'_>) -> Vec<Edit> {
        match self {
            Self::UnshareBlocks if examination.volume.has_ro_compat(RoCompat::SHARED_BLOCKS) => {
                let bits = RoCompat::SHARED_BLOCKS.bits();
                vec![Edit::Superblock(SuperblockEdit::ClearRoCompat(bits))]
            }
            Self::UnshareBlocks => Vec::new(),
            Self::ToExtents => block_mapped(examination)
                .map(|inode| Edit::Map { inode, edit: MapEdit::ToExtents })
                .collect(),
            Self::RebuildDirectories => {
                let dirs = &examination.dirs;
                let has_blocks = |dir: &InodeNr| dirs.inline.binary_search(dir).is_err();
                let all = dirs.infos.iter().map(|info| info.inode).filter(has_blocks);
                all.map(|dir| Edit::RebuildDirectory { dir }).collect()
            }
            Self::IndexDirectories => {
                without_index(examination).map(|dir| Edit::RebuildDirectory { dir }).collect()
            }
        }
    }
}

/// Whether a repair may change the content of an inode: any but the reserved ones, except the root.
fn is_for_users(examination: &Examination<'_>, inode: InodeNr) -> bool {
    inode == InodeNr::ROOT || !examination.volume.geometry.is_reserved(inode)
}

/// Files with a block map, if the file system supports extents.
fn block_mapped<'e>(examination: &'e Examination<'_>) -> impl Iterator<Item = InodeNr> + 'e {
    let volume = &examination.volume;
    let chunks =
        if volume.has_incompat(Incompat::EXTENTS) { examination.facts.chunk_count() } else { 0 };
    let mut reader = InodeReader::default();
    (0..chunks)
        .filter_map(|index| examination.facts.chunk(index))
        .flat_map(|(first, _)| {
            (0..floe_check::evidence::inode_facts::CHUNK_INODES)
                .map(move |at| InodeNr(first.0.saturating_add(at)))
        })
        .filter(|&inode| examination.facts.get(inode).is_used() && is_for_users(examination, inode))
        .filter(move |&inode| reader.read(volume, inode).is_some_and(|inode| has_block_map(&inode)))
}

fn has_block_map(inode: &Inode<'_>) -> bool {
    let mapped = InodeFlags::EXTENTS | InodeFlags::INLINE_DATA;
    !inode.flags().intersects(mapped)
        && match inode.file_type() {
            Some(FileType::Regular | FileType::Directory) => true,
            Some(FileType::Symlink) => inode.size_bytes() >= FAST_SYMLINK_BYTES,
            _ => false,
        }
}

/// Directories that Linux would have indexed.
fn without_index<'e>(examination: &'e Examination<'_>) -> impl Iterator<Item = InodeNr> + 'e {
    let volume = &examination.volume;
    let lost_found = examination.entries.lost_found.map(|found| found.inode);
    let mut reader = InodeReader::default();
    let infos =
        if volume.has_compat(Compat::DIR_INDEX) { &examination.dirs.infos[..] } else { &[] };
    infos
        .iter()
        .filter(|info| info.size_blocks >= INDEX_FROM_BLOCKS)
        .map(|info| info.inode)
        .filter(move |&dir| Some(dir) != lost_found && is_for_users(examination, dir))
        .filter(move |&dir| {
            let inode = reader.read(volume, dir);
            let other = InodeFlags::INDEX | InodeFlags::INLINE_DATA;
            inode.is_some_and(|inode| !inode.flags().intersects(other))
        })
}
