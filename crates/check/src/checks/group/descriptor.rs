//! Check: flags and counters of the group descriptors.
//! Reads: descriptors.  Keeps: nothing.  Emits: `GroupUninit*`, `GroupItableUnused*`,
//! `LastGroupBlockUninit`.
//! Does not verify: checksums (`descriptors`), places and overlaps (`layout_map`), free counts
//! (`checks/space/bitmaps/`).

use floe_format::GroupNr;
use floe_format::ext::group_desc::{FLAG_BLOCK_UNINIT, FLAG_INODE_UNINIT};

use crate::problem::{Findings, Problem, Sink};
use crate::volume::Volume;

/// Checks all descriptors.
pub fn check(volume: &Volume<'_>, found: &mut Findings) {
    let has_checksums = volume.features().group_desc_csum();
    let last = GroupNr(volume.geometry.group_count.saturating_sub(1));
    for (group, desc) in (0..).map(GroupNr).zip(&volume.groups) {
        if volume.is_group_absent(group) {
            continue;
        }
        let uninit = desc.flags & (FLAG_BLOCK_UNINIT | FLAG_INODE_UNINIT);
        if !has_checksums && (uninit != 0 || desc.itable_unused != 0) {
            found.push(Problem::GroupUninitWithoutChecksumFeature {
                group,
                flags: uninit,
                unused_inodes: desc.itable_unused,
            });
        }
        if group == last && desc.block_uninit() {
            found.push(Problem::LastGroupBlockUninit { group });
        }
        let limit = desc.free_inodes_count.min(volume.geometry.inodes_per_group);
        if has_checksums && desc.itable_unused > limit {
            let stored = desc.itable_unused;
            found.push(Problem::GroupItableUnusedTooLarge { group, stored, limit });
        }
    }
}
