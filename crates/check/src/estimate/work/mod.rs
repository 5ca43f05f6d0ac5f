//! How much work a check is, phase by phase: what its progress is measured against.
//!
//! Before any inode is read, the descriptors say how many inodes are in use, how many of them are
//! directories, and which bitmaps were written; the size of the journal is in its superblock. From
//! that follow the bytes that are read, and at how many places. Each of these has a weight in nanoseconds,
//! measured by `cargo xtask eta --weights` (docs/progress.md): of processors, and of a disk, if what is
//! read is not in memory. Only the proportions of the phases count: `floe_exec::eta` finds the pace of
//! this machine and its disk. Once all inodes are read, the blocks of directories are known and no longer
//! guessed. Blocks of maps, of which an aged file system has many, are told of as they are met ([`take_maps`]).

mod plan;
mod reads;
mod weights;

use floe_exec::{Progress, Work as Expected};
use floe_format::GroupNr;
use floe_format::features::Incompat;

use self::reads::{Reads, scattered};
use crate::checks::superblock::backups::MOST_BACKUPS;
use crate::evidence::inode_facts::CHUNK_INODES;
use crate::scan::read_ahead::is_cached;
use crate::volume::Volume;

pub use plan::{plan, plan_directories, plan_journal, plan_rest};
pub use reads::{directory_reads, take_maps};
pub use weights::{DIRECTORY_BLOCK_TIME, INODE_TIME};

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
pub(crate) const FIRST_OF_ROUND: &str = "superblock";

/// Bytes of an entry with a name of common length, with some room left in each block.
const ENTRY_BYTES: u64 = 40;

/// A source of progress for a check, or for a repair.
pub fn progress() -> Progress {
    Progress::new(&PHASES)
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
    pub(crate) fn of_shared_blocks(&self, _threads: usize) -> Expected {
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
    pub(crate) fn of_bitmaps(&self, threads: usize) -> Expected {
        let bits = times(self.slots, weights::INODE_BIT);
        let order = times(self.directories, weights::DIRECTORY);
        // Some of those of blocks and of inodes lie side by side.
        let read = self.bitmaps.iter().sum::<u64>() as f64;
        let reads = Reads { places: (read / 16.0).ceil(), bytes: read * self.block_bytes };
        reads.with(bitmap_work(self.groups, self.bitmaps) + bits + order, threads)
    }

    /// The work of connecting directories.
    pub(crate) fn of_connectivity(&self, _threads: usize) -> Expected {
        Reads::default().with(times(self.directories, weights::CONNECTION), 1)
    }

    /// The work of comparing link counts.
    pub(crate) fn of_link_counts(&self, threads: usize) -> Expected {
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

#[cfg(test)]
mod tests {
    use floe_format::{BlockNr, InodeNr};

    use crate::evidence::dirs::{DirFlags, DirRun};

    /// One block of a directory.
    pub(super) fn run(block: u64) -> DirRun {
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
}
