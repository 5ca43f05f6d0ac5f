//! `cargo xtask commits`: changes that are made durable in a second, by several workers on files that have nothing in common, in
//! process, beside the kernel's ext4 on the same backing file (for root); and flushes for each on a device whose flush is slow.
//! The program is an example of `floe-fs`.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::fs_memory::example;

/// The command line.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Workers, as a list
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16])]
    workers: Vec<usize>,
    /// Rounds, which alternate
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Milliseconds of a run
    #[arg(long, default_value_t = 1000)]
    milliseconds: u64,
    /// Folder of the backing file
    #[arg(long, default_value = "target/commits")]
    folder: PathBuf,
    /// Microseconds of a flush of the modelled device
    #[arg(long, default_value_t = 2000)]
    flush_us: u64,
    /// Changes of each worker on the modelled device
    #[arg(long, default_value_t = 100)]
    changes: u64,
    /// Leave the kernel's ext4 out
    #[arg(long)]
    model_only: bool,
    /// Instead, compare native file systems with 1, 2 and 4 journals on two modelled devices, and with 1 and 2 in a file
    #[arg(long)]
    journals: bool,
}

/// Runs the program.
pub(crate) fn run(args: &Args) -> Result<()> {
    let workers: Vec<String> = args.workers.iter().map(usize::to_string).collect();
    if args.journals {
        return several(args, &workers);
    }
    println!("a device whose flush takes {} us:", args.flush_us);
    let mut model = example("commits");
    model.args(["model", &args.flush_us.to_string(), &args.changes.to_string()]).args(&workers);
    ensure!(model.status().context("running the example")?.success(), "it failed");
    if args.model_only {
        return Ok(());
    }
    fs::create_dir_all(&args.folder)?;
    println!("beside the kernel's ext4, a file in {}:", args.folder.display());
    let mut beside = example("commits");
    beside.arg("beside").arg(&args.folder);
    beside.args([args.milliseconds.to_string(), args.rounds.to_string()]).args(&workers);
    ensure!(beside.status().context("running the example")?.success(), "it failed");
    Ok(())
}

/// Several journals beside one.
fn several(args: &Args, workers: &[String]) -> Result<()> {
    println!("two devices whose flushes take {} us, as one in stripes:", args.flush_us);
    let mut model = example("commits");
    model.args(["journals", &args.flush_us.to_string(), &args.changes.to_string()]).args(workers);
    ensure!(model.status().context("running the example")?.success(), "it failed");
    if args.model_only {
        return Ok(());
    }
    fs::create_dir_all(&args.folder)?;
    println!("a file in {}:", args.folder.display());
    let mut file = example("commits");
    file.arg("files").arg(&args.folder);
    file.args([args.milliseconds.to_string(), args.rounds.to_string()]).args(workers);
    ensure!(file.status().context("running the example")?.success(), "it failed");
    Ok(())
}
