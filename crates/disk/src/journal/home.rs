//! Writes durable blocks home, and frees their part of a log.

use std::collections::BTreeSet;

use floe_blockdev::WriteBlocks;
use floe_format::BlockNr;
use floe_sync::Arc;

use super::Journal;
use super::error::JournalError;
use super::shared::Shared;
use super::state::Images;

/// Bytes of home blocks that are gathered for one write.
const MOST_GATHERED: usize = 1 << 20;

impl<D: WriteBlocks> Journal<D> {
    /// A checkpoint of one log: durable images go home, a flush, the tail of the log behind them, a flush; then their part of
    /// the log is free (rules R5 and R6). `whole`: all that is durable; else the oldest half of the log.
    pub(super) fn go_home(&self, lane: usize, whole: bool) -> Result<(), JournalError> {
        let (log, homeward) = {
            let mut shared = self.lock();
            shared.checkpoints += 1;
            let lane = &mut shared.lanes[lane];
            let least = (!whole).then(|| lane.state.in_log.used_blocks.div_ceil(2));
            (Arc::clone(&lane.log), lane.state.begin_homeward(least))
        };
        let lanes = &BTreeSet::from([lane]);
        let (records, others) = self.records_apart(lane, &homeward.images);
        self.write_home(&others)?;
        if !records.is_empty() {
            // Recovery finds the journal by them: they change when nothing of it is needed any more.
            self.flush_all(lanes, "flushing what went home")?;
            self.write_home(&records)?;
        }
        let mut shared = self.lock();
        shared.lanes[lane].state.end_homing();
        // Flushes that came meanwhile made something durable now.
        let calls = shared.call_served();
        self.wake(shared, calls);
        self.flush_all(lanes, "flushing what went home")?;
        let (start, id) = homeward.tail;
        log.write_superblock(&self.device, id.sequence(), start, 0)?;
        self.flush_all(lanes, "flushing the tail of the log")?;
        let mut shared = self.lock();
        shared.lanes[lane].state.went_home(&homeward);
        let Shared { lanes, lots, .. } = &mut *shared;
        lots.strays.retain(lane, |block| lanes[lane].state.has_copy(block));
        Ok(())
    }

    /// Takes apart the images of descriptors of lots, in the log of a cube.
    fn records_apart(&self, lane: usize, images: &Images) -> (Images, Images) {
        if lane == 0 {
            return (Images::new(), images.clone());
        }
        let shared = self.lock();
        let is_record = |block: &BlockNr| shared.lots.is_record(&self.geometry, *block);
        images.clone().into_iter().partition(|(block, _)| is_record(block))
    }

    /// Writes images to their places, neighbours in one request.
    fn write_home(&self, images: &Images) -> Result<(), JournalError> {
        let (mut from, mut gathered) = (0, Vec::new());
        let write = |from: u64, bytes: &[u8]| {
            let written = if bytes.is_empty() { Ok(()) } else { self.device.write_at(from, bytes) };
            written.map_err(JournalError::io("writing blocks home"))
        };
        for (&block, image) in images {
            let offset = self.geometry.offset_bytes(block);
            if offset != from + gathered.len() as u64 || gathered.len() >= MOST_GATHERED {
                write(from, &gathered)?;
                from = offset;
                gathered.clear();
            }
            gathered.extend_from_slice(image);
        }
        write(from, &gathered)
    }
}
