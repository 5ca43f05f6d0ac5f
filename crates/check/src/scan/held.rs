//! The blocks that a sweep holds: those of lots whose inodes are being judged, and of others what later passes read again.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use floe_format::BlockNr;

/// Blocks in memory.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Runs of blocks by their first one. None overlaps another.
    runs: BTreeMap<u64, Vec<u8>>,
    /// First blocks of those that may be dropped, oldest first.
    passing: VecDeque<u64>,
    /// Blocks of those that are needed again.
    needed: BTreeSet<u64>,
    bytes: u64,
    /// Bytes of what stays.
    kept_bytes: u64,
}

impl Held {
    /// Bytes of all blocks.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Copies bytes of the device, if all of them are held.
    pub(super) fn copy(&self, block_size: u64, offset_bytes: u64, into: &mut [u8]) -> bool {
        let mut done = 0;
        while done < into.len() {
            let at = offset_bytes + done as u64;
            let Some((first, bytes)) = self.runs.range(..=at / block_size).next_back() else {
                return false;
            };
            // Runs lie on the device, so their ends have offsets.
            let skip = at - first * block_size;
            let rest = usize::try_from(skip).ok().and_then(|skip| bytes.get(skip..));
            let Some(rest) = rest.filter(|rest| !rest.is_empty()) else { return false };
            let len = rest.len().min(into.len() - done);
            into[done..done + len].copy_from_slice(&rest[..len]);
            done += len;
        }
        true
    }

    /// Whether a byte of the device is held.
    pub(super) fn has(&self, block_size: u64, offset_bytes: u64) -> bool {
        self.copy(block_size, offset_bytes, &mut [0])
    }

    /// The end of the run that holds a block, or (as an error) the first held block behind it.
    pub(super) fn end_of(&self, block_size: u64, block: u64) -> Result<u64, u64> {
        let before = self.runs.range(..=block).next_back();
        let end = before.map_or(0, |(first, bytes)| first + bytes.len() as u64 / block_size);
        if end > block {
            return Ok(end);
        }
        Err(self.runs.range(block..).next().map_or(u64::MAX, |(first, _)| *first))
    }

    /// Adds a run of which no block is held. It stays if it `stays`, and there is room; others go if there is none for them,
    /// the oldest first, but for what is needed again.
    pub(super) fn add(&mut self, room: Room, first: u64, bytes: Vec<u8>, stays: bool) {
        let stays = stays && self.keeps(room, bytes.len() as u64);
        self.put(first, bytes, stays);
        while self.bytes > room.bytes && self.passing.len() > 1 {
            let Some(oldest) = self.passing.pop_front() else { break };
            self.drop_run(room, oldest);
        }
    }

    /// These blocks are needed again, when those around them are not.
    pub(super) fn need(&mut self, blocks: impl IntoIterator<Item = BlockNr>) {
        self.needed.extend(blocks.into_iter().map(|block| block.0));
    }

    fn put(&mut self, first: u64, bytes: Vec<u8>, stays: bool) {
        let len = bytes.len() as u64;
        self.bytes += len;
        match stays {
            true => self.kept_bytes += len,
            false => self.passing.push_back(first),
        }
        self.runs.insert(first, bytes);
    }

    /// Whether so many bytes more may stay: half of the room is for what passes.
    const fn keeps(&self, room: Room, bytes: u64) -> bool {
        self.kept_bytes + bytes <= room.bytes / 2
    }

    /// Drops a run, but for what is needed again.
    fn drop_run(&mut self, room: Room, first: u64) {
        let Some(bytes) = self.runs.remove(&first) else { return };
        self.bytes -= bytes.len() as u64;
        let end = first + bytes.len() as u64 / room.block_size;
        let mut needed = self.needed.split_off(&first);
        self.needed.append(&mut needed.split_off(&end));
        let needed: Vec<u64> = needed.into_iter().collect();
        for stretch in needed.chunk_by(|one, next| one + 1 == *next) {
            let len = stretch.len() as u64 * room.block_size;
            // Inside the run, whose bytes are in memory.
            let skip = ((stretch[0] - first) * room.block_size) as usize;
            if self.keeps(room, len)
                && let Some(part) = bytes.get(skip..skip + len as usize)
            {
                self.put(stretch[0], part.to_vec(), true);
            }
        }
    }
}

/// The room that there is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    pub(super) bytes: u64,
    pub(super) block_size: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: Room = Room { bytes: 16, block_size: 2 };

    fn read(held: &Held, block: u64) -> Option<[u8; 2]> {
        let mut bytes = [0; 2];
        held.copy(2, block * 2, &mut bytes).then_some(bytes)
    }

    #[test]
    fn what_is_needed_again_stays() {
        let mut held = Held::default();
        held.add(ROOM, 100, vec![9, 9], true);
        held.add(ROOM, 10, (0..12).collect(), false);
        held.need([11, 12, 14].map(BlockNr));
        assert_eq!(held.end_of(2, 12), Ok(16));
        assert_eq!(held.end_of(2, 16), Err(100));
        held.add(ROOM, 20, vec![7; 8], false);
        // The first run is dropped, but for three blocks: with the one that stays they are half of the room.
        assert_eq!(read(&held, 10), None);
        assert_eq!([11, 12, 14].map(|at| read(&held, at)), [[2, 3], [4, 5], [8, 9]].map(Some));
        assert_eq!(held.bytes(), 16);
        held.need([20, 21].map(BlockNr));
        held.add(ROOM, 30, vec![6; 4], false);
        assert_eq!(
            [20, 21, 30, 100].map(|at| read(&held, at).is_some()),
            [false, false, true, true]
        );
    }

    #[test]
    fn the_last_run_is_never_dropped() {
        let mut held = Held::default();
        held.add(ROOM, 10, vec![1; 40], false);
        assert!(read(&held, 29).is_some() && !held.has(2, 60));
        held.add(ROOM, 40, vec![1; 40], false);
        assert!(read(&held, 29).is_none() && read(&held, 40).is_some());
    }
}
