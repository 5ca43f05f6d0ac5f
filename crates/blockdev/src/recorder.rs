//! A trace of writes and flushes, and the states in which a crash can leave a device.

use floe_sync::atomic::{AtomicU64, Ordering};
use floe_sync::{Mutex, MutexGuard, PoisonError};
use std::collections::BTreeSet;
use std::io;

use crate::{ReadBlocks, WriteBlocks};

/// An event of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Bytes were written.
    Write {
        /// Offset in bytes.
        offset_bytes: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// All writes before are durable from here on.
    Flush,
}

/// When a request began and when it ended, counted in beginnings and ends of requests: one came before another if it ended
/// before the other began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When it was given to the device.
    pub began: u64,
    /// When the device was done with it.
    pub ended: u64,
}

/// The events of a device, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// In the order in which they ended.
    pub events: Vec<Event>,
    /// When each of them began and ended.
    pub spans: Vec<Span>,
}

/// A power failure while a trace is being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crash {
    /// Events that had ended.
    pub issued: usize,
    /// Indexes of the events that never reached the disk. Only writes that no flush covers can be lost; other
    /// indexes are ignored.
    pub lost: BTreeSet<usize>,
    /// Sectors that never reached the disk, by the index of their write and their number in it; as `lost`.
    pub lost_sectors: BTreeSet<(usize, usize)>,
    /// If set and the last issued event is a write that is not yet durable, only this many bytes of
    /// it arrived.
    pub torn_bytes: Option<usize>,
    /// Indexes of writes [under way](Trace::under_way) that reached the disk, but for `lost_sectors`. Others are ignored.
    pub arrived: BTreeSet<usize>,
}

/// Bytes that a device writes as a whole.
pub const SECTOR_BYTES: usize = 512;

impl Crash {
    /// All of the first `issued` events arrived, in order.
    pub fn after(issued: usize) -> Self {
        Self { issued, ..Self::default() }
    }

    /// Writes the sectors of a write that are not lost.
    fn write_sectors<D: WriteBlocks + ?Sized>(
        &self,
        index: usize,
        offset_bytes: u64,
        bytes: &[u8],
        base: &D,
    ) -> io::Result<()> {
        if self.lost_sectors.range((index, 0)..(index + 1, 0)).next().is_none() {
            return base.write_at(offset_bytes, bytes);
        }
        for (sector, part) in bytes.chunks(SECTOR_BYTES).enumerate() {
            if !self.lost_sectors.contains(&(index, sector)) {
                base.write_at(offset_bytes + (sector * SECTOR_BYTES) as u64, part)?;
            }
        }
        Ok(())
    }
}

impl Trace {
    /// Events that followed each other.
    pub fn of(events: Vec<Event>) -> Self {
        let spans = 0..events.len() as u64;
        let spans = spans.map(|at| Span { began: 2 * at, ended: 2 * at + 1 }).collect();
        Self { events, spans }
    }

    /// Index of the first event that is not yet durable after `issued` events: durable is what ended before a flush began
    /// that has ended, too.
    pub fn durable_until(&self, issued: usize) -> usize {
        let issued = issued.min(self.events.len()).min(self.spans.len());
        let flushes = (0..issued).filter(|&index| self.events[index] == Event::Flush);
        let began = flushes.map(|flush| self.spans[flush].began).max();
        let Some(began) = began else { return 0 };
        let until = self.spans[..issued].partition_point(|span| span.ended < began);
        // Flushes have nothing to lose.
        let writes = self.events[until..issued].iter().position(|event| *event != Event::Flush);
        writes.map_or(issued, |write| until + write)
    }

    /// Indexes of the writes that had begun, and not ended, just before the event with this index ended: if the power fails then, each
    /// may have reached the disk, in part or as a whole, although writes before it are lost.
    pub fn under_way(&self, index: usize) -> Vec<usize> {
        let Some(now) = self.spans.get(index).map(|span| span.ended) else { return Vec::new() };
        let later = self.events.iter().zip(&self.spans).enumerate().skip(index);
        let begun = later.filter(|(_, (event, span))| **event != Event::Flush && span.began < now);
        begun.map(|(later, _)| later).collect()
    }

    /// Brings `base` (a copy of the device before the trace) to its state after `crash`.
    ///
    /// # Errors
    /// The error of `base`.
    pub fn replay<D: WriteBlocks + ?Sized>(&self, crash: &Crash, base: &D) -> io::Result<()> {
        self.replay_from(0, crash, base)
    }

    /// As [`Trace::replay`], where `base` holds the first `from` events already.
    ///
    /// # Errors
    /// As [`Trace::replay`].
    pub fn replay_from<D: WriteBlocks + ?Sized>(
        &self,
        from: usize,
        crash: &Crash,
        base: &D,
    ) -> io::Result<()> {
        let issued = crash.issued.min(self.events.len());
        let durable_until = self.durable_until(issued);
        for (index, event) in self.events[..issued].iter().enumerate().skip(from) {
            let Event::Write { offset_bytes, bytes } = event else { continue };
            if index < durable_until {
                base.write_at(*offset_bytes, bytes)?;
                continue;
            }
            if crash.lost.contains(&index) {
                continue;
            }
            let torn = crash.torn_bytes.filter(|_| index + 1 == issued);
            let arrived = &bytes[..torn.map_or(bytes.len(), |torn| torn.min(bytes.len()))];
            crash.write_sectors(index, *offset_bytes, arrived, base)?;
        }
        if crash.arrived.is_empty() {
            return Ok(());
        }
        for index in self.under_way(issued).iter().filter(|index| crash.arrived.contains(index)) {
            if let Event::Write { offset_bytes, bytes } = &self.events[*index] {
                crash.write_sectors(*index, *offset_bytes, bytes, base)?;
            }
        }
        Ok(())
    }
}

/// A device that records each write and flush that succeeded, with its beginning and its end. Keeps all written bytes in
/// memory: for tests.
///
/// Requests may overlap, as on the device below. Concurrent writes of the same bytes are recorded in either order.
#[derive(Debug)]
pub struct Recorder<D> {
    inner: D,
    clock: AtomicU64,
    trace: Mutex<Trace>,
}

impl<D> Recorder<D> {
    /// `inner`, with nothing recorded yet.
    pub fn new(inner: D) -> Self {
        Self { inner, clock: AtomicU64::new(0), trace: Mutex::default() }
    }

    /// A copy of the trace so far.
    pub fn trace(&self) -> Trace {
        self.locked().clone()
    }

    /// Events so far.
    pub fn count(&self) -> usize {
        self.locked().events.len()
    }

    /// The device below, and the trace.
    pub fn into_parts(self) -> (D, Trace) {
        (self.inner, self.trace.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    fn record(&self, began: u64, event: Event) {
        let mut trace = self.locked();
        // Under the lock, so that events are in the order of their ends.
        let ended = self.tick();
        trace.events.push(event);
        trace.spans.push(Span { began, ended });
    }

    fn locked(&self) -> MutexGuard<'_, Trace> {
        // Events are pushed whole: a panic leaves no half of one.
        self.trace.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<D: ReadBlocks> ReadBlocks for Recorder<D> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset_bytes, into)
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        self.inner.is_hole(offset_bytes, len_bytes)
    }
}

impl<D: WriteBlocks> WriteBlocks for Recorder<D> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        let began = self.tick();
        self.inner.write_at(offset_bytes, from)?;
        self.record(began, Event::Write { offset_bytes, bytes: from.to_vec() });
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let began = self.tick();
        self.inner.flush()?;
        self.record(began, Event::Flush);
        Ok(())
    }

    fn most_flushes(&self) -> usize {
        self.inner.most_flushes()
    }

    fn current_size_bytes(&self) -> io::Result<u64> {
        self.inner.current_size_bytes()
    }

    fn forget(&self, offset_bytes: u64, len_bytes: u64) {
        self.inner.forget(offset_bytes, len_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemDevice;
    use floe_sync::{Barrier, thread};
    use proptest::prelude::*;

    crate::device_contract!(
        writable Recorder,
        |bytes: &[u8]| super::Recorder::new(crate::MemDevice::new(bytes.to_vec()))
    );

    proptest! {
        #[test]
        fn a_prefix_replayed_is_the_device_at_that_time(
            steps in prop::collection::vec(prop::option::of((0u64..90, 1usize..10)), 0..30),
        ) {
            let base = vec![0; 100];
            let device = Recorder::new(MemDevice::new(base.clone()));
            let mut states = vec![base.clone()];
            for (index, step) in steps.iter().enumerate() {
                match step {
                    Some((offset, len)) => device.write_at(*offset, &vec![index as u8 + 1; *len]),
                    None => device.flush(),
                }.unwrap();
                states.push(device.inner.to_vec());
            }
            let (_, trace) = device.into_parts();
            for (issued, state) in states.iter().enumerate() {
                let copy = MemDevice::new(base.clone());
                trace.replay(&Crash::after(issued), &copy).unwrap();
                prop_assert_eq!(&copy.to_vec(), state);
            }
        }
    }

    #[test]
    fn what_was_flushed_cannot_be_lost() {
        let device = Recorder::new(MemDevice::new(vec![0; 4]));
        device.write_at(0, &[1]).unwrap();
        device.flush().unwrap();
        device.write_at(1, &[2]).unwrap();
        device.write_at(2, &[3, 3]).unwrap();
        device.write_at(4, &[9]).unwrap_err();
        let trace = device.trace();
        assert_eq!((trace.events.len(), trace.durable_until(4), trace.durable_until(1)), (4, 2, 0));
        let after = |issued, lost: &[usize], torn_bytes| {
            let copy = MemDevice::new(vec![0; 4]);
            let lost = lost.iter().copied().collect();
            trace.replay(&Crash { issued, lost, torn_bytes, ..Crash::default() }, &copy).unwrap();
            copy.to_vec()
        };
        assert_eq!(after(4, &[0, 1, 2], None), [1, 0, 3, 3]);
        assert_eq!(after(1, &[0], None), [0, 0, 0, 0]);
        assert_eq!(after(4, &[], Some(1)), [1, 2, 3, 0]);
        assert_eq!(after(2, &[], Some(0)), [1, 0, 0, 0], "a durable write is not torn");
        assert_eq!(after(99, &[3], None), [1, 2, 0, 0]);
    }

    #[test]
    fn a_sector_may_be_lost_alone() {
        let write = Event::Write { offset_bytes: 0, bytes: vec![1; 3 * SECTOR_BYTES] };
        let trace = Trace::of(vec![write, Event::Flush]);
        for (issued, sectors) in [(1, [1, 0, 1]), (2, [1, 1, 1])] {
            let copy = MemDevice::new(vec![0; 3 * SECTOR_BYTES]);
            let lost_sectors = BTreeSet::from([(0, 1)]);
            trace.replay(&Crash { issued, lost_sectors, ..Crash::default() }, &copy).unwrap();
            let bytes = copy.to_vec();
            assert_eq!([bytes[0], bytes[SECTOR_BYTES], bytes[2 * SECTOR_BYTES]], sectors);
        }
    }

    /// A flush covers what ended before it began, and nothing that was on its way.
    #[test]
    fn a_write_that_a_flush_overtakes_is_not_durable() {
        struct Waits(MemDevice, Barrier, Barrier);
        impl ReadBlocks for Waits {
            fn size_bytes(&self) -> u64 {
                self.0.size_bytes()
            }
            fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
                self.0.read_at(offset_bytes, into)
            }
        }
        impl WriteBlocks for Waits {
            fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
                self.0.write_at(offset_bytes, from)
            }
            fn flush(&self) -> io::Result<()> {
                self.1.wait();
                self.2.wait();
                Ok(())
            }
        }
        let waits = Waits(MemDevice::new(vec![0; 4]), Barrier::new(2), Barrier::new(2));
        let device = Recorder::new(waits);
        thread::scope(|scope| {
            device.write_at(0, &[1]).unwrap();
            scope.spawn(|| device.flush().unwrap());
            device.inner.1.wait();
            device.write_at(1, &[2]).unwrap();
            device.inner.2.wait();
        });
        let trace = device.trace();
        assert_eq!(trace.events.len(), 3);
        assert_eq!(trace.events[2], Event::Flush, "it ended last");
        assert_eq!(trace.durable_until(3), 1, "and covers the first write alone");
        assert_eq!(trace.durable_until(2), 0);
    }

    /// A write that is under way while the power fails may arrive, although all before it is lost.
    #[test]
    fn a_write_under_way_may_arrive_before_others() {
        let write = |at: u64| Event::Write { offset_bytes: at, bytes: vec![1] };
        let events = vec![write(0), Event::Flush, write(1), write(2)];
        // The second write begins while the flush runs, the third one behind it.
        let spans = [(0, 1), (2, 4), (3, 5), (6, 7)].map(|(began, ended)| Span { began, ended });
        let trace = Trace { events, spans: spans.to_vec() };
        assert_eq!([0, 1, 2, 3, 4].map(|at| trace.under_way(at).len()), [1, 1, 1, 1, 0]);
        let after = |issued, lost: &[usize], arrived: &[usize]| {
            let copy = MemDevice::new(vec![0; 3]);
            let [lost, arrived] = [lost, arrived].map(|all| all.iter().copied().collect());
            trace.replay(&Crash { issued, lost, arrived, ..Crash::default() }, &copy).unwrap();
            copy.to_vec()
        };
        assert_eq!(after(1, &[0], &[2, 3]), [0, 1, 0]);
        assert_eq!(after(1, &[], &[3]), [1, 0, 0]);
        assert_eq!(after(2, &[0], &[2]), [1, 1, 0]);
    }
}
