//! Check: an inode whose type was overwritten while its first block still holds a directory.

use floe_format::ext::extent::ExtentNode;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::features::Incompat;
use floe_format::layout::{le16_at, le32_at};
use floe_format::{BlockNr, InodeNr};

use crate::checks::context::inode::{InodeCx, InodeEvidence};

/// Whether logical block 0 starts with `.` naming this inode, then `..` (problem
/// `inode-is-really-directory`). A device with one link and nothing in the last 11 words of its
/// map is believed. Notes in `evidence` the block that it looks into.
pub(crate) fn is_really_directory(
    cx: &InodeCx<'_>,
    file_type: Option<FileType>,
    evidence: &mut InodeEvidence,
) -> bool {
    let words = (0..15).map(|index| cx.inode.block_word(index).unwrap_or(0));
    if cx.inode.block_word(0) == Some(0) {
        return false;
    }
    let flags = cx.inode.flags();
    if flags.contains(InodeFlags::INLINE_DATA) {
        return cx.volume.has_incompat(Incompat::INLINE_DATA) && is_inline_directory(cx);
    }
    let is_device = matches!(file_type, Some(FileType::CharDevice | FileType::BlockDevice));
    let block = if flags.contains(InodeFlags::EXTENTS) {
        let Some(root) = ExtentNode::new(&cx.inode.base.block) else { return false };
        if !root.header_ok() || root.header().depth != 0 || root.header().entries == 0 {
            return false;
        }
        let extent = root.extent(0);
        if extent.logical.0 != 0 {
            return false;
        }
        extent.run.start
    } else {
        let legal = |word: u32| {
            let block = BlockNr(u64::from(word));
            word == 0 || (cx.volume.geometry.contains(block) && !cx.volume.is_metadata(block))
        };
        if !words.clone().all(legal) {
            return false;
        }
        BlockNr(u64::from(cx.inode.block_word(0).unwrap_or(0)))
    };
    let beyond_device = words.skip(4).any(|word| word != 0);
    if is_device && cx.inode.base.links_count == 1 && !beyond_device {
        return false;
    }
    if !cx.volume.geometry.contains(block) {
        return false;
    }
    evidence.looked_into.push((cx.number, block));
    let buffer = &mut evidence.buffers.block;
    cx.volume.read_block(block, buffer).is_ok() && starts_as_directory(buffer, cx.number.0)
}

/// Whether inline data starts with the number of a parent and an entry that fits behind it: there are
/// no names to recognize.
fn is_inline_directory(cx: &InodeCx<'_>) -> bool {
    let geometry = &cx.volume.geometry;
    let bytes = &cx.inode.base.block;
    let plausible = |number: u32, or: u32| {
        let inode = InodeNr(number);
        number == or || (!geometry.is_reserved(inode) && number < geometry.inodes_count)
    };
    let (parent, child) = (cx.inode.block_word(0), cx.inode.block_word(1));
    cx.inode.size_bytes().is_multiple_of(4)
        && parent.is_some_and(|parent| plausible(parent, InodeNr::ROOT.0))
        && child.is_some_and(|child| plausible(child, 0))
        && le16_at(bytes, 8).is_some_and(|rec_len| usize::from(rec_len) <= bytes.len() - 4)
}

/// Whether a block starts with `.` naming `inode` and then `..`.
fn starts_as_directory(block: &[u8], inode: u32) -> bool {
    let entry = |at: usize| {
        let rec_len = usize::from(le16_at(block, at + 4)?);
        let name_len = usize::from(*block.get(at + 6)?);
        let name = block.get(at + 8..at + 8 + name_len)?;
        (rec_len >= 12 && rec_len % 4 == 0).then_some((rec_len, name))
    };
    let Some((rec_len, b".")) = entry(0) else { return false };
    le32_at(block, 0) == Some(inode)
        && rec_len < block.len().saturating_sub(12)
        && matches!(entry(rec_len), Some((_, b"..")))
}
