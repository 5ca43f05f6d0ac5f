//! A journal on a recorded device in memory: what was written, in which order, and what recovery makes of it.

use std::io;

use floe_blockdev::{Event, MemDevice, ReadBlocks, Recorder, WriteBlocks};
use floe_disk::journal::{Journal, TransactionId};
use floe_disk::recovery::recover;
use floe_ext4::fs::FileSystem;
use floe_ext4::journal as ext4_journal;
use floe_ext4::tx::{DirectTx, Tx};
use floe_format::BlockNr;
use floe_format::ext::jbd2::{self, COMMIT_BLOCK, CommitBlock, JournalSuperblock};
use floe_testkit::{Profile, build};

/// A device in memory with an image, which records.
pub(crate) fn device(profile: Profile) -> Recorder<MemDevice> {
    Recorder::new(MemDevice::new(build::base(profile).unwrap().to_vec().unwrap()))
}

pub(crate) fn located(device: &dyn ReadBlocks) -> ext4_journal::Journal {
    let fs = FileSystem::open(&device).unwrap();
    let descs = fs.space.groups.descs();
    ext4_journal::find(device, &fs.superblock, fs.geometry(), descs, None).0.unwrap()
}

/// A block of the log, or of the rest of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    LogSuperblock,
    Log,
    Commit,
    Other,
    Flush,
}

/// Classifies each event behind the first `from` ones; runs of the same kind count once.
pub(crate) fn kinds(device: &Recorder<MemDevice>, from: usize) -> Vec<Kind> {
    let place = located(device);
    let offsets: Vec<u64> = (0..place.blocks).filter_map(|at| place.offset_bytes(at)).collect();
    let mut kinds: Vec<Kind> = device.trace().events[from..]
        .iter()
        .map(|event| match event {
            Event::Flush => Kind::Flush,
            Event::Write { offset_bytes, .. } if *offset_bytes == offsets[0] => Kind::LogSuperblock,
            Event::Write { offset_bytes, bytes } if offsets.contains(offset_bytes) => {
                match jbd2::header(bytes).map(|header| header.blocktype) {
                    Some(COMMIT_BLOCK) => Kind::Commit,
                    _ => Kind::Log,
                }
            }
            Event::Write { .. } => Kind::Other,
        })
        .collect();
    kinds.dedup_by(|next, last| next == last && *next != Kind::Flush);
    kinds
}

/// The sequence and time of each commit block in a trace, in order.
pub(crate) fn commits(device: &Recorder<MemDevice>) -> Vec<(u32, (u64, u32))> {
    let events = device.trace().events;
    let blocks = events.iter().filter_map(|event| match event {
        Event::Write { bytes, .. } => jbd2::header(bytes).map(|header| (header, bytes.clone())),
        Event::Flush => None,
    });
    blocks
        .filter(|(header, _)| header.blocktype == COMMIT_BLOCK)
        .map(|(header, bytes)| {
            let commit = CommitBlock::decode(bytes.first_chunk().unwrap());
            (header.sequence, (commit.commit_sec, commit.commit_nsec))
        })
        .collect()
}

/// Free blocks of the file system, never handed out: tests write them raw.
pub(crate) fn free_blocks(device: &dyn ReadBlocks, count: u64) -> Vec<BlockNr> {
    let volume = FileSystem::open(&device).unwrap();
    let (mut free, device) = (Vec::new(), NoWrites(device));
    for group in 0..volume.geometry().group_count {
        let group = floe_format::GroupNr(group);
        let mut tx = DirectTx::new(&device, volume.geometry().clone());
        let bits = volume.space.groups.block_bitmap(&mut tx, group).unwrap();
        let home = volume.geometry().blocks_of(group);
        for bit in 0..u32::try_from(home.len_blocks).unwrap() {
            if !floe_format::ext::bitmap::test(&bits, bit) {
                free.push(BlockNr(home.start.0 + u64::from(bit)));
            }
        }
    }
    assert!(free.len() as u64 >= count);
    free.truncate(usize::try_from(count).unwrap());
    free
}

/// A device that must not be written.
struct NoWrites<'a>(&'a dyn ReadBlocks);

impl ReadBlocks for NoWrites<'_> {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset_bytes, into)
    }
}

impl WriteBlocks for NoWrites<'_> {
    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        panic!("written");
    }

    fn flush(&self) -> io::Result<()> {
        panic!("flushed");
    }
}

/// Gives an empty journal these features; those of the file system stay. The fast-commit area is what mke2fs left for it.
pub(crate) fn set_log_features<D: WriteBlocks>(device: &D, compat: u32, incompat: u32) {
    let place = located(device);
    let mut superblock = place.superblock.clone();
    (superblock.feature_compat, superblock.feature_incompat) = (compat, incompat);
    superblock.checksum_type = if incompat & 0x18 == 0 { 0 } else { 4 };
    superblock.num_fc_blks = superblock.maxlen - 1024;
    let mut bytes = [0; 1024];
    superblock.encode_into(&mut bytes);
    superblock.checksum = JournalSuperblock::compute_checksum(&bytes);
    superblock.encode_into(&mut bytes);
    device.write_at(place.offset_bytes(0).unwrap(), &bytes).unwrap();
}

/// Fills blocks with a byte, in one transaction.
pub(crate) fn fill<D: WriteBlocks>(
    journal: &Journal<D>,
    blocks: &[BlockNr],
    byte: u8,
) -> TransactionId {
    let mut tx = journal.begin(u32::try_from(blocks.len()).unwrap()).unwrap();
    for &block in blocks {
        tx.zeroed(block).unwrap().fill(byte);
    }
    tx.finish().unwrap()
}

/// The first byte of a block.
pub(crate) fn first_byte(device: &dyn ReadBlocks, block: BlockNr, block_size: u64) -> u8 {
    let mut byte = [0];
    device.read_at(block.0 * block_size, &mut byte).unwrap();
    byte[0]
}

/// A copy of the device as it is, after recovery.
pub(crate) fn recovered(device: &Recorder<MemDevice>) -> MemDevice {
    let copy = MemDevice::new(device.base_bytes());
    recover(&copy).unwrap();
    copy
}

/// A copy of all bytes.
pub(crate) trait BaseBytes {
    fn base_bytes(&self) -> Vec<u8>;
}

impl BaseBytes for Recorder<MemDevice> {
    fn base_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.size_bytes()).unwrap()];
        self.read_at(0, &mut bytes).unwrap();
        bytes
    }
}
