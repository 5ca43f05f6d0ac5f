//! What was announced of a file: pieces that nobody has read yet, that are being read, or that are here and wait to
//! be asked for.

use std::collections::{BTreeMap, VecDeque};

use crate::direct::{AlignedBytes, DirectReads};

/// Bytes of a piece, at most.
pub(super) const PIECE_BYTES: u64 = 128 << 10;
/// Bytes of a small piece, as most blocks of maps and directories are: they are copied while others wait.
const SMALL_BYTES: u64 = 4 << 10;
/// Bytes that are read and not yet asked for, or being read.
pub(super) const MOST_HELD_BYTES: u64 = 4 << 20;
/// Pieces that may be announced at a time; what comes then is read when it is asked for.
pub(super) const MOST_PIECES: usize = 1 << 13;
/// A piece that was asked for in part may go when one is asked for that was announced so many later: those of a piece
/// of an inode table are asked for in no order.
pub(super) const ASKED_TOGETHER: u64 = 256;
/// Memory that is kept to be used again: of so many pieces of [`PIECE_BYTES`], and of so many small ones.
const SPARE: [usize; 2] = [8, 64];
/// Memory of all pieces, at most. A small one takes twice its size where sectors have 4 KiB, since memory is not
/// handed out aligned.
pub(super) const MEMORY_BYTES: u64 = 2 * MOST_HELD_BYTES
    + SPARE[0] as u64 * PIECE_BYTES
    + SPARE[1] as u64 * 2 * SMALL_BYTES
    + MOST_PIECES as u64 * 128;

/// All pieces of a file.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// By the offset of the first byte. They do not overlap.
    pub(super) all: BTreeMap<u64, Piece>,
    /// Offsets of pieces that nobody reads yet, in the order in which they were announced, and of some that
    /// are gone.
    queue: VecDeque<u64>,
    /// Of pieces that are here or being read.
    pub(super) held_bytes: u64,
    /// The offsets of those that are here, by their numbers.
    pub(super) here: BTreeMap<u64, u64>,
    /// Likewise of those that were asked for in part. The rest is often never asked for: what lies between wanted
    /// blocks is announced along with them.
    partly: BTreeMap<u64, u64>,
    /// The highest number of a piece that was asked for.
    newest_asked: u64,
    /// Memory to be used again, as [`SPARE`] has it.
    spare: [Vec<AlignedBytes>; 2],
    announced: u64,
}

#[derive(Debug)]
pub(super) struct Piece {
    pub(super) len: u64,
    /// Its number among all that were announced.
    number: u64,
    /// Bytes that were asked for.
    taken: u64,
    /// Somebody waits for it.
    awaited: bool,
    pub(super) bytes: Bytes,
}

#[derive(Debug)]
pub(super) enum Bytes {
    Announced,
    BeingRead,
    Here(AlignedBytes),
    /// Who asks for them reads them again, and is told why.
    Failed,
}

/// What there is of a range that was asked for.
pub(super) enum Found {
    /// Nothing: the range has to be read.
    Nothing,
    /// It is being read.
    Soon,
    /// It was copied.
    Copied,
    /// All of a piece, which is its asker's now.
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
    /// Adds the pieces of a range; those that overlap others are left out.
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

    /// Looks for a range, and fills `into` with it.
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
            // Nobody has come to it: its asker does not wait for those before it.
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

    /// Copies a range of a piece, or hands out a piece that is asked for as a whole.
    fn take(&mut self, start: u64, offset: u64, into: &mut [u8]) -> Found {
        let Some(piece) = self.all.get_mut(&start) else { return Found::Nothing };
        let Bytes::Here(bytes) = &piece.bytes else { return Found::Nothing };
        let whole = into.len() as u64 == piece.len;
        self.newest_asked = self.newest_asked.max(piece.number);
        // While others wait if it is short; the rest of the piece may be asked for by others.
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

    /// Where memory for pieces of a size is kept, and for how many, if it is.
    const fn spare_of(&mut self, len: u64) -> Option<(&mut Vec<AlignedBytes>, usize)> {
        match len {
            PIECE_BYTES => Some((&mut self.spare[0], SPARE[0])),
            SMALL_BYTES => Some((&mut self.spare[1], SPARE[1])),
            _ => None,
        }
    }

    /// Takes the memory of a piece back.
    pub(super) fn release(&mut self, bytes: AlignedBytes, len: u64) {
        self.held_bytes -= len;
        if let Some((spare, most)) = self.spare_of(len)
            && spare.len() < most
        {
            spare.push(bytes);
        }
    }

    /// A piece was asked for that nobody had begun. If that is because others are kept for which nobody asks,
    /// the oldest of them goes.
    fn make_room(&mut self, before: u64) {
        if self.has_room() {
            return;
        }
        let oldest = self.here.first_key_value().filter(|(number, _)| **number < before);
        if let Some((_, &at)) = oldest {
            self.drop_here(at);
        }
    }

    /// A piece that was asked for in part, and of which nobody will ask for more.
    fn done_with(&self) -> Option<u64> {
        let (number, &at) = self.partly.first_key_value()?;
        (number + ASKED_TOGETHER <= self.newest_asked).then_some(at)
    }

    fn drop_here(&mut self, start: u64) {
        if let Some((bytes, len)) = self.remove_here(start) {
            self.release(bytes, len);
        }
    }

    /// Takes a piece that is here out of the others.
    fn remove_here(&mut self, start: u64) -> Option<(AlignedBytes, u64)> {
        let Piece { bytes: Bytes::Here(bytes), len, number, .. } = self.all.remove(&start)? else {
            return None;
        };
        self.here.remove(&number);
        self.partly.remove(&number);
        Some((bytes, len))
    }

    /// Whether there may be a piece that could be read now.
    pub(super) fn has_next(&self) -> bool {
        !self.queue.is_empty() && (self.has_room() || self.done_with().is_some())
    }

    const fn has_room(&self) -> bool {
        self.held_bytes + PIECE_BYTES <= MOST_HELD_BYTES
    }

    /// The next piece to be read, if there is one and room.
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

    /// A piece was read; `None`: it could not be. Whether somebody waits for it.
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
