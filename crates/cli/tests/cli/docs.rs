//! Generated pages are up to date.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::floe;

#[test]
fn problems_md_is_what_the_table_says() {
    let page = include_str!("../../../../docs/problems.md");
    let current = floe(&["problems", "--markdown"]).out;
    assert!(
        page == current,
        "docs/problems.md is out of date: floe problems --markdown > docs/problems.md"
    );
}

/// The tests named in the documentation exist.
#[test]
fn tests_that_pages_name_exist() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sources = String::new();
    let mut folders: Vec<_> =
        ["crates", "fuzz", "tools", "xtask"].iter().map(|name| repository.join(name)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() && !entry.ends_with("target") {
                folders.push(entry);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                sources.push_str(&fs::read_to_string(entry).unwrap());
            }
        }
    }
    let mut named = 0;
    for page in ["safety", "limits", "plan-file"] {
        let text = fs::read_to_string(repository.join(format!("docs/{page}.md"))).unwrap();
        // `crate: file: name`, or another test in the same file.
        for quoted in text.split('`').skip(1).step_by(2) {
            let name = quoted.rsplit(": ").next().unwrap_or(quoted);
            let is_name = name
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte == b'_' || byte.is_ascii_digit());
            if !is_name || name.matches('_').count() < 3 {
                continue;
            }
            named += 1;
            assert!(sources.contains(&format!("fn {name}(")), "{page}.md names no test: {name}");
        }
    }
    assert!(named > 60, "{named}");
}

/// Pages that people wrote.
fn pages() -> Vec<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut found = Vec::new();
    for folder in ["", "docs", "docs/measurements"] {
        let entries = fs::read_dir(repository.join(folder)).unwrap();
        found.extend(entries.map(|entry| entry.unwrap().path()).filter(|path| {
            path.extension().is_some_and(|extension| extension == "md")
                && !path.ends_with("problems.md")
        }));
    }
    found
}

/// The commands and options that the documentation names exist.
#[test]
fn options_that_pages_name_exist() {
    let commands = floe(&["--help"]).out;
    let known = |name: &str| {
        commands.lines().any(|line| line.trim_start().starts_with(&format!("{name} ")))
    };
    let mut helps: BTreeMap<String, String> = BTreeMap::new();
    let (mut named, mut faults) = (0, Vec::new());
    for path in pages() {
        let page = path.file_name().unwrap().to_string_lossy().into_owned();
        // A row of a table of figures names a program by its options.
        let text = fs::read_to_string(&path).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with("| floe"));
        let text = lines.collect::<Vec<_>>().join("\n");
        for call in text.split("floe ").skip(1) {
            // The call ends with the code that it is part of.
            let call = call.split(['`', '\n', ';', '|', '#', '(', '&']).next().unwrap_or_default();
            let mut words = call.split_whitespace();
            let Some(command) = words.next().filter(|name| known(name)) else { continue };
            // `floe cube` has commands of its own.
            let mut line = vec![command];
            line.extend(words.clone().next().filter(|_| command == "cube"));
            for word in words {
                let option = word.trim_matches([',', '.', '[', ']', ')', ':']);
                let option = option.split('=').next().unwrap_or(option);
                if !option.starts_with("--") || ["--", "--help"].contains(&option) {
                    continue;
                }
                named += 1;
                let help = helps
                    .entry(line.join(" "))
                    .or_insert_with(|| floe(&[&line[..], &["--help"]].concat()).out);
                let ends = |c: char| !c.is_alphanumeric() && c != '-';
                if !help.split(ends).any(|word| word == option) {
                    faults.push(format!("{page}: floe {command} has no {option}"));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(named > 100, "only {named} were found");
}
