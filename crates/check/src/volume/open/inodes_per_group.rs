//! A superblock by which the groups have more or fewer inodes than it counts, and no backup to ask: which
//! of the two numbers is wrong. e2fsck believes the groups; where they have one inode too many, each
//! bitmap lacks a bit of padding, and where they have too few, files are lost.

use floe_blockdev::ReadBlocks;
use floe_format::ext::bitmap;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::{FileType, InodeBase};
use floe_format::ext::superblock::Superblock;
use floe_format::geometry::{Geometry, Strictness};

use crate::problem::Findings;
use crate::volume::descriptors;

/// Linux, mke2fs and resize2fs require whole bytes of a bitmap.
const UNIT: u32 = 8;
/// Inodes that are looked at to tell whether a bitmap marks inodes or is at its padding.
const MOST_INODES: u32 = 64;

/// The superblock with the inodes of a group that follow from its inode count, where the stored number
/// is the one that is wrong: it is impossible, or the inodes of the first group contradict it.
pub(super) fn counted(
    device: &dyn ReadBlocks,
    superblock: &Superblock,
) -> Option<(Superblock, Geometry)> {
    let stored = superblock.inodes_per_group;
    let blocks = superblock.blocks_count().checked_sub(superblock.first_data_block.into())?;
    let groups = match superblock.blocks_per_group {
        0 => return None,
        per_group => u32::try_from(blocks.div_ceil(per_group.into())).ok()?,
    };
    let counted = superblock.inodes_count.checked_div(groups)?;
    if counted == stored || !counted.is_multiple_of(UNIT) {
        return None;
    }
    let mended = Superblock { inodes_per_group: counted, ..superblock.clone() };
    // A remainder is itself a value out of range.
    let geometry = Geometry::new(&mended, Strictness::Strict).ok()?;
    super::candidate::has_room(device, &geometry).ok()?;
    let is_possible =
        stored.is_multiple_of(UNIT) && Geometry::new(superblock, Strictness::Relaxed).is_ok();
    let is_wrong = !is_possible || first_group(device, &mended, &geometry, stored) == Some(counted);
    is_wrong.then_some((mended, geometry))
}

/// Which of two numbers of inodes the first group has, by what it says of them: that of `geometry`, or
/// another one. `None` if it tells neither.
fn first_group(
    device: &dyn ReadBlocks,
    superblock: &Superblock,
    geometry: &Geometry,
    other: u32,
) -> Option<u32> {
    let own = geometry.inodes_per_group;
    let mut unread = Findings::default();
    let groups = descriptors::read(device, superblock, geometry, None, &mut unread);
    let desc = groups.first()?;
    if !geometry.contains(desc.inode_bitmap) || !geometry.contains(desc.inode_table) {
        return None;
    }
    let mut bits = vec![0; geometry.block_size as usize];
    device.read_at(geometry.offset_bytes(desc.inode_bitmap), &mut bits).ok()?;
    if geometry.features.metadata_csum() {
        let fits = |inodes| {
            let computed = bitmap::checksum(superblock.seed(), &bits, inodes);
            bitmap::checksum_fits(desc.inode_bitmap_csum, computed, geometry.desc_size)
        };
        match (fits(own), fits(other)) {
            (true, false) => return Some(own),
            (false, true) => return Some(other),
            _ => {}
        }
    }
    let in_use = |index| is_in_use(device, geometry, desc, index);
    by_bitmap(&bits, own.min(other), own.max(other), in_use)
}

/// Which of two numbers of inodes a bitmap has, by where its padding begins, which is set like the bits
/// of inodes in use. `None`: there is none behind either.
fn by_bitmap(bits: &[u8], low: u32, high: u32, in_use: impl Fn(u32) -> bool) -> Option<u32> {
    if bitmap::first_clear_padding(bits, high).is_some() {
        return None;
    }
    let marks_a_free_one = bitmap::first_clear(bits, low..high).is_some();
    let all_in_use = || (low..high.min(low.saturating_add(MOST_INODES))).all(in_use);
    Some(if marks_a_free_one || all_in_use() { high } else { low })
}

/// Whether what is at a place of an inode table looks like an inode in use.
fn is_in_use(device: &dyn ReadBlocks, geometry: &Geometry, desc: &GroupDesc, index: u32) -> bool {
    let mut bytes = [0; 128];
    let offset_bytes = u64::from(index) * u64::from(geometry.inode_size);
    let at = geometry.offset_bytes(desc.inode_table).checked_add(offset_bytes);
    if at.is_none_or(|at| device.read_at(at, &mut bytes).is_err()) {
        return false;
    }
    let inode = InodeBase::decode(&bytes);
    inode.links_count > 0 && inode.dtime == 0 && FileType::of_mode(inode.mode).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A bitmap of 1024 bits with `used` inodes in use, and padding from `inodes` on.
    fn bits(used: u32, inodes: u32) -> Vec<u8> {
        let mut bits = vec![0; 128];
        bitmap::fill(&mut bits, 0..used, true);
        bitmap::fill(&mut bits, inodes..1024, true);
        bits
    }

    #[test]
    fn padding_begins_behind_the_last_inode() {
        let table = |inodes: u32| move |index: u32| index < inodes;
        assert_eq!(by_bitmap(&bits(20, 256), 128, 256, table(20)), Some(256));
        assert_eq!(by_bitmap(&bits(20, 256), 256, 512, table(20)), Some(256));
        assert_eq!(by_bitmap(&bits(20, 512), 256, 384, table(20)), None, "more than either");
    }

    #[test]
    fn inodes_in_use_are_no_padding() {
        let full = bits(256, 256);
        assert_eq!(by_bitmap(&full, 128, 256, |index| index < 256), Some(256));
        assert_eq!(by_bitmap(&full, 256, 512, |index| index < 256), Some(256));
    }
}
