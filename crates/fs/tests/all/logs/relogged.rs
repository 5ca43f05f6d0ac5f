//! The log of a stock file system in use, written again with other checksums, or moved to a device of its own.

use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_ext4::alloc::Space as _;
use floe_ext4::fs::FileSystem as Layout;
use floe_ext4::journal::{self, Journal};
use floe_format::ext::jbd2::{
    self, CHECKSUM_CRC32C, COMMIT_BLOCK, CommitBlock, DESCRIPTOR_BLOCK, JournalCompat,
    JournalFormat, JournalIncompat, JournalSuperblock, REVOKE_BLOCK, Tag,
};
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, Superblock};
use floe_repair::RepairOptions;
use floe_testkit::{Image, oracle};

use crate::cubes::struck::BLOCK;

const SIZE: usize = BLOCK as usize;
const UUID: [u8; 16] = *b"the journal's id";
const JOURNAL_DEV: u32 = 0x8;

/// Checksums of a log, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Those of transactions, and asynchronous commits, as a mount writes it.
    Async,
    /// Those of transactions.
    Sums,
    /// Those of each block.
    Blocks,
    /// Those of each block, with 16 bits in a tag.
    ShortBlocks,
    /// None.
    Bare,
    ExternalAsync,
    ExternalBlocks,
    ExternalBare,
}

impl Kind {
    pub(super) const ALL: [Self; 8] = [
        Self::Async,
        Self::Sums,
        Self::Blocks,
        Self::ShortBlocks,
        Self::Bare,
        Self::ExternalAsync,
        Self::ExternalBlocks,
        Self::ExternalBare,
    ];

    fn is_external(self) -> bool {
        matches!(self, Self::ExternalAsync | Self::ExternalBlocks | Self::ExternalBare)
    }

    fn features(self) -> (JournalCompat, JournalIncompat) {
        let (sums, none) = (JournalCompat::CHECKSUM, JournalCompat::empty());
        match self {
            Self::Async | Self::ExternalAsync => (sums, JournalIncompat::ASYNC_COMMIT),
            Self::Sums => (sums, JournalIncompat::empty()),
            Self::Blocks | Self::ExternalBlocks => (none, JournalIncompat::CSUM_V3),
            Self::ShortBlocks => (none, JournalIncompat::CSUM_V2),
            Self::Bare | Self::ExternalBare => (none, JournalIncompat::empty()),
        }
    }
}

/// A file system, and the device of its journal, where that is another one.
pub(super) struct Pair {
    pub(super) device: MemDevice,
    journal: Option<MemDevice>,
}

impl Pair {
    /// The log of a file system with asynchronous commits becomes one of another kind.
    pub(super) fn new(bytes: Vec<u8>, kind: Kind) -> Self {
        let device = MemDevice::new(bytes);
        let journal = journal_of(&device, None);
        rewrite(&device, &journal, kind);
        let is_external = kind.is_external();
        let journal = is_external.then(|| moved_out(&device, &journal_of(&device, None)));
        Self { device, journal }
    }

    /// The device that has the log.
    pub(super) fn log_device(&self) -> &MemDevice {
        self.journal.as_ref().unwrap_or(&self.device)
    }

    fn external(&self) -> Option<&dyn ReadBlocks> {
        self.journal.as_ref().map(|device| -> &dyn ReadBlocks { device })
    }

    pub(super) fn options(&self) -> RepairOptions<'_> {
        let mut options = RepairOptions::default();
        options.check.external_journal = self.external();
        options
    }

    /// Byte of its device at which the superblock of the journal lies.
    pub(super) fn superblock(&self) -> u64 {
        match &self.journal {
            Some(_) => BLOCK,
            None => journal_of(&self.device, None).offset_bytes(0).unwrap(),
        }
    }

    /// Puts a copy from before the first transaction there.
    pub(super) fn put_old_superblock(&self) {
        let superblock = journal_of(&self.device, self.external()).superblock;
        let old = JournalSuperblock { start: 0, ..superblock };
        put_superblock(self.log_device(), self.superblock(), old);
    }

    /// Control blocks of its transactions, in the order of the log: the kind of each, and its place on the device.
    pub(super) fn controls(&self) -> Vec<(&'static str, u64)> {
        let journal = journal_of(&self.device, self.external());
        let mut all = Vec::new();
        each_block(self.log_device(), &journal, |at, block, _| {
            let kind = match jbd2::header(block)?.blocktype {
                DESCRIPTOR_BLOCK => "a descriptor",
                REVOKE_BLOCK => "a revoke block",
                _ => "a commit block",
            };
            all.push((kind, at));
            None
        });
        all
    }

    /// The words of e2fsck about a state of the file system, and the file system behind it.
    pub(super) fn e2fsck(&self, bytes: &[u8]) -> (String, Image) {
        let image = Image::empty(bytes.len() as u64).unwrap();
        image.write(0, bytes).unwrap();
        let Some(journal) = &self.journal else {
            let (verdict, mended) = oracle::e2fsck_repair(&image).unwrap();
            return (verdict.text, mended);
        };
        let outer = Image::empty(journal.size_bytes()).unwrap();
        outer.write(0, &journal.to_vec()).unwrap();
        let place = outer.path().to_str().unwrap();
        let verdict = oracle::run(image.path(), &["-fy", "-j", place]).unwrap();
        (verdict.text, image)
    }
}

fn journal_of(device: &MemDevice, external: Option<&dyn ReadBlocks>) -> Journal {
    let layout = Layout::open(&device).unwrap();
    let groups = layout.space.groups().descs();
    let (journal, events) =
        journal::find(device, &layout.superblock, layout.geometry(), groups, external);
    journal.unwrap_or_else(|| panic!("{events:?}"))
}

/// Hands over the control blocks of all transactions, with the blocks of data behind descriptors: places on the device.
fn each_block(
    device: &MemDevice,
    journal: &Journal,
    mut with: impl FnMut(u64, &[u8], &[u64]) -> Option<Vec<u8>>,
) {
    let (format, ring) = (journal.superblock.format(), journal.ring().unwrap());
    let (mut at, mut sequence) = (journal.superblock.start, journal.superblock.sequence);
    let mut block = vec![0; SIZE];
    loop {
        let place = |by| journal.offset_bytes(ring.advance(at, by)).unwrap();
        device.read_at(place(0), &mut block).unwrap();
        let header = jbd2::header(&block).filter(|header| header.sequence == sequence);
        let Some(header) = header else { return };
        let tags = match header.blocktype {
            DESCRIPTOR_BLOCK => format.tags(&block).count() as u32,
            _ => 0,
        };
        let data: Vec<u64> = (1..=tags).map(place).collect();
        if let Some(other) = with(place(0), &block, &data) {
            device.write_at(place(0), &other).unwrap();
        }
        sequence += u32::from(header.blocktype == COMMIT_BLOCK);
        at = ring.advance(at, 1 + tags);
    }
}

fn rewrite(device: &MemDevice, journal: &Journal, kind: Kind) {
    let mut superblock = journal.superblock.clone();
    let (compat, incompat) = kind.features();
    let kept = superblock.incompat() & (JournalIncompat::REVOKE | JournalIncompat::BIT64);
    (superblock.feature_compat, superblock.feature_incompat) =
        (compat.bits(), (kept | incompat).bits());
    superblock.checksum_type = CHECKSUM_CRC32C;
    if kind.is_external() {
        superblock.uuid = UUID;
    }
    let (from, to) = (journal.superblock.format(), superblock.format());
    let mut sum = JournalFormat::FIRST_SUM;
    each_block(device, journal, |_, block, data| {
        let header = jbd2::header(block).unwrap();
        let mut other = vec![0; SIZE];
        match header.blocktype {
            DESCRIPTOR_BLOCK => {
                let mut copies = Vec::new();
                let tags = from.tags(block).zip(data).map(|(tag, at)| {
                    let mut copy = vec![0; SIZE];
                    device.read_at(*at, &mut copy).unwrap();
                    let sealed = to.prepare_data(tag.block, header.sequence, &mut copy);
                    copies.push(copy);
                    Tag { flags: tag.flags, ..sealed }
                });
                let tags: Vec<Tag> = tags.collect();
                let written =
                    to.write_descriptor(&mut other, header.sequence, &superblock.uuid, &tags);
                assert_eq!(written, tags.len());
                sum = copies.iter().fold(to.sum_up(sum, &other), |sum, copy| to.sum_up(sum, copy));
            }
            REVOKE_BLOCK => {
                let numbers: Vec<u64> = from.revoked(block).unwrap().collect();
                to.write_revoke(&mut other, header.sequence, &numbers);
            }
            _ => {
                let commit = CommitBlock::decode(block.first_chunk().unwrap());
                let time = (commit.commit_sec, commit.commit_nsec);
                to.write_commit(&mut other, header.sequence, time.0, time.1);
                to.put_sum(&mut other, sum);
                sum = JournalFormat::FIRST_SUM;
            }
        }
        Some(other)
    });
    put_superblock(device, journal.offset_bytes(0).unwrap(), superblock);
}

fn put_superblock(device: &MemDevice, at: u64, mut superblock: JournalSuperblock) {
    let mut bytes = [0; 1024];
    superblock.encode_sealed(&mut bytes);
    device.write_at(at, &bytes).unwrap();
}

/// Moves the journal to a device of its own, which comes back. Inode 8 stays as it is.
fn moved_out(device: &MemDevice, journal: &Journal) -> MemDevice {
    let mut bytes = [0; 1024];
    device.read_at(OFFSET_BYTES, &mut bytes).unwrap();
    let mut own = Superblock::decode(&bytes);
    (own.journal_inum, own.journal_uuid, own.journal_dev) = (0, UUID, 0x801);
    (own.jnl_backup_type, own.jnl_blocks) = (0, [0; 17]);
    own.encode_with_checksum(&mut bytes);
    device.write_at(OFFSET_BYTES, &bytes).unwrap();
    let blocks = journal.blocks + 1;
    let outer_device = MemDevice::new(vec![0; blocks as usize * SIZE]);
    let mut outer = Superblock::decode(&[0; 1024]);
    (outer.magic, outer.rev_level, outer.uuid) = (MAGIC, 1, UUID);
    (outer.blocks_count_lo, outer.log_block_size) = (blocks, 2);
    outer.feature_incompat = JOURNAL_DEV;
    outer.encode_into(&mut bytes);
    outer_device.write_at(OFFSET_BYTES, &bytes).unwrap();
    let mut block = vec![0; SIZE];
    for at in 1..journal.blocks {
        device.read_at(journal.offset_bytes(at).unwrap(), &mut block).unwrap();
        outer_device.write_at(u64::from(at + 1) * BLOCK, &block).unwrap();
    }
    let mut superblock = journal.superblock.clone();
    (superblock.first, superblock.start) = (superblock.first + 1, superblock.start + 1);
    (superblock.maxlen, superblock.nr_users) = (blocks, 1);
    superblock.users[..16].copy_from_slice(&own.uuid);
    put_superblock(&outer_device, BLOCK, superblock);
    outer_device
}
