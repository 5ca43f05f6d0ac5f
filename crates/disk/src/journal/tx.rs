//! One change of several blocks, whole or not at all.

use floe_blockdev::WriteBlocks;
use floe_ext4::tx::{ChangedBlocks, Refusal, Staging, judge_inside, read_block};
use floe_format::ext::superblock::Superblock;
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun};
use floe_sync::{Arc, MutexGuard};

use super::Journal;
use super::error::JournalError;
use super::state::{Images, TransactionId};

/// A handle: changes that only their maker sees, until [`JournalTx::finish`] lets them join the running transaction as one.
/// Dropped without it, they change nothing.
#[derive(Debug)]
pub struct JournalTx<'j, D: WriteBlocks> {
    journal: &'j Journal<D>,
    /// Kept to the end: handles read what others wrote, so they follow each other.
    _handle: MutexGuard<'j, ()>,
    changed: ChangedBlocks,
    freed: Vec<BlockRun>,
}

impl<'j, D: WriteBlocks> JournalTx<'j, D> {
    pub(super) const fn new(journal: &'j Journal<D>, handle: MutexGuard<'j, ()>) -> Self {
        Self { journal, _handle: handle, changed: ChangedBlocks::new(), freed: Vec::new() }
    }

    /// Lets the changes join the running transaction, whose number comes back: what was freed may be used again when
    /// that is durable, and [`Journal::commit`] makes it so. A logged superblock gets `needs_recovery`, which replaying it
    /// must not take away. Waits for room if the change took more blocks than it had reserved.
    ///
    /// # Errors
    /// [`JournalError::Aborted`]; [`JournalError::TooLong`] if more blocks have to be revoked than fit into one transaction;
    /// what stopped a commit that had to make room. Nothing is changed then.
    pub fn finish(mut self) -> Result<TransactionId, JournalError> {
        self.keep_needs_recovery();
        let changed = std::mem::take(&mut self.changed);
        let changed: Images = changed
            .into_blocks()
            .into_iter()
            .map(|(block, bytes)| (block, Arc::new(bytes)))
            .collect();
        let freed = &self.freed;
        let mut state = self.journal.room_for(|state| state.joined_len(&changed, freed))?;
        state.join(changed, &self.freed);
        Ok(state.last())
    }

    fn keep_needs_recovery(&mut self) {
        let (block, at) = self.journal.superblock_place();
        let bytes = self.changed.get_mut(block).and_then(|bytes| bytes.get_mut(at..));
        let Some(bytes) = bytes.and_then(|bytes| bytes.first_chunk_mut()) else { return };
        let mut superblock = Superblock::decode(bytes);
        superblock.feature_incompat |= Incompat::RECOVER.bits();
        superblock.encode_with_checksum(bytes);
    }

    /// `Err` if another block would make the change alone longer than a transaction may be.
    fn judge_length(&self) -> Result<(), Refusal> {
        let log = &self.journal.log;
        if log.cost(self.changed.len() as u64 + 1, 0) > u64::from(log.limit()) {
            return Err(Refusal::TooMuch("the change is longer than a quarter of the journal"));
        }
        Ok(())
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
    fn read_below(&mut self, block: BlockNr) -> Result<Vec<u8>, Refusal> {
        judge_inside(&self.journal.geometry, block)?;
        if let Some(image) = self.journal.lock().newest(block) {
            return Ok(image.to_vec());
        }
        // No handle but this one can change it now, so nobody writes it home meanwhile.
        read_block(&self.journal.device, &self.journal.geometry, block)
    }

    fn admit(&mut self, block: BlockNr) -> Result<(), Refusal> {
        judge_inside(&self.journal.geometry, block)?;
        self.judge_length()
    }

    fn note_freed(&mut self, run: BlockRun) {
        self.freed.push(run);
    }
}
