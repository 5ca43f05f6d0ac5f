//! Which transactions of several logs count: the stable set, the greatest set of committed transactions that is closed under the
//! dependencies that commit blocks list and under predecessors in their own log.

use std::collections::BTreeMap;
use std::io;

use floe_blockdev::ReadBlocks;
use floe_format::ext::jbd2;
use floe_format::native::commit::{self, Dependency};

use super::locate::Journal;
use super::log::is_after;

/// A committed transaction in a log.
pub(super) struct Committed {
    pub(super) sequence: u32,
    /// Its first block.
    pub(super) start: u32,
    pub(super) dependencies: Vec<Dependency>,
}

/// The transactions that a log holds as a whole. Where replay would find damage, the list ends.
pub(super) fn committed(device: &dyn ReadBlocks, journal: &Journal) -> io::Result<Vec<Committed>> {
    let superblock = &journal.superblock;
    let ring = journal.ring().filter(|ring| ring.contains(superblock.start));
    let Some(ring) = ring.filter(|_| journal.needs_replay) else { return Ok(Vec::new()) };
    let format = superblock.format();
    let (mut all, mut block) = (Vec::new(), vec![0; journal.block_size as usize]);
    let (mut at, mut start) = (superblock.start, superblock.start);
    let mut sequence = superblock.sequence;
    let mut budget = ring.len_blocks();
    while budget > 0 {
        let offset = journal.offset_bytes(at).ok_or(io::ErrorKind::UnexpectedEof)?;
        device.read_at(offset, &mut block)?;
        let Some(header) = jbd2::header(&block).filter(|header| header.sequence == sequence) else {
            break;
        };
        let mut len = 1;
        match header.blocktype {
            jbd2::DESCRIPTOR_BLOCK if format.tail_ok(&block) => {
                len += u32::try_from(format.tags(&block).count()).unwrap_or(u32::MAX - 1);
            }
            jbd2::REVOKE_BLOCK if format.tail_ok(&block) => {}
            jbd2::COMMIT_BLOCK if format.torn_commit_ok(&block) || format.commit_ok(&block) => {
                // One that is torn behind its fields was written without any.
                let is_whole = format.commit_ok(&block);
                let dependencies = if is_whole { commit::of(&block) } else { Vec::new() };
                all.push(Committed { sequence, start, dependencies });
                sequence = sequence.wrapping_add(1);
                start = ring.advance(at, 1);
            }
            _ => break,
        }
        at = ring.advance(at, len);
        budget = budget.saturating_sub(len);
    }
    Ok(all)
}

/// The content of a log.
pub(super) struct Stored {
    pub(super) inode: u32,
    /// The first transaction that its superblock expects: those before it are home.
    pub(super) tail: u32,
    /// From there on.
    pub(super) committed: Vec<Committed>,
}

/// How many transactions of each log count.
pub(super) fn stable(logs: &[Stored]) -> Vec<usize> {
    let by_inode = logs.iter().enumerate().map(|(index, log)| (log.inode, index));
    let indexes: BTreeMap<u32, usize> = by_inode.collect();
    let mut kept: Vec<usize> = logs.iter().map(|log| log.committed.len()).collect();
    let is_there = |kept: &[usize], dependency: &Dependency| {
        let Some(&other) = indexes.get(&dependency.journal_inode) else { return true };
        let Stored { tail, committed, .. } = &logs[other];
        // Home already, and its place in the log was given up.
        is_after(*tail, dependency.sequence)
            || committed[..kept[other]].iter().any(|one| one.sequence == dependency.sequence)
    };
    loop {
        let before = kept.clone();
        for (index, log) in logs.iter().enumerate() {
            let whole =
                |one: &Committed| one.dependencies.iter().all(|other| is_there(&kept, other));
            let first = log.committed[..kept[index]].iter().position(|one| !whole(one));
            kept[index] = first.unwrap_or(kept[index]);
        }
        if kept == before {
            return kept;
        }
    }
}

/// The logs that end too early, each with the number of the transaction that is missing first. A commit block is written when the
/// transaction before it is durable in all of its logs, so of those that others list only the last one of a log may be missing.
pub(super) fn ends_early(logs: &[Stored]) -> BTreeMap<u32, u32> {
    let by_inode = logs.iter().enumerate().map(|(index, log)| (log.inode, index));
    let indexes: BTreeMap<u32, usize> = by_inode.collect();
    let followed = logs.iter().filter_map(|log| log.committed.split_last());
    let mut durable: Vec<Dependency> = followed
        .flat_map(|(_, followed)| followed.iter().flat_map(|one| one.dependencies.clone()))
        .collect();
    let (mut early, mut known) = (BTreeMap::new(), vec![false; logs.len()]);
    while let Some(dependency) = durable.pop() {
        let Some(&index) = indexes.get(&dependency.journal_inode) else { continue };
        let Stored { inode, tail, committed } = &logs[index];
        let end = tail.wrapping_add(committed.len() as u32);
        if !is_after(end, dependency.sequence) {
            early.insert(*inode, end);
            continue;
        }
        let last = committed.last().filter(|last| last.sequence == dependency.sequence);
        if let Some(last) = last.filter(|_| !known[index]) {
            known[index] = true;
            durable.extend(&last.dependencies);
        }
    }
    early
}

/// Where a log is cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Which of the journals.
    pub index: usize,
    /// The first transaction that is dropped.
    pub sequence: u32,
    /// Byte of the device at which it begins. Once this block is overwritten (by [`dropped`](super::dropped)), nobody replays it.
    pub offset_bytes: u64,
}

/// The content of a log, of which all before damage counts.
pub(super) fn stored(device: &dyn ReadBlocks, journal: &Journal, inode: u32) -> io::Result<Stored> {
    let tail = journal.superblock.sequence;
    Ok(Stored { inode, tail, committed: committed(device, journal)? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A log with this inode that begins with transaction `tail`; of each transaction on which others it depends.
    fn log(inode: u32, tail: u32, dependencies: &[&[(u32, u32)]]) -> Stored {
        let one = |(at, all): (usize, &&[(u32, u32)])| {
            let of = |&(journal_inode, sequence)| Dependency { journal_inode, sequence };
            let sequence = tail.wrapping_add(at as u32);
            Committed { sequence, start: 0, dependencies: all.iter().map(of).collect() }
        };
        Stored { inode, tail, committed: dependencies.iter().enumerate().map(one).collect() }
    }

    #[test]
    fn circles_are_kept_whole_and_dropped_whole() {
        let circle =
            [log(8, 5, &[&[(12, 9)]]), log(12, 9, &[&[(13, 3)]]), log(13, 3, &[&[(8, 5)]])];
        assert_eq!(stable(&circle), [1, 1, 1]);
        // The commit block of one is missing, or torn.
        let cut = [log(8, 5, &[&[(12, 9)]]), log(12, 9, &[&[(13, 3)]]), log(13, 3, &[])];
        assert_eq!(stable(&cut), [0, 0, 0]);
    }

    #[test]
    fn what_is_dropped_takes_along_all_behind_it_and_all_that_need_it() {
        let logs = [
            log(8, 1, &[&[], &[(12, 7)], &[]]),
            log(12, 6, &[&[(8, 1)], &[(13, 4)], &[]]),
            log(13, 3, &[&[]]),
        ];
        // Transaction 4 of journal 13 is missing, so 7 and 8 of journal 12, and so 2 and 3 of inode 8.
        assert_eq!(stable(&logs), [1, 1, 1]);
        let chain =
            [log(8, 1, &[&[(12, 1)]]), log(12, 1, &[&[(13, 1)]]), log(13, 1, &[&[(14, 1)]])];
        assert_eq!(stable(&chain), [1, 1, 1], "journal 14 is gone, and with it what it could miss");
        let cut = [log(8, 1, &[&[(12, 1)]]), log(12, 1, &[&[(13, 1)]]), log(13, 1, &[])];
        assert_eq!(stable(&cut), [0, 0, 0]);
    }

    #[test]
    fn what_is_home_is_there_whatever_the_number_counts_round() {
        assert_eq!(stable(&[log(8, 2, &[&[(12, 6)]]), log(12, 7, &[])]), [1, 0]);
        assert_eq!(stable(&[log(8, 2, &[&[(12, 7)]]), log(12, 7, &[])]), [0, 0]);
        assert_eq!(stable(&[log(8, 2, &[&[(12, u32::MAX)]]), log(12, 1, &[])]), [1, 0]);
        let round =
            [log(8, u32::MAX, &[&[], &[(12, 1)]]), log(12, u32::MAX, &[&[], &[(8, 0)], &[]])];
        assert_eq!(stable(&round), [2, 3]);
    }

    #[test]
    fn a_log_ends_too_early_where_another_one_went_on() {
        // Nobody wrote behind the transaction that lacks its part.
        let last = [log(8, 1, &[&[(12, 7)]]), log(12, 6, &[&[]])];
        assert_eq!(ends_early(&last), BTreeMap::new());
        let followed = [log(8, 1, &[&[(12, 7)], &[]]), log(12, 6, &[&[]])];
        assert_eq!(ends_early(&followed), BTreeMap::from([(12, 7)]));
        // The transactions on which it depends were durable, too.
        let chain =
            [log(8, 1, &[&[(12, 1)], &[]]), log(12, 1, &[&[(13, 1), (8, 1)]]), log(13, 1, &[])];
        assert_eq!(ends_early(&chain), BTreeMap::from([(13, 1)]));
        let home = [log(8, 1, &[&[(12, 5)], &[]]), log(12, 6, &[])];
        assert_eq!(ends_early(&home), BTreeMap::new());
        let round = [log(8, u32::MAX, &[&[(12, 0)], &[]]), log(12, u32::MAX, &[&[]])];
        assert_eq!(ends_early(&round), BTreeMap::from([(12, 0)]));
    }

    proptest! {
        /// The result is closed, and no larger set is.
        #[test]
        fn it_is_the_greatest_closed_set(
            lens in proptest::collection::vec(0usize..4, 2..4),
            pairs in proptest::collection::vec((0usize..3, 0usize..4, 0usize..3, 0usize..5), 0..9),
        ) {
            let mut logs: Vec<Stored> = lens
                .iter()
                .enumerate()
                .map(|(at, len)| log(at as u32 + 20, 1, &vec![&[][..]; *len]))
                .collect();
            for (from, at, to, which) in pairs {
                let journal_inode = (to % lens.len()) as u32 + 20;
                let sequence = which as u32;
                if let Some(one) = logs.get_mut(from).and_then(|log| log.committed.get_mut(at)) {
                    one.dependencies.push(Dependency { journal_inode, sequence });
                }
            }
            let closed = |kept: &[usize]| {
                logs.iter().zip(kept).all(|(log, count)| {
                    log.committed[..*count].iter().flat_map(|one| &one.dependencies).all(|other| {
                        let index = other.journal_inode as usize - 20;
                        other.sequence == 0 || other.sequence as usize <= kept[index]
                    })
                })
            };
            let found = stable(&logs);
            prop_assert!(closed(&found), "{found:?}");
            let all: usize = lens.iter().map(|len| len + 1).product();
            for mut number in 0..all {
                let mut other = Vec::new();
                for len in &lens {
                    other.push(number % (len + 1));
                    number /= len + 1;
                }
                let is_within = other.iter().zip(&found).all(|(other, found)| other <= found);
                prop_assert!(is_within || !closed(&other), "{other:?} is not within {found:?}");
            }
        }
    }
}
