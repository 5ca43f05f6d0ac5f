//! Floe's own chores: `cargo xtask tidy | ci | images | bench | differential`.

mod differential;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "xtask", about = "Floe's own chores")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Compare Floe with e2fsck on randomly damaged images
    Differential(differential::Args),
}

fn main() -> Result<()> {
    match Args::parse().chore {
        Chore::Differential(args) => differential::run(&args),
    }
}
