//! Resolves duplicate names in a directory.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use floe_format::InodeNr;
use floe_format::ext::casefold;
use floe_format::ext::dirent::MAX_NAME_LEN;

use super::{Directory, Entry};

/// An entry that was dropped or renamed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// Dropped: another entry has this name and names this inode (`dirent-duplicate-same-inode`).
    DroppedSame {
        /// The inode it named.
        inode: InodeNr,
        /// Its name.
        name: Vec<u8>,
    },
    /// Dropped: another entry has this name, and a new encrypted name cannot be made without the
    /// key (`encrypted-duplicate-name`).
    DroppedNoKey {
        /// The inode it named.
        inode: InodeNr,
        /// Its name.
        name: Vec<u8>,
    },
    /// Renamed: another entry has this name (`dirent-duplicate-name`).
    Renamed {
        /// The inode it names.
        inode: InodeNr,
        /// The old name.
        from: Vec<u8>,
        /// The new name.
        to: Vec<u8>,
    },
    /// Dropped: no name, a name of dots or of more than 255 bytes, or no inode.
    DroppedBad {
        /// The inode it named.
        inode: InodeNr,
        /// Its name.
        name: Vec<u8>,
    },
}

/// The form in which names are compared: the folded name in a casefolded directory (the plain one
/// if it cannot be folded), else the name.
pub(super) fn key<'n>(dir: &Directory, name: &'n [u8]) -> Cow<'n, [u8]> {
    match dir.folds().then(|| casefold::fold(name)) {
        Some(Ok(folded)) => Cow::Owned(folded),
        _ => Cow::Borrowed(name),
    }
}

/// Sorts entries by name and makes each name unique. If two entries have one name, the one with the
/// larger inode number comes first and keeps it, as in e2fsck; of two that name the same inode, the
/// first of the list does.
pub(super) fn settle<'a>(
    dir: &Directory,
    mut entries: Vec<Entry<'a>>,
) -> (Vec<Entry<'a>>, Vec<Settled>) {
    let mut settled = Vec::new();
    entries.retain(|entry| {
        let name: &[u8] = &entry.name;
        let good = entry.inode.0 != 0
            && (1..=MAX_NAME_LEN).contains(&name.len())
            && !matches!(name, b"." | b"..");
        if !good {
            settled.push(Settled::DroppedBad { inode: entry.inode, name: name.to_vec() });
        }
        good
    });
    // Sorting by plain names needs no keys. Few directories are casefolded.
    if dir.folds() {
        entries
            .sort_by_cached_key(|entry| (key(dir, &entry.name).into_owned(), Reverse(entry.inode)));
    } else {
        entries.sort_by(|one, other| {
            (&one.name, other.inode, one.file_type).cmp(&(&other.name, one.inode, other.file_type))
        });
    }
    let doubles = doubles(dir, &entries);
    if doubles.iter().any(|double| *double) {
        entries = resolve(dir, entries, &doubles, &mut settled);
    }
    (entries, settled)
}

/// For each entry, whether it has the name of the one before.
fn doubles(dir: &Directory, entries: &[Entry<'_>]) -> Vec<bool> {
    let mut doubles = vec![false; entries.len()];
    for (pair, double) in entries.windows(2).zip(doubles.iter_mut().skip(1)) {
        let [one, other] = pair else { continue };
        *double = one.name == other.name || key(dir, &one.name) == key(dir, &other.name);
    }
    doubles
}

/// Drops or renames every entry that has the name of the one before.
fn resolve<'a>(
    dir: &Directory,
    entries: Vec<Entry<'a>>,
    doubles: &[bool],
    settled: &mut Vec<Settled>,
) -> Vec<Entry<'a>> {
    let mut taken: HashSet<Vec<u8>> =
        entries.iter().map(|entry| key(dir, &entry.name).into_owned()).collect();
    let mut counters = HashMap::new();
    let mut previous = InodeNr(0);
    let mut kept = Vec::with_capacity(entries.len());
    for (mut entry, double) in entries.into_iter().zip(doubles) {
        let inode = entry.inode;
        // Entries of one name are sorted by inode.
        let same = *double && inode == previous;
        // Like e2fsck, compare with the entry before, even if that was dropped. So of three equal
        // entries the third gets a name of its own, which loses nothing.
        previous = if same { InodeNr(0) } else { inode };
        if same {
            settled.push(Settled::DroppedSame { inode, name: entry.name.into_owned() });
            continue;
        }
        if *double && dir.encrypted {
            settled.push(Settled::DroppedNoKey { inode, name: entry.name.into_owned() });
            continue;
        }
        if *double {
            let to = unique(dir, &entry.name, &mut taken, &mut counters);
            let from = std::mem::replace(&mut entry.name, Cow::Owned(to.clone())).into_owned();
            settled.push(Settled::Renamed { inode, from, to });
        }
        kept.push(entry);
    }
    kept
}

/// A new, unused name: `~` and a number appended to the old one, or its own number increased.
/// `counters` keeps the last number of each stem, so that many entries of one name take linear
/// time.
fn unique(
    dir: &Directory,
    name: &[u8],
    taken: &mut HashSet<Vec<u8>>,
    counters: &mut HashMap<Vec<u8>, u64>,
) -> Vec<u8> {
    let (stem, first) = split_number(name);
    let counter = counters.entry(stem.to_vec()).or_insert(first);
    *counter = first.max(*counter);
    loop {
        let number = format!("~{counter}");
        *counter = counter.saturating_add(1);
        let mut new = cut(stem, MAX_NAME_LEN - number.len(), dir.folds()).to_vec();
        new.extend_from_slice(number.as_bytes());
        // The loop ends: there are more numbers than entries, and shortened stems still differ by
        // number.
        if taken.insert(key(dir, &new).into_owned()) {
            return new;
        }
    }
}

/// The name without a trailing `~` with digits, and the number to try first.
fn split_number(name: &[u8]) -> (&[u8], u64) {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    let (rest, number) = name.split_at(name.len() - digits);
    let number = std::str::from_utf8(number).ok().and_then(|digits| digits.parse::<u64>().ok());
    match (rest.split_last(), number.and_then(|number| number.checked_add(1))) {
        // A name that is only a number keeps it, because its stem would be empty.
        (Some((b'~', stem)), Some(next)) if !stem.is_empty() => (stem, next),
        _ => (name, 0),
    }
}

/// The first bytes of a name, at most `most`. If names are text, no character is cut in two.
fn cut(name: &[u8], most: usize, text: bool) -> &[u8] {
    let Some(short) = name.get(..most) else { return name };
    match std::str::from_utf8(short) {
        Err(error) if text && error.error_len().is_none() => {
            short.get(..error.valid_up_to()).unwrap_or(short)
        }
        _ => short,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::tests::directory;

    fn names(dir: &Directory, entries: &[(u32, &str)]) -> (Vec<(u32, String)>, usize) {
        let entries =
            entries.iter().map(|(ino, name)| Entry::new(InodeNr(*ino), name.as_bytes(), 1));
        let (kept, settled) = settle(dir, entries.collect());
        let text = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
        (kept.iter().map(|entry| (entry.inode.0, text(&entry.name))).collect(), settled.len())
    }

    fn list(names: &[(u32, &str)]) -> Vec<(u32, String)> {
        names.iter().map(|(inode, name)| (*inode, (*name).to_owned())).collect()
    }

    #[test]
    fn the_same_entry_is_dropped_and_another_is_renamed() {
        let dir = directory();
        let (kept, settled) = names(&dir, &[(5, "a"), (9, "a"), (5, "a"), (7, "b"), (6, "a~0")]);
        assert_eq!(kept, list(&[(9, "a"), (5, "a~1"), (6, "a~0"), (7, "b")]));
        assert_eq!(settled, 2);
        let (kept, _) = names(&dir, &[(1, "x~9"), (2, "x~9"), (3, "~5"), (4, "~5")]);
        assert_eq!(kept, list(&[(2, "x~9"), (1, "x~10"), (4, "~5"), (3, "~5~0")]));
    }

    #[test]
    fn the_third_of_three_alike_is_renamed() {
        let (kept, settled) = names(&directory(), &[(5, "a"), (5, "a"), (5, "a")]);
        assert_eq!((kept, settled), (list(&[(5, "a"), (5, "a~0")]), 2));
    }

    #[test]
    fn long_names_are_cut() {
        let long = "n".repeat(255);
        let (kept, _) = names(&directory(), &[(1, &long), (2, &long)]);
        assert_eq!(kept[1].1, format!("{}~0", "n".repeat(253)));
        let dir = Directory { casefolded: true, ..directory() };
        let long = "\u{e9}".repeat(127);
        let (kept, _) = names(&dir, &[(1, &long), (2, &long)]);
        assert_eq!(kept[1].1, format!("{}~0", "\u{e9}".repeat(126)));
    }

    #[test]
    fn case_counts_where_it_should() {
        let folding = Directory { casefolded: true, ..directory() };
        assert_eq!(names(&directory(), &[(1, "Ab"), (2, "aB")]).1, 0);
        let (kept, settled) = names(&folding, &[(1, "Ab"), (2, "aB"), (3, "AB~0")]);
        assert_eq!((kept[1].1.as_str(), settled), ("Ab~1", 1));
    }

    #[test]
    fn encrypted_names_are_never_made_up() {
        let dir = Directory { encrypted: true, ..directory() };
        let (kept, settled) = names(&dir, &[(1, "0123456789abcdef"), (2, "0123456789abcdef")]);
        assert_eq!((kept, settled), (list(&[(2, "0123456789abcdef")]), 1));
    }

    #[test]
    fn what_cannot_be_an_entry_goes() {
        let long = "n".repeat(256);
        let (kept, settled) =
            names(&directory(), &[(1, ""), (1, "."), (1, ".."), (0, "x"), (1, &long), (3, "y")]);
        assert_eq!((kept, settled), (list(&[(3, "y")]), 5));
    }

    #[test]
    fn many_of_one_name_take_no_time() {
        let entries: Vec<(u32, &str)> = (1..=50_000).map(|inode| (inode, "same")).collect();
        let (kept, settled) = names(&directory(), &entries);
        assert_eq!((kept.len(), settled), (50_000, 49_999));
        assert_eq!(kept[49_999], (1, "same~49998".to_owned()));
    }
}
