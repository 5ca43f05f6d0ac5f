//! The announced pieces of a file: waiting to be read, being read, or read and waiting to be
//! requested.

use std::collections::{BTreeMap, VecDeque};

use crate::direct::{AlignedBytes, DirectReads};

/// Bytes of a piece, at most.
pub(super) const PIECE_BYTES: u64 = 128 << 10;
/// Bytes of a small piece, such as most mapping blocks and directory blocks: these are copied while
/// the lock is held.
const SMALL_BYTES: u64 = 4 << 10;
/// Bytes of the pieces that are being read or wait to be requested, at most.
pub(super) const MOST_HELD_BYTES: u64 = 4 << 20;
/// Pieces announced at a time, at most; ranges announced beyond are read on request.
pub(super) const MOST_PIECES: usize = 1 << 13;
/// A partly requested piece may be evicted once a piece announced this many numbers later is
/// requested: the pieces of one inode table chunk are requested in any order.
pub(super) const ASKED_TOGETHER: u64 = 256;
/// Buffers kept for reuse: the number of [`PIECE_BYTES`] buffers, and of small ones.
const SPARE: [usize; 2] = [8, 64];
/// Memory of all pieces, at most. With sectors of 4 KiB a small one takes twice its size, because
/// allocations are not aligned.
pub(super) const MEMORY_BYTES: u64 = 2 * MOST_HELD_BYTES
    + SPARE[0] as u64 * PIECE_BYTES
    + SPARE[1] as u64 * 2 * SMALL_BYTES
    + MOST_PIECES as u64 * 128;

/// All pieces of a file.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// Keyed by the offset of the first byte. They do not overlap.
    pub(super) all: BTreeMap<u64, Piece>,
    /// Offsets of pieces that no thread reads yet, in the order in which they were announced. May
    /// contain pieces that are already gone.
    queue: VecDeque<u64>,
    /// Bytes of the pieces that are read or being read.
    pub(super) held_bytes: u64,
    /// The offsets of the pieces that are read, by number.
    pub(super) here: BTreeMap<u64, u64>,
    /// The offsets of the partly requested ones among them, by number. Their rest is often never
    /// requested, because the gaps between wanted blocks are announced with them.
    partly: BTreeMap<u64, u64>,
    /// The highest number of a requested piece.
    newest_asked: u64,
    /// Buffers for reuse: see [`SPARE`].
    spare: [Vec<AlignedBytes>; 2],
    announced: u64,
}

#[derive(Debug)]
pub(super) struct Piece {
    pub(super) len: u64,
    /// Its sequence number among all announced pieces.
    number: u64,
    /// Bytes requested so far.
    taken: u64,
    /// A reader waits for it.
    awaited: bool,
    pub(super) bytes: Bytes,
}

#[derive(Debug)]
pub(super) enum Bytes {
    Announced,
    BeingRead,
    Here(AlignedBytes),
    /// Reading failed. The requester reads the range again and gets the error.
    Failed,
}

/// The result of a lookup.
pub(super) enum Found {
    /// Not available: the caller must read the range.
    Nothing,
    /// Being read.
    Soon,
    /// Copied into the caller's buffer.
    Copied,
    /// A whole piece, handed over to the caller.
    Whole(AlignedBytes),
}

/// A piece to be read.
#[derive(Debug)]
pub(super) struct ToRead {
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) memory: AlignedBytes,
}

impl Pieces {
    /// Adds the pieces of a range, except those that overlap existing ones.
    pub(super) fn announce(&mut self, offset_bytes: u64, len_bytes: u64) {
        let end = offset_bytes.saturating_add(len_bytes);
        let mut at = offset_bytes;
        while at < end && self.all.len() < MOST_PIECES {
            let len = PIECE_BYTES.min(end - at);
            if !self.overlaps(at, len) {
                let number = self.announced;
                self.announced += 1;
                let bytes = Bytes::Announced;
                self.all.insert(at, Piece { len, number, taken: 0, awaited: false, bytes });
                self.queue.push_back(at);
            }
            at += len;
        }
    }

    fn overlaps(&self, start: u64, len: u64) -> bool {
        let before = self.all.range(..start + len).next_back();
        before.is_some_and(|(at, piece)| at + piece.len > start)
    }

    /// Looks up a range, and fills `into` with it.
    pub(super) fn find(&mut self, offset: u64, into: &mut [u8]) -> Found {
        let covering = self.all.range_mut(..=offset).next_back();
        let Some((&start, piece)) =
            covering.filter(|(start, piece)| offset - **start + into.len() as u64 <= piece.len)
        else {
            return Found::Nothing;
        };
        match &piece.bytes {
            Bytes::BeingRead => {
                piece.awaited = true;
                Found::Soon
            }
            // No thread has started on it: reading it directly is faster than waiting for the
            // pieces before it.
            Bytes::Announced => {
                let number = piece.number;
                self.all.remove(&start);
                self.make_room(number);
                Found::Nothing
            }
            Bytes::Failed => {
                self.all.remove(&start);
                Found::Nothing
            }
            Bytes::Here(_) => self.take(start, offset, into),
        }
    }

    /// Copies a range out of a piece, or hands over a piece that is requested as a whole.
    fn take(&mut self, start: u64, offset: u64, into: &mut [u8]) -> Found {
        let Some(piece) = self.all.get_mut(&start) else { return Found::Nothing };
        let Bytes::Here(bytes) = &piece.bytes else { return Found::Nothing };
        let whole = into.len() as u64 == piece.len;
        self.newest_asked = self.newest_asked.max(piece.number);
        // Short pieces are copied while the lock is held; the rest of a piece may be requested
        // later.
        if !whole || piece.len <= SMALL_BYTES {
            let from = (offset - start) as usize;
            into.copy_from_slice(&bytes.bytes()[from..from + into.len()]);
            piece.taken += into.len() as u64;
            if piece.taken < piece.len {
                self.partly.insert(piece.number, start);
                return Found::Copied;
            }
        }
        match self.remove_here(start) {
            None => Found::Nothing,
            Some((bytes, len)) if whole && len > SMALL_BYTES => Found::Whole(bytes),
            Some((bytes, len)) => {
                self.release(bytes, len);
                Found::Copied
            }
        }
    }

    /// The list of spare buffers for a size, and its limit; `None` if buffers of that size are not
    /// kept.
    const fn spare_of(&mut self, len: u64) -> Option<(&mut Vec<AlignedBytes>, usize)> {
        match len {
            PIECE_BYTES => Some((&mut self.spare[0], SPARE[0])),
            SMALL_BYTES => Some((&mut self.spare[1], SPARE[1])),
            _ => None,
        }
    }

    /// Takes back the buffer of a piece.
    pub(super) fn release(&mut self, bytes: AlignedBytes, len: u64) {
        self.held_bytes -= len;
        if let Some((spare, most)) = self.spare_of(len)
            && spare.len() < most
        {
            spare.push(bytes);
        }
    }

    /// Called when a requested piece has not been started. If that is because unrequested pieces
    /// fill the memory, evicts the oldest of them.
    fn make_room(&mut self, before: u64) {
        if self.has_room() {
            return;
        }
        let oldest = self.here.first_key_value().filter(|(number, _)| **number < before);
        if let Some((_, &at)) = oldest {
            self.drop_here(at);
        }
    }

    /// A partly requested piece of which no more will be requested.
    fn done_with(&self) -> Option<u64> {
        let (number, &at) = self.partly.first_key_value()?;
        (number + ASKED_TOGETHER <= self.newest_asked).then_some(at)
    }

    fn drop_here(&mut self, start: u64) {
        if let Some((bytes, len)) = self.remove_here(start) {
            self.release(bytes, len);
        }
    }

    /// Removes a piece that is read.
    fn remove_here(&mut self, start: u64) -> Option<(AlignedBytes, u64)> {
        let Piece { bytes: Bytes::Here(bytes), len, number, .. } = self.all.remove(&start)? else {
            return None;
        };
        self.here.remove(&number);
        self.partly.remove(&number);
        Some((bytes, len))
    }

    /// Whether there may be a piece to read now.
    pub(super) fn has_next(&self) -> bool {
        !self.queue.is_empty() && (self.has_room() || self.done_with().is_some())
    }

    const fn has_room(&self) -> bool {
        self.held_bytes + PIECE_BYTES <= MOST_HELD_BYTES
    }

    /// The next piece to read, if there is one and memory for it.
    pub(super) fn begin_next(&mut self, way: DirectReads) -> Option<ToRead> {
        while self.has_next() {
            while !self.has_room() {
                self.drop_here(self.done_with()?);
            }
            let at = self.queue.pop_front()?;
            let piece = self.all.get_mut(&at);
            let Some(piece) = piece.filter(|piece| matches!(piece.bytes, Bytes::Announced)) else {
                continue;
            };
            piece.bytes = Bytes::BeingRead;
            let len = piece.len;
            self.held_bytes += len;
            let spare = self.spare_of(len).and_then(|(spare, _)| spare.pop());
            let memory = spare.unwrap_or_else(|| way.memory(len as usize));
            return Some(ToRead { at, len, memory });
        }
        None
    }

    /// Stores the result of reading a piece; `None` if reading failed. Returns whether a reader
    /// waits for it.
    pub(super) fn finish(&mut self, at: u64, bytes: Option<AlignedBytes>) -> bool {
        let Some(piece) = self.all.get_mut(&at) else { return false };
        match bytes {
            Some(bytes) => {
                piece.bytes = Bytes::Here(bytes);
                self.here.insert(piece.number, at);
            }
            None => {
                piece.bytes = Bytes::Failed;
                self.held_bytes -= piece.len;
            }
        }
        std::mem::take(&mut piece.awaited)
    }
}
