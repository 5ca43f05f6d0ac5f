//! The text files of a repository.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Texts by path relative to the root.
pub(super) struct Tree {
    texts: BTreeMap<String, String>,
}

impl Tree {
    /// Loads the files that git tracks or would track; binary files are skipped.
    pub(super) fn load(root: &Path) -> Result<Self> {
        let output = Command::new("git")
            .args(["ls-files", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .context("git lists the files")?;
        ensure!(output.status.success(), "git ls-files failed");
        let mut texts = BTreeMap::new();
        for path in String::from_utf8_lossy(&output.stdout).lines() {
            // A removed file that is still listed, or a binary file.
            if let Ok(text) = std::fs::read_to_string(root.join(path)) {
                texts.insert(path.to_owned(), text);
            }
        }
        ensure!(texts.contains_key("Cargo.toml"), "no repository at {}", root.display());
        Ok(Self { texts })
    }

    /// The Rust files of crates in a commit.
    pub(super) fn of_commit(root: &Path, commit: &str) -> Result<Self> {
        let git = |args: &[&str]| -> Result<String> {
            let output = Command::new("git").args(args).current_dir(root).output()?;
            ensure!(output.status.success(), "git {} failed", args.join(" "));
            Ok(String::from_utf8_lossy(&output.stdout).into_owned())
        };
        let mut texts = BTreeMap::new();
        for path in git(&["ls-tree", "-r", "--name-only", commit, "crates"])?.lines() {
            if path.ends_with(".rs") {
                texts.insert(path.to_owned(), git(&["show", &format!("{commit}:{path}")])?);
            }
        }
        Ok(Self { texts })
    }

    /// A synthetic tree for a test.
    #[cfg(test)]
    pub(super) fn of(texts: &[(&str, &str)]) -> Self {
        let texts = texts.iter().map(|&(path, text)| (path.to_owned(), text.to_owned())).collect();
        Self { texts }
    }

    /// All texts.
    pub(super) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Rust files.
    pub(super) fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.all().filter(|(path, _)| path.ends_with(".rs"))
    }

    /// One text.
    pub(super) fn get(&self, path: &str) -> Option<&str> {
        self.texts.get(path).map(String::as_str)
    }
}

/// Numbered lines of code, without comments and test modules.
pub(super) fn code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    // By convention, tests come last in a file.
    let begins = [
        "#[cfg(test)]\nmod ",
        "#[cfg(test)]\npub(crate) mod ",
        "#[cfg(all(test, feature = \"shuttle\"))]\nmod ",
        "#[cfg(all(test, not(feature = \"shuttle\")))]\nmod ",
    ];
    let end = begins.iter().filter_map(|begin| text.find(begin)).min().unwrap_or(text.len());
    all_code(&text[..end])
}

/// Numbered lines of code including tests, without comments.
pub(super) fn all_code(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(at, line)| (at + 1, line.split("//").next().unwrap_or(line)))
}
