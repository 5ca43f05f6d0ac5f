//! Where the blocks of a file are: extent trees and block maps.

use floe_ext4::map::walk::{self, Depths, Entry, Fault, Go, Visitor};
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::{Inode, InodeFlags};
use floe_format::{BlockNr, LogicalBlock};

use super::Reader;

/// Map nodes visited in one file at most: enough for 16 TiB in single blocks.
const MAX_NODES: usize = 1 << 22;

/// The mapping of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// Mapped runs, in the order of the map.
    pub extents: Vec<Extent>,
    /// Blocks of the map itself: interior nodes, leaves, indirect blocks.
    pub nodes: Vec<MapNode>,
    /// Messages about parts that could not be followed.
    pub faults: Vec<String>,
}

/// A block of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapNode {
    /// Where it lies.
    pub block: BlockNr,
    /// Levels below it, data blocks not counted: 0 for a leaf of an extent tree, 1 and more for an
    /// indirect block.
    pub level: u16,
    /// First logical block below it.
    pub logical: LogicalBlock,
}

impl Mapping {
    /// The physical block of a logical one.
    pub fn find(&self, logical: LogicalBlock) -> Option<BlockNr> {
        self.extents.iter().find_map(|extent| {
            let offset = logical.0.checked_sub(extent.logical.0)?;
            (offset < extent.run.len_blocks).then(|| BlockNr(extent.run.start.0 + offset))
        })
    }

    /// Blocks that are mapped.
    pub fn blocks(&self) -> u64 {
        self.extents.iter().fold(0, |sum, extent| sum.saturating_add(extent.run.len_blocks))
    }
}

impl Reader<'_> {
    /// Follows the map of an inode, of either kind. Inodes that have none (inline data, fast
    /// symbolic links, devices) have an empty mapping.
    pub fn map(&self, inode: &Inode<'_>) -> Mapping {
        let mapping = Mapping::default();
        let extents = inode.flags().contains(InodeFlags::EXTENTS);
        let mut notes = Notes { reader: self, extents, mapping };
        if walk::has_map(&inode.base) {
            let (root, form) = (&inode.base.block, self.geometry.indirect());
            walk::walk(root, inode.flags(), form, Depths::Agree, &mut notes);
        }
        notes.mapping
    }
}

/// Notes all there is, and leaves out what cannot be followed.
struct Notes<'n, 'd> {
    reader: &'n Reader<'d>,
    extents: bool,
    mapping: Mapping,
}

impl Visitor for Notes<'_, '_> {
    fn read(&mut self, node: BlockNr) -> Option<Vec<u8>> {
        match self.reader.block(node) {
            Ok(_) if self.mapping.nodes.len() >= MAX_NODES => None,
            Ok(bytes) => Some(bytes),
            Err(error) => {
                self.mapping.faults.push(error.to_string());
                None
            }
        }
    }

    fn entry(&mut self, entry: &Entry) -> Go {
        match (entry.level, self.extents) {
            (0, true) => self.mapping.extents.push(entry.extent),
            (0, false) => walk::push_joined(&mut self.mapping.extents, entry.extent),
            _ => {}
        }
        Go::On
    }

    fn enter(&mut self, node: &Entry) {
        let Extent { logical, run, .. } = node.extent;
        let level = if self.extents { node.level - 1 } else { node.level };
        self.mapping.nodes.push(MapNode { block: run.start, level, logical });
    }

    fn fault(&mut self, fault: Fault) -> Go {
        match fault {
            Fault::BadNode { logical, .. } => {
                self.mapping.faults.push(format!("bad node header for {logical}"));
            }
            Fault::NamedTwice(block) => {
                self.mapping.faults.push(format!("{block} is named twice"));
            }
            // The reason is there already.
            Fault::Unreadable(_) => {}
        }
        Go::Past
    }
}
