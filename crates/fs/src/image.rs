//! An image that is only read, whatever its features.

use std::collections::HashMap;

use floe_ext4::files::{Attribute, Content, FileFault, Files, FilesError, Node, SegmentKind};
use floe_ext4::inode_table::inode_place;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::features::{Compat, Incompat};
use floe_format::{BlockNr, Geometry, GroupNr, InodeNr};
use floe_sync::{Arc, Mutex, PoisonError};

use crate::directories::Directories;
use crate::directory::{Entry, NameHash};
use crate::faults::{Fault, finding};
use crate::op::{Applied, Op};
use crate::store::{SeekFor, Space, Store};
use crate::{Attributes, Directory, FsError};

/// Maps of files that are kept. All are dropped when there are more: whatever is read next is mapped again.
const MOST_CONTENTS: usize = 4096;
/// Segments of all these maps, likewise, but for those of the last file.
const MOST_SEGMENTS: usize = 1 << 16;
/// Names of directories that are kept.
const MOST_NAMES: usize = 1 << 20;
/// Bytes of a segment of a map, of a map besides those, and of a name, rather too many.
const BYTES_PER_SEGMENT: u64 = 48;
const BYTES_PER_CONTENT: u64 = 512;
const BYTES_PER_NAME: u64 = 144;

/// The files of an image that nobody changes. Maps of files that were read are kept.
#[derive(Debug)]
pub struct Image<'f, 'd> {
    files: &'f Files<'d>,
    hash: NameHash,
    overhead_blocks: u64,
    contents: Mutex<Contents<'f, 'd>>,
    most_contents: usize,
    most_segments: usize,
    directories: Directories,
}

/// Maps of files, with how many segments each has.
#[derive(Debug, Default)]
struct Contents<'f, 'd> {
    by_inode: HashMap<InodeNr, (usize, Arc<Content<'f, 'd>>)>,
    segments: usize,
}

impl Contents<'_, '_> {
    fn forget(&mut self, inode: InodeNr) {
        if let Some((segments, _)) = self.by_inode.remove(&inode) {
            self.segments -= segments;
        }
    }
}

impl<'f, 'd> Image<'f, 'd> {
    /// The files of an opened image, whose journal is empty or replayed.
    pub fn new(files: &'f Files<'d>) -> Self {
        let hash = NameHash::of(files.superblock());
        let overhead_blocks = overhead_blocks(files);
        Self {
            files,
            hash,
            overhead_blocks,
            contents: Mutex::default(),
            most_contents: MOST_CONTENTS,
            most_segments: MOST_SEGMENTS,
            directories: Directories::new(MOST_NAMES),
        }
    }

    /// The block of an inode in its table.
    pub(crate) fn table_block(&self, inode: InodeNr) -> Option<BlockNr> {
        let place = inode_place(inode, self.files.geometry(), self.files.groups());
        place.map(|(block, _)| block)
    }

    /// Keeps about so many bytes of maps and names in memory, 1 MiB at least. The directory and the file that are in use are
    /// kept whatever they take.
    #[must_use]
    pub fn within(self, memory_bytes: u64) -> Self {
        let quarter = memory_bytes.max(1 << 20) / 4;
        let count = |bytes: u64, each: u64| usize::try_from(bytes / each).unwrap_or(usize::MAX);
        Self {
            most_contents: count(quarter, BYTES_PER_CONTENT).min(MOST_CONTENTS),
            most_segments: count(quarter, BYTES_PER_SEGMENT),
            directories: Directories::new(count(2 * quarter, BYTES_PER_NAME)),
            ..self
        }
    }

    /// Blocks that Linux keeps for the maps of extents, besides those reserved for root: a fiftieth, and at most
    /// 4,096 clusters (`ext4_set_resv_clusters`).
    pub(crate) fn kept_blocks(&self) -> u64 {
        let geometry = self.files.geometry();
        if !geometry.features.incompat.contains(Incompat::EXTENTS) {
            return 0;
        }
        let clusters = geometry.blocks_count >> geometry.cluster_bits;
        clusters.div_euclid(50).min(4096) << geometry.cluster_bits
    }

    /// The files.
    pub(crate) const fn files(&self) -> &'f Files<'d> {
        self.files
    }

    /// Drops what is kept of an inode, which was changed.
    pub(crate) fn forget(&self, inode: InodeNr) {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner).forget(inode);
    }

    /// Drops all that is kept.
    pub(crate) fn forget_all(&self) {
        *self.contents.lock().unwrap_or_else(PoisonError::into_inner) = Contents::default();
    }

    fn node(&self, inode: InodeNr) -> Result<(Node, Attributes), FsError> {
        let node = self.files.node(inode).map_err(|error| of_files(inode, error))?;
        let attributes = Attributes::of(&node, self.files)?;
        Ok((node, attributes))
    }

    /// Reads a directory; it is not kept.
    pub(crate) fn read_directory(&self, inode: InodeNr) -> Result<Directory, FsError> {
        let (node, attributes) = self.node(inode)?;
        let listing = self.files.list(&node).map_err(|error| of_files(inode, error))?;
        // A directory whose `..` is lost leads nowhere else.
        let parent = listing.parent.unwrap_or(inode);
        let folds = attributes.flags.contains(InodeFlags::CASEFOLD)
            && !attributes.flags.contains(InodeFlags::ENCRYPT);
        let mut directory = Directory::new(self.hash, folds, parent);
        for entry in listing.entries {
            let name = entry.name.into();
            let entry = Entry { inode: entry.inode, kind: entry.file_type, name };
            if !directory.insert(entry) {
                directory
                    .note_damage("thousands of names have the same hash".to_owned(), Fault::DAMAGE);
            }
        }
        for fault in &listing.faults {
            let finding = finding(fault).map_or_else(String::new, |finding| format!("{finding}: "));
            directory.note_damage(format!("{finding}{fault}"), Fault::of_file(fault));
        }
        Ok(directory)
    }

    fn content(&self, inode: InodeNr) -> Result<Arc<Content<'f, 'd>>, FsError> {
        // A panic of another thread leaves the table whole: it is only ever added to.
        let kept = || self.contents.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, content)) = kept().by_inode.get(&inode) {
            return Ok(Arc::clone(content));
        }
        let (node, attributes) = self.node(inode)?;
        match attributes.kind {
            FileType::Regular => {}
            FileType::Directory => return Err(FsError::IsADirectory),
            _ => return Err(FsError::Invalid),
        }
        let (content, faults) =
            self.files.content(&node).map_err(|error| of_files(inode, error))?;
        no_faults(inode, faults)?;
        let content = Arc::new(content);
        let mut table = kept();
        let segments = content.segments().count();
        // Another thread may have been faster.
        table.forget(inode);
        let many = table.segments + segments > self.most_segments;
        if many || table.by_inode.len() >= self.most_contents {
            *table = Contents::default();
        }
        table.segments += segments;
        table.by_inode.insert(inode, (segments, Arc::clone(&content)));
        Ok(content)
    }
}

impl Store for Image<'_, '_> {
    fn attributes(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        self.node(inode).map(|(_, attributes)| attributes)
    }

    fn directory(&self, inode: InodeNr) -> Result<Arc<Directory>, FsError> {
        self.directories.get(inode, || self.read_directory(inode))
    }

    fn read(&self, inode: InodeNr, offset_bytes: u64, into: &mut [u8]) -> Result<usize, FsError> {
        let mut faults = Vec::new();
        let len = self.content(inode)?.read_at(offset_bytes, into, &mut faults);
        no_faults(inode, faults)?;
        Ok(len)
    }

    fn seek(&self, inode: InodeNr, offset_bytes: u64, what: SeekFor) -> Result<u64, FsError> {
        let content = self.content(inode)?;
        let wanted = |kind| (kind == SegmentKind::Data) == (what == SeekFor::Data);
        let mut segments = content.segments_from(offset_bytes);
        if let Some(found) = segments.find(|segment| wanted(segment.kind)) {
            return Ok(found.offset_bytes);
        }
        match what {
            SeekFor::Hole if offset_bytes < content.size_bytes() => Ok(content.size_bytes()),
            SeekFor::Hole | SeekFor::Data => Err(FsError::PastEnd),
        }
    }

    fn target(&self, inode: InodeNr) -> Result<Vec<u8>, FsError> {
        let (node, attributes) = self.node(inode)?;
        if attributes.kind != FileType::Symlink {
            return Err(FsError::Invalid);
        }
        let (target, faults) = self.files.target(&node).map_err(|error| of_files(inode, error))?;
        no_faults(inode, faults)?;
        Ok(target)
    }

    fn extended_attributes(&self, inode: InodeNr) -> Result<Vec<Attribute>, FsError> {
        let (node, _) = self.node(inode)?;
        let (attributes, faults) = self.files.attributes(&node);
        no_faults(inode, faults)?;
        Ok(attributes)
    }

    fn extended_attribute(&self, inode: InodeNr, name: &[u8]) -> Result<Option<Vec<u8>>, FsError> {
        let (node, _) = self.node(inode)?;
        let (attribute, faults) = self.files.attribute(&node, name);
        no_faults(inode, faults)?;
        Ok(attribute.map(|attribute| attribute.value))
    }

    fn extended_attribute_names(&self, inode: InodeNr) -> Result<Vec<Vec<u8>>, FsError> {
        let (node, _) = self.node(inode)?;
        let (names, faults) = self.files.attribute_names(&node);
        no_faults(inode, faults)?;
        Ok(names)
    }

    fn space(&self) -> Space {
        let (superblock, geometry) = (self.files.superblock(), self.files.geometry());
        let sum = |count: fn(&GroupDesc) -> u32| -> u64 {
            self.files.groups().iter().map(|group| u64::from(count(group))).sum()
        };
        let free_blocks = sum(|group| group.free_blocks_count) << geometry.cluster_bits;
        let reserved = superblock.reserved_blocks_count() + self.kept_blocks();
        Space {
            block_bytes: geometry.block_size,
            blocks: superblock.blocks_count().saturating_sub(self.overhead_blocks),
            free_blocks,
            available_blocks: free_blocks.saturating_sub(reserved),
            inodes: u64::from(geometry.inodes_count),
            free_inodes: sum(|group| group.free_inodes_count),
        }
    }

    fn block_bytes(&self) -> u32 {
        self.files.geometry().block_size
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn apply(&self, _op: &Op<'_>) -> Result<Applied, FsError> {
        Err(FsError::ReadOnly)
    }

    fn release(&self, _inode: InodeNr) -> Result<(), FsError> {
        Ok(())
    }

    fn sync(&self) -> Result<(), FsError> {
        Ok(())
    }
}

/// Blocks that no file can have, as Linux counts them for `statfs`: those that the superblock states, or those
/// of superblocks, descriptors, bitmaps, inode tables and the journal.
fn overhead_blocks(files: &Files<'_>) -> u64 {
    let (superblock, geometry) = (files.superblock(), files.geometry());
    if superblock.overhead_clusters != 0 {
        return u64::from(superblock.overhead_clusters) << geometry.cluster_bits;
    }
    let groups = (0..geometry.group_count).map(GroupNr);
    let of_groups: u64 = groups.map(|group| group_overhead(geometry, group)).sum();
    let journal = files.node(InodeNr(superblock.journal_inum)).ok();
    let has_journal = geometry.features.compat.contains(Compat::HAS_JOURNAL);
    let journal = journal.filter(|node| has_journal && node.in_use());
    let journal = journal.map_or(0, |node| node.size_bytes() / u64::from(geometry.block_size));
    geometry.first_data_block.0 + of_groups + journal
}

fn group_overhead(geometry: &Geometry, group: GroupNr) -> u64 {
    let reserved = if geometry.features.incompat.contains(Incompat::META_BG) {
        0
    } else {
        geometry.reserved_gdt_run(group).len_blocks
    };
    let backup = u64::from(geometry.has_superblock(group));
    let descriptors = geometry.group_desc_run(group).len_blocks;
    // Two bitmaps.
    backup + descriptors + reserved + u64::from(geometry.inode_table_blocks) + 2
}

/// `Err` for the first of `faults`.
fn no_faults(inode: InodeNr, faults: Vec<FileFault>) -> Result<(), FsError> {
    let Some(found) = faults.into_iter().next() else { return Ok(()) };
    let fault = Fault::of_file(&found);
    Err(match found {
        FileFault::DataUnreadable { source, .. } => FsError::Io { inode, source },
        FileFault::MapUnreadable { .. }
        | FileFault::DirectoryUnreadable { .. }
        | FileFault::AttributesUnreadable { .. } => {
            FsError::Unreadable { inode, what: found.to_string(), fault }
        }
        found => {
            let finding = finding(&found).map_or_else(String::new, |name| format!("{name}: "));
            FsError::Damaged { inode, what: format!("{finding}{found}"), fault }
        }
    })
}

fn of_files(inode: InodeNr, error: FilesError) -> FsError {
    match error {
        FilesError::NoSuchInode { .. } | FilesError::Unused { .. } => FsError::NotFound,
        FilesError::Read { .. } => {
            FsError::Unreadable { inode, what: error.to_string(), fault: Fault::DEVICE }
        }
        FilesError::NotADirectory { .. } => FsError::NotADirectory,
        FilesError::NoSuchName { .. } => FsError::NotFound,
        FilesError::Encrypted { .. } => FsError::NoKey,
        FilesError::NoContent { .. } => FsError::Invalid,
        error @ (FilesError::NoTable { .. } | FilesError::TooManyLinks { .. }) => {
            FsError::Damaged { inode, what: error.to_string(), fault: Fault::DAMAGE }
        }
    }
}
