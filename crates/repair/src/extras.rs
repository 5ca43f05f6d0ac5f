//! What a repair does besides mending: what e2fsck's `-D` and `-E` ask for, and indexes for large
//! directories. Only a file system without damage gets any of it.

use floe_check::scan::inode_reader::InodeReader;
use floe_check::{Examination, Problem};
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::features::{Compat, Incompat, RoCompat};

use crate::edit::{Edit, MapEdit, SuperblockEdit};

/// Blocks from which on a directory gets an index.
const INDEX_FROM_BLOCKS: u32 = 3;
/// Bytes of a symlink that lie in the inode.
const FAST_SYMLINK_BYTES: u64 = 60;

/// What is to be done besides mending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // options of a command line
pub struct Extras {
    /// The journal is replayed, and nothing else is done or even looked at.
    pub journal_only: bool,
    /// Files that share blocks get their own, so that the file system can be written again.
    pub unshare_blocks: bool,
    /// Block maps become extents.
    pub to_extents: bool,
    /// All directories are written anew.
    pub rebuild_directories: bool,
    /// Directories that are large and have no index get one.
    pub index_directories: bool,
    /// Extent trees that are sound, and could be smaller, are written anew.
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

    /// Whether nothing is to be done about a finding, although something could be.
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

/// One thing that is done to a file system without damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Sharing is forbidden; what is shared is damage then, and mended as such.
    UnshareBlocks,
    ToExtents,
    RebuildDirectories,
    IndexDirectories,
}

impl Step {
    /// What is to be done, all of it in one phase.
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

/// Whether a repair may touch the content of an inode: those reserved but the root are for the file
/// system itself.
fn is_for_users(examination: &Examination<'_>, inode: InodeNr) -> bool {
    inode == InodeNr::ROOT || !examination.volume.geometry.is_reserved(inode)
}

/// Files with a block map, where files may have extents.
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

/// Directories that would have an index if Linux had filled them today.
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
