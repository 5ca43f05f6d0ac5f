//! Free blocks are given back to whoever keeps the image: an image file gets holes, a device blocks that it need not keep.

use std::ops::Range;

use floe_blockdev::WriteBlocks;
use floe_format::{BlockRun, GroupNr, InodeNr};

use super::Live;
use crate::FsError;
use crate::store::Store;

impl<D: WriteBlocks> Live<'_, '_, D> {
    /// Discards free blocks, a group at a time: others change something in between. Groups of cubes that have failed keep
    /// theirs.
    pub(super) fn trim_groups(&self, bytes: Range<u64>, least_bytes: u64) -> Result<u64, FsError> {
        let geometry = self.image.files().geometry();
        let block_bytes = u64::from(geometry.block_size);
        let mut trimmed = 0;
        for group in (0..geometry.group_count).map(GroupNr) {
            let place = bytes_of(geometry.blocks_of(group), block_bytes);
            let apart = place.end <= bytes.start || bytes.end <= place.start;
            if apart || self.gates.has_failed(self.gates.of_group(group)) {
                continue;
            }
            trimmed += self.trim_group(group, &bytes, least_bytes.max(block_bytes))?;
        }
        Ok(trimmed)
    }

    fn trim_group(
        &self,
        group: GroupNr,
        bytes: &Range<u64>,
        least_bytes: u64,
    ) -> Result<u64, FsError> {
        let block_bytes = u64::from(self.image.block_bytes());
        let (mut trimmed, mut failed) = (0, None);
        // As one operation: meanwhile nobody takes any of the blocks.
        self.run(InodeNr::ROOT, |volume, tx| {
            for run in volume.free_runs(tx, group)? {
                let run = bytes_of(run, block_bytes);
                let (start, end) = (run.start.max(bytes.start), run.end.min(bytes.end));
                if start >= end || end - start < least_bytes {
                    continue;
                }
                match self.disk.discard(start, end - start) {
                    Ok(true) => trimmed += end - start,
                    Ok(false) => failed = Some(FsError::Unsupported("discarding free blocks")),
                    Err(error) => failed = Some(FsError::Ended(error.to_string())),
                }
                if failed.is_some() {
                    break;
                }
            }
            Ok(())
        })?;
        failed.map_or(Ok(trimmed), Err)
    }
}

const fn bytes_of(run: BlockRun, block_bytes: u64) -> Range<u64> {
    run.start.0 * block_bytes..(run.start.0 + run.len_blocks) * block_bytes
}
