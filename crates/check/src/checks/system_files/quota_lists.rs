//! Check: the lists of a quota file lead to blocks that Linux may take, and its leaves count their entries.
//! Reads: quota files.  Keeps: the blocks of one tree.  Emits: reasons of `QuotaFileCorrupt`.
//!
//! Linux writes over the first free block of the list, and gives a leaf back once its count of entries says that none is
//! left: a wrong one costs the limits of users. It refuses a leaf whose header is out of range with EUCLEAN, and so to
//! create files for a new user. e2fsck reads none of this.
//!
//! Does not verify: that all free blocks and all leaves with a free entry are on the lists.

use std::collections::{HashMap, HashSet};

use floe_format::ext::quota::{
    BLOCK_SIZE, LEAF_ENTRIES, LeafHeader, Met, QuotaHeader, ROOT_BLOCK, TreeFault,
};

/// A fault, and the block of the file that has it.
pub(super) type Fault = (u32, &'static str);

/// The blocks of a tree.
#[derive(Default)]
pub(super) struct Tree {
    nodes: HashSet<u32>,
    /// Their headers, by block.
    leaves: HashMap<u32, LeafHeader>,
    /// Faults met so far.
    pub(super) faults: Vec<Fault>,
}

impl Tree {
    /// Adds a block or a fault of the tree. `blocks`: as the header counts them.
    pub(super) fn add(&mut self, met: &Met, blocks: u32) {
        match *met {
            Met::Node(block) => {
                self.nodes.insert(block);
            }
            Met::Leaf { block, ref header, in_use } => {
                self.leaves.insert(block, header.clone());
                if header.next_free >= blocks || header.prev_free >= blocks {
                    self.faults.push((block, "a leaf is linked to a block out of the file"));
                }
                if header.entries != in_use {
                    self.faults.push((block, "a leaf does not count its entries rightly"));
                }
            }
            Met::Fault(TreeFault::BlockOutOfRange { from, .. }) => {
                self.faults.push((from, "a pointer leads out of the file"));
            }
            Met::Fault(TreeFault::BlockTwice { from, .. }) => {
                let reason = "a pointer leads to a block that was met before";
                self.faults.push((from, reason));
            }
            Met::Entry(_) => (),
        }
    }

    /// Follows both lists, up to the first fault.
    ///
    /// # Errors
    /// The first error of `read`.
    pub(super) fn follow<E>(
        &mut self,
        header: &QuotaHeader,
        mut read: impl FnMut(u64, &mut [u8; BLOCK_SIZE]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut seen = HashSet::new();
        let mut next = header.free_block;
        while next != 0 {
            let is_free = next > ROOT_BLOCK
                && next < header.blocks
                && !self.nodes.contains(&next)
                && !self.leaves.contains_key(&next);
            if !is_free || !seen.insert(next) {
                self.faults.push((0, "the list of free blocks leads to one that is not free"));
                break;
            }
            let mut bytes = [0; BLOCK_SIZE];
            read(u64::from(next) * BLOCK_SIZE as u64, &mut bytes)?;
            next = bytes.first_chunk().map_or(0, |raw| LeafHeader::decode(raw).next_free);
        }
        next = header.free_entry;
        while next != 0 {
            let leaf = self.leaves.get(&next);
            let has_room = leaf.filter(|leaf| usize::from(leaf.entries) < LEAF_ENTRIES);
            let Some(leaf) = has_room.filter(|_| seen.insert(next)) else {
                let reason = "the list of leaves with a free entry leads to a block without one";
                self.faults.push((0, reason));
                break;
            };
            next = leaf.next_free;
        }
        Ok(())
    }
}
