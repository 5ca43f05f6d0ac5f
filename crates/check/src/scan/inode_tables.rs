//! Inode tables: the parts that may hold inodes in use, and how they are read.
//!
//! A part is read in pieces. While the inodes of one are judged, the device should have something to do: it is told
//! of tables that will be read later, and of the blocks of maps that the next piece names, which is read for that
//! before its turn. Without, it would idle from the last block of a piece until the first of the next one is asked for.

use std::iter::successors;
use std::mem::swap;

use floe_exec::{Dealing, Pool};
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr};

use super::read_ahead;
use crate::evidence::inode_facts::{CHUNK_INODES, chunks_per_group};
use crate::volume::Volume;

/// Bytes of an inode table that are read at once: what stays in a core's cache until it is checked.
const READ_BYTES: u32 = 128 << 10;
/// Bytes of the tables of a flexible group of which the device is told at once, at most.
const FLEXIBLE_BYTES: u64 = 1 << 20;
/// Groups that are looked at for a part that comes later, at most: many may have none.
const MOST_GROUPS_AHEAD: usize = 64;

/// A piece of one group's inode table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TablePart {
    /// The group.
    pub group: GroupNr,
    /// Index of the first inode in the group's table: a multiple of [`CHUNK_INODES`].
    pub first: u32,
    /// Number of inodes, at most [`CHUNK_INODES`].
    pub count: u32,
}

impl TablePart {
    /// Its number: parts of all groups are counted, those that are never read among them.
    pub fn index(&self, geometry: &Geometry) -> u32 {
        self.group.0 * chunks_per_group(geometry.inodes_per_group) + self.first / CHUNK_INODES
    }

    /// The part that comes after it, if it is not far.
    fn after(&self, volume: &Volume<'_>) -> Option<Self> {
        let bound = |group| volume.used_inodes_bound(group);
        let end = self.first + self.count;
        let in_group = |group, first| {
            let count = bound(group).checked_sub(first).filter(|&left| left > 0)?;
            Some(Self { group, first, count: count.min(CHUNK_INODES) })
        };
        let groups = self.group.0 + 1..volume.geometry.group_count;
        in_group(self.group, end).or_else(|| {
            let mut near = groups.take(MOST_GROUPS_AHEAD).map(GroupNr);
            near.find_map(|group| in_group(group, 0))
        })
    }
}

/// Parts of all groups, those that are never read among them.
pub(crate) fn part_count(geometry: &Geometry) -> u64 {
    u64::from(geometry.group_count) * u64::from(chunks_per_group(geometry.inodes_per_group))
}

/// The parts of all inode tables that may hold inodes in use, in order of groups.
pub(crate) fn table_parts(volume: &Volume<'_>) -> Vec<TablePart> {
    let mut parts = Vec::new();
    // Sound tables do not overlap, so together they are smaller than the device. Where descriptors
    // claim more (damage, or a stranger's image), the rest is left out: overlaps and tables past
    // the end are findings of the layout, and what is read stays in proportion to the device.
    let mut left_bytes = volume.device.size_bytes();
    for group in (0..volume.geometry.group_count).map(GroupNr) {
        // A table at block 0 has lost its place, even where block 0 is one of the file system's.
        let placed = volume.group(group).inode_table.0 != 0;
        let bound = if placed { volume.used_inodes_bound(group) } else { 0 };
        let table_bytes = u64::from(bound) * u64::from(volume.geometry.inode_size);
        let Some(left) = left_bytes.checked_sub(table_bytes) else { break };
        left_bytes = left;
        let mut first = 0;
        while first < bound {
            let count = CHUNK_INODES.min(bound - first);
            parts.push(TablePart { group, first, count });
            first += count;
        }
    }
    parts
}

/// The blocks that hold a part of a table. They need not lie inside the file system.
pub fn blocks_of(volume: &Volume<'_>, part: TablePart) -> BlockRun {
    let per_block = volume.geometry.block_size / volume.geometry.inode_size;
    let first = part.first / per_block;
    let end = (part.first + part.count).div_ceil(per_block);
    let start = volume.group(part.group).inode_table.0.saturating_add(u64::from(first));
    BlockRun::new(BlockNr(start), u64::from(end - first))
}

/// A worker's information about the next chunks.
pub struct Ahead<'a> {
    /// How many parts later that one is whose table the device is told of now; `None`: not all parts are read, or
    /// nobody knows in which order.
    distance: Option<usize>,
    /// The part that this worker reads next.
    next: &'a mut dyn FnMut() -> Option<TablePart>,
}

impl<'a> Ahead<'a> {
    /// For one of so many workers, each of which takes the first of the parts that are left; of all parts, if
    /// `whole`. `next` says which part the worker reads next.
    pub fn in_order(
        workers: usize,
        whole: bool,
        next: &'a mut dyn FnMut() -> Option<TablePart>,
    ) -> Self {
        // The next of this worker, and one more, so that it is there when it is asked for.
        Self { distance: whole.then_some(workers + 1), next }
    }

    /// For a worker of a pool that reads parts, all of them if `whole`.
    pub(crate) fn of_pool(
        pool: &Pool<'_>,
        whole: bool,
        next: &'a mut dyn FnMut() -> Option<TablePart>,
    ) -> Self {
        match pool.dealt() {
            Dealing::InOrder => Self::in_order(pool.threads(), whole, next),
            Dealing::Ranges => Self::in_order(1, whole, next),
        }
    }
}

/// The buffers into which a worker reads tables.
#[derive(Debug, Default)]
pub struct Room {
    now: Vec<u8>,
    next: Vec<u8>,
    /// The content of `next`, if it was prefetched.
    ready: Option<Ready>,
    /// Blocks that the device is told of.
    blocks: Vec<BlockNr>,
}

/// A piece that was read before its turn.
#[derive(Debug)]
struct Ready {
    piece: Piece,
    read: bool,
    told: bool,
}

/// Some blocks of an inode table, of which all or some inodes belong to a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    part: TablePart,
    /// Index of its first block in the table of the group.
    pub first: u32,
    /// Blocks, of 128 KiB at most, or one.
    pub blocks: u32,
}

impl Piece {
    /// The blocks.
    pub fn run(&self, volume: &Volume<'_>) -> BlockRun {
        let table = volume.group(self.part.group).inode_table;
        BlockRun::new(BlockNr(table.0 + u64::from(self.first)), self.blocks.into())
    }

    /// Whether all of it could be read.
    fn read(&self, volume: &Volume<'_>, into: &mut Vec<u8>) -> bool {
        volume.read_run(self.run(volume), into).is_ok()
    }
}

/// Reads a part piece by piece; where it `tells_maps`, the device is told of the blocks of maps that a piece names.
/// `each` judges one: whether it could be read as a whole, and its bytes.
pub(crate) fn for_each_piece(
    volume: &Volume<'_>,
    part: TablePart,
    ahead: Ahead<'_>,
    tells_maps: bool,
    room: &mut Room,
    mut each: impl FnMut(Piece, bool, &mut [u8]),
) {
    let mut later = ahead.distance.map(|distance| Later { volume, part, distance });
    if let Some(later) = &later {
        tell_flexible_group(volume, part);
        later.each_run(|at, bytes| volume.device.will_need_in_sequence(at, bytes));
    }
    let mut all = pieces(volume, part).peekable();
    while let Some(piece) = all.next() {
        let (read, told) = match room.ready.take() {
            Some(Ready { piece: ready, read, told }) if ready == piece => {
                swap(&mut room.now, &mut room.next);
                (read, told)
            }
            _ => {
                let read = piece.read(volume, &mut room.now);
                let told = read
                    && tells_maps
                    && read_ahead::announce_maps(volume, &room.now, &mut room.blocks);
                (read, told)
            }
        };
        // The device is busy with maps of this piece, whose inodes will wait for them.
        if told {
            if let Some(later) = later.take() {
                later.each_run(|at, bytes| {
                    if !volume.device.is_cached(at) {
                        volume.device.will_need(at, bytes);
                    }
                });
            }
            let next = all.peek().copied();
            let next = next.or_else(|| pieces(volume, (ahead.next)()?).next());
            room.ready = next.map(|piece| {
                let read = piece.read(volume, &mut room.next);
                let told = read && read_ahead::announce_maps(volume, &room.next, &mut room.blocks);
                Ready { piece, read, told }
            });
        }
        each(piece, read, &mut room.now);
    }
}

/// Tells the device of all that is in use of the tables of a flexible group before the first of them is read. They lie near each
/// other, and what their inodes lead to lies elsewhere: a disk would go to and fro between the two for each group.
fn tell_flexible_group(volume: &Volume<'_>, part: TablePart) {
    let flex = 1u32.checked_shl(u32::from(volume.superblock.log_groups_per_flex)).unwrap_or(1);
    let is_first = part.first == 0 && part.group.0.is_multiple_of(flex);
    if !volume.has_incompat(Incompat::FLEX_BG) || flex < 2 || !is_first {
        return;
    }
    let geometry = &volume.geometry;
    let groups = part.group.0..part.group.0.saturating_add(flex).min(geometry.group_count);
    let tables = groups.map(GroupNr).map(|group| {
        let count = volume.used_inodes_bound(group);
        blocks_of(volume, TablePart { group, first: 0, count })
    });
    let bytes = |run: &BlockRun| run.len_blocks * u64::from(geometry.block_size);
    let used: Vec<BlockRun> =
        tables.filter(|run| run.len_blocks > 0 && geometry.contains(run.start)).collect();
    let at_hand = |run: &BlockRun| volume.device.is_cached(geometry.offset_bytes(run.start));
    if used.iter().map(bytes).sum::<u64>() > FLEXIBLE_BYTES || used.iter().all(at_hand) {
        return;
    }
    used.iter()
        .for_each(|run| volume.device.will_need(geometry.offset_bytes(run.start), bytes(run)));
}

/// Parts whose tables the device is told of while one is read.
struct Later<'a> {
    volume: &'a Volume<'a>,
    part: TablePart,
    distance: usize,
}

impl Later<'_> {
    /// Calls `tell` with the place in bytes of each; the first part of all tells of all up to the distance.
    fn each_run(&self, tell: impl Fn(u64, u64)) {
        let geometry = &self.volume.geometry;
        let first = self.part.group == GroupNr(0) && self.part.first == 0;
        let those_before = if first { 0 } else { self.distance - 1 };
        let following = successors(self.part.after(self.volume), |part| part.after(self.volume));
        for part in following.take(self.distance).skip(those_before) {
            let run = blocks_of(self.volume, part);
            if geometry.contains(run.start) {
                let bytes = run.len_blocks * u64::from(geometry.block_size);
                tell(geometry.offset_bytes(run.start), bytes);
            }
        }
    }
}

/// The pieces of a part; none where there is nothing to be read.
fn pieces(volume: &Volume<'_>, part: TablePart) -> impl Iterator<Item = Piece> {
    let geometry = &volume.geometry;
    let per_block = geometry.block_size / geometry.inode_size;
    let whole = blocks_of(volume, part);
    let usable = geometry.contains(whole.start) && whole.end().0 <= geometry.blocks_count;
    // Reported by the check of the descriptors if unusable; a hole holds no inode, but one that the
    // superblock names for quotas counts as used whatever it holds.
    let named = volume.superblock.prj_quota_inum;
    let has_named =
        (0..part.count).contains(&named.wrapping_sub(geometry.inode_at(part.group, part.first).0));
    let bytes = whole.len_blocks * u64::from(geometry.block_size);
    let hole = || volume.device.is_hole(geometry.offset_bytes(whole.start), bytes);
    let (first, end) = match usable && (has_named || !hole()) {
        true => (part.first / per_block, (part.first + part.count).div_ceil(per_block)),
        false => (0, 0),
    };
    let step = (READ_BYTES / geometry.block_size).max(1);
    (first..end).step_by(step as usize).map(move |first| Piece {
        part,
        first,
        blocks: step.min(end - first),
    })
}
