//! Rules about pages: the commands, tests and files that they name exist, and tables of figures lie
//! in one place.

use std::collections::BTreeSet;

use super::tree::Tree;
use crate::tools::TOOLS;

/// Commands of xtask itself.
const OWN: [&str; 6] = ["tidy", "ci", "crash", "faults", "fuzz", "help"];

/// The folder of all tables of figures.
const FIGURES: &str = "docs/measurements/";

/// Folders whose files pages name by their whole path.
const TOP: [&str; 8] =
    ["crates/", "tools/", "xtask/", "docs/", "fuzz/", "python/", "packaging/", "dist/"];

/// Pages that people wrote.
fn pages(tree: &Tree) -> impl Iterator<Item = (&str, &str)> {
    tree.all().filter(|(path, _)| path.ends_with(".md") && *path != "docs/problems.md")
}

/// Every `cargo xtask NAME` in the repository is a command.
pub(super) fn commands(tree: &Tree) -> Vec<String> {
    let tools = TOOLS.iter().flat_map(|tool| tool.commands.iter().copied());
    let known: BTreeSet<&str> = OWN.into_iter().chain(tools).collect();
    let mut faults = Vec::new();
    // The canaries below name commands that do not exist.
    for (path, text) in tree.all().filter(|(path, _)| !path.starts_with("xtask/src/tidy/")) {
        for part in text.split("cargo xtask ").skip(1) {
            let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '-');
            let name = &part[..end.unwrap_or(part.len())];
            // An option, or a placeholder.
            if !name.is_empty() && !name.starts_with('-') && !known.contains(name) {
                faults.push(format!("{path}: there is no cargo xtask {name}"));
            }
        }
    }
    faults
}

/// Every test that a page calls by `cargo test` exists.
pub(super) fn tests(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, text) in pages(tree) {
        for snippet in snippets(text) {
            for part in snippet.split("cargo test ").skip(1) {
                let call = part.split([';', '#', '|', ')']).next().unwrap_or(part);
                let missing = missing_tests(tree, call.trim());
                faults.extend(missing.into_iter().map(|what| format!("{path}: {what}: {call}")));
            }
        }
    }
    faults
}

/// Faults of the arguments of `cargo test`: packages, programs and tests that do not exist.
fn missing_tests(tree: &Tree, call: &str) -> Vec<String> {
    let mut words = call.split_whitespace();
    let (mut folders, mut programs, mut filters) = (Vec::new(), Vec::new(), Vec::new());
    let mut missing = Vec::new();
    while let Some(word) = words.next() {
        match word {
            "-p" | "--package" => {
                let name = words.next().unwrap_or_default();
                match folder_of(tree, name) {
                    Some(folder) => folders.push(folder),
                    None => missing.push(format!("there is no package {name}")),
                }
            }
            "--test" => programs.push(words.next().unwrap_or_default()),
            "--features" | "--test-threads" => drop(words.next()),
            _ if word.starts_with('-') => {}
            _ => filters.push(word),
        }
    }
    let inside = |path: &str| folders.is_empty() || folders.iter().any(|at| path.starts_with(*at));
    let files: Vec<(&str, &str)> = tree.rust().filter(|(path, _)| inside(path)).collect();
    for program in programs {
        let ends = [format!("tests/{program}.rs"), format!("tests/{program}/main.rs")];
        if !files.iter().any(|(path, _)| ends.iter().any(|end| path.ends_with(end.as_str()))) {
            missing.push(format!("there is no test program {program}"));
        }
    }
    let is_there = |name: &str| {
        let declared = |text: &str| {
            ["fn ", "mod "].iter().any(|kind| {
                text.match_indices(kind).any(|(at, _)| {
                    let rest = &text[at + kind.len()..];
                    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                    rest[..end.unwrap_or(rest.len())].contains(name)
                })
            })
        };
        files.iter().any(|(_, text)| declared(text))
    };
    for filter in filters {
        if !filter.split("::").filter(|name| !name.is_empty()).all(is_there) {
            missing.push(format!("there is no test {filter}"));
        }
    }
    missing
}

/// The folder of a package, with a slash.
fn folder_of<'a>(tree: &'a Tree, package: &str) -> Option<&'a str> {
    let name = format!("name = \"{package}\"\n");
    let mut manifests = tree.all().filter(|(path, _)| path.ends_with("Cargo.toml"));
    let (path, _) = manifests.find(|(_, text)| text.contains(&name))?;
    path.strip_suffix("Cargo.toml")
}

/// Every file and folder of the repository that a page names exists.
pub(super) fn files(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, text) in pages(tree) {
        for snippet in snippets(text) {
            let named = |c: char| c.is_alphanumeric() || "_-./".contains(c);
            if snippet.contains("..") || !snippet.chars().all(named) || is_pattern(&snippet) {
                continue;
            }
            let made =
                || tree.get(".gitignore").is_some_and(|made| made.contains(&format!("/{snippet}")));
            let there = if TOP.iter().any(|top| snippet.starts_with(top)) {
                made() || tree.all().any(|(file, _)| begins(file, &snippet))
            } else {
                // The end of a path, if it is one.
                !snippet.ends_with(".rs")
                    || tree.rust().any(|(file, _)| file.ends_with(&format!("/{snippet}")))
            };
            if !there {
                faults.push(format!("{path}: there is no {snippet}"));
            }
        }
    }
    faults
}

/// Whether a part of a path stands for others: `docs/scenes/NAME.sh`.
fn is_pattern(path: &str) -> bool {
    path.split(['/', '.'])
        .any(|part| part.len() > 1 && part.chars().all(|c| c.is_ascii_uppercase()))
        && !path.ends_with(".md")
}

/// Whether a path is that of a file, with or without `.rs`, or of a folder above it.
fn begins(file: &str, path: &str) -> bool {
    let rest = file.strip_prefix(path.trim_end_matches('/'));
    rest.is_some_and(|rest| rest.is_empty() || rest == ".rs" || rest.starts_with('/'))
}

/// Tables of figures, whose columns are aligned to the right, lie in `docs/measurements`, with the
/// commands and the machine.
pub(super) fn figures(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, text) in pages(tree).filter(|(path, _)| !path.starts_with(FIGURES)) {
        for (at, line) in (1..).zip(text.lines()) {
            if line.starts_with('|') && line.contains("---:") {
                faults.push(format!("{path}:{at}: a table of figures outside {FIGURES}"));
            }
        }
    }
    faults
}

/// Code in a page: between backticks, which may span lines, and indented or fenced lines.
fn snippets(page: &str) -> Vec<String> {
    let (mut found, mut prose, mut fenced) = (Vec::new(), String::new(), false);
    for line in page.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced || line.starts_with("    ") {
            found.push(line.trim().to_owned());
        } else {
            prose.push_str(line);
            // A paragraph ends any code in it.
            prose.push(if line.is_empty() { '\n' } else { ' ' });
        }
    }
    for paragraph in prose.lines() {
        found.extend(paragraph.split('`').skip(1).step_by(2).map(ToOwned::to_owned));
    }
    found
}

/// Canaries.
#[cfg(test)]
mod canaries {
    use super::*;

    const CRATE: [(&str, &str); 3] = [
        ("crates/check/Cargo.toml", "[package]\nname = \"floe-check\"\n"),
        ("crates/check/tests/all/main.rs", "mod shards;\n"),
        ("crates/check/tests/all/shards.rs", "fn parts_make_a_whole() {}\n"),
    ];

    fn with(rule: fn(&Tree) -> Vec<String>, page: &str) -> usize {
        let mut texts = CRATE.to_vec();
        texts.push(("docs/a.md", page));
        rule(&Tree::of(&texts)).len()
    }

    #[test]
    fn canary_commands() {
        assert_eq!(with(commands, "`cargo xtask bench --cold`, `cargo xtask\n--help`"), 0);
        assert_eq!(with(commands, "`cargo xtask NAME`, cargo xtask tidy"), 0);
        assert_eq!(with(commands, "`cargo xtask bank`"), 1);
    }

    #[test]
    fn canary_tests() {
        for good in [
            "`cargo test -p floe-check --test all shards`",
            "`cargo test -p floe-check --test all -- shards::parts --nocapture`",
            "`cargo test -p\nfloe-check parts_make_a_whole`",
            "    cargo test -p floe-check  # one crate\n",
        ] {
            assert_eq!(with(tests, good), 0, "{good}");
        }
        for bad in [
            "`cargo test -p floe-cheque`",
            "`cargo test -p floe-check --test shards`",
            "`cargo test -p floe-check --test all shards::halves`",
            "    cargo test -p floe-check halves\n",
        ] {
            assert_eq!(with(tests, bad), 1, "{bad}");
        }
    }

    #[test]
    fn canary_files() {
        for good in
            ["`crates/check/tests`", "`all/shards.rs`", "`shards.rs`", "`a/b`", "`crates/<x>`"]
        {
            assert_eq!(with(files, good), 0, "{good}");
        }
        for bad in ["`crates/check/src`", "`all/halves.rs`", "`crates/check/tests/al`"] {
            assert_eq!(with(files, bad), 1, "{bad}");
        }
    }

    #[test]
    fn canary_figures() {
        let table = "| a | s |\n|---|---:|\n| b | 1 |\n";
        assert_eq!(with(figures, table), 1);
        assert_eq!(with(figures, "| a | s |\n|---|---|\n| b | 1 |\n"), 0);
        assert!(figures(&Tree::of(&[("docs/measurements/a.md", table)])).is_empty());
    }
}
