//! The metadata regions of a native file system (`docs/native.md`): metadata blocks are taken from the region of
//! their lot as long as it has free ones, and data from elsewhere.
//!
//! While nobody writes, a reservation file holds the free blocks of a region. The first change that needs one
//! empties that file; the last one before an unmount fills it again.

use std::collections::{BTreeMap, BTreeSet};

use floe_ext4::alloc::Allocate;
use floe_ext4::group::Groups;
use floe_ext4::inode_table::{desc_place, inode_place};
use floe_ext4::map::edit::TreeEditor;
use floe_ext4::map::extent_tree::{self, NodeForm};
use floe_ext4::map::seek::MapLook;
use floe_ext4::tx::{Block, Refusal, Tx};
use floe_format::crc::Seed;
use floe_format::ext::bitmap;
use floe_format::ext::inode::{FileType, InodeFlags, OwnedInode};
use floe_format::native::lot::LotRecord;
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr, LogicalBlock};
use std::ops::Range;

use super::logs::Logs;
use super::nodes::{self, Divided};
use super::{Pool, mark};

/// The end of the logical blocks of a file.
const LOGICAL_END: u64 = u32::MAX as u64;
pub(super) const NOT_A_RESERVATION: Refusal = Refusal::Damaged("a reservation file");

/// The region of a lot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    run: BlockRun,
    file: InodeNr,
}

/// The regions of a native file system, each read when it is first needed.
#[derive(Debug, Default)]
pub(super) struct Regions {
    /// Groups of a lot; 0 in a stock file system.
    pub(super) lot_groups: u32,
    seed: Option<Seed>,
    /// By lot; `None` if the lot has none that can be used.
    known: BTreeMap<u32, Option<Region>>,
    /// Lots whose reservation file is empty.
    open: BTreeSet<u32>,
    /// The same, in the order in which they were opened.
    order: Vec<u32>,
    /// Lots whose regions had no free block when one was sought last, since something was freed.
    pub(super) full: BTreeSet<u32>,
    pub(super) logs: Logs,
}

impl Regions {
    pub(super) fn mark(&self) -> usize {
        self.order.len()
    }

    pub(super) fn roll_back(&mut self, mark: usize) {
        for lot in self.order.drain(mark.min(self.order.len())..) {
            self.open.remove(&lot);
        }
    }

    pub(super) fn lot_of(&self, group: GroupNr) -> Option<u32> {
        group.0.checked_div(self.lot_groups)
    }

    /// The groups of a lot.
    pub(super) fn groups_of(&self, group: GroupNr, count: u32) -> Range<u32> {
        match self.lot_of(group) {
            Some(lot) => {
                let first = lot * self.lot_groups;
                first..first.saturating_add(self.lot_groups).min(count)
            }
            None => group.0..group.0,
        }
    }
}

/// Frees the nodes of a map that becomes empty.
struct Emptied<'g>(&'g mut Groups, u64);

impl Allocate for Emptied<'_> {
    fn run(&mut self, _: &mut dyn Tx, _: BlockNr, _: u64) -> Result<BlockRun, Refusal> {
        Err(Refusal::Full("cluster"))
    }

    fn release(&mut self, tx: &mut dyn Tx, run: BlockRun) -> Result<(), Refusal> {
        self.1 += self.0.mark_blocks(tx, run, false)?;
        tx.revoke(run);
        Ok(())
    }
}

impl Pool {
    /// Uses the regions of a native file system whose lots have so many groups; `seed` is that of its checksums.
    pub(crate) fn use_regions(&mut self, lot_groups: u32, seed: Option<Seed>) {
        self.regions = Regions { lot_groups, seed, ..Regions::default() };
    }

    /// Lots whose reservation file is to be filled again.
    pub(crate) fn open_lots(&self) -> Vec<u32> {
        self.regions.open.iter().copied().collect()
    }

    /// All lots of a native file system.
    pub(crate) fn lots(&self) -> Range<u32> {
        let groups = self.groups.geometry().group_count;
        let lot_groups = self.regions.lot_groups;
        0..if lot_groups > 0 { groups.div_ceil(lot_groups) } else { 0 }
    }

    /// The region of a group's lot, as its record has it.
    pub(super) fn region(
        &mut self,
        tx: &mut dyn Tx,
        group: GroupNr,
    ) -> Result<Option<(u32, Region)>, Refusal> {
        let Some(lot) = self.regions.lot_of(group) else { return Ok(None) };
        if !self.regions.known.contains_key(&lot) {
            let region = self.read_region(tx, lot)?;
            self.regions.known.insert(lot, region);
        }
        Ok(self.regions.known.get(&lot).copied().flatten().map(|region| (lot, region)))
    }

    fn read_region(&self, tx: &mut dyn Tx, lot: u32) -> Result<Option<Region>, Refusal> {
        let geo = self.groups.geometry();
        let first = GroupNr(lot * self.regions.lot_groups);
        let (block, at) = desc_place(first, geo);
        let bytes = tx.block(block)?;
        let record = bytes.get(at..at + geo.desc_size as usize).and_then(LotRecord::of);
        let Some(record) = record.filter(|record| record.lot == lot) else { return Ok(None) };
        let groups = self.regions.groups_of(first, geo.group_count);
        let (start, end) = (geo.group_start(first), geo.blocks_of(GroupNr(groups.end - 1)).end());
        let run = BlockRun::new(BlockNr(record.region_start), u64::from(record.region_blocks));
        let lies_inside = run.len_blocks > 0 && run.start >= start && run.end() <= end;
        let file = InodeNr(record.region_inode);
        // A file of another cube is none of this lot's, whatever the record says.
        let home = geo.place_of(file).map(|(group, _)| self.cube_of_group(group));
        let is_file = home == Some(self.cube_of_group(first)) && !geo.is_reserved(file);
        Ok((lies_inside && is_file).then_some(Region { run, file }))
    }

    /// Marks the part of a region that lies in a group as used, so that data do not go there.
    pub(super) fn keep_region(
        &mut self,
        tx: &mut dyn Tx,
        group: GroupNr,
        bytes: &mut Block,
    ) -> Result<(), Refusal> {
        if let Some((_, region)) = self.region(tx, group)? {
            mark(bytes, self.bits_of(region.run, group));
        }
        Ok(())
    }

    /// The bits of a run of blocks in the bitmap of a group. Native file systems have no clusters.
    pub(super) fn bits_of(&self, run: BlockRun, group: GroupNr) -> Range<u32> {
        let home = self.groups.geometry().blocks_of(group);
        let (start, end) = (run.start.max(home.start), run.end().min(home.end()));
        if start >= end {
            return 0..0;
        }
        // Both lie in the group.
        (start.0 - home.start.0) as u32..(end.0 - home.start.0) as u32
    }

    /// A block for metadata in the region of the goal's lot, marked as used; `None` if it has none.
    pub(super) fn block_in_region(
        &mut self,
        tx: &mut dyn Tx,
        goal: BlockNr,
    ) -> Result<Option<BlockNr>, Refusal> {
        let group = self.groups.geometry().group_of(goal).unwrap_or(GroupNr(0));
        let Some((lot, region)) = self.region(tx, group)? else { return Ok(None) };
        if !self.open_lot(tx, lot, region)? {
            return Ok(None);
        }
        for group in self.groups_with(region.run) {
            let bytes = self.bitmap(tx, group).map(Some);
            let Some(bytes) = self.unless_damaged(group, bytes)? else { continue };
            let bits = self.bits_of(region.run, group);
            if let Some(bit) = bitmap::first_clear(&bytes, bits) {
                let home = self.groups.geometry().group_start(group);
                let block = BlockNr(home.0 + u64::from(bit));
                let marked = self.groups.mark_blocks(tx, BlockRun::new(block, 1), true)?;
                self.free_clusters = self.free_clusters.saturating_sub(marked);
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// A block for metadata, marked as used, in the region of the goal's lot or else in the next one of the same cube that has
    /// a free block; `None` if there is none.
    pub(super) fn block_in_regions(
        &mut self,
        tx: &mut dyn Tx,
        goal: BlockNr,
    ) -> Result<Option<BlockNr>, Refusal> {
        let geo = self.groups.geometry();
        let home = geo.group_of(goal).unwrap_or(GroupNr(0));
        let Some(lot) = self.regions.lot_of(home) else { return Ok(None) };
        let (lots, per_lot, cube) =
            (self.lots(), self.regions.lot_groups, self.cube_of_group(home));
        for lot in self.regions.logs.in_order((lot..lots.end).chain(0..lot)) {
            let first = GroupNr(lot * per_lot);
            if self.regions.full.contains(&lot) || self.cube_of_group(first) != cube {
                continue;
            }
            let start = self.groups.geometry().group_start(first);
            if let Some(block) = self.block_in_region(tx, start)? {
                return Ok(Some(block));
            }
            self.regions.full.insert(lot);
        }
        Ok(None)
    }

    /// The groups that a run of blocks touches.
    fn groups_with(&self, run: BlockRun) -> impl Iterator<Item = GroupNr> + use<> {
        let geo = self.groups.geometry();
        let first = geo.group_of(run.start).map_or(0, |group| group.0);
        let last = geo.group_of(BlockNr(run.end().0 - 1)).map_or(first, |group| group.0);
        (first..=last).map(GroupNr)
    }

    /// Empties the reservation file of a lot, unless that was done. Returns whether the region can be used: not if
    /// its file is not what Floe made.
    pub(super) fn open_lot(
        &mut self,
        tx: &mut dyn Tx,
        lot: u32,
        region: Region,
    ) -> Result<bool, Refusal> {
        if self.regions.open.contains(&lot) {
            return Ok(true);
        }
        let sound = self.is_sound(tx, region)?;
        let file = match self.reservation(tx, region) {
            // The next one who needs it reads it again.
            Err(refusal @ Refusal::Io { .. }) => return Err(refusal),
            file => file.ok().filter(|_| sound),
        };
        let Some(mut file) = file else {
            self.regions.known.insert(lot, None);
            return Ok(false);
        };
        // One that is empty stays as it is: whoever seeks a block in the full regions of many lots changes none of them.
        if file.blocks() > 0 {
            let form = self.form(&file);
            let mut emptied = Emptied(&mut self.groups, 0);
            let mut root = file.base.block;
            let goal = region.run.start;
            let runs = TreeEditor { tx, space: &mut emptied, form, goal, steps: 0 }
                .remove(&mut root, 0..LOGICAL_END)?;
            let mut freed = emptied.1;
            for run in runs {
                freed += self.groups.mark_blocks(tx, run, false)?;
            }
            file.base.block = TreeEditor::EMPTY;
            file.set_blocks(0);
            self.put_file(tx, &mut file)?;
            self.free_clusters += freed;
        }
        self.regions.open.insert(lot);
        self.regions.order.push(lot);
        Ok(true)
    }

    /// Empties the reservation files of lots in whose regions a run of blocks lies that becomes free, so that the seal reserves
    /// them.
    pub(super) fn open_regions_of(
        &mut self,
        tx: &mut dyn Tx,
        run: BlockRun,
    ) -> Result<(), Refusal> {
        if self.regions.lot_groups == 0 || run.len_blocks == 0 {
            return Ok(());
        }
        for group in self.groups_with(run) {
            let Some((lot, region)) = self.region(tx, group)? else { continue };
            if run.start < region.run.end() && region.run.start < run.end() {
                self.open_lot(tx, lot, region)?;
            }
        }
        Ok(())
    }

    /// Empties the reservation file of a block's lot, if it has one.
    pub(crate) fn open_lot_of(&mut self, tx: &mut dyn Tx, block: BlockNr) -> Result<(), Refusal> {
        let group = self.groups.geometry().group_of(block).ok_or(Refusal::Outside(block))?;
        if let Some((lot, region)) = self.region(tx, group)? {
            self.open_lot(tx, lot, region)?;
        }
        Ok(())
    }

    /// Notes that a lot without a region is to be sealed anew.
    pub(super) fn open_without_region(&mut self, lot: u32) {
        if self.regions.open.insert(lot) {
            self.regions.order.push(lot);
        }
    }

    /// The reservation file of a lot, judged.
    pub(super) fn region_file(
        &self,
        tx: &mut dyn Tx,
        file: InodeNr,
        run: BlockRun,
    ) -> Result<OwnedInode, Refusal> {
        self.reservation(tx, Region { run, file })
    }

    /// Whether the bitmaps of a region have the right checksums.
    fn is_sound(&mut self, tx: &mut dyn Tx, region: Region) -> Result<bool, Refusal> {
        for group in self.groups_with(region.run) {
            let bytes = self.bitmap(tx, group).map(Some);
            if self.unless_damaged(group, bytes)?.is_none() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The reservation file of a region: an immutable file whose extents are unwritten and lie in the region.
    fn reservation(&self, tx: &mut dyn Tx, region: Region) -> Result<OwnedInode, Refusal> {
        let (block, at) = self.file_place(region.file)?;
        let bytes = tx.block(block)?;
        let raw = bytes.get(at..at + self.groups.geometry().inode_size as usize);
        let file = raw.and_then(|raw| OwnedInode::of(region.file, raw.to_vec()));
        let file = file.ok_or(NOT_A_RESERVATION)?;
        let flags = file.flags();
        if file.file_type() != Some(FileType::Regular)
            || !flags.contains(InodeFlags::IMMUTABLE | InodeFlags::EXTENTS)
            || file.uid() != 0
            || file.base.links_count != 1
        {
            return Err(NOT_A_RESERVATION);
        }
        let NodeForm { inode_seed, .. } = self.form(&file);
        let (root, form) = (&file.base.block, self.groups.geometry().indirect());
        let look = MapLook { root, flags, form, inode_seed, judge: None };
        let mut from = 0;
        while let Some(extent) = look.next(tx, LogicalBlock(from))? {
            let run = extent.run;
            if !extent.unwritten || run.start < region.run.start || run.end() > region.run.end() {
                return Err(NOT_A_RESERVATION);
            }
            from = extent.logical.0 + run.len_blocks;
        }
        Ok(file)
    }

    fn form(&self, file: &OwnedInode) -> NodeForm {
        let block_size = self.groups.geometry().block_size;
        let inode_seed = self.regions.seed.map(|seed| file.seed(seed));
        NodeForm { block_size, inode_seed, owner_hint: file.number.0 }
    }

    fn file_place(&self, file: InodeNr) -> Result<(BlockNr, usize), Refusal> {
        inode_place(file, self.groups.geometry(), self.groups.descs()).ok_or(NOT_A_RESERVATION)
    }

    fn put_file(&self, tx: &mut dyn Tx, file: &mut OwnedInode) -> Result<(), Refusal> {
        let (block, at) = self.file_place(file.number)?;
        let raw = file.seal(self.regions.seed);
        let place = tx.block_mut(block)?.get_mut(at..at + raw.len());
        place.ok_or(NOT_A_RESERVATION)?.copy_from_slice(raw);
        Ok(())
    }

    /// Free blocks of a region, in runs. Nothing may be held back.
    fn free_in(&self, tx: &mut dyn Tx, region: Region) -> Result<Vec<BlockRun>, Refusal> {
        let mut free: Vec<BlockRun> = Vec::new();
        for group in self.groups_with(region.run) {
            let bytes = self.bitmap(tx, group)?;
            let home = self.groups.geometry().group_start(group);
            let bits = self.bits_of(region.run, group);
            let mut at = bits.start;
            while let Some(bit) = bitmap::first_clear(&bytes, at..bits.end) {
                at = bitmap::first_set(&bytes, bit..bits.end).unwrap_or(bits.end);
                let start = BlockNr(home.0 + u64::from(bit));
                match free.last_mut() {
                    Some(last) if last.end() == start => last.len_blocks += u64::from(at - bit),
                    _ => free.push(BlockRun::new(start, u64::from(at - bit))),
                }
            }
        }
        Ok(free)
    }

    /// Fills the reservation file of a lot with the free blocks of its region, and says so in the records of its
    /// groups, as of a seal. A region without free blocks outside its file is left as it is, unless a crash left that empty when
    /// the region became full: then the records still count blocks that it held.
    pub(crate) fn reserve_lot(
        &mut self,
        tx: &mut dyn Tx,
        lot: u32,
        epoch: u64,
    ) -> Result<(), Refusal> {
        let first = GroupNr(lot.saturating_mul(self.regions.lot_groups));
        self.complete_records(tx, lot, epoch)?;
        let Some((_, region)) = self.region(tx, first)? else {
            self.regions.open.remove(&lot);
            self.regions.order.retain(|other| *other != lot);
            return Ok(());
        };
        if !self.is_sound(tx, region)? {
            return Ok(());
        }
        let is_open = self.regions.open.contains(&lot);
        let has_free = is_open || !self.free_in(tx, region)?.is_empty();
        let is_left = !has_free && self.reservation(tx, region).is_ok_and(|file| file.blocks() > 0);
        if is_left || !self.open_lot(tx, lot, region)? {
            return Ok(());
        }
        let mut file = self.reservation(tx, region)?;
        let free = self.free_in(tx, region)?;
        let form = self.form(&file);
        let Divided { nodes, rest } = match nodes::split(&free, region.run.start, form.block_size)?
        {
            Some(held) => held,
            None => self.with_nodes_outside(tx, region, free, form.block_size)?,
        };
        let extents = nodes::extents(&rest, region.run.start);
        let built = extent_tree::build(&extents, form, &nodes).map_err(|_| NOT_A_RESERVATION)?;
        let used_nodes = built.blocks.iter().map(|(node, _)| BlockRun::new(*node, 1));
        let (mut taken, mut blocks) = (0, 0);
        for run in rest.iter().copied().chain(used_nodes) {
            taken += self.groups.mark_blocks(tx, run, true)?;
            blocks += run.len_blocks;
        }
        for (block, bytes) in built.blocks {
            tx.zeroed(block)?.copy_from_slice(&bytes);
        }
        file.base.block = built.root;
        file.set_blocks(blocks * u64::from(form.block_size / 512));
        self.put_file(tx, &mut file)?;
        self.free_clusters = self.free_clusters.saturating_sub(taken);
        let behind = rest.last().filter(|run| run.end() == region.run.end());
        let used_end = behind.map_or(region.run.end(), |run| run.start);
        self.put_records(tx, first, (used_end.0 - region.run.start.0) as u32, epoch)?;
        self.regions.open.remove(&lot);
        self.regions.order.retain(|other| *other != lot);
        Ok(())
    }

    /// All of some free runs of a region, with the nodes of their tree elsewhere.
    fn with_nodes_outside(
        &mut self,
        tx: &mut dyn Tx,
        region: Region,
        free: Vec<BlockRun>,
        block_size: u32,
    ) -> Result<Divided, Refusal> {
        let needed = nodes::needed(&free, region.run.start, block_size)?;
        let mut nodes = Vec::with_capacity(needed);
        while nodes.len() < needed {
            nodes.push(self.run(tx, region.run.end(), 1)?.start);
        }
        Ok(Divided { nodes, rest: free })
    }

    fn put_records(
        &mut self,
        tx: &mut dyn Tx,
        first: GroupNr,
        region_used: u32,
        epoch: u64,
    ) -> Result<(), Refusal> {
        let count = self.groups.geometry().group_count;
        for group in self.regions.groups_of(first, count).map(GroupNr) {
            self.groups.edit_private(tx, group, |raw| {
                if let Some(record) = LotRecord::of(raw) {
                    LotRecord { region_used, epoch, ..record }.put(raw);
                }
            })?;
        }
        Ok(())
    }
}
