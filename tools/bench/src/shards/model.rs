//! `cargo xtask shards --model`: costs of groups, files and directories, fitted to counts of four images, and extended to
//! a file system that no machine here could hold.
//!
//! A shard does something once (`fixed`), something for each group of the file system (descriptors), and its share of the
//! work on groups, files and directories in use. The merge does something once, and something for each group, file and
//! directory. Each of these costs is a number of instructions (callgrind), of bytes read (strace), or of bytes of parts.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use floe_workload::fill::{Shape, fill_of};

use super::{InShards, arguments, in_shards};
use crate::bench::kept;
use crate::measure::measure;

/// The file system to extend the counts to.
#[derive(clap::Args)]
pub(super) struct Large {
    /// Groups: by default those of 1 PiB with blocks of 4 KiB
    #[arg(long, default_value_t = 1 << 23, requires = "model")]
    groups: u64,
    /// Files
    #[arg(long, default_value_t = 600_000_000, requires = "model")]
    files: u64,
    /// Directories
    #[arg(long, default_value_t = 12_000_000, requires = "model")]
    directories: u64,
    /// Machines, one shard each
    #[arg(long, default_value_t = 64, requires = "model")]
    machines: u64,
}

/// Shards of the second measurement of each image; the first one has one.
const SHARDS: u32 = 4;

/// How many of each kind an image has.
#[derive(Clone, Copy)]
struct Counts {
    groups: f64,
    files: f64,
    directories: f64,
}

/// One kind of cost, for each of [`Counts`] and once.
#[derive(Clone, Copy)]
struct Costs {
    fixed: f64,
    group: f64,
    file: f64,
    directory: f64,
}

impl Costs {
    /// The costs that four measurements have.
    fn of(images: &[Counts; 4], measured: [f64; 4]) -> Result<Self> {
        let row = |at: usize| {
            let Counts { groups, files, directories } = images[at];
            [1.0, groups, files, directories, measured[at]]
        };
        let [fixed, group, file, directory] = solve([row(0), row(1), row(2), row(3)])?;
        Ok(Self { fixed, group, file, directory })
    }

    fn of_all(&self, counts: Counts) -> f64 {
        let Counts { groups, files, directories } = counts;
        self.fixed + self.group * groups + self.file * files + self.directory * directories
    }

    fn print(&self, name: &str) {
        let Self { fixed, group, file, directory } = self;
        println!("| {name} | {fixed:.0} | {group:.1} | {file:.2} | {directory:.1} |");
    }
}

/// Solves four linear equations, whose right sides are the last column.
fn solve(mut rows: [[f64; 5]; 4]) -> Result<[f64; 4]> {
    for at in 0..4 {
        let best = (at..4).max_by(|&a, &b| rows[a][at].abs().total_cmp(&rows[b][at].abs()));
        rows.swap(at, best.context("four rows")?);
        ensure!(rows[at][at] != 0.0, "the images do not tell the costs apart");
        for other in 0..4 {
            let factor = rows[other][at] / rows[at][at];
            if other != at && factor != 0.0 {
                let row = rows[at];
                rows[other].iter_mut().zip(row).for_each(|(cell, of)| *cell -= factor * of);
            }
        }
    }
    Ok(std::array::from_fn(|at| rows[at][4] / rows[at][at]))
}

/// The work of all shards together in two ways to share: from it follows the work that each shard repeats.
#[derive(Clone, Copy)]
struct Shared {
    /// The work that every shard does, whatever its share.
    each: Costs,
    /// The work that is shared.
    all: Costs,
}

impl Shared {
    fn of(images: &[Counts; 4], one: [f64; 4], several: [f64; 4]) -> Result<Self> {
        let more = f64::from(SHARDS) - 1.0;
        let repeated: [f64; 4] = std::array::from_fn(|at| (several[at] - one[at]) / more);
        let shared = std::array::from_fn(|at| one[at] - repeated[at]);
        Ok(Self { each: Costs::of(images, repeated)?, all: Costs::of(images, shared)? })
    }

    fn of_one(&self, large: Counts, machines: f64) -> f64 {
        self.each.of_all(large) + self.all.of_all(large) / machines
    }

    fn print(&self, name: &str) {
        self.each.print(&format!("{name}, of every shard"));
        self.all.print(&format!("{name}, shared"));
    }
}

/// An image, its counts and its measurements with one shard and with several.
struct Measured {
    counts: Counts,
    one: InShards,
    several: InShards,
}

/// Runs the command.
pub(super) fn run(floe: &Path, folder: &Path, large: &Large) -> Result<()> {
    let (few, many) = (32u64 << 30, 1u64 << 40);
    let shape =
        |dirs, files_per_dir, size_bytes| Shape { dirs, files_per_dir, file_blocks: 1, size_bytes };
    let shapes = [
        ("few", shape(100, 99, few)),
        ("groups", shape(4_000, 99, many)),
        ("files", shape(4_000, 99, few)),
        ("directories", shape(200_000, 1, few)),
    ];
    let mut all = Vec::new();
    for (name, shape) in shapes {
        all.push(measured(floe, &folder.join(format!("model-{name}.img")), shape)?);
    }
    let all: [Measured; 4] = all.try_into().ok().context("four images")?;
    let speed = speed(floe, &folder.join("model-files.img"), &all[2])?;
    report(&all, large, speed)
}

fn measured(floe: &Path, image: &Path, shape: Shape) -> Result<Measured> {
    // Room for twice the inodes, so that with many groups each has a few in use.
    kept(image, |path| fill_of(path, shape, u64::from(shape.inodes()?) * 2).map(drop))?;
    let counts = Counts {
        groups: (shape.size_bytes >> 27) as f64,
        files: f64::from(shape.dirs) * f64::from(shape.files_per_dir),
        directories: f64::from(shape.dirs),
    };
    let (one, several) = (in_shards(floe, image, 1)?, in_shards(floe, image, SHARDS)?);
    Ok(Measured { counts, one, several })
}

/// Instructions that one core of this machine executes in a second of a shard, in user and system mode.
fn speed(floe: &Path, image: &Path, of: &Measured) -> Result<f64> {
    let folder = tempfile::tempdir()?;
    let part = folder.path().join("part");
    let options = ["--shard".into(), "0/1".into(), "--out".into(), part.into()];
    let words = arguments(image, &options);
    let words = std::iter::once(floe.as_os_str()).chain(words.iter().map(|word| &**word));
    let command: Vec<String> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    // The first run warms the cache.
    measure(&command)?;
    let cost = measure(&command)?;
    ensure!(cost.exit == 0, "the shard ended with {}", cost.exit);
    Ok(of.one.all.instructions as f64 / cost.cpu)
}

fn report(all: &[Measured; 4], large: &Large, speed: f64) -> Result<()> {
    let images = all.each_ref().map(|of| of.counts);
    let shared = |of: fn(&InShards) -> u64| {
        let counts =
            |which: fn(&Measured) -> &InShards| all.each_ref().map(|it| of(which(it)) as f64);
        Shared::of(&images, counts(|it| &it.one), counts(|it| &it.several))
    };
    let merge = |of: fn(&InShards) -> u64| {
        Costs::of(&images, all.each_ref().map(|it| of(&it.several) as f64))
    };
    let (work, reads) = (shared(|of| of.all.instructions)?, shared(|of| of.all.bytes_read)?);
    let parts = shared(|of| of.part_bytes)?;
    let (merging, merge_reads) =
        (merge(|of| of.merge.instructions)?, merge(|of| of.merge.bytes_read)?);
    println!("| cost | once | a group | a file | a directory |\n|---|---:|---:|---:|---:|");
    work.print("instructions");
    reads.print("bytes read");
    parts.print("bytes of parts");
    merging.print("instructions of the merge");
    merge_reads.print("bytes read by the merge");
    let counts = Counts {
        groups: large.groups as f64,
        files: large.files as f64,
        directories: large.directories as f64,
    };
    let machines = large.machines as f64;
    let Large { groups, files, directories, machines: count } = large;
    println!("\n{groups} groups, {files} files, {directories} directories, {count} machines:");
    let seconds = |instructions: f64| instructions / speed;
    let of_shard = work.of_one(counts, machines);
    println!(
        "each shard: {:.1} G instructions, {:.1} s of a core that does {:.2} G a second",
        of_shard / 1e9,
        seconds(of_shard),
        speed / 1e9
    );
    println!("each shard reads {:.1} GB", reads.of_one(counts, machines) / 1e9);
    let all_parts = parts.of_one(counts, machines) * machines;
    println!("parts together: {:.2} GiB", all_parts / f64::from(1 << 30));
    let of_merge = merging.of_all(counts);
    println!(
        "merge: {:.1} G instructions, {:.1} s; reads {:.2} GB",
        of_merge / 1e9,
        seconds(of_merge),
        merge_reads.of_all(counts) / 1e9
    );
    let inodes = counts.files + counts.directories;
    let network =
        reads.of_one(counts, machines) * machines + all_parts * 2.0 + merge_reads.of_all(counts);
    println!("bytes through the network: {:.0} for each inode in use", network / inodes);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const IMAGES: [Counts; 4] = [
        Counts { groups: 256.0, files: 9_900.0, directories: 100.0 },
        Counts { groups: 8192.0, files: 396_000.0, directories: 4_000.0 },
        Counts { groups: 256.0, files: 396_000.0, directories: 4_000.0 },
        Counts { groups: 256.0, files: 200_000.0, directories: 200_000.0 },
    ];

    #[test]
    fn costs_are_those_that_were_counted() {
        let costs = Costs { fixed: 5e6, group: 4321.0, file: 900.5, directory: 4000.0 };
        let found = Costs::of(&IMAGES, IMAGES.map(|of| costs.of_all(of))).unwrap();
        assert!((found.fixed - 5e6).abs() < 1.0 && (found.group - 4321.0).abs() < 1e-3);
        assert!((found.file - 900.5).abs() < 1e-4 && (found.directory - 4000.0).abs() < 1e-3);
        assert!(Costs::of(&[IMAGES[0]; 4], [1.0; 4]).is_err());
    }

    #[test]
    fn every_shard_reads_all_descriptors() {
        let each = Costs { fixed: 7.0, group: 64.0, file: 0.0, directory: 0.0 };
        let all = Costs { fixed: 11.0, group: 8192.0, file: 256.0, directory: 4352.0 };
        let with = |shards: f64| IMAGES.map(|of| shards * each.of_all(of) + all.of_all(of));
        let shared = Shared::of(&IMAGES, with(1.0), with(f64::from(SHARDS))).unwrap();
        let one = shared.of_one(IMAGES[1], 16.0);
        assert!((one - each.of_all(IMAGES[1]) - all.of_all(IMAGES[1]) / 16.0).abs() < 1.0, "{one}");
    }
}
