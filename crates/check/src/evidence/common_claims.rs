//! Claims of all workers in one bitmap, so that no worker needs a bitmap of its own.
//!
//! An inode usually claims clusters near it, so a worker's few runs per chunk take no memory. In an
//! aged file system, however, each worker would mark clusters everywhere, and there would be as
//! many bitmaps of the whole file system as workers. Claims beyond a chunk's few runs therefore go
//! to a log of the worker (the "delta" of lwFSCK), and whole logs are added to the common bitmap.
//! Its chunks are divided among many locks. Each lock is taken once for many claims, and workers
//! seldom contend for one.

use floe_sync::{Arc, Mutex, PoisonError};

use super::block_set::{BlockSet, CHUNK_BITS};

/// Parts of the bitmap, with a lock each: more than there are workers that add claims at a time, and few
/// enough for a log to have many claims for each. Neighbouring chunks are in different parts.
const PARTS: usize = 64;

/// Claims of a log: 16 KiB.
const LOG_CLAIMS: usize = 2048;

/// Bytes of a worker's log, and of the room to put it in order.
pub(crate) const LOG_BYTES: u64 = 2 * (LOG_CLAIMS * size_of::<u64>()) as u64;

/// Bits of a claim's word for its length in clusters, less one: it lies within a chunk.
const LEN_BITS: u32 = 16;

/// Clusters that are claimed, and those claimed more than once.
#[derive(Debug, Default)]
struct Marks {
    used: BlockSet,
    shared: BlockSet,
}

/// The merged logs of all workers.
#[derive(Debug)]
pub struct CommonClaims {
    parts: [Mutex<Marks>; PARTS],
}

impl Default for CommonClaims {
    fn default() -> Self {
        Self { parts: std::array::from_fn(|_| Mutex::default()) }
    }
}

/// The part a cluster belongs to, and its number there.
#[inline]
const fn place(cluster: u64) -> (usize, u64) {
    let (chunk, within) = (cluster / CHUNK_BITS, cluster % CHUNK_BITS);
    let parts = PARTS as u64;
    ((chunk % parts) as usize, chunk / parts * CHUNK_BITS + within)
}

impl CommonClaims {
    /// Adds claims of one part.
    fn add(&self, part: usize, claims: &[u64]) {
        let mut marks = self.parts[part].lock().unwrap_or_else(PoisonError::into_inner);
        let Marks { used, shared } = &mut *marks;
        for claim in claims {
            let (cluster, len) = (claim >> LEN_BITS, (claim & ((1 << LEN_BITS) - 1)) + 1);
            used.insert(place(cluster).1, len, |word, bits| shared.insert_word(word, bits));
        }
    }

    /// Takes out all that was added: the clusters in use, and those claimed more than once.
    fn take(&self) -> (BlockSet, BlockSet) {
        let (mut used, mut shared) = (Vec::with_capacity(PARTS), Vec::with_capacity(PARTS));
        for part in &self.parts {
            let marks = std::mem::take(&mut *part.lock().unwrap_or_else(PoisonError::into_inner));
            used.push(marks.used);
            shared.push(marks.shared);
        }
        (BlockSet::dealt(used), BlockSet::dealt(shared))
    }
}

/// One worker's way to claims in common.
#[derive(Debug)]
pub struct Log {
    common: Arc<CommonClaims>,
    /// First cluster and length of each claim.
    claims: Vec<u64>,
    /// Room for the claims in order of their parts.
    sorted: Vec<u64>,
}

impl Log {
    /// An empty log, which will be added to `common`.
    pub fn new(common: &Arc<CommonClaims>) -> Self {
        Self { common: Arc::clone(common), claims: Vec::new(), sorted: Vec::new() }
    }

    /// Notes a claim, which lies within one chunk and is not empty.
    #[inline]
    pub fn note(&mut self, cluster: u64, len: u64) {
        self.claims.push(cluster << LEN_BITS | (len - 1));
        if self.claims.len() >= LOG_CLAIMS {
            self.add_up();
        }
    }

    /// Adds what was noted to what is in common.
    fn add_up(&mut self) {
        let part_of = |claim: u64| place(claim >> LEN_BITS).0;
        // How many there are of each part, then where each part begins.
        let mut ends = [0usize; PARTS];
        self.claims.iter().for_each(|claim| ends[part_of(*claim)] += 1);
        let mut end = 0;
        for of_part in &mut ends {
            end += std::mem::replace(of_part, end);
        }
        self.sorted.resize(self.claims.len(), 0);
        for claim in self.claims.drain(..) {
            let at = &mut ends[part_of(claim)];
            self.sorted[*at] = claim;
            *at += 1;
        }
        for claims in self.sorted.chunk_by(|left, right| part_of(*left) == part_of(*right)) {
            if let [first, ..] = claims {
                self.common.add(part_of(*first), claims);
            }
        }
    }

    /// Adds the rest; comes back with everything that all workers added, which is not in common any more.
    pub(crate) fn take_all(mut self) -> (BlockSet, BlockSet) {
        self.add_up();
        self.common.take()
    }

    /// Adds the rest.
    pub fn end(mut self) {
        self.add_up();
    }
}
