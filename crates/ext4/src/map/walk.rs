//! Walks the map of a file, of either kind. The walk trusts nothing: it reads each node once, so it
//! ends for any bytes, and the [`Visitor`] decides how to react to faults.

use std::collections::HashSet;

use floe_format::ext::extent::{Extent, ExtentNode, MAX_DEPTH};
use floe_format::ext::indirect::{self, IndirectForm};
use floe_format::ext::inode::{FileType, InodeBase, InodeFlags};
use floe_format::{BlockNr, BlockRun, LogicalBlock};

use super::mapping::ROOT_BYTES;

/// Levels below the root of an extent tree that e2fsck follows, whatever depth the root claims.
const MOST_LEVELS: u16 = 8;

/// An entry of a map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The node that holds it; block 0: the inode.
    pub node: BlockNr,
    /// Levels below it: 0 for data.
    pub level: u16,
    /// Data: its blocks, one block at a time in a block map. For an entry that points to a node:
    /// the node, as a run of one block, and its first logical block.
    pub extent: Extent,
}

/// Why a part of a map cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The header of a node is damaged, or its depth does not match its level.
    BadNode {
        /// The node; block 0: the inode.
        node: BlockNr,
        /// Its first logical block.
        logical: LogicalBlock,
    },
    /// A node that the map has named before.
    NamedTwice(BlockNr),
    /// A node that the visitor could not read.
    Unreadable(BlockNr),
}

/// How the walk continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Go {
    /// With the next entry; for an entry that points to a node, with that node.
    On,
    /// Skips everything below this entry.
    Past,
    /// Skips this entry and those behind it in the same node.
    Up,
    /// Stops.
    End,
}

/// Visits the entries of a map, and reads its nodes.
pub trait Visitor {
    /// The bytes of a whole mapping block; `None` if it lies outside the file system or cannot be
    /// read, which becomes a [`Fault::Unreadable`].
    fn read(&mut self, node: BlockNr) -> Option<Vec<u8>>;
    /// Called for an entry, before everything below it. Its blocks may lie outside the file system.
    fn entry(&mut self, entry: &Entry) -> Go;
    /// Called when a node was read, before its entries.
    fn enter(&mut self, _node: &Entry) {}
    /// Called after all entries of a node.
    fn leave(&mut self, _node: &Entry) {}
    /// Called for a part that cannot be followed: [`Go::Past`] skips it, [`Go::End`] stops the
    /// walk.
    fn fault(&mut self, fault: Fault) -> Go;
}

/// How far the depths stored in extent trees are trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depths {
    /// Every node must have the depth that its level demands, and no tree may be deeper than Linux
    /// reads ([`MAX_DEPTH`]).
    Agree,
    /// Depths below the root are ignored, as in Linux; the root may have at most [`MAX_DEPTH`].
    OfRoot,
    /// Like [`Depths::OfRoot`], but a root of any depth is followed for 8 levels, as in e2fsck.
    OfAnyRoot,
}

/// Whether `i_block` of an inode maps blocks: not if it holds inline data, a fast symbolic link or
/// a device number. Special inodes may have no file type at all.
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

/// Walks the map in the 60 bytes of `i_block`: an extent tree if the flags say so, else a block
/// map. Entries are visited in the order of the map, which is that of logical blocks only if the
/// map is valid.
pub fn walk(
    root: &[u8; ROOT_BYTES],
    flags: InodeFlags,
    form: IndirectForm,
    depths: Depths,
    visitor: &mut dyn Visitor,
) {
    let mut walk = Walk { form, depths, visitor, seen: HashSet::new() };
    if flags.contains(InodeFlags::EXTENTS) {
        walk.extent_root(root);
        return;
    }
    for (index, word) in indirect::pointers(root).enumerate() {
        let Some((logical, level)) = form.root_slot(index) else { break };
        // At most 3, because `i_block` has no deeper pointers.
        match walk.pointer(BlockNr(0), word, logical, level as u16) {
            Go::On | Go::Past => {}
            Go::Up | Go::End => break,
        }
    }
}

struct Walk<'v> {
    form: IndirectForm,
    depths: Depths,
    visitor: &'v mut dyn Visitor,
    /// Nodes that were read. Each is read once, so the walk ends.
    seen: HashSet<BlockNr>,
}

impl Walk<'_> {
    /// Reads the node that an entry points to and follows it with `below`.
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
        let (form, span) = (self.form, self.form.span_blocks(u32::from(level) - 1));
        let go = self.node(&entry, |walk, bytes| {
            for (word, index) in indirect::pointers(form.body(bytes)).zip(0u64..) {
                let below = LogicalBlock(logical.0 + index * span);
                match walk.pointer(run.start, word, below, level - 1) {
                    Go::On | Go::Past => {}
                    Go::Up => return Go::On,
                    Go::End => return Go::End,
                }
            }
            Go::On
        });
        // A fault below affects that node alone.
        if go == Go::End { Go::End } else { Go::On }
    }
}

/// Appends a run of data; merges it with the last one if it continues that in the file and on the
/// disk.
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
