//! Reads ahead where the system does not: what was announced is read in the background, by threads that
//! do nothing else, and kept until it is asked for.
//!
//! A device works at many reads at a time, and a thread that reads past the page cache waits for one. io_uring
//! would do without the threads; its crates need `unsafe`, and the reads are large enough for a thread each
//! (`docs/benchmarks.md`, io_uring).

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::direct::{AlignedBytes, DirectReads};

/// Reads that are under way in the background, at most.
const HELPERS: usize = 8;
/// Bytes of one of them, at most.
const PIECE_BYTES: u64 = 128 << 10;
/// Bytes of a small piece, as most blocks of maps and directories are: memory for them is kept, and they are copied while
/// others wait.
const SMALL_BYTES: u64 = 4 << 10;
/// Bytes that are read and not yet asked for, or being read.
const MOST_HELD_BYTES: u64 = 4 << 20;
/// Pieces that may be announced at a time; what comes then is read when it is asked for.
const MOST_PIECES: usize = 1 << 13;
/// A piece that was asked for in part may go when one is asked for that was announced so many later: those of a piece
/// of an inode table are asked for in no order.
const ASKED_TOGETHER: u64 = 256;
/// Memory that all of it takes, at most: pieces (a small one twice its size where sectors have 4 KiB, since memory is
/// not handed out aligned), one more for each helper in reserve, what is known of those that are announced, and stacks.
pub(crate) const MEMORY_BYTES: u64 =
    2 * MOST_HELD_BYTES + HELPERS as u64 * (PIECE_BYTES + (64 << 10)) + MOST_PIECES as u64 * 128;

/// What was announced of one file, and the threads that read it.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    file: File,
    way: DirectReads,
    state: Mutex<State>,
    /// There is something to read, and room for it; or the end.
    to_read: Condvar,
    /// A piece came.
    came: Condvar,
    /// Nothing is announced, so nobody need look: a hint, right for who announced something.
    empty: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    /// By the offset of the first byte. They do not overlap.
    pieces: BTreeMap<u64, Piece>,
    /// Offsets of pieces that nobody reads yet, in the order in which they were announced, and of some that
    /// are gone.
    queue: VecDeque<u64>,
    /// Of pieces that are here or being read.
    held_bytes: u64,
    /// The offsets of those that are here, by their numbers.
    here: BTreeMap<u64, u64>,
    /// Likewise of those that were asked for in part. The rest is often never asked for: what lies between wanted
    /// blocks is announced along with them.
    partly: BTreeMap<u64, u64>,
    /// The highest number of a piece that was asked for.
    newest_asked: u64,
    /// Memory to be used again: of pieces of [`PIECE_BYTES`], and of small ones.
    spare: [Vec<AlignedBytes>; 2],
    announced: u64,
    /// Helpers that wait for something to read, and askers that wait for a piece: nobody else is woken.
    idle: usize,
    asking: usize,
    ended: bool,
}

#[derive(Debug)]
struct Piece {
    len: u64,
    /// Its number among all that were announced.
    number: u64,
    /// Bytes that were asked for.
    taken: u64,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Announced,
    BeingRead,
    Here(AlignedBytes),
    /// Who asks for them reads them again, and is told why.
    Failed,
}

/// What there is of a range that was asked for.
enum Found {
    /// Nothing: the range has to be read.
    Nothing,
    /// It was copied.
    Copied,
    /// All of a piece, which is its asker's now.
    Whole(AlignedBytes),
}

impl ReadAhead {
    /// For a file that is open for direct reads.
    ///
    /// # Errors
    /// What the system said when a thread was to be started.
    pub(crate) fn of(file: File, way: DirectReads) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            file,
            way,
            state: Mutex::default(),
            to_read: Condvar::new(),
            came: Condvar::new(),
            empty: AtomicBool::new(true),
        });
        let mut all = Self { shared, helpers: Vec::new() };
        for _ in 0..HELPERS {
            let shared = Arc::clone(&all.shared);
            let helper = thread::Builder::new().name("floe-read-ahead".to_owned());
            all.helpers.push(helper.spawn(move || shared.read_announced())?);
        }
        Ok(all)
    }

    /// This range will be read soon. It lies inside the file.
    pub(crate) fn announce(&self, offset_bytes: u64, len_bytes: u64) {
        self.shared.announce(offset_bytes, len_bytes);
    }

    /// Fills `into` if its range was announced as a whole. `false`: the range has to be read.
    pub(crate) fn take(&self, offset_bytes: u64, into: &mut [u8]) -> bool {
        if self.shared.empty.load(Ordering::Relaxed) {
            return false;
        }
        match self.shared.find(offset_bytes, into) {
            Found::Nothing => false,
            Found::Copied => true,
            Found::Whole(bytes) => {
                into.copy_from_slice(&bytes.bytes()[..into.len()]);
                self.shared.give_back(bytes, into.len() as u64);
                true
            }
        }
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.to_read.notify_all();
        for helper in self.helpers.drain(..) {
            // A panic of a helper was told of when it happened, and its pieces were read by others.
            let _ = helper.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn announce(&self, offset_bytes: u64, len_bytes: u64) {
        let mut state = self.lock();
        let end = offset_bytes.saturating_add(len_bytes);
        let mut at = offset_bytes;
        while at < end && state.pieces.len() < MOST_PIECES {
            let len = PIECE_BYTES.min(end - at);
            if !state.overlaps(at, len) {
                let number = state.announced;
                state.announced += 1;
                state.pieces.insert(at, Piece { len, number, taken: 0, bytes: Bytes::Announced });
                state.queue.push_back(at);
            }
            at += len;
        }
        self.end_change(state);
    }

    /// Says what others need know of a change, and wakes a helper if there is something for it to do. It wakes the
    /// next one.
    fn end_change(&self, state: MutexGuard<'_, State>) {
        self.empty.store(state.pieces.is_empty(), Ordering::Relaxed);
        let to_do = state.idle > 0 && state.has_next();
        drop(state);
        if to_do {
            self.to_read.notify_one();
        }
    }

    /// Looks for a range in what was announced, and waits for it if it is being read.
    fn find(&self, offset_bytes: u64, into: &mut [u8]) -> Found {
        let mut state = self.lock();
        loop {
            let Some((start, piece)) = state.covering(offset_bytes, into.len() as u64) else {
                return Found::Nothing;
            };
            match &piece.bytes {
                Bytes::BeingRead => {
                    state.asking += 1;
                    state = self.came.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.asking -= 1;
                    continue;
                }
                // Nobody has come to it: its asker does not wait for those before it.
                Bytes::Announced => {
                    let number = piece.number;
                    state.pieces.remove(&start);
                    state.make_room(number);
                }
                Bytes::Failed => {
                    state.pieces.remove(&start);
                }
                Bytes::Here(_) => {
                    let found = state.take(start, offset_bytes, into);
                    self.end_change(state);
                    return found;
                }
            }
            self.end_change(state);
            return Found::Nothing;
        }
    }

    /// Takes memory back that was handed out.
    fn give_back(&self, bytes: AlignedBytes, len: u64) {
        let mut state = self.lock();
        state.release(bytes, len);
        self.end_change(state);
    }

    /// What a helper does, until the end.
    fn read_announced(&self) {
        let mut state = self.lock();
        while !state.ended {
            let Some((at, len, mut memory)) = state.begin_next(self.way) else {
                state.idle += 1;
                state = self.to_read.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            self.end_change(state);
            let into = &mut memory.bytes_mut()[..len as usize];
            let outcome = self.way.read_exact_at(&self.file, into, at);
            state = self.lock();
            state.finish(at, outcome.is_ok().then_some(memory), len);
            if state.asking > 0 {
                self.came.notify_all();
            }
        }
    }
}

impl State {
    fn overlaps(&self, start: u64, len: u64) -> bool {
        let before = self.pieces.range(..start + len).next_back();
        before.is_some_and(|(at, piece)| at + piece.len > start)
    }

    /// The piece that a range lies in.
    fn covering(&self, start: u64, len: u64) -> Option<(u64, &Piece)> {
        let (at, piece) = self.pieces.range(..=start).next_back()?;
        (start - at + len <= piece.len).then_some((*at, piece))
    }

    /// Copies a range of a piece, or hands out a piece that is asked for as a whole.
    fn take(&mut self, start: u64, offset: u64, into: &mut [u8]) -> Found {
        let Some(piece) = self.pieces.get_mut(&start) else { return Found::Nothing };
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

    /// Where memory for pieces of a size is kept, if it is.
    const fn spare_of(&mut self, len: u64) -> Option<&mut Vec<AlignedBytes>> {
        match len {
            PIECE_BYTES => Some(&mut self.spare[0]),
            SMALL_BYTES => Some(&mut self.spare[1]),
            _ => None,
        }
    }

    fn release(&mut self, bytes: AlignedBytes, len: u64) {
        self.held_bytes -= len;
        if let Some(spare) = self.spare_of(len)
            && spare.len() < HELPERS
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
        let Piece { bytes: Bytes::Here(bytes), len, number, .. } = self.pieces.remove(&start)?
        else {
            return None;
        };
        self.here.remove(&number);
        self.partly.remove(&number);
        Some((bytes, len))
    }

    /// Whether there may be a piece that could be read now.
    fn has_next(&self) -> bool {
        !self.queue.is_empty() && (self.has_room() || self.done_with().is_some())
    }

    const fn has_room(&self) -> bool {
        self.held_bytes + PIECE_BYTES <= MOST_HELD_BYTES
    }

    /// The next piece to be read, and memory for it, if there is one and room.
    fn begin_next(&mut self, way: DirectReads) -> Option<(u64, u64, AlignedBytes)> {
        while self.has_next() {
            while !self.has_room() {
                self.drop_here(self.done_with()?);
            }
            let at = self.queue.pop_front()?;
            let piece = self.pieces.get_mut(&at);
            let Some(piece) = piece.filter(|piece| matches!(piece.bytes, Bytes::Announced)) else {
                continue;
            };
            piece.bytes = Bytes::BeingRead;
            let len = piece.len;
            self.held_bytes += len;
            let spare = self.spare_of(len).and_then(Vec::pop);
            return Some((at, len, spare.unwrap_or_else(|| way.memory(len as usize))));
        }
        None
    }

    /// A piece was read; `None`: it could not be.
    fn finish(&mut self, at: u64, bytes: Option<AlignedBytes>, len: u64) {
        let Some(piece) = self.pieces.get_mut(&at) else { return };
        match bytes {
            Some(bytes) => {
                piece.bytes = Bytes::Here(bytes);
                self.here.insert(piece.number, at);
            }
            None => {
                piece.bytes = Bytes::Failed;
                self.held_bytes -= len;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::time::{Duration, Instant};

    use super::*;

    /// Bytes that say where they are.
    fn bytes_of(range: std::ops::Range<u64>) -> Vec<u8> {
        range.map(|at| ((at % 251) ^ (at >> 12)) as u8).collect()
    }

    /// A file of `len` bytes, and what reads it ahead; `None` where there is no direct I/O.
    fn made(len: u64) -> Option<(tempfile::NamedTempFile, ReadAhead)> {
        let file = tempfile::NamedTempFile::new_in(".").unwrap();
        file.as_file().write_all_at(&bytes_of(0..len), 0).unwrap();
        file.as_file().sync_all().unwrap();
        let own = File::open(file.path()).unwrap();
        let Ok(way) = DirectReads::of(&own) else {
            println!("skipped: no direct I/O here");
            return None;
        };
        Some((file, ReadAhead::of(own, way).unwrap()))
    }

    /// Waits until nobody has anything to read.
    fn settle(ahead: &ReadAhead) {
        let began = Instant::now();
        loop {
            let state = ahead.shared.lock();
            let busy = state.pieces.values().any(|piece| match piece.bytes {
                Bytes::BeingRead => true,
                Bytes::Announced => state.has_next(),
                Bytes::Here(_) | Bytes::Failed => false,
            });
            drop(state);
            if !busy {
                return;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "nobody reads");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether a range was there, and is right.
    fn take(ahead: &ReadAhead, start: u64, len: u64) -> bool {
        let mut into = vec![0; len as usize];
        let taken = ahead.take(start, &mut into);
        assert!(!taken || into == bytes_of(start..start + len), "{start} + {len}");
        taken
    }

    #[test]
    fn what_was_announced_is_read_without_being_asked_for() {
        let Some((file, ahead)) = made(1 << 20) else { return };
        ahead.announce(4096, 300_000);
        ahead.announce(500_001, 77);
        settle(&ahead);
        file.as_file().set_len(0).unwrap();
        assert!(!take(&ahead, 0, 4096), "not announced");
        assert!(!take(&ahead, 4096, PIECE_BYTES + 1), "in two pieces");
        // A piece as a whole, one bit by bit, and in the end out of order.
        assert!(take(&ahead, 4096, PIECE_BYTES));
        let second = 4096 + PIECE_BYTES;
        assert!((0..PIECE_BYTES / 1024).all(|at| take(&ahead, second + at * 1024, 1024)));
        assert!(take(&ahead, 500_001, 77));
        assert!(take(&ahead, second + PIECE_BYTES, 300_000 - 2 * PIECE_BYTES));
        let state = ahead.shared.lock();
        assert!(state.pieces.is_empty() && state.here.is_empty() && state.held_bytes == 0);
        assert!(ahead.shared.empty.load(Ordering::Relaxed));
    }

    #[test]
    fn what_nobody_asks_for_makes_room() {
        let pieces = 3 * MOST_HELD_BYTES / PIECE_BYTES;
        let Some((_file, ahead)) = made(pieces * PIECE_BYTES) else { return };
        ahead.announce(0, pieces * PIECE_BYTES);
        settle(&ahead);
        assert_eq!(ahead.shared.lock().held_bytes, MOST_HELD_BYTES);
        // The first third is never asked for.
        let rest = pieces / 3..pieces;
        let taken = rest.filter(|at| {
            let taken = take(&ahead, at * PIECE_BYTES, PIECE_BYTES);
            settle(&ahead);
            assert!(ahead.shared.lock().held_bytes <= MOST_HELD_BYTES);
            taken
        });
        let taken = taken.count() as u64;
        assert!(taken >= pieces / 2, "{taken} of {pieces}");
    }

    /// As blocks of maps, which are announced with what lies between them.
    #[test]
    fn what_is_asked_for_in_part_makes_room_later() {
        let pieces = 4 * MOST_HELD_BYTES / 8192;
        let Some((_file, ahead)) = made(pieces * 8192) else { return };
        for at in 0..pieces {
            ahead.announce(at * 8192, 8192);
        }
        let taken = (0..pieces).filter(|at| {
            settle(&ahead);
            assert!(ahead.shared.lock().held_bytes <= MOST_HELD_BYTES);
            take(&ahead, at * 8192, 4096)
        });
        assert_eq!(taken.count() as u64, pieces);
        let kept = ahead.shared.lock().pieces.len() as u64;
        assert!((ASKED_TOGETHER..pieces / 2).contains(&kept), "{kept} of {pieces}");
    }

    #[test]
    fn what_cannot_be_read_ahead_is_not_there() {
        let Some((file, ahead)) = made(1 << 20) else { return };
        file.as_file().set_len(8192).unwrap();
        ahead.announce(0, 8192);
        ahead.announce(1 << 19, 4096);
        settle(&ahead);
        assert!(!take(&ahead, 1 << 19, 4096));
        assert!(take(&ahead, 0, 8192));
        let state = ahead.shared.lock();
        assert!(state.pieces.is_empty() && state.held_bytes == 0);
    }

    #[test]
    fn announcements_beyond_all_measure_are_not_kept() {
        let Some((_file, ahead)) = made(4096) else { return };
        (0..2 * MOST_PIECES as u64).for_each(|at| ahead.announce(at << 30, u64::MAX));
        assert!(ahead.shared.lock().pieces.len() <= MOST_PIECES);
        assert!(!take(&ahead, 0, 4096), "the file ends within its first piece");
    }

    #[test]
    fn many_threads_read_what_is_there() {
        let len = 2 * MOST_HELD_BYTES;
        let Some((_file, ahead)) = made(len) else { return };
        ahead.announce(0, 5 * PIECE_BYTES);
        settle(&ahead);
        thread::scope(|scope| {
            for worker in 0..5 {
                let ahead = &ahead;
                scope.spawn(move || {
                    assert!(take(ahead, worker * PIECE_BYTES, PIECE_BYTES));
                    // Some numbers, others for each thread.
                    let mut some = 0x9e37_79b9 + worker;
                    let mut next = |below: u64| {
                        some = some * 48_271 % 0x7fff_ffff;
                        some % below
                    };
                    for _ in 0..400 {
                        let start = next(len - 70_000);
                        let told = 1 + next(60_000);
                        ahead.announce(start, told);
                        let skipped = next(told);
                        let asked = 1 + next(told - skipped);
                        // If it is there it is right.
                        take(ahead, start + skipped, asked);
                    }
                });
            }
        });
        settle(&ahead);
        assert!(ahead.shared.lock().held_bytes <= MOST_HELD_BYTES);
    }
}
