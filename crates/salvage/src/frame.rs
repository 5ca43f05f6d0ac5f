//! The frame of a file system: its superblock, geometry and descriptors, found or reconstructed.

use std::collections::{BTreeMap, BTreeSet};

use floe_blockdev::{ReadBlocks, SECTOR_BYTES};
use floe_check::CheckError;
use floe_check::volume::open::{WhichSuperblock, open, start_of};
use floe_format::checksum_seed::{SeedFinder, file_system_seed};
use floe_format::crc::Seed;
use floe_format::ext::dirent::{DirEntryHeader, HEADER_SIZE, MIN_REC_LEN};
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::htree::DxBlock;
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, Superblock, has_magic};
use floe_format::features::{Incompat, RoCompat};
use floe_format::geometry::Strictness;
use floe_format::native::identity::Identity;
use floe_format::native::lot::is_desc_size;
use floe_format::{BlockNr, Geometry, InodeNr};

use crate::SalvageError;

/// Bytes read at once.
const CHUNK_BYTES: u64 = 1 << 20;
/// Inodes in each group of a reconstructed frame.
const GUESSED_INODES_PER_GROUP: u32 = 8192;
/// Bytes of an inode in a reconstructed frame.
const GUESSED_INODE_BYTES: u16 = 256;

/// The source of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The primary superblock, or a backup at its usual place.
    Superblock,
    /// A superblock at an unusual place, at this byte of the device.
    Found(u64),
    /// No superblock is left: block size and checksum seed come from directory blocks.
    Guessed,
}

/// The frame of a file system.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) superblock: Superblock,
    pub(crate) geometry: Geometry,
    pub(crate) groups: Vec<GroupDesc>,
    pub(crate) origin: Origin,
    /// The superblock in use; `None` if there is none.
    pub(crate) which: Option<WhichSuperblock>,
}

impl Frame {
    /// The seed of metadata checksums; `None` without metadata_csum.
    pub(crate) fn seed(&self) -> Option<Seed> {
        self.geometry.features.metadata_csum().then(|| self.superblock.seed())
    }

    /// Whether Floe made the file system as a native one: inodes have backpointers.
    pub(crate) fn is_native(&self) -> bool {
        is_desc_size(self.geometry.desc_size) && Identity::of(&self.superblock).is_some()
    }

    /// Whether the places of inode tables are known.
    pub(crate) fn has_tables(&self) -> bool {
        self.origin != Origin::Guessed
    }
}

/// Finds the frame: as a check does, else from any superblock on the device, else from the
/// checksums of directory blocks.
///
/// # Errors
/// Those of opening the file system if nothing helps, or that it begins elsewhere.
pub(crate) fn find(device: &dyn ReadBlocks, which: WhichSuperblock) -> Result<Frame, SalvageError> {
    let error = match open(device, which) {
        Ok(opened) => {
            let (superblock, geometry, groups) =
                (opened.superblock, opened.geometry, opened.groups);
            let origin = Origin::Superblock;
            return Ok(Frame { superblock, geometry, groups, origin, which: Some(which) });
        }
        Err(error @ CheckError::NoSuperblock { .. }) if which.block.is_none() => error,
        Err(error) => return Err(error.into()),
    };
    let mut seeds = SeedVotes::default();
    let (mut found, mut elsewhere) = (None, None);
    for_each_kib(device, &mut |offset, bytes| {
        // Partitions begin at any sector. Directories before the start belong to a file system that may hold the other in a file.
        elsewhere = [0, SECTOR_BYTES].into_iter().find_map(|at| {
            let is_magic = has_magic(bytes.get(at..)?);
            let start = is_magic.then(|| start_of(device, offset + at as u64))??;
            seeds.first_bytes.is_none_or(|first| first >= start).then_some(start)
        });
        if found.is_none() && elsewhere.is_none() {
            found = opened_at(device, offset, bytes);
        }
        seeds.look(device, offset, bytes);
        found.is_none() && elsewhere.is_none()
    });
    match elsewhere {
        Some(start_bytes) => Err(SalvageError::Elsewhere { start_bytes, source: error }),
        None => found.or_else(|| guessed(device, &seeds)).ok_or(SalvageError::Open(error)),
    }
}

/// Calls `look` with every aligned KiB that is not zero, until it returns false.
fn for_each_kib(device: &dyn ReadBlocks, look: &mut dyn FnMut(u64, &[u8]) -> bool) {
    let mut chunk = Vec::new();
    for start in (0..device.size_bytes()).step_by(CHUNK_BYTES as usize) {
        let len = CHUNK_BYTES.min(device.size_bytes() - start);
        if device.is_hole(start, len) {
            continue;
        }
        chunk.resize(len as usize, 0);
        if device.read_at(start, &mut chunk).is_err() {
            continue;
        }
        for (at, bytes) in chunk.chunks_exact(1024).enumerate() {
            if !look(start + at as u64 * 1024, bytes) {
                return;
            }
        }
    }
}

/// The frame of a superblock at a byte of the device.
fn opened_at(device: &dyn ReadBlocks, offset: u64, bytes: &[u8]) -> Option<Frame> {
    let bytes: &[u8; 1024] = bytes.first_chunk()?;
    let superblock = Superblock::decode(bytes);
    if superblock.magic != MAGIC || !Superblock::checksum_ok(bytes) {
        return None;
    }
    let geometry = Geometry::new(&superblock, Strictness::Relaxed).ok()?;
    let block_size = u64::from(geometry.block_size);
    if !offset.is_multiple_of(block_size) && offset != OFFSET_BYTES {
        return None;
    }
    let which = WhichSuperblock {
        block: Some(BlockNr(offset / block_size)),
        block_size: Some(geometry.block_size),
    };
    let opened = open(device, which).ok()?;
    let (superblock, geometry, groups) = (opened.superblock, opened.geometry, opened.groups);
    let origin = Origin::Found(offset);
    Some(Frame { superblock, geometry, groups, origin, which: Some(which) })
}

/// Checksum seeds that first blocks of directories suggest, with the directories, by block size. The
/// journal holds several copies of one block, so directories count, not blocks.
#[derive(Default)]
struct SeedVotes {
    finder: SeedFinder,
    votes: BTreeMap<(u32, u32), BTreeSet<InodeNr>>,
    largest_inode: u32,
    /// Byte of the device with the first directory.
    first_bytes: Option<u64>,
}

impl SeedVotes {
    /// Takes the first block of a directory into account. mke2fs makes the root and lost+found with
    /// generation 0, so both lead to the same seed; directories of other generations lead to
    /// random ones.
    fn look(&mut self, device: &dyn ReadBlocks, offset: u64, bytes: &[u8]) {
        let Some(dot) = first_dot(bytes) else { return };
        // Below 4096 inodes per MiB of device, which is more than any mke2fs makes.
        if u64::from(dot.0) > device.size_bytes() / 256 {
            return;
        }
        self.largest_inode = self.largest_inode.max(dot.0);
        self.first_bytes.get_or_insert(offset);
        for block_size in [1024u32, 2048, 4096, 8192, 16384, 32768, 65536] {
            if !offset.is_multiple_of(u64::from(block_size)) {
                break;
            }
            let mut block = vec![0; block_size as usize];
            if device.read_at(offset, &mut block).is_err() {
                break;
            }
            let index = DxBlock::detect(&block);
            let seed = match index {
                Some((_, index)) => self.finder.of_index(&index),
                None => self.finder.of_leaf(&block),
            };
            if let Some(seed) = seed {
                let Seed(seed) = file_system_seed(seed, dot, 0);
                self.votes.entry((block_size, seed)).or_default().insert(dot);
            }
        }
    }
}

/// The inode that `.` names, if `bytes` begin as the first block of a directory does. They may be less than the block, to
/// whose end `..` reaches in an empty directory.
pub(crate) fn first_dot(bytes: &[u8]) -> Option<InodeNr> {
    let entry = |at: u32, name: &[u8]| {
        let entry = bytes.get(at as usize..)?;
        let header = DirEntryHeader::decode(entry.first_chunk()?);
        let is_named =
            usize::from(header.name_len) == name.len() && entry[HEADER_SIZE..].starts_with(name);
        (is_named && header.inode != 0).then_some(header)
    };
    let dot = entry(0, b".").filter(|dot| u32::from(dot.rec_len) == MIN_REC_LEN)?;
    entry(MIN_REC_LEN, b"..")?;
    Some(InodeNr(dot.inode))
}

/// A frame without a superblock: block size and seed with the most votes, and inode tables without
/// a place.
fn guessed(device: &dyn ReadBlocks, seeds: &SeedVotes) -> Option<Frame> {
    let (&(block_size, seed), _) = seeds
        .votes
        .iter()
        .filter(|(_, votes)| votes.len() > 1)
        .max_by_key(|(_, votes)| votes.len())?;
    let blocks = device.size_bytes() / u64::from(block_size);
    // Twice the largest number seen, so that files made later have one, too.
    let inodes = seeds.largest_inode.saturating_mul(2).max(GUESSED_INODES_PER_GROUP);
    let group_count = inodes.div_ceil(GUESSED_INODES_PER_GROUP);
    let blocks_per_group = u32::try_from(blocks.div_ceil(u64::from(group_count))).ok()?;
    let empty = Superblock::decode(&[0; 1024]);
    let superblock = Superblock {
        magic: MAGIC,
        rev_level: 1,
        log_block_size: block_size.trailing_zeros() - 10,
        log_cluster_size: block_size.trailing_zeros() - 10,
        blocks_count_lo: (blocks & 0xffff_ffff) as u32,
        blocks_count_hi: (blocks >> 32) as u32,
        inodes_count: group_count * GUESSED_INODES_PER_GROUP,
        inodes_per_group: GUESSED_INODES_PER_GROUP,
        inode_size: GUESSED_INODE_BYTES,
        first_ino: 11,
        desc_size: 64,
        checksum_type: 1,
        checksum_seed: seed,
        feature_incompat: (Incompat::FILETYPE
            | Incompat::EXTENTS
            | Incompat::BIT64
            | Incompat::CSUM_SEED)
            .bits(),
        feature_ro_compat: RoCompat::METADATA_CSUM.bits(),
        ..empty
    };
    let geometry = Geometry {
        features: superblock.features(),
        block_size,
        cluster_blocks: 1,
        cluster_bits: 0,
        first_data_block: BlockNr(0),
        blocks_count: blocks,
        inodes_count: superblock.inodes_count,
        blocks_per_group: blocks_per_group.max(1),
        clusters_per_group: blocks_per_group.max(1),
        inodes_per_group: GUESSED_INODES_PER_GROUP,
        inode_size: u32::from(GUESSED_INODE_BYTES),
        first_inode: InodeNr(11),
        group_count,
        desc_size: 64,
        desc_blocks: 0,
        reserved_gdt_blocks: 0,
        inode_table_blocks: GUESSED_INODES_PER_GROUP * u32::from(GUESSED_INODE_BYTES) / block_size,
        first_meta_bg: 0,
        backup_groups: [0; 2],
    };
    let groups = vec![GroupDesc::of(&[0; 64]); group_count as usize];
    Some(Frame { superblock, geometry, groups, origin: Origin::Guessed, which: None })
}
