//! The sweep over the lots of a native file system: the used prefixes of descriptors, bitmaps, inode tables and region of a
//! lot are read together, in the order of addresses, each block once. In rext3 each group is a lot of its own: bitmaps, inode table
//! and the used blocks of its region.
//!
//! A [`Sweep`] is a device. All passes read through it, and find in memory what was swept; everything else (maps and
//! directories outside of the regions, blocks that cannot be read together with others) they read from the device below. So
//! findings cannot differ from those of a check without a sweep. A check of a lot's files walks their trees in memory, so
//! that a valid node that nobody leads to (a ghost) proves nothing.
//!
//! A lot is swept when its descriptors are read for the first time, as long as there is room: if there is for all of them, the
//! whole check is one pass over the device. For the other lots it holds descriptors and bitmaps, and sweeps them when the
//! first of their inodes are read; then the lot swept longest ago is dropped, but for what is read again later: bitmaps, names, and
//! maps of files whose layers do not add up (`needed`). So tables and maps, which are most of all metadata, pass.
//!
//! Above a page cache ([`ReadBlocks::caches_ahead`]) nothing but descriptors and bitmaps is held: the device is told of all else, in
//! the same order and in the same requests, and the passes read it from there while it comes.

use std::collections::BTreeSet;
use std::io;
use std::ops::Range;

use floe_blockdev::{Medium, ReadBlocks};
use floe_format::crc::Seed;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::geometry::Strictness;
use floe_format::native::identity::Identity;
use floe_format::native::lot::is_desc_size;
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr, rext3};
use floe_sync::atomic::{AtomicUsize, Ordering};
use floe_sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::forecast::besides;
use super::groups::Group;
use super::held::{Held, Room};
use super::lots::{Lot, Place, READ_BYTES, gap_bytes};
use super::needed;

/// Bytes that a sweep may hold, unless the memory of the check is limited.
const ROOM_BYTES: u64 = 256 << 20;
/// The part of a limited memory that it may hold.
const SHARE: u64 = 8;

/// Lots of a file system that can be swept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lots {
    /// Those of a native file system.
    Native,
    /// The groups of rext3, with the blocks of the region of a whole one.
    Groups { region_blocks: u32 },
}

impl Lots {
    fn of(superblock: &Superblock, geometry: &Geometry) -> Option<Self> {
        if let Some(region_blocks) = rext3::region_blocks(superblock) {
            return Some(Self::Groups { region_blocks });
        }
        let fits = is_desc_size(geometry.desc_size) && geometry.block_size >= geometry.desc_size;
        Identity::of(superblock).filter(|_| fits).map(|_| Self::Native)
    }

    /// How many there are, and bytes of all of them at most, as the superblock alone tells, with inode tables that are half empty.
    /// Damage makes it a wrong guess, no more.
    fn extent(self, superblock: &Superblock, geometry: &Geometry) -> Extent {
        let (count, per_lot, inodes) = match self {
            Self::Native => {
                let used = geometry.inodes_count.saturating_sub(superblock.free_inodes_count);
                let region = Identity::of(superblock).map_or(0, |own| own.region_blocks);
                (geometry.desc_blocks, region, 2 * u64::from(used))
            }
            // Nothing tells which inodes of ext3 were never used.
            Self::Groups { region_blocks } => {
                (geometry.group_count, region_blocks, geometry.inodes_count.into())
            }
        };
        let inode_bytes = inodes.saturating_mul(geometry.inode_size.into());
        let region_blocks = u64::from(per_lot).saturating_mul(count.into());
        let small_blocks = 2 * u64::from(geometry.group_count) + u64::from(geometry.desc_blocks);
        let bytes = |blocks: u64| blocks.saturating_mul(geometry.block_size.into());
        let bound_bytes = bytes(region_blocks.saturating_add(small_blocks));
        Extent {
            count,
            bytes: bound_bytes.saturating_add(inode_bytes),
            small_bytes: bytes(small_blocks),
        }
    }
}

/// How much there is to sweep, at most.
struct Extent {
    /// Lots.
    count: u32,
    /// Bytes of all.
    bytes: u64,
    /// Bytes of descriptors and bitmaps.
    small_bytes: u64,
}

/// How far a sweep is.
#[derive(Debug, Default)]
struct Stage {
    /// 1: inodes are read from now on.
    begun: AtomicUsize,
    /// 1: no further lot fits the room before inodes are read.
    full: AtomicUsize,
    /// The lot behind the last one that was swept: in rext3, until the room is full, all before it were.
    swept_to: AtomicUsize,
    /// Bytes that the device was told of.
    told_bytes: AtomicUsize,
}

/// A device over a file system with lots that holds what was swept.
pub struct Sweep<'d> {
    below: &'d dyn ReadBlocks,
    geometry: Geometry,
    /// Where the checksums of its metadata start, if they have any.
    seed: Option<Seed>,
    lots: Lots,
    lot_count: u32,
    /// Blocks outside of lots' own structures that each check reads.
    besides: Vec<BlockNr>,
    /// Unused bytes between two places that are read along.
    gap_bytes: u64,
    room_bytes: u64,
    /// Bytes that it will hold, at most, as the superblock tells.
    expected_bytes: u64,
    stage: Stage,
    /// Lots that were swept, in order; one thread sweeps at a time.
    swept: Mutex<BTreeSet<u32>>,
    held: RwLock<Held>,
}

impl std::fmt::Debug for Sweep<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sweep").field("lot_count", &self.lot_count).finish_non_exhaustive()
    }
}

impl<'d> Sweep<'d> {
    /// Over the device of a file system that says it is native, or rext3. `None`: it is not, or `memory_bytes` has no room.
    pub fn over(device: &'d dyn ReadBlocks, memory_bytes: Option<u64>) -> Option<Self> {
        let mut bytes = [0; Superblock::SIZE];
        device.read_at(OFFSET_BYTES, &mut bytes).ok()?;
        let superblock = Superblock::decode(&bytes);
        let geometry = Geometry::new(&superblock, Strictness::Strict).ok()?;
        let lots = Lots::of(&superblock, &geometry)?;
        let extent = lots.extent(&superblock, &geometry);
        let bound = if device.caches_ahead() { extent.small_bytes } else { extent.bytes };
        let room_bytes = memory_bytes.map_or(ROOM_BYTES, |bytes| bytes / SHARE);
        // A budget that has no room for one lot beside another is better used otherwise.
        if bound > room_bytes && memory_bytes.is_some() {
            return None;
        }
        Some(Self {
            below: device,
            besides: besides(&superblock, &geometry),
            gap_bytes: gap_bytes(device, device.medium()),
            geometry,
            seed: superblock.features().metadata_csum().then(|| superblock.seed()),
            lots,
            lot_count: extent.count,
            room_bytes,
            expected_bytes: bound.min(room_bytes),
            stage: Stage::default(),
            swept: Mutex::new(BTreeSet::new()),
            held: RwLock::new(Held::default()),
        })
    }

    /// The same, with room for so many bytes.
    pub const fn with_room(mut self, bytes: u64) -> Self {
        self.room_bytes = bytes;
        self.expected_bytes = bytes;
        self
    }

    pub(super) const fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The same, as if the bytes lay on another medium.
    pub(super) fn on(mut self, medium: Medium) -> Self {
        self.gap_bytes = gap_bytes(self.below, medium);
        self
    }

    pub(super) const fn place(&self) -> Place<'_> {
        let (geometry, besides) = (&self.geometry, self.besides.as_slice());
        Place { geometry, besides, gap_bytes: self.gap_bytes }
    }

    /// Bytes that it may hold.
    pub(super) const fn room_bytes(&self) -> u64 {
        self.room_bytes
    }

    /// Bytes that it will hold, at most.
    pub const fn held_bytes(&self) -> u64 {
        self.expected_bytes
    }

    /// Inodes are read from now on, in the order of groups. Lots that fit the memory are swept to the end.
    pub fn begin(&self) {
        self.stage.begun.store(1, Ordering::Release);
        if !self.is_full() {
            for lot in 0..self.lot_count {
                self.sweep(lot);
            }
        }
    }

    fn is_full(&self) -> bool {
        self.stage.full.load(Ordering::Acquire) > 0
    }

    /// No further lot fits: what is held of lots is dropped as others come, but for what is needed again.
    fn fill(&self, swept: &BTreeSet<u32>) {
        self.stage.full.store(1, Ordering::Release);
        swept.iter().for_each(|lot| self.note_needed(*lot));
    }

    fn held(&self) -> RwLockReadGuard<'_, Held> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn held_to_change(&self) -> RwLockWriteGuard<'_, Held> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn block_size(&self) -> u64 {
        u64::from(self.geometry.block_size)
    }

    /// The lots that a read leads to: its own, if the read is the first of a lot; in rext3 those before it, too, as long as there is
    /// room for all of them.
    fn lots_to_sweep(&self, offset_bytes: u64) -> Range<u32> {
        let block = BlockNr(offset_bytes / self.block_size());
        let Some(group) = self.geometry.group_of(block) else { return 0..0 };
        if let Lots::Groups { .. } = self.lots {
            // Descriptors lie before the first group's own blocks, and are read first.
            let is_read_first = self.head().contains(block) || self.is_full() && !self.has_begun();
            // No more than groups.
            let next = self.stage.swept_to.load(Ordering::Acquire) as u32;
            let first = if self.is_full() { group.0 } else { next };
            return if is_read_first { 0..0 } else { first..group.0 + 1 };
        }
        let lot = group.0 / self.geometry.descs_per_block();
        let first = Lot::beginning(&self.geometry, lot).start;
        let is_first = block == first || block == self.geometry.primary_desc_block(lot);
        let wants_any = self.is_full() && self.has_begun();
        // The device is told of one lot more, so that it has something to do meanwhile.
        let count = if wants_any && self.tells() { 2 } else { 1 };
        if is_first || wants_any { lot..self.lot_count.min(lot + count) } else { 0..0 }
    }

    /// Blocks of the region of a whole group in rext3.
    pub(super) const fn region_blocks(&self) -> Option<u32> {
        match self.lots {
            Lots::Groups { region_blocks } => Some(region_blocks),
            Lots::Native => None,
        }
    }

    fn has_begun(&self) -> bool {
        self.stage.begun.load(Ordering::Acquire) > 0
    }

    /// The first blocks of a rext3 file system, up to the end of the descriptors.
    pub(super) fn head(&self) -> BlockRun {
        BlockRun::new(BlockNr(0), self.geometry.group_desc_run(GroupNr(0)).end().0)
    }

    /// Sweeps a lot, unless that was done. Returns whether it was done now.
    fn sweep(&self, lot: u32) -> bool {
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        if swept.contains(&lot) {
            return false;
        }
        if let Lots::Groups { region_blocks } = self.lots {
            return self.sweep_group(GroupNr(lot), region_blocks, &mut swept);
        }
        let (number, block) = (lot, self.geometry.primary_desc_block(lot));
        self.read_new(Lot::beginning(&self.geometry, lot), true);
        self.read_new(BlockRun::new(block, 1), true);
        let is_early = !self.has_begun();
        if is_early && self.is_full() {
            return true;
        }
        swept.insert(number);
        let Some(bytes) = self.held_block(block) else { return true };
        let Some(lot) = Lot::of(&self.geometry, lot, &bytes) else { return true };
        let region = lot.used_region(&self.geometry, |block| self.bitmap(block));
        let runs = lot.runs(&self.place(), region);
        if is_early && !self.has_room_for(&runs) {
            // This one and those behind it are swept when their inodes are read.
            swept.remove(&number);
            self.fill(&swept);
            return true;
        }
        runs.into_iter().for_each(|run| self.read_new(run, false));
        self.note_swept(number);
        true
    }

    fn note_swept(&self, lot: u32) {
        self.stage.swept_to.fetch_max(lot as usize + 1, Ordering::AcqRel);
        if self.is_full() {
            self.note_needed(lot);
        }
    }

    /// The same for a group of rext3, whose descriptor lies with all others at the beginning.
    fn sweep_group(&self, group: GroupNr, region_blocks: u32, swept: &mut BTreeSet<u32>) -> bool {
        self.read_new(self.head(), true);
        let Some(places) = self.places_of(group, region_blocks) else { return false };
        let runs = places.runs(&self.place());
        if !self.has_begun() && !self.has_room_for(&[&runs[..], &[places.region()]].concat()) {
            self.fill(swept);
            return false;
        }
        swept.insert(group.0);
        runs.into_iter().for_each(|run| self.read_new(run, false));
        let bitmap = self.bitmap(places.block_bitmap()).unwrap_or_default();
        let behind = places.runs_behind(&self.place(), &bitmap);
        behind.into_iter().for_each(|run| self.read_new(run, false));
        self.note_swept(group.0);
        true
    }

    /// The places of a group of rext3, by its descriptor, which is held.
    fn places_of(&self, group: GroupNr, region_blocks: u32) -> Option<Group> {
        let geometry = &self.geometry;
        let per_block = geometry.descs_per_block();
        let place = (group.0 % per_block * geometry.desc_size) as usize;
        let block = self.held_block(geometry.primary_desc_block(group.0 / per_block))?;
        let raw = block.get(place..)?.get(..geometry.desc_size as usize)?;
        Some(Group::of(geometry, group, &GroupDesc::of(raw), region_blocks))
    }

    /// Notes what is read again of a lot that was swept.
    fn note_needed(&self, lot: u32) {
        if self.tells() {
            // Memory is not this program's.
            return;
        }
        let geometry = &self.geometry;
        let block = |at| self.held_block(at);
        let (tables, used, bitmaps) = match self.lots {
            Lots::Groups { region_blocks } => {
                let Some(group) = self.places_of(GroupNr(lot), region_blocks) else { return };
                let bitmap = self.held_block(group.block_bitmap()).unwrap_or_default();
                let first = geometry.inode_at(GroupNr(lot), 0);
                (vec![(first, group.table())], group.used_region(&bitmap), group.bitmaps())
            }
            Lots::Native => {
                let bytes = self.held_block(geometry.primary_desc_block(lot));
                let of_lot = bytes.and_then(|bytes| Lot::of(geometry, lot, &bytes));
                let Some(of_lot) = of_lot else { return };
                // Descriptors and bitmaps of native lots stay in any case.
                (of_lot.tables(geometry, lot), of_lot.used_blocks(geometry, block), Vec::new())
            }
        };
        let passing = needed::Passing { geometry, seed: self.seed, block, tables, used };
        let needed = passing.needed();
        self.held_to_change().need(needed.into_iter().chain(bitmaps));
    }

    fn has_room_for(&self, runs: &[BlockRun]) -> bool {
        let wanted: u64 = runs.iter().map(|run| run.len_blocks * self.block_size()).sum();
        let told = self.stage.told_bytes.load(Ordering::Relaxed) as u64;
        self.held().bytes().saturating_add(told).saturating_add(wanted) <= self.room_bytes
    }

    /// Whether the device is told of most blocks, instead of holding them here.
    fn tells(&self) -> bool {
        self.below.caches_ahead()
    }

    /// A bitmap, which is read now if the device was but told of it.
    fn bitmap(&self, block: BlockNr) -> Option<Vec<u8>> {
        if self.tells() && self.geometry.contains(block) {
            self.read_new(BlockRun::new(block, 1), true);
        }
        self.held_block(block)
    }

    fn held_block(&self, block: BlockNr) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.geometry.block_size as usize];
        let at = block.0.checked_mul(self.block_size())?;
        self.held().copy(self.block_size(), at, &mut bytes).then_some(bytes)
    }

    /// Reads those blocks of a run that are not held.
    fn read_new(&self, run: BlockRun, stays: bool) {
        let size = self.block_size();
        let most = (READ_BYTES / size).max(1);
        let mut at = run.start.0;
        while at < run.end().0 {
            let held = self.held().end_of(size, at);
            match held {
                Ok(end) => at = end,
                Err(next) => {
                    let end = next.min(run.end().0).min(at + most);
                    self.read(BlockRun::new(BlockNr(at), end - at), stays);
                    at = end;
                }
            }
        }
    }

    /// Reads a run of blocks that are not held, and holds it, for good if it `stays` and there is room. Nothing is held if it
    /// cannot be read as a whole, or need not be.
    fn read(&self, run: BlockRun, stays: bool) {
        let size = self.block_size();
        let (offset, len) = (run.start.0 * size, run.len_blocks * size);
        if offset + len > self.below.size_bytes() || self.below.is_hole(offset, len) {
            return;
        }
        let Ok(len) = usize::try_from(len) else { return };
        if self.tells() && !stays {
            self.stage.told_bytes.fetch_add(len, Ordering::Relaxed);
            self.below.will_need(offset, len as u64);
            return;
        }
        let mut bytes = vec![0; len];
        if self.below.read_at(offset, &mut bytes).is_err() {
            return;
        }
        let room = Room { bytes: self.room_bytes, block_size: size };
        self.held_to_change().add(room, run.start.0, bytes, stays);
    }

    /// Whether a place lies in a lot that will be swept as a whole.
    fn is_to_come(&self, offset_bytes: u64) -> bool {
        let group = self.geometry.group_of(BlockNr(offset_bytes / self.block_size()));
        let lot = group.map(|group| match self.lots {
            Lots::Native => group.0 / self.geometry.descs_per_block(),
            Lots::Groups { .. } => group.0,
        });
        let swept_to = self.stage.swept_to.load(Ordering::Acquire);
        self.is_full() && lot.is_some_and(|lot| lot as usize >= swept_to)
    }
}

impl ReadBlocks for Sweep<'_> {
    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        if into.is_empty() {
            return self.below.read_at(offset_bytes, into);
        }
        let size = self.block_size();
        if self.held().copy(size, offset_bytes, into) {
            return Ok(());
        }
        if self.region_blocks().is_some() && self.head().contains(BlockNr(offset_bytes / size)) {
            self.read_new(self.head(), true);
            if self.held().copy(size, offset_bytes, into) {
                return Ok(());
            }
        }
        let lots = self.lots_to_sweep(offset_bytes);
        let mut has_swept = false;
        for lot in lots {
            has_swept |= self.sweep(lot);
        }
        if has_swept && self.held().copy(size, offset_bytes, into) {
            return Ok(());
        }
        self.below.read_at(offset_bytes, into)
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.below.is_hole(offset_bytes, len_bytes)
    }

    fn will_need(&self, offset_bytes: u64, len_bytes: u64) {
        if !self.held().has(self.block_size(), offset_bytes) && !self.is_to_come(offset_bytes) {
            self.below.will_need(offset_bytes, len_bytes);
        }
    }

    fn medium(&self) -> Medium {
        self.below.medium()
    }

    // The sweep reads inode tables itself, in large requests.
    fn will_need_in_sequence(&self, _: u64, _: u64) {}

    fn is_cached(&self, offset_bytes: u64) -> bool {
        self.held().has(self.block_size(), offset_bytes) || self.below.is_cached(offset_bytes)
    }
}
