//! Content on its way to the disk, in buffers that are used again.
//!
//! The allocator gives large buffers back to the system, which takes a fault for each page to bring them again: about a third of
//! the time of a server that takes a stream of writes.

use floe_sync::{Arc, Mutex, PoisonError};

/// Bytes of a buffer that is used again.
pub(super) const BUFFER_BYTES: usize = 1 << 20;
/// Shorter ones are made as they are needed.
const LEAST_BYTES: usize = BUFFER_BYTES / 4;
/// Buffers that are kept: a batch of content takes as many.
const MOST_KEPT: usize = 8;

/// Content of a file on its way to the disk.
#[derive(Debug)]
pub(super) struct Flight {
    /// The disk's content is cut to this size first.
    pub(super) cut: Option<u64>,
    /// The pages.
    pub(super) indices: Vec<u64>,
    /// Runs of neighbouring pages, up to the end of the file.
    pub(super) runs: Vec<Run>,
    /// The size of the file.
    pub(super) size_bytes: u64,
}

/// Buffers that nobody uses now.
#[derive(Debug, Default)]
pub(super) struct Buffers(Mutex<Vec<Vec<u8>>>);

impl Buffers {
    /// Room for a run of content of so many bytes, at most [`BUFFER_BYTES`], from an offset in its file on.
    pub(super) fn run(self: &Arc<Self>, offset_bytes: u64, most_bytes: usize) -> Run {
        let home = (most_bytes >= LEAST_BYTES).then(|| Arc::clone(self));
        let kept = home.as_ref().and_then(|home| home.lock_kept().pop());
        let least = if home.is_some() { BUFFER_BYTES } else { most_bytes };
        Run { offset_bytes, len: 0, bytes: kept.unwrap_or_else(|| vec![0; least]), home }
    }

    fn lock_kept(&self) -> floe_sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Content of a file without a gap.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) offset_bytes: u64,
    len: usize,
    bytes: Vec<u8>,
    /// Where the buffer goes afterwards.
    home: Option<Arc<Buffers>>,
}

impl Run {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) const fn end(&self) -> u64 {
        self.offset_bytes + self.len as u64
    }

    /// Whether so many bytes more go in.
    pub(super) const fn has_room(&self, bytes: usize) -> bool {
        self.len + bytes <= self.bytes.len()
    }

    /// The place of so many bytes more, which the caller fills.
    pub(super) fn grow(&mut self, bytes: usize) -> &mut [u8] {
        let from = self.len;
        self.len += bytes;
        &mut self.bytes[from..self.len]
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            let mut kept = home.lock_kept();
            if kept.len() < MOST_KEPT {
                kept.push(std::mem::take(&mut self.bytes));
            }
        }
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_is_used_again_and_a_small_one_is_not() {
        let buffers = Arc::new(Buffers::default());
        let place = |run: &Run| run.bytes.as_ptr();
        let mut first = buffers.run(0, BUFFER_BYTES);
        first.grow(3).copy_from_slice(&[1, 2, 3]);
        let was = place(&first);
        drop(first);
        drop(buffers.run(0, 4096));
        let mut again = buffers.run(4096, LEAST_BYTES);
        assert_eq!((place(&again), again.bytes(), again.end()), (was, &[][..], 4096));
        again.grow(2).fill(9);
        assert_eq!((again.bytes(), again.end()), (&[9, 9][..], 4098));
        let many: Vec<Run> = (0..20).map(|_| buffers.run(0, BUFFER_BYTES)).collect();
        drop((many, again));
        assert_eq!(buffers.lock_kept().len(), MOST_KEPT);
    }
}
