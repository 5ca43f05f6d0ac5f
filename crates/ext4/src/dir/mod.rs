//! Directories: rebuilding whole ones from their entries, and single edits of their blocks.
//!
//! An *area* is a sequence of entries: a linear block (or leaf of an index), or one of the two
//! parts of an inline directory. Offsets are in bytes from its start, as in the findings of the
//! checker. Every function accepts any bytes; `None` means that an edit is not possible, and then
//! nothing was changed.

mod area;
mod dots;
pub mod edit;
mod gather;
mod index;
pub mod inline;
mod leaves;
pub mod mend;
mod names;
mod rebuild;
mod salvage;
mod seal;

use std::borrow::Cow;

use floe_format::crc::Seed;
use floe_format::ext::dirent::{TAIL_SIZE, needed_rec_len};
use floe_format::ext::htree::HashVersion;
use floe_format::ext::inode::FileType;
use floe_format::ext::superblock::{FLAG_UNSIGNED_HASH, Superblock};
use floe_format::features::{Compat, Incompat};
use floe_format::{Geometry, InodeNr};

pub use area::{
    clear, close, insert, remove, replace_illegal_bytes, replace_invalid_text, set_inode, set_type,
};
pub use dots::{mend_first_block, set_parent, split_dot, write_dot, write_dotdot};
pub use gather::gather;
pub use names::Settled;
pub use rebuild::{Rebuilt, rebuild};
pub use salvage::salvage;
pub use seal::{Sealed, checksum_fits, empty_block, first_block, seal};

/// Share of a leaf, in percent, that is left free for new names.
pub(crate) const SLACK_PERCENT: u32 = 20;

/// The directory format of a file system.
#[derive(Clone, Debug)]
pub struct DirFormat {
    /// Bytes of a block.
    pub block_size: usize,
    /// Whether entries have a type byte (filetype feature).
    pub filetype: bool,
    /// The seed of checksums; `None` without metadata_csum.
    pub seed: Option<Seed>,
    /// Whether directories may have an index.
    pub dir_index: bool,
    /// Whether an index may have two levels of interior nodes.
    pub large_dir: bool,
    /// The hash version of new indexes, except for encrypted and casefolded directories.
    pub hash_version: HashVersion,
    /// `s_hash_seed`.
    pub hash_seed: [u32; 4],
    /// Share of a leaf that stays free; see [`SLACK_PERCENT`].
    pub slack_percent: u32,
    /// The largest inode number.
    pub inodes_count: u32,
}

impl DirFormat {
    /// The format that the superblock defines. An invalid hash version counts as half-MD4, as in
    /// the checker.
    pub fn of(superblock: &Superblock, geometry: &Geometry) -> Self {
        let features = superblock.features();
        let unsigned = superblock.flags & FLAG_UNSIGNED_HASH != 0;
        Self {
            block_size: geometry.block_size as usize,
            filetype: features.incompat.contains(Incompat::FILETYPE),
            seed: features.metadata_csum().then(|| superblock.seed()),
            dir_index: features.compat.contains(Compat::DIR_INDEX),
            large_dir: features.incompat.contains(Incompat::LARGEDIR),
            hash_version: HashVersion::of_root(superblock.def_hash_version, unsigned)
                .filter(|version| *version != HashVersion::SipHash)
                .unwrap_or(HashVersion::HalfMd4),
            hash_seed: superblock.hash_seed,
            slack_percent: SLACK_PERCENT,
            inodes_count: geometry.inodes_count,
        }
    }

    /// The type byte of entries that name directories.
    pub fn dir_type(&self) -> u8 {
        dir_type(self.filetype)
    }

    /// The type byte of an entry: 0 without the filetype feature.
    fn type_of(&self, file_type: u8) -> u8 {
        if self.filetype { file_type } else { 0 }
    }
}

fn dir_type(filetype: bool) -> u8 {
    if filetype { FileType::Directory as u8 } else { 0 }
}

/// The properties of a directory that its blocks depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Its inode.
    pub inode: InodeNr,
    /// The inode that `..` names.
    pub parent: InodeNr,
    /// `i_generation`: part of its checksums.
    pub generation: u32,
    /// Whether names are encrypted.
    pub encrypted: bool,
    /// Whether names are compared without case.
    pub casefolded: bool,
}

impl Directory {
    /// Whether entries carry the hash of their names.
    pub fn hashed(&self) -> bool {
        self.encrypted && self.casefolded
    }

    /// Whether names are compared in their folded form. (Encrypted names cannot be folded.)
    fn folds(&self) -> bool {
        self.casefolded && !self.encrypted
    }

    /// The seed of the checksums of its blocks; `None` without metadata_csum.
    pub fn inode_seed(&self, format: &DirFormat) -> Option<u32> {
        format.seed.map(|seed| seed.of_inode(self.inode, self.generation))
    }

    /// The form of its linear blocks.
    pub fn form(&self, format: &DirFormat) -> AreaForm {
        let tail = format.seed.is_some();
        AreaForm { tail, ..self.inline_form(format) }
    }

    /// The form of the parts of an inline directory.
    pub fn inline_form(&self, format: &DirFormat) -> AreaForm {
        AreaForm { tail: false, hashed: self.hashed(), filetype: format.filetype }
    }
}

/// The form of an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AreaForm {
    /// Whether its last 12 bytes are a checksum tail.
    pub tail: bool,
    /// Whether entries carry the hash of their names.
    pub hashed: bool,
    /// Whether entries have a type byte.
    pub filetype: bool,
}

impl AreaForm {
    /// The offset at which entries must end in an area of `len` bytes.
    pub fn end(&self, len: usize) -> usize {
        len.saturating_sub(if self.tail { TAIL_SIZE } else { 0 })
    }

    /// Bytes of the shortest entry except `.` and `..`. If entries carry a hash, unused ones must
    /// have space for it, too.
    fn least(&self) -> usize {
        self.needed(b"x")
    }

    /// Bytes that an entry of this name needs.
    fn needed(&self, name: &[u8]) -> usize {
        needed_rec_len(name.len(), self.hashed && !matches!(name, b"." | b"..")) as usize
    }
}

/// An entry in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The inode it names.
    pub inode: InodeNr,
    /// Its name, 1 to 255 bytes.
    pub name: Cow<'a, [u8]>,
    /// Its type byte; 0 is written without the filetype feature.
    pub file_type: u8,
    /// The hash and minor hash stored with it (encrypted and casefolded directories).
    pub hash: Option<(u32, u32)>,
}

impl<'a> Entry<'a> {
    /// An entry without a hash of its own.
    pub fn new(inode: InodeNr, name: impl Into<Cow<'a, [u8]>>, file_type: u8) -> Self {
        Self { inode, name: name.into(), file_type, hash: None }
    }
}

#[cfg(test)]
mod tests;
