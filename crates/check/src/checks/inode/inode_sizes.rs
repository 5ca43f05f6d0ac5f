//! Check: `i_size` and `i_blocks` against the mapping.
//! Reads: the inode.  Keeps: nothing.  Emits: `InodeSizeWrong`, `InodeSizeBeyondLinux`, `InodeBlockCountWrong`.

use floe_format::InodeNr;
use floe_format::ext::indirect::{IndirectForm, MOST_LEVELS};
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::ext::superblock::OS_HURD;
use floe_format::features::Incompat;

use crate::checks::context::inode::InodeCx;
use crate::checks::mapping::mapper::Mapping;
use crate::checks::mapping::size_witness;
use crate::problem::{Findings, Problem, Sink};

/// The largest size of a block-mapped file in bytes.
fn block_map_limit_bytes(form: IndirectForm) -> u64 {
    let blocks = 12 + (1..=MOST_LEVELS).map(|level| form.span_blocks(level)).sum::<u64>();
    blocks.saturating_mul(u64::from(form.block_size()))
}

/// Problem `inode-size-wrong`. The size of an inline directory or link is judged by
/// `checks/inode/inline_data.rs` and `checks/inode/symlinks.rs`; all else has the limits of any file.
pub(crate) fn check_size(
    cx: &InodeCx<'_>,
    file_type: Option<FileType>,
    mapping: &Mapping,
    found: &mut Findings,
) {
    // Recovery will truncate a pending orphan: blocks past its end are expected.
    let elsewhere = cx.inode.flags().contains(InodeFlags::INLINE_DATA)
        && matches!(file_type, Some(FileType::Directory | FileType::Symlink));
    if elsewhere || cx.volume.is_orphan(cx.number) {
        return;
    }
    let block_size = u64::from(cx.volume.geometry.block_size);
    let stored = cx.inode.size_bytes();
    let wrong = match file_type {
        Some(FileType::Symlink) => false,
        Some(FileType::Directory) => dir_size_wrong(cx, mapping, block_size),
        _ => file_size_wrong(cx, mapping, stored, block_size),
    };
    let (inode, end) = (cx.number, mapping.last.map_or(0, |last| last + 1));
    let expected = end.saturating_mul(block_size);
    if wrong {
        found.push(Problem::InodeSizeWrong { inode, stored, expected });
    } else if file_type == Some(FileType::Regular)
        // As long as its map could reach, which `mke2fs` does not limit. Linux loads it to resize only.
        && cx.number != InodeNr::RESIZE
        && !cx.inode.flags().contains(InodeFlags::INLINE_DATA)
    {
        let extents = cx.inode.flags().contains(InodeFlags::EXTENTS);
        let most = cx.volume.geometry.largest_file_bytes(extents);
        if stored > most {
            found.push(Problem::InodeSizeBeyondLinux { inode, stored, most, expected });
        }
    }
}

fn dir_size_wrong(cx: &InodeCx<'_>, mapping: &Mapping, block_size: u64) -> bool {
    let size = match cx.volume.has_incompat(Incompat::LARGEDIR) {
        true => cx.inode.size_bytes(),
        false => u64::from(cx.inode.base.size_lo),
    };
    if !size.is_multiple_of(block_size) {
        return true;
    }
    let (blocks, mapped) = (size / block_size, mapping.last.map_or(0, |last| last + 1));
    blocks > mapped || mapped - blocks > u64::from(cx.volume.superblock.prealloc_dir_blocks)
}

fn file_size_wrong(cx: &InodeCx<'_>, mapping: &Mapping, size: u64, block_size: u64) -> bool {
    let flags = cx.inode.flags();
    let too_short = mapping.last_written.is_some_and(|last| size < last.saturating_mul(block_size));
    if too_short && !flags.contains(InodeFlags::VERITY) {
        return true;
    }
    if flags.contains(InodeFlags::EXTENTS) && cx.volume.has_incompat(Incompat::EXTENTS) {
        return size > (block_size << 32) - 1;
    }
    size > block_map_limit_bytes(cx.volume.geometry.indirect())
}

/// Problem `inode-block-count-wrong`.
pub(crate) fn check_block_count(cx: &InodeCx<'_>, clusters: u64, found: &mut Findings) {
    let volume = cx.volume;
    if volume.superblock.creator_os == OS_HURD {
        return;
    }
    let (base, flags) = (&cx.inode.base, cx.inode.flags());
    if flags.contains(InodeFlags::INLINE_DATA) && cx.inode.file_type() == Some(FileType::Symlink) {
        // e2fsck does not ask, and nobody relies on it.
        return;
    }
    let (stored, counted) = size_witness::sectors(cx, clusters);
    if stored != counted || (volume.geometry.counts_in_blocks(flags) && base.blocks_high != 0) {
        found.push(Problem::InodeBlockCountWrong { inode: cx.number, stored, counted });
    }
}
