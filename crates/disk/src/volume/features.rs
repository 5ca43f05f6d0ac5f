//! Which file systems can be written safely, and why others cannot.

use floe_format::ext::superblock::Superblock;
use floe_format::features::{Compat, Features, Incompat, RoCompat};
use floe_format::native::identity::Identity;
use floe_format::native::{LOCK, is_locked};

/// Why a file system may only be read. Nothing of it was changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadOnly {
    /// The device is shorter than the file system on it.
    #[error(
        "the device ends after {device_blocks} of the {blocks} blocks of the file system: it was cut off, and files can only be \
         copied out of it"
    )]
    CutOff {
        /// Blocks of the file system.
        blocks: u64,
        /// Whole blocks of the device.
        device_blocks: u64,
    },
    /// Features that cannot be written safely, by the names that `tune2fs` has for them.
    #[error("it has features that cannot be written safely: {}", .0.join(", "))]
    Features(Vec<String>),
    /// The journal holds changes that must be replayed first.
    #[error("its journal must be replayed first")]
    NeedsRecovery,
    /// It says of itself that it must not be written (feature `read-only`).
    #[error("it says of itself that it must not be written")]
    MarkedReadOnly,
    /// Its journal is not in it: this one may be named to read what it holds.
    #[error("its journal lies on another device, which `--external-journal` names")]
    ExternalJournal,
    /// A native file system without a place for orphans: its superblock is not logged, so that no list can begin there.
    #[error("it is native but lost the feature orphan_file, which `tune2fs -O orphan_file` sets")]
    NoOrphanFile,
}

const COMPAT: Compat = Compat::DIR_PREALLOC
    .union(Compat::IMAGIC_INODES)
    .union(Compat::HAS_JOURNAL)
    .union(Compat::EXT_ATTR)
    .union(Compat::RESIZE_INODE)
    .union(Compat::DIR_INDEX)
    .union(Compat::LAZY_BG)
    .union(Compat::SPARSE_SUPER2)
    .union(Compat::FAST_COMMIT)
    .union(Compat::STABLE_INODES)
    .union(Compat::ORPHAN_FILE);
const INCOMPAT: Incompat = Incompat::FILETYPE
    .union(Incompat::META_BG)
    .union(Incompat::EXTENTS)
    .union(Incompat::BIT64)
    .union(Incompat::FLEX_BG)
    .union(Incompat::EA_INODE)
    .union(Incompat::CSUM_SEED)
    .union(Incompat::LARGEDIR)
    .union(Incompat::INLINE_DATA)
    .union(Incompat::ENCRYPT)
    .union(Incompat::CASEFOLD);
const RO_COMPAT: RoCompat = RoCompat::SPARSE_SUPER
    .union(RoCompat::LARGE_FILE)
    .union(RoCompat::HUGE_FILE)
    .union(RoCompat::GDT_CSUM)
    .union(RoCompat::DIR_NLINK)
    .union(RoCompat::EXTRA_ISIZE)
    .union(RoCompat::BIGALLOC)
    .union(RoCompat::METADATA_CSUM)
    .union(RoCompat::QUOTA)
    .union(RoCompat::PROJECT)
    .union(RoCompat::VERITY)
    .union(RoCompat::ORPHAN_PRESENT);

/// Judges whether a file system on a device of this size may be written. Multiple-mount protection (nobody beats for it yet), shared
/// blocks, and every feature that is not known are refused by name.
///
/// # Errors
/// The first reason against it.
pub fn judge(superblock: &Superblock, device_bytes: u64) -> Result<(), ReadOnly> {
    let blocks = superblock.blocks_count();
    let device_blocks = device_bytes.checked_shr(superblock.log_block_size.saturating_add(10));
    if let Some(device_blocks) = device_blocks.filter(|device_blocks| *device_blocks < blocks) {
        return Err(ReadOnly::CutOff { blocks, device_blocks });
    }
    let mut features = superblock.features();
    if is_locked(superblock) {
        // The bit is ours.
        features.incompat.remove(Incompat::from_bits_retain(LOCK));
    }
    if features.ro_compat.contains(RoCompat::READONLY) {
        return Err(ReadOnly::MarkedReadOnly);
    }
    let beyond = Features {
        compat: features.compat.difference(COMPAT),
        incompat: features.incompat.difference(INCOMPAT.union(Incompat::RECOVER)),
        ro_compat: features.ro_compat.difference(RO_COMPAT),
    };
    let names = beyond.names();
    if !names.is_empty() {
        return Err(ReadOnly::Features(names));
    }
    if features.compat.contains(Compat::HAS_JOURNAL) && superblock.journal_inum == 0 {
        return Err(ReadOnly::ExternalJournal);
    }
    let is_native = Identity::of(superblock).is_some();
    if is_native && !features.compat.contains(Compat::ORPHAN_FILE) {
        return Err(ReadOnly::NoOrphanFile);
    }
    // Last, because a replay writes, and must not where nothing may be written.
    if features.incompat.contains(Incompat::RECOVER) {
        return Err(ReadOnly::NeedsRecovery);
    }
    Ok(())
}
