//! Copies of inodes in the journal whose checksum does not say which inodes they are. The descriptor blocks of the log say so: each
//! names the home blocks of the copies behind it, and transactions stay in the log until others overwrite them.

use std::collections::BTreeMap;

use floe_ext4::files::is_plausible;
use floe_format::ext::inode::Inode;
use floe_format::ext::jbd2::{self, DESCRIPTOR_BLOCK, JournalSuperblock};
use floe_format::{BlockNr, BlockRun, InodeNr};

use crate::evidence::InodeCopy;
use crate::state::State;
use crate::tables::Tables;

/// Bytes of an inode without a whole checksum.
const OLD_INODE_BYTES: u32 = 128;
/// Half of all sequence numbers, which wrap around: the stamp of a copy of the transaction that the journal expects next.
const MIDDLE: i64 = 1 << 32;

/// Blocks of the journal, in the order of the log.
struct Log<'a> {
    runs: &'a [BlockRun],
    /// First block of the log, and the one behind its last: 0 is the journal's superblock.
    first: u64,
    end: u64,
}

impl Log<'_> {
    fn block(&self, mut at: u64) -> Option<BlockNr> {
        for run in self.runs {
            if at < run.len_blocks {
                return Some(BlockNr(run.start.0 + at));
            }
            at -= run.len_blocks;
        }
        None
    }

    /// The block `by` blocks behind block `at`, at whose end the log goes on from its first block.
    fn behind(&self, at: u64, by: u64) -> u64 {
        self.first + (at - self.first + by) % (self.end - self.first)
    }
}

impl State<'_> {
    /// Adds the inodes in copies of table blocks to the evidence, if checksums do not tell which they are. `runs`: the journal, in
    /// the order of its blocks.
    pub(crate) fn find_logged_inodes(&mut self, runs: &[BlockRun]) {
        let geometry = &self.frame.geometry;
        if self.frame.seed().is_some() && geometry.inode_size > OLD_INODE_BYTES {
            return;
        }
        let Some(&start) = runs.first() else { return };
        let Ok(block) = self.space.block(start.start) else { return };
        let Some(superblock) = block.first_chunk().map(JournalSuperblock::decode) else { return };
        let blocks: u64 = runs.iter().map(|run| run.len_blocks).sum();
        let end = superblock.maxlen.saturating_sub(superblock.fast_commit_blocks());
        let log = Log { runs, first: superblock.first.into(), end: u64::from(end).min(blocks) };
        if superblock.magic != jbd2::MAGIC || log.first == 0 || log.first >= log.end {
            return;
        }
        let (format, tables) = (superblock.format(), Tables::of(self.frame));
        // By home block: the newest copy, which has all its inodes.
        let mut newest: BTreeMap<u64, (u64, BlockNr)> = BTreeMap::new();
        for at in log.first..log.end {
            let Some(block) = log.block(at).and_then(|block| self.space.block(block).ok()) else {
                continue;
            };
            let header = jbd2::header(&block).filter(|header| header.blocktype == DESCRIPTOR_BLOCK);
            let Some(header) = header.filter(|_| format.tail_ok(&block)) else { continue };
            let age = header.sequence.wrapping_sub(superblock.sequence).cast_signed();
            let stamp = (MIDDLE + i64::from(age)).unsigned_abs();
            for (tag, by) in format.tags(&block).zip(1..) {
                let is_inodes = tables.first_inode_of(BlockNr(tag.block)).is_some();
                let Some(copy) = log.block(log.behind(at, by)).filter(|_| is_inodes) else {
                    continue;
                };
                let known = newest.entry(tag.block).or_insert((stamp, copy));
                *known = (stamp, copy).max(*known);
            }
        }
        let copies = newest.into_iter().flat_map(|(home, (stamp, copy))| {
            let first = tables.first_inode_of(BlockNr(home));
            first.map_or_else(Vec::new, |first| self.inodes_in(copy, first, stamp))
        });
        let copies: Vec<InodeCopy> = copies.collect();
        self.evidence.copies.extend(copies);
        self.evidence.copies.sort_unstable();
    }

    /// The inodes in a copy of a block of an inode table that begins with `first`.
    fn inodes_in(&self, block: BlockNr, first: InodeNr, stamp: u64) -> Vec<InodeCopy> {
        let size = self.frame.geometry.inode_size as usize;
        let Ok(bytes) = self.space.block(block) else { return Vec::new() };
        let copies = bytes.chunks_exact(size).enumerate().filter_map(|(at, raw)| {
            let inode = Inode::decode(raw).filter(is_plausible)?;
            Some(InodeCopy {
                // A block holds fewer than 2^16 inodes.
                inode: InodeNr(first.0 + at as u32),
                stamp,
                offset_bytes: self.frame.geometry.offset_bytes(block) + (at * size) as u64,
                in_use: inode.base.links_count > 0 && inode.base.dtime == 0,
            })
        });
        copies.collect()
    }
}
