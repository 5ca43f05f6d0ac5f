//! Writes durable blocks home, and frees their part of a log.

use std::collections::BTreeSet;

use floe_blockdev::WriteBlocks;
use floe_format::BlockNr;
use floe_sync::Arc;
use floe_sync::atomic::Ordering;

use super::Journal;
use super::error::JournalError;
use super::log::Log;
use super::shared::{Lane, Shared};
use super::state::{Images, State};

/// Bytes of home blocks that are gathered for one write.
const MOST_GATHERED: usize = 1 << 20;

/// Bytes of images that are durable and not home, from which on the older half goes home.
const MOST_KEPT_BYTES: u64 = 16 << 20;

impl<D: WriteBlocks> Journal<D> {
    /// Keeps about twice so many bytes of blocks of each log in memory, half of them of the running transaction: commits and writes
    /// home earlier than a full log demands. A single change may have more.
    pub fn keep_within(&self, bytes: u64) {
        self.most_kept_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Bytes of blocks in memory, of transactions that are running or not home yet.
    pub fn kept_bytes(&self) -> u64 {
        let shared = self.lock();
        let kept = shared.lanes.iter().map(|Lane { log, state, .. }| {
            let closed: usize = state.closed.iter().map(|closed| closed.images.len()).sum();
            (state.running.images.len() + closed + state.home_due.len()) * log.block_len()
        });
        kept.sum::<usize>() as u64
    }

    /// Images that a log may keep.
    fn most_images(&self, log: &Log) -> usize {
        let most = self.most_kept_bytes.load(Ordering::Relaxed) / log.block_len() as u64;
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Whether a log keeps more than it may: then whether something is to go home, or else to be committed.
    pub(super) fn kept_too_much(&self, log: &Log, state: &State) -> Option<bool> {
        let most = self.most_images(log);
        if state.home_due.len() > most && !state.in_log.is_empty() {
            return Some(true);
        }
        (state.running.images.len() > most).then_some(false)
    }

    /// Writes the older half of a cube's log home if more than half of it is in use, and nobody writes it: so that seldom a change
    /// waits for room, with all that wait for its end. A failure ends the journal, as that of a commit does. In the root cube it
    /// is the log of `block`.
    pub fn relieve(&self, cube: u32, block: Option<BlockNr>) {
        let further = block.and_then(|block| self.log_of(cube, block));
        let shared = self.lock();
        let lane = further.or_else(|| shared.lane_of_cube(cube)).unwrap_or(0);
        let Lane { log, state, .. } = &shared.lanes[lane];
        // Content of files in the log is kept in memory, too, until it is home.
        let most_images = self.most_images(log).min(MOST_KEPT_BYTES as usize / log.block_len());
        let is_due = state.in_log.used_blocks * 2 > u64::from(log.ring.len_blocks())
            || state.home_due.len() > most_images;
        if is_due && !state.working && state.failed.is_none() {
            // Whoever asks for the next change or commit is told.
            drop(
                self.turn(shared, &BTreeSet::from([lane]), |journal| journal.go_home(lane, false)),
            );
        }
    }

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
