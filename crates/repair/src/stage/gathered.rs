//! Blocks that a damaged map no longer leads to, although their checksums say whose they are (`docs/salvage.md`, "Whose block is
//! this?"): nodes of extent trees, and blocks of directories. They are sought among the blocks that the bitmaps mark as used and
//! that nobody claims. e2fsck gives them up, and with them what they lead to.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use floe_format::checksum_seed::SeedFinder;
use floe_format::ext::bitmap;
use floe_format::ext::dirent::{DirCursor, TailState, tail_state};
use floe_format::ext::extent::ExtentNode;
use floe_format::ext::htree::{DxBlock, DxKind};
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr};

use super::{InodeImage, Stage};

/// Blocks that are read at most: 4 GiB of blocks of 4 KiB.
const MOST_BLOCKS: u64 = 1 << 20;

/// The blocks of one owner.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    /// Leaves of its extent tree.
    pub(crate) leaves: Vec<BlockNr>,
    /// Nodes above them: what they say is known from the leaves.
    pub(crate) above: Vec<BlockNr>,
    /// Blocks with names, and the inode that the first of a directory gives for `.`.
    pub(crate) names: Vec<(BlockNr, Option<InodeNr>)>,
}

/// All that was found, by the start of its checksums.
#[derive(Debug, Default)]
pub(super) struct Gathered(BTreeMap<u32, Parts>);

/// Sought when it is first asked for.
pub(super) type Sought = OnceCell<Gathered>;

impl Stage<'_> {
    /// Blocks that a file may have lost, if its map can have any.
    pub(crate) fn lost_parts(&self, image: &InodeImage) -> Option<&Parts> {
        let kind = FileType::of_mode(image.base.mode);
        let root = ExtentNode::new(&image.base.block).filter(ExtentNode::header_ok);
        // A good root with extents of its own leads to no nodes.
        let may_lose = matches!(kind, Some(FileType::Regular | FileType::Directory))
            && image.flags().contains(InodeFlags::EXTENTS)
            && root.is_none_or(|root| root.header().depth > 0);
        // With fingerprints it is not known who claims what: then the repair needs more memory.
        if !may_lose || !self.checksummed() || self.must_know_all().is_err() {
            return None;
        }
        let all = self.sought().get_or_init(|| self.seek());
        all.0.get(&self.inode_seed(image))
    }

    /// Whether blocks lie in the file system, are marked as used, and nobody claims one of them.
    pub(crate) fn is_lost(&self, run: BlockRun) -> bool {
        let geometry = &self.geometry;
        let last = BlockNr(run.end().0.saturating_sub(1));
        let (Some(first), Some(end)) = (geometry.group_of(run.start), geometry.group_of(last))
        else {
            return false;
        };
        (first.0..=end.0).map(GroupNr).all(|group| {
            let home = geometry.blocks_of(group);
            let Some(bits) = self.used_bits(group) else { return false };
            let (from, to) = (run.start.0.max(home.start.0), run.end().0.min(home.end().0));
            (from..to).all(|block| self.is_unclaimed(home, &bits, block))
        })
    }

    /// Whether a block of a group is marked as used, and nobody claims it.
    fn is_unclaimed(&self, home: BlockRun, bits: &[u8], block: u64) -> bool {
        let cluster = self.geometry.cluster_of(BlockNr(block));
        let first = self.geometry.cluster_of(home.start);
        // Both lie in the group.
        bitmap::test(bits, (cluster - first) as u32)
            && !self.evidence.claims.used().contains(cluster)
            && !self.evidence.volume.is_metadata(BlockNr(block))
    }

    /// The block bitmap of a group; `None` if it was never written, or cannot be read.
    fn used_bits(&self, group: GroupNr) -> Option<Vec<u8>> {
        let desc = self.group(group);
        let was_written = !(self.geometry.features.group_desc_csum() && desc.block_uninit());
        was_written.then(|| self.read_block(desc.block_bitmap).ok()).flatten()
    }

    /// Seeks blocks that say whose they are.
    fn seek(&self) -> Gathered {
        let (mut found, finder, mut left) = (Gathered::default(), SeedFinder::new(), MOST_BLOCKS);
        for group in (0..self.geometry.group_count).map(GroupNr) {
            let Some(bits) = self.used_bits(group) else { continue };
            let home = self.geometry.blocks_of(group);
            for block in home.start.0..home.end().0 {
                if !self.is_unclaimed(home, &bits, block) {
                    continue;
                }
                let Some(rest) = left.checked_sub(1) else { return found };
                left = rest;
                if let Ok(bytes) = self.read_block(BlockNr(block)) {
                    found.note(BlockNr(block), &bytes, &finder);
                }
            }
        }
        found
    }
}

impl Gathered {
    /// Notes a block that says whose it is.
    fn note(&mut self, block: BlockNr, bytes: &[u8], finder: &SeedFinder) {
        let node = ExtentNode::new(bytes).filter(ExtentNode::header_ok);
        if let Some(node) = node {
            if let Some(seed) = finder.of_extent_node(&node) {
                let parts = self.0.entry(seed).or_default();
                let list =
                    if node.header().depth == 0 { &mut parts.leaves } else { &mut parts.above };
                list.push(block);
            }
            return;
        }
        let seed = match DxBlock::detect(bytes) {
            Some((DxKind::Node, _)) => None,
            Some((DxKind::Root, index)) => finder.of_index(&index),
            None if tail_state(bytes) == TailState::Present => finder.of_leaf(bytes),
            None => None,
        };
        if let Some(seed) = seed {
            let first = DirCursor::new(bytes).next().and_then(Result::ok);
            let dot = first.filter(|entry| entry.name == b".").map(|entry| entry.inode);
            self.0.entry(seed).or_default().names.push((block, dot));
        }
    }
}
