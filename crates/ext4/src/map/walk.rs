//! Follows the map of a file, of either kind. It trusts nothing: it reads each node once, so that it ends whatever the
//! bytes say, and leaves to its [`Visitor`] how a fault is answered.

use std::collections::HashSet;

use floe_format::ext::extent::{Extent, ExtentNode, MAX_DEPTH};
use floe_format::ext::indirect;
use floe_format::ext::inode::{FileType, InodeBase, InodeFlags};
use floe_format::{BlockNr, BlockRun, LogicalBlock};

use super::mapping::ROOT_BYTES;

/// Levels of an extent tree below its root that e2fsck follows, whatever the depth that the root claims.
const MOST_LEVELS: u16 = 8;

/// An entry of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The node that holds it; block 0: the inode.
    pub node: BlockNr,
    /// Levels below it: 0 for data.
    pub level: u16,
    /// Data: its blocks, one at a time in a block map. Of an entry that leads to a node: the node, as a run of one
    /// block, and the first logical block below it.
    pub extent: Extent,
}

/// Why a part of a map cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The header of a node is damaged, or its depth is not the one that its place demands.
    BadNode {
        /// The node; block 0: the inode.
        node: BlockNr,
        /// The first logical block below it.
        logical: LogicalBlock,
    },
    /// A node that the map led to before.
    NamedTwice(BlockNr),
    /// A node that the visitor could not read.
    Unreadable(BlockNr),
}

/// How to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    /// With what comes next; of an entry that leads to a node, with that node.
    On,
    /// Without what is below this entry.
    Past,
    /// Without this entry and those behind it in the same node.
    Up,
    /// Not at all.
    End,
}

/// What looks at a map, and reads its nodes.
pub trait Visitor {
    /// The bytes of a block of the map, a whole block; `None` if it lies outside the file system or cannot be read,
    /// which is a [`Fault::Unreadable`].
    fn read(&mut self, node: BlockNr) -> Option<Vec<u8>>;
    /// An entry, before anything below it. Nothing says that its blocks lie inside the file system.
    fn entry(&mut self, entry: &Entry) -> Go;
    /// A node was read; its entries follow.
    fn enter(&mut self, _node: &Entry) {}
    /// All entries of a node were followed.
    fn leave(&mut self, _node: &Entry) {}
    /// A part that cannot be followed: [`Go::Past`] leaves it out, [`Go::End`] ends the walk.
    fn fault(&mut self, fault: Fault) -> Go;
}

/// How much depths in extent trees are believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depths {
    /// Every node has the depth that its place demands, and no tree is deeper than Linux reads ([`MAX_DEPTH`]).
    Agree,
    /// Nodes below the root may say anything, as for Linux; the root at most [`MAX_DEPTH`].
    OfRoot,
    /// As [`Depths::OfRoot`], but a root of any depth is followed for 8 levels, as e2fsck does.
    OfAnyRoot,
}

/// Whether `i_block` of an inode maps blocks: not where it holds data, a short symbolic link or a device number. Special
/// inodes may have no type at all.
pub fn has_map(base: &InodeBase) -> bool {
    let flags = InodeFlags::from_bits_retain(base.flags);
    if flags.contains(InodeFlags::INLINE_DATA) {
        return false;
    }
    match FileType::of_mode(base.mode) {
        Some(FileType::Regular | FileType::Directory) | None => true,
        Some(FileType::Symlink) => {
            let size = u64::from(base.size_lo) | u64::from(base.size_high) << 32;
            flags.contains(InodeFlags::EXTENTS) || size >= ROOT_BYTES as u64
        }
        Some(_) => false,
    }
}

/// Follows the map in the 60 bytes of `i_block`: an extent tree if the flags say so, else a block map. Entries come in the
/// order of the map, which is that of logical blocks only if the map is sound.
pub fn walk(
    root: &[u8; ROOT_BYTES],
    flags: InodeFlags,
    block_size: u32,
    depths: Depths,
    visitor: &mut dyn Visitor,
) {
    let mut walk = Walk { block_size, depths, visitor, seen: HashSet::new() };
    if flags.contains(InodeFlags::EXTENTS) {
        walk.extent_root(root);
        return;
    }
    for (index, word) in indirect::pointers(root).enumerate() {
        let Some((logical, level)) = indirect::root_slot(block_size, index) else { break };
        // At most 3: there are no deeper slots.
        match walk.pointer(BlockNr(0), word, logical, level as u16) {
            Go::On | Go::Past => {}
            Go::Up | Go::End => break,
        }
    }
}

struct Walk<'v> {
    block_size: u32,
    depths: Depths,
    visitor: &'v mut dyn Visitor,
    /// Nodes that were read: each once, so that the walk ends.
    seen: HashSet<BlockNr>,
}

impl Walk<'_> {
    /// Reads the node that an entry leads to and follows it with `below`.
    fn node(&mut self, entry: &Entry, below: impl FnOnce(&mut Self, &[u8]) -> Go) -> Go {
        let node = entry.extent.run.start;
        if !self.seen.insert(node) {
            return self.visitor.fault(Fault::NamedTwice(node));
        }
        let Some(bytes) = self.visitor.read(node) else {
            return self.visitor.fault(Fault::Unreadable(node));
        };
        self.visitor.enter(entry);
        let go = below(self, &bytes);
        self.visitor.leave(entry);
        go
    }

    fn extent_root(&mut self, root: &[u8]) {
        let Some(node) = ExtentNode::new(root) else { return };
        let depth = node.header().depth;
        if depth > MAX_DEPTH && self.depths != Depths::OfAnyRoot {
            let logical = LogicalBlock(0);
            self.visitor.fault(Fault::BadNode { node: BlockNr(0), logical });
            return;
        }
        self.extent_node(BlockNr(0), LogicalBlock(0), node, depth, 0);
    }

    /// Follows a node with `depth` levels below it, `level` levels below the root.
    fn extent_node(
        &mut self,
        place: BlockNr,
        logical: LogicalBlock,
        node: ExtentNode<'_>,
        depth: u16,
        level: u16,
    ) -> Go {
        if level > MOST_LEVELS {
            return Go::On;
        }
        let header = node.header();
        let wrong_depth = self.depths == Depths::Agree && header.depth != depth;
        if !node.header_ok() || wrong_depth {
            return self.visitor.fault(Fault::BadNode { node: place, logical });
        }
        for at in 0..header.entries {
            let entry = match depth {
                0 => Entry { node: place, level: 0, extent: node.extent(at) },
                _ => {
                    let index = node.index(at);
                    let run = BlockRun::new(index.node, 1);
                    let extent = Extent { logical: index.logical, run, unwritten: false };
                    Entry { node: place, level: depth, extent }
                }
            };
            let mut go = self.visitor.entry(&entry);
            if go == Go::On && depth > 0 {
                let (below, logical) = (entry.extent.run.start, entry.extent.logical);
                go = self.node(&entry, |walk, bytes| match ExtentNode::new(bytes) {
                    Some(node) => walk.extent_node(below, logical, node, depth - 1, level + 1),
                    None => walk.visitor.fault(Fault::BadNode { node: below, logical }),
                });
            }
            match go {
                Go::On | Go::Past => {}
                Go::Up => return Go::On,
                Go::End => return Go::End,
            }
        }
        Go::On
    }

    /// Follows a pointer with `level` levels of indirect blocks below it.
    fn pointer(&mut self, place: BlockNr, word: u32, logical: LogicalBlock, level: u16) -> Go {
        if word == 0 {
            return Go::On;
        }
        let run = BlockRun::new(BlockNr(u64::from(word)), 1);
        let entry = Entry { node: place, level, extent: Extent { logical, run, unwritten: false } };
        let go = self.visitor.entry(&entry);
        if go != Go::On || level == 0 {
            return go;
        }
        let span = indirect::span_blocks(self.block_size, u32::from(level) - 1);
        let go = self.node(&entry, |walk, bytes| {
            for (word, index) in indirect::pointers(bytes).zip(0u64..) {
                let below = LogicalBlock(logical.0 + index * span);
                match walk.pointer(run.start, word, below, level - 1) {
                    Go::On | Go::Past => {}
                    Go::Up => return Go::On,
                    Go::End => return Go::End,
                }
            }
            Go::On
        });
        // A fault below concerns that node alone.
        if go == Go::End { Go::End } else { Go::On }
    }
}

/// Adds a run of data behind the others; joins it to the last if it goes on where that ends, in the file and on the disk.
pub fn push_joined(runs: &mut Vec<Extent>, extent: Extent) {
    if let Some(last) = runs.last_mut()
        && last.logical.0.checked_add(last.run.len_blocks) == Some(extent.logical.0)
        && last.run.end() == extent.run.start
        && last.unwritten == extent.unwritten
    {
        last.run.len_blocks += extent.run.len_blocks;
        return;
    }
    runs.push(extent);
}
