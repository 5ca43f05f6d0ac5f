//! `cargo xtask scaling`: measures how the work of a check divides among more threads than this
//! machine has cores.
//!
//! The gain from cores that do not exist cannot be timed, but counted: instructions of each worker,
//! of serial parts and of merging (callgrind separates threads and functions), allocator calls,
//! which may contend for one lock, and bytes read per thread (strace). These give an upper bound
//! for the speed-up. Caches, memory bandwidth and the device are not included, nor is the work of
//! the kernel, which callgrind does not see.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::bench::{Kind, image};
use crate::engines::recorded::{read_of, thread_of};
use floe_testkit::tool::built_floe;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Inodes of each image
    #[arg(long, default_value_t = 1_000_000)]
    inodes: u32,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16])]
    threads: Vec<usize>,
    /// Folder of the images, which are kept and reused
    #[arg(long, default_value = "target/bench")]
    folder: PathBuf,
    /// The program, with its symbols; by default the newest built floe
    #[arg(long)]
    floe: Option<PathBuf>,
}

/// The worker function of `floe_exec::pool` in callgrind's output.
const WORKER: &str = "floe_exec::pool::one_worker";
const MERGE: &str = "floe_exec::pool::merge_one";

/// The C library's allocation functions.
const ALLOCATOR: &[&str] = &["malloc", "calloc", "realloc", "posix_memalign", "free"];

/// Instructions of one check.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counted {
    /// Instructions of all threads.
    all: f64,
    /// Instructions of the busiest worker.
    most: f64,
    /// Instructions of the first thread outside of worker code.
    serial: f64,
    /// Instructions of the first thread while merging the workers' results.
    merging: f64,
    /// Allocator calls of all threads.
    allocations: u64,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    std::fs::create_dir_all(&args.folder)?;
    for kind in [Kind::FileIntensive, Kind::DirectoryIntensive, Kind::Aged] {
        // Fragmented files, with indirect blocks.
        let inodes = if kind == Kind::Aged { args.inodes / 5 } else { args.inodes };
        let image = image(&args.folder, inodes, kind)?;
        println!("\n**{}, {inodes} inodes**\n", kind.name());
        println!(
            "| threads | instructions | largest worker | serial | merging | merging, share | \
             allocator calls | MB read | largest thread | speed-up by instructions |"
        );
        println!("|{}", "---:|".repeat(10));
        let mut alone = None;
        for &threads in &args.threads {
            let counted = instructions(&floe, &image, threads)?;
            let alone = *alone.get_or_insert(counted.all);
            let (bytes, most_bytes) = bytes_read(&floe, &image, threads)?;
            println!("{}", row(threads, counted, alone, bytes, most_bytes));
        }
    }
    Ok(())
}

fn row(threads: usize, counted: Counted, alone: f64, bytes: u64, most_bytes: u64) -> String {
    let Counted { all, most, serial, merging, allocations } = counted;
    let millions = |count: f64| format!("{:.1} M", count / 1e6);
    let mb = |bytes: u64| format!("{:.1}", bytes as f64 / 1e6);
    // Without any identified worker there was one thread.
    let speed_up = if most == 0.0 {
        1.0
    } else {
        alone / (serial + merging + (all - serial - merging) / threads as f64)
    };
    format!(
        "| {threads} | {} | {} | {} | {} | {:.2} % | {allocations} | {} | {} | {speed_up:.2} |",
        millions(all),
        if most == 0.0 { String::new() } else { millions(most) },
        if most == 0.0 { String::new() } else { millions(serial) },
        millions(merging),
        merging / all * 100.0,
        mb(bytes),
        mb(most_bytes),
    )
}

/// All instructions of a check of `image`.
pub(crate) fn all_instructions(floe: &Path, image: &Path, threads: usize) -> Result<f64> {
    Ok(instructions(floe, image, threads)?.all)
}

/// Counts the instructions of a check of `image`.
fn instructions(floe: &Path, image: &Path, threads: usize) -> Result<Counted> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("counts");
    let mut valgrind = Command::new("valgrind");
    // Callgrind counts an instruction such as `rep movsb` once for each byte, and the C library
    // copies and fills with it where the processor says that it is fast: without it, a copy counts
    // as the loop that it is.
    valgrind.env("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-ERMS,-FSRM");
    valgrind
        .args(["--quiet", "--tool=callgrind", "--separate-threads=yes", "--fair-sched=try"])
        .arg(format!("--callgrind-out-file={}", out.display()));
    check_under(valgrind, floe, image, threads)?;
    let mut counted = Counted::default();
    for (thread, path) in by_number(folder.path())? {
        let text = annotated(&path, "--inclusive=yes")?;
        let all =
            inclusive(&text, "PROGRAM TOTALS").context("callgrind_annotate prints no total")?;
        counted.all += all;
        counted.allocations += allocations(&path)?;
        let as_worker = inclusive(&text, WORKER).unwrap_or(0.0);
        counted.most = counted.most.max(as_worker);
        if thread == 1 {
            counted.merging = inclusive(&text, MERGE).unwrap_or(0.0);
            counted.serial = all - as_worker - counted.merging;
        }
    }
    Ok(counted)
}

/// Files of counts in a folder by thread number. There are more than workers, because a check also
/// has a signal thread; if there are few units of work, some workers are missing.
fn by_number(folder: &Path) -> Result<BTreeMap<u32, PathBuf>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if let Some(number) = name.strip_prefix("counts-").and_then(|end| end.parse().ok()) {
            files.insert(number, path);
        }
    }
    ensure!(!files.is_empty(), "callgrind wrote no counts");
    Ok(files)
}

/// The output of `callgrind_annotate` for the counts at `path`.
fn annotated(path: &Path, option: &str) -> Result<String> {
    let output = Command::new("callgrind_annotate")
        .args([option, "--threshold=100", "--auto=no"])
        .arg(path)
        .output()
        .context("callgrind_annotate, a part of valgrind, is needed")?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Number of allocator calls in the counts at `path`.
fn allocations(path: &Path) -> Result<u64> {
    Ok(annotated(path, "--tree=calling")?.lines().filter_map(allocator_calls).sum())
}

/// The number of allocator calls on a line such as `1,234 ( 0.2%)  > malloc.c:malloc (56x) [floe]`.
fn allocator_calls(line: &str) -> Option<u64> {
    let (_, callee) = line.split_once("  > ")?;
    let (function, rest) = callee.split_once(" (")?;
    let name = function.rsplit_once(':').map_or(function, |(_, name)| name);
    let times = rest.split_once("x)")?.0.replace(',', "").parse().ok()?;
    ALLOCATOR.contains(&name).then_some(times)
}

/// Checks `image` under an instrumentation tool; fails unless the image is clean.
fn check_under(mut tool: Command, floe: &Path, image: &Path, threads: usize) -> Result<()> {
    let name = tool.get_program().to_string_lossy().into_owned();
    let status = tool
        .arg(floe)
        .args(["check", "--threads", &threads.to_string()])
        .arg(image)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("{name} is needed, which the Debian package {name} has"))?;
    ensure!(status.success(), "floe or {name} ended with {status}");
    Ok(())
}

/// The inclusive count of a function in a table of `callgrind_annotate`: the largest row, because
/// code inlined into it has rows of its own.
fn inclusive(table: &str, function: &str) -> Option<f64> {
    let rows = table.lines().filter(|line| line.contains(function) && !line.contains("=>"));
    let counts = rows
        .filter_map(|line| line.split_whitespace().next()?.replace(',', "").parse::<f64>().ok());
    counts.reduce(f64::max)
}

/// Bytes read by a check, by all threads and by the one that reads most.
fn bytes_read(floe: &Path, image: &Path, threads: usize) -> Result<(u64, u64)> {
    let folder = tempfile::tempdir()?;
    let out = folder.path().join("calls");
    let mut strace = Command::new("strace");
    strace
        .args(["--follow-forks", "--quiet=all", "--trace=pread64"])
        .arg(format!("--output={}", out.display()));
    check_under(strace, floe, image, threads)?;
    let by_thread = by_thread(&String::from_utf8_lossy(&std::fs::read(&out)?));
    ensure!(!by_thread.is_empty(), "strace saw no reads");
    Ok((by_thread.values().sum(), by_thread.values().copied().max().unwrap_or(0)))
}

/// Bytes read by each thread, from lines such as `17 pread64(3, "..."..., 32768, 0) = 32768`.
pub(crate) fn by_thread(calls: &str) -> BTreeMap<u32, u64> {
    let mut bytes = BTreeMap::new();
    for line in calls.lines().filter(|line| line.contains("pread64")) {
        if let (Some(thread), Some(read)) = (thread_of(line), read_of(line)) {
            *bytes.entry(thread).or_default() += read.len;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_tables() {
        let table = "--------\n\
                     230,695,446 (100.0%)  PROGRAM TOTALS\n\
                     216,403,550 (93.80%)  /exec/src/pool.rs:floe_exec::pool::one_worker [floe]\n\
                     1,815 ( 0.00%)  /alloc/unix.rs:floe_exec::pool::merge_one\n\
                     614,612 ( 0.27%)  /exec/src/pool.rs:floe_exec::pool::merge_one [floe]\n";
        assert_eq!(inclusive(table, "PROGRAM TOTALS"), Some(230_695_446.0));
        assert_eq!(inclusive(table, WORKER), Some(216_403_550.0));
        assert_eq!(inclusive(table, MERGE), Some(614_612.0));
        assert_eq!(inclusive(table, "nothing"), None);
    }

    #[test]
    fn counts_of_all_threads_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(by_number(folder.path()).is_err(), "no counts");
        // Two workers and the signal thread, which is numbered before the second worker.
        for name in ["counts", "counts-01", "counts-02", "counts-03", "other-04"] {
            std::fs::write(folder.path().join(name), "").expect("a file");
        }
        let found = by_number(folder.path()).expect("counts");
        assert_eq!(found.keys().copied().collect::<Vec<_>>(), [1, 2, 3]);
        assert!(found[&3].ends_with("counts-03"));
    }

    #[test]
    fn calls_of_the_allocator_are_told_from_others() {
        let line = " 709,793 ( 0.30%)  > /musl/malloc/realloc.c:realloc (13,870x) [/tmp/floe]";
        assert_eq!(allocator_calls(line), Some(13_870));
        assert_eq!(allocator_calls(" 3 ( 0.0%)  > ???:free (2x)"), Some(2));
        assert_eq!(allocator_calls(" 3 ( 0.0%)  > ???:unfree (2x)"), None);
        assert_eq!(allocator_calls(" 3 ( 0.0%)  < ???:free (2x)"), None, "a caller");
        assert_eq!(allocator_calls("70 ( 0.0%)  * ???:malloc"), None, "the function itself");
    }

    #[test]
    fn reads_are_added_up_by_thread() {
        let calls = "17 pread64(3, \"\\0\"..., 4096, 0) = 4096\n\
                     18 pread64(3, <unfinished ...>\n\
                     17 pread64(3, \"a= 9\"..., 10, 5) = 10\n\
                     18 <... pread64 resumed>\"\"..., 512, 0) = 512\n\
                     18 pread64(3, 0x1, 512, 0) = -1 EIO (Input/output error)\n";
        assert_eq!(by_thread(calls), BTreeMap::from([(17, 4106), (18, 512)]));
    }

    #[test]
    fn the_speed_up_counts_what_one_thread_does_alone() {
        let counted = Counted { all: 110.0, most: 25.0, serial: 8.0, merging: 2.0, allocations: 9 };
        let row = row(4, counted, 100.0, 1_000_000, 250_000);
        // 8 + 2 + 100 / 4
        assert!(row.ends_with("| 1.82 % | 9 | 1.0 | 0.2 | 2.86 |"), "{row}");
    }
}
