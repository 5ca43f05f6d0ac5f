//! Content that is written before the change that maps it, while nobody waits for that.
//!
//! A change has the whole volume, so whoever writes much content within it keeps all others waiting. Where only one thread changes
//! files of a cube, it can ask first where the content would go ([`Volume::plan_write`](crate::volume::Volume::plan_write)), write it
//! there, and make the change then: what is in its place already is not written again ([`WrittenAhead`]). Content in blocks that a file
//! has is overwritten in any case; free blocks of the cube are taken by nobody else meanwhile.

use std::collections::{HashSet, VecDeque};
use std::io;

use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_sync::{Mutex, PoisonError};

/// A byte of the device, and what is written from there on.
pub type DataWrite = (u64, Vec<u8>);

/// The content that a write would write.
#[derive(Debug)]
pub struct PlannedWrite {
    /// In this order.
    pub writes: Vec<DataWrite>,
    /// Blocks are taken for it, or for its map.
    pub takes_blocks: bool,
}

/// The content of several writes, each planned as if it were the first: as long as they meet in no block, each leaves the content of
/// the others alone, also where the change turns out to be another one than was planned. A plan knows no new size of the file, for
/// example, and makes zeroes of what an earlier one puts behind the old end.
#[derive(Debug, Default)]
pub struct Plans {
    blocks: HashSet<u64>,
    writes: Vec<DataWrite>,
}

impl Plans {
    /// Takes up the plan of the next write, unless it meets an earlier one in a block of this size. Returns whether a further write
    /// may be planned.
    pub fn add(&mut self, plan: PlannedWrite, block_bytes: u32) -> bool {
        let size = u64::from(block_bytes);
        let touched =
            |(at, bytes): &DataWrite| *at / size..(*at + bytes.len() as u64).div_ceil(size);
        let own: HashSet<u64> = plan.writes.iter().flat_map(touched).collect();
        if !self.blocks.is_disjoint(&own) {
            return false;
        }
        self.blocks.extend(own);
        self.writes.extend(plan.writes);
        // The next one would take the same blocks.
        !plan.takes_blocks
    }

    /// All writes, in their order.
    pub fn into_writes(self) -> Vec<DataWrite> {
        self.writes
    }
}

/// A device of which nothing is changed: it notes what would be written.
pub(super) struct NotingWrites<'d> {
    device: &'d dyn ReadBlocks,
    writes: Mutex<Vec<DataWrite>>,
}

impl<'d> NotingWrites<'d> {
    pub(super) fn new(device: &'d dyn ReadBlocks) -> Self {
        Self { device, writes: Mutex::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(super) fn into_writes(self) -> Vec<DataWrite> {
        self.writes.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadBlocks for NotingWrites<'_> {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for NotingWrites<'_> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        let mut writes = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        writes.push((offset_bytes, from.to_vec()));
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// A device to which some content was written ahead.
pub struct WrittenAhead<'d> {
    device: &'d dyn WriteBlocks,
    done: Mutex<VecDeque<DataWrite>>,
}

impl<'d> WrittenAhead<'d> {
    /// `device`, which has this content in this order.
    pub fn new(device: &'d dyn WriteBlocks, done: Vec<DataWrite>) -> Self {
        Self { device, done: Mutex::new(done.into()) }
    }
}

impl ReadBlocks for WrittenAhead<'_> {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for WrittenAhead<'_> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        let mut done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        match done.pop_front() {
            Some((at, bytes)) if at == offset_bytes && bytes == from => return Ok(()),
            // The change is another one than was planned: from here on nothing counts as written.
            Some(_) => done.clear(),
            None => {}
        }
        drop(done);
        self.device.write_at(offset_bytes, from)
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }
}

#[cfg(test)]
mod tests {
    use floe_blockdev::MemDevice;

    use super::*;

    #[test]
    fn plans_that_meet_in_a_block_are_left_out() {
        let plan = |at: u64, len: usize, takes_blocks| PlannedWrite {
            writes: vec![(at, vec![at as u8; len])],
            takes_blocks,
        };
        let mut plans = Plans::default();
        assert!(plans.add(plan(4096, 4096, false), 4096));
        assert!(plans.add(plan(12_288, 10, false), 4096));
        // The block of the second one, in other bytes of it.
        assert!(!plans.add(plan(12_388, 10, false), 4096));
        assert!(!plans.add(plan(20_480, 10, true), 4096));
        let places: Vec<u64> = plans.into_writes().into_iter().map(|(at, _)| at).collect();
        assert_eq!(places, [4096, 12_288, 20_480]);
    }

    #[test]
    fn content_that_was_written_ahead_is_not_written_again() {
        let device = MemDevice::new(vec![0; 100]);
        let done = [(0, vec![1; 10]), (10, vec![2; 10]), (20, vec![3; 10])];
        let ahead = WrittenAhead::new(&device, done.into());
        // Nobody wrote it here, so that a second write shows.
        ahead.write_at(0, &[1; 10]).unwrap();
        ahead.write_at(10, &[7; 10]).unwrap();
        ahead.write_at(20, &[3; 10]).unwrap();
        let bytes = device.to_vec();
        assert_eq!(
            (&bytes[..10], &bytes[10..20], &bytes[20..30]),
            (&[0; 10][..], &[7; 10][..], &[3; 10][..])
        );
    }
}
