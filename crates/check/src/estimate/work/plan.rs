//! Tells the progress of a check what its phases have to do, and how that is distributed over their units.

use floe_exec::{Progress, Shape};
use floe_format::GroupNr;

use super::reads::Reads;
use super::{
    ENTRY_BYTES, Expected, Work, bitmap_work, bitmaps_read, inode_work, of_group, parts, weights,
};
use crate::checks::space::bitmaps::GROUPS_PER_UNIT;
use crate::evidence::dirs::DirRun;
use crate::scan::directory_blocks::RUNS_PER_UNIT;
use crate::volume::Volume;

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
/// how many bytes they are read ([`super::directory_reads`]), and how many of them are
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
    use crate::estimate::work::tests::run;

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
}
