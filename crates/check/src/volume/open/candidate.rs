//! A superblock read from one place, and whether it can be used.

use floe_blockdev::ReadBlocks;
use floe_format::ext::superblock::{MAGIC, Superblock};
use floe_format::features::{Compat, Features, Incompat, RoCompat};
use floe_format::geometry::{Geometry, GeometryFault, Strictness};
use floe_format::native::{LOCK, is_locked};
use floe_format::{BlockNr, rext3};

use crate::problem::Problem;

/// The newest `s_rev_level` that e2fsck and Linux know.
const NEWEST_REVISION: u32 = 1;
/// `s_checksum_type` of crc32c, the only one there is.
const CHECKSUM_TYPE_CRC32C: u8 = 1;

/// Why a superblock cannot be used.
#[derive(Debug)]
pub(super) enum Refusal {
    Read(std::io::Error),
    Magic,
    Checksum { stored: u32, expected: u32 },
    ChecksumType(u8),
    Revision(u32),
    Features(Vec<String>),
    OtherBlockSize,
    Field(GeometryFault),
}

impl Refusal {
    /// The reason, as findings say it.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::Read(_) => "it cannot be read",
            Self::Magic => "it lacks the magic number",
            Self::Checksum { .. } => "its checksum is wrong",
            Self::ChecksumType(_) => "its checksum is of an unknown kind",
            Self::Revision(_) => "its revision is unknown",
            Self::Features(_) => "it has unknown features",
            Self::OtherBlockSize => "it states another block size",
            Self::Field(fault) => fault.field,
        }
    }

    /// The findings about the superblock in `block`.
    pub(super) fn problems(&self, block: BlockNr) -> Vec<Problem> {
        match *self {
            Self::Checksum { stored, expected } => {
                vec![Problem::SuperblockChecksumBad { block, stored, expected }]
            }
            Self::Field(GeometryFault { field: "s_inodes_count", .. }) => Vec::new(),
            Self::Field(GeometryFault { field, value }) => {
                vec![Problem::SuperblockFieldOutOfRange { field, value }]
            }
            Self::ChecksumType(value) => vec![Problem::SuperblockFieldOutOfRange {
                field: "s_checksum_type",
                value: value.into(),
            }],
            _ => Vec::new(),
        }
    }
}

/// A superblock that can be used.
pub(super) struct Candidate {
    pub(super) superblock: Superblock,
    pub(super) bytes: Box<[u8; 1024]>,
    pub(super) geometry: Geometry,
    /// Block of the superblock, in blocks of the file system; `None` for the primary.
    pub(super) backup: Option<BlockNr>,
}

impl Candidate {
    /// Whether it counts as many inodes as its groups have.
    pub(super) const fn counts_fit(&self) -> bool {
        self.superblock.inodes_count == self.geometry.inodes_count
    }
}

/// Reads and judges the superblock at `offset_bytes`, and what follows from it.
pub(super) fn read_candidate(
    device: &dyn ReadBlocks,
    offset_bytes: u64,
    block_size: Option<u32>,
    backup: Option<BlockNr>,
    strictness: Strictness,
) -> Result<Candidate, Refusal> {
    let (superblock, bytes) = read_superblock(device, offset_bytes)?;
    let geometry = Geometry::new(&superblock, strictness).map_err(Refusal::Field)?;
    if block_size.is_some_and(|size| size != geometry.block_size) {
        return Err(Refusal::OtherBlockSize);
    }
    has_room(device, &geometry)?;
    Ok(Candidate { superblock, bytes, geometry, backup })
}

/// Reads the superblock at `offset_bytes` and judges whether it is one that can be understood.
pub(super) fn read_superblock(
    device: &dyn ReadBlocks,
    offset_bytes: u64,
) -> Result<(Superblock, Box<[u8; 1024]>), Refusal> {
    let mut bytes = Box::new([0; 1024]);
    device.read_at(offset_bytes, &mut *bytes).map_err(Refusal::Read)?;
    let superblock = Superblock::decode(&bytes);
    if superblock.magic != MAGIC {
        return Err(Refusal::Magic);
    }
    let features = superblock.features();
    if features.metadata_csum() && superblock.checksum_type != CHECKSUM_TYPE_CRC32C {
        return Err(Refusal::ChecksumType(superblock.checksum_type));
    }
    if !Superblock::checksum_ok(&bytes) {
        let expected = Superblock::compute_checksum(&bytes);
        return Err(Refusal::Checksum { stored: superblock.checksum, expected });
    }
    if superblock.rev_level > NEWEST_REVISION {
        return Err(Refusal::Revision(superblock.rev_level));
    }
    let incompat = known_incompat(&superblock);
    let unknown = unknown_features(&Features::from_words(0, incompat, 0));
    if !unknown.is_empty() {
        return Err(Refusal::Features(unknown));
    }
    Ok((superblock, bytes))
}

/// Work and memory follow the number of groups, and a stranger's image may claim any: the device must
/// at least have room for their descriptors.
pub(super) fn has_room(device: &dyn ReadBlocks, geometry: &Geometry) -> Result<(), Refusal> {
    let blocks = geometry.first_data_block.0 + 1 + u64::from(geometry.desc_blocks);
    if blocks * u64::from(geometry.block_size) > device.size_bytes() {
        let (field, value) = ("s_blocks_count", geometry.blocks_count);
        return Err(Refusal::Field(GeometryFault { field, value }));
    }
    Ok(())
}

/// Features that ext4 reserves a bit for, but that no e2fsck of version 1.47 supports; and that of rext3, whose bit is believed only
/// where the record is that goes with it: by a flipped bit alone the pointers of a stock file system would be taken for headers.
const UNSUPPORTED: (Compat, Incompat, RoCompat) = (
    Compat::LAZY_BG.union(Compat::EXCLUDE_INODE).union(Compat::EXCLUDE_BITMAP),
    Incompat::COMPRESSION
        .union(Incompat::JOURNAL_DEV)
        .union(Incompat::DIRDATA)
        .union(Incompat::REXT3),
    RoCompat::BTREE_DIR.union(RoCompat::HAS_SNAPSHOT).union(RoCompat::REPLICA),
);

/// The incompatible features without the bits by which Floe keeps others out of its native file systems, and of rext3.
fn known_incompat(superblock: &Superblock) -> u32 {
    let mut incompat = superblock.feature_incompat;
    if is_locked(superblock) {
        incompat &= !LOCK;
    }
    if rext3::region_blocks(superblock).is_some() {
        incompat &= !Incompat::REXT3.bits();
    }
    incompat
}

/// The features by which a file system is refused: all but the incompatible ones that are ours.
pub(super) fn judged_features(superblock: &Superblock) -> Features {
    let (compat, ro_compat) = (superblock.feature_compat, superblock.feature_ro_compat);
    Features::from_words(compat, known_incompat(superblock), ro_compat)
}

/// Names of the features that are not supported.
pub(super) fn unknown_features(features: &Features) -> Vec<String> {
    let supported = |all: u32, not: u32| all & !not;
    let (compat, incompat, ro_compat) = UNSUPPORTED;
    Features::from_words(
        features.compat.bits() & !supported(Compat::all().bits(), compat.bits()),
        features.incompat.bits() & !supported(Incompat::all().bits(), incompat.bits()),
        features.ro_compat.bits() & !supported(RoCompat::all().bits(), ro_compat.bits()),
    )
    .names()
}
