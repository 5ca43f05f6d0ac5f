//! Check: the tree of a quota file leads to the entry of each identifier, its lists to blocks that Linux may take, and its
//! leaves count their entries.
//! Reads: quota files.  Keeps: the blocks of one tree.  Emits: reasons of `QuotaFileCorrupt`.
//!
//! Linux writes over the first free block of the list, and gives a leaf back once its count of entries says that none is
//! left: a wrong one costs the limits of users. It refuses a leaf whose header is out of range with EUCLEAN, and so to
//! create files for a new user. It looks for an entry in the leaf to which the bytes of the identifier lead: where there is
//! none, calls for that user fail with EIO, and of an entry elsewhere it does not know. e2fsck reads none of this.
//!
//! Does not verify: that all free blocks and all leaves with a free entry are on the lists.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use floe_format::ext::quota::{
    BLOCK_SIZE, Dquot, LEAF_ENTRIES, LeafHeader, Met, QuotaHeader, ROOT_BLOCK, TreeFault,
};

/// A fault, and the block of the file that has it.
pub(super) type Fault = (u32, &'static str);

/// The blocks of a tree.
#[derive(Default)]
pub(super) struct Tree {
    nodes: HashSet<u32>,
    /// Their headers, by block.
    leaves: HashMap<u32, LeafHeader>,
    /// The identifiers whose pointers lead to a leaf, and those of its entries, by leaf.
    pointed: BTreeMap<u32, BTreeSet<u32>>,
    entries: BTreeMap<u32, Vec<u32>>,
    /// The leaf whose entries are met.
    leaf: u32,
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
                self.leaf = block;
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
            Met::Entry(Dquot { id, .. }) => self.entries.entry(self.leaf).or_default().push(id),
            Met::Pointer { id, leaf } => {
                self.pointed.entry(leaf).or_default().insert(id);
            }
        }
    }

    /// Compares the pointers to each leaf with its entries.
    pub(super) fn match_entries(&mut self) {
        for (&leaf, pointed) in &self.pointed {
            let entries = self.entries.get(&leaf).map_or(&[][..], Vec::as_slice);
            let held: BTreeSet<u32> = entries.iter().copied().collect();
            if !pointed.is_subset(&held) {
                let reason = "the tree leads to a leaf for an identifier that has no entry there";
                self.faults.push((leaf, reason));
            }
            if !held.is_subset(pointed) {
                let reason = "a leaf has the entry of an identifier that the tree leads elsewhere";
                self.faults.push((leaf, reason));
            }
            if held.len() < entries.len() {
                self.faults.push((leaf, "a leaf has two entries of one identifier"));
            }
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
