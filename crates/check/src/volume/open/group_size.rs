//! A wrong `s_blocks_per_group`: groups begin where none do, so that descriptors place bitmaps outside of their groups, and no copy of the
//! superblock is where it should be. The first copy on the device knows where it lies. (e2fsck moves the metadata of each group.)

use floe_blockdev::ReadBlocks;
use floe_ext4::superblocks::each_magic;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::features::Incompat;
use floe_format::geometry::{Geometry, Strictness};
use floe_format::{BlockNr, GroupNr};

use super::backups::find_backup;
use super::candidate::{Candidate, read_candidate};
use super::contradicted::Contradicted;
use super::rext3::copy_at;
use super::{Opened, stated_layout};

/// Bytes at the start of the device in which a copy is looked for: the first group of blocks of 4 KiB, and the copy behind it.
const SEARCHED_BYTES: u64 = (128 << 20) + (64 << 10);
/// Copies lie at multiples of the smallest block.
const STEP_BYTES: usize = 1024;

/// The size of groups that the first copy of the superblock has, where it lies by that size, and the metadata of most groups do not lie
/// in them by that of the primary superblock.
pub(super) fn find(device: &dyn ReadBlocks, opened: &Opened) -> Option<Contradicted> {
    let sb = &opened.superblock;
    let is_flexible = opened.geometry.features.incompat.contains(Incompat::FLEX_BG);
    if is_flexible || outside(opened, &opened.geometry) * 2 <= opened.groups.len() {
        return None;
    }
    let mut right = None;
    each_magic(device, SEARCHED_BYTES, STEP_BYTES, &mut |at| {
        right = by_copy(device, opened, at);
        right.is_none()
    });
    let right: Superblock = right?;
    Some(Contradicted {
        field: "s_blocks_per_group",
        stored: sb.blocks_per_group.into(),
        expected: right.blocks_per_group.into(),
        superblock: right,
        is_harmless: false,
    })
}

/// The first backup where those of the layout are that the primary superblock states, or else one that has groups of another size and
/// lies where they begin: without it, another number of inodes in a group would be believed.
pub(super) fn backup_where_stated(device: &dyn ReadBlocks) -> Option<Candidate> {
    let (size, per_group) = stated_layout(device)?;
    find_backup(device, Some(size), Some(per_group)).or_else(|| {
        let mut bytes = [0; Superblock::SIZE];
        device.read_at(OFFSET_BYTES, &mut bytes).ok()?;
        let uuid = Superblock::decode(&bytes).uuid;
        let mut found = None;
        each_magic(device, SEARCHED_BYTES, STEP_BYTES, &mut |at| {
            let block = Some(BlockNr(at / u64::from(size)));
            let copy = read_candidate(device, at, Some(size), block, Strictness::Strict).ok();
            found = copy.filter(|copy| {
                let (sb, geometry) = (&copy.superblock, &copy.geometry);
                let is_other = sb.uuid == uuid && sb.blocks_per_group != per_group;
                let home = geometry.superblock_of(GroupNr(sb.block_group_nr.into()));
                is_other
                    && sb.block_group_nr > 0
                    && home.is_some_and(|home| geometry.offset_bytes(home) == at)
            });
            found.is_none()
        });
        found
    })
}

/// The primary superblock with the size of groups that a copy has which lies at a byte of the device.
fn by_copy(device: &dyn ReadBlocks, opened: &Opened, at: u64) -> Option<Superblock> {
    let sb = &opened.superblock;
    let is_other =
        |it: &Superblock| it.block_group_nr > 0 && it.blocks_per_group != sb.blocks_per_group;
    let copy = copy_at(device, opened, at).filter(is_other)?;
    let right = Superblock {
        blocks_per_group: copy.blocks_per_group,
        clusters_per_group: copy.clusters_per_group,
        ..sb.clone()
    };
    // By another number of groups the primary superblock counts its inodes.
    let geometry = Geometry::new(&right, Strictness::Strict).ok()?;
    let place = geometry.superblock_of(GroupNr(copy.block_group_nr.into()))?;
    let fits = geometry.offset_bytes(place) == at && outside(opened, &geometry) == 0;
    fits.then_some(right)
}

/// The number of groups whose bitmaps do not lie in them.
fn outside(opened: &Opened, geometry: &Geometry) -> usize {
    let is_outside = |(group, desc): &(GroupNr, &_)| !is_at_home(geometry, *group, desc);
    (0..).map(GroupNr).zip(&opened.groups).filter(is_outside).count()
}

fn is_at_home(geometry: &Geometry, group: GroupNr, desc: &GroupDesc) -> bool {
    [desc.block_bitmap, desc.inode_bitmap].iter().all(|at| geometry.group_of(*at) == Some(group))
}
