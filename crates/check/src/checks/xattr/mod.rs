//! Check: extended attributes in the inode and in blocks, and the inodes that hold big values.
//! Reads: the inode; EA inodes and the values in them, once for each attribute; later each attribute block once, and blocks of
//! long symlinks.
//! Keeps: uses of attribute blocks, references to EA inodes.
//! Emits: see `xattrs/`; here `InodeExtraIsizeBad`, `InodeFileAclHighNonzero`,
//! `InodeFileAclWithoutXattrFeature`, `InodeFileAclOutOfRange`.
//! Does not verify: that values are sound capabilities; reference counts of EA inodes (pass 4).

pub mod encryption;
pub mod in_block;
mod in_inode;
mod lists;
mod names;
pub mod value_inode;
mod values;

use floe_format::ext::xattr::{MAGIC, XattrArea};
use floe_format::features::{Compat, Incompat};
use floe_format::{BlockNr, BlockRun, InodeNr};

use crate::checks::context::inode::{InodeCx, InodeEvidence};
use crate::checks::mapping::mapper;
use crate::evidence::attributes::BlockUse;
use crate::evidence::region::Region;
use crate::problem::{Findings, Problem, Sink};

pub(crate) use in_inode::are_plain;

/// Facts about an inode that follow from its attributes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OfInode {
    /// Bytes of the value of the in-inode attribute `system.data`; `None` without a usable one.
    pub inline_bytes: Option<u32>,
    /// Clusters that `i_blocks` and quota count for the attribute block: 1 or 0.
    pub clusters: u64,
    /// Blocks that `i_blocks` and quota count for values in EA inodes, whose own blocks count for
    /// nobody: whole clusters.
    pub ea_inode_blocks: u64,
    /// Inodes that quota counts for values in EA inodes.
    pub ea_inodes: u64,
}

/// Checks the attributes of an inode in use. Most have none and cost a few comparisons.
#[inline]
pub fn check(cx: &InodeCx<'_>, evidence: &mut InodeEvidence) -> OfInode {
    let mut found = OfInode::default();
    if cx.inode.base.file_acl_lo != 0 || cx.inode.base.file_acl_high != 0 {
        check_file_acl(cx, evidence, &mut found);
    }
    // Sound sizes are multiples of 4 that leave room for a magic at least; attributes exist if it
    // is there. All else takes the long way.
    let area = cx.inode.xattr_area();
    let marked = area.first_chunk() == Some(&MAGIC.to_le_bytes());
    if cx.inode.raw.len() > 128 && (marked || extra_isize_bad(cx)) {
        check_in_inode(cx, evidence, &mut found);
    }
    found
}

/// Whether `i_extra_isize` of an inode of more than 128 bytes is impossible; 0 is allowed.
#[inline]
pub(crate) fn extra_isize_bad(cx: &InodeCx<'_>) -> bool {
    let (size, max) = (usize::from(cx.inode.extra.extra_isize), cx.inode.raw.len() - 128);
    size != 0 && (size < 4 || size > max || !size.is_multiple_of(4))
}

/// Whether e2fsck judges an inode like a file: the root, and all that are not reserved.
fn is_ordinary(cx: &InodeCx<'_>) -> bool {
    cx.number == InodeNr::ROOT || !cx.volume.geometry.is_reserved(cx.number)
}

#[cold]
fn check_in_inode(cx: &InodeCx<'_>, evidence: &mut InodeEvidence, found: &mut OfInode) {
    if !is_ordinary(cx) {
        return;
    }
    if extra_isize_bad(cx) {
        let value = cx.inode.extra.extra_isize;
        evidence.found.push(Problem::InodeExtraIsizeBad { inode: cx.number, value });
        return;
    }
    in_inode::check(cx, evidence, found);
}

/// Whether the attributes in an inode, of those that e2fsck does not look at, cannot be read.
pub(crate) fn own_are_bad(cx: &InodeCx<'_>) -> bool {
    if cx.inode.xattr_area().first_chunk() != Some(&MAGIC.to_le_bytes()) {
        return false;
    }
    let (mut own, mut found) = (InodeEvidence::default(), OfInode::default());
    in_inode::check(cx, &mut own, &mut found);
    // Linux compares hashes when a value is read alone.
    own.found.0.iter().any(|problem| !matches!(problem, Problem::XattrHashBad { .. }))
}

/// Number of attributes in a block that is sound and whose checksum, if there are any, is right; 0
/// in all others. Proves that the feature bit was lost rather than that the pointer is garbage.
fn attributes_in(cx: &InodeCx<'_>, evidence: &mut InodeEvidence, block: BlockNr) -> u32 {
    let (volume, inode) = (cx.volume, cx.number);
    let bytes = &mut evidence.buffers.block;
    if volume.is_metadata(block) || volume.read_block(block, bytes).is_err() {
        return 0;
    }
    let mut found = Findings::default();
    let home = value_inode::Home { volume, inode, block };
    let (_, sound) = in_block::check(home, bytes, &mut Region::default(), &mut found);
    let entries = XattrArea::of_block(bytes).map_or(0, |area| area.entries().count());
    if sound && found.0.is_empty() { u32::try_from(entries).unwrap_or(u32::MAX) } else { 0 }
}

/// Judges `i_file_acl` and notes the use of the block.
#[cold]
fn check_file_acl(cx: &InodeCx<'_>, evidence: &mut InodeEvidence, found: &mut OfInode) {
    let (volume, inode) = (cx.volume, cx.number);
    let bit64 = volume.has_incompat(Incompat::BIT64);
    let value = cx.inode.base.file_acl_high;
    // The Hurd (1) keeps other things there.
    if !bit64 && value != 0 && volume.superblock.creator_os == 0 && is_ordinary(cx) {
        evidence.found.push(Problem::InodeFileAclHighNonzero { inode, value });
    }
    let block = BlockNr(cx.inode.file_acl(bit64));
    if block.0 == 0 {
        return;
    }
    let (announced, inside) =
        (volume.has_compat(Compat::EXT_ATTR), volume.geometry.contains(block));
    if is_ordinary(cx) {
        if !announced {
            let attributes = if inside { attributes_in(cx, evidence, block) } else { 0 };
            let problem = Problem::InodeFileAclWithoutXattrFeature { inode, block, attributes };
            evidence.found.push(problem);
        }
        if !inside {
            evidence.found.push(Problem::InodeFileAclOutOfRange { inode, block });
        }
    }
    if !announced || !inside {
        return;
    }
    found.clusters = 1;
    if let Some(problem) = mapper::leaving(volume, inode, BlockRun::new(block, 1)) {
        let is_own = matches!(problem, Problem::CubeEntangledBlocks { .. });
        evidence.found.push(problem);
        if !is_own {
            return;
        }
    }
    evidence.attributes.block_uses.push(BlockUse { block, inode, wants_context: false });
    if volume.has_incompat(Incompat::EA_INODE) {
        // Each user of the block is charged for the values that the block keeps in other inodes,
        // and `i_blocks` is judged right now, so read the block ahead of its pass. Such file
        // systems are rare, and have few such blocks.
        let mut bytes = std::mem::take(&mut evidence.buffers.block);
        if volume.read_block(block, &mut bytes).is_ok() {
            let (blocks, inodes) = value_inode::charge_of_block(cx, &bytes);
            found.ea_inode_blocks = blocks;
            found.ea_inodes = inodes;
        }
        evidence.buffers.block = bytes;
    }
}
