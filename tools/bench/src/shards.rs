//! `cargo xtask shards`: counts the work of one check in shards: instructions (callgrind) and bytes read (strace) of one
//! machine, of all shards together, of the largest shard and of the merge, and the bytes of the parts. Counts, because
//! the machines that shards are for do not exist here.

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
    /// Folder of the images, which are kept and reused
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    /// The program; by default the newest built floe
    #[arg(long)]
    floe: Option<PathBuf>,
}

/// The work of one process.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    instructions: u64,
    bytes_read: u64,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    std::fs::create_dir_all(&args.folder)?;
    println!(
        "| image | instructions, alone | shards | largest shard | merge | bytes read, alone | shards | \
         merge | bytes of parts |\n|---|{}",
        "---:|".repeat(8)
    );
    for kind in [Kind::FileIntensive, Kind::DirectoryIntensive] {
        let image = image(&args.folder, args.inodes, kind)?;
        println!("| {}, {} inodes {}", kind.name(), args.inodes, row(args, &floe, &image)?);
    }
    Ok(())
}

fn row(args: &Args, floe: &Path, image: &Path) -> Result<String> {
    let folder = tempfile::tempdir()?;
    let options = ["check", "--threads", "1", "--accounting", "fingerprint"];
    let with = |more: &[OsString]| {
        let options = options.iter().map(OsString::from);
        options.chain([image.into()]).chain(more.iter().cloned()).collect::<Vec<_>>()
    };
    let alone = work_of(floe, &with(&[]))?;
    let (mut shards, mut largest, mut parts) = (Work::default(), 0, Vec::new());
    for index in 0..args.shards {
        let part = folder.path().join(format!("part-{index}"));
        let share = format!("{index}/{}", args.shards);
        let work = work_of(
            floe,
            &with(&["--shard".into(), share.into(), "--out".into(), part.clone().into()]),
        )?;
        shards.instructions += work.instructions;
        shards.bytes_read += work.bytes_read;
        largest = largest.max(work.instructions);
        parts.push(OsString::from(part));
    }
    let sizes: Vec<u64> =
        parts.iter().map(|part| Ok(std::fs::metadata(part)?.len())).collect::<Result<_>>()?;
    let merge = work_of(floe, &with(&[vec!["--merge".into()], parts].concat()))?;
    let share = |part: u64, all: u64| format!("{:.1} %", part as f64 * 100.0 / all.max(1) as f64);
    let millions = |count: u64| format!("{:.1} M", count as f64 / 1e6);
    Ok(format!(
        "| {} | {} | {} | {} | {} | {} | {} | {} |",
        millions(alone.instructions),
        share(shards.instructions, alone.instructions),
        share(largest, alone.instructions),
        share(merge.instructions, alone.instructions),
        millions(alone.bytes_read),
        share(shards.bytes_read, alone.bytes_read),
        share(merge.bytes_read, alone.bytes_read),
        sizes.iter().sum::<u64>(),
    ))
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
