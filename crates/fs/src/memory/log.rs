//! The log of operations: all changes that the disk has not got yet, in their order, with an index by mnode.
//!
//! The paper's logs are per mnode and core, and merged by stamp. Here they are per slot ([`Own`](super::own::Own)), and are
//! merged before anybody looks at them: one list in the order of stamps is the merged log, and the logs of mnodes are lists of
//! stamps. Most mnodes have one change that waits, so the index has its stamp in place.

use std::collections::{BTreeSet, VecDeque};

use floe_format::InodeNr;

use super::record::{Action, Record, Stamp};
use crate::by_number::ByNumber;

/// Changes that the disk has not got yet.
#[derive(Debug, Default)]
pub(crate) struct Log {
    records: Records,
    of_mnodes: Index,
    last: Stamp,
    /// Memory for [`Log::remove_all_of`].
    places: Vec<(usize, usize)>,
}

/// Changes of a chunk. A chunk that has more is cut in two.
const PER_CHUNK: usize = 64;

/// Changes in the order of their stamps.
#[derive(Debug, Default)]
struct Records {
    /// In order; none without a change.
    chunks: VecDeque<Chunk>,
    /// The last stamp of each chunk. Side by side, because a search among the chunks themselves would wait for memory at each
    /// step.
    lasts: VecDeque<Stamp>,
    len: usize,
}

/// Neighbouring changes; `None` stands for one that was taken out. At least a quarter of them are there.
#[derive(Debug)]
struct Chunk {
    records: Vec<(Stamp, Option<Record>)>,
    there: usize,
}

impl Chunk {
    fn new() -> Self {
        Self { records: Vec::with_capacity(PER_CHUNK), there: 0 }
    }

    fn last(&self) -> Stamp {
        self.records.last().map_or_else(Stamp::default, |(stamp, _)| *stamp)
    }

    fn place(&self, stamp: Stamp) -> Result<usize, usize> {
        self.records.binary_search_by_key(&stamp, |(stamp, _)| *stamp)
    }
}

impl Records {
    /// The chunk that has a stamp, or would.
    fn chunk(&self, stamp: Stamp) -> usize {
        // Most are new ones, behind all others.
        if self.lasts.back().is_none_or(|last| *last < stamp) {
            return self.lasts.len();
        }
        self.lasts.partition_point(|last| *last < stamp)
    }

    /// Notes the last stamp of a chunk that was changed.
    fn note_last(&mut self, at: usize) {
        if let (Some(last), Some(chunk)) = (self.lasts.get_mut(at), self.chunks.get(at)) {
            *last = chunk.last();
        }
    }

    fn insert(&mut self, stamp: Stamp, record: Record) {
        let mut at = self.chunk(stamp);
        if at == self.chunks.len() {
            // Behind all others, as most are.
            let full = self.chunks.back().is_none_or(|chunk| chunk.records.len() >= PER_CHUNK);
            if full {
                self.chunks.push_back(Chunk::new());
                self.lasts.push_back(stamp);
            }
            at = self.chunks.len() - 1;
        }
        let Some(chunk) = self.chunks.get_mut(at) else { return };
        match chunk.place(stamp) {
            Ok(place) => {
                let there = chunk.records[place].1.replace(record).is_some();
                (chunk.there, self.len) = match there {
                    true => (chunk.there, self.len),
                    false => (chunk.there + 1, self.len + 1),
                };
                return;
            }
            Err(place) => chunk.records.insert(place, (stamp, Some(record))),
        }
        (chunk.there, self.len) = (chunk.there + 1, self.len + 1);
        if chunk.records.len() > 2 * PER_CHUNK {
            let rest = chunk.records.split_off(PER_CHUNK);
            let there = rest.iter().filter(|(_, record)| record.is_some()).count();
            chunk.there -= there;
            self.chunks.insert(at + 1, Chunk { records: rest, there });
            self.lasts.insert(at + 1, Stamp::default());
            self.tidy(at + 1);
            self.tidy(at);
        } else {
            self.note_last(at);
        }
    }

    fn remove(&mut self, stamp: Stamp) -> Option<Record> {
        let at = self.chunk(stamp);
        let place = self.chunks.get(at)?.place(stamp).ok()?;
        let record = self.take((at, place))?;
        self.tidy(at);
        Some(record)
    }

    /// Takes a change out of a place in a chunk, which is to be tidied then.
    fn take(&mut self, (at, place): (usize, usize)) -> Option<Record> {
        let chunk = self.chunks.get_mut(at)?;
        let record = chunk.records.get_mut(place)?.1.take()?;
        chunk.there -= 1;
        self.len -= 1;
        Some(record)
    }

    /// A change and its place.
    fn find(&self, stamp: Stamp) -> Option<((usize, usize), &Record)> {
        let at = self.chunk(stamp);
        let chunk = self.chunks.get(at)?;
        let place = chunk.place(stamp).ok()?;
        Some(((at, place), chunk.records[place].1.as_ref()?))
    }

    /// Gives back the memory of changes that were taken out of a chunk, if they are many.
    fn tidy(&mut self, at: usize) {
        let Some(chunk) = self.chunks.get_mut(at) else { return };
        if chunk.there == 0 {
            self.chunks.remove(at);
            self.lasts.remove(at);
            return;
        }
        if 4 * chunk.there < chunk.records.len() {
            chunk.records.retain(|(_, record)| record.is_some());
            chunk.records.shrink_to_fit();
        }
        self.note_last(at);
    }

    fn get(&self, stamp: Stamp) -> Option<&Record> {
        self.find(stamp).map(|(_, record)| record)
    }

    /// Whether a change is there, for stamps that ascend: `cursor`, 0 at first, is the chunk of the one before.
    fn has_behind(&self, cursor: &mut usize, stamp: Stamp) -> bool {
        if self.lasts.get(*cursor).is_some_and(|last| *last < stamp) {
            *cursor = self.chunk(stamp);
        }
        let Some(chunk) = self.chunks.get(*cursor) else { return false };
        chunk.place(stamp).is_ok_and(|place| chunk.records[place].1.is_some())
    }

    fn stamps(&self) -> impl Iterator<Item = Stamp> {
        let all = self.chunks.iter().flat_map(|chunk| &chunk.records);
        all.filter(|(_, record)| record.is_some()).map(|(stamp, _)| *stamp)
    }
}

/// A word that is one stamp, or the number of a list of stamps. In halves, so that an entry of the index takes 12 bytes.
#[derive(Clone, Copy, Debug)]
struct Word([u32; 2]);

/// Set in a word that is the number of a list. Stamps of the first four years do without.
const IS_LIST: u64 = 1 << 63;

impl Word {
    const fn new(word: u64) -> Self {
        Self([word as u32, (word >> 32) as u32])
    }

    const fn get(self) -> u64 {
        self.0[0] as u64 | (self.0[1] as u64) << 32
    }

    /// The list that it stands for.
    const fn list(self) -> Option<usize> {
        if self.get() & IS_LIST == 0 { None } else { Some((self.get() & !IS_LIST) as usize) }
    }
}

/// The stamps of the changes that concern an mnode, ascending.
#[derive(Debug, Default)]
struct Index {
    of_mnodes: ByNumber<InodeNr, Word>,
    /// Lists of several stamps, and some that are not used.
    lists: Vec<List>,
    unused: Vec<usize>,
}

/// Stamps, perhaps with some of changes that were taken out: at most as many as are left, because a list is long where a
/// directory is busy.
#[derive(Debug, Default)]
struct List {
    stamps: VecDeque<Stamp>,
    there: usize,
}

impl List {
    fn add(&mut self, stamp: Stamp) {
        if self.stamps.back().is_none_or(|last| *last < stamp) {
            self.stamps.push_back(stamp);
        } else if let Err(at) = self.stamps.binary_search(&stamp) {
            self.stamps.insert(at, stamp);
        }
        self.there += 1;
    }

    /// A change was taken out of the log. Its stamp stays until there are many such: to look for it would take longer.
    fn remove(&mut self, records: &Records) {
        self.there -= 1;
        if 2 * self.there < self.stamps.len() || self.there == 1 {
            let mut cursor = 0;
            self.stamps.retain(|stamp| records.has_behind(&mut cursor, *stamp));
        }
    }
}

impl Index {
    fn add(&mut self, mnode: InodeNr, stamp: Stamp) {
        let Some(word) = self.of_mnodes.get_mut(&mnode) else {
            self.of_mnodes.insert(mnode, Word::new(stamp.0));
            return;
        };
        let at = match word.list() {
            Some(at) => at,
            None => {
                let at = self.unused.pop().unwrap_or_else(|| {
                    self.lists.push(List::default());
                    self.lists.len() - 1
                });
                self.lists[at].add(Stamp(word.get()));
                *word = Word::new(at as u64 | IS_LIST);
                at
            }
        };
        self.lists[at].add(stamp);
    }

    /// A change that concerns an mnode was taken out of the records.
    fn remove(&mut self, mnode: InodeNr, records: &Records) {
        let Some(word) = self.of_mnodes.get_mut(&mnode) else { return };
        let Some(at) = word.list() else {
            self.of_mnodes.remove(&mnode);
            self.end_if_empty();
            return;
        };
        let list = &mut self.lists[at];
        list.remove(records);
        if let (1, Some(only)) = (list.there, list.stamps.front()) {
            *word = Word::new(only.0);
            // Its memory may be large.
            *list = List::default();
            self.unused.push(at);
        }
    }

    fn end_if_empty(&mut self) {
        if self.of_mnodes.is_empty() {
            *self = Self::default();
        }
    }

    /// Forgets an mnode.
    fn forget(&mut self, mnode: InodeNr) {
        if let Some(at) = self.of_mnodes.remove(&mnode).and_then(Word::list) {
            self.lists[at] = List::default();
            self.unused.push(at);
        }
    }

    /// Stamps, those of changes that were taken out perhaps among them.
    fn of(&self, mnode: InodeNr) -> impl DoubleEndedIterator<Item = Stamp> + use<'_> {
        let word = self.of_mnodes.get(&mnode).copied();
        let one = word.filter(|word| word.list().is_none()).map(|word| Stamp(word.get()));
        let list = word.and_then(Word::list).and_then(|at| self.lists.get(at));
        one.into_iter().chain(list.into_iter().flat_map(|list| &list.stamps).copied())
    }
}

impl Log {
    /// Adds a change behind all others.
    pub(crate) fn push(&mut self, record: Record) -> Stamp {
        let stamp = Stamp(self.last.0 + 1);
        self.insert(stamp, record);
        stamp
    }

    /// Adds a change of this stamp. A slot may have logged it after others merged later ones, which share no lock with it.
    pub(crate) fn insert(&mut self, stamp: Stamp, record: Record) {
        self.last = self.last.max(stamp);
        record.each_mnode(|mnode| self.of_mnodes.add(mnode, stamp));
        self.records.insert(stamp, record);
    }

    /// Takes a change out.
    pub(crate) fn remove(&mut self, stamp: Stamp) -> Option<Record> {
        let record = self.records.remove(stamp)?;
        record.each_mnode(|mnode| self.of_mnodes.remove(mnode, &self.records));
        Some(record)
    }

    /// Takes all changes out that concern an mnode, and calls `each` for them in their order; `false` if there are none, or if
    /// `may_go` refuses one. That learns whether it is the first.
    pub(crate) fn remove_all_of(
        &mut self,
        mnode: InodeNr,
        may_go: impl Fn(bool, &Action) -> bool,
        mut each: impl FnMut(&Record),
    ) -> bool {
        let Self { records, of_mnodes, places, .. } = self;
        places.clear();
        for stamp in of_mnodes.of(mnode) {
            let Some((place, record)) = records.find(stamp) else { continue };
            if !may_go(places.is_empty(), &record.action) {
                return false;
            }
            places.push(place);
        }
        of_mnodes.forget(mnode);
        for place in &*places {
            let Some(record) = records.take(*place) else { continue };
            record.each_mnode(|other| {
                if other != mnode {
                    of_mnodes.remove(other, records);
                }
            });
            each(&record);
        }
        of_mnodes.end_if_empty();
        // The last ones first: a chunk that goes changes the numbers of those behind it.
        let mut tidied = None;
        for (chunk, _) in places.iter().rev() {
            if tidied.replace(*chunk) != Some(*chunk) {
                records.tidy(*chunk);
            }
        }
        !places.is_empty()
    }

    pub(crate) fn get(&self, stamp: Stamp) -> Option<&Record> {
        self.records.get(stamp)
    }

    /// The stamps of the changes that concern an mnode, ascending.
    pub(crate) fn of_mnode(
        &self,
        mnode: InodeNr,
    ) -> impl DoubleEndedIterator<Item = Stamp> + use<'_> {
        self.of_mnodes.of(mnode).filter(|stamp| self.records.get(*stamp).is_some())
    }

    /// Whether a change concerns an mnode.
    pub(crate) fn concerns(&self, mnode: InodeNr) -> bool {
        self.of_mnodes.of_mnodes.contains_key(&mnode)
    }

    /// The inodes that changes created.
    pub(crate) fn born(&self) -> Vec<InodeNr> {
        let records = self.records.stamps().filter_map(|stamp| self.records.get(stamp));
        let born = records.filter_map(|record| match &record.action {
            Action::Create { reserved, .. } => Some(reserved.inode),
            _ => None,
        });
        born.collect()
    }

    /// The stamp of the last change that was ever pushed.
    pub(crate) const fn last(&self) -> Stamp {
        self.last
    }

    pub(crate) const fn len(&self) -> usize {
        self.records.len
    }

    /// The oldest changes up to a stamp, at most so many.
    pub(crate) fn oldest(&self, until: Stamp, most: usize) -> BTreeSet<Stamp> {
        self.records.stamps().take_while(|stamp| *stamp <= until).take(most).collect()
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;
    use std::process::Command;

    use floe_disk::ops::{Change, Reserved};
    use proptest::prelude::*;

    use super::super::record::{BornKind, OwnedPlace};
    use super::*;
    use crate::Timestamp;

    fn record(action: Action) -> Record {
        Record { uid: 0, gid: 0, time: Timestamp::default(), action }
    }

    fn place(directory: u32) -> OwnedPlace {
        OwnedPlace {
            directory: InodeNr(directory),
            name: b"a name of 20 letters".as_slice().into(),
        }
    }

    proptest! {
        #[test]
        fn it_keeps_what_a_map_keeps(
            calls in prop::collection::vec((0u8..6, 0u64..400, 0u32..8, 0u32..8), 1..600),
        ) {
            let (mut log, mut map) = (Log::default(), BTreeMap::new());
            // No stamp is used twice.
            let mut used = BTreeSet::new();
            for (call, at, one, other) in calls {
                // A change concerns an mnode once.
                let other = if other == one { 8 } else { other };
                let mnodes = if call == 4 { [one, one] } else { [one, other] };
                match call {
                    0 | 1 => prop_assert_eq!(log.remove(Stamp(at)).is_some(), map.remove(&at).is_some()),
                    5 => {
                        let of = |mnodes: &[u32; 2]| mnodes.contains(&one);
                        let wanted: Vec<u64> =
                            map.iter().filter(|(_, mnodes)| of(mnodes)).map(|(at, _)| *at).collect();
                        // Sometimes the last one is refused.
                        let refused = at % 3 == 0 && wanted.len() > 1;
                        let (seen, taken) = (Cell::new(0), Cell::new(0));
                        let done = log.remove_all_of(
                            InodeNr(one),
                            |first, _| {
                                assert_eq!(first, seen.get() == 0);
                                seen.set(seen.get() + 1);
                                !refused || seen.get() < wanted.len()
                            },
                            |_| taken.set(taken.get() + 1),
                        );
                        prop_assert_eq!(done, !refused && !wanted.is_empty());
                        prop_assert_eq!(taken.get(), if refused { 0 } else { wanted.len() });
                        if !refused {
                            map.retain(|_, mnodes| !of(mnodes));
                        }
                    }
                    _ if !used.insert(at) => {}
                    _ => {
                        let (inode, place) = (InodeNr(mnodes[0]), place(mnodes[1]));
                        log.insert(Stamp(at), record(match call {
                            4 => Action::Change { inode, change: Box::new(Change::default()) },
                            _ => Action::Unlink { inode, place },
                        }));
                        map.insert(at, mnodes);
                    }
                }
                prop_assert_eq!(log.len(), map.len());
                prop_assert_eq!(log.get(Stamp(at)).is_some(), map.contains_key(&at));
            }
            let all: Vec<u64> = log.oldest(Stamp(250), 50).into_iter().map(|stamp| stamp.0).collect();
            prop_assert_eq!(all, map.range(..=250).take(50).map(|(at, _)| *at).collect::<Vec<u64>>());
            for mnode in 0..9 {
                let got: Vec<u64> = log.of_mnode(InodeNr(mnode)).map(|stamp| stamp.0).collect();
                let wanted = map.iter().filter(|(_, mnodes)| mnodes.contains(&mnode));
                prop_assert_eq!(&got, &wanted.map(|(at, _)| *at).collect::<Vec<u64>>());
                prop_assert_eq!(log.concerns(InodeNr(mnode)), !got.is_empty());
            }
        }
    }

    fn resident_bytes() -> u64 {
        let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number of KiB") << 10
    }

    /// In a process of its own, because its resident size is measured.
    #[test]
    #[ignore = "run by the test below"]
    fn directories_with_a_pending_change() {
        // The table of mnodes has just grown, so it is almost as empty as it can be.
        let count = 130_000u32;
        let before = resident_bytes();
        let mut log = Log::default();
        for number in 0..count {
            log.push(record(Action::Create {
                place: place(2 * number),
                kind: BornKind::Regular,
                permissions: 0o644,
                umask: 0,
                reserved: Reserved { inode: InodeNr(2 * number + 1), generation: 1 },
            }));
        }
        println!("each {}", (resident_bytes() - before) / u64::from(count));
        assert_eq!(log.len(), count as usize);
    }

    /// Issue 22: less than 200 bytes. The paper's log takes 25 KB.
    #[test]
    fn a_directory_with_a_pending_change_has_a_log_below_200_bytes() {
        let name = "memory::log::tests::directories_with_a_pending_change";
        let out = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(out.status.success(), "{text}");
        let each = text.lines().find_map(|line| line.split("each ").nth(1)).unwrap();
        let each: u64 = each.trim().parse().unwrap();
        eprintln!("{each} bytes for each directory");
        assert!((100..200).contains(&each), "{each} bytes");
    }
}
