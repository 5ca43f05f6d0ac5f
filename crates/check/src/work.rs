//! How much work a check is, phase by phase: what its progress is measured against.
//!
//! Before any inode is read, the descriptors say how many inodes are in use, how many of them are
//! directories, and which bitmaps were written; the size of the journal is in its superblock. Each
//! of these has a weight in nanoseconds, measured by `cargo xtask eta --weights` (docs/progress.md).
//! Only the proportions of the phases count: `floe_exec::eta` finds the pace of this machine and its
//! disk. Once all inodes are read, the blocks of directories are known and no longer guessed.

use std::time::Duration;

use floe_exec::{Progress, Shape};
use floe_format::GroupNr;

use crate::evidence::inode_facts::CHUNK_INODES;
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
    pub(super) const OPEN: f64 = 390.0;
    pub(super) const DESCRIPTOR: f64 = 1550.0;
    pub(super) const METADATA: f64 = 100.0;
    /// A part of an inode table that is read by itself.
    pub(super) const PART: f64 = 8000.0;
    /// A slot of an inode table, used or not.
    pub(super) const SLOT: f64 = 15.0;
    /// An inode in use.
    pub(super) const INODE: f64 = 205.0;
    /// An entry of a directory.
    pub(super) const ENTRY: f64 = 65.0;
    /// A block of a directory.
    pub(super) const DIRECTORY_BLOCK: f64 = 2550.0;
    /// A directory in the tree; by one thread.
    pub(super) const CONNECTION: f64 = 20.0;
    /// A link count compared.
    pub(super) const LINK_COUNT: f64 = 5.0;
    /// A group whose bitmaps are computed.
    pub(super) const GROUP: f64 = 1500.0;
    /// Bitmaps that are read and compared, besides.
    pub(super) const BITMAPS: f64 = 5000.0;
    /// A bit of an inode bitmap.
    pub(super) const INODE_BIT: f64 = 1.0;
    /// A block of the journal.
    pub(super) const JOURNAL_BLOCK: f64 = 1000.0;
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

/// What the descriptors say of the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// Groups whose bitmaps are read.
    pub bitmaps: u64,
}

/// The work in one group: slots, inodes in use, directories among them. What a damaged descriptor
/// says is cut to what a group can hold.
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

impl Work {
    /// What the descriptors of a volume say.
    pub fn of(volume: &Volume<'_>) -> Self {
        let mut work = Self { groups: u64::from(volume.geometry.group_count), ..Self::default() };
        for group in (0..volume.geometry.group_count).map(GroupNr) {
            let (slots, inodes, directories) = of_group(volume, group);
            work.slots += slots;
            work.parts += parts(slots);
            work.inodes += inodes;
            work.directories += directories;
            work.bitmaps += u64::from(!volume.block_bitmap_computed(group));
        }
        let full_blocks = work.inodes * ENTRY_BYTES / u64::from(volume.geometry.block_size);
        work.directory_blocks = work.directories.max(full_blocks);
        work
    }

    /// The time of each phase that is known before it begins, with so many threads.
    pub fn times(&self, threads: usize) -> [(&'static str, Duration); 8] {
        use weights::{
            BITMAPS, CONNECTION, DESCRIPTOR, DIRECTORY_BLOCK, ENTRY, GROUP, INODE_BIT, LINK_COUNT,
            METADATA, OPEN,
        };
        let times = |count: u64, weight: f64| count as f64 * weight;
        let inodes = inode_work(self.slots, self.parts, self.inodes);
        // Every inode in use has a name.
        let directories = times(self.inodes, ENTRY) + times(self.directory_blocks, DIRECTORY_BLOCK);
        let bitmaps =
            times(self.groups, GROUP) + times(self.bitmaps, BITMAPS) + times(self.slots, INODE_BIT);
        let shared = |nanoseconds: f64| nanoseconds / threads.max(1) as f64;
        [
            ("open", times(self.groups, OPEN)),
            ("superblock", times(self.groups, DESCRIPTOR)),
            ("shared blocks", times(self.groups, METADATA)),
            ("inodes", shared(inodes)),
            ("directories", shared(directories)),
            ("connectivity", times(self.directories, CONNECTION)),
            ("link counts", shared(times(self.slots, LINK_COUNT))),
            ("bitmaps", shared(bitmaps)),
        ]
        // As u64: far below 2^64 for any file system.
        .map(|(name, nanoseconds)| (name, Duration::from_nanos(nanoseconds as u64)))
    }

    /// What people count in a phase; see [`noun`].
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

/// What is counted in a phase; `None`: nothing that a person would want to know.
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

fn inode_work(slots: u64, parts: u64, inodes: u64) -> f64 {
    use weights::{INODE, PART, SLOT};
    slots as f64 * SLOT + parts as f64 * PART + inodes as f64 * INODE
}

/// Says in `progress` what is to be done, before the first inode is read. Where passes overlap, directories
/// are part of the phase of the inodes.
pub fn plan(progress: &Progress, volume: &Volume<'_>, threads: usize, overlap: bool) {
    let work = Work::of(volume);
    let times = work.times(threads);
    let of_directories = times.iter().find(|(name, _)| *name == "directories");
    let of_directories = of_directories.map_or(Duration::ZERO, |(_, time)| *time);
    for (name, time) in times {
        let time = match name {
            "inodes" if overlap => time + of_directories,
            "directories" if overlap => Duration::ZERO,
            _ => time,
        };
        let shape = match name {
            "inodes" => inode_shape(volume),
            _ => Shape::default(),
        };
        if let Some(phase) = progress.named(name) {
            let objects = work.objects(name);
            phase.plan(time, objects, shape);
        }
    }
}

/// Says how many blocks of directories there are, once all inodes are read, and how many of them are
/// `left`: the others were judged along with the inodes, or by a run that was ended.
pub fn plan_directories(
    progress: &Progress,
    volume: &Volume<'_>,
    directory_blocks: u64,
    left: u64,
    threads: usize,
) {
    let work = Work { directory_blocks, ..Work::of(volume) };
    let time = work.times(threads).into_iter().find(|(name, _)| *name == "directories");
    if let (Some(phase), Some((_, time))) = (progress.named("directories"), time) {
        let share = left as f64 / directory_blocks.max(1) as f64;
        phase.plan(time.mul_f64(share), left, Shape::default());
    }
}

/// Says that the first `done` parts of the inode tables were read before, by a run that was ended.
pub fn plan_rest(progress: &Progress, volume: &Volume<'_>, done: usize, threads: usize) {
    let Some(phase) = progress.named("inodes") else { return };
    let (mut skip, mut nanoseconds, mut objects) = (done as u64, 0.0, 0.0);
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
            // Below 2^64 by far.
            (parts - skipped, work as u64)
        })
        .collect();
    let time = Duration::from_nanos((nanoseconds / threads.max(1) as f64) as u64);
    phase.plan(time, objects as u64, Shape::of(left.into_iter()));
}

/// Says how long the log of a journal is that is replayed, in blocks.
pub fn plan_journal(progress: &Progress, log_blocks: u32) {
    if let Some(phase) = progress.named("journal") {
        let nanoseconds = f64::from(log_blocks) * weights::JOURNAL_BLOCK;
        let time = Duration::from_nanos(nanoseconds as u64);
        phase.plan(time, u64::from(log_blocks), Shape::default());
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
