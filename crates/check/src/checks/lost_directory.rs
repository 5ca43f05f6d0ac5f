//! Check: an inode whose type was overwritten while its first block still holds a directory.

use floe_format::BlockNr;
use floe_format::ext::extent::ExtentNode;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::layout::{le16_at, le32_at};

use crate::inode_pass::InodeCx;

/// Whether logical block 0 starts with `.` naming this inode, then `..` (problem
/// `inode-is-really-directory`). A device with one link and nothing in the last 11 words of its
/// map is believed.
pub fn is_really_directory(
    cx: &InodeCx<'_>,
    file_type: Option<FileType>,
    buffer: &mut Vec<u8>,
) -> bool {
    let words = (0..15).map(|index| cx.inode.block_word(index).unwrap_or(0));
    if cx.inode.block_word(0) == Some(0) {
        return false;
    }
    let flags = cx.inode.flags();
    if flags.contains(InodeFlags::INLINE_DATA) {
        return false;
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
    let geometry = &cx.volume.geometry;
    geometry.contains(block)
        && cx.volume.read_block(block, buffer).is_ok()
        && starts_as_directory(buffer, cx.number.0)
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
