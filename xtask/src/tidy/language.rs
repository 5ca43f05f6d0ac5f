//! Rules about plain English in comments and documents.

use super::rules::{Exceptions, is_product, judge};
use super::tree::{Tree, code};

/// Words that begin headless clauses: a reader learns the actor only at the end of the sentence, if at all.
const HEADLESS: [&str; 4] = ["What", "Who", "Whose", "Of"];

/// No sentence of a comment or a document begins with a headless clause. Questions may, and so may cells of tables, which are
/// labels.
pub(super) fn sentences(tree: &Tree) -> Vec<String> {
    let mut faults = Vec::new();
    for (path, text) in tree.all() {
        let is_rust = path.ends_with(".rs");
        if !is_rust && !path.ends_with(".md") {
            continue;
        }
        for (at, line) in text.lines().enumerate() {
            let prose = if is_rust { comment(line) } else { paragraph(line) };
            if prose.is_some_and(begins_headless) {
                faults.push(format!("{path}:{}: {}", at + 1, line.trim()));
            }
        }
    }
    faults
}

/// Crates whose messages reach users.
const TELLING: [&str; 6] = [
    "crates/cli/",
    "crates/fs/",
    "crates/fuse/",
    "crates/disk/",
    "crates/report/",
    "crates/archive/",
];

/// Names of texts: printed by `{:?}` they are in quotes, and nothing else.
const TEXTS: [&str; 10] =
    ["code", "digest", "folder", "kind", "known", "name", "said", "tag", "text", "value"];

/// Files that print a text without such a name, or nothing that a user reads.
const RAW: Exceptions = &[
    ("crates/archive/src/lib.rs", "the fields of errors are texts and characters of an archive"),
    ("crates/cli/src/commands/cube/move_in/crash.rs", "a test: the moments of a crash"),
    ("crates/cli/src/commands/explain.rs", "the condition is a text"),
    ("crates/cli/src/commands/info.rs", "the label is a text"),
    ("crates/disk/src/source/ids.rs", "the argument is a text"),
    ("crates/fs/src/memory/short.rs", "the debug form itself"),
    ("crates/fuse/src/metrics.rs", "names of requests"),
    ("crates/fuse/src/session.rs", "the log of --debug"),
];

/// No debug form of an error reaches a user: only texts are printed by `{:?}`, for their quotes.
pub(super) fn debug_forms(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in tree.rust() {
        if !is_product(path) || !TELLING.iter().any(|crate_name| path.starts_with(crate_name)) {
            continue;
        }
        for (at, line) in code(text) {
            let line = line.trim_start();
            if line.starts_with("//") || line.contains("assert") || line.contains("panic!") {
                continue;
            }
            if raw_forms(line).any(|name| !TEXTS.contains(&name)) {
                let fault = format!("{path}:{at}: {line}: a sentence for people, by Display");
                found.push((path.to_owned(), fault));
            }
        }
    }
    judge(found, RAW)
}

/// The names that a line prints by `{:?}` or `{:#?}`; empty for those that come behind the text.
fn raw_forms(line: &str) -> impl Iterator<Item = &str> {
    line.split('{').skip(1).filter_map(|rest| {
        let (name, form) = rest.split_once('}')?.0.split_once(':')?;
        form.ends_with('?').then_some(name)
    })
}

/// The text of a line that is a comment and nothing else.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    let text = text.strip_prefix(['/', '!']).unwrap_or(text).strip_prefix(' ')?;
    // In examples comments are lines of code.
    Some(text.trim_start().strip_prefix("// ").unwrap_or(text))
}

/// The text of a line of a document that is no row of a table and no heading.
fn paragraph(line: &str) -> Option<&str> {
    let text = line.trim_start();
    (!text.starts_with(['|', '#'])).then(|| text.strip_prefix("- ").unwrap_or(text))
}

/// Whether a sentence in this line begins with one of the words and is no question.
fn begins_headless(text: &str) -> bool {
    let mut rest = text;
    loop {
        let word = rest.split(' ').next().unwrap_or(rest);
        if HEADLESS.contains(&word) && word.len() < rest.len() && !is_question(rest) {
            return true;
        }
        let Some((_, next)) = rest.split_once(". ") else { return false };
        rest = next;
    }
}

/// Whether the sentence at the start ends with a question mark, in this line.
fn is_question(text: &str) -> bool {
    text.find(['.', '?']).is_some_and(|at| text.as_bytes()[at] == b'?')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn canary_debug_forms() {
        let faults = |path: &str, line: &str| {
            let of_rule = debug_forms(&Tree::of(&[(path, line)]));
            of_rule.iter().filter(|fault| !fault.contains("is not needed")).count()
        };
        let path = "crates/disk/src/error.rs";
        assert_eq!(faults(path, "#[error(\"it is damaged: {0:?}\")]"), 1);
        assert_eq!(faults(path, "format!(\"it is damaged: {:?}\", events)"), 1);
        assert_eq!(faults(path, "format!(\"there is no {name:?}\")"), 0);
        assert_eq!(faults(path, "assert!(clean, \"{found:?}\")"), 0);
        assert_eq!(faults("crates/ext4/src/error.rs", "format!(\"{found:?}\")"), 0);
    }

    #[test]
    fn canary_sentences() {
        let faults = |path: &str, text: &str| sentences(&Tree::of(&[(path, text)])).len();
        assert_eq!(faults("a.rs", "/// What the lock guards.\nfn f() {}\n"), 1);
        assert_eq!(faults("a.rs", "fn f() {} // Later. Who knows\n"), 0);
        assert_eq!(faults("a.rs", "//! Counts. Of these, some are zero.\n"), 1);
        assert_eq!(faults("a.rs", "//!     // Who calls it.\n"), 1);
        assert_eq!(faults("a.rs", "/// What is it? Whether it is what it says.\n"), 0);
        assert_eq!(faults("a.md", "It waits. What waits is flushed.\n"), 1);
        assert_eq!(faults("a.md", "| What | Shown by |\n## What it costs\n"), 0);
    }
}
