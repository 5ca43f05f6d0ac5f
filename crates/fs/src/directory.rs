//! A directory in memory, in an order that a reader can go on with at any time.
//!
//! A reader of a directory holds nothing but a *cookie*: the place behind the entry that it had last. Entries
//! are in the order of the hash of their names, in every representation, so that a cookie means the same
//! before and after other names come and go, after an eviction, and on the next mount.
//!
//! A cookie is below 2^63, because programs see it as a signed offset: 31 bits of the hash, 20 bits of the
//! minor hash, 12 bits that number names whose hashes agree so far. 0 is the start, 1 and 2 are `.` and `..`.

use std::collections::BTreeMap;

use floe_disk::volume::ErrorCode;
use floe_format::InodeNr;
use floe_format::ext::casefold;
use floe_format::ext::dirhash::dirhash;
use floe_format::ext::htree::HashVersion;
use floe_format::ext::inode::FileType;
use floe_format::ext::superblock::{FLAG_UNSIGNED_HASH, Superblock};

use crate::FsError;
use crate::faults::Fault;

/// The cookie behind `.`.
pub const AFTER_DOT: u64 = 1;
/// The cookie behind `..`; those of all entries are larger.
pub const AFTER_DOT_DOT: u64 = 2;

/// Bits of a cookie that number names of the same hash.
pub(crate) const TIE_BITS: u32 = 12;

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The inode that it names.
    pub inode: InodeNr,
    /// The type that the entry states; `None` where entries have none.
    pub kind: Option<FileType>,
    /// The name, at most 255 bytes.
    pub name: Box<[u8]>,
}

/// How the names of one file system are hashed, for cookies.
///
/// Always with the hash that the superblock names for new directories: the order of cookies need not be that of
/// an index on the disk.
#[derive(Clone, Copy, Debug)]
pub struct NameHash {
    version: HashVersion,
    seed: [u32; 4],
}

impl NameHash {
    /// As the superblock says, or half-MD4 where it says nothing usable.
    pub fn of(superblock: &Superblock) -> Self {
        let unsigned = superblock.flags & FLAG_UNSIGNED_HASH != 0;
        let version = HashVersion::of_root(superblock.def_hash_version, unsigned);
        let usable = version.filter(|version| *version != HashVersion::SipHash);
        let version = usable.unwrap_or(HashVersion::HalfMd4);
        Self { version, seed: superblock.hash_seed }
    }

    /// The first cookie for names of this hash.
    pub(crate) fn cookie(&self, name: &[u8]) -> u64 {
        let hash = dirhash(self.version, name, &self.seed).unwrap_or_default();
        let minor = u64::from(hash.minor_hash) >> TIE_BITS << TIE_BITS;
        (u64::from(hash.hash) >> 1) << 32 | minor
    }
}

/// The names of a directory.
#[derive(Clone, Debug)]
pub struct Directory {
    hash: NameHash,
    folds: bool,
    parent: InodeNr,
    /// By the cookie of the place behind each entry.
    entries: BTreeMap<u64, Entry>,
    damage: Option<(String, Fault)>,
}

impl Directory {
    /// An empty directory. With `folds`, case does not count in look-ups.
    pub const fn new(hash: NameHash, folds: bool, parent: InodeNr) -> Self {
        Self { hash, folds, parent, entries: BTreeMap::new(), damage: None }
    }

    /// The directory that `..` leads to.
    pub const fn parent(&self) -> InodeNr {
        self.parent
    }

    /// Why entries may be missing; `None` for a sound directory.
    pub fn damage(&self) -> Option<&str> {
        self.damage.as_ref().map(|(what, _)| what.as_str())
    }

    /// Whether entries may be missing because the device failed: the next look may find them.
    pub(crate) fn is_unread(&self) -> bool {
        self.damage.as_ref().is_some_and(|(_, fault)| fault.code == ErrorCode::Device)
    }

    /// The error of a call that needs entries that may be missing.
    pub(crate) fn error(&self, inode: InodeNr) -> Option<FsError> {
        let (what, fault) = self.damage.clone()?;
        Some(match fault.code {
            ErrorCode::Device => FsError::Unreadable { inode, what, fault },
            _ => FsError::Damaged { inode, what, fault },
        })
    }

    /// Notes that entries may be missing. The first reason counts, but for one that may pass.
    pub(crate) fn note_damage(&mut self, why: String, fault: Fault) {
        if self.damage.is_none() || self.is_unread() {
            self.damage = Some((why, fault));
        }
    }

    /// Names but `.` and `..`.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has no names but `.` and `..`.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an entry, whose name may exist already in a damaged directory. `false`, and nothing changes, if
    /// 4,096 names have the same hash.
    pub fn insert(&mut self, entry: Entry) -> bool {
        let ties = self.ties(&entry.name);
        let taken = |cookie: &u64| self.entries.contains_key(cookie);
        let Some(free) = ties.into_iter().find(|cookie| !taken(cookie)) else { return false };
        self.entries.insert(free, entry);
        true
    }

    /// Whether case does not count.
    pub const fn folds(&self) -> bool {
        self.folds
    }

    /// Removes the entry that [`Directory::find`] finds.
    pub fn remove(&mut self, name: &[u8]) -> Option<Entry> {
        let (cookie, _) = self.place_of(name)?;
        self.entries.remove(&cookie)
    }

    /// The entry of a name: the same bytes, or where case does not count the same letters.
    pub fn find(&self, name: &[u8]) -> Option<&Entry> {
        self.place_of(name).map(|(_, entry)| entry)
    }

    fn place_of(&self, name: &[u8]) -> Option<(u64, &Entry)> {
        let ties = || self.entries.range(self.ties(name)).map(|(&cookie, entry)| (cookie, entry));
        let exact = ties().find(|(_, entry)| *entry.name == *name);
        let folded = || ties().find(|(_, entry)| casefold::same_name(&entry.name, name));
        if self.folds { exact.or_else(folded) } else { exact }
    }

    /// Lets a name lead to an inode. One that is there keeps its letters, as on the disk. `false` as [`Directory::insert`].
    pub(crate) fn lead(&mut self, entry: Entry) -> bool {
        let Some((cookie, old)) = self.place_of(&entry.name) else { return self.insert(entry) };
        let name = old.name.clone();
        self.entries.insert(cookie, Entry { name, ..entry });
        true
    }

    /// Lets `..` lead elsewhere.
    pub(crate) const fn set_parent(&mut self, parent: InodeNr) {
        self.parent = parent;
    }

    /// Entries behind a cookie, each with the cookie to go on from behind it.
    pub fn behind(&self, cookie: u64) -> impl Iterator<Item = (u64, &Entry)> {
        let from = cookie.max(AFTER_DOT_DOT).saturating_add(1);
        self.entries.range(from..).map(|(&cookie, entry)| (cookie, entry))
    }

    /// The cookies that a name can have.
    fn ties(&self, name: &[u8]) -> std::ops::RangeInclusive<u64> {
        let folded = if self.folds { casefold::fold(name).ok() } else { None };
        let first = self.hash.cookie(folded.as_deref().unwrap_or(name));
        first.max(AFTER_DOT_DOT + 1)..=first + (1 << TIE_BITS) - 1
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn directory(folds: bool) -> Directory {
        let mut superblock = Superblock::decode(&[0; 1024]);
        superblock.def_hash_version = 1;
        Directory::new(NameHash::of(&superblock), folds, InodeNr::ROOT)
    }

    fn entry(number: u32, name: &[u8]) -> Entry {
        Entry { inode: InodeNr(number), kind: None, name: name.into() }
    }

    #[test]
    fn case_counts_unless_the_directory_folds() {
        for folds in [false, true] {
            let mut directory = directory(folds);
            assert!(directory.insert(entry(12, b"Makefile")));
            assert_eq!(directory.find(b"MAKEFILE").is_some(), folds);
            assert!(directory.find(b"Makefile").is_some());
        }
    }

    #[test]
    fn more_names_of_one_hash_than_cookies_are_refused() {
        let mut directory = directory(false);
        let mut taken = 0;
        while directory.insert(entry(12, b"again")) {
            taken += 1;
        }
        assert_eq!(taken, 1 << TIE_BITS);
    }

    proptest! {
        /// Whatever is inserted between two reads, a reader gets all that was there the whole time, once.
        #[test]
        fn a_reader_misses_nothing_and_sees_nothing_twice(
            names in prop::collection::btree_set("[a-z]{1,8}", 1..60),
            later in prop::collection::btree_set("[A-Z]{1,8}", 0..30),
            step in 1usize..9,
        ) {
            let mut directory = directory(false);
            for name in &names {
                prop_assert!(directory.insert(entry(12, name.as_bytes())));
            }
            let (mut seen, mut cookie, mut later) = (Vec::new(), 0, later.into_iter());
            loop {
                let part: Vec<_> = directory.behind(cookie).take(step)
                    .map(|(at, entry)| (at, entry.name.clone())).collect();
                let Some((last, _)) = part.last() else { break };
                cookie = *last;
                prop_assert!(cookie > AFTER_DOT_DOT && cookie < 1 << 63);
                seen.extend(part.into_iter().map(|(_, name)| name));
                if let Some(name) = later.next() {
                    directory.insert(entry(13, name.as_bytes()));
                }
            }
            seen.retain(|name| name[0].is_ascii_lowercase());
            prop_assert_eq!(seen.len(), names.len());
            let seen: std::collections::BTreeSet<_> =
                seen.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect();
            prop_assert_eq!(seen, names);
        }
    }
}
