//! `cargo xtask counts`: what the same calls cost on a native file system with metadata regions, on one without, and on a stock
//! ext4: requests, bytes, flushes, times by alternating pairs, and instructions (with valgrind). The program is an example of `floe-fs`.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::fs_memory::example;

/// The layouts, the one that is judged first.
const LAYOUTS: [&str; 3] = ["native", "plain", "stock"];

/// The command line.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Loads, as a list; by default all
    #[arg(long, value_delimiter = ',')]
    loads: Vec<String>,
    /// Runs of each layout, which alternate
    #[arg(long, default_value_t = 30)]
    rounds: usize,
    /// Compare with a native file system without regions alone
    #[arg(long)]
    pairs: bool,
    /// Count instructions instead, by valgrind's callgrind
    #[arg(long)]
    instructions: bool,
}

/// Runs the program.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.instructions {
        return instructions(args);
    }
    let (way, rounds) = (if args.pairs { "pairs" } else { "compare" }, args.rounds.to_string());
    let done = example("counts").args([way, &rounds]).args(&args.loads).status();
    ensure!(done.context("running the example")?.success(), "it failed");
    Ok(())
}

fn instructions(args: &Args) -> Result<()> {
    // Builds it.
    let listed = example("counts").arg("list").output().context("running the example")?;
    ensure!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout)?;
    // Those that take seconds take minutes here.
    let short = listed.lines().filter(|load| !load.ends_with("-1G")).map(str::to_owned);
    let loads = if args.loads.is_empty() { short.collect() } else { args.loads.clone() };
    println!("{:14} {:>14} {:>14} {:>14}  native over them", "load", "native", "plain", "stock");
    for load in loads {
        let [native, plain, stock] = LAYOUTS.map(|layout| of_load(layout, &load));
        let (native, plain, stock) = (native?, plain?, stock?);
        let over = |other: u64| native as f64 / other as f64;
        println!(
            "{load:14} {native:>14} {plain:>14} {stock:>14}  {:.3} {:.3}",
            over(plain),
            over(stock)
        );
    }
    Ok(())
}

/// Instructions of the part of a load that is counted.
fn of_load(layout: &str, load: &str) -> Result<u64> {
    let program = std::env::var("CARGO_TARGET_DIR").unwrap_or_else(|_| "target".to_owned());
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--collect-atstart=no"]);
    command
        .args(["--toggle-collect=*counted_part*", &format!("{program}/release/examples/counts")]);
    let output = command.args(["one", layout, load]).output().context("starting valgrind")?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{layout} {load}: {text}");
    let line = text.lines().find_map(|line| line.split_once("Collected :"));
    let count = line.and_then(|(_, count)| count.trim().parse().ok());
    count.with_context(|| format!("callgrind says no count: {text}"))
}
