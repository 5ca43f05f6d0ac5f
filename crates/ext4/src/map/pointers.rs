//! Edits block maps in place: sets and clears pointers, and allocates and frees indirect blocks.

use std::ops::Range;

use floe_format::ext::extent::Extent;
use floe_format::ext::indirect::{self, IndirectForm};
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::mapping::ROOT_BYTES;
use crate::alloc::Allocate;
use crate::tx::{Refusal, Tx};

const BEYOND: Refusal = Refusal::TooMuch("the block is beyond the reach of the block map");

/// Edits the block map of one inode, whose root is `i_block`. Pointers are trusted if they lie
/// inside the file system.
pub struct PointerEditor<'t> {
    /// Where indirect blocks are read and changed.
    pub tx: &'t mut dyn Tx,
    /// Allocates and frees indirect blocks.
    pub space: &'t mut dyn Allocate,
    /// The form of indirect blocks.
    pub form: IndirectForm,
    /// The inode, which headers of indirect blocks name.
    pub owner: InodeNr,
    /// The preferred place of new indirect blocks.
    pub goal: BlockNr,
}

/// An indirect block: its place, and the logical blocks below it.
#[derive(Clone, Copy)]
struct Node {
    block: BlockNr,
    /// 1 to 3.
    level: u32,
    base: u64,
}

impl PointerEditor<'_> {
    /// Maps an extent where nothing is mapped.
    ///
    /// # Errors
    /// [`Refusal::TooMuch`] beyond the map or its 32 bits, or if a block is mapped there;
    /// [`Refusal::Full`], or an error of reading or changing a block. After an error the map may be
    /// half changed, so the caller must drop the transaction.
    pub fn insert(&mut self, root: &mut [u8; ROOT_BYTES], extent: Extent) -> Result<(), Refusal> {
        if extent.run.end().0 > u64::from(u32::MAX) || extent.unwritten {
            return Err(BEYOND);
        }
        let (mut at, end) = (extent.logical.0, extent.logical.0 + extent.run.len_blocks);
        while at < end {
            let (index, base, level) = slot(self.form, at)?;
            if level == 0 {
                put(root, index, target(&extent, at))?;
                at += 1;
                continue;
            }
            let block = match get(root, index) {
                0 => {
                    let block = self.new_node(level, true)?;
                    set(root, index, block.0)?;
                    block
                }
                word => self.known(word)?,
            };
            at = self.insert_below(Node { block, level, base }, at, &extent)?;
        }
        Ok(())
    }

    /// Turns a range of logical blocks into a hole. Returns the blocks that were mapped there,
    /// which the caller must free. Indirect blocks that are no longer needed are freed here.
    ///
    /// # Errors
    /// Those of [`PointerEditor::insert`].
    pub fn remove(
        &mut self,
        root: &mut [u8; ROOT_BYTES],
        range: Range<u64>,
    ) -> Result<Vec<BlockRun>, Refusal> {
        let mut freed = Vec::new();
        for index in 0..ROOT_BYTES / 4 {
            let Some((base, level)) = self.form.root_slot(index) else { break };
            let end = base.0 + self.form.span_blocks(level);
            let word = get(root, index);
            if word == 0 || end <= range.start || base.0 >= range.end {
                continue;
            }
            if level == 0 {
                note(&mut freed, BlockNr(u64::from(word)));
                set(root, index, 0)?;
                continue;
            }
            let block = self.known(word)?;
            if self.remove_below(Node { block, level, base: base.0 }, &range, &mut freed)? {
                self.space.release(self.tx, BlockRun::new(block, 1))?;
                set(root, index, 0)?;
            }
        }
        Ok(freed)
    }

    /// The indirect block that a pointer leads to.
    fn known(&self, word: u32) -> Result<BlockNr, Refusal> {
        let block = BlockNr(u64::from(word));
        self.space.judge_node(block)?;
        Ok(block)
    }

    /// A new indirect block of a level, to which `i_block` points if it is of the root.
    fn new_node(&mut self, level: u32, of_root: bool) -> Result<BlockNr, Refusal> {
        let block = match of_root && level == 1 {
            true => self.space.first_indirect(self.tx, self.goal)?,
            false => self.space.block(self.tx, self.goal)?,
        };
        if block.0 > u64::from(u32::MAX) {
            return Err(BEYOND);
        }
        self.form.put_header(self.tx.zeroed(block)?, self.owner, level);
        Ok(block)
    }

    /// Maps the part of an extent from `at` on that lies below a node; returns the next logical
    /// block to map.
    fn insert_below(&mut self, node: Node, mut at: u64, extent: &Extent) -> Result<u64, Refusal> {
        let per_block = self.form.pointers_per_block();
        let span = self.form.span_blocks(node.level - 1);
        let end = (extent.logical.0 + extent.run.len_blocks).min(node.base + span * per_block);
        while at < end {
            // Less than the pointers of a block.
            let index = ((at - node.base) / span) as usize;
            if node.level == 1 {
                let bytes = self.form.body_mut(self.tx.block_mut(node.block)?);
                for (slot, logical) in (index..).zip(at..end) {
                    put(bytes, slot, target(extent, logical))?;
                }
                return Ok(end);
            }
            let word = get(self.form.body(&self.tx.block(node.block)?), index);
            let block = if word == 0 {
                let block = self.new_node(node.level - 1, false)?;
                set(self.form.body_mut(self.tx.block_mut(node.block)?), index, block.0)?;
                block
            } else {
                self.known(word)?
            };
            let base = node.base + index as u64 * span;
            at = self.insert_below(Node { block, level: node.level - 1, base }, at, extent)?;
        }
        Ok(at)
    }

    /// Unmaps the part of a range that lies below a node; returns whether nothing is left below it.
    fn remove_below(
        &mut self,
        node: Node,
        range: &Range<u64>,
        freed: &mut Vec<BlockRun>,
    ) -> Result<bool, Refusal> {
        let (form, span) = (self.form, self.form.span_blocks(node.level - 1));
        let mut bytes = self.tx.block(node.block)?.to_vec();
        let words: Vec<u32> = indirect::pointers(form.body(&bytes)).collect();
        for (index, &word) in words.iter().enumerate() {
            let base = node.base + index as u64 * span;
            if word == 0 || base + span <= range.start || base >= range.end {
                continue;
            }
            if node.level == 1 {
                note(freed, BlockNr(u64::from(word)));
                set(form.body_mut(&mut bytes), index, 0)?;
                continue;
            }
            let block = self.known(word)?;
            let below = Node { block, level: node.level - 1, base };
            if self.remove_below(below, range, freed)? {
                self.space.release(self.tx, BlockRun::new(block, 1))?;
                set(form.body_mut(&mut bytes), index, 0)?;
            }
        }
        let empty = form.body(&bytes).iter().all(|&byte| byte == 0);
        if !empty {
            self.tx.block_mut(node.block)?.copy_from_slice(&bytes);
        }
        Ok(empty)
    }
}

/// The indirect blocks on the way to a logical block, the highest first. Ends at the first hole.
///
/// # Errors
/// [`Refusal::TooMuch`] beyond the map, or an error of reading a block.
pub fn nodes_above(
    tx: &mut dyn Tx,
    root: &[u8; ROOT_BYTES],
    form: IndirectForm,
    at: LogicalBlock,
) -> Result<Vec<BlockNr>, Refusal> {
    let (index, mut base, mut level) = slot(form, at.0)?;
    let (mut word, mut nodes) = (get(root, index), Vec::new());
    while level > 0 && word != 0 {
        let block = BlockNr(u64::from(word));
        nodes.push(block);
        level -= 1;
        let span = form.span_blocks(level);
        // Less than the pointers of a block.
        let index = ((at.0 - base) / span) as usize;
        base += index as u64 * span;
        word = get(form.body(&tx.block(block)?), index);
    }
    Ok(nodes)
}

/// The word of `i_block` that leads to a logical block, the first logical block below it, and its
/// level.
fn slot(form: IndirectForm, at: u64) -> Result<(usize, u64, u32), Refusal> {
    let slots = (0..ROOT_BYTES / 4).rev();
    let mut places = slots.filter_map(|index| {
        let (base, level) = form.root_slot(index)?;
        Some((index, base.0, level))
    });
    let found = places.find(|(_, base, _)| *base <= at).ok_or(BEYOND)?;
    let end = found.1 + form.span_blocks(found.2);
    if at < end { Ok(found) } else { Err(BEYOND) }
}

/// The physical block to which an extent maps a logical block.
fn target(extent: &Extent, logical: u64) -> u64 {
    extent.run.start.0 + (logical - extent.logical.0)
}

/// Adds a freed block, extending the last run if it follows that.
fn note(freed: &mut Vec<BlockRun>, block: BlockNr) {
    match freed.last_mut() {
        Some(last) if last.end() == block => last.len_blocks += 1,
        _ => freed.push(BlockRun::new(block, 1)),
    }
}

fn get(bytes: &[u8], index: usize) -> u32 {
    bytes.as_chunks::<4>().0.get(index).map_or(0, |word| u32::from_le_bytes(*word))
}

fn set(bytes: &mut [u8], index: usize, block: u64) -> Result<(), Refusal> {
    let value = u32::try_from(block).map_err(|_| BEYOND)?;
    let word = bytes.as_chunks_mut::<4>().0.get_mut(index).ok_or(BEYOND)?;
    *word = value.to_le_bytes();
    Ok(())
}

/// Like [`set`], for a pointer that must be 0.
fn put(bytes: &mut [u8], index: usize, block: u64) -> Result<(), Refusal> {
    if get(bytes, index) != 0 {
        return Err(Refusal::TooMuch("a block is already mapped there"));
    }
    set(bytes, index, block)
}

/// The end of the logical blocks that a block map can reach.
pub fn end_of_reach(form: IndirectForm) -> LogicalBlock {
    let end = form.root_slot(14).map_or(0, |(base, level)| base.0 + form.span_blocks(level));
    // Logical blocks have 32 bits, and the last number is invalid (`EXT_MAX_BLOCKS`).
    LogicalBlock(end.min(u64::from(u32::MAX)))
}
