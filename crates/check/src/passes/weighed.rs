//! Which state of a file system counts whose log is damaged between its transactions, so that not all of them can be replayed.
//!
//! Reads: the whole file system in each state, and the inodes that the log holds.  Keeps: a replayed log for each state.
//! Writes of home blocks are not bound to the tail of the log: copies before the damage may be older than what they would replace,
//! and blocks behind the damage may not be at home yet. So each state is checked, and the times of inodes say how much would be set
//! back.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::ops::Range;

use floe_blockdev::{Overlay, ReadBlocks};
use floe_ext4::journal::{self, Journal, Replay, SuperblockDamage};
use floe_format::InodeNr;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::{Inode, decode_nanoseconds, decode_seconds};
use floe_format::native::identity::Identity;
use floe_format::native::lot::LotRecord;

use super::pipeline::examine;
use crate::checks::system_files::journal::root_words;
use crate::error::CheckError;
use crate::options::{CheckOptions, Checkpoints, Observer};
use crate::problem::{Evidence, Findings, Object, Problem, Severity, Weight};
use crate::volume::open::{Opened, open};

type Replayed<'d> = Replay<&'d dyn ReadBlocks>;

/// The case against a state, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    /// Inodes that are newer in another state or that a finding concerns by which something can be lost, and such findings that
    /// name no inode.
    lost: u64,
    /// With fewer transactions more may be lost that nobody compares, such as content of directories.
    transactions: Reverse<u32>,
    /// All damage.
    damage: u64,
}

pub(super) struct State<'d> {
    name: &'static str,
    replay: Replayed<'d>,
    cost: Cost,
    inodes: u64,
    older: u64,
    /// Inodes that are older, or that findings concern: most findings about one and the same come from what is lost in each state.
    harmed: BTreeSet<u32>,
    groups: Vec<GroupDesc>,
}

/// The states, for messages: clauses that follow "and" or "if".
pub(super) const WHOLE: &str =
    "all transactions count, because checksums tell which bits are wrong";
pub(super) const SOUND: &str = "all sound transactions count";
pub(super) const BEFORE: &str = "only the transactions before the damage count";
/// For a log whose superblock was made from it.
pub(super) const FOUND: &str = "the transactions that are found in it count";
pub(super) const NOTHING: &str = "no transaction counts";

/// Chooses among the state with the transactions before the damage (`before`), the one with all sound transactions, and the one
/// without the log. Nothing is told where the log was replayed to its end. `empty` makes an overlay for a state.
pub(super) fn weigh<'d>(
    before: Replayed<'d>,
    empty: impl Fn() -> Overlay<&'d dyn ReadBlocks>,
    opened: &Opened,
    journal: &Journal,
    options: &CheckOptions<'_>,
) -> (Replayed<'d>, Vec<Problem>) {
    let damaged = journal::first_damaged(&before.events);
    if damaged.is_none() && !is_rebuilt(journal) {
        return (before, Vec::new());
    }
    let (geometry, external) = (&opened.geometry, options.external_journal);
    let events = before.events.clone();
    let state = |name, replay: Replayed<'d>| {
        let transactions = replay.transactions;
        State::new(name, replay, transactions, options)
    };
    // In the order of preference among equals.
    let mut states = Vec::new();
    if let Some(damaged) = damaged {
        let (all, is_whole) =
            journal::with_sound_ones(empty(), geometry, journal, external, damaged);
        states.push(state(if is_whole { WHOLE } else { SOUND }, all));
    }
    states.push(state(damaged.map_or(FOUND, |_| BEFORE), before));
    states.push(state(NOTHING, journal::without_log(empty(), geometry, journal, external)));
    let inode = journal::inode_of(journal);
    let log = root_words(InodeNr(inode));
    let (best, told) = choose(&mut states, opened, (log, inode));
    let mut replay = states.swap_remove(best).replay;
    replay.events = events;
    (replay, told)
}

/// Whether the superblock of a log was made from it, and leads to transactions.
pub(super) const fn is_rebuilt(journal: &Journal) -> bool {
    matches!(journal.damage, Some(SuperblockDamage::Rebuilt(_))) && journal.superblock.start != 0
}

/// Compares states of a log, which comes with words and its inode. Returns the number of the best, and what is to be told.
pub(super) fn choose(
    states: &mut [State<'_>],
    opened: &Opened,
    (log, inode): (&'static str, u32),
) -> (usize, Vec<Problem>) {
    compare(states, opened);
    let best = (0..states.len()).min_by_key(|&at| states[at].cost).unwrap_or(0);
    let told = states.iter().enumerate().map(|(at, state)| {
        let State { name: state, inodes, older, .. } = *state;
        let inode = InodeNr(inode);
        match at == best {
            true => Problem::DamagedLogWeighed { log, inode, taken: state, inodes, older },
            false => Problem::DamagedLogOtherwise { log, inode, state, inodes, older },
        }
    });
    (best, told.collect())
}

impl<'d> State<'d> {
    /// `transactions`: those that count, of all logs.
    pub(super) fn new(
        name: &'static str,
        replay: Replayed<'d>,
        transactions: u32,
        options: &CheckOptions<'_>,
    ) -> Self {
        let transactions = Reverse(transactions);
        let cost = Cost { lost: u64::from(u32::MAX), transactions, damage: u64::MAX };
        let (harmed, groups) = (BTreeSet::new(), Vec::new());
        let mut state = Self { name, replay, cost, inodes: 0, older: 0, harmed, groups };
        // A state that cannot be checked is not preferred to one that can.
        drop(state.judge(options));
        state
    }

    /// Checks the state.
    fn judge(&mut self, options: &CheckOptions<'_>) -> Result<(), CheckError> {
        let (observer, checkpoints) = (Observer::default(), Checkpoints::default());
        let options = CheckOptions { observer, checkpoints, ..*options };
        let overlay = &self.replay.overlay;
        let opened = open(overlay, options.superblock)?;
        self.groups.clone_from(&opened.groups);
        let report = examine(overlay, opened, Findings::default(), &options)?.report;
        let damage = report.found.iter().filter(|one| one.row().weight > Weight::Remark);
        // Whoever repairs at once loses nothing by findings that an unattended repair may deal with.
        let risks = |one: &&Problem| one.row().severity >= Severity::DataRisk && !one.row().preen;
        let mut nameless = 0;
        for problem in damage.clone().filter(risks) {
            let harmed = harmed(problem);
            nameless += u64::from(harmed.is_empty());
            self.harmed.extend(harmed);
        }
        self.cost.lost = nameless;
        self.cost.damage = damage.count() as u64;
        self.inodes = report.totals.inodes_used;
        Ok(())
    }
}

/// The inodes that something is lost of by a finding: an entry that is damaged concerns the inode that it names.
fn harmed(problem: &Problem) -> BTreeSet<u32> {
    let inodes = problem.evidence().into_iter().filter_map(|(name, value)| match value {
        Evidence::Inode(inode) if inode.0 != 0 => Some((name, inode.0)),
        _ => None,
    });
    let all: Vec<(&str, u32)> = inodes.collect();
    let is_entry = problem.row().object == Object::Dirent && all.len() > 1;
    let counts = |(name, _): &&(&str, u32)| {
        !(matches!(*name, "parent" | "stored" | "expected") || is_entry && *name == "dir")
    };
    all.iter().filter(counts).map(|(_, inode)| *inode).collect()
}

/// The files that hold free blocks of metadata regions: nothing of a user's is in them, and a repair makes them right.
fn reservations(device: &dyn ReadBlocks, opened: &Opened) -> BTreeSet<u32> {
    let geometry = &opened.geometry;
    let mut all = BTreeSet::new();
    if Identity::of(&opened.superblock).is_none() {
        return all;
    }
    let mut raw = vec![0; geometry.desc_size as usize];
    for lot in 0..geometry.desc_blocks {
        let at = geometry.offset_bytes(geometry.primary_desc_block(lot));
        let record = device.read_at(at, &mut raw).ok().and_then(|()| LotRecord::of(&raw));
        all.extend(record.map(|record| record.region_inode));
    }
    all
}

/// Counts for each state the inodes that are newer in another one, in groups of which the log holds a part.
fn compare(states: &mut [State<'_>], opened: &Opened) {
    let geometry = &opened.geometry;
    let block_bytes = u64::from(geometry.block_size);
    let table_bytes = u64::from(geometry.inode_table_blocks) * block_bytes;
    let changed = Changed::of(states);
    for (group, desc) in opened.groups.iter().enumerate() {
        if !geometry.contains(desc.inode_table) {
            continue;
        }
        let table = geometry.offset_bytes(desc.inode_table);
        let table = table..table.saturating_add(table_bytes);
        let bitmap = geometry.offset_bytes(desc.inode_bitmap);
        if !changed.meets(&table) && !changed.meets(&(bitmap..bitmap.saturating_add(block_bytes))) {
            continue;
        }
        let used: Vec<Used> = states.iter().map(|state| Used::of(state, opened, group)).collect();
        for block in table.clone().step_by(geometry.block_size as usize) {
            let index = (block - table.start) / u64::from(geometry.inode_size);
            compare_block(states, opened, &used, block, (group, index));
        }
    }
    let reserved = states.first().map(|state| reservations(&state.replay.overlay, opened));
    let reserved = reserved.unwrap_or_default();
    for state in states {
        state.harmed.retain(|inode| !reserved.contains(inode));
        state.cost.lost = state.cost.lost.saturating_add(state.harmed.len() as u64);
    }
}

/// Bytes of the device that differ in any state: ascending, apart from each other.
struct Changed(Vec<Range<u64>>);

impl Changed {
    fn of(states: &[State<'_>]) -> Self {
        let all = states.iter().flat_map(|state| state.replay.overlay.staged_ranges());
        let mut all: Vec<Range<u64>> = all.collect();
        all.sort_unstable_by_key(|range| range.start);
        all.dedup_by(|next, last| {
            let meets = next.start <= last.end;
            last.end = if meets { last.end.max(next.end) } else { last.end };
            meets
        });
        Self(all)
    }

    fn meets(&self, range: &Range<u64>) -> bool {
        let at = self.0.partition_point(|one| one.end <= range.start);
        self.0.get(at).is_some_and(|one| one.start < range.end)
    }
}

/// The inodes of a group that a state has in use.
struct Used {
    bitmap: Vec<u8>,
    /// Those behind are not.
    count: u32,
}

impl Used {
    fn of(state: &State<'_>, opened: &Opened, group: usize) -> Self {
        let geometry = &opened.geometry;
        let mut bitmap = vec![0; geometry.block_size as usize];
        let desc = state.groups.get(group).filter(|desc| !desc.inode_uninit());
        let desc = desc.filter(|desc| geometry.contains(desc.inode_bitmap));
        let read = desc.and_then(|desc| {
            let at = geometry.offset_bytes(desc.inode_bitmap);
            state.replay.overlay.read_at(at, &mut bitmap).ok()?;
            Some(geometry.inodes_per_group.saturating_sub(desc.itable_unused))
        });
        Self { bitmap, count: read.unwrap_or(0) }
    }

    fn has(&self, index: u64) -> bool {
        let byte = usize::try_from(index / 8).ok().and_then(|at| self.bitmap.get(at));
        index < u64::from(self.count) && byte.is_some_and(|byte| byte >> (index % 8) & 1 == 1)
    }
}

/// Compares the inodes of a block of a group's table, of which the first one has an index.
fn compare_block(
    states: &mut [State<'_>],
    opened: &Opened,
    used: &[Used],
    at: u64,
    (group, first): (usize, u64),
) {
    let geometry = &opened.geometry;
    let number = group as u64 * u64::from(geometry.inodes_per_group) + 1;
    let ages = states.iter().zip(used).map(|(state, used)| {
        let mut block = vec![0; geometry.block_size as usize];
        let read = state.replay.overlay.read_at(at, &mut block);
        let inodes = block.chunks_exact(geometry.inode_size as usize).zip(first..);
        let age = |(raw, index)| Age::of(raw, number + index, used.has(index), opened);
        read.map(|()| inodes.map(age).collect()).unwrap_or_default()
    });
    let ages: Vec<Vec<Option<Age>>> = ages.collect();
    for index in 0..(geometry.block_size / geometry.inode_size) as usize {
        let of = |state: usize| ages.get(state).and_then(|of| of.get(index)).copied().flatten();
        let newest = (0..states.len()).filter_map(of).max();
        for (nr, state) in states.iter_mut().enumerate() {
            if of(nr) < newest {
                state.older += 1;
                state.harmed.extend(u32::try_from(number + first + index as u64));
            }
        }
    }
}

/// How new an inode is: compared field by field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Age {
    /// When it was changed, or deleted: seconds since 1970, and nanoseconds.
    changed: (i64, u32),
    /// Linux counts changes in it, also those that set no time, such as blocks for content that waited in memory.
    version: u64,
    /// Such changes make it longer, also where nobody counts them.
    size_bytes: u64,
    sectors: u32,
}

impl Age {
    /// `None`: the bytes prove nothing, or are those of an inode that the bitmap does not have.
    fn of(raw: &[u8], number: u64, is_used: bool, opened: &Opened) -> Option<Self> {
        let (inode, number) = (Inode::decode(raw)?, InodeNr(u32::try_from(number).ok()?));
        let superblock = &opened.superblock;
        let has_checksum = superblock.features().metadata_csum();
        let is_proved = !has_checksum || inode.checksum_ok(superblock.seed(), number);
        if !is_proved || (inode.base.links_count > 0 && !is_used) {
            return None;
        }
        let (ctime, extra) = (inode.base.ctime, inode.extra.ctime_extra);
        let changed = (decode_seconds(ctime, extra), decode_nanoseconds(extra));
        Some(Self {
            // The list of orphans keeps small numbers there.
            changed: changed.max((i64::from(inode.base.dtime), 0)),
            version: u64::from(inode.extra.version_hi) << 32 | u64::from(inode.base.version),
            size_bytes: inode.size_bytes(),
            sectors: inode.base.blocks_lo,
        })
    }
}
