//! `cargo xtask shards`: counts the work of one check in shards: instructions (callgrind) and bytes read (strace) of one
//! machine, of all shards together, of the largest shard and of the merge, and the bytes of the parts. Counts, because
//! the machines that shards are for do not exist here. `--model` extends the counts to a file system that does not exist
//! here either. `--equal` compares reports.

mod equal;
mod model;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::bench::{Kind, image};
use crate::scaling::by_thread;
use floe_testkit::tool::built_floe;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Inodes of each image
    #[arg(long, default_value_t = 1_000_000)]
    inodes: u32,
    /// Number of shards
    #[arg(long, default_value_t = 16)]
    shards: u32,
    /// Fit the costs of groups, files and directories to four images, and extend them to a large file system
    #[arg(long)]
    model: bool,
    /// Compare the report of 1, 2, 5 and 16 shards with that of one check, byte for byte but for the cost; count nothing
    #[arg(long, conflicts_with = "model")]
    equal: bool,
    /// Only the image of this shape: file-intensive or directory-intensive
    #[arg(long, conflicts_with = "model")]
    shape: Option<Kind>,
    #[command(flatten)]
    large: model::Large,
    /// Folder of the images, which are kept and reused
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    /// The program; by default the newest built floe
    #[arg(long)]
    floe: Option<PathBuf>,
}

/// The work of one process, or of several.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    instructions: u64,
    bytes_read: u64,
}

/// The work of one check in shards.
#[derive(Clone, Copy, Debug, Default)]
struct InShards {
    all: Work,
    /// Instructions of the busiest shard.
    most: u64,
    merge: Work,
    part_bytes: u64,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    std::fs::create_dir_all(&args.folder)?;
    if args.model {
        return model::run(&floe, &args.folder, &args.large);
    }
    let kinds = [Kind::FileIntensive, Kind::DirectoryIntensive];
    let kinds = kinds.into_iter().filter(|kind| args.shape.is_none_or(|shape| shape == *kind));
    if args.equal {
        for kind in kinds {
            equal::run(&floe, &image(&args.folder, args.inodes, kind)?)?;
        }
        return Ok(());
    }
    println!(
        "| image | instructions, alone | shards | largest shard | merge | bytes read, alone | shards | \
         merge | bytes of parts |\n|---|{}",
        "---:|".repeat(8)
    );
    for kind in kinds {
        let image = image(&args.folder, args.inodes, kind)?;
        let alone = work_of(&floe, &arguments(&image, &[]))?;
        let shared = in_shards(&floe, &image, args.shards)?;
        let row = row(alone, &shared);
        println!("| {}, {} inodes, {} shards {row}", kind.name(), args.inodes, args.shards);
    }
    Ok(())
}

/// The arguments of a check of `image` by sums with one thread.
fn arguments(image: &Path, more: &[OsString]) -> Vec<OsString> {
    let options = ["check", "--threads", "1", "--accounting", "fingerprint"].map(OsString::from);
    options.into_iter().chain([image.into()]).chain(more.iter().cloned()).collect()
}

/// Runs all shards of a check, and the merge.
fn in_shards(floe: &Path, image: &Path, shards: u32) -> Result<InShards> {
    let folder = tempfile::tempdir()?;
    let (mut shared, mut parts) = (InShards::default(), Vec::new());
    for index in 0..shards {
        let part = folder.path().join(format!("part-{index}"));
        let share = format!("{index}/{shards}");
        let options = ["--shard".into(), share.into(), "--out".into(), part.clone().into()];
        let work = work_of(floe, &arguments(image, &options))?;
        shared.all.instructions += work.instructions;
        shared.all.bytes_read += work.bytes_read;
        shared.most = shared.most.max(work.instructions);
        shared.part_bytes += std::fs::metadata(&part)?.len();
        parts.push(OsString::from(part));
    }
    shared.merge = work_of(floe, &arguments(image, &[vec!["--merge".into()], parts].concat()))?;
    Ok(shared)
}

fn row(alone: Work, shared: &InShards) -> String {
    let share = |part: u64, all: u64| format!("{:.1} %", part as f64 * 100.0 / all.max(1) as f64);
    let millions = |count: u64| format!("{:.1} M", count as f64 / 1e6);
    format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} |",
        millions(alone.instructions),
        share(shared.all.instructions, alone.instructions),
        share(shared.most, alone.instructions),
        share(shared.merge.instructions, alone.instructions),
        millions(alone.bytes_read),
        share(shared.all.bytes_read, alone.bytes_read),
        share(shared.merge.bytes_read, alone.bytes_read),
        shared.part_bytes,
    )
}

/// Counts the work of `floe` with these arguments: in two runs, as each tool needs one of its own.
fn work_of(floe: &Path, arguments: &[OsString]) -> Result<Work> {
    let folder = tempfile::tempdir()?;
    let (counts, calls) = (folder.path().join("counts"), folder.path().join("calls"));
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--quiet", "--tool=callgrind"]);
    valgrind.arg(format!("--callgrind-out-file={}", counts.display()));
    succeed(valgrind, floe, arguments)?;
    let text = std::fs::read_to_string(&counts)?;
    let mut strace = Command::new("strace");
    strace.args(["--follow-forks", "--quiet=all", "--trace=pread64"]);
    strace.arg(format!("--output={}", calls.display()));
    succeed(strace, floe, arguments)?;
    let calls = std::fs::read(&calls)?;
    let bytes_read = by_thread(&String::from_utf8_lossy(&calls)).values().sum();
    let instructions = totals(&text).context("callgrind wrote no totals")?;
    Ok(Work { instructions, bytes_read })
}

/// The instructions of all threads, from the end of a file of callgrind.
fn totals(text: &str) -> Option<u64> {
    let line = text.lines().rev().find_map(|line| line.strip_prefix("totals: "))?;
    line.trim().parse().ok()
}

fn succeed(mut tool: Command, floe: &Path, arguments: &[OsString]) -> Result<()> {
    let name = tool.get_program().to_string_lossy().into_owned();
    let status = tool
        .arg(floe)
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("{name} is needed, which the Debian package {name} has"))?;
    ensure!(status.success(), "floe or {name} ended with {status}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read() {
        assert_eq!(totals("summary: 7\n\ntotals: 123456\n"), Some(123_456));
        assert_eq!(totals("fn=(1)\n1 2\n"), None);
    }
}
