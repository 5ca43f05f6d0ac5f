//! Lots and their cubes (`docs/cubes.md`): what belongs to a cube is allocated in its lots alone, and nothing else there. A cube
//! that is full takes a free lot: one of the root cube's that holds no file.

use std::collections::{BTreeMap, BTreeSet};

use floe_ext4::group::metadata_runs;
use floe_ext4::inode_table::desc_place;
use floe_ext4::tx::{Refusal, Tx};
use floe_format::ext::bitmap;
use floe_format::native::cube::JournalMode;
use floe_format::native::lot::{self, LotRecord};
use floe_format::{BlockNr, BlockRun, GroupNr, InodeNr};

use super::Pool;
use super::logs::SHARE_OF_JOURNAL;

/// Bytes of a unit of `i_blocks`.
const SECTOR_BYTES: u64 = 512;

/// The owners of lots, as their records have them.
#[derive(Debug, Default)]
pub(super) struct Cubes {
    /// Owners by lot; the root cube's lots are left out.
    owners: BTreeMap<u32, u32>,
    /// Lots by their owner.
    lots: BTreeMap<u32, BTreeSet<u32>>,
    /// No cube has a number below it.
    next_number: u32,
    /// Most blocks of a cube's lots; 0: no limit.
    limits: BTreeMap<u32, u64>,
    /// Cubes whose journal logs the content of files, too.
    logs_data: BTreeSet<u32>,
    /// All content of files is logged, for now.
    logs_all: bool,
    /// Directories of cubes, by cube; those of damaged sub-superblocks are unknown.
    tops: BTreeMap<u32, InodeNr>,
    /// Journals of cubes that have their own: inode, and blocks of the file.
    journals: BTreeMap<u32, (InodeNr, u32)>,
    /// A system that does not know cubes has written: what leads from one cube into another may be sound.
    coupled: bool,
    /// A cube that is full takes no lot for now.
    stays: bool,
    /// Cubes with free blocks to which content is written, so that nobody may discard them.
    written: BTreeSet<u32>,
    /// The objects that changed, as they were before.
    changes: Vec<Before>,
}

/// An object as it was before a change.
#[derive(Debug)]
enum Before {
    /// The owner of a lot.
    Owner(u32, u32),
    /// The journal of a cube.
    Journal(u32, Option<(InodeNr, u32)>),
}

impl Cubes {
    pub(super) const fn mark(&self) -> usize {
        self.changes.len()
    }

    pub(super) fn roll_back(&mut self, mark: usize) {
        while self.changes.len() > mark {
            match self.changes.pop() {
                Some(Before::Owner(lot, before)) => self.set(lot, before),
                Some(Before::Journal(cube, Some(before))) => {
                    self.journals.insert(cube, before);
                }
                Some(Before::Journal(cube, None)) => {
                    self.journals.remove(&cube);
                }
                None => {}
            }
        }
    }

    fn set(&mut self, lot: u32, cube: u32) {
        let before = self.owners.remove(&lot);
        if let Some(own) = before.and_then(|before| self.lots.get_mut(&before)) {
            own.remove(&lot);
        }
        if cube > 0 {
            self.owners.insert(lot, cube);
            self.lots.entry(cube).or_default().insert(lot);
        }
    }
}

impl Pool {
    /// Tells the pool who owns lots; those of the root cube may be left out. `coupled`: names and blocks may lead from one cube
    /// into another.
    pub(crate) fn use_cubes(&mut self, owners: BTreeMap<u32, u32>, coupled: bool) {
        let mut cubes = Cubes { coupled, ..Cubes::default() };
        owners.into_iter().for_each(|(lot, cube)| cubes.set(lot, cube));
        self.cubes = cubes;
    }

    /// A number below which each belongs to a cube.
    pub(crate) fn next_number(&self) -> u32 {
        self.cubes.next_number.max(1)
    }

    /// All numbers up to that of a new cube belong to cubes.
    pub(crate) fn note_number(&mut self, cube: u32) {
        self.cubes.next_number = cube.saturating_add(1);
    }

    /// Whether a cube owns a lot.
    pub(crate) fn has_lots(&self, cube: u32) -> bool {
        self.cubes.lots.get(&cube).is_some_and(|lots| !lots.is_empty())
    }

    /// From now on, references from one cube into another are damage.
    pub(crate) const fn uncouple(&mut self) {
        self.cubes.coupled = false;
    }

    /// Whether names and blocks may lead from one cube into another.
    pub(crate) const fn is_coupled(&self) -> bool {
        self.cubes.coupled
    }

    /// Whether a directory may name an inode, whatever that inode says: it lies in the same cube, or is the directory of one.
    pub(crate) fn may_name(&self, dir: InodeNr, inode: InodeNr) -> bool {
        let own = self.cube_of(dir);
        self.cubes.coupled || own == self.cube_of(inode) || own == 0 && self.may_be_top(inode)
    }

    /// Refuses blocks of an inode that belong to another cube.
    ///
    /// # Errors
    /// [`Refusal::Damaged`].
    pub(crate) fn judge_own(&self, inode: InodeNr, run: BlockRun) -> Result<(), Refusal> {
        if self.cubes.coupled || !self.has_cubes() || run.len_blocks == 0 {
            return Ok(());
        }
        let (geo, own) = (self.groups.geometry(), self.cube_of(inode));
        let ends = [run.start, BlockNr(run.end().0 - 1)].map(|block| geo.group_of(block));
        // Blocks outside of the file system are refused elsewhere.
        let [Some(first), Some(last)] = ends else { return Ok(()) };
        let mut groups = (first.0..=last.0).map(GroupNr);
        match groups.all(|group| self.cube_of_group(group) == own) {
            true => Ok(()),
            false => Err(Refusal::Damaged("the map of a file, which leads into another cube,")),
        }
    }

    /// Whether a cube besides the root cube has lots.
    pub(crate) fn has_cubes(&self) -> bool {
        !self.cubes.owners.is_empty()
    }

    /// Notes which directory is a cube's.
    pub(crate) fn note_top(&mut self, cube: u32, top_inode: u32) {
        self.cubes.tops.insert(cube, InodeNr(top_inode));
    }

    /// The directory of a cube.
    pub(crate) fn top_of(&self, cube: u32) -> Option<InodeNr> {
        self.cubes.tops.get(&cube).copied()
    }

    /// Notes the journal of a cube: its inode, and blocks of the file.
    pub(crate) fn note_journal(&mut self, cube: u32, inode: InodeNr, blocks: u32) {
        let before = self.cubes.journals.insert(cube, (inode, blocks));
        self.cubes.changes.push(Before::Journal(cube, before));
    }

    /// The inode of a cube's own journal.
    pub(crate) fn journal_of(&self, cube: u32) -> Option<InodeNr> {
        self.cubes.journals.get(&cube).map(|(inode, _)| *inode)
    }

    /// Cubes with a journal of their own, and its inode.
    pub(crate) fn journals(&self) -> Vec<(u32, InodeNr)> {
        self.cubes.journals.iter().map(|(cube, (inode, _))| (*cube, *inode)).collect()
    }

    /// Whether a cube has a journal of its own.
    pub(super) fn has_journals(&self) -> bool {
        !self.cubes.journals.is_empty()
    }

    /// Blocks that a change may take of the journal of a cube; of the root cube, the shortest one.
    pub(crate) fn share_of_journal(&self, cube: u32) -> usize {
        if cube == 0 {
            return self.regions.logs.least_share();
        }
        let own = self.cubes.journals.get(&cube);
        own.map_or(usize::MAX, |(_, blocks)| *blocks as usize / SHARE_OF_JOURNAL)
    }

    /// Writes the journal of a cube into the records of its lots.
    pub(crate) fn record_journal(
        &mut self,
        tx: &mut dyn Tx,
        cube: u32,
        orphan_block: BlockNr,
    ) -> Result<(), Refusal> {
        let inode = self.journal_of(cube).map_or(0, |inode| inode.0);
        let count = self.groups.geometry().group_count;
        for lot in self.lots_of(cube) {
            let first = self.first_group(lot);
            for group in self.regions.groups_of(first, count).map(GroupNr) {
                self.groups.edit_private(tx, group, |raw| {
                    if let Some(record) = LotRecord::of(raw) {
                        let (journal_inode, orphan_block) = (inode, orphan_block.0);
                        LotRecord { journal_inode, orphan_block, ..record }.put(raw);
                    }
                })?;
            }
        }
        Ok(())
    }

    /// The block for orphans in the record of a cube's first lot.
    fn recorded_orphans(&self, tx: &mut dyn Tx, cube: u32) -> Result<u64, Refusal> {
        let Some(lot) = self.lots_of(cube).first().copied() else { return Ok(0) };
        let geo = self.groups.geometry();
        let (block, at) = desc_place(self.first_group(lot), geo);
        let bytes = tx.block(block)?;
        let record = bytes.get(at..at + geo.desc_size as usize).and_then(LotRecord::of);
        Ok(record.map_or(0, |record| record.orphan_block))
    }

    /// Forgets limit, journal and directory of a cube that is removed.
    pub(crate) fn forget_cube(&mut self, cube: u32) {
        self.cubes.limits.remove(&cube);
        self.cubes.logs_data.remove(&cube);
        let journal = self.cubes.journals.remove(&cube);
        self.cubes.changes.push(Before::Journal(cube, journal));
        self.cubes.tops.remove(&cube);
        self.cubes.next_number = self.cubes.next_number.min(cube);
    }

    /// Whether an inode is the directory of a cube. In a cube whose directory is unknown, each could be.
    pub(crate) fn may_be_top(&self, inode: InodeNr) -> bool {
        let cube = self.cube_of(inode);
        cube > 0 && self.cubes.tops.get(&cube).is_none_or(|top| *top == inode)
    }

    /// Sets whether the journal of a cube logs the content of files, too.
    pub(crate) fn log_data(&mut self, cube: u32, mode: JournalMode) {
        match mode {
            JournalMode::Data => drop(self.cubes.logs_data.insert(cube)),
            JournalMode::Ordered => drop(self.cubes.logs_data.remove(&cube)),
        }
    }

    pub(crate) const fn log_all_data(&mut self, logs: bool) {
        self.cubes.logs_all = logs;
    }

    /// Whether content in a block is logged.
    pub(crate) fn logs_data(&self, block: BlockNr) -> bool {
        if self.cubes.logs_all || self.cubes.logs_data.is_empty() {
            return self.cubes.logs_all;
        }
        let group = self.groups.geometry().group_of(block);
        group.is_some_and(|group| self.cubes.logs_data.contains(&self.cube_of_group(group)))
    }

    /// Sets the limit of a cube: the most blocks of its lots, or 0.
    pub(crate) fn limit_cube(&mut self, cube: u32, blocks: u64) {
        self.cubes.limits.insert(cube, blocks);
    }

    /// The cube that owns the lot of a group; 0: the root cube.
    pub(crate) fn cube_of_group(&self, group: GroupNr) -> u32 {
        let lot = self.regions.lot_of(group);
        lot.and_then(|lot| self.cubes.owners.get(&lot)).copied().unwrap_or(0)
    }

    /// Says whether content is written to free blocks of a cube.
    pub(crate) fn hold_free_blocks(&mut self, cube: u32, holds: bool) {
        if holds {
            self.cubes.written.insert(cube);
        } else {
            self.cubes.written.remove(&cube);
        }
    }

    /// The same for a pool that is read anew.
    pub(super) fn take_over_written(&mut self, before: &mut Self) {
        self.cubes.written = std::mem::take(&mut before.cubes.written);
    }

    /// Whether free blocks of a group may be discarded.
    pub(super) fn may_discard(&self, group: GroupNr) -> bool {
        !self.cubes.written.contains(&self.cube_of_group(group))
    }

    /// The cube of an inode: the one that owns its lot.
    pub(crate) fn cube_of(&self, inode: InodeNr) -> u32 {
        let place = self.groups.geometry().place_of(inode);
        place.map_or(0, |(group, _)| self.cube_of_group(group))
    }

    /// The lots of a cube.
    pub(crate) fn lots_of(&self, cube: u32) -> Vec<u32> {
        self.cubes.lots.get(&cube).into_iter().flatten().copied().collect()
    }

    /// The first group of a lot.
    pub(crate) fn first_group(&self, lot: u32) -> GroupNr {
        GroupNr(lot.saturating_mul(self.regions.lot_groups))
    }

    /// The owners of lots; those of the root cube are left out.
    pub(crate) fn lot_owners(&self) -> BTreeMap<u32, u32> {
        self.cubes.owners.clone()
    }

    /// How often a lot has changed its owner.
    pub(crate) const fn owner_changes(&self) -> usize {
        self.cubes.changes.len()
    }

    /// Groups of a lot; 0 where there are no lots.
    pub(crate) const fn lot_groups(&self) -> u32 {
        self.regions.lot_groups
    }

    /// Blocks of a whole lot.
    pub(crate) fn lot_blocks(&self) -> u64 {
        u64::from(self.regions.lot_groups) * u64::from(self.groups.geometry().blocks_per_group)
    }

    /// Whether cubes that are full take free lots.
    pub(crate) const fn let_grow(&mut self, may: bool) {
        self.cubes.stays = !may;
    }

    /// The same, asked.
    pub(crate) const fn may_grow(&self) -> bool {
        !self.cubes.stays
    }

    /// Gives a cube one more lot. Returns whether its limit allows that and there is a free one.
    pub(crate) fn grow(&mut self, tx: &mut dyn Tx, cube: u32) -> Result<bool, Refusal> {
        if self.cubes.stays {
            return Ok(false);
        }
        let limit = self.cubes.limits.get(&cube).copied().unwrap_or(0);
        let lots = self.lots_of(cube).len() as u64 + 1;
        if limit > 0 && lots.saturating_mul(self.lot_blocks()) > limit {
            return Ok(false);
        }
        let Some(lot) = self.free_lot(tx)? else { return Ok(false) };
        self.give_lot(tx, lot, cube)?;
        Ok(true)
    }

    /// Lets a lot belong to a cube. Its records and their backups are written anew when the file system is sealed.
    pub(crate) fn give_lot(&mut self, tx: &mut dyn Tx, lot: u32, cube: u32) -> Result<(), Refusal> {
        let first = self.first_group(lot);
        self.open_for_record(tx, lot)?;
        let count = self.groups.geometry().group_count;
        let journal_inode = self.journal_of(cube).map_or(0, |inode| inode.0);
        let orphan_block = self.recorded_orphans(tx, cube)?;
        for group in self.regions.groups_of(first, count).map(GroupNr) {
            self.groups.edit_private(tx, group, |raw| {
                if let Some(record) = LotRecord::of(raw) {
                    LotRecord { cube, journal_inode, orphan_block, ..record }.put(raw);
                }
            })?;
        }
        let before = self.cube_of_group(first);
        self.cubes.changes.push(Before::Owner(lot, before));
        self.cubes.set(lot, cube);
        Ok(())
    }

    /// Takes free blocks of a lot that lie outside of its region, as at most so many runs, and marks them as used. None in groups
    /// with damaged bitmaps.
    pub(crate) fn take_free(
        &mut self,
        tx: &mut dyn Tx,
        lot: u32,
        most: usize,
    ) -> Result<Vec<BlockRun>, Refusal> {
        let mut runs = Vec::new();
        let count = self.groups.geometry().group_count;
        for group in self.regions.groups_of(self.first_group(lot), count).map(GroupNr) {
            let bytes = self.bitmap(tx, group).map(Some);
            let Some(mut bytes) = self.unless_damaged(group, bytes)? else { continue };
            self.keep_region(tx, group, &mut bytes)?;
            let (start, end) = (
                self.groups.geometry().group_start(group),
                self.groups.geometry().clusters_of(group),
            );
            let mut at = 0;
            while let Some(free) = bitmap::first_clear(&bytes, at..end) {
                if runs.len() == most {
                    return Ok(runs);
                }
                at = bitmap::first_set(&bytes, free..end).unwrap_or(end);
                let run = BlockRun::new(BlockNr(start.0 + u64::from(free)), u64::from(at - free));
                let marked = self.groups.mark_blocks(tx, run, true)?;
                self.free_clusters = self.free_clusters.saturating_sub(marked);
                runs.push(run);
            }
        }
        Ok(runs)
    }

    /// A lot of the root cube that holds nothing but its own metadata and its reservation file; not the first one.
    fn free_lot(&mut self, tx: &mut dyn Tx) -> Result<Option<u32>, Refusal> {
        for lot in self.lots().skip(1) {
            let first = self.first_group(lot);
            let is_root = self.cube_of_group(first) == 0;
            if is_root && self.is_bare(tx, first)? {
                // Another system has added the lot since the last seal.
                let completed = self.complete_records(tx, lot, 0).map(Some);
                self.unless_damaged(first, completed)?;
            }
            if is_root && self.unless_damaged(first, self.is_free(tx, lot).map(Some))? == Some(true)
            {
                return Ok(Some(lot));
            }
        }
        Ok(None)
    }

    /// Whether a group has no record of its lot.
    fn is_bare(&self, tx: &mut dyn Tx, group: GroupNr) -> Result<bool, Refusal> {
        let geo = self.groups.geometry();
        let (block, at) = desc_place(group, geo);
        let bytes = tx.block(block)?;
        let raw = bytes.get(at..at + geo.desc_size as usize).unwrap_or(&[]);
        Ok(raw.iter().skip(lot::OFFSET).all(|byte| *byte == 0))
    }

    fn is_free(&self, tx: &mut dyn Tx, lot: u32) -> Result<bool, Refusal> {
        let geo = self.groups.geometry();
        let first = self.first_group(lot);
        let (block, at) = desc_place(first, geo);
        let record = tx.block(block)?.get(at..at + geo.desc_size as usize).and_then(LotRecord::of);
        let Some(record) = record.filter(|record| record.lot == lot) else { return Ok(false) };
        let groups: Vec<GroupNr> =
            self.regions.groups_of(first, geo.group_count).map(GroupNr).collect();
        let (mut used_inodes, mut own) = (0, Vec::new());
        for group in &groups {
            let desc = self.groups.desc(*group)?;
            used_inodes += geo.inodes_per_group.saturating_sub(desc.free_inodes_count);
            own.extend(metadata_runs(geo, *group, &desc));
        }
        let file = InodeNr(record.region_inode);
        let has_region = record.region_blocks > 0;
        let in_lot = |inode: &InodeNr| {
            geo.place_of(*inode).is_some_and(|(group, _)| groups.contains(&group))
        };
        if used_inodes != u32::from(has_region)
            || has_region && !(in_lot(&file) && self.groups.is_inode_used(tx, file)?)
            || self.reserved_inodes.iter().any(in_lot)
        {
            return Ok(false);
        }
        let start = BlockNr(record.region_start);
        let region = BlockRun::new(start, u64::from(record.region_blocks));
        let (mut others, mut in_region) = (0, 0);
        for group in groups {
            if self.damaged.contains(&group) {
                return Ok(false);
            }
            let mut bytes = self.bitmap(tx, group)?.to_vec();
            let region_bits = self.bits_of(region, group);
            in_region += u64::from(bitmap::count(&bytes, region_bits.clone()));
            bitmap::fill(&mut bytes, region_bits, false);
            for run in own.iter().filter(|run| run.len_blocks > 0) {
                bitmap::fill(&mut bytes, self.bits_of(*run, group), false);
            }
            others += bitmap::count(&bytes, 0..geo.clusters_of(group));
        }
        if others > 0 {
            return Ok(false);
        }
        if !has_region {
            return Ok(true);
        }
        let held = self.region_file(tx, file, region)?.blocks();
        Ok(in_region == held * SECTOR_BYTES / u64::from(geo.block_size))
    }
}
