//! A cache of tables and unpacked clusters, because consecutive reads mostly need the same ones.

use floe_sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::collections::HashMap;
use std::io;

/// A cached piece; a reader may hold it after its eviction.
pub(super) type Piece<T> = Arc<[T]>;

/// The most recently used pieces, by number. Threads share it.
pub(super) struct Cache<T> {
    most: usize,
    held: Mutex<Held<T>>,
}

struct Held<T> {
    /// Counts uses; the piece with the smallest count is evicted first.
    clock: u64,
    pieces: HashMap<u64, (u64, Piece<T>)>,
}

impl<T> Cache<T> {
    /// Keeps at most `budget_bytes` in pieces of `piece_bytes` each, but always a few pieces.
    pub(super) fn new(budget_bytes: usize, piece_bytes: usize) -> Self {
        let most = (budget_bytes / piece_bytes.max(1)).max(4);
        Self { most, held: Mutex::new(Held { clock: 0, pieces: HashMap::new() }) }
    }

    /// The piece `number`, read with `load` if it is not cached. If two threads miss it at the same
    /// time, both read it; neither waits for the other's read.
    pub(super) fn get(
        &self,
        number: u64,
        load: impl FnOnce() -> io::Result<Piece<T>>,
    ) -> io::Result<Piece<T>> {
        {
            let mut held = self.lock();
            held.clock += 1;
            let clock = held.clock;
            if let Some((used, piece)) = held.pieces.get_mut(&number) {
                *used = clock;
                return Ok(Arc::clone(piece));
            }
        }
        let piece = load()?;
        let mut held = self.lock();
        if held.pieces.len() >= self.most
            && let Some(oldest) = held.pieces.iter().min_by_key(|(_, (used, _))| *used)
        {
            let oldest = *oldest.0;
            held.pieces.remove(&oldest);
        }
        let clock = held.clock;
        held.pieces.insert(number, (clock, Arc::clone(&piece)));
        Ok(piece)
    }

    /// A thread that panics leaves no half-done state: it only reads and inserts.
    fn lock(&self) -> MutexGuard<'_, Held<T>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_used_for_longest_goes_first() {
        let cache = Cache::new(0, 1);
        let mut loads = Vec::new();
        for number in [1, 2, 3, 4, 1, 5, 1, 2] {
            let piece = cache.get(number, || {
                loads.push(number);
                Ok([number].into())
            });
            assert_eq!(piece.unwrap()[0], number);
        }
        assert_eq!(loads, [1, 2, 3, 4, 5, 2]);
    }

    #[test]
    fn a_read_that_fails_leaves_nothing() {
        let cache: Cache<u8> = Cache::new(0, 1);
        assert!(cache.get(7, || Err(io::ErrorKind::InvalidData.into())).is_err());
        assert_eq!(cache.get(7, || Ok([1].into())).unwrap()[0], 1);
    }
}
