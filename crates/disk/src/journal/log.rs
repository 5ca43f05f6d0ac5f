//! The log on the device: where its blocks lie, how long a transaction is in it, and its superblock.

use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_ext4::journal::{self, Ring};
use floe_format::ext::jbd2::{
    CHECKSUM_CRC32C, JournalCompat, JournalFormat, JournalIncompat, JournalSuperblock,
};
use floe_format::features::{Features, Incompat};
use floe_format::{BlockNr, BlockRun};

use super::error::JournalError;

/// Bytes that are gathered for one write.
const MOST_GATHERED: usize = 1 << 20;

/// How many flushes make a transaction durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barriers {
    /// One, where all that the transaction needs is in the log: its commit block has a checksum of it, by which recovery finds
    /// out whether all of it arrived (asynchronous commits of jbd2, checksum version 1). Otherwise two.
    One,
    /// One before the commit block and one behind it.
    Two,
}

/// A log that can be written. Each cube may have one, so it is kept small.
#[derive(Clone, Debug)]
pub(super) struct Log {
    /// Its superblock, without the zeroes at the end.
    superblock: Box<[u8]>,
    /// Blocks of its file, in order.
    runs: Box<[BlockRun]>,
    block_size: u32,
    /// Features of an empty log: those that Linux gives it.
    resting: (JournalCompat, JournalIncompat),
    /// Commit blocks have a checksum of their transaction, so that they may reach the device before it: one barrier does.
    pub(super) one_barrier: bool,
    pub(super) ring: Ring,
    pub(super) format: JournalFormat,
    pub(super) uuid: [u8; 16],
}

impl Log {
    /// The log of a journal that is empty, with the features that Linux gives it when it mounts: revokes, block numbers and
    /// checksums as the file system has them, no asynchronous commits; with one barrier, those that it needs until the log is
    /// empty again. They change here, because they may change on an empty log only; [`Log::write_superblock`] writes them.
    pub(super) fn of(
        mut place: journal::Journal,
        features: &Features,
        barriers: Barriers,
    ) -> Result<Self, JournalError> {
        let superblock = &mut place.superblock;
        if !superblock.is_v2() {
            return Err(JournalError::Unsupported("its superblock is of version 1"));
        }
        let mut incompat = superblock.incompat() | JournalIncompat::REVOKE;
        incompat.remove(JournalIncompat::ASYNC_COMMIT);
        if features.incompat.contains(Incompat::BIT64) {
            incompat |= JournalIncompat::BIT64;
        }
        let keeps = incompat.intersects(JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3);
        if features.metadata_csum() && !keeps {
            superblock.feature_compat &= !JournalCompat::CHECKSUM.bits();
            incompat |= JournalIncompat::CSUM_V3;
            superblock.checksum_type = CHECKSUM_CRC32C;
        }
        superblock.feature_incompat = incompat.bits();
        let resting = (superblock.compat(), incompat);
        let one_barrier = barriers == Barriers::One;
        if one_barrier {
            superblock.feature_compat |= JournalCompat::CHECKSUM.bits();
            incompat.remove(JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3);
            superblock.feature_incompat = (incompat | JournalIncompat::ASYNC_COMMIT).bits();
        }
        let (format, uuid) = (superblock.format(), superblock.uuid);
        let ring = place.ring().filter(|ring| ring.len_blocks() >= 16);
        let ring = ring.ok_or(JournalError::Unsupported("its log has no room"))?;
        let (superblock, block_size) = (trimmed(&place.superblock), place.block_size);
        let runs =
            runs_of(&place).ok_or(JournalError::Unsupported("a block of it has no place"))?;
        Ok(Self { superblock, runs, block_size, resting, one_barrier, ring, format, uuid })
    }

    /// The same log, which is empty, with two barriers.
    pub(super) fn with_two_barriers(&self) -> Self {
        let (compat, incompat) = self.resting;
        let superblock = JournalSuperblock {
            feature_compat: compat.bits(),
            feature_incompat: incompat.bits(),
            ..self.superblock()
        };
        let format = superblock.format();
        Self { superblock: trimmed(&superblock), format, one_barrier: false, ..self.clone() }
    }

    fn superblock(&self) -> JournalSuperblock {
        let mut bytes = [0; 1024];
        // It was made from as many bytes.
        bytes[..self.superblock.len()].copy_from_slice(&self.superblock);
        JournalSuperblock::decode(&bytes)
    }

    /// Whether the superblock on the device has other features than it is written with.
    pub(super) fn differs_from(&self, stored: &JournalSuperblock) -> bool {
        let ours = self.superblock();
        (ours.feature_compat, ours.feature_incompat)
            != (stored.feature_compat, stored.feature_incompat)
    }

    /// Blocks of the log that a transaction takes: revoke blocks, descriptors, copies, the commit block.
    pub(super) fn cost(&self, blocks: u64, revokes: u64) -> u64 {
        let len = self.block_len();
        let tags = self.format.tags_per_block(len).max(1) as u64;
        let numbers = self.format.revokes_per_block(len).max(1) as u64;
        revokes.div_ceil(numbers) + blocks.div_ceil(tags) + blocks + 1
    }

    /// The most blocks that one transaction may take: a quarter of the log, so that the transactions before it can go
    /// home while it is written.
    pub(super) fn limit(&self) -> u32 {
        self.ring.len_blocks() / 4
    }

    pub(super) fn block_len(&self) -> usize {
        self.block_size as usize
    }

    /// Where the next transaction of an empty log begins: where the last one ended, if the superblock says so.
    pub(super) fn first_head(&self) -> u32 {
        let head = self.superblock().head;
        if self.ring.contains(head) { head } else { self.ring.first() }
    }

    fn offset(&self, block: u32) -> Result<u64, JournalError> {
        let mut before = 0;
        for run in &self.runs {
            let at = u64::from(block) - before;
            if at < run.len_blocks {
                return Ok((run.start.0 + at) * u64::from(self.block_size));
            }
            before += run.len_blocks;
        }
        // The ring lies inside the journal.
        Err(JournalError::Unsupported("a block of it has no place"))
    }

    /// Writes the superblock of the journal: transaction `sequence` is expected at block `start`; an empty log has
    /// `start` 0 and begins at `head` when it is used again. Only its first 256 bytes differ, so that a torn write leaves
    /// the old or the new one. Not flushed.
    pub(super) fn write_superblock<D: WriteBlocks>(
        &self,
        device: &D,
        sequence: u32,
        start: u32,
        head: u32,
    ) -> Result<(), JournalError> {
        self.write(device, self.superblock(), (sequence, start, head))
    }

    /// Writes the superblock of a log that is empty and stays so, with the features that Linux gives it. Not flushed.
    pub(super) fn write_last_superblock<D: WriteBlocks>(
        &self,
        device: &D,
        sequence: u32,
        head: u32,
    ) -> Result<(), JournalError> {
        let (compat, incompat) = self.resting;
        let superblock = JournalSuperblock {
            feature_compat: compat.bits(),
            feature_incompat: incompat.bits(),
            ..self.superblock()
        };
        self.write(device, superblock, (sequence, 0, head))
    }

    fn write<D: WriteBlocks>(
        &self,
        device: &D,
        mut superblock: JournalSuperblock,
        (sequence, start, head): (u32, u32, u32),
    ) -> Result<(), JournalError> {
        let doing = "writing the superblock of the journal";
        (superblock.sequence, superblock.start, superblock.errno) = (sequence, start, 0);
        superblock.head = head;
        let mut bytes = [0; 1024];
        superblock.encode_sealed(&mut bytes);
        device.write_at(self.offset(0)?, &bytes).map_err(JournalError::io(doing))
    }

    /// A writer of consecutive blocks from block `at` of the log on, which gathers them in `room`.
    pub(super) fn stream<'a, D: WriteBlocks>(
        &'a self,
        device: &'a D,
        at: u32,
        mut room: Vec<u8>,
    ) -> Stream<'a, D> {
        room.clear();
        Stream { log: self, device, at, from: 0, gathered: room }
    }
}

/// Writes blocks of the log in order, neighbours in one request.
pub(super) struct Stream<'a, D> {
    log: &'a Log,
    device: &'a D,
    /// The next block.
    at: u32,
    /// Byte of the device at which `gathered` belongs.
    from: u64,
    gathered: Vec<u8>,
}

impl<D: WriteBlocks> Stream<'_, D> {
    /// Appends a block, which `fill` makes from zeroes.
    pub(super) fn push<R>(&mut self, fill: impl FnOnce(&mut [u8]) -> R) -> Result<R, JournalError> {
        let start = self.begin()?;
        self.gathered.resize(start + self.log.block_len(), 0);
        Ok(fill(&mut self.gathered[start..]))
    }

    /// Appends a copy of a block, which `edit` changes.
    pub(super) fn push_copy<R>(
        &mut self,
        block: &[u8],
        edit: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, JournalError> {
        let start = self.begin()?;
        self.gathered.extend_from_slice(block);
        Ok(edit(&mut self.gathered[start..]))
    }

    /// Begins the next block: returns where it is gathered.
    fn begin(&mut self) -> Result<usize, JournalError> {
        let offset = self.log.offset(self.at)?;
        let apart = offset != self.from + self.gathered.len() as u64;
        if apart || self.gathered.len() >= MOST_GATHERED {
            self.write()?;
            self.from = offset;
        }
        self.at = self.log.ring.advance(self.at, 1);
        Ok(self.gathered.len())
    }

    /// Writes what is left; the room comes back. Not flushed.
    pub(super) fn finish(mut self) -> Result<Vec<u8>, JournalError> {
        self.write()?;
        Ok(self.gathered)
    }

    fn write(&mut self) -> Result<(), JournalError> {
        if !self.gathered.is_empty() {
            let written = self.device.write_at(self.from, &self.gathered);
            written.map_err(JournalError::io("writing the log"))?;
            self.gathered.clear();
        }
        Ok(())
    }
}

/// A superblock of a journal without the zeroes at its end, which are most of it: it names no other users. Its checksum is made
/// when it is written.
fn trimmed(superblock: &JournalSuperblock) -> Box<[u8]> {
    let mut bytes = [0; 1024];
    JournalSuperblock { checksum: 0, ..superblock.clone() }.encode_into(&mut bytes);
    let len = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    bytes[..len].into()
}

/// The blocks of a journal, in order; `None` if one has no place.
fn runs_of(place: &journal::Journal) -> Option<Box<[BlockRun]>> {
    let mut runs: Vec<BlockRun> = Vec::new();
    for block in 0..place.blocks {
        let start = BlockNr(place.offset_bytes(block)? / u64::from(place.block_size));
        match runs.last_mut().filter(|run| run.end() == start) {
            Some(run) => run.len_blocks += 1,
            None => runs.push(BlockRun::new(start, 1)),
        }
    }
    Some(runs.into())
}

/// The place of the journal's superblock, read anew.
pub(super) fn stored_superblock(
    device: &dyn ReadBlocks,
    place: &journal::Journal,
) -> Result<JournalSuperblock, JournalError> {
    let mut bytes = [0; 1024];
    let offset = place.offset_bytes(0);
    let offset = offset.ok_or(JournalError::Unsupported("it has no superblock"))?;
    let read = device.read_at(offset, &mut bytes);
    read.map_err(JournalError::io("reading the superblock of the journal"))?;
    Ok(JournalSuperblock::decode(&bytes))
}
