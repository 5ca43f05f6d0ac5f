//! How long a commit waits for others, so that one flush serves them, too.
//!
//! Programs that each wait for their own changes come back soon after the flush that served them. Whoever closes the next
//! transaction waits for as many as there were then, the time of a flush at most: a program that comes too late for the transaction
//! waits for the rest of one flush and for two more. After three waits in vain a few commits do not wait. Where flushes take next to
//! no time, or where nobody else waited, nobody waits at all.
//!
//! Nobody is woken in vain: a flush wakes those whom it served. One of the others goes on with the logs that nobody writes
//! ([`Shared::call`]); when he leaves, he calls the next.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use floe_blockdev::WriteBlocks;
use floe_sync::{Arc, Condvar, MutexGuard, PoisonError, thread};

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

/// Transactions that somebody waits for: the log, and the number in it.
pub(super) type Goals = Vec<(usize, TransactionId)>;

/// Threads that wait for the same transactions.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    bell: Arc<Condvar>,
    awake: usize,
    asleep: usize,
    /// Those who are asleep and were called, to go on with their logs.
    called: usize,
}

/// Bells that are to be rung once the lock is free: for one thread, or for all of a crowd.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct Calls(Vec<(Arc<Condvar>, bool)>);

impl Calls {
    pub(super) fn ring(self) {
        for (bell, all) in self.0 {
            if all { bell.notify_all() } else { bell.notify_one() }
        }
    }
}

impl Flushes {
    /// Threads that wait for changes.
    pub(super) fn waiting_for_changes(&self) -> usize {
        self.unserved.values().map(|crowd| crowd.awake + crowd.asleep).sum()
    }
}

/// A thread that waits for its changes; dropped when it leaves.
pub(super) struct Waiter<'j, D: WriteBlocks> {
    journal: &'j Journal<D>,
    goals: Goals,
    bell: Arc<Condvar>,
}

impl<D: WriteBlocks> Waiter<'_, D> {
    /// The crowd that it is one of; `None` once that is served.
    fn crowd<'s>(&self, shared: &'s mut Shared) -> Option<&'s mut Crowd> {
        let crowd = shared.flushes.unserved.get_mut(&self.goals);
        crowd.filter(|crowd| Arc::ptr_eq(&crowd.bell, &self.bell))
    }

    /// Sleeps until a flush has served it, its logs may be free, or something failed.
    pub(super) fn sleep<'a>(&self, mut shared: MutexGuard<'a, Shared>) -> MutexGuard<'a, Shared> {
        let Some(crowd) = self.crowd(&mut shared) else { return shared };
        (crowd.awake, crowd.asleep) = (crowd.awake - 1, crowd.asleep + 1);
        let mut shared = self.bell.wait(shared).unwrap_or_else(PoisonError::into_inner);
        if let Some(crowd) = self.crowd(&mut shared) {
            (crowd.awake, crowd.asleep) = (crowd.awake + 1, crowd.asleep - 1);
            crowd.called = crowd.called.saturating_sub(1);
        }
        shared
    }
}

impl<D: WriteBlocks> Drop for Waiter<'_, D> {
    fn drop(&mut self) {
        let mut shared = self.journal.lock();
        let is_last = self.crowd(&mut shared).is_some_and(|crowd| {
            crowd.awake -= 1;
            crowd.awake + crowd.asleep == 0
        });
        if is_last {
            shared.flushes.unserved.remove(&self.goals);
        }
        let calls = shared.call();
        drop(shared);
        calls.ring();
    }
}

impl Shared {
    /// Whether one of these transactions is not durable.
    pub(super) fn lacks_any(&self, goals: &[(usize, TransactionId)]) -> bool {
        goals.iter().any(|&(lane, id)| self.lanes[lane].state.durable < id)
    }

    /// A flush has ended: whoever has his changes now waits no more, although he may not be awake yet.
    pub(super) fn note_served(&mut self) -> Calls {
        self.flushes.waiters = self.flushes.waiting_for_changes();
        self.call_served()
    }

    /// Calls those who have their changes.
    pub(super) fn call_served(&mut self) -> Calls {
        let (mut unserved, mut calls) =
            (std::mem::take(&mut self.flushes.unserved), Calls::default());
        unserved.retain(|goals, crowd| {
            let lacks = self.lacks_any(goals);
            if !lacks && crowd.asleep > 0 {
                calls.0.push((Arc::clone(&crowd.bell), true));
            }
            lacks
        });
        self.flushes.unserved = unserved;
        calls
    }

    /// Calls threads that can go on now, one for logs that share changes; none for logs that others are writing, or for which
    /// a thread is awake that waits for them: each goes on with them or calls others when it leaves.
    pub(super) fn call(&mut self) -> Calls {
        let (mut unserved, mut calls) =
            (std::mem::take(&mut self.flushes.unserved), Calls::default());
        let lanes_of = |goals: &Goals| {
            let lacks =
                |&&(lane, id): &&(usize, TransactionId)| self.lanes[lane].state.durable < id;
            self.closure(goals.iter().filter(lacks).map(|(lane, _)| *lane))
        };
        let is_awake = |crowd: &Crowd| crowd.awake + crowd.called > 0;
        let awake = unserved.iter().filter(|(_, crowd)| is_awake(crowd));
        let mut busy: BTreeSet<usize> = awake.flat_map(|(goals, _)| lanes_of(goals)).collect();
        busy.extend((0..self.lanes.len()).filter(|lane| self.lanes[*lane].state.working));
        for (goals, crowd) in unserved.iter_mut().filter(|(_, crowd)| !is_awake(crowd)) {
            let lanes = lanes_of(goals);
            if lanes.is_disjoint(&busy) {
                busy.extend(lanes);
                crowd.called = 1;
                calls.0.push((Arc::clone(&crowd.bell), false));
            }
        }
        self.flushes.unserved = unserved;
        calls
    }

    /// Calls all: a log has ended.
    pub(super) fn call_all(&mut self) -> Calls {
        let asleep = self.flushes.unserved.values_mut().filter(|crowd| crowd.asleep > 0);
        let calls = asleep.map(|crowd| {
            crowd.called = crowd.asleep;
            (Arc::clone(&crowd.bell), true)
        });
        Calls(calls.collect())
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
        let crowd = flushes.unserved.entry(goals.to_vec()).or_default();
        crowd.awake += 1;
        let bell = Arc::clone(&crowd.bell);
        let expected = flushes.expected;
        if expected.is_some_and(|count| flushes.waiting_for_changes() >= count) {
            self.company.notify_all();
        }
        Waiter { journal: self, goals: goals.to_vec(), bell }
    }

    /// Waits a little until as many wait for their changes as when the last flush ended. Returns whether it waited.
    pub(super) fn let_others_join(&self) -> bool {
        let mut shared = self.lock();
        let (patience, known) = (shared.flushes.patience(), shared.flushes.waiters);
        let lacks = |shared: &Shared| shared.flushes.waiting_for_changes() < known;
        if patience.is_zero() || !lacks(&shared) {
            return false;
        }
        let in_vain = shared.flushes.in_vain;
        shared.flushes.in_vain = (in_vain + 1) % TURNS;
        if in_vain >= MOST_IN_VAIN {
            return false;
        }
        let until = Instant::now() + patience;
        shared.flushes.expected = Some(known);
        while lacks(&shared) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            // Woken by whoever makes the number full, not by each who comes.
            let waited = self.company.wait_timeout(shared, left);
            shared = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        shared.flushes.expected = None;
        if !lacks(&shared) {
            shared.flushes.in_vain = 0;
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
            let flushes = &mut journal.lock().flushes;
            (flushes.took, flushes.waiters) = (Duration::from_millis(2), 2);
        }
        let alone = || (0..32).filter(|_| journal.let_others_join()).count();
        assert_eq!(alone(), 6);
        // Whoever comes while a commit waits is found, and the next ones wait again.
        journal.lock().flushes.waiters = 1;
        let last = (0, journal.lock().lanes[0].state.last());
        journal.lock().flushes.took = Duration::from_secs(100);
        thread::scope(|scope| {
            scope.spawn(|| {
                while journal.lock().flushes.expected.is_none() {
                    thread::yield_now();
                }
                let waiter = journal.begin_to_wait(&mut journal.lock(), &[last]);
                // Served, as soon as the commit has seen him.
                while journal.lock().flushes.expected.is_some() {
                    thread::yield_now();
                }
                drop(waiter);
            });
            assert!(journal.let_others_join());
        });
        assert_eq!(journal.lock().flushes.in_vain, 0);
        assert!(journal.lock().flushes.unserved.is_empty());
    }

    /// Whoever has his changes is not counted any more, awake or not; others and those of other logs are.
    #[test]
    fn those_who_are_served_wait_no_more() {
        let journal = journal();
        let mut shared = journal.lock();
        let last = shared.lanes[0].state.last();
        let waiters = [last, last.next()].map(|id| journal.begin_to_wait(&mut shared, &[(0, id)]));
        shared.note_served().ring();
        assert_eq!((shared.flushes.waiters, shared.flushes.waiting_for_changes()), (2, 1));
        drop(shared);
        drop(waiters);
        assert!(journal.lock().flushes.unserved.is_empty());
    }
}
