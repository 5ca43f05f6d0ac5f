//! How long a commit waits for others, so that one flush serves them, too.
//!
//! Programs that each wait for their own changes come back soon after the flush that served them. Whoever closes the next
//! transaction of a log waits for as many as there were then, the time of a flush at most: a program that comes too late for it
//! waits for the rest of one flush and for two more. After three waits in vain a few commits do not wait. Where flushes take next to
//! no time, or where nobody else waited, nobody waits at all. Those who wait for other logs do not count.
//!
//! Nobody is woken in vain: a flush wakes those whom it served. One of the others goes on with the logs that nobody writes
//! ([`Shared::call`]); when he leaves, he calls the next.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use floe_blockdev::WriteBlocks;
use floe_sync::{Arc, Condvar, MutexGuard, PoisonError, thread};

use super::Journal;
use super::shared::{Flushes, Lane, Shared};
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

/// Transactions that somebody waits for: the log, and the number in it.
pub(super) type Goals = Vec<(usize, TransactionId)>;

/// Threads that wait for the same transactions.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    bell: Arc<Condvar>,
    awake: usize,
    asleep: usize,
    /// Threads for which some of them wait, besides themselves.
    behind: usize,
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

/// A thread that waits for its changes; dropped when it leaves.
pub(super) struct Waiter<'j, D: WriteBlocks> {
    journal: &'j Journal<D>,
    goals: Goals,
    bell: Arc<Condvar>,
    behind: usize,
}

impl<D: WriteBlocks> Waiter<'_, D> {
    /// The crowd that it is one of; `None` once that is served.
    fn crowd<'s>(&self, shared: &'s mut Shared) -> Option<&'s mut Crowd> {
        let crowd = shared.flushes.unserved.get_mut(&self.goals);
        crowd.filter(|crowd| Arc::ptr_eq(&crowd.bell, &self.bell))
    }

    /// Sleeps until a flush has served it, its logs may be free, something failed, or, if a time is told, until then.
    pub(super) fn sleep<'a>(
        &self,
        mut shared: MutexGuard<'a, Shared>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, Shared> {
        let Some(crowd) = self.crowd(&mut shared) else { return shared };
        (crowd.awake, crowd.asleep) = (crowd.awake - 1, crowd.asleep + 1);
        let mut shared = match until.map(|until| until.saturating_duration_since(Instant::now())) {
            None => self.bell.wait(shared).unwrap_or_else(PoisonError::into_inner),
            Some(left) => {
                self.bell.wait_timeout(shared, left).unwrap_or_else(PoisonError::into_inner).0
            }
        };
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
            crowd.behind -= self.behind;
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

    /// Threads that wait for changes of one of these logs.
    fn waiting_for(&self, lanes: &BTreeSet<usize>) -> usize {
        let concerns =
            |(goals, _): &(&Goals, &Crowd)| goals.iter().any(|(lane, _)| lanes.contains(lane));
        let crowds = self.flushes.unserved.iter().filter(concerns);
        crowds.map(|(_, crowd)| crowd.awake + crowd.asleep + crowd.behind).sum()
    }

    /// A flush has ended that made changes of these logs durable: whoever has his now waits no more, although he may not be awake
    /// yet.
    pub(super) fn note_served(&mut self, lanes: &BTreeSet<usize>) -> Calls {
        for &lane in lanes {
            self.lanes[lane].company.waiters = self.waiting_for(&BTreeSet::from([lane]));
        }
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

    /// Calls threads that can go on now, one for logs that share changes; none for logs that others are writing or for which others
    /// wait for company, nor where a thread is awake that waits for them: each goes on with them or calls others when it leaves.
    pub(super) fn call(&mut self) -> Calls {
        let (mut unserved, mut calls) =
            (std::mem::take(&mut self.flushes.unserved), Calls::default());
        let lanes_of = |goals: &Goals| {
            let lacks =
                |&&(lane, id): &&(usize, TransactionId)| self.lanes[lane].state.durable < id;
            self.closure(goals.iter().filter(lacks).map(|(lane, _)| *lane))
        };
        let is_awake = |crowd: &Crowd| crowd.awake + crowd.called > 0;
        if unserved.values().all(is_awake) {
            self.flushes.unserved = unserved;
            return calls;
        }
        let awake = unserved.iter().filter(|(_, crowd)| is_awake(crowd));
        let mut busy: BTreeSet<usize> = awake.flat_map(|(goals, _)| lanes_of(goals)).collect();
        let is_busy = |lane: &Lane| lane.state.working || lane.company.expected.is_some();
        busy.extend((0..self.lanes.len()).filter(|lane| is_busy(&self.lanes[*lane])));
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

    /// Until when whoever would write these logs waits for others; `None`: for nobody (any more). Where one of the logs is being written
    /// meanwhile, he sleeps without an end, and whoever ends that must find the others free, or nobody would be called.
    pub(super) fn expect(
        &mut self,
        lanes: &BTreeSet<usize>,
        until: Option<Instant>,
    ) -> Option<Instant> {
        lanes.iter().for_each(|lane| self.lanes[*lane].company.expected = until);
        until
    }

    /// Until when whoever would write these logs now sleeps first, because others may join their next transactions: until as many
    /// wait for them as when a flush served some last. Whoever makes the number full writes the logs, so that nobody is woken for it.
    pub(super) fn company_until(&mut self, lanes: &BTreeSet<usize>) -> Option<Instant> {
        let first = *lanes.first()?;
        if !self.is_any_wanted(lanes) {
            return None;
        }
        let waiting = self.waiting_for(lanes);
        let known = lanes.iter().map(|lane| self.lanes[*lane].company.waiters).max().unwrap_or(0);
        let company = &mut self.lanes[first].company;
        if let Some(until) = company.expected {
            let is_full = waiting >= known;
            if is_full {
                company.in_vain = 0;
            }
            if is_full || until <= Instant::now() {
                return self.expect(lanes, None);
            }
            return Some(until);
        }
        let patience = self.flushes.patience();
        if patience.is_zero() || waiting >= known {
            return None;
        }
        let in_vain = company.in_vain;
        company.in_vain = (in_vain + 1) % TURNS;
        if in_vain >= MOST_IN_VAIN {
            return None;
        }
        self.expect(lanes, Some(Instant::now() + patience))
    }
}

impl<D: WriteBlocks> Journal<D> {
    /// Begins to wait for transactions, which are wanted already, for so many threads.
    pub(super) fn begin_to_wait(
        &self,
        shared: &mut Shared,
        goals: &[(usize, TransactionId)],
        threads: usize,
    ) -> Waiter<'_, D> {
        let crowd = shared.flushes.unserved.entry(goals.to_vec()).or_default();
        crowd.awake += 1;
        let behind = threads.saturating_sub(1);
        crowd.behind += behind;
        let bell = Arc::clone(&crowd.bell);
        Waiter { journal: self, goals: goals.to_vec(), bell, behind }
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

    /// Somebody who waited once and seldom comes back keeps nobody waiting: of sixteen commits without him, three wait. Whoever makes
    /// the number full goes on at once, and then the next ones wait again.
    #[test]
    fn few_commits_wait_in_vain() {
        let journal = journal();
        let mut shared = journal.lock();
        shared.flushes.took = Duration::from_secs(100);
        shared.lanes[0].company.waiters = 2;
        shared.lanes[0].state.running.superblock = true;
        let last = (0, shared.lanes[0].state.last());
        shared.want(&[last]);
        let lanes = BTreeSet::from([0]);
        let first = journal.begin_to_wait(&mut shared, &[last], 1);
        let waits = |shared: &mut Shared| {
            let waits = shared.company_until(&lanes).is_some();
            // Nobody came.
            if waits {
                shared.lanes[0].company.expected = Some(Instant::now());
                assert!(shared.company_until(&lanes).is_none());
            }
            waits
        };
        assert_eq!((0..32).filter(|_| waits(&mut shared)).count(), 6);
        let until = shared.company_until(&lanes);
        assert!(until.is_some());
        assert_eq!(shared.company_until(&lanes), until);
        let second = journal.begin_to_wait(&mut shared, &[last], 1);
        assert_eq!(shared.company_until(&lanes), None);
        assert_eq!((shared.lanes[0].company.in_vain, shared.lanes[0].company.expected), (0, None));
        drop(shared);
        drop((first, second));
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
        let waiters =
            [last, last.next()].map(|id| journal.begin_to_wait(&mut shared, &[(0, id)], 1));
        shared.note_served(&BTreeSet::from([0])).ring();
        assert_eq!((shared.lanes[0].company.waiters, shared.flushes.unserved.len()), (2, 1));
        drop(shared);
        drop(waiters);
        assert!(journal.lock().flushes.unserved.is_empty());
    }
}
