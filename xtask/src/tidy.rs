//! `cargo xtask tidy`: verifies the rules of the repository's layout.
//!
//! Each rule is a function from a tree of texts to faults, so that a test can show that it fails on
//! a bad tree (the canaries at the end of `rules.rs`).

mod language;
mod pages;
mod rooms;
mod rules;
mod tree;

use std::path::{Path, PathBuf};

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
    /// Print the lines of product code of each crate, now or in a commit: without tests, comments and
    /// empty lines
    #[arg(long, value_name = "COMMIT", num_args = 0..=1, default_missing_value = "")]
    lines: Option<String>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.graph {
        print_graphs(&tree()?);
    }
    if let Some(commit) = &args.lines {
        return print_lines(&if commit.is_empty() {
            tree()?
        } else {
            Tree::of_commit(&root()?, commit)?
        });
    }
    check()
}

/// Lines of product code of each crate, and their sum.
fn print_lines(tree: &Tree) -> Result<()> {
    let counts = rules::product_lines(tree);
    for (name, lines) in &counts {
        println!("{lines:7} {name}");
    }
    println!("{:7} all", counts.values().sum::<usize>());
    Ok(())
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

/// The graph of crates, and those of their rooms.
fn print_graphs(tree: &Tree) {
    println!("crates:");
    for (name, used) in rules::uses(tree) {
        println!("  {name} -> {}", used.join(", "));
    }
    for folder in rooms::crates(tree) {
        println!("{folder}:");
        for line in Rooms::of(tree, folder).lines() {
            println!("  {line}");
        }
    }
}

fn root() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the root")?;
    Ok(root.to_owned())
}

fn tree() -> Result<Tree> {
    Tree::load(&root()?)
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
