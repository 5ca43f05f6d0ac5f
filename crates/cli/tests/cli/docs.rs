//! Generated pages are up to date.

use std::fs;
use std::path::Path;

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
