//! `cargo xtask link-memory`: measures the memory for counting links with each available structure,
//! for several shares of inodes in use (table 2 and figure 7 of lwFSCK, SAC '25).
//!
//! The inodes are synthetic: in each group of 8192, the first ones are in use, one directory and
//! then its files, repeatedly. As in the paper, a directory has at least two links and a file has
//! one. Workers take directories in batches, and each counts in its own share.
//!
//! Each cell is measured in its own process, as the maximum growth of its resident memory.

use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use floe_check::evidence::choice::{InodeUse, LinkStructure};
use floe_check::evidence::link_array::LinkArray;
use floe_check::evidence::link_counter::LinkCounter;
use floe_check::evidence::link_counts::LinkCounts;
use floe_check::evidence::twin_tree::TwinTree;
use floe_format::InodeNr;
use serde_json::{Value, json};

/// Inodes per group.
const GROUP: u32 = 8192;
/// Directories per batch.
const BATCH: u32 = 256;
/// Names of the structures.
const STRUCTURES: [&str; 3] = ["array", "TwinTree", "chunked bits"];

/// Options of the command.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Inodes of the file system
    #[arg(long, default_value_t = 16_777_216)]
    inodes: u32,
    /// Inodes in use, in percent
    #[arg(long, value_delimiter = ',', default_values_t = [1, 25, 50, 100])]
    used: Vec<u32>,
    /// Numbers of workers, each with its own share
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8])]
    workers: Vec<u32>,
    /// Measure one cell and print it: the structure, and the files per directory (used internally)
    #[arg(long, hide = true, num_args = 2)]
    one: Option<Vec<String>>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(one) = &args.one {
        let (structure, files) = (&one[0], one[1].parse()?);
        println!("{}", measure_here(args, structure, files)?);
        return Ok(());
    }
    for &workers in &args.workers {
        for (shape, files) in [("file-intensive", 99), ("directory-intensive", 1)] {
            println!("\n**{shape}, {} inodes, {workers} shares**\n", args.inodes);
            println!(
                "| in use | {} | by equations 1 to 3 |",
                STRUCTURES.map(|name| format!("{name} MiB | bytes per inode in use")).join(" | ")
            );
            println!("|---:|{}---|", "---:|---:|".repeat(STRUCTURES.len()));
            for &used in &args.used {
                print!("| {used} % ");
                for structure in STRUCTURES {
                    let cell = measure(args, structure, files, used, workers)?;
                    let number = |name: &str| cell[name].as_f64().unwrap_or(f64::NAN);
                    let (resident, links) = (number("resident_bytes"), number("inodes_used"));
                    print!("| {:.1} | {:.2} ", resident / f64::from(1 << 20), resident / links);
                }
                println!("| {} |", chosen(args.inodes, used, files));
            }
        }
    }
    Ok(())
}

/// The structure that lwFSCK would choose, based on the descriptors.
fn chosen(inodes: u32, used: u32, files: u32) -> &'static str {
    let used = u64::from(inodes) * u64::from(used) / 100;
    let directories = used / u64::from(files + 1);
    match (InodeUse { total: u64::from(inodes), used, directories }).leaner() {
        LinkStructure::Array => STRUCTURES[0],
        LinkStructure::TwinTree => STRUCTURES[1],
        LinkStructure::Bits => STRUCTURES[2],
    }
}

/// Measures a cell in its own process.
fn measure(args: &Args, structure: &str, files: u32, used: u32, workers: u32) -> Result<Value> {
    let output = Command::new(std::env::current_exe()?)
        .args(["link-memory", "--one", structure, &files.to_string()])
        .args(["--inodes", &args.inodes.to_string(), "--used", &used.to_string()])
        .args(["--workers", &workers.to_string()])
        .output()?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "measuring {structure}: {error}");
    let cell: Value = serde_json::from_slice(&output.stdout)?;
    let bytes = |name: &str| cell[name].as_f64().unwrap_or(f64::NAN);
    let ratio = bytes("accounted_bytes") / bytes("resident_bytes");
    // The size that a structure reports must be true. Only touched pages of an array are resident,
    // and for small structures the rest of the process is visible.
    let fits = (0.75..1.25).contains(&ratio) || structure == "array";
    ensure!(fits || bytes("resident_bytes") < 4e6, "{structure} reports a wrong size: {cell}");
    Ok(cell)
}

fn measure_here(args: &Args, structure: &str, files: u32) -> Result<Value> {
    let (used, workers) = (args.used[0], args.workers[0]);
    let array = || LinkArray::with_inodes(args.inodes);
    match structure {
        "array" => fill(args.inodes, used, files, workers, array),
        "TwinTree" => fill(args.inodes, used, files, workers, TwinTree::default),
        "chunked bits" => fill(args.inodes, used, files, workers, LinkCounts::default),
        other => bail!("no structure is called {other}"),
    }
}

/// Counts the links of a file system, and returns the memory that this took.
fn fill<L: LinkCounter>(
    inodes: u32,
    used_percent: u32,
    files: u32,
    workers: u32,
    new: impl Fn() -> L,
) -> Result<Value> {
    let before = resident_bytes("VmRSS:")?;
    let mut shares: Vec<L> = (0..workers.max(1)).map(|_| new()).collect();
    let used_of_group = GROUP * used_percent.min(100) / 100;
    let (mut inodes_used, mut directories) = (0u64, 0u32);
    for group in 0..inodes / GROUP {
        for place in 0..used_of_group {
            let directory = place % (files + 1) == 0;
            directories += u32::from(directory);
            let worker = directories / BATCH % workers.max(1);
            let share = &mut shares[worker as usize];
            // Inode numbers start at 1. A directory has its name and its own `.`.
            let inode = InodeNr(group * GROUP + place + 1);
            (0..if directory { 2 } else { 1 }).for_each(|_| share.add(inode));
            inodes_used += 1;
        }
    }
    let resident = resident_bytes("VmHWM:")?.saturating_sub(before);
    let accounted: u64 = shares.iter().map(LinkCounter::bytes).sum();
    Ok(json!({
        "inodes_used": inodes_used,
        "resident_bytes": resident,
        "accounted_bytes": accounted,
    }))
}

/// A value in `/proc/self/status`.
fn resident_bytes(name: &str) -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name)).context("no such figure")?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_count_what_they_say() {
        for structure in STRUCTURES {
            let args = Args { inodes: 3 * GROUP, used: vec![25], workers: vec![2], one: None };
            let cell = measure_here(&args, structure, 99).unwrap();
            assert_eq!(cell["inodes_used"], 3 * GROUP / 4, "{structure}");
            assert!(cell["accounted_bytes"].as_u64().unwrap() > 0, "{structure}");
        }
    }

    #[test]
    fn the_choice_follows_the_share_of_directories() {
        assert_eq!(chosen(1 << 24, 1, 1), "TwinTree");
        assert_eq!(chosen(1 << 24, 100, 99), "TwinTree");
        assert_eq!(chosen(1 << 24, 100, 1), "array");
    }
}
