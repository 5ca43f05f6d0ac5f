//! `cargo xtask same-content`: makes a native file system and an ext4 of the same made-up files with `floe mkfs --from`, and measures a
//! check of each with one thread: bytes and reads, time with nothing of the image in memory and with all of it, processor time, memory,
//! instructions.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use floe_archive::{Entry, Kind, Writer};
use floe_testkit::tool::built_floe;
use serde_json::Value;

use crate::bench::{forget, median};
use crate::measure::{Cost, measure};
use crate::scaling::all_instructions;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of files
    #[arg(long, default_value_t = 200_000)]
    files: u32,
    /// Files of a directory
    #[arg(long, default_value_t = 500)]
    a_directory: u32,
    /// Bytes of the largest file; sizes are uniform. 0: all are empty
    #[arg(long, default_value_t = 2048)]
    most_bytes: u32,
    /// Size of the file systems, as mkfs has it
    #[arg(long, default_value = "4g")]
    size: String,
    /// Runs of each check, by turns; medians are printed
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Count instructions, too (needs valgrind)
    #[arg(long)]
    instructions: bool,
    /// Folder for the images, which are removed
    #[arg(long, default_value = "target/same-content")]
    folder: PathBuf,
    /// The program to measure; by default the newest built floe
    #[arg(long)]
    floe: Option<PathBuf>,
}

/// Types of the file systems.
const TYPES: [&str; 2] = ["native", "ext4"];

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    fs::create_dir_all(&args.folder)?;
    let images = TYPES.map(|kind| args.folder.join(kind));
    for (kind, image) in TYPES.iter().zip(&images) {
        fill(args, &floe, kind, image)?;
    }
    let mut costs = TYPES.map(|_| (Vec::new(), Vec::new()));
    for _ in 0..args.runs.max(1) {
        for (image, (cold, warm)) in images.iter().zip(&mut costs) {
            forget(image)?;
            cold.push(checked(&floe, image)?);
            warm.push(checked(&floe, image)?);
        }
    }
    println!("{} files of up to {} bytes, {}, one thread", args.files, args.most_bytes, args.size);
    for ((kind, image), (cold, warm)) in TYPES.iter().zip(&images).zip(&costs) {
        let (bytes, reads) = asked_for(&floe, image)?;
        println!("{kind:7} {:.1} MB in {reads} reads", bytes / 1e6);
        print("  with nothing in memory", cold);
        print("  with all in memory", warm);
        if args.instructions {
            println!("  {:.0} million instructions", all_instructions(&floe, image, 1)? / 1e6);
        }
    }
    images.iter().try_for_each(|image| Ok(fs::remove_file(image)?))
}

/// Makes a file system from an archive that is written as it is read.
fn fill(args: &Args, floe: &Path, kind: &str, image: &Path) -> Result<()> {
    let mut make = Command::new(floe);
    make.args(["mkfs", "-q", "-F", "-t", kind, "--from", "tar:-"]).arg(image).arg(&args.size);
    let mut running = make.stdin(Stdio::piped()).spawn().context("starting floe mkfs")?;
    let pipe = running.stdin.take().context("no pipe")?;
    let written = archive(args, BufWriter::new(pipe));
    let status = running.wait()?;
    ensure!(status.success(), "floe mkfs -t {kind} ended with {status}");
    Ok(written?)
}

fn archive(args: &Args, target: impl Write) -> std::io::Result<()> {
    let (mut writer, content) = (Writer::new(target), vec![b'x'; args.most_bytes as usize]);
    for at in 0..args.files {
        let folder = at / args.a_directory.max(1);
        if at % args.a_directory.max(1) == 0 {
            let path = format!("folder-{folder}");
            writer
                .append(&Entry { mode: 0o755, ..Entry::new(path.as_bytes(), Kind::Directory) })?;
        }
        let path = format!("folder-{folder}/file-{at}");
        // Cycles through all sizes.
        let size = at.wrapping_mul(2_654_435_761).checked_rem(args.most_bytes).unwrap_or(0);
        let entry = Entry::new(path.as_bytes(), Kind::File);
        writer.append(&Entry { mode: 0o644, size: size.into(), ..entry })?;
        writer.write_all(&content[..size as usize])?;
    }
    writer.finish()?.flush()
}

/// One check.
fn checked(floe: &Path, image: &Path) -> Result<Cost> {
    let floe = floe.to_string_lossy().into_owned();
    let image = image.to_string_lossy().into_owned();
    let words = [floe, "check".to_owned(), "-t".to_owned(), "1".to_owned(), image];
    let cost = measure(&words)?;
    ensure!(cost.exit == 0, "{} ended with {}", words.join(" "), cost.exit);
    Ok(cost)
}

/// Bytes and reads of a check, by its own report.
fn asked_for(floe: &Path, image: &Path) -> Result<(f64, u64)> {
    let output = Command::new(floe).args(["check", "--json", "-t", "1"]).arg(image).output()?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let cost = &report["cost"];
    let bytes = cost["bytes_read"].as_f64().context("a report without bytes_read")?;
    Ok((bytes, cost["reads"].as_u64().context("a report without reads")?))
}

fn print(what: &str, costs: &[Cost]) {
    println!(
        "{what}: {:.3} s, of processors {:.3} s, {:.1} MiB of memory, {:.1} MB from the device",
        median(costs, |cost| cost.wall),
        median(costs, |cost| cost.cpu),
        median(costs, |cost| cost.peak_mib),
        median(costs, |cost| cost.device_mb)
    );
}
