//! `cargo xtask tidy`: verifies the rules of the repository's layout.
//!
//! Each rule is a function from a tree of texts to faults, so that a test can show that it fails on
//! a bad tree (the canaries at the end of `rules.rs`).

mod rules;
mod tree;

use std::path::Path;

use anyhow::{Context, Result, bail};

use rules::RULES;
use tree::Tree;

/// Runs the command on the repository in which xtask was built; fails if there is a fault.
pub(crate) fn run() -> Result<()> {
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

fn faults() -> Result<Vec<String>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("xtask lies in the root")?;
    let tree = Tree::load(root)?;
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
