//! `cargo xtask fs-speed`: calls of the file system in memory, in process, beside those of tmpfs through system calls; and how
//! they scale with threads. The programs are examples of `floe-fs`.

use anyhow::{Context, Result, ensure};

use crate::fs_memory::example;

/// The command line.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Threads, as a list
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Rounds, which alternate
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Files of each thread
    #[arg(long, default_value_t = 20_000)]
    files: usize,
    /// Also count how many times more calls several threads make than one
    #[arg(long)]
    scaling: bool,
}

/// Runs both programs.
pub(crate) fn run(args: &Args) -> Result<()> {
    for threads in &args.threads {
        let words = [*threads, args.rounds, args.files].map(|word| word.to_string());
        let done = example("beside_tmpfs").args(words).status().context("running the example")?;
        ensure!(done.success(), "it failed");
        if args.scaling && *threads > 1 {
            let done = example("scaling").arg(threads.to_string()).status()?;
            ensure!(done.success(), "it failed");
        }
    }
    Ok(())
}
