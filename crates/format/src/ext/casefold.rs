//! Names in casefolded directories: UTF-8 of Unicode 12.1 (`s_encoding` 1), canonically decomposed
//! and fully case-folded, without default-ignorable characters ("NFDI + CF" of Linux' `fs/unicode`).
//!
//! The tables are those of the crates `caseless`, `unicode-normalization` and `regex-syntax`, which
//! know newer versions of Unicode. Decompositions and foldings of a character never change once it
//! is assigned, so only one difference matters: as in Linux's tables, a character that 12.1 does
//! not assign maps to itself and reorders no marks, even if later versions gave it a folding. (A
//! test compares every character with debugfs.) A name that is not UTF-8 is invalid; Linux compares
//! and hashes it as plain bytes.

use floe_sync::LazyLock;

use caseless::Caseless;
use regex_syntax::hir::{Class, HirKind};
use unicode_normalization::char::{canonical_combining_class, decompose_canonical};

/// The byte of a name at which its first invalid character starts (problem
/// `casefold-name-invalid-encoding`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidAt(pub usize);

/// Inclusive ranges of characters, in order.
struct Ranges(Vec<(char, char)>);

impl Ranges {
    /// The characters of a regular-expression class. The patterns below are constants and a test
    /// covers both, so the empty result for an invalid pattern never occurs.
    fn of(pattern: &str) -> Self {
        let ranges = match regex_syntax::parse(pattern).map(regex_syntax::hir::Hir::into_kind) {
            Ok(HirKind::Class(Class::Unicode(class))) => {
                class.ranges().iter().map(|range| (range.start(), range.end())).collect()
            }
            _ => Vec::new(),
        };
        Self(ranges)
    }

    fn contains(&self, c: char) -> bool {
        let behind = self.0.partition_point(|&(start, _)| start <= c);
        behind.checked_sub(1).and_then(|at| self.0.get(at)).is_some_and(|&(_, end)| c <= end)
    }
}

/// Characters that Unicode 12.1 has, private and non-characters included.
static ASSIGNED: LazyLock<Ranges> = LazyLock::new(|| Ranges::of(r"\p{age=12.1}"));
/// Characters that comparison ignores, such as joiners and variation selectors, assigned in 12.1 or
/// not. (U+180F was added to them later.)
static IGNORABLE: LazyLock<Ranges> =
    LazyLock::new(|| Ranges::of(r"[\p{Default_Ignorable_Code_Point}--\x{180F}]"));

/// The part of a name that is compared: like Linux, up to its first NUL.
fn counted(name: &[u8]) -> &[u8] {
    name.split(|&byte| byte == 0).next().unwrap_or(name)
}

/// Whether a name is valid UTF-8 (strict encoding). Bytes behind a NUL are not judged, and a
/// character that Unicode 12.1 does not assign is valid.
pub fn validate(name: &[u8]) -> Result<(), InvalidAt> {
    match std::str::from_utf8(counted(name)) {
        Ok(_) => Ok(()),
        Err(error) => Err(InvalidAt(error.valid_up_to())),
    }
}

/// The folded form of a name, for hashing and comparing; an error if it cannot be folded, in which
/// case Linux hashes and compares the plain bytes. This is laxer than [`validate`]: stray
/// continuation bytes are copied, as Linux does.
pub fn fold(name: &[u8]) -> Result<Vec<u8>, InvalidAt> {
    if counted(name).is_ascii() {
        return Ok(counted(name).to_ascii_lowercase());
    }
    let mut folded = Folded::default();
    let mut at = 0;
    for chunk in counted(name).utf8_chunks() {
        chunk.valid().chars().for_each(|c| folded.add(c));
        at += chunk.valid().len();
        // Linux copies a stray continuation byte.
        if chunk.invalid().iter().any(|&byte| byte & 0xc0 != 0x80) {
            return Err(InvalidAt(at));
        }
        chunk.invalid().iter().for_each(|&byte| folded.add_stray(byte));
        at += chunk.invalid().len();
    }
    folded.sort_marks();
    Ok(folded.text)
}

/// Whether two names are the same in a casefolded directory: their folded forms are equal, or, if
/// one of them is not valid, their bytes are.
pub fn same_name(one: &[u8], other: &[u8]) -> bool {
    if one == other {
        return true;
    }
    matches!((fold(one), fold(other)), (Ok(one), Ok(other)) if one == other)
}

/// The folded text so far, and behind it the marks that are not yet in canonical order.
#[derive(Default)]
struct Folded {
    text: Vec<u8>,
    marks: Vec<Mark>,
}

/// An item between two base characters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// A combining mark and its class.
    Combining(u8, char),
    /// A continuation byte without a lead byte.
    Stray(u8),
}

impl Folded {
    /// Adds what a character folds to: its case folding if it has one, else its decomposition,
    /// and so on for each part.
    fn add(&mut self, c: char) {
        if !c.is_ascii() && IGNORABLE.contains(c) {
            // The character folds to nothing, but marks do not move across it.
            self.sort_marks();
            return;
        }
        if !c.is_ascii() && !ASSIGNED.contains(c) {
            return self.add_base(c);
        }
        let folded = || std::iter::once(c).default_case_fold();
        if folded().ne([c]) {
            return folded().for_each(|part| self.add(part));
        }
        let mut whole = false;
        let mut parts = Vec::new();
        decompose_canonical(c, |part| {
            whole |= part == c;
            parts.push(part);
        });
        if !whole {
            return parts.into_iter().for_each(|part| self.add(part));
        }
        match canonical_combining_class(c) {
            0 => self.add_base(c),
            class => self.marks.push(Mark::Combining(class, c)),
        }
    }

    /// Adds a character as it is; marks do not move across it.
    fn add_base(&mut self, c: char) {
        self.sort_marks();
        self.push(c);
    }

    /// Adds a continuation byte without a lead byte.
    fn add_stray(&mut self, byte: u8) {
        if self.marks.is_empty() {
            self.text.push(byte);
        } else {
            self.marks.push(Mark::Stray(byte));
        }
    }

    /// Puts the marks behind the last base character into canonical order, as Linux does: one scan
    /// to learn their classes, then one scan for each class. Each scan copies the stray bytes that
    /// it passes.
    fn sort_marks(&mut self) {
        let marks = std::mem::take(&mut self.marks);
        let class_of = |mark: &Mark| match *mark {
            Mark::Combining(class, _) => Some(class),
            Mark::Stray(_) => None,
        };
        let mut classes: Vec<u8> = marks.iter().filter_map(class_of).collect();
        classes.sort_unstable();
        classes.dedup();
        for class in std::iter::once(None).chain(classes.into_iter().map(Some)) {
            for mark in &marks {
                match *mark {
                    Mark::Stray(byte) => self.text.push(byte),
                    Mark::Combining(own, c) if Some(own) == class => self.push(c),
                    Mark::Combining(..) => {}
                }
            }
        }
    }

    fn push(&mut self, c: char) {
        self.text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn names_that_are_the_same() {
        assert!(same_name(b"README", b"readme"));
        assert!(same_name("Stra\u{df}e".as_bytes(), b"STRASSE"));
        assert!(same_name("\u{c4}".as_bytes(), "a\u{308}".as_bytes()));
        assert!(same_name("\u{212b}".as_bytes(), "\u{e5}".as_bytes()));
        assert!(same_name("a\u{ad}b".as_bytes(), b"AB"));
        assert!(same_name("\u{ac00}".as_bytes(), "\u{1100}\u{1161}".as_bytes()));
        // Marks of different classes in either order.
        assert!(same_name("a\u{301}\u{323}".as_bytes(), "A\u{323}\u{301}".as_bytes()));
        assert!(!same_name(b"a", b"b"));
    }

    #[test]
    fn invalid_names_are_compared_as_bytes() {
        assert_eq!(validate(b"ok\xff"), Err(InvalidAt(2)));
        assert!(same_name(b"A\xff", b"A\xff"));
        assert!(!same_name(b"A\xff", b"a\xff"));
        assert_eq!(validate(b"stops\0here\xff"), Ok(()));
    }

    #[test]
    fn characters_newer_than_12_1_stand_for_themselves() {
        // U+A7C7 came with Unicode 13, with U+A7C8 as its lower case.
        assert_eq!(validate("\u{a7c7}".as_bytes()), Ok(()));
        assert!(!same_name("\u{a7c7}".as_bytes(), "\u{a7c8}".as_bytes()));
        assert!(same_name("A\u{a7c7}".as_bytes(), "a\u{a7c7}".as_bytes()));
    }

    #[test]
    fn the_tables_are_there() {
        assert!(ASSIGNED.0.len() > 500);
        assert!(IGNORABLE.0.len() > 10);
        assert!(ASSIGNED.contains('\u{10ffff}') && !ASSIGNED.contains('\u{378}'));
    }

    proptest! {
        #[test]
        fn folding_is_done_in_one_step(name in proptest::collection::vec(any::<char>(), 0..20)) {
            let name: String = name.into_iter().collect();
            if let Ok(folded) = fold(name.as_bytes()) {
                prop_assert_eq!(fold(&folded), Ok(folded.clone()));
                prop_assert!(same_name(name.as_bytes(), &folded) || name.contains('\0'));
            }
        }

        #[test]
        fn no_bytes_panic(name in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = (fold(&name).is_ok(), validate(&name).is_ok());
        }
    }
}
