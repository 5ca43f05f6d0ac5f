//! One change of several blocks, whole or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use floe_blockdev::WriteBlocks;
use floe_ext4::tx::{Block, ChangedBlocks, Refusal, Staging, judge_inside, read_block};
use floe_format::ext::superblock::Superblock;
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun};
use floe_sync::Arc;

use super::Journal;
use super::error::JournalError;
use super::handles::{Handle, Held};
use super::shared::Shared;
use super::state::{Images, TransactionId};

/// A handle: changes that only their maker sees, until [`JournalTx::finish`] lets them join the running transaction as one.
/// Dropped without it, they change nothing.
///
/// Several handles may be open. A handle owns each block that it reads or changes until it ends, so that others wait for it; see
/// [`Journal::begin_beside`].
#[derive(Debug)]
pub struct JournalTx<'j, D: WriteBlocks> {
    journal: &'j Journal<D>,
    handle: Handle<'j>,
    changed: ChangedBlocks,
    freed: Vec<BlockRun>,
    /// Logs of the root cube in whose lots it has read blocks, where there are several.
    read: BTreeSet<usize>,
}

impl<'j, D: WriteBlocks> JournalTx<'j, D> {
    pub(super) fn new(journal: &'j Journal<D>, handle: Handle<'j>) -> Self {
        let (changed, freed, read) = (ChangedBlocks::new(), Vec::new(), BTreeSet::new());
        Self { journal, handle, changed, freed, read }
    }

    /// Lets the changes join the running transaction, whose number comes back: what was freed may be used again when
    /// that is durable, and [`Journal::commit`] makes it so. Changes of blocks that several journals own join one in each, and
    /// all become durable together. Waits for room if the change took more blocks than it had reserved, or if it is longer than
    /// the journal of its cube allows: then that of inode 8 has it.
    ///
    /// # Errors
    /// [`JournalError::Aborted`]; [`JournalError::TooLong`] if more blocks have to be revoked than fit into one transaction;
    /// what stopped a commit that had to make room. Nothing is changed then.
    pub fn finish(mut self) -> Result<TransactionId, JournalError> {
        let journal = self.journal;
        let geo = &journal.geometry;
        self.keep_needs_recovery();
        let mut changed: Images = std::mem::take(&mut self.changed).into_blocks();
        // Never logged where there may be several journals (rule R1).
        let superblock = if journal.is_native { changed.remove(&BlockNr(0)) } else { None };
        let (shares, lent) = journal.divide(changed, &self.freed, self.handle.is_alone())?;
        let mut shared = journal.room_for(|shared| {
            let share_len = |(&lane, share): (&usize, &super::shared::Share)| {
                let state = &shared.lanes[lane].state;
                let (images, revokes) = state.joined_len(share.images.keys(), &share.freed);
                (lane, images, revokes)
            };
            shares.iter().map(share_len).collect()
        })?;
        let id = shared.join(geo, shares, &self.read);
        shared.bury(&lent);
        if let Some(image) = superblock {
            shared.superblock = Some(image);
            shared.superblock_due = true;
            shared.lanes[0].state.running.superblock = true;
            if id.lane() == 0 {
                return Ok(shared.lanes[0].state.last());
            }
        }
        Ok(id)
    }

    /// A superblock that is logged must not say that the log is empty when it is replayed.
    fn keep_needs_recovery(&mut self) {
        let (block, at) = self.journal.superblock_place();
        let known = self.changed.get(block).and_then(|bytes| bytes.get(at..));
        let Some(known) = known.and_then(|bytes| bytes.first_chunk()) else { return };
        let mut superblock = Superblock::decode(known);
        if superblock.feature_incompat & Incompat::RECOVER.bits() != 0 {
            return;
        }
        superblock.feature_incompat |= Incompat::RECOVER.bits();
        let bytes = self.changed.get_mut(block).and_then(|bytes| bytes.get_mut(at..));
        if let Some(bytes) = bytes.and_then(|bytes| bytes.first_chunk_mut()) {
            superblock.encode_with_checksum(bytes);
        }
    }

    /// `Err` if another block would make the change alone longer than transactions of the journals may be, or if the journal of
    /// that block has ended. That of inode 8 takes the part of a shorter one, whoever is alone ([`Journal::divide`]).
    fn judge_room(&self, block: BlockNr) -> Result<(), Refusal> {
        let shared = self.journal.lock();
        let geo = &self.journal.geometry;
        let lane = self.judge_lane(&shared, block)?;
        let fits = |lane: usize, blocks: u64| {
            let log = &shared.lanes[lane].log;
            log.cost(blocks, 0) <= u64::from(log.limit())
        };
        let all = self.changed.len() as u64 + 1;
        if fits(lane, all) || self.handle.is_alone() && fits(0, all) {
            return Ok(());
        }
        let mut counts: BTreeMap<usize, u64> = BTreeMap::from([(lane, 1)]);
        for other in self.changed.numbers() {
            *counts.entry(shared.lane_of(geo, other)).or_default() += 1;
        }
        // Where changes wait, one log has all of it.
        let is_whole = shared.lots.strays.are_awaited()
            && counts.keys().all(|lane| shared.lanes[*lane].cube == 0);
        match !is_whole && counts.into_iter().all(|(lane, blocks)| fits(lane, blocks)) {
            true => Ok(()),
            false => Err(Refusal::TooMuch("the change is longer than a quarter of the journal")),
        }
    }

    /// The blocks that this handle owns, as one beside others.
    pub fn owned(&self) -> BTreeSet<BlockNr> {
        self.handle.owned()
    }

    /// The log of a block; `Err` if it has ended.
    fn judge_lane(&self, shared: &Shared, block: BlockNr) -> Result<usize, Refusal> {
        let geo = &self.journal.geometry;
        let lane = shared.lane_of(geo, block);
        let why = match (shared.lots.lost(geo, block), &shared.lanes[lane].state.failed) {
            (Some(why), _) => why.to_owned(),
            (None, Some(why)) => format!("the journal ended after an error: {why}"),
            (None, None) => return Ok(lane),
        };
        Err(Refusal::Io { block, source: io::Error::other(why) })
    }

    /// Makes a block this handle's own.
    fn own(&self, block: BlockNr) -> Result<(), Refusal> {
        match self.handle.take(block) {
            Held::Ours => Ok(()),
            Held::Others => Err(Refusal::Busy(block)),
        }
    }
}

impl<D: WriteBlocks> Staging for JournalTx<'_, D> {
    fn changed(&mut self) -> &mut ChangedBlocks {
        &mut self.changed
    }

    fn block_bytes(&self) -> usize {
        self.journal.geometry.block_size as usize
    }

    /// Reads the block as finished transactions left it.
    fn read_below(&mut self, block: BlockNr) -> Result<Block, Refusal> {
        judge_inside(&self.journal.geometry, block)?;
        self.own(block)?;
        {
            let shared = self.journal.lock();
            // Refused here, before anything is changed: an operation that could not join its transaction in the end would
            // leave whoever made it with changes that never happened.
            let lane = self.judge_lane(&shared, block)?;
            // The superblock is not logged where there are several.
            if block.0 > 0 && shared.lanes[lane].cube == 0 && shared.has_further {
                self.read.insert(shared.lots.own_lane_of(&self.journal.geometry, block));
            }
            if let Some(image) = shared.newest(&self.journal.geometry, block) {
                return Ok(Arc::clone(image));
            }
        }
        // No handle but this one can change it now, so nobody writes it home meanwhile.
        read_block(&self.journal.device, &self.journal.geometry, block)
    }

    fn admit(&mut self, block: BlockNr) -> Result<(), Refusal> {
        judge_inside(&self.journal.geometry, block)?;
        self.own(block)?;
        self.judge_room(block)
    }

    fn note_freed(&mut self, run: BlockRun) {
        self.freed.push(run);
    }

    fn is_logged_below(&mut self, run: BlockRun) -> bool {
        self.journal.lock().has_copy(&self.journal.geometry, run)
    }
}
