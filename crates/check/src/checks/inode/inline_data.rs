//! Check: data that lives in the inode.
//! Reads: the inode.  Keeps: nothing.  Emits: `InlineAndExtentsFlagsExtentRoot`,
//! `InlineAndExtentsFlagsSmallFile`, `InlineAndExtentsFlagsBlockMap`, `InlineAndExtentsFlagsJunk`,
//! `InlineDataFeatureMissing`, `InlineDataFlagUnsupported`, `InlineDataAttrMissing`, `InodeSizeWrong`.
//! Does not verify: the entries of inline directories (the directory pass).

use floe_format::ext::extent::ExtentNode;
use floe_format::ext::inline_data::IN_BLOCK_SIZE;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::features::Incompat;
use floe_format::{BlockNr, InodeNr};

use crate::checks::context::inode::{InodeCx, InodeEvidence};
use crate::checks::xattr::OfInode;
use crate::problem::{Problem, Sink};

/// Checks the flags and the size of an inode in use with INLINE_DATA_FL; any other passes.
/// `attributes` is what [`crate::checks::xattr::check`] said of it.
#[inline]
pub fn check(cx: &InodeCx<'_>, attributes: &OfInode, evidence: &mut InodeEvidence) {
    if cx.inode.flags().contains(InodeFlags::INLINE_DATA) {
        check_flagged(cx, attributes, evidence);
    }
}

#[cold]
fn check_flagged(cx: &InodeCx<'_>, attributes: &OfInode, evidence: &mut InodeEvidence) {
    let inode = cx.number;
    let has_feature = cx.volume.has_incompat(Incompat::INLINE_DATA);
    if !check_exclusive(cx, evidence) {
        return;
    }
    if cx.volume.geometry.is_reserved(inode) && inode != InodeNr::ROOT {
        return;
    }
    let ordinary = !cx.volume.geometry.is_reserved(inode);
    match (attributes.inline_bytes, has_feature) {
        (Some(_), false) if ordinary => {
            evidence.found.push(Problem::InlineDataFeatureMissing { inode });
        }
        (None, false) if ordinary => {
            evidence.found.push(Problem::InlineDataFlagUnsupported { inode });
        }
        (None, true) if ordinary => evidence.found.push(Problem::InlineDataAttrMissing { inode }),
        _ => {}
    }
    // Without an attribute an ordinary inode has been reported; the root may have none.
    if cx.inode.file_type() == Some(FileType::Directory)
        && (attributes.inline_bytes.is_some() || !ordinary)
    {
        check_dir_size(cx, attributes.inline_bytes.unwrap_or(0), evidence);
    }
}

/// Checks the two flags that exclude each other, which e2fsck minds even in a reserved inode that
/// nothing uses. `false` if the data does not live in the inode after all.
pub(super) fn check_exclusive(cx: &InodeCx<'_>, evidence: &mut InodeEvidence) -> bool {
    let both = InodeFlags::INLINE_DATA | InodeFlags::EXTENTS;
    let has_feature = [Incompat::INLINE_DATA, Incompat::EXTENTS]
        .into_iter()
        .any(|feature| cx.volume.has_incompat(feature));
    // A special file may have neither, which is another finding.
    let is_special = matches!(
        cx.inode.file_type(),
        Some(FileType::CharDevice | FileType::BlockDevice | FileType::Fifo | FileType::Socket)
    );
    if !cx.inode.flags().contains(both) || !has_feature || is_special {
        return true;
    }
    let problem = which_flag(cx);
    let stays_inline = matches!(problem, Problem::InlineAndExtentsFlagsSmallFile { .. });
    evidence.found.push(problem);
    stays_inline
}

/// An inline directory is as long as its room: 60 bytes and the attribute. (A file may be shorter,
/// and one that is longer than its room reads as if it ended there; a symlink is judged by
/// `symlinks`.)
fn check_dir_size(cx: &InodeCx<'_>, in_attribute: u32, evidence: &mut InodeEvidence) {
    let (stored, expected) =
        (cx.inode.size_bytes(), u64::from(in_attribute) + IN_BLOCK_SIZE as u64);
    if stored != expected {
        evidence.found.push(Problem::InodeSizeWrong { inode: cx.number, stored, expected });
    }
}

/// Which of two flags that exclude each other is wrong: the first reading that fits.
fn which_flag(cx: &InodeCx<'_>) -> Problem {
    let inode = cx.number;
    if ExtentNode::new(&cx.inode.base.block).is_some_and(|root| root.header_ok()) {
        return Problem::InlineAndExtentsFlagsExtentRoot { inode };
    }
    let extra = u64::from(cx.inode.extra.extra_isize);
    let room = (cx.inode.raw.len() as u64).saturating_sub(128 + extra) + IN_BLOCK_SIZE as u64;
    if cx.inode.size_bytes() < room {
        return Problem::InlineAndExtentsFlagsSmallFile { inode };
    }
    let maps_blocks = (0..15)
        .filter_map(|word| cx.inode.block_word(word))
        .all(|word| word == 0 || cx.volume.geometry.contains(BlockNr(u64::from(word))));
    if maps_blocks {
        Problem::InlineAndExtentsFlagsBlockMap { inode }
    } else {
        Problem::InlineAndExtentsFlagsJunk { inode }
    }
}
