//! Rules about plain English in comments and documents.

use super::tree::Tree;

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
