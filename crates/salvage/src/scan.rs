//! One sweep over the device in address order, which recognises metadata by their own content.

use floe_blockdev::ReadBlocks;
use floe_exec::Pool;
use floe_ext4::files::is_plausible;
use floe_ext4::map::walk::has_map;
use floe_format::checksum_seed::SeedFinder;
use floe_format::crc::Seed;
use floe_format::ext::dirent::{DirCursor, DirEntry, DirTail, TAIL_SIZE, TailState, tail_state};
use floe_format::ext::extent::{ExtentNode, MAGIC, MAX_DEPTH};
use floe_format::ext::htree::{DxBlock, DxKind};
use floe_format::ext::indirect::Header;
use floe_format::ext::inode::{FileType, Inode, InodeFlags, decode_nanoseconds, decode_seconds};
use floe_format::ext::inode_flips::owner_by_checksum;
use floe_format::rext3::{self, region_of};
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr};

use crate::evidence::{DirectoryFound, Evidence, Headed, InPlace, InodeCopy, NodeFound, OwnerKey};
use crate::frame::Frame;
use crate::sizes::is_too_large;
use crate::tables::Tables;

/// Bytes read at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// Sweeps over the blocks of the file system.
pub(crate) fn scan(device: &dyn ReadBlocks, frame: &Frame, pool: &Pool<'_>) -> Evidence {
    let sweep = Sweep::new(device, frame);
    let end =
        device.size_bytes().min(frame.geometry.offset_bytes(BlockNr(frame.geometry.blocks_count)));
    let chunks: Vec<u64> = (0..end).step_by(CHUNK_BYTES as usize).collect();
    let mut evidence = pool.run(&chunks, |found: &mut Evidence, &start| {
        sweep.chunk(start, CHUNK_BYTES.min(end - start), found);
    });
    evidence.settle();
    evidence
}

struct Sweep<'a> {
    device: &'a dyn ReadBlocks,
    frame: &'a Frame,
    seed: Option<Seed>,
    finder: SeedFinder,
    tables: Tables,
    /// The metadata regions of rext3, in order.
    regions: Vec<BlockRun>,
}

impl<'a> Sweep<'a> {
    fn new(device: &'a dyn ReadBlocks, frame: &'a Frame) -> Self {
        let geometry = &frame.geometry;
        let blocks = rext3::region_blocks(&frame.superblock);
        let groups = (0..geometry.group_count).map(GroupNr).zip(&frame.groups);
        let regions = blocks.into_iter().flat_map(|blocks| {
            groups.clone().map(move |(group, desc)| region_of(geometry, group, desc, blocks))
        });
        let regions = regions.filter(|region| region.len_blocks > 0).collect();
        let (seed, finder, tables) = (frame.seed(), SeedFinder::new(), Tables::of(frame));
        Self { device, frame, seed, finder, tables, regions }
    }

    fn chunk(&self, start: u64, len: u64, found: &mut Evidence) {
        if self.device.is_hole(start, len) {
            return;
        }
        self.device.will_need_in_sequence(start + len, len);
        let block_size = self.frame.geometry.block_size as usize;
        // A chunk has at most 1 MiB.
        let mut chunk = vec![0; len as usize];
        let whole = self.device.read_at(start, &mut chunk).is_ok();
        let first = start / block_size as u64;
        let mut lost: Option<BlockRun> = None;
        for (block, bytes) in (first..).map(BlockNr).zip(chunk.chunks_exact_mut(block_size)) {
            let offset = self.frame.geometry.offset_bytes(block);
            if !whole && self.device.read_at(offset, bytes).is_err() {
                match &mut lost {
                    Some(run) if run.end() == block => run.len_blocks += 1,
                    _ => found.unreadable.extend(lost.replace(BlockRun::new(block, 1))),
                }
                continue;
            }
            self.block(block, bytes, found);
        }
        found.unreadable.extend(lost);
    }

    fn block(&self, block: BlockNr, bytes: &[u8], found: &mut Evidence) {
        if let Some(first) = self.tables.first_inode_of(block) {
            return self.table_block(first, bytes, found);
        }
        if is_zero(bytes) {
            return;
        }
        if let Some(node) = self.headed(block, bytes) {
            found.headed.push(node);
        } else if bytes.starts_with(&MAGIC.to_le_bytes()) {
            found.nodes.extend(self.extent_node(block, bytes));
        } else if let Some(directory) = self.directory(block, bytes) {
            found.directory_blocks.push(directory);
        } else {
            self.copies(block, bytes, found);
        }
    }

    /// Inodes in their places.
    fn table_block(&self, first: InodeNr, bytes: &[u8], found: &mut Evidence) {
        let size = self.frame.geometry.inode_size as usize;
        for (raw, number) in bytes.chunks_exact(size).zip(first.0..) {
            let number = InodeNr(number);
            let Some(inode) = Inode::decode(raw).filter(|_| !is_zero(raw)) else { continue };
            let is_proved = self.seed.is_some_and(|seed| inode.checksum_ok(seed, number));
            if is_proved || is_plausible(&inode) {
                self.in_place(number, &inode, is_proved, found);
            }
        }
    }

    fn in_place(&self, number: InodeNr, inode: &Inode<'_>, is_proved: bool, found: &mut Evidence) {
        if inode.base.links_count == 0 || inode.base.mode == 0 {
            // The journal's and the resize inode's siblings below the first inode are never deleted.
            if number >= self.frame.geometry.first_inode {
                found.deleted.push(number);
            }
            return;
        }
        let seed = self.seed.map_or(0, |seed| seed.of_inode(number, inode.base.generation));
        found.in_place.push(InPlace { seed, inode: number });
        match inode.file_type() {
            Some(FileType::Directory) => found.directories.push(number),
            Some(FileType::Regular) if has_map(&inode.base) => {
                let has_bad_checksum = self.seed.is_some() && !is_proved;
                let (size, geometry) = (inode.size_bytes(), &self.frame.geometry);
                if has_bad_checksum || is_too_large(size, inode.flags(), geometry) {
                    found.doubtful_sizes.push(number);
                }
                match shallow_extents(inode) {
                    Some(node) => {
                        let entries = node.header().entries;
                        found.claims.extend((0..entries).map(|at| node.extent(at).run));
                    }
                    None => found.deep.push(number),
                }
            }
            _ => {}
        }
    }

    /// An indirect block of rext3, by its header, its pointers and its place in a region.
    fn headed(&self, block: BlockNr, bytes: &[u8]) -> Option<Headed> {
        let behind = self.regions.partition_point(|region| region.start <= block);
        let region = self.regions.get(behind.checked_sub(1)?)?;
        let header = |_| rext3::node_header(&self.frame.geometry, bytes);
        let Header { inode, level } =
            Some(region).filter(|run| run.contains(block)).and_then(header)?;
        Some(Headed {
            inode: InodeNr(inode),
            // At most 3.
            level: level as u8,
            block,
        })
    }

    fn extent_node(&self, block: BlockNr, bytes: &[u8]) -> Option<NodeFound> {
        let node = ExtentNode::new(bytes)?;
        let header = node.header();
        if !node.header_ok() || header.entries == 0 || header.depth >= MAX_DEPTH {
            return None;
        }
        let first = node.index(0).logical.0;
        self.is_in_order(&node, header.depth).then_some(())?;
        let owner = match self.seed {
            Some(_) => OwnerKey::of_seed(self.finder.of_extent_node(&node)?),
            None => OwnerKey::of_block(block),
        };
        Some(NodeFound { owner, depth: header.depth, first: u32::try_from(first).ok()?, block })
    }

    /// Whether the entries of a node ascend and lead to blocks of the file system.
    fn is_in_order(&self, node: &ExtentNode<'_>, depth: u16) -> bool {
        let geometry = &self.frame.geometry;
        let mut end = 0;
        (0..node.header().entries).all(|at| {
            let (logical, first, len, last) = if depth == 0 {
                let extent = node.extent(at);
                let last = BlockNr(extent.run.end().0.saturating_sub(1));
                (extent.logical.0, extent.run.start, extent.run.len_blocks, last)
            } else {
                let index = node.index(at);
                (index.logical.0, index.node, 1, index.node)
            };
            let fits =
                logical >= end && len > 0 && geometry.contains(first) && geometry.contains(last);
            end = logical.saturating_add(len);
            fits
        })
    }

    fn directory(&self, block: BlockNr, bytes: &[u8]) -> Option<DirectoryFound> {
        let index = DxBlock::detect(bytes);
        if let Some((DxKind::Node, _)) = index {
            return None;
        }
        let has_tail = self.seed.is_some() && tail_state(bytes) == TailState::Present;
        let seed = match (self.seed, &index) {
            (Some(_), _) if has_tail => Some(self.finder.of_leaf(bytes)?),
            (Some(_), Some((DxKind::Root, index))) => Some(self.finder.of_index(index)?),
            (Some(_), _) => return None,
            (None, _) => None,
        };
        let (dot, dotdot) = self.dots(bytes, has_tail)?;
        if seed.is_none() && !self.has_plain_names(bytes) {
            return None;
        }
        let owner = match seed {
            Some(seed) => OwnerKey::of_seed(seed),
            None => OwnerKey::of_block(block),
        };
        Some(DirectoryFound { owner, block, dot, dotdot })
    }

    /// The inodes of `.` and `..`, or zeroes; `None` if this cannot be a directory block.
    fn dots(&self, bytes: &[u8], has_tail: bool) -> Option<(InodeNr, InodeNr)> {
        let end = bytes.len() - if has_tail { TAIL_SIZE } else { 0 };
        let mut entries = DirCursor::new(bytes).ending_at(end);
        let first = entries.next()?.ok()?;
        let limit = self.frame.geometry.inodes_count;
        if first.name != b"." {
            return (first.inode.0 <= limit).then_some((InodeNr(0), InodeNr(0)));
        }
        let second = entries.next()?.ok()?;
        let valid = |inode: InodeNr| (1..=limit).contains(&inode.0);
        (second.name == b".." && valid(first.inode) && valid(second.inode))
            .then_some((first.inode, second.inode))
    }

    /// Without a checksum: whether every entry in use is one that Linux could have made, and there
    /// is at least one.
    fn has_plain_names(&self, bytes: &[u8]) -> bool {
        let limit = self.frame.geometry.inodes_count;
        let is_plain = |entry: &DirEntry<'_>| {
            entry.inode.0 <= limit
                && !entry.name.is_empty()
                && !entry.name.iter().any(|byte| matches!(byte, b'/' | 0))
                && FileType::of_entry(entry.file_type).is_some()
        };
        let mut used = 0;
        for entry in DirCursor::new(bytes) {
            match entry {
                Ok(entry) if !entry.in_use() => {}
                Ok(entry) if is_plain(&entry) => used += 1,
                _ => return false,
            }
        }
        used > 0
    }

    /// Inodes in a block that is not in an inode table, such as a copy in the journal. The checksum
    /// says which inodes they are.
    fn copies(&self, block: BlockNr, bytes: &[u8], found: &mut Evidence) {
        let geometry = &self.frame.geometry;
        let size = geometry.inode_size as usize;
        let Some(seed) = self.seed.filter(|_| size > 128) else { return };
        let per_block = (bytes.len() / size) as u32;
        for (at, raw) in bytes.chunks_exact(size).enumerate() {
            let Some(inode) = Inode::decode(raw).filter(is_plausible) else { continue };
            let Some(number) = owner_by_checksum(raw, seed, InodeNr(1)) else { continue };
            let is_valid = (1..=geometry.inodes_count).contains(&number.0)
                && (number.0 - 1) % per_block == at as u32;
            if !is_valid {
                continue;
            }
            let offset_bytes = geometry.offset_bytes(block) + (at * size) as u64;
            let in_use = inode.base.links_count > 0 && inode.base.dtime == 0;
            let stamp = stamp_of(&inode);
            found.copies.push(InodeCopy { inode: number, stamp, offset_bytes, in_use });
        }
    }
}

/// The change time of an inode, as a number that grows with it.
fn stamp_of(inode: &Inode<'_>) -> u64 {
    let extra = if inode.has_extra(8) { inode.extra.ctime_extra } else { 0 };
    let seconds = decode_seconds(inode.base.ctime, extra).max(0).unsigned_abs();
    seconds << 30 | u64::from(decode_nanoseconds(extra))
}

/// The root of an extent tree that needs no other nodes.
fn shallow_extents<'i>(inode: &'i Inode<'_>) -> Option<ExtentNode<'i>> {
    if !inode.flags().contains(InodeFlags::EXTENTS) {
        return None;
    }
    let root = ExtentNode::new(&inode.base.block)?;
    (root.header_ok() && root.header().depth == 0).then_some(root)
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// The byte of a directory block at which its entries end: that of the checksum tail, if it has one.
pub(crate) fn entries_end(bytes: &[u8]) -> usize {
    bytes.len() - if DirTail::of(bytes).is_some() { TAIL_SIZE } else { 0 }
}
