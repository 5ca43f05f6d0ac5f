//! The grammar of messages: a count of one takes the singular.

use std::borrow::Cow;

/// Nouns that messages count, plural and singular.
const NOUNS: [(&str, &str); 19] = [
    ("blocks", "block"),
    ("bytes", "byte"),
    ("changes", "change"),
    ("clusters", "cluster"),
    ("cubes", "cube"),
    ("directories", "directory"),
    ("entries", "entry"),
    ("extents", "extent"),
    ("files", "file"),
    ("findings", "finding"),
    ("groups", "group"),
    ("images", "image"),
    ("inodes", "inode"),
    ("links", "link"),
    ("lots", "lot"),
    ("names", "name"),
    ("ranges", "range"),
    ("reads", "read"),
    ("threads", "thread"),
];
/// Verbs that follow them.
const VERBS: [(&str, &str); 8] = [
    ("are", "is"),
    ("claim", "claims"),
    ("differ", "differs"),
    ("have", "has"),
    ("hold", "holds"),
    ("need", "needs"),
    ("wait", "waits"),
    ("were", "was"),
];
/// Words before a number that names something: "inode 1 names block 5".
const NAMED: [&str; 11] =
    ["inode", "block", "group", "cube", "lot", "byte", "level", "version", "line", "type", "node"];

/// Puts a noun that follows the count 1, and a verb that follows the noun, into the singular. Text in quotation marks, such as
/// the name of a file, stays as it is.
///
/// ```
/// use floe_format::words::agree;
///
/// assert_eq!(agree("1 blocks are lost, 21 blocks stay"), "1 block is lost, 21 blocks stay");
/// assert_eq!(agree("inode 1 names block 5"), "inode 1 names block 5");
/// assert_eq!(agree("\"my 1 files\" has 1 links"), "\"my 1 files\" has 1 link");
/// ```
pub fn agree(text: &str) -> Cow<'_, str> {
    let singular = |list: &[(&'static str, &'static str)], word: &str| {
        list.iter().find(|(plural, _)| *plural == word).map(|(_, singular)| *singular)
    };
    let is_one = |word: &str| word.trim_start_matches('(') == "1";
    if !text.split([' ', '\n']).any(is_one) {
        return Cow::Borrowed(text);
    }
    let mut made = String::with_capacity(text.len());
    // The words before the current one: one that is a count of 1, and whether a noun followed it.
    let (mut before, mut last, mut counted) = ("", "", false);
    let mut is_quoted = false;
    for piece in text.split_inclusive([' ', '\n']) {
        let marks = unescaped_marks(piece);
        if is_quoted || marks > 0 {
            is_quoted ^= marks % 2 == 1;
            made.push_str(piece);
            (before, last, counted) = ("", "", false);
            continue;
        }
        let whole = piece.trim_end_matches([' ', '\n']);
        let word = whole.trim_end_matches([',', '.', ';', ':', ')']);
        let one = is_one(last) && !NAMED.contains(&before);
        let changed = match (one, counted) {
            (true, _) => singular(&NOUNS, word),
            (false, true) => singular(&VERBS, word),
            (false, false) => None,
        };
        counted = one && changed.is_some();
        made.push_str(changed.unwrap_or(word));
        made.push_str(&piece[word.len()..]);
        (before, last) = (last, whole);
    }
    Cow::Owned(made)
}

/// Quotation marks without a backslash before them.
fn unescaped_marks(text: &str) -> usize {
    let (mut marks, mut is_escaped) = (0, false);
    for character in text.chars() {
        marks += usize::from(character == '"' && !is_escaped);
        is_escaped = character == '\\' && !is_escaped;
    }
    marks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_takes_the_singular_and_nothing_else_changes() {
        for (text, expected) in [
            ("it has 1 entries", "it has 1 entry"),
            ("(1 links, 1 bytes)", "(1 link, 1 byte)"),
            ("1 findings need repair", "1 finding needs repair"),
            ("1 blocks of 1 inodes", "1 block of 1 inode"),
            (
                "11 blocks, 0.1 blocks, 2,1 blocks, -1 blocks",
                "11 blocks, 0.1 blocks, 2,1 blocks, -1 blocks",
            ),
            ("block 1 blocks the way\n1 files\n", "block 1 blocks the way\n1 file\n"),
            ("chapter 1", "chapter 1"),
            ("entry \"1 files\" has 1 links", "entry \"1 files\" has 1 link"),
            (r#""a \" 1 files b" and 1 files"#, r#""a \" 1 files b" and 1 file"#),
            ("1", "1"),
            ("", ""),
        ] {
            assert_eq!(agree(text), expected);
        }
    }
}
