//! The parameters of a new file system: all that its layout depends on, and nothing else.

use floe_format::ext::quota::QuotaKind;
use floe_format::features::{Compat, Features, Incompat, RoCompat};

use super::native::NativeParams;
use super::rext3::Rext3Params;
use super::tree::Timestamp;

/// The number of inodes of a new file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InodeCount {
    /// At least this many.
    Count(u32),
    /// One for this many bytes of the file system.
    Ratio(u64),
}

/// The journal of a new file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct JournalParams {
    /// Blocks of the log; `None`: the default for the size of the file system.
    pub blocks: Option<u32>,
    /// Blocks for fast commits; `None`: the default for the size of the log, if the feature is on.
    pub fast_commit_blocks: Option<u32>,
    /// First block of the journal; `None`: in the middle.
    pub location: Option<u64>,
}

/// All that the layout of a new file system depends on. The plan is a pure function of it: same
/// parameters, same bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    /// Blocks of the device that the file system may use.
    pub blocks: u64,
    /// Bytes of a block: a power of two, 1 KiB to 64 KiB.
    pub block_size: u32,
    /// Bytes of a cluster; the block size without bigalloc.
    pub cluster_size: u32,
    /// Bytes of an inode: a power of two, 128 to the block size.
    pub inode_size: u32,
    /// How many inodes.
    pub inodes: InodeCount,
    /// Blocks of a group; `None`: as many as a bitmap of one block can count.
    pub blocks_per_group: Option<u32>,
    /// Groups whose tables lie together (flex_bg): a power of two.
    pub flex_groups: u32,
    /// Blocks kept for the administrator.
    pub reserved_blocks: Reserved,
    /// Features.
    pub features: Features,
    /// Revision 0: no features, inodes of 128 bytes.
    pub old_revision: bool,
    /// Volume label.
    pub label: [u8; 16],
    /// The mount point stored as the last one.
    pub last_mounted: [u8; 64],
    /// UUID.
    pub uuid: [u8; 16],
    /// Seed of directory hashes, as a UUID.
    pub hash_seed: [u8; 16],
    /// `s_def_hash_version`: 0 legacy, 1 half-MD4, 2 tea.
    pub hash_version: u8,
    /// The time that all of it is made at.
    pub now: Timestamp,
    /// Reaction to errors: 1 continue, 2 remount read-only, 3 panic.
    pub errors: u16,
    /// Creator, as numbered in the superblock.
    pub creator_os: u32,
    /// The journal.
    pub journal: JournalParams,
    /// Blocks written to one disk of a RAID before the next (stride); 0: none.
    pub stride: u16,
    /// Blocks of a stripe; 0: none.
    pub stripe_width: u32,
    /// Size in blocks up to which resize_inode lets the file system grow; `None`: 1024 times its
    /// size.
    pub resize_blocks: Option<u64>,
    /// Backups of the superblock with sparse_super2: 0 to 2.
    pub backups: u32,
    /// Owner and group of the root directory.
    pub root_owner: (u32, u32),
    /// Permissions of the root directory.
    pub root_mode: u16,
    /// Seconds between updates of multiple-mount protection.
    pub mmp_interval: u16,
    /// The kinds of quotas (feature quota).
    pub quotas: Vec<QuotaKind>,
    /// `s_encoding` and `s_encoding_flags` (casefold).
    pub encoding: (u16, u16),
    /// Bytes of the orphan file; `None`: the default for the size of the file system.
    pub orphan_file_bytes: Option<u64>,
    /// `s_default_mount_opts`.
    pub default_mount_options: u32,
    /// A test file system (`-E test_fs`).
    pub test_fs: bool,
    /// The kernel zeroes the unused part of inode tables later.
    pub lazy_tables: bool,
    /// All bitmaps and inode tables at the beginning, and the journal behind them.
    pub packed_tables: bool,
    /// A native file system (`docs/native.md`); `None`: a stock one.
    pub native: Option<NativeParams>,
    /// A rext3 file system (`docs/rext3.md`); `None`: another one.
    pub rext3: Option<Rext3Params>,
}

/// Blocks kept for the administrator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reserved {
    /// Percent of the file system: 0 to 50.
    Percent(f64),
}

impl Default for Params {
    fn default() -> Self {
        Self {
            blocks: 0,
            block_size: 4096,
            cluster_size: 4096,
            inode_size: 256,
            inodes: InodeCount::Ratio(16384),
            blocks_per_group: None,
            flex_groups: 16,
            reserved_blocks: Reserved::Percent(5.0),
            features: Features::default(),
            old_revision: false,
            label: [0; 16],
            last_mounted: [0; 64],
            uuid: [0; 16],
            hash_seed: [0; 16],
            hash_version: 1,
            now: Timestamp::default(),
            errors: 1,
            creator_os: 0,
            journal: JournalParams::default(),
            stride: 0,
            stripe_width: 0,
            resize_blocks: None,
            backups: 2,
            root_owner: (0, 0),
            root_mode: 0o755,
            mmp_interval: 5,
            quotas: vec![QuotaKind::User, QuotaKind::Group],
            encoding: (1, 0),
            orphan_file_bytes: None,
            default_mount_options: 0x000c,
            test_fs: false,
            lazy_tables: false,
            packed_tables: false,
            native: None,
            rext3: None,
        }
    }
}

impl Params {
    /// Whether a feature is on.
    pub fn compat(&self, feature: Compat) -> bool {
        self.features.compat.contains(feature)
    }

    /// Whether a feature is on.
    pub fn incompat(&self, feature: Incompat) -> bool {
        self.features.incompat.contains(feature)
    }

    /// Whether a feature is on.
    pub fn ro_compat(&self, feature: RoCompat) -> bool {
        self.features.ro_compat.contains(feature)
    }

    /// Refuses invalid parameters, and those that Floe does not support.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), PlanError> {
        let bad = |what: &'static str| Err(PlanError::Parameter(what));
        let power = |value: u32, low: u32, high: u32| {
            value.is_power_of_two() && (low..=high).contains(&value)
        };
        if !power(self.block_size, 1024, 65536) {
            return bad("the block size must be a power of two from 1024 to 65536");
        }
        if !power(self.inode_size, 128, self.block_size) {
            return bad("the inode size must be a power of two from 128 to the block size");
        }
        let bigalloc = self.ro_compat(RoCompat::BIGALLOC);
        let most = self.block_size.saturating_mul(32768).min(1 << 29);
        if bigalloc && (!power(self.cluster_size, self.block_size, most)) {
            return bad("the cluster size must be a power of two from the block size on");
        }
        if !bigalloc && self.cluster_size != self.block_size {
            return bad("clusters need the feature bigalloc");
        }
        if bigalloc && !self.incompat(Incompat::EXTENTS) {
            return bad("bigalloc needs the feature extent");
        }
        if !self.flex_groups.is_power_of_two() {
            return bad("the groups of a flexible group must be a power of two");
        }
        let Reserved::Percent(percent) = self.reserved_blocks;
        if !(0.0..=50.0).contains(&percent) {
            return bad("reserved blocks must be 0 to 50 percent");
        }
        if let Some(native) = self.native {
            native.check(self)?;
        }
        if self.rext3.is_some() {
            Rext3Params::check(self)?;
        } else if self.incompat(Incompat::REXT3) {
            return bad("the feature rext3 needs -t rext3");
        }
        self.check_features()
    }

    /// Bytes of a group descriptor.
    pub(super) fn desc_size(&self) -> u32 {
        match (self.native, self.incompat(Incompat::BIT64)) {
            // They fill a block, which is checked.
            (Some(_), _) => self.block_size / self.flex_groups.max(1),
            (None, true) => 64,
            (None, false) => 32,
        }
    }

    fn check_features(&self) -> Result<(), PlanError> {
        let bad = |what: &'static str| Err(PlanError::Parameter(what));
        let refused = Features {
            compat: self.features.compat & COMPAT_NEVER_MADE,
            incompat: self.features.incompat.difference(INCOMPAT_MADE),
            ro_compat: self.features.ro_compat & RO_COMPAT_NEVER_MADE,
        };
        if refused != Features::default() {
            return Err(PlanError::Features(refused.names()));
        }
        if self.old_revision && (self.features != Features::default() || self.inode_size != 128) {
            return bad("revision 0 has no features, and inodes of 128 bytes");
        }
        if self.compat(Compat::RESIZE_INODE) {
            if self.incompat(Incompat::META_BG) {
                return bad("resize_inode and meta_bg exclude each other");
            }
            if !self.ro_compat(RoCompat::SPARSE_SUPER) && !self.compat(Compat::SPARSE_SUPER2) {
                return bad("resize_inode needs sparse_super");
            }
        }
        if self.incompat(Incompat::BIT64) && !self.incompat(Incompat::EXTENTS) {
            return bad("64bit needs the feature extent");
        }
        if self.ro_compat(RoCompat::PROJECT) && self.inode_size == 128 {
            return bad("project quotas need inodes of more than 128 bytes");
        }
        if self.incompat(Incompat::INLINE_DATA) && self.inode_size == 128 {
            return bad("inline_data needs inodes of more than 128 bytes");
        }
        if self.incompat(Incompat::ENCRYPT | Incompat::CASEFOLD) && self.block_size > 4096 {
            return bad("encrypt and casefold together need blocks of 4096 bytes at most");
        }
        Ok(())
    }
}

// Features that no program but their author's opens, journals without a file system, and those that say what happened to a
// file system after it was made.
const COMPAT_NEVER_MADE: Compat =
    Compat::LAZY_BG.union(Compat::EXCLUDE_INODE).union(Compat::EXCLUDE_BITMAP);
const INCOMPAT_MADE: Incompat = Incompat::all()
    .difference(Incompat::COMPRESSION.union(Incompat::DIRDATA))
    .difference(Incompat::RECOVER.union(Incompat::JOURNAL_DEV));
const RO_COMPAT_NEVER_MADE: RoCompat = RoCompat::BTREE_DIR
    .union(RoCompat::HAS_SNAPSHOT)
    .union(RoCompat::REPLICA)
    .union(RoCompat::ORPHAN_PRESENT);

/// Why a file system cannot be planned. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A parameter is out of its range, or two exclude each other.
    #[error("{0}")]
    Parameter(&'static str),
    /// Features that no file system is made with.
    #[error("Floe makes no file system with {}: e2fsck would not open it, or it comes with later use", .0.join(", "))]
    Features(Vec<String>),
    /// Too few blocks for a file system with these parameters.
    #[error("{blocks} blocks are too few for a file system with these parameters")]
    TooSmall {
        /// Blocks of the device.
        blocks: u64,
    },
    /// More blocks than the features allow.
    #[error("{blocks} blocks are too many for a file system without the feature 64bit")]
    TooLarge {
        /// Blocks of the device.
        blocks: u64,
    },
    /// More inodes than the groups can hold.
    #[error("{inodes} inodes are too many for the groups of this file system")]
    TooManyInodes {
        /// Inodes requested.
        inodes: u64,
    },
    /// The journal does not fit.
    #[error("a journal of {blocks} blocks does not fit")]
    Journal {
        /// Its blocks.
        blocks: u64,
    },
    /// Not enough free blocks.
    #[error("the file system is full: {wanted} more blocks are needed")]
    Full {
        /// Blocks that could not be placed.
        wanted: u64,
    },
    /// Not enough blocks for metadata.
    #[error(
        "the metadata regions are full: {wanted} more blocks are needed (-E region_size= makes larger ones)"
    )]
    RegionsFull {
        /// Blocks that could not be placed.
        wanted: u64,
    },
    /// Not enough inodes.
    #[error("the file system has {have} inodes; the tree needs {wanted}")]
    NoInodes {
        /// Inodes available.
        have: u64,
        /// Inodes needed.
        wanted: u64,
    },
    /// A file that this file system cannot hold.
    #[error("{path}: {why}")]
    File {
        /// Its path.
        path: String,
        /// Why not.
        why: String,
    },
    /// Building a structure failed: a bug in Floe.
    #[error("internal error: {0}")]
    Internal(&'static str),
}
