//! Sorts many small reads and joins them into few large ones in disk order (ffsck's disk-order
//! scan).

use std::io;

use floe_format::ids::{BlockNr, BlockRun};

use crate::ReadBlocks;

/// Limits for joining reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JoinLimits {
    /// Blocks of one read, at most; at least 1.
    pub max_blocks: u64,
    /// Unwanted blocks between two wanted ones that are read along, at most. On a rotating disk or
    /// over a network, reading a few hundred KiB costs less than a second request; from the page
    /// cache, use 0.
    pub max_gap_blocks: u64,
    /// The block after the last one of the device. Requests that pass it are refused.
    pub end: BlockNr,
}

/// The part of a request that one read serves. A request of more than [`JoinLimits::max_blocks`]
/// has several parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part<T> {
    /// The blocks of this piece; never empty.
    pub run: BlockRun,
    /// Blocks of the request before this piece.
    pub offset_blocks: u64,
    /// The request's tag.
    pub tag: T,
}

/// Requests in disk order.
#[derive(Clone, Debug)]
pub struct ReadPlan<T> {
    /// By first block; equal ones in the order of the requests.
    parts: Vec<Part<T>>,
    /// Reads, each with the index after its last part.
    reads: Vec<(BlockRun, usize)>,
    refused: Vec<(BlockRun, T)>,
}

/// One read, and the parts it serves.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a, T> {
    /// The blocks to read.
    pub run: BlockRun,
    /// The parts inside the read, by first block. They may overlap: a damaged file system may point
    /// at a block twice.
    pub parts: &'a [Part<T>],
}

/// An empty plan.
impl<T> Default for ReadPlan<T> {
    fn default() -> Self {
        Self { parts: Vec::new(), reads: Vec::new(), refused: Vec::new() }
    }
}

impl<T: Clone> ReadPlan<T> {
    /// Sorts and joins `requests`. The result depends on the requests alone. Each request is in the
    /// plan exactly once, or refused; an empty request is dropped.
    pub fn new(requests: impl IntoIterator<Item = (BlockRun, T)>, limits: JoinLimits) -> Self {
        let mut plan = Self::default();
        plan.plan(requests, limits);
        plan
    }

    /// Replaces this plan by one for other `requests`, reusing its memory.
    pub fn plan(&mut self, requests: impl IntoIterator<Item = (BlockRun, T)>, limits: JoinLimits) {
        let Self { parts, reads, refused } = self;
        parts.clear();
        reads.clear();
        refused.clear();
        let max_blocks = limits.max_blocks.max(1);
        for (run, tag) in requests {
            if run.start.0.checked_add(run.len_blocks).is_none_or(|end| end > limits.end.0) {
                refused.push((run, tag));
            } else if run.len_blocks <= max_blocks {
                if run.len_blocks > 0 {
                    parts.push(Part { run, offset_blocks: 0, tag });
                }
            } else {
                split(run, &tag, max_blocks, parts);
            }
        }
        // Stable, so that the order of requests decides between equal ones, and nothing else does.
        parts.sort_by_key(|part| part.run.start);
        self.join(max_blocks, limits.max_gap_blocks);
    }
}

/// Cuts `run` into pieces of `max_blocks`. The caller has checked that its end does not overflow.
fn split<T: Clone>(run: BlockRun, tag: &T, max_blocks: u64, parts: &mut Vec<Part<T>>) {
    let mut offset_blocks = 0;
    while offset_blocks < run.len_blocks {
        let len_blocks = max_blocks.min(run.len_blocks - offset_blocks);
        parts.push(Part {
            run: BlockRun::new(BlockNr(run.start.0 + offset_blocks), len_blocks),
            offset_blocks,
            tag: tag.clone(),
        });
        offset_blocks += len_blocks;
    }
}

impl<T> ReadPlan<T> {
    fn join(&mut self, max_blocks: u64, max_gap_blocks: u64) {
        for (index, part) in self.parts.iter().enumerate() {
            let (start, end) = (part.run.start.0, part.run.end().0);
            if let Some((run, until)) = self.reads.last_mut() {
                let joined_end = end.max(run.end().0);
                let gap_blocks = start.saturating_sub(run.end().0);
                if gap_blocks <= max_gap_blocks && joined_end - run.start.0 <= max_blocks {
                    run.len_blocks = joined_end - run.start.0;
                    *until = index + 1;
                    continue;
                }
            }
            self.reads.push((part.run, index + 1));
        }
    }

    /// The reads, by first block. Each is independent of the others.
    pub fn batches(&self) -> impl ExactSizeIterator<Item = Batch<'_, T>> {
        let begin = |read: usize| read.checked_sub(1).map_or(0, |before| self.reads[before].1);
        self.reads
            .iter()
            .enumerate()
            .map(move |(read, &(run, until))| Batch { run, parts: &self.parts[begin(read)..until] })
    }

    /// Requests that pass the end of the device; they are in no batch.
    pub fn refused(&self) -> &[(BlockRun, T)] {
        &self.refused
    }
}

/// The bytes of one part.
#[derive(Debug)]
pub struct PartBytes<'a, T> {
    /// The requested part.
    pub part: &'a Part<T>,
    /// Its bytes, `part.run.len_blocks` blocks; unreadable blocks are zero.
    pub bytes: &'a [u8],
    /// Blocks of the part that could not be read, ascending. Usually none.
    pub unreadable: &'a [BlockNr],
}

impl<T> Batch<'_, T> {
    /// Reads the batch and passes each part's bytes to `each`, by first block. `buffer` is scratch
    /// space; each worker should keep one. If the large read fails, each part is read alone, and
    /// block by block if that fails, too, so that a bad block affects only the requests that
    /// contain it.
    ///
    /// `block_bytes` is the size of a block; at most `max_blocks` of them are held in memory.
    ///
    /// # Errors
    /// If the batch is not addressable: its bytes pass 2^64, or the memory of this machine.
    pub fn read<D: ReadBlocks + ?Sized>(
        &self,
        device: &D,
        block_bytes: u32,
        buffer: &mut Vec<u8>,
        mut each: impl FnMut(PartBytes<'_, T>),
    ) -> io::Result<()> {
        let (offset_bytes, len_bytes) = bytes_of(self.run, block_bytes)?;
        if buffer.len() < len_bytes {
            buffer.resize(len_bytes, 0);
        }
        let bytes = &mut buffer[..len_bytes];
        // Requested blocks are rarely holes, so a hole query would cost more than it saves.
        if device.read_at(offset_bytes, bytes).is_err() {
            return self.read_each_alone(device, block_bytes, bytes, each);
        }
        for part in self.parts {
            let (start, len) = self.place(part, block_bytes)?;
            each(PartBytes { part, bytes: &bytes[start..start + len], unreadable: &[] });
        }
        Ok(())
    }

    fn read_each_alone<D: ReadBlocks + ?Sized>(
        &self,
        device: &D,
        block_bytes: u32,
        bytes: &mut [u8],
        mut each: impl FnMut(PartBytes<'_, T>),
    ) -> io::Result<()> {
        let mut unreadable = Vec::new();
        for part in self.parts {
            let (start, len) = self.place(part, block_bytes)?;
            let own = &mut bytes[start..start + len];
            unreadable.clear();
            let (offset_bytes, _) = bytes_of(part.run, block_bytes)?;
            if device.read_at(offset_bytes, own).is_err() {
                let blocks = own.chunks_mut(block_bytes as usize);
                let places = (offset_bytes..).step_by(block_bytes as usize);
                for ((block, place), nr) in blocks.zip(places).zip(part.run.start.0..) {
                    if device.read_at(place, block).is_err() {
                        block.fill(0);
                        unreadable.push(BlockNr(nr));
                    }
                }
            }
            each(PartBytes { part, bytes: own, unreadable: &unreadable });
        }
        Ok(())
    }

    /// Byte offset of a part in the batch, and its length in bytes.
    fn place(&self, part: &Part<T>, block_bytes: u32) -> io::Result<(usize, usize)> {
        let before = BlockRun::new(self.run.start, part.run.start.0 - self.run.start.0);
        Ok((bytes_of(before, block_bytes)?.1, bytes_of(part.run, block_bytes)?.1))
    }
}

/// Offset and length of a run in bytes.
fn bytes_of(run: BlockRun, block_bytes: u32) -> io::Result<(u64, usize)> {
    let bytes = |blocks: u64| blocks.checked_mul(u64::from(block_bytes));
    let offset = bytes(run.start.0);
    let len = bytes(run.len_blocks).and_then(|len| usize::try_from(len).ok());
    offset.zip(len).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, Faulty, MemDevice};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    const END: u64 = 300;

    fn requests() -> impl Strategy<Value = Vec<(BlockRun, usize)>> {
        let start = prop_oneof![9 => 0u64..END, 1 => any::<u64>()];
        let len = prop_oneof![9 => 0u64..9, 2 => 0u64..100, 1 => any::<u64>()];
        prop::collection::vec((start, len), 0..60).prop_map(|runs| {
            let run = |(start, len)| BlockRun::new(BlockNr(start), len);
            runs.into_iter().map(run).zip(0..).collect()
        })
    }

    fn limits() -> impl Strategy<Value = JoinLimits> {
        (0u64..40, 0u64..10).prop_map(|(max_blocks, max_gap_blocks)| JoinLimits {
            max_blocks,
            max_gap_blocks,
            end: BlockNr(END),
        })
    }

    proptest! {
        #[test]
        fn each_block_of_each_request_is_served_once(
            earlier in requests(),
            requests in requests(),
            limits in limits(),
        ) {
            let mut plan = ReadPlan::new(earlier, limits);
            plan.plan(requests.clone(), limits);
            let mut served: BTreeMap<usize, Vec<(u64, u64)>> = BTreeMap::new();
            for batch in plan.batches() {
                for part in batch.parts {
                    let logical = (0..part.run.len_blocks).map(|i| part.offset_blocks + i);
                    let blocks = part.run.start.0..part.run.end().0;
                    served.entry(part.tag).or_default().extend(logical.zip(blocks));
                }
            }
            let fits = |run: &BlockRun| {
                u128::from(run.start.0) + u128::from(run.len_blocks) <= u128::from(END)
            };
            let mut refused = plan.refused().iter();
            for (run, tag) in &requests {
                if !fits(run) {
                    prop_assert_eq!(refused.next(), Some(&(*run, *tag)));
                    prop_assert!(!served.contains_key(tag));
                    continue;
                }
                let mut got = served.remove(tag).unwrap_or_default();
                got.sort_unstable();
                let wanted: Vec<_> =
                    (0..run.len_blocks).map(|i| (i, run.start.0 + i)).collect();
                prop_assert_eq!(got, wanted);
            }
            prop_assert!(refused.next().is_none() && served.is_empty());
        }

        #[test]
        fn batches_keep_order_and_limits(requests in requests(), limits in limits()) {
            let plan = ReadPlan::new(requests, limits);
            let mut last_start = 0;
            let mut total = 0;
            for batch in plan.batches() {
                prop_assert!(!batch.parts.is_empty());
                prop_assert!(batch.run.len_blocks <= limits.max_blocks.max(1));
                prop_assert!(batch.run.end().0 <= END);
                let starts: Vec<u64> = batch.parts.iter().map(|p| p.run.start.0).collect();
                prop_assert!(starts.is_sorted() && starts[0] >= last_start);
                prop_assert_eq!(starts[0], batch.run.start.0);
                last_start = starts[starts.len() - 1];
                // The read starts and ends with a requested block, and no gap inside exceeds the
                // limit.
                let mut end = batch.run.start.0;
                for part in batch.parts {
                    prop_assert!(part.run.start.0.saturating_sub(end) <= limits.max_gap_blocks);
                    end = end.max(part.run.end().0);
                }
                prop_assert_eq!(end, batch.run.end().0);
                total += batch.run.len_blocks;
            }
            prop_assert_eq!(plan.batches().map(|batch| batch.run.len_blocks).sum::<u64>(), total);
        }

        #[test]
        fn parts_get_their_bytes_and_bad_blocks_hurt_only_their_owners(
            requests in requests(),
            limits in limits(),
            bad in prop::collection::btree_set(0u64..END, 0..6),
        ) {
            // The bytes of each block encode its number.
            let bytes: Vec<u8> = (0..END).flat_map(|nr| (nr + 1).to_le_bytes()).collect();
            let faults = bad.iter().map(|&nr| (BlockNr(nr), Fault::Unreadable));
            let device = Faulty::new(MemDevice::new(bytes), 8, faults);
            let plan = ReadPlan::new(requests, limits);
            let mut buffer = Vec::new();
            for batch in plan.batches() {
                let mut parts = batch.parts.iter();
                batch.read(&device, 8, &mut buffer, |got| {
                    assert_eq!(Some(got.part), parts.next());
                    let run = got.part.run;
                    assert_eq!(got.bytes.len() as u64, run.len_blocks * 8);
                    let wrong: Vec<_> = bad.range(run.start.0..run.end().0).copied().collect();
                    assert!(got.unreadable.iter().map(|nr| nr.0).eq(wrong.iter().copied()));
                    for (nr, bytes) in (run.start.0..).zip(got.bytes.chunks(8)) {
                        let expected = if bad.contains(&nr) { 0 } else { nr + 1 };
                        assert_eq!(bytes, expected.to_le_bytes());
                    }
                }).unwrap();
                prop_assert!(parts.next().is_none());
            }
            prop_assert!(buffer.len() as u64 <= 8 * limits.max_blocks.max(1));
        }
    }

    #[test]
    fn neighbours_become_one_read() {
        let limits = JoinLimits { max_blocks: 100, max_gap_blocks: 2, end: BlockNr(1000) };
        let run = |start, len| BlockRun::new(BlockNr(start), len);
        let plan = ReadPlan::new([(run(13, 1), 'c'), (run(10, 1), 'a'), (run(16, 2), 'd')], limits);
        let reads: Vec<BlockRun> = plan.batches().map(|batch| batch.run).collect();
        assert_eq!(reads, [run(10, 8)]);
        let far = ReadPlan::new([(run(10, 1), ()), (run(14, 1), ())], limits);
        assert_eq!(far.batches().len(), 2);
        assert_eq!(far.batches().map(|batch| batch.run.len_blocks).sum::<u64>(), 2);
    }

    #[test]
    fn absurd_block_sizes_are_an_error() {
        let limits = JoinLimits { max_blocks: 1, max_gap_blocks: 0, end: BlockNr(u64::MAX) };
        let plan = ReadPlan::new([(BlockRun::new(BlockNr(u64::MAX - 1), 1), ())], limits);
        let batch = plan.batches().next().unwrap();
        let read = batch.read(&MemDevice::default(), 4096, &mut Vec::new(), |_| {});
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
