//! Fsyncs of one cube that come at the same time are made together: one thread takes the changes of all to the disk and makes them
//! durable with one commit, while the others sleep, each until its own are.
//!
//! Whoever comes first leads. He takes along whoever comes before he has the last of their changes on the disk; the next one
//! leads again, beside his commit. If he fails, each of the others tries on its own, and has its own error.

use std::mem::take;
use std::time::{Duration, Instant};

use floe_format::InodeNr;
use floe_sync::process::{AtomicU64, Ordering};
use floe_sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use floe_sync::{give_turn, keep_turn};

use super::MemFs;
use super::lower::Lower;
use crate::FsError;

/// Files of which more waits are written by their own threads, so that nobody waits for the content of others.
const MOST_PAGES: u64 = 16;

/// Commits that take less, such as those of a file in memory, are over before another thread would be awake to serve the next
/// request: whoever makes one keeps serving.
const BRIEF: Duration = Duration::from_micros(100);

/// Further journals of a cube whose fsyncs are told apart; those of more are made together.
const MOST_FURTHER: usize = 15;

/// The fsyncs of a cube, by the journal that makes them durable. Few have more than one.
#[derive(Debug, Default)]
pub(crate) struct Fsyncs {
    first: Gatherings,
    further: OnceLock<Box<[Gatherings; MOST_FURTHER]>>,
    /// Nanoseconds that commits took lately: the last one, or more if one before it took longer.
    took: AtomicU64,
}

/// Those of one journal.
#[derive(Debug, Default)]
struct Gatherings(Mutex<Gathering>);

#[derive(Debug, Default)]
struct Gathering {
    /// Somebody leads, and takes others along.
    is_led: bool,
    wishes: Vec<Arc<Wish>>,
}

/// An fsync that another thread makes.
#[derive(Debug)]
struct Wish {
    inode: InodeNr,
    outcome: Mutex<Option<Outcome>>,
    bell: Condvar,
}

/// The end of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Durable,
    /// The one who led has failed.
    Alone,
}

impl Wish {
    fn end(&self, outcome: Outcome) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.bell.notify_one();
    }

    fn wait(&self) -> Outcome {
        let mut outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = *outcome {
                return outcome;
            }
            outcome = self.bell.wait(outcome).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Fsyncs {
    /// Those that this journal makes durable.
    fn of(&self, log: usize) -> &Gatherings {
        match log.checked_sub(1) {
            None => &self.first,
            Some(further) => &self.further.get_or_init(Box::default)[further % MOST_FURTHER],
        }
    }

    /// Whether a commit is over soon.
    fn are_brief(&self) -> bool {
        u128::from(self.took.load(Ordering::Relaxed)) < BRIEF.as_nanos()
    }

    /// A commit took so long. One that took long, perhaps because the system ran other programs, is forgotten by and by.
    fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let before = self.took.load(Ordering::Relaxed);
        self.took.store(took.max(before / 2), Ordering::Relaxed);
    }
}

impl Gatherings {
    fn lock(&self) -> MutexGuard<'_, Gathering> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins to lead, or asks the one who does.
    fn join(&self, inode: InodeNr) -> Result<Leading<'_>, Arc<Wish>> {
        let mut gathering = self.lock();
        if gathering.is_led {
            let wish = Wish { inode, outcome: Mutex::default(), bell: Condvar::new() };
            let wish = Arc::new(wish);
            gathering.wishes.push(Arc::clone(&wish));
            return Err(wish);
        }
        gathering.is_led = true;
        Ok(Leading { fsyncs: self, takes: true, taken: Vec::new() })
    }
}

/// The one who leads. Dropped before the end, it lets all whom it took along try on their own.
struct Leading<'f> {
    fsyncs: &'f Gatherings,
    takes: bool,
    taken: Vec<Arc<Wish>>,
}

impl Leading<'_> {
    /// Takes along whoever came since; without anybody, the next one leads.
    fn take(&mut self) -> Vec<InodeNr> {
        let mut gathering = self.fsyncs.lock();
        let new = take(&mut gathering.wishes);
        gathering.is_led = !new.is_empty();
        self.takes = gathering.is_led;
        drop(gathering);
        let inodes = new.iter().map(|wish| wish.inode).collect();
        self.taken.extend(new);
        inodes
    }

    fn end(mut self) {
        take(&mut self.taken).iter().for_each(|wish| wish.end(Outcome::Durable));
    }
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        if self.takes {
            let mut gathering = self.fsyncs.lock();
            gathering.is_led = false;
            self.taken.append(&mut gathering.wishes);
        }
        self.taken.iter().for_each(|wish| wish.end(Outcome::Alone));
    }
}

impl<L: Lower> MemFs<L> {
    /// Makes an inode of a cube durable, with those of others who come at the same time.
    pub(super) fn sync_together(&self, cube: u32, inode: InodeNr) -> Result<(), FsError> {
        let dirty_pages = self.state().get(inode).map_or(0, |node| node.content.dirty_pages());
        if dirty_pages > MOST_PAGES {
            return self.sync_alone(cube, inode);
        }
        let fsyncs = &self.queues.of(cube).fsyncs;
        let _kept = fsyncs.are_brief().then(keep_turn);
        let mut leading = match fsyncs.of(self.lower.log_of(inode)).join(inode) {
            Ok(leading) => leading,
            Err(wish) => {
                give_turn();
                return match wish.wait() {
                    Outcome::Durable => Ok(()),
                    Outcome::Alone => self.sync_alone(cube, inode),
                };
            }
        };
        {
            let turn = self.turn(cube);
            let mut inodes = vec![inode];
            while !inodes.is_empty() {
                self.flush_of(&turn, inodes)?;
                inodes = leading.take();
            }
        }
        let began = Instant::now();
        self.lower.sync_inode_for(inode, 1 + leading.taken.len())?;
        fsyncs.note(began.elapsed());
        leading.end();
        Ok(())
    }

    fn sync_alone(&self, cube: u32, inode: InodeNr) -> Result<(), FsError> {
        self.flush_of(&self.turn(cube), [inode])?;
        self.lower.sync_inode(inode)
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn commits_are_brief_again_after_some_that_are() {
        let fsyncs = Fsyncs::default();
        let note = |micros| fsyncs.note(Duration::from_micros(micros));
        note(99);
        assert!(fsyncs.are_brief());
        note(1000);
        assert!(!fsyncs.are_brief());
        let brief = (1..).find(|_| {
            note(20);
            fsyncs.are_brief()
        });
        assert_eq!(brief, Some(4));
        assert!((0..20).all(|_| {
            note(100);
            !fsyncs.are_brief()
        }));
    }

    #[test]
    fn whoever_comes_while_one_leads_is_taken_along_or_tries_alone() {
        let fsyncs = Gatherings::default();
        let join = |number| fsyncs.join(InodeNr(number));
        let led = |number| join(number).err().expect("somebody leads");
        let mut first = join(12).expect("the first one leads");
        let taken = [13, 14].map(led);
        assert_eq!(first.take(), [InodeNr(13), InodeNr(14)]);
        let late = led(15);
        assert_eq!(first.take(), [InodeNr(15)]);
        assert_eq!(first.take(), []);
        // Beside the commit of the first.
        let second = join(16).expect("the next one leads");
        let lost = led(17);
        first.end();
        taken.iter().chain([&late]).for_each(|wish| assert_eq!(wish.wait(), Outcome::Durable));
        drop(second);
        assert_eq!(lost.wait(), Outcome::Alone);
        // So do those who were taken along before.
        let mut third = join(18).expect("nobody leads any more");
        let lost = led(19);
        third.take();
        third.take();
        drop(third);
        assert_eq!(lost.wait(), Outcome::Alone);
        assert!(join(20).is_ok());
    }
}
