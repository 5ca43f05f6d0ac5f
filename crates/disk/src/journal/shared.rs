//! The logs of a file system: which of them logs a block, and what they share.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::{Duration, Instant};

use floe_ext4::inode_table::desc_place;
use floe_format::ext::superblock::Superblock;
use floe_format::native::lot::{LotRecord, lot_groups};
use floe_format::{BlockNr, BlockRun, Geometry, GroupNr};
use floe_sync::Arc;

use super::awaited::Strays;
use super::company::{Crowd, Goals};
use super::log::Log;
use super::state::{Image, Images, State, TransactionId};

/// A log and its transactions.
#[derive(Debug)]
pub(super) struct Lane {
    /// The cube whose lots it logs; 0: the root cube.
    pub(super) cube: u32,
    /// Inode of the journal in records of lots: 0 for inode 8.
    pub(super) inode: u32,
    /// Block that lists the orphans of the cube.
    pub(super) orphan_block: Option<BlockNr>,
    /// Its cube was removed: it logs nothing any more.
    pub(super) gone: bool,
    pub(super) log: Arc<Log>,
    pub(super) state: State,
    pub(super) company: Company,
    /// Transactions of other logs of the root cube with changes that had read blocks of lots of this one, or changed them, and have no
    /// part in this one: whoever waits for this log waits for those, too.
    pub(super) also: BTreeMap<usize, TransactionId>,
}

impl Lane {
    /// The journal of a cube, or (cube 0) that of inode 8, for which nobody waits yet.
    pub(super) fn new(
        (cube, inode): (u32, u32),
        orphan_block: Option<BlockNr>,
        log: Log,
        state: State,
    ) -> Self {
        let (log, company) = (Arc::new(log), Company::default());
        let also = BTreeMap::new();
        Self { cube, inode, orphan_block, gone: false, log, state, company, also }
    }
}

/// The threads that wait for the changes of a log, for its next commit.
#[derive(Debug, Default)]
pub(super) struct Company {
    /// Threads that waited when a flush made some of them durable last, those that it served among them.
    pub(super) waiters: usize,
    /// Until when a commit waits for others.
    pub(super) expected: Option<Instant>,
    /// Commits since one waited for others with success, in turns of some.
    pub(super) in_vain: u32,
}

/// Whether the superblocks say that journals besides inode 8 may hold changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    Open,
    /// A thread is writing it.
    Setting,
    Set,
}

/// Flushes of the device, which serve all who wait.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    pub(super) begun: u64,
    /// The last one by number that has succeeded: whoever waited for one before it is served, too.
    pub(super) done: u64,
    /// Those that run, by number, with the logs for which each was begun; none: for all.
    pub(super) running: BTreeMap<u64, BTreeSet<usize>>,
    /// Time that the last one took.
    pub(super) took: Duration,
    /// Threads that wait for transactions of which one at least is not durable.
    pub(super) unserved: BTreeMap<Goals, Crowd>,
    /// A failed one ends all journals of the device, and is never tried again (rule R10).
    pub(super) failed: Option<String>,
}

/// All that the journal knows; one lock guards it, which is never held while the device works.
#[derive(Debug)]
pub(super) struct Shared {
    /// The logs; the first one is that of inode 8. None is ever taken away.
    pub(super) lanes: Vec<Lane>,
    /// The root cube has more logs than that of inode 8.
    pub(super) has_further: bool,
    pub(super) lots: Lots,
    /// In native file systems, the block with the superblock as operations left it: it is never logged (rule R1).
    pub(super) superblock: Option<Image>,
    /// It differs from the one on the device.
    pub(super) superblock_due: bool,
    pub(super) lock: Lock,
    pub(super) flushes: Flushes,
    /// Threads that wait for the end of a turn of work or of a flush, but for those that wait for their transactions.
    pub(super) waiting: usize,
    /// Checkpoints that were begun.
    pub(super) checkpoints: u64,
    /// Writes of data that a flush has covered.
    pub(super) data_durable: u64,
    /// Time of the last commit, of any log: seconds since 1970 and nanoseconds.
    pub(super) commit_time: (u64, u32),
    /// Changes that were longer than the log of their cube allows.
    pub(super) loans: u64,
}

/// The owners of lots, for journals (rule R1): a block is logged by the journal that owns its lot.
#[derive(Debug, Default)]
pub(super) struct Lots {
    /// Groups of a lot; 0 in a stock file system.
    groups: u32,
    /// Logs of lots; those of the first log are left out.
    lanes: BTreeMap<u32, usize>,
    /// Blocks that another log has copies of.
    pub(super) strays: Strays,
    /// Lots whose record names another journal than the one that still logs them: its inode.
    pub(super) moves: BTreeMap<u32, u32>,
    /// The second in which a new journal of such a lot could not be read.
    pub(super) unread_at: Option<u64>,
    /// Lots whose journal or descriptors cannot be used, with their cube and the reason: nothing in them is changed.
    lost: BTreeMap<u32, (u32, String)>,
    /// Cubes among them that a repair is to mend, or whose log it is to weigh.
    pub(super) waiting: BTreeSet<u32>,
    /// Those of them whose log holds nothing, or that have none: only their descriptors are damaged.
    pub(super) without_log: BTreeSet<u32>,
}

impl Lots {
    pub(super) fn of(superblock: &Superblock) -> Self {
        Self { groups: lot_groups(superblock), ..Self::default() }
    }

    /// Whether the file system has lots.
    pub(super) const fn is_native(&self) -> bool {
        self.groups > 0
    }

    fn lot_of(&self, geo: &Geometry, block: BlockNr) -> Option<u32> {
        lot_of(geo, self.groups, block)
    }

    /// Takes lots of a cube out of use.
    pub(super) fn lose(&mut self, cube: u32, lots: &[u32], why: &str) {
        self.lost.extend(lots.iter().map(|lot| (*lot, (cube, why.to_owned()))));
    }

    /// Why a block cannot be changed whoever logs it.
    pub(super) fn lost(&self, geo: &Geometry, block: BlockNr) -> Option<&str> {
        if self.lost.is_empty() {
            return None;
        }
        let lost = self.lost.get(&self.lot_of(geo, block)?);
        lost.map(|(_, why)| why.as_str())
    }

    /// Why a cube cannot be changed.
    pub(super) fn lost_cube(&self, cube: u32) -> Option<&str> {
        let mut lost = self.lost.values();
        lost.find(|(own, _)| *own == cube).map(|(_, why)| why.as_str())
    }

    /// The cubes that cannot be changed, each once, and why.
    pub(super) fn lost_cubes(&self) -> BTreeMap<u32, String> {
        self.lost.values().cloned().collect()
    }

    /// Whether a cube has a journal that cannot be used, and that may hold something.
    pub(super) fn has_lost_log(&self) -> bool {
        self.lost.values().any(|(cube, _)| !self.without_log.contains(cube))
    }

    /// The log of a block.
    pub(super) fn lane_of(&self, geo: &Geometry, block: BlockNr) -> usize {
        self.strays.log_of(block).unwrap_or_else(|| self.own_lane_of(geo, block))
    }

    /// The log of the lot of a block.
    pub(super) fn own_lane_of(&self, geo: &Geometry, block: BlockNr) -> usize {
        if self.lanes.is_empty() {
            return 0;
        }
        let lot = self.lot_of(geo, block);
        lot.and_then(|lot| self.lanes.get(&lot)).copied().unwrap_or(0)
    }

    pub(super) fn lane_of_lot(&self, lot: u32) -> usize {
        self.lanes.get(&lot).copied().unwrap_or(0)
    }

    /// Whether a log has lots, the first one aside.
    pub(super) fn has_lots(&self, lane: usize) -> bool {
        self.lanes.values().any(|owner| *owner == lane)
    }

    pub(super) fn give(&mut self, lot: u32, lane: usize) {
        if lane == 0 {
            self.lanes.remove(&lot);
        } else {
            self.lanes.insert(lot, lane);
        }
    }

    /// Gives all lots of a log to the first one; they move back.
    pub(super) fn lend(&mut self, lane: usize, inode: u32) {
        let own: Vec<u32> =
            self.lanes.iter().filter(|(_, owner)| **owner == lane).map(|(lot, _)| *lot).collect();
        for lot in own {
            self.give(lot, 0);
            self.moves.entry(lot).or_insert(inode);
        }
    }

    /// The logs that have copies of blocks of a lot and are not its own.
    pub(super) fn strays_of(&self, geo: &Geometry, lot: u32) -> BTreeSet<usize> {
        self.strays.logs_of(|block| self.lot_of(geo, block) == Some(lot))
    }

    /// None has any more.
    pub(super) fn forget_strays_of(&mut self, geo: &Geometry, lot: u32) {
        let groups = self.groups;
        self.strays.forget(|block| lot_of(geo, groups, block) == Some(lot));
    }

    /// The parts of a run that each lie in one lot, and have one log.
    fn parts(&self, geo: &Geometry, run: BlockRun) -> Vec<BlockRun> {
        let (mut at, mut parts) = (run.start, Vec::new());
        while at < run.end() {
            let group = geo.group_of(at).filter(|_| !self.lanes.is_empty());
            let end = group.map_or(run.end(), |group| geo.blocks_of(group).end().min(run.end()));
            let end = self.strays.end_of(at, end);
            parts.push(BlockRun::new(at, end.0 - at.0));
            at = end;
        }
        parts
    }

    /// The lot whose descriptors a block holds, and its record.
    fn record(&self, geo: &Geometry, block: BlockNr, image: &[u8]) -> Option<(u32, LotRecord)> {
        let lot = self.lot_of(geo, block)?;
        let (home, at) = desc_place(GroupNr(lot * self.groups), geo);
        let raw = image.get(at..at + geo.desc_size as usize).filter(|_| home == block)?;
        LotRecord::of(raw).filter(|record| record.lot == lot).map(|record| (lot, record))
    }

    /// Whether a block holds descriptors of a lot, by which recovery finds journals.
    pub(super) fn is_record(&self, geo: &Geometry, block: BlockNr) -> bool {
        let lot = self.lot_of(geo, block);
        lot.is_some_and(|lot| desc_place(GroupNr(lot * self.groups), geo).0 == block)
    }
}

/// The part of a change that one log takes.
#[derive(Debug, Default)]
pub(super) struct Share {
    pub(super) images: Images,
    pub(super) freed: Vec<BlockRun>,
}

/// The lot of a block, of lots of so many groups.
fn lot_of(geo: &Geometry, groups: u32, block: BlockNr) -> Option<u32> {
    geo.group_of(block)?.0.checked_div(groups)
}

impl Shared {
    /// The log of a block.
    pub(super) fn lane_of(&self, geo: &Geometry, block: BlockNr) -> usize {
        self.lots.lane_of(geo, block)
    }

    /// The log of a cube; `None` if it has none of its own. The root cube may have further ones.
    pub(super) fn lane_of_cube(&self, cube: u32) -> Option<usize> {
        if cube == 0 {
            return Some(0);
        }
        let own = |lane: &Lane| lane.cube == cube && !lane.gone;
        self.lanes.iter().rposition(own)
    }

    /// The logs of the root cube.
    pub(super) fn lanes_of_root(&self) -> impl Iterator<Item = usize> + '_ {
        let of_root = |(_, lane): &(usize, &Lane)| lane.cube == 0 && !lane.gone;
        self.lanes.iter().enumerate().filter(of_root).map(|(index, _)| index)
    }

    /// Takes up a log.
    pub(super) fn add(&mut self, lane: Lane) {
        self.has_further |= lane.cube == 0 && !self.lanes.is_empty();
        self.lanes.push(lane);
    }

    /// The transactions that whoever waits for a log of the root cube waits for: its last one, and those in [`Lane::also`].
    pub(super) fn goals_of(&self, lane: usize) -> Goals {
        let also = self.lanes[lane].also.iter().map(|(other, id)| (*other, *id));
        let lacks = |(other, id): &(usize, TransactionId)| self.lanes[*other].state.durable < *id;
        let mut goals: Goals = also.filter(lacks).collect();
        goals.push((lane, self.lanes[lane].state.last()));
        goals
    }

    /// Divides a change among the logs.
    pub(super) fn shares(
        &self,
        geo: &Geometry,
        changed: Images,
        freed: &[BlockRun],
    ) -> BTreeMap<usize, Share> {
        let mut shares: BTreeMap<usize, Share> = BTreeMap::new();
        for (block, image) in changed {
            let lane = self.lane_of(geo, block);
            shares.entry(lane).or_default().images.insert(block, image);
        }
        for run in freed.iter().flat_map(|run| self.lots.parts(geo, *run)) {
            shares.entry(self.lane_of(geo, run.start)).or_default().freed.push(run);
        }
        shares
    }

    /// Lets a change join the running transactions of its logs, which depend on each other from now on. Returns one of them,
    /// by which all become durable. `read`: logs of the lots of blocks that it has read.
    pub(super) fn join(
        &mut self,
        geo: &Geometry,
        shares: BTreeMap<usize, Share>,
        read: &BTreeSet<usize>,
    ) -> TransactionId {
        let (mut touched, mut concerned) = (BTreeSet::new(), read.clone());
        for (lane, share) in shares {
            self.note_moves(geo, &share.images);
            if self.has_further {
                for block in share.images.keys() {
                    let own = self.lots.own_lane_of(geo, *block);
                    self.lots.strays.note(*block, lane, own);
                    concerned.insert(own);
                }
            }
            let state = &mut self.lanes[lane].state;
            let (changes, revoked) = (!share.images.is_empty(), state.running.revoked.len());
            state.join(share.images, &share.freed);
            if changes || state.running.revoked.len() > revoked {
                touched.insert(lane);
            }
        }
        for &lane in &touched {
            let others = touched.iter().filter(|other| **other != lane);
            self.lanes[lane].state.running.partners.extend(others);
        }
        let first = touched.first().copied().unwrap_or(0);
        let id = self.lanes[first].state.last();
        for &lane in concerned.difference(&touched).filter(|_| !touched.is_empty()) {
            self.lanes[lane].also.insert(first, id);
        }
        id
    }

    /// Notes lots whose records name another journal than that which logs them. They move when [`Lots::moves`] is dealt with.
    fn note_moves(&mut self, geo: &Geometry, images: &Images) {
        if !self.lots.is_native() {
            return;
        }
        for (block, image) in images {
            let Some((lot, record)) = self.lots.record(geo, *block, image) else { continue };
            let owner = self.lots.lane_of_lot(lot);
            if self.lanes[owner].inode == record.journal_inode {
                self.lots.moves.remove(&lot);
            } else {
                self.lots.moves.insert(lot, record.journal_inode);
            }
        }
    }

    /// The newest image of a block that is not home.
    pub(super) fn newest(&self, geo: &Geometry, block: BlockNr) -> Option<&Image> {
        let own = self.superblock.as_ref().filter(|_| block.0 == 0);
        own.or_else(|| self.lanes[self.lane_of(geo, block)].state.newest(block))
    }

    /// The newest images of all blocks of a range that are not home.
    pub(super) fn newest_of(&self, geo: &Geometry, blocks: &Range<BlockNr>) -> Images {
        let mut newest = Images::new();
        let run = BlockRun::new(blocks.start, blocks.end.0 - blocks.start.0);
        for part in self.lots.parts(geo, run) {
            let lane = self.lane_of(geo, part.start);
            self.lanes[lane].state.newest_of(&(part.start..part.end()), &mut newest);
        }
        if let Some(image) = self.superblock.as_ref().filter(|_| blocks.start.0 == 0) {
            newest.insert(BlockNr(0), Arc::clone(image));
        }
        newest
    }

    /// Whether a log has a copy of a block of this run, or is to get one.
    pub(super) fn has_copy(&self, geo: &Geometry, run: BlockRun) -> bool {
        self.lots.parts(geo, run).iter().any(|part| {
            let lane = self.lane_of(geo, part.start);
            self.lanes[lane].state.has_copy(*part)
        })
    }

    /// Ends logs. With each, those end whose running transactions share a change with its own: a part of that change can never
    /// become durable, so the rest must not. With one log of the root cube all of it end: it is served as a whole, or not.
    pub(super) fn end_lanes(&mut self, lanes: impl IntoIterator<Item = usize>, why: &str) {
        let mut open: Vec<usize> = lanes.into_iter().collect();
        let mut ended = BTreeSet::new();
        while let Some(lane) = open.pop() {
            if ended.insert(lane) {
                let state = &mut self.lanes[lane].state;
                state.failed.get_or_insert_with(|| why.to_owned());
                open.extend(&state.running.partners);
                if self.lanes[lane].cube == 0 {
                    open.extend(self.lanes_of_root());
                }
            }
        }
    }

    /// These logs and all whose running transactions share changes with theirs, directly or by others.
    pub(super) fn closure(&self, lanes: impl IntoIterator<Item = usize>) -> BTreeSet<usize> {
        let mut all = BTreeSet::new();
        let mut open: Vec<usize> = lanes.into_iter().collect();
        while let Some(lane) = open.pop() {
            let state = &self.lanes[lane].state;
            if all.insert(lane) && state.is_running_wanted() {
                open.extend(&state.running.partners);
            }
        }
        all
    }

    /// Whether somebody waits for the running transaction of one of these logs.
    pub(super) fn is_any_wanted(&self, lanes: &BTreeSet<usize>) -> bool {
        lanes.iter().any(|&lane| self.lanes[lane].state.is_running_wanted())
    }

    /// Wants the running transactions of these logs, and with each all that share changes with it.
    pub(super) fn want(&mut self, goals: &[(usize, TransactionId)]) {
        let mut open = goals.to_vec();
        while let Some((lane, id)) = open.pop() {
            let state = &mut self.lanes[lane].state;
            state.wanted = state.wanted.max(id);
            if state.running.is_empty() || state.running.id > state.wanted {
                continue;
            }
            for other in state.running.partners.clone() {
                let partner = &self.lanes[other].state;
                if partner.wanted < partner.running.id {
                    open.push((other, partner.running.id));
                }
            }
        }
    }

    /// The time of a commit: the clock's, but always later than the last one, because Linux tells a stale commit block
    /// from a damaged one by its time (rule R9).
    pub(super) fn next_commit_time(&mut self, now: (u64, u32)) -> (u64, u32) {
        let (seconds, nanoseconds) = self.commit_time;
        let later = match nanoseconds.checked_add(1).filter(|&next| next < 1_000_000_000) {
            Some(next) => (seconds, next),
            None => (seconds.saturating_add(1), 0),
        };
        self.commit_time = now.max(later);
        self.commit_time
    }
}
