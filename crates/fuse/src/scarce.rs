//! Whether space is scarce. Then the writes of files that are opened to be written alone, as shells do, pass the kernel's cache by
//! (`FOPEN_DIRECT_IO`).
//!
//! The kernel accepts bytes that it keeps before the server has room for them, and tells only close and fsync if they are refused. Shells
//! look at neither: `echo > file` on a full disk would succeed and leave an empty file. A write that passes the cache by is refused
//! itself. The kernel does not notice such writes, and shows the time of the last one that it kept until it forgets the file; so files
//! that are also read, and perhaps mapped into memory, are opened as ever.
//!
//! For those the kernel keeps no more than a quarter of what is left ([`KeptLimit`]), so that a program that fills the disk is told
//! soon: its own limit for a mount is a hundredth of the memory or so, which may be more than a small disk has.

use std::cell::Cell;
use std::time::{Duration, Instant};

use floe_fs::Space;
use floe_sync::{Mutex, PoisonError};

/// Space is scarce below this, or below a part of the disk if that is less: the kernel keeps a few MiB of an open file.
const SCARCE_BYTES: u64 = 16 << 20;
const PART: u64 = 32;

/// From one look to the next: to know all that waits stops all slots.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// After something was refused, by a quota perhaps, for how long space counts as scarce.
const AFTER_REFUSAL: Duration = Duration::from_secs(60);

/// Whether space is scarce, as far as it is known.
#[derive(Debug, Default)]
pub(crate) struct Scarce(Mutex<Known>);

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    looked: Option<Instant>,
    refused: Option<Instant>,
    is_scarce: bool,
}

impl Scarce {
    /// Something that the kernel kept was refused.
    pub(crate) fn note_refusal(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).refused = Some(Instant::now());
    }

    /// Whether space is scarce; `space` is asked now and then.
    pub(crate) fn is_scarce(&self, space: impl FnOnce() -> Space) -> bool {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_recent =
            |time: Option<Instant>, within| time.is_some_and(|time| time.elapsed() < within);
        if is_recent(known.refused, AFTER_REFUSAL) {
            return true;
        }
        if !is_recent(known.looked, LOOK_EVERY) {
            let space = space();
            let bytes = |blocks: u64| blocks.saturating_mul(space.block_bytes.into());
            let least = SCARCE_BYTES.min(bytes(space.blocks) / PART);
            known.is_scarce = bytes(space.available_blocks) < least;
            known.looked = Some(Instant::now());
        }
        known.is_scarce
    }
}

/// The kernel may keep this part of what is left on the disk, and so many bytes at least and at most; above, its own limit counts.
const KEPT_PART: u64 = 4;
const KEPT_AT_LEAST: u64 = 1 << 20;
const KEPT_AT_MOST: u64 = 64 << 20;

/// How much the kernel may keep of what programs write, as it was told last.
#[derive(Debug, Default)]
pub(crate) struct KeptLimit {
    bytes: Cell<Option<u64>>,
    /// Bytes that had been written at the last look.
    written: Cell<Option<u64>>,
}

impl KeptLimit {
    /// A new limit, if there is one: after something was written, by which it may have changed, and in steps of two, because each costs
    /// a look at all slots and a call.
    pub(crate) fn look(
        &self,
        written_bytes: u64,
        space: impl FnOnce() -> Space,
    ) -> Option<Option<u64>> {
        if self.written.replace(Some(written_bytes)) == Some(written_bytes) {
            return None;
        }
        let space = space();
        let left = space.available_blocks.saturating_mul(space.block_bytes.into());
        let part = (left / KEPT_PART).max(KEPT_AT_LEAST);
        let bytes = (part < KEPT_AT_MOST).then(|| 1 << part.ilog2());
        (self.bytes.replace(bytes) != bytes).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_may_keep_a_part_of_little_space() {
        let limit = KeptLimit::default();
        let mebibytes = |count: u64| count << 8;
        let look = |written, left| limit.look(written, || space(1 << 30, mebibytes(left)));
        // As much as it likes.
        assert_eq!(look(0, 1000), None);
        // Nothing was written since.
        assert_eq!(limit.look(0, || unreachable!()), None);
        assert_eq!(look(1, 255), Some(Some(32 << 20)));
        assert_eq!(look(2, 128), None);
        assert_eq!(look(3, 100), Some(Some(16 << 20)));
        assert_eq!(look(4, 0), Some(Some(1 << 20)));
        assert_eq!(look(5, 300), Some(None));
    }

    fn space(blocks: u64, available_blocks: u64) -> Space {
        let free_blocks = available_blocks;
        Space {
            block_bytes: 4096,
            blocks,
            free_blocks,
            available_blocks,
            inodes: 9,
            free_inodes: 9,
        }
    }

    #[test]
    fn little_space_is_scarce_and_so_is_any_after_a_refusal() {
        let is_scarce = |blocks, free| Scarce::default().is_scarce(|| space(blocks, free));
        // 64 MiB, then 16 GiB.
        assert_eq!([511, 512].map(|free| is_scarce(16_384, free)), [true, false]);
        assert_eq!([4095, 4096].map(|free| is_scarce(4 << 20, free)), [true, false]);
        let scarce = Scarce::default();
        assert!(!scarce.is_scarce(|| space(16_384, 9_000)));
        // It is not asked again at once.
        assert!(!scarce.is_scarce(|| unreachable!()));
        scarce.note_refusal();
        assert!(scarce.is_scarce(|| unreachable!()));
    }
}
