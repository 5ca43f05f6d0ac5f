//! Check: symlinks, and whether `i_block` of an inode maps blocks at all.
//! Reads: the inode; the block of a long symlink (later, with the attribute blocks).
//! Keeps: blocks of long symlinks.  Emits: `FastSymlinkExtentsFlag`, `SymlinkInvalid`,
//! `SymlinkImmutableFlag`.

use floe_format::BlockNr;
use floe_format::ext::extent::ExtentNode;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::ext::xattr::XattrArea;
use floe_format::features::Incompat;
use floe_format::layout::le16_at;

use crate::checks::context::inode::{InodeCx, InodeEvidence};
use crate::checks::xattr::OfInode;
use crate::evidence::attributes::LongSymlink;
use crate::problem::{Problem, Sink};
use crate::volume::Volume;

/// Whether a symlink's target lies in `i_block`, by its size (`ext4_inode_is_fast_symlink`).
#[inline]
pub(crate) fn is_fast(inode: &Inode<'_>) -> bool {
    inode.file_type() == Some(FileType::Symlink) && (1..60).contains(&inode.size_bytes())
}

/// Whether `i_block` of an inode maps blocks: true for regular files, directories and long symlinks
/// without inline data. As e2fsck does, a symlink is judged by what it owns, not by its size; with an attribute whose value lies in
/// an inode of its own, whose blocks it counts as its own, by its size, as by Linux.
pub(crate) fn maps_blocks(volume: &Volume<'_>, inode: &Inode<'_>) -> bool {
    let maps = match inode.file_type() {
        Some(FileType::Regular | FileType::Directory) => true,
        Some(FileType::Symlink) if has_large_values(volume, inode) => !is_fast(inode),
        Some(FileType::Symlink) if inode.file_acl(volume.has_incompat(Incompat::BIT64)) == 0 => {
            inode.base.blocks_lo != 0
        }
        Some(FileType::Symlink) => {
            inode.size_bytes() >= 60 || (inode.size_bytes() > 4 && inode.block_word(1) == Some(0))
        }
        _ => false,
    };
    maps && !inode.flags().contains(InodeFlags::INLINE_DATA)
}

/// Whether an attribute in the inode has its value in another inode.
fn has_large_values(volume: &Volume<'_>, inode: &Inode<'_>) -> bool {
    let area = XattrArea::of_inode(inode.xattr_area());
    volume.has_incompat(Incompat::EA_INODE)
        && area.is_some_and(|area| {
            area.entries().map_while(Result::ok).any(|entry| entry.value_inode.is_some())
        })
}

/// Checks an inode in use that is a symlink; any other type passes. `attributes` is what
/// [`crate::checks::xattr::check`] said of it.
pub fn check(cx: &InodeCx<'_>, attributes: &OfInode, evidence: &mut InodeEvidence) {
    if cx.inode.file_type() != Some(FileType::Symlink) {
        return;
    }
    // Both flags at once are judged by `inline_data`.
    let flags = cx.inode.flags();
    let stray_flag = flags.contains(InodeFlags::EXTENTS)
        && !flags.contains(InodeFlags::INLINE_DATA)
        && cx.volume.has_incompat(Incompat::EXTENTS)
        && !maps_blocks(cx.volume, cx.inode);
    if stray_flag {
        evidence.found.push(Problem::FastSymlinkExtentsFlag { inode: cx.number });
    }
    match place_of_target(cx, attributes, stray_flag) {
        Ok(Some(block)) => evidence.attributes.long_symlinks.push(LongSymlink {
            block,
            inode: cx.number,
            // A larger one fits no block and was refused.
            size_bytes: cx.inode.size_bytes() as u32,
            encrypted: cx.inode.flags().contains(InodeFlags::ENCRYPT),
        }),
        Ok(None) => {}
        Err(reason) => return evidence.found.push(invalid(cx, reason)),
    }
    check_locked(cx, evidence);
}

/// Problem `symlink-immutable-flag`: e2fsck passes over such flags, or takes them for a hint.
fn check_locked(cx: &InodeCx<'_>, evidence: &mut InodeEvidence) {
    let flags = cx.inode.flags() & (InodeFlags::IMMUTABLE | InodeFlags::APPEND);
    if !flags.is_empty() {
        let (inode, flags) = (cx.number, flags.bits());
        evidence.found.push(Problem::SymlinkImmutableFlag { inode, flags });
    }
}

fn invalid(cx: &InodeCx<'_>, reason: &'static str) -> Problem {
    Problem::SymlinkInvalid { inode: cx.number, size: cx.inode.size_bytes(), reason }
}

/// Judges all of a symlink but the text in its block, which is returned if it has one.
fn place_of_target(
    cx: &InodeCx<'_>,
    attributes: &OfInode,
    stray_flag: bool,
) -> Result<Option<BlockNr>, &'static str> {
    let (inode, flags) = (cx.inode, cx.inode.flags());
    let size = inode.size_bytes();
    if size == 0 {
        return Err("it is empty");
    }
    if size >= u64::from(cx.volume.geometry.block_size).max(60) {
        return Err("it is too long");
    }
    if flags.contains(InodeFlags::INDEX) {
        return Err("it has an index");
    }
    let extents = flags.contains(InodeFlags::EXTENTS) && !stray_flag;
    if flags.contains(InodeFlags::INLINE_DATA) {
        // Both flags at once are judged by `inline_data`; a missing attribute too.
        return match attributes.inline_bytes {
            Some(bytes) if !extents && size != 60 + u64::from(bytes) => {
                Err("its size is not that of its inline data")
            }
            _ => Ok(None),
        };
    }
    if is_fast(inode) {
        if extents {
            return Err("its target is in the inode, but it has extents");
        }
        let encrypted = flags.contains(InodeFlags::ENCRYPT);
        return text_fault(&inode.base.block, size, encrypted).map_or(Ok(None), Err);
    }
    one_block(cx, extents).map(Some)
}

/// The only block of a long symlink.
fn one_block(cx: &InodeCx<'_>, extents: bool) -> Result<BlockNr, &'static str> {
    let block = if extents {
        let root = ExtentNode::new(&cx.inode.base.block).filter(ExtentNode::header_ok);
        let root = root.ok_or("its extent root is damaged")?;
        let header = root.header();
        let extent = root.extent(0);
        if header.entries != 1
            || header.depth != 0
            || extent.logical.0 != 0
            || extent.run.len_blocks != 1
        {
            return Err("it has not exactly one block");
        }
        extent.run.start
    } else {
        if (1..15).any(|word| cx.inode.block_word(word) != Some(0)) {
            return Err("it has not exactly one block");
        }
        BlockNr(u64::from(cx.inode.block_word(0).unwrap_or(0)))
    };
    if cx.volume.geometry.contains(block) {
        Ok(block)
    } else {
        Err("its block is outside the file system")
    }
}

/// Judges the target of a symlink in `bytes`, the room it has: the 60 bytes of `i_block` or a block.
pub(crate) fn text_fault(bytes: &[u8], size_bytes: u64, encrypted: bool) -> Option<&'static str> {
    let len = if encrypted {
        // An encrypted target is a length of 16 bits and that many bytes.
        usize::from(le16_at(bytes, 0).unwrap_or(0)) + 2
    } else {
        bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len())
    };
    if len >= bytes.len() {
        Some("its target is not terminated")
    } else if len as u64 != size_bytes {
        Some("its target is not as long as its size says")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_must_be_as_long_as_the_size_and_end_inside() {
        let mut room = [0u8; 60];
        room[..5].copy_from_slice(b"where");
        assert_eq!(text_fault(&room, 5, false), None);
        assert!(text_fault(&room, 6, false).is_some());
        assert!(text_fault(&[b'a'; 60], 60, false).is_some());
        assert!(text_fault(&[b'a'; 59], 59, false).is_some());
        room[..2].copy_from_slice(&[3, 0]);
        assert_eq!(text_fault(&room, 5, true), None);
        assert!(text_fault(&room, 4, true).is_some());
        room[..2].copy_from_slice(&[58, 0]);
        assert!(text_fault(&room, 60, true).is_some());
        assert!(text_fault(&[], 0, true).is_some());
    }
}
