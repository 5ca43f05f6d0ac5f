//! Reads the mapping of a file, extent tree or block map, as far as it can be followed.

use floe_format::ext::extent::{Extent, ExtentNode};
use floe_format::ext::indirect::Header;
use floe_format::ext::inode::{InodeFlags, OwnedInode};
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use super::{FileFault, Files, Node};
use crate::map::walk::{Depths, Entry, Fault, Go, Visitor, push_joined, walk};

/// The mapping of a file.
#[derive(Debug, Default)]
pub struct FileMap {
    /// Mapped runs, ascending by logical block, not overlapping, and inside the file system.
    pub extents: Vec<Extent>,
    /// Parts that could not be followed.
    pub faults: Vec<FileFault>,
}

impl FileMap {
    /// Index of the first extent that ends behind a logical block.
    pub(super) fn from(&self, logical: u64) -> usize {
        self.extents.partition_point(|extent| extent.logical.0 + extent.run.len_blocks <= logical)
    }

    /// Sorts the extents, and drops those that map a logical block again.
    fn settle(&mut self) {
        self.extents.sort_by_key(|extent| extent.logical);
        let mut end = 0;
        let faults = &mut self.faults;
        self.extents.retain(|extent| {
            let fits = extent.logical.0 >= end;
            if fits {
                end = extent.logical.0 + extent.run.len_blocks;
            } else {
                faults.push(FileFault::MapOverlap { logical: extent.logical });
            }
            fits
        });
    }
}

impl Files<'_> {
    /// The mapping of an inode that need not be in its place.
    pub fn map_of(&self, inode: &OwnedInode) -> FileMap {
        self.map(&Node::new(inode.number, inode.raw.clone(), self))
    }

    /// Follows the mapping of an inode whose `i_block` maps blocks, of either kind.
    pub fn map(&self, node: &Node) -> FileMap {
        let (inode, map) = (node.inode(), FileMap::default());
        let flags = inode.flags();
        let seed = flags.contains(InodeFlags::EXTENTS).then(|| self.seed_of(node));
        let number = node.number;
        let mut follower = Follower { files: self, number, seed, towards: None, map };
        let form = self.geometry.indirect();
        walk(&inode.base.block, flags, form, Depths::OfRoot, &mut follower);
        follower.map.settle();
        follower.map
    }
}

/// Collects the blocks of a map, and its faults.
struct Follower<'f, 'd> {
    files: &'f Files<'d>,
    number: InodeNr,
    /// The seed of checksums of extent nodes; `None` for a block map.
    seed: Option<u32>,
    /// The last entry that leads to a node.
    towards: Option<Entry>,
    map: FileMap,
}

impl Visitor for Follower<'_, '_> {
    fn read(&mut self, block: BlockNr) -> Option<Vec<u8>> {
        match self.files.block(block) {
            Ok(bytes) => {
                self.judge_node(block, &bytes);
                Some(bytes)
            }
            Err(source) => {
                let logical = self.towards_logical();
                self.map.faults.push(FileFault::MapUnreadable { logical, block, source });
                None
            }
        }
    }

    fn entry(&mut self, entry: &Entry) -> Go {
        if entry.level == 0 {
            self.push(entry.extent);
            return Go::On;
        }
        self.towards = Some(*entry);
        let Extent { logical, run, .. } = entry.extent;
        if self.files.geometry.contains(run.start) && !self.files.may_have(self.number, run) {
            self.map.faults.push(FileFault::MapOfAnother { logical, run });
            return Go::Past;
        }
        Go::On
    }

    fn fault(&mut self, fault: Fault) -> Go {
        match fault {
            Fault::BadNode { logical, .. } => self.damaged_at(logical),
            Fault::NamedTwice(_) => self.damaged_at(self.towards_logical()),
            // The fault was recorded when the node was read.
            Fault::Unreadable(_) => {}
        }
        Go::Past
    }
}

impl Follower<'_, '_> {
    fn towards_logical(&self) -> LogicalBlock {
        self.towards.map_or(LogicalBlock(0), |entry| entry.extent.logical)
    }

    fn damaged_at(&mut self, logical: LogicalBlock) {
        self.map.faults.push(FileFault::MapDamaged { logical });
    }

    /// Verifies an extent node, or the header of an indirect block in rext3. It is followed even if its depth
    /// is wrong, because the depth of the root determines the depth of every node.
    fn judge_node(&mut self, block: BlockNr, bytes: &[u8]) {
        let header = self.files.geometry.indirect().header(bytes).filter(|_| self.seed.is_none());
        let level = self.towards.map_or(0, |entry| u32::from(entry.level));
        if header.is_some_and(|header| header != Header { inode: self.number.0, level }) {
            self.damaged_at(self.towards_logical());
        }
        let (Some(seed), Some(node)) = (self.seed, ExtentNode::new(bytes)) else { return };
        if self.files.checksums() && node.stored_checksum() != Some(node.compute_checksum(seed)) {
            self.map.faults.push(FileFault::MapChecksum { block });
        }
        let depth = self.towards.map_or(0, |entry| entry.level.saturating_sub(1));
        // A bad header is reported by the walk itself.
        if node.header_ok() && node.header().depth != depth {
            self.damaged_at(self.towards_logical());
        }
    }

    fn push(&mut self, extent: Extent) {
        let geometry = &self.files.geometry;
        let Extent { logical, run, .. } = extent;
        if run.len_blocks == 0 {
            self.damaged_at(logical);
        } else if !geometry.contains(run.start) || run.end().0 > geometry.blocks_count {
            self.map.faults.push(FileFault::MapOutside { logical, run });
        } else if !self.files.may_have(self.number, run) {
            self.map.faults.push(FileFault::MapOfAnother { logical, run });
        } else {
            push_joined(&mut self.map.extents, extent);
        }
    }
}
