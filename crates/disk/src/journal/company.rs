//! How long a commit waits for others, so that one flush serves them, too.
//!
//! Programs that each wait for their own changes come back soon after the flush that served them. Whoever closes the next
//! transaction of a log waits for as many as there were then, the time of a flush at most: a program that comes too late for it
//! waits for the rest of one flush and for two more. After three waits in vain a few commits do not wait. Where flushes take next to
//! no time, or where nobody else waited, nobody waits at all. Those who wait for other logs do not count.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use floe_blockdev::WriteBlocks;
use floe_sync::{PoisonError, thread};

use super::Journal;
use super::shared::{Flushes, Shared};
use super::state::TransactionId;

/// Commits that wait in vain one after the other, and commits until the next one waits again.
const MOST_IN_VAIN: u32 = 3;
const TURNS: u32 = 16;
/// A flush waits for the logs of others for the time of a flush, divided by this, at most.
const PART_FOR_LOGS: u128 = 8;
/// A wait for a flush that is faster costs more than it brings.
const LEAST: Duration = Duration::from_micros(50);
/// From one look whether the logs of others are written to the next.
const SLICE: Duration = Duration::from_micros(50);
/// Most looks.
const MOST_SLICES: u32 = 200;

/// How often a flush lets others go first that are about to ask for one, before it waits for them.
pub(super) const MOST_YIELDS: u32 = 3;

impl Flushes {
    /// Whether one more may begin now for some logs, where the device takes so many at once. Not if one that runs serves the caller,
    /// who waits for one with this number or a later one.
    pub(super) fn may_begin(&self, lanes: &BTreeSet<usize>, wanted: u64, most: usize) -> bool {
        let is_apart = |(number, others): (&u64, &BTreeSet<usize>)| {
            *number < wanted && !others.is_empty() && others.is_disjoint(lanes)
        };
        let is_free = self.running.len() < most && !lanes.is_empty();
        self.running.is_empty() || is_free && self.running.iter().all(is_apart)
    }

    /// How long a commit waits for others, by the time that the last flush took.
    fn patience(&self) -> Duration {
        // Explorations of interleavings have no clock, so that this wait would have no end there.
        let no_clock = cfg!(feature = "shuttle");
        if no_clock || self.took < LEAST { Duration::ZERO } else { self.took }
    }

    /// How often a flush looks for the logs of others.
    pub(super) fn looks(&self) -> u32 {
        let slices = self.took.as_micros() / PART_FOR_LOGS / SLICE.as_micros();
        u32::try_from(slices).unwrap_or(MOST_SLICES).min(MOST_SLICES)
    }
}

/// A thread that waits for its changes; dropped when it leaves.
pub(super) struct Waiter<'j, D: WriteBlocks> {
    journal: &'j Journal<D>,
    number: u64,
}

impl<D: WriteBlocks> Drop for Waiter<'_, D> {
    fn drop(&mut self) {
        self.journal.lock().flushes.unserved.remove(&self.number);
    }
}

impl Shared {
    /// Whether one of these transactions is not durable.
    pub(super) fn lacks_any(&self, goals: &[(usize, TransactionId)]) -> bool {
        goals.iter().any(|&(lane, id)| self.lanes[lane].state.durable < id)
    }

    /// Threads that wait for changes of one of these logs.
    fn waiting_for(&self, lanes: &BTreeSet<usize>) -> usize {
        let concerns = |goals: &&Vec<(usize, TransactionId)>| {
            goals.iter().any(|(lane, _)| lanes.contains(lane))
        };
        self.flushes.unserved.values().filter(concerns).count()
    }

    /// A flush has ended that made changes of these logs durable: whoever has his now waits no more, although he may not be awake
    /// yet.
    pub(super) fn note_served(&mut self, lanes: &BTreeSet<usize>) {
        for &lane in lanes {
            self.lanes[lane].company.waiters = self.waiting_for(&BTreeSet::from([lane]));
        }
        let mut unserved = std::mem::take(&mut self.flushes.unserved);
        unserved.retain(|_, goals| self.lacks_any(goals));
        self.flushes.unserved = unserved;
    }
}

impl<D: WriteBlocks> Journal<D> {
    /// Begins to wait for transactions, which are wanted already. A commit that waits for company is told if there is enough of it.
    pub(super) fn begin_to_wait(
        &self,
        shared: &mut Shared,
        goals: &[(usize, TransactionId)],
    ) -> Waiter<'_, D> {
        let flushes = &mut shared.flushes;
        let number = flushes.next_waiter;
        flushes.next_waiter += 1;
        flushes.unserved.insert(number, goals.to_vec());
        let is_full = |(lane, _): &(usize, TransactionId)| {
            let expected = shared.lanes[*lane].company.expected;
            expected.is_some_and(|count| shared.waiting_for(&BTreeSet::from([*lane])) >= count)
        };
        if goals.iter().any(is_full) {
            self.company.notify_all();
        }
        Waiter { journal: self, number }
    }

    /// Waits a little until as many wait for changes of some logs as when a flush served some last. Returns whether it waited.
    pub(super) fn let_others_join(&self, lanes: &BTreeSet<usize>) -> bool {
        let Some(&first) = lanes.first() else { return false };
        let mut shared = self.lock();
        let known = lanes.iter().map(|lane| shared.lanes[*lane].company.waiters).max().unwrap_or(0);
        let patience = shared.flushes.patience();
        let lacks = |shared: &Shared| shared.waiting_for(lanes) < known;
        if patience.is_zero() || !lacks(&shared) {
            return false;
        }
        let company = &mut shared.lanes[first].company;
        let in_vain = company.in_vain;
        company.in_vain = (in_vain + 1) % TURNS;
        if in_vain >= MOST_IN_VAIN {
            return false;
        }
        let until = Instant::now() + patience;
        lanes.iter().for_each(|lane| shared.lanes[*lane].company.expected = Some(known));
        while lacks(&shared) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // Woken by whoever makes the number full, not by each who comes.
            let waited = self.company.wait_timeout(shared, left);
            shared = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        lanes.iter().for_each(|lane| shared.lanes[*lane].company.expected = None);
        if !lacks(&shared) {
            shared.lanes[first].company.in_vain = 0;
        }
        true
    }

    /// Lets others go first that are about to ask for a flush; `turns` counts how often.
    pub(super) fn let_others_write(turns: u32) {
        if turns < MOST_YIELDS { thread::yield_now() } else { thread::sleep(SLICE) }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use floe_blockdev::MemDevice;
    use floe_format::ext::inode::Timestamp;

    use super::*;
    use crate::mkfs::{self, Fresh, FsType, Options, Plan};

    fn journal() -> Journal<MemDevice> {
        let device = MemDevice::new(vec![0; 8 << 20]);
        let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
        let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now };
        let params = Options::of_type(FsType::Ext4).params(8 << 20, None, &fresh).expect("it fits");
        mkfs::write(&Plan::new(&params).expect("a plan"), &device).expect("memory");
        Journal::open(device).expect("it is new")
    }

    /// Somebody who waited once and seldom comes back keeps nobody waiting: of sixteen commits without him, three wait.
    #[test]
    fn few_commits_wait_in_vain() {
        let journal = journal();
        {
            let shared = &mut journal.lock();
            shared.flushes.took = Duration::from_millis(2);
            shared.lanes[0].company.waiters = 2;
        }
        let lanes = BTreeSet::from([0]);
        let alone = || (0..32).filter(|_| journal.let_others_join(&lanes)).count();
        assert_eq!(alone(), 6);
        // Whoever comes while a commit waits is found, and the next ones wait again.
        journal.lock().lanes[0].company.waiters = 1;
        let last = (0, journal.lock().lanes[0].state.last());
        journal.lock().flushes.took = Duration::from_secs(100);
        thread::scope(|scope| {
            scope.spawn(|| {
                while journal.lock().lanes[0].company.expected.is_none() {
                    thread::yield_now();
                }
                let waiter = journal.begin_to_wait(&mut journal.lock(), &[last]);
                // Served, as soon as the commit has seen him.
                while journal.lock().lanes[0].company.expected.is_some() {
                    thread::yield_now();
                }
                drop(waiter);
            });
            assert!(journal.let_others_join(&lanes));
        });
        assert_eq!(journal.lock().lanes[0].company.in_vain, 0);
        assert!(journal.lock().flushes.unserved.is_empty());
    }

    /// Where the device takes several flushes, one waits for another only if that is for the same log, or serves it.
    #[test]
    fn flushes_for_other_logs_are_not_waited_for() {
        let [one, other, all] = [&[1][..], &[2], &[]].map(|lanes| lanes.iter().copied().collect());
        let mut flushes = Flushes { begun: 4, done: 3, ..Flushes::default() };
        assert!(flushes.may_begin(&all, 5, 1));
        flushes.running.insert(4, BTreeSet::clone(&one));
        let begins = [(&one, 5, 4), (&other, 5, 4), (&other, 4, 4), (&other, 5, 1), (&all, 5, 4)];
        let may = begins.map(|(lanes, wanted, most)| flushes.may_begin(lanes, wanted, most));
        assert_eq!(may, [false, true, false, false, false]);
        flushes.running = [(4, all)].into();
        assert!(!flushes.may_begin(&other, 5, 4));
    }

    /// Whoever has his changes is not counted any more, awake or not; others and those of other logs are.
    #[test]
    fn those_who_are_served_wait_no_more() {
        let journal = journal();
        let mut shared = journal.lock();
        let last = shared.lanes[0].state.last();
        let waiters = [last, last.next()].map(|id| journal.begin_to_wait(&mut shared, &[(0, id)]));
        shared.note_served(&BTreeSet::from([0]));
        assert_eq!((shared.lanes[0].company.waiters, shared.flushes.unserved.len()), (2, 1));
        drop(shared);
        drop(waiters);
        assert!(journal.lock().flushes.unserved.is_empty());
    }
}
