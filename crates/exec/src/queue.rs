//! A queue that hands out entries in disk order.

use std::any::Any;
use std::cmp::Reverse;
use std::time::Duration;

/// An entry in a queue of a pipeline: a piece of work for one stage.
pub trait Entry: Send + Sync + 'static {
    /// The position of the work on the disk, in any unit: entries are handed out in ascending
    /// order.
    fn address(&self) -> u64;

    /// The number of elements in the entry, such as inodes of a chunk: n_i of pFSCK's equation 1. 0
    /// counts as 1.
    fn elements(&self) -> u64 {
        1
    }
}

fn elements_of<T: Entry>(entry: &T) -> u64 {
    entry.elements().max(1)
}

/// Limits of a stage: size of a batch and of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// A batch is full when it has this many elements. An entry is never divided, so one that is
    /// larger is a batch of its own.
    pub batch_elements: u64,
    /// Entries that may wait in the queue. The initial entries of the pipeline do not count.
    pub most_entries: usize,
    /// w_i of equation 1 until this run has measured it: time of an element in earlier runs.
    /// `None`: as heavy as the heaviest stage that was measured.
    pub weight: Option<Duration>,
}

/// An elevator: the entries that wait when a sweep begins are handed out in ascending order;
/// entries that arrive meanwhile wait for the next sweep.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    /// Descending, because entries are taken from the end.
    sweep: Vec<T>,
    incoming: Vec<T>,
    elements: u64,
    limits: Limits,
    most_seen: usize,
}

/// A queue with a type of entries that the caller does not know. Each `dyn Any` is a `Vec` of that
/// type.
pub(crate) trait AnyQueue: Send {
    /// Entries in the queue.
    fn entries(&self) -> usize;
    /// Elements in these entries.
    fn elements(&self) -> u64;
    /// The largest number of entries so far.
    fn most_seen(&self) -> usize;
    /// Moves entries from the front of the list to the queue, as many as fit; returns how many are
    /// left.
    fn offer(&mut self, entries: &mut dyn Any) -> usize;
    /// Replaces `batch` by the next batch, ascending; returns its elements.
    fn take(&mut self, batch: &mut dyn Any) -> u64;
}

/// The list of entries in a `dyn Any`.
pub(crate) fn list<T: 'static>(list: &mut dyn Any) -> &mut Vec<T> {
    // Only the stage, which knows the type, makes lists for itself.
    list.downcast_mut().expect("the stage is one of this pipeline")
}

/// Takes a batch from the end of `entries`, whose order stays; returns its elements.
pub(crate) fn take_from_end<T: Entry>(
    entries: &mut Vec<T>,
    batch: &mut Vec<T>,
    batch_elements: u64,
) -> u64 {
    batch.clear();
    let mut elements = 0u64;
    while elements < batch_elements.max(1) {
        let Some(entry) = entries.pop() else { break };
        elements = elements.saturating_add(elements_of(&entry));
        batch.push(entry);
    }
    elements
}

impl<T: Entry> Queue<T> {
    /// A queue that starts with `entries`, whatever their number.
    pub(crate) fn new(entries: Vec<T>, limits: Limits) -> Self {
        let elements =
            entries.iter().fold(0u64, |sum, entry| sum.saturating_add(elements_of(entry)));
        let most_seen = entries.len();
        Self { sweep: Vec::new(), incoming: entries, elements, limits, most_seen }
    }
}

impl<T: Entry> AnyQueue for Queue<T> {
    fn entries(&self) -> usize {
        self.sweep.len() + self.incoming.len()
    }

    fn elements(&self) -> u64 {
        self.elements
    }

    fn most_seen(&self) -> usize {
        self.most_seen
    }

    fn offer(&mut self, entries: &mut dyn Any) -> usize {
        let entries = list::<T>(entries);
        if entries.is_empty() {
            return 0;
        }
        let room = self.limits.most_entries.max(1).saturating_sub(self.entries());
        let moved = entries.drain(..room.min(entries.len()));
        let elements = &mut self.elements;
        self.incoming
            .extend(moved.inspect(|entry| *elements = elements.saturating_add(elements_of(entry))));
        self.most_seen = self.most_seen.max(self.entries());
        entries.len()
    }

    fn take(&mut self, batch: &mut dyn Any) -> u64 {
        if self.sweep.is_empty() {
            std::mem::swap(&mut self.sweep, &mut self.incoming);
            self.sweep.sort_unstable_by_key(|entry| Reverse(entry.address()));
        }
        let taken = take_from_end(&mut self.sweep, list(batch), self.limits.batch_elements);
        self.elements = self.elements.saturating_sub(taken);
        taken
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    impl Entry for u64 {
        fn address(&self) -> u64 {
            *self
        }
        fn elements(&self) -> u64 {
            self % 10
        }
    }

    #[test]
    fn sweeps_ascend_and_the_bound_holds() {
        let limits = Limits { batch_elements: 4, most_entries: 5, weight: None };
        let mut queue = Queue::new(vec![51, 31, 11, 41, 21, 61], limits);
        assert_eq!(
            (queue.entries(), queue.elements()),
            (6, 6),
            "initial entries may exceed the limit"
        );
        let mut batch = Vec::<u64>::new();
        assert_eq!(queue.take(&mut batch), 4);
        assert_eq!(batch, [11, 21, 31, 41]);
        let mut more = vec![1u64, 2, 7, 9];
        assert_eq!(queue.offer(&mut more), 1);
        assert_eq!((queue.entries(), more), (5, vec![9]), "entries that do not fit stay");
        assert_eq!(queue.offer(&mut vec![9u64]), 1);
        assert_eq!(queue.take(&mut batch), 2);
        assert_eq!(batch, [51, 61], "the sweep continues to its end");
        assert_eq!(queue.take(&mut batch), 10, "an entry is never split");
        assert_eq!(batch, [1, 2, 7]);
        assert_eq!((queue.take(&mut batch), batch.len(), queue.elements()), (0, 0, 0));
        assert_eq!(queue.most_seen(), 6);
    }

    #[test]
    fn an_entry_without_elements_counts() {
        let limits = Limits { batch_elements: 0, most_entries: 0, weight: None };
        let mut queue = Queue::<u64>::new(Vec::new(), limits);
        let mut entries = vec![10u64, 20];
        assert_eq!(queue.offer(&mut entries), 1, "a queue always has room for one entry");
        assert_eq!((queue.elements(), entries.len()), (1, 1));
        let mut batch = Vec::<u64>::new();
        assert_eq!(queue.take(&mut batch), 1);
    }
}
