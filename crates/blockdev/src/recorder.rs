//! A trace of writes and flushes, and the states in which a crash can leave a device.

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

/// The events of a device, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Oldest first.
    pub events: Vec<Event>,
}

/// A power failure while a trace is being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crash {
    /// Events that had been issued.
    pub issued: usize,
    /// Indexes of the events that never reached the disk. Only writes behind the last issued flush
    /// can be lost; other indexes are ignored.
    pub lost: BTreeSet<usize>,
    /// If set and the last issued event is a write that is not yet durable, only this many bytes of
    /// it arrived.
    pub torn_bytes: Option<usize>,
}

impl Crash {
    /// All of the first `issued` events arrived, in order.
    pub fn after(issued: usize) -> Self {
        Self { issued, ..Self::default() }
    }
}

impl Trace {
    /// Index of the first event that is not yet durable after `issued` events.
    pub fn durable_until(&self, issued: usize) -> usize {
        let issued = issued.min(self.events.len());
        self.events[..issued]
            .iter()
            .rposition(|event| *event == Event::Flush)
            .map_or(0, |flush| flush + 1)
    }

    /// Brings `base` (a copy of the device before the trace) to its state after `crash`.
    ///
    /// # Errors
    /// The error of `base`.
    pub fn replay<D: WriteBlocks + ?Sized>(&self, crash: &Crash, base: &D) -> io::Result<()> {
        let issued = crash.issued.min(self.events.len());
        let durable_until = self.durable_until(issued);
        for (index, event) in self.events[..issued].iter().enumerate() {
            let Event::Write { offset_bytes, bytes } = event else { continue };
            let durable = index < durable_until;
            if !durable && crash.lost.contains(&index) {
                continue;
            }
            let torn = crash.torn_bytes.filter(|_| !durable && index + 1 == issued);
            let arrived = torn.map_or(bytes.len(), |torn| torn.min(bytes.len()));
            base.write_at(*offset_bytes, &bytes[..arrived])?;
        }
        Ok(())
    }
}

/// A device that records each write and flush. Keeps all written bytes in memory: for tests.
///
/// The order of concurrent writes in the trace is the order in which they were done.
#[derive(Debug)]
pub struct Recorder<D> {
    inner: D,
    trace: Mutex<Trace>,
}

impl<D> Recorder<D> {
    /// `inner`, with nothing recorded yet.
    pub fn new(inner: D) -> Self {
        Self { inner, trace: Mutex::default() }
    }

    /// A copy of the trace so far.
    pub fn trace(&self) -> Trace {
        self.locked().clone()
    }

    /// The device below, and the trace.
    pub fn into_parts(self) -> (D, Trace) {
        (self.inner, self.trace.into_inner().unwrap_or_else(PoisonError::into_inner))
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
        let mut trace = self.locked();
        self.inner.write_at(offset_bytes, from)?;
        trace.events.push(Event::Write { offset_bytes, bytes: from.to_vec() });
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        let mut trace = self.locked();
        self.inner.flush()?;
        trace.events.push(Event::Flush);
        Ok(())
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
            trace.replay(&Crash { issued, lost, torn_bytes }, &copy).unwrap();
            copy.to_vec()
        };
        assert_eq!(after(4, &[0, 1, 2], None), [1, 0, 3, 3]);
        assert_eq!(after(1, &[0], None), [0, 0, 0, 0]);
        assert_eq!(after(4, &[], Some(1)), [1, 2, 3, 0]);
        assert_eq!(after(2, &[], Some(0)), [1, 0, 0, 0], "a durable write is not torn");
        assert_eq!(after(99, &[3], None), [1, 2, 0, 0]);
    }
}
