//! Check: the block map (direct and indirect pointers) of an inode.
//! Reads: `i_block` and the indirect blocks.  Keeps: claims, directory runs.
//! Emits: `BlockMap*`, `IndirectHeaderWrong`, `FileTooBig`, `DirectoryTooBig`, `SymlinkTooBig`, `UnreadableBlock`.
//! Does not verify: overlap with other inodes (`checks/space/shared_blocks.rs`).

use std::ops::ControlFlow;

use floe_format::ext::indirect::{Header, PointerRun, pointer_runs, pointers};
use floe_format::ext::inode::FileType;
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use crate::checks::mapping::mapper::{Claimed, Mapper, Mapping};
use crate::problem::Problem;
use crate::scan::read_ahead;

/// e2fsck offers to clear an inode after each this many illegal blocks.
const MANY_BAD_BLOCKS: u32 = 12;

/// The state of a walk over one block map.
struct Walk<'m, 'a, 'e> {
    mapper: &'m mut Mapper<'a, 'e>,
    bad_blocks: u32,
    /// Adjacent data blocks not yet mapped: logical start, run.
    pending: Option<(u64, BlockRun)>,
    /// Blocks of a file by its size; no limit for all else.
    size_blocks: u64,
}

/// Walks the block map of an inode.
pub fn walk(mapper: &mut Mapper<'_, '_>) -> Mapping {
    let form = mapper.cx.volume.geometry.indirect();
    let resize = mapper.inode() == InodeNr::RESIZE;
    let size_blocks = match mapper.file_type {
        Some(FileType::Regular) if !resize => {
            let block_size = u64::from(mapper.cx.volume.geometry.block_size);
            mapper.cx.inode.size_bytes().div_ceil(block_size)
        }
        _ => u64::MAX,
    };
    let mut walk = Walk { mapper, bad_blocks: 0, pending: None, size_blocks };
    for index in 0..15 {
        let pointer = walk.mapper.cx.inode.block_word(index).unwrap_or(0);
        let Some((logical, level)) = form.root_slot(index) else { continue };
        if resize {
            walk.resize_inode_word(index, pointer, logical.0);
        } else {
            walk.followed(pointer, logical.0, level as u8);
        }
    }
    walk.flush();
    if walk.bad_blocks >= MANY_BAD_BLOCKS {
        let (inode, count) = (walk.mapper.inode(), walk.bad_blocks);
        walk.mapper.report(Problem::BlockMapTooManyBadBlocks { inode, count });
    }
    walk.mapper.mapping
}

impl Walk<'_, '_, '_> {
    /// The resize inode's blocks belong to the reserved descriptors, which count as static metadata
    /// and were judged by `checks/system_files/resize_inode.rs`: only its double-indirect block is its own. They count for
    /// its size, as those of any file do; `logical` is the first that the word may map.
    fn resize_inode_word(&mut self, index: usize, pointer: u32, logical: u64) {
        let Some(block) = self.resize_inode_block(pointer, index, 2) else { return };
        if index != 13 {
            return;
        }
        let volume = self.mapper.cx.volume;
        self.mapper.evidence.claims.claim(&volume.geometry, BlockRun::new(block, 1));
        let mut bytes = Vec::new();
        if volume.read_block(block, &mut bytes).is_err() {
            self.mapper.report(Problem::UnreadableBlock { inode: InodeNr::RESIZE, block });
            return;
        }
        // Each descriptor block listed here, and the copies that it lists in turn.
        let mut copies = Vec::new();
        // No file system with a resize inode has headers.
        let span = volume.geometry.indirect().span_blocks(1);
        for PointerRun { slot, first, len } in pointer_runs(&bytes) {
            let run = BlockRun::new(BlockNr(first.into()), len.into());
            let _: ControlFlow<()> = volume.blocks_of(run, &mut copies, |block, bytes| {
                // A pointer has 32 bits.
                if self.resize_inode_block(block.0 as u32, index, 1).is_some() {
                    if bytes.is_none() {
                        let inode = InodeNr::RESIZE;
                        self.mapper.report(Problem::UnreadableBlock { inode, block });
                    }
                    let above = u64::from(slot) + block.0.saturating_sub(u64::from(first));
                    for PointerRun { slot, first, len } in bytes.into_iter().flat_map(pointer_runs)
                    {
                        for at in 0..len {
                            if self.resize_inode_block(first + at, index, 0).is_some() {
                                let last = logical + above * span + u64::from(slot + at);
                                let mapping = &mut self.mapper.mapping;
                                mapping.last = mapping.last.max(Some(last));
                                mapping.last_written = mapping.last;
                            }
                        }
                    }
                }
                ControlFlow::Continue(())
            });
        }
    }

    /// Counts a block of the resize inode; `None` if there is none or it is out of range.
    fn resize_inode_block(&mut self, pointer: u32, index: usize, level: u8) -> Option<BlockNr> {
        let block = BlockNr(u64::from(pointer));
        if pointer == 0 {
            return None;
        }
        if !self.mapper.cx.volume.geometry.contains(block) {
            let (inode, logical) = (self.mapper.inode(), LogicalBlock(index as u64));
            self.mapper.report(Problem::BlockMapBlockOutOfRange { inode, logical, block, level });
            return None;
        }
        self.mapper.mapping.clusters += 1;
        Some(block)
    }

    /// One pointer: to a data block (level 0) or an indirect block.
    fn pointer(&mut self, pointer: u32, logical: u64, level: u8) {
        if pointer == 0 {
            return;
        }
        if logical < self.size_blocks || !self.is_past_agreed_size(logical) {
            self.followed(pointer, logical, level);
        }
    }

    /// A pointer that is the file's: those in the inode are, because they were stored with the size.
    fn followed(&mut self, pointer: u32, logical: u64, level: u8) {
        if pointer == 0 {
            return;
        }
        let block = BlockNr(u64::from(pointer));
        if let Some(problem) = self.judge(block, logical, level) {
            self.bad_blocks += 1;
            self.mapper.report(problem);
            return;
        }
        if level == 0 {
            self.data(block, logical);
        } else {
            self.flush();
            self.indirect(block, logical, level);
        }
    }

    /// Whether what lies at `logical` is not the file's, by its inode.
    #[cold]
    fn is_past_agreed_size(&mut self, logical: u64) -> bool {
        self.flush();
        self.mapper.is_past_agreed_size(logical, 0)
    }

    /// The first thing wrong with a pointer.
    fn judge(&self, block: BlockNr, first: u64, level: u8) -> Option<Problem> {
        let cx = &self.mapper.cx;
        let inode = cx.number;
        let logical = LogicalBlock(first);
        if !cx.volume.geometry.contains(block) {
            return Some(Problem::BlockMapBlockOutOfRange { inode, logical, block, level });
        }
        // The list of bad blocks has no size, and no type.
        if level > 0 || inode == InodeNr::BAD_BLOCKS {
            return None;
        }
        let pending = self.pending.map_or(0, |(_, run)| run.len_blocks);
        let too_many = self.mapper.mapping.clusters + pending + 1 >= self.most_blocks();
        match self.mapper.file_type {
            Some(FileType::Directory) => (too_many || self.mapper.too_far_for_dir(first))
                .then_some(Problem::DirectoryTooBig { inode, logical, block }),
            Some(FileType::Regular) => {
                too_many.then_some(Problem::FileTooBig { inode, logical, block })
            }
            _ => (first > 0).then_some(Problem::SymlinkTooBig { inode, logical, block }),
        }
    }

    /// Joins adjacent data blocks, so that claims are made by run.
    fn data(&mut self, block: BlockNr, logical: u64) {
        match &mut self.pending {
            Some((start, run)) if run.end() == block && *start + run.len_blocks == logical => {
                run.len_blocks += 1;
            }
            _ => {
                self.flush();
                self.pending = Some((logical, BlockRun::new(block, 1)));
            }
        }
    }

    /// Maps adjacent data blocks of a file at once, if nothing is wrong with any of them.
    fn data_run(&mut self, first: u32, len: u32, logical: u64) -> bool {
        let cx = &self.mapper.cx;
        let run = BlockRun::new(BlockNr(first.into()), len.into());
        let pending = self.pending.map_or(0, |(_, run)| run.len_blocks);
        let blocks = self.mapper.mapping.clusters + pending + run.len_blocks;
        let sound = self.mapper.file_type == Some(FileType::Regular)
            && cx.number != InodeNr::BAD_BLOCKS
            && cx.volume.geometry.contains(run.start)
            && cx.volume.geometry.contains(BlockNr(run.end().0 - 1))
            && blocks < self.most_blocks()
            && logical + u64::from(len) <= self.size_blocks;
        if !sound {
            return false;
        }
        match &mut self.pending {
            Some((start, before))
                if before.end() == run.start && *start + before.len_blocks == logical =>
            {
                before.len_blocks += run.len_blocks;
            }
            _ => {
                self.flush();
                self.pending = Some((logical, run));
            }
        }
        true
    }

    /// A file has fewer blocks than this.
    fn most_blocks(&self) -> u64 {
        1 << (31 - self.mapper.cx.volume.superblock.log_block_size.min(20))
    }

    fn flush(&mut self) {
        if let Some((logical, run)) = self.pending.take() {
            self.mapper.map(logical, run, true);
        }
    }

    /// Compares the header of an indirect block with the map that leads to it.
    fn judge_header(&mut self, header: Option<Header>, block: BlockNr, level: u8) {
        let inode = self.mapper.inode();
        let Some(Header { inode: named, level: stored }) = header else { return };
        if named != inode.0 || stored != u32::from(level) {
            let named = InodeNr(named);
            self.mapper.report(Problem::IndirectHeaderWrong { inode, block, level, named, stored });
        }
    }

    /// Reads an indirect block and follows its pointers.
    fn indirect(&mut self, block: BlockNr, logical: u64, level: u8) {
        let inode = self.mapper.inode();
        if self.mapper.claim_node(block, LogicalBlock(logical)) != Claimed::First {
            // Met before in this inode: it is claimed twice now, which the shared-block check sees.
            // On metadata: nothing in it says whose it is, so a copy is made first, and then judged.
            return;
        }
        self.mapper.pass_node(block);
        let at = usize::from(level);
        let nodes = &mut self.mapper.evidence.buffers.nodes;
        if nodes.len() <= at {
            nodes.resize_with(at + 1, Vec::new);
        }
        let mut bytes = std::mem::take(&mut nodes[at]);
        if self.mapper.cx.volume.read_block(block, &mut bytes).is_err() {
            self.mapper.report(Problem::UnreadableBlock { inode, block });
            let logical = LogicalBlock(logical);
            self.mapper.report(Problem::InodeBlockWalkFailed { inode, logical, block, level });
        } else {
            let form = self.mapper.cx.volume.geometry.indirect();
            self.judge_header(form.header(&bytes), block, level);
            if level > 1 {
                let below = pointers(form.body(&bytes)).map(|pointer| BlockNr(pointer.into()));
                let room = &mut self.mapper.evidence.buffers.ahead;
                read_ahead::announce(self.mapper.cx.volume, below, room);
            }
            let span = form.span_blocks(u32::from(level) - 1);
            for PointerRun { slot, first, len } in pointer_runs(form.body(&bytes)) {
                let logical = logical + u64::from(slot) * span;
                if level > 1 || !self.data_run(first, len, logical) {
                    for at in 0..len {
                        self.pointer(first + at, logical + u64::from(at) * span, level - 1);
                    }
                }
            }
            self.flush();
        }
        self.mapper.evidence.buffers.nodes[at] = bytes;
    }
}
