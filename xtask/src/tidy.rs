//! `cargo xtask tidy`: verifies the rules of the repository's layout.
//!
//! Each rule is a function from a tree of texts to faults, so that a test can show that it fails on
//! a bad tree (the canaries at the end of `rules.rs`).

mod rooms;
mod rules;
mod tree;

use std::path::Path;

use anyhow::{Context, Result, bail};

use rooms::Rooms;
use rules::RULES;
use tree::Tree;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the dependencies between crates, and between the folders inside them
    #[arg(long)]
    graph: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.graph {
        print_graphs(&tree()?);
    }
    check()
}

/// Checks the repository in which xtask was built; fails if there is a fault.
pub(crate) fn check() -> Result<()> {
    let faults = faults()?;
    for fault in &faults {
        println!("{fault}");
    }
    if !faults.is_empty() {
        bail!("{} faults; xtask/src/tidy/rules.rs gives the reasons for each rule", faults.len());
    }
    println!("tidy: {} rules hold", RULES.len());
    Ok(())
}

/// The graph of crates, and those of the rooms of some.
fn print_graphs(tree: &Tree) {
    println!("crates:");
    for (name, used) in rules::uses(tree) {
        println!("  {name} -> {}", used.join(", "));
    }
    for name in rooms::SHOWN {
        println!("{name}:");
        for line in Rooms::of(tree, name).lines() {
            println!("  {line}");
        }
    }
}

fn tree() -> Result<Tree> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the root")?;
    Tree::load(root)
}

fn faults() -> Result<Vec<String>> {
    let tree = tree()?;
    Ok(RULES
        .iter()
        .flat_map(|(name, rule)| {
            rule(&tree).into_iter().map(move |fault| format!("{name}: {fault}"))
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_is_tidy() {
        let faults = faults().expect("the repository can be read");
        assert!(faults.is_empty(), "\n{}", faults.join("\n"));
    }
}
