//! How much work a check is, phase by phase: what its progress is measured against.
//!
//! Before any inode is read, the descriptors say how many inodes are in use, how many of them are
//! directories, and which bitmaps were written; the size of the journal is in its superblock. From
//! that follow the bytes that are read, and at how many places. Each of these has a weight in nanoseconds,
//! measured by `cargo xtask eta --weights` (docs/progress.md): of processors, and of a disk, if what is
//! read is not in memory. Only the proportions of the phases count: `floe_exec::eta` finds the pace of
//! this machine and its disk. Once all inodes are read, the blocks of directories are known and no longer
//! guessed. Blocks of maps, of which an aged file system has many, are told of as they are met ([`MapReads`]).

use std::time::Duration;

use floe_exec::{Progress, Shape, Work as Expected};
use floe_format::GroupNr;
use floe_format::features::Incompat;

use crate::checks::space::bitmaps::GROUPS_PER_UNIT;
use crate::checks::superblock::backups::MOST_BACKUPS;
use crate::evidence::dirs::DirRun;
use crate::evidence::inode_facts::CHUNK_INODES;
use crate::scan::directory_blocks::{READ_BYTES, RUNS_PER_UNIT, gap_bytes_if};
use crate::scan::map_reads::{self, MapReads};
use crate::scan::read_ahead::is_cached;
use crate::volume::Volume;

/// The phases of a check, in order, as in [`crate::report::PhaseTime`]; `write` is that of a repair.
pub const PHASES: [&str; 11] = [
    "open",
    "journal",
    "superblock",
    "inodes",
    "shared blocks",
    "directories",
    "bitmaps",
    "connectivity",
    "link counts",
    "paths",
    "write",
];

/// The first phase that each round of a repair does anew.
pub const FIRST_OF_ROUND: &str = "superblock";

/// Nanoseconds of one thread, on the machine of docs/progress.md with all in the page cache.
mod weights {
    /// A group, when descriptors are read, judged, and when the claims of metadata are merged.
    pub(super) const OPEN: f64 = 650.0;
    pub(super) const DESCRIPTOR: f64 = 300.0;
    pub(super) const METADATA: f64 = 35.0;
    /// A part of an inode table that is read by itself.
    pub(super) const PART: f64 = 900.0;
    /// A slot of an inode table, used or not.
    pub(super) const SLOT: f64 = 4.0;
    /// An inode in use.
    pub(super) const INODE: f64 = 32.0;
    /// A block of a map.
    pub(super) const MAP_BLOCK: f64 = 1700.0;
    /// An entry of a directory.
    pub(super) const ENTRY: f64 = 21.0;
    /// A block of a directory.
    pub(super) const DIRECTORY_BLOCK: f64 = 330.0;
    /// A directory, when directories are put in order, and when they are counted by groups; by one thread.
    pub(super) const DIRECTORY: f64 = 9.0;
    /// A directory in the tree; by one thread.
    pub(super) const CONNECTION: f64 = 16.0;
    /// A link count compared.
    pub(super) const LINK_COUNT: f64 = 0.3;
    /// A directory, whose count is no plain one.
    pub(super) const DIRECTORY_LINKS: f64 = 9.0;
    /// A group whose bitmaps are computed.
    pub(super) const GROUP: f64 = 150.0;
    /// A bitmap of blocks, and one of inodes, that is read and compared, besides.
    pub(super) const BLOCK_BITMAP: f64 = 1150.0;
    pub(super) const INODE_BITMAP: f64 = 500.0;
    /// A bit of an inode bitmap.
    pub(super) const INODE_BIT: f64 = 0.2;
    /// A block of the journal.
    pub(super) const JOURNAL_BLOCK: f64 = 1000.0;
    /// A byte that is read, besides.
    pub(super) const BYTE: f64 = 0.1;

    /// A place of a disk that is gone to.
    pub(super) const PLACE_WAIT: f64 = 30_000.0;
    /// Tables side by side, as so many: the system begins to read ahead with little, and is waited for again.
    pub(super) const TABLES_ANEW: f64 = 2.0;
    /// One of many that the disk was told of before: as a part of that.
    pub(super) const ANNOUNCED: f64 = 0.25;
    /// A byte that a disk reads, besides.
    pub(super) const BYTE_WAIT: f64 = 0.55;
}

/// Weights of equation 1 of pFSCK for the stages of `overlap`, until the run has measured its own: an
/// inode in use with its slot and its share of a part, and a directory block with its entries where
/// files are many.
pub const INODE_TIME: Duration =
    Duration::from_nanos((weights::INODE + weights::SLOT + weights::PART / 2048.0) as u64);
/// See [`INODE_TIME`].
pub const DIRECTORY_BLOCK_TIME: Duration =
    Duration::from_nanos((weights::DIRECTORY_BLOCK + 16.0 * weights::ENTRY) as u64);

/// Bytes of an entry with a name of common length, with some room left in each block.
const ENTRY_BYTES: u64 = 40;

/// A source of progress for a check, or for a repair.
pub fn progress() -> Progress {
    Progress::new(&PHASES)
}

/// Reads from a device.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Reads {
    /// Places that do not follow each other.
    places: f64,
    /// Bytes.
    bytes: f64,
}

impl Reads {
    /// The work of reading this, and of so many nanoseconds of processors besides.
    fn with(self, nanoseconds: f64, threads: usize) -> Expected {
        use weights::{BYTE, BYTE_WAIT, PLACE_WAIT};
        // As u64: far below 2^64 for any file system.
        let time = |nanoseconds: f64| Duration::from_nanos(nanoseconds as u64);
        Expected {
            busy: time(nanoseconds + self.bytes * BYTE),
            places: time(self.places * PLACE_WAIT),
            bytes: time(self.bytes * BYTE_WAIT),
            threads,
        }
    }

    /// The same, where the device is told of many before the first is waited for.
    fn announced(self) -> Self {
        Self { places: self.places * weights::ANNOUNCED, ..self }
    }

    fn add(&mut self, other: Self) {
        self.places += other.places;
        self.bytes += other.bytes;
    }
}

/// The work of reading and following mapping blocks that were read since the last call; `None` if there were
/// none.
pub fn take_maps(reads: &mut MapReads, volume: &Volume<'_>) -> Option<Expected> {
    let MapReads { blocks, places, .. } = reads.take();
    let bytes = blocks as f64 * f64::from(volume.geometry.block_size);
    let reads = Reads { places: places as f64, bytes }.announced();
    (blocks > 0).then(|| reads.with(blocks as f64 * weights::MAP_BLOCK, 1))
}

/// The work according to the descriptors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Slots of inode tables that are read.
    pub slots: u64,
    /// Parts of tables that are read by themselves.
    pub parts: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Directories.
    pub directories: u64,
    /// Blocks of directories; a guess until all inodes are read.
    pub directory_blocks: u64,
    /// Groups.
    pub groups: u64,
    /// Bitmaps that are read, of blocks and of inodes.
    pub bitmaps: [u64; 2],
    block_bytes: f64,
    descriptors: Reads,
    /// Copies of the superblock, and the descriptors behind the first.
    backups: Reads,
    tables: Reads,
    /// A guess until all inodes are read.
    directory_reads: Reads,
}

/// The work in one group: slots, inodes in use, directories among them. Values of a damaged
/// descriptor are limited to the size of a group.
fn of_group(volume: &Volume<'_>, group: GroupNr) -> (u64, u64, u64) {
    let desc = volume.group(group);
    let slots = if desc.inode_table.0 == 0 { 0 } else { volume.used_inodes_bound(group) };
    let per_group = volume.geometry.inodes_per_group;
    let used = per_group.saturating_sub(desc.free_inodes_count).min(slots);
    let directories = desc.used_dirs_count.min(used);
    (u64::from(slots), u64::from(used), u64::from(directories))
}

/// Parts in which so many slots are read.
fn parts(slots: u64) -> u64 {
    slots.div_ceil(u64::from(CHUNK_INODES))
}

/// Groups whose tables lie side by side, and whose files are allocated together.
fn groups_together(volume: &Volume<'_>) -> u32 {
    let log = volume.superblock.log_groups_per_flex;
    if volume.has_incompat(Incompat::FLEX_BG) { 1 << log.min(20) } else { 1 }
}

/// Whether the file system seems to be in memory, by three tables that have directories.
fn tables_at_hand(volume: &Volume<'_>) -> bool {
    let count = volume.geometry.group_count;
    let table = |group| {
        let desc = volume.group(GroupNr(group));
        (desc.used_dirs_count > 0 && desc.inode_table.0 != 0).then_some(desc.inode_table)
    };
    let tables = [
        (0..count).find_map(table),
        (count / 2..count).find_map(table),
        (0..count).rev().find_map(table),
    ];
    tables.into_iter().flatten().all(|table| is_cached(volume, table))
}

/// Estimated reads of `wanted` directory blocks scattered at random among `used` blocks, given the
/// average number of blocks near enough to each other to be read together.
fn scattered(wanted: f64, used: f64, block_bytes: f64, at_hand: bool) -> Reads {
    let (most, gap) = reach(block_bytes, at_hand);
    let density = (wanted / used.max(wanted).max(1.0)).min(1.0);
    // The next wanted block is so many blocks further with this chance; and how far it is on average
    // where both are read together.
    let chance = |blocks: u32| density * (1.0 - density).powf(f64::from(blocks) - 1.0);
    let near = 1..=gap as u32 + 1;
    let joined = near.clone().map(chance).sum::<f64>().min(1.0);
    let step = near.map(|blocks| f64::from(blocks) * chance(blocks)).sum::<f64>()
        / joined.max(f64::MIN_POSITIVE);
    // Wanted blocks of a read: until the next one is too far away, or there is no more room.
    let room = (most / step.max(1.0)).max(1.0);
    let each = if joined < 1.0 { (1.0 - joined.powf(room)) / (1.0 - joined) } else { room };
    let reads = wanted / each;
    let bytes = (wanted + (wanted - reads) * (step - 1.0).max(0.0)) * block_bytes;
    let places = wanted * (1.0 - density).powf(NEAR_BYTES / block_bytes.max(1.0));
    Reads { places: places.max(wanted.min(1.0)), bytes }
}

/// See [`map_reads::NEAR_BYTES`].
const NEAR_BYTES: f64 = map_reads::NEAR_BYTES as f64;

/// Blocks of one read of directories at most, and blocks between two that are read together.
fn reach(block_bytes: f64, at_hand: bool) -> (f64, f64) {
    let block_bytes = block_bytes.max(1.0);
    let gap_bytes = f64::from(gap_bytes_if(at_hand));
    ((f64::from(READ_BYTES) / block_bytes).max(1.0), (gap_bytes / block_bytes).floor())
}

/// Reads of directories whose blocks are known, in disk order; from the page cache if `at_hand`.
pub fn directory_reads<'r>(
    runs: impl Iterator<Item = &'r DirRun>,
    block_bytes: u32,
    at_hand: bool,
) -> (f64, f64) {
    let block_bytes = f64::from(block_bytes);
    let (most, gap) = reach(block_bytes, at_hand);
    let near = NEAR_BYTES / block_bytes.max(1.0);
    let mut all = Reads::default();
    // The read that is being made: where it begins and ends.
    let (mut begin, mut end) = (0.0, f64::NEG_INFINITY);
    for run in runs {
        let (start, after) = (run.block.0 as f64, run.block.0 as f64 + f64::from(run.len_blocks));
        if start - end > gap || after - begin > most {
            all.places += if start - end > near { 1.0 } else { 0.0 };
            begin = start;
        } else {
            all.bytes += (start - end).max(0.0) * block_bytes;
        }
        all.bytes += (after - start) * block_bytes;
        end = after;
    }
    (all.places, all.bytes)
}

impl Work {
    /// The work according to the descriptors of a volume.
    pub fn of(volume: &Volume<'_>) -> Self {
        let geometry = &volume.geometry;
        let block_bytes = f64::from(geometry.block_size);
        let mut work = Self {
            groups: u64::from(geometry.group_count),
            block_bytes,
            descriptors: Reads {
                places: 1.0,
                bytes: f64::from(geometry.group_count) * f64::from(geometry.desc_size),
            },
            ..Self::default()
        };
        let backups = (1..geometry.group_count)
            .filter(|group| geometry.superblock_of(GroupNr(*group)).is_some());
        let backups = backups.take(MOST_BACKUPS).count() as f64;
        let bytes = work.descriptors.bytes * backups.min(1.0);
        work.backups = Reads { places: backups, bytes };
        let together = groups_together(volume);
        let at_hand = tables_at_hand(volume);
        for first in (0..geometry.group_count).step_by(together as usize) {
            let (mut in_use, mut inodes, mut directories) = (0.0, 0, 0);
            let groups = first..geometry.group_count.min(first.saturating_add(together));
            let own = f64::from(geometry.inode_table_blocks) + 2.0;
            for group in groups.map(GroupNr) {
                let (slots, used, dirs) = of_group(volume, group);
                work.slots += slots;
                work.parts += parts(slots);
                let [blocks, inodes_of_group] = bitmaps_read(volume, group);
                work.bitmaps[0] += blocks;
                work.bitmaps[1] += inodes_of_group;
                let table = slots as f64 * f64::from(geometry.inode_size);
                // Where all of a table is read, that of the next group follows.
                let bound = u64::from(geometry.inodes_per_group);
                work.tables.bytes += table;
                work.tables.places += if slots == 0 || slots == bound { 0.0 } else { 1.0 };
                inodes += used;
                directories += dirs;
                let clusters = f64::from(geometry.clusters_of(group));
                let free = f64::from(volume.group(group).free_blocks_count).min(clusters);
                in_use += (clusters - free) * f64::from(geometry.cluster_blocks) - own;
            }
            work.tables.places += if inodes > 0 { weights::TABLES_ANEW } else { 0.0 };
            work.inodes += inodes;
            work.directories += directories;
            let full_blocks = inodes * ENTRY_BYTES / u64::from(geometry.block_size);
            let blocks = directories.max(full_blocks * u64::from(directories > 0));
            work.directory_blocks += blocks;
            work.directory_reads.add(scattered(blocks as f64, in_use, block_bytes, at_hand));
        }
        work
    }

    /// The same, with directories that are known: so many blocks, read at so many places.
    fn with_directories(self, blocks: u64, (places, bytes): (f64, f64)) -> Self {
        Self { directory_blocks: blocks, directory_reads: Reads { places, bytes }, ..self }
    }

    /// The work of reading the descriptors.
    fn of_opening(&self) -> Expected {
        self.descriptors.with(times(self.groups, weights::OPEN), 1)
    }

    /// The work of judging the superblock, the descriptors and their copies.
    pub fn of_superblock(&self, _threads: usize) -> Expected {
        self.backups.with(times(self.groups, weights::DESCRIPTOR), 1)
    }

    /// The work of reading and judging all inodes.
    pub fn of_inodes(&self, threads: usize) -> Expected {
        self.tables.with(inode_work(self.slots, self.parts, self.inodes), threads)
    }

    /// The work of merging claims and putting directories in order.
    pub fn of_shared_blocks(&self, _threads: usize) -> Expected {
        let order = times(self.directories, weights::DIRECTORY);
        Reads::default().with(times(self.groups, weights::METADATA) + order, 1)
    }

    /// The work of reading and judging all directory blocks.
    pub fn of_directories(&self, threads: usize) -> Expected {
        // Every inode in use has a name.
        let entries = times(self.inodes, weights::ENTRY);
        let blocks = times(self.directory_blocks, weights::DIRECTORY_BLOCK);
        self.directory_reads.announced().with(entries + blocks, threads)
    }

    /// The work of comparing bitmaps.
    pub fn of_bitmaps(&self, threads: usize) -> Expected {
        let bits = times(self.slots, weights::INODE_BIT);
        let order = times(self.directories, weights::DIRECTORY);
        // Some of those of blocks and of inodes lie side by side.
        let read = self.bitmaps.iter().sum::<u64>() as f64;
        let reads = Reads { places: (read / 16.0).ceil(), bytes: read * self.block_bytes };
        reads.with(bitmap_work(self.groups, self.bitmaps) + bits + order, threads)
    }

    /// The work of connecting directories.
    pub fn of_connectivity(&self, _threads: usize) -> Expected {
        Reads::default().with(times(self.directories, weights::CONNECTION), 1)
    }

    /// The work of comparing link counts.
    pub fn of_link_counts(&self, threads: usize) -> Expected {
        let directories = times(self.directories, weights::DIRECTORY_LINKS);
        Reads::default().with(times(self.slots, weights::LINK_COUNT) + directories, threads)
    }

    /// Number of objects in a phase; [`noun`] names them.
    fn objects(&self, phase: &str) -> u64 {
        match phase {
            "inodes" => self.inodes,
            "directories" => self.directory_blocks,
            "connectivity" => self.directories,
            "link counts" => self.slots,
            "bitmaps" => self.groups,
            _ => 0,
        }
    }
}

/// The noun for the objects that a phase counts; `None` if the count would not interest a person.
pub fn noun(phase: &str) -> Option<&'static str> {
    Some(match phase {
        "journal" => "blocks of the log",
        "inodes" => "inodes",
        "directories" => "directory blocks",
        "connectivity" => "directories",
        "link counts" => "link counts",
        "bitmaps" => "groups",
        "write" => "bytes",
        _ => return None,
    })
}

/// Nanoseconds of so many things.
fn times(count: u64, weight: f64) -> f64 {
    count as f64 * weight
}

fn inode_work(slots: u64, parts: u64, inodes: u64) -> f64 {
    use weights::{INODE, PART, SLOT};
    slots as f64 * SLOT + parts as f64 * PART + inodes as f64 * INODE
}

fn bitmap_work(groups: u64, [of_blocks, of_inodes]: [u64; 2]) -> f64 {
    use weights::{BLOCK_BITMAP, GROUP, INODE_BITMAP};
    groups as f64 * GROUP + of_blocks as f64 * BLOCK_BITMAP + of_inodes as f64 * INODE_BITMAP
}

/// How many bitmaps of a group are read, of blocks and of inodes.
fn bitmaps_read(volume: &Volume<'_>, group: GroupNr) -> [u64; 2] {
    volume.bitmaps_read(group).map(|bitmap| u64::from(bitmap.is_some()))
}

/// Says in `progress` what is to be done, before the first inode is read. Where passes overlap, directories
/// are part of the phase of the inodes.
pub fn plan(
    progress: &Progress,
    volume: &Volume<'_>,
    estimates: impl Iterator<Item = (&'static str, fn(&Work, usize) -> Expected)>,
    threads: usize,
    overlap: bool,
) {
    let work = Work::of(volume);
    let of_passes = estimates.map(|(name, estimate)| (name, estimate(&work, threads)));
    for (name, phase_work) in [("open", work.of_opening())].into_iter().chain(of_passes) {
        let phase_work = match name {
            "inodes" if overlap => {
                let of_directories = work.of_directories(threads);
                Expected {
                    busy: phase_work.busy + of_directories.busy,
                    places: phase_work.places + of_directories.places,
                    bytes: phase_work.bytes + of_directories.bytes,
                    threads,
                }
            }
            "directories" if overlap => Expected::default(),
            _ => phase_work,
        };
        let shape = match name {
            "inodes" => inode_shape(volume),
            "bitmaps" => bitmap_shape(volume),
            _ => Shape::default(),
        };
        if let Some(phase) = progress.named(name) {
            phase.plan(phase_work, work.objects(name), shape);
        }
    }
}

/// Says how many blocks of directories there are, once all inodes are read, at how many places and with
/// how many bytes they are read ([`directory_reads`]), and how many of them are
/// `left`: the others were judged along with the inodes, or by a run that was ended. They are in the runs of
/// `rest`.
pub fn plan_directories(
    progress: &Progress,
    volume: &Volume<'_>,
    (directory_blocks, left): (u64, u64),
    reads: (f64, f64),
    threads: usize,
    rest: &[DirRun],
) {
    let work = Work::of(volume).with_directories(directory_blocks, reads);
    if let Some(phase) = progress.named("directories") {
        let share = left as f64 / directory_blocks.max(1) as f64;
        phase.plan(work.of_directories(threads).part(share), left, directory_shape(&work, rest));
    }
}

/// Where the work of directories is, in the order in which they are read: blocks of large directories are
/// full of entries, and often lie together.
fn directory_shape(work: &Work, runs: &[DirRun]) -> Shape {
    let is_large = |run: &DirRun| run.len_blocks > 1 || run.logical > 0;
    let blocks = |run: &DirRun| f64::from(run.len_blocks);
    let large: f64 = runs.iter().filter(|run| is_large(run)).map(blocks).sum();
    let small = runs.iter().map(blocks).sum::<f64>() - large;
    let entries = work.inodes as f64;
    let of_large = (work.block_bytes / ENTRY_BYTES as f64).min(entries / large.max(1.0));
    let of_small = (entries - of_large * large).max(0.0) / small.max(1.0);
    let read = work.directory_reads.bytes / (work.directory_blocks as f64).max(1.0);
    Shape::of(runs.chunks(RUNS_PER_UNIT).map(|unit| {
        let unit = unit.iter().filter(|run| !run.judged).map(|run| {
            let entries = if is_large(run) { of_large } else { of_small };
            let block = weights::DIRECTORY_BLOCK + read * weights::BYTE + entries * weights::ENTRY;
            blocks(run) * block
        });
        // Below 2^64 by far.
        (1, unit.sum::<f64>() as u64)
    }))
}

/// Says that the first `done` parts of the inode tables were read before, by a run that was ended.
pub fn plan_rest(progress: &Progress, volume: &Volume<'_>, done: usize, threads: usize) {
    let Some(phase) = progress.named("inodes") else { return };
    let (mut skip, mut read, mut objects) = (done as u64, 0.0, 0.0);
    let (mut nanoseconds, work) = (0.0, Work::of(volume));
    let groups = (0..volume.geometry.group_count).map(GroupNr);
    let left: Vec<(u64, u64)> = groups
        .map(|group| {
            let (slots, inodes, _) = of_group(volume, group);
            let parts = parts(slots);
            let skipped = skip.min(parts);
            skip -= skipped;
            let share = (parts - skipped) as f64 / parts.max(1) as f64;
            let work = inode_work(slots, parts, inodes) * share;
            nanoseconds += work;
            objects += inodes as f64 * share;
            read += slots as f64 * share;
            // Below 2^64 by far.
            (parts - skipped, work as u64)
        })
        .collect();
    let share = read / work.slots.max(1) as f64;
    let Reads { places, bytes } = work.tables;
    let reads = Reads { places: places * share, bytes: bytes * share };
    phase.plan(reads.with(nanoseconds, threads), objects as u64, Shape::of(left.into_iter()));
}

/// Says how long the log of a journal is that is replayed, in blocks.
pub fn plan_journal(progress: &Progress, log_blocks: u32, block_bytes: u32) {
    if let Some(phase) = progress.named("journal") {
        let blocks = f64::from(log_blocks);
        let reads = Reads { places: 1.0, bytes: blocks * f64::from(block_bytes) };
        let work = reads.with(blocks * weights::JOURNAL_BLOCK, 1);
        phase.plan(work, u64::from(log_blocks), Shape::default());
        phase.expect(u64::from(log_blocks));
    }
}

/// Where in the inode tables the work is: parts of tables are done in the order of their groups.
fn inode_shape(volume: &Volume<'_>) -> Shape {
    let groups = 0..volume.geometry.group_count;
    Shape::of(groups.map(|group| {
        let (slots, inodes, _) = of_group(volume, GroupNr(group));
        let parts = parts(slots);
        // Below 2^64 by far.
        (parts, inode_work(slots, parts, inodes) as u64)
    }))
}

/// Where the work of the bitmaps is: many groups of a large file system never had any.
fn bitmap_shape(volume: &Volume<'_>) -> Shape {
    let count = volume.geometry.group_count;
    let units = 0..count.div_ceil(GROUPS_PER_UNIT) as usize;
    Shape::of(units.map(|unit| {
        // Below the number of groups.
        let first = unit as u32 * GROUPS_PER_UNIT;
        let groups = first..count.min(first.saturating_add(GROUPS_PER_UNIT));
        let all = u64::from(groups.end - groups.start);
        let read = groups.map(|group| bitmaps_read(volume, GroupNr(group)));
        let read = read.fold([0, 0], |all, more| [all[0] + more[0], all[1] + more[1]]);
        // Below 2^64 by far.
        (1, bitmap_work(all, read) as u64)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::dirs::DirFlags;
    use floe_format::BlockNr;
    use floe_format::InodeNr;

    fn run(block: u64) -> DirRun {
        DirRun {
            block: BlockNr(block),
            dir: InodeNr(12),
            generation: 0,
            logical: 0,
            len_blocks: 1,
            flags: DirFlags::empty(),
            judged: false,
        }
    }

    #[test]
    fn large_directories_are_most_of_the_work_where_they_lie() {
        // One of 100 blocks, then 12,800 of a block each; as many entries as inodes in use.
        let mut runs = vec![DirRun { len_blocks: 100, ..run(1000) }];
        runs.extend((0..12_799).map(|at| run(5000 + 2 * at)));
        let work = Work {
            inodes: 23_000,
            directory_blocks: 12_899,
            block_bytes: 4096.0,
            ..Work::default()
        };
        let shape = directory_shape(&work, &runs);
        let (first, half) = (shape.share(1), shape.share(50));
        // 100 full blocks and 127 others, of 100 and 12,799.
        assert!(first > 0.05 && first < 0.1, "{first}");
        assert!(half > 0.52 && half < 0.56, "{half}");
        assert_eq!(directory_shape(&work, &[]), Shape::default());
    }

    #[test]
    fn reads_of_directories_are_guessed_as_they_will_be() {
        // Blocks that lie anywhere: one in so many is a directory's, by a rule that looks random.
        for one_in in [2u64, 3, 5, 20, 100] {
            let is_wanted = |block: &u64| {
                let mixed = block.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                mixed >> 40 < (1 << 24) / one_in
            };
            let wanted: Vec<DirRun> = (0..200_000).filter(is_wanted).map(run).collect();
            let guess = scattered(wanted.len() as f64, 200_000.0, 4096.0, false);
            let (places, bytes) = directory_reads(wanted.iter(), 4096, false);
            let off = (guess.places - places).abs();
            // Where nearly all lie near each other, the few others are a matter of luck.
            let few = wanted.len() as f64 / 1000.0;
            assert!(off < 0.1 * places + few, "{one_in}: {guess:?} {places}");
            assert!((guess.bytes / bytes - 1.0).abs() < 0.1, "{one_in}: {guess:?} {bytes}");
        }
        // All of them, one after the other.
        let all: Vec<DirRun> = (0..8000).map(run).collect();
        assert_eq!(directory_reads(all.iter(), 4096, false), (1.0, 8000.0 * 4096.0));
        let guess = scattered(8000.0, 8000.0, 4096.0, false);
        assert_eq!((guess.places, guess.bytes), (1.0, 8000.0 * 4096.0));
        let none = scattered(0.0, 0.0, 4096.0, false);
        assert_eq!((none.places, none.bytes), (0.0, 0.0));
    }
}
