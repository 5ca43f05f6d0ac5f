//! A superblock whose `s_desc_size` cannot be, and no backup to ask: the size by which the descriptors make
//! sense. (e2fsck takes the primary with the wrong size, or gives up.)

use floe_blockdev::ReadBlocks;
use floe_format::ext::superblock::Superblock;
use floe_format::geometry::{Geometry, GeometryFault, Strictness};

use super::inodes_per_group;
use crate::problem::{Findings, Problem};
use crate::volume::descriptors;
use crate::volume::layout_map::LayoutMap;

/// Sizes in bytes that 64bit allows, the usual one first.
const SIZES: [u16; 5] = [64, 128, 256, 512, 1024];

/// The superblock with the size of descriptors by which all of them are right, where the stored one is
/// impossible. Without 64bit nothing follows from the field.
pub(super) fn counted(
    device: &dyn ReadBlocks,
    superblock: &Superblock,
) -> Option<(Superblock, Geometry)> {
    let fault = Geometry::new(superblock, Strictness::Strict).err();
    if !matches!(fault, Some(GeometryFault { field: "s_desc_size", .. })) {
        return None;
    }
    SIZES.into_iter().find_map(|desc_size| {
        let mended = Superblock { desc_size, ..superblock.clone() };
        // The inodes of a group may be wrong as well.
        let (mended, geometry) = match Geometry::new(&mended, Strictness::Strict) {
            Ok(geometry) => (mended, geometry),
            Err(_) => inodes_per_group::counted(device, &mended)?,
        };
        super::candidate::has_room(device, &geometry).ok()?;
        makes_sense(device, &mended, &geometry).then_some((mended, geometry))
    })
}

/// Whether most descriptors have their checksums, or without checksums places that are possible.
fn makes_sense(device: &dyn ReadBlocks, superblock: &Superblock, geometry: &Geometry) -> bool {
    let mut found = Findings::default();
    let groups = descriptors::read(device, superblock, geometry, None, &mut found);
    if geometry.features.group_desc_csum() {
        let is_wrong = |problem: &&Problem| {
            matches!(
                problem,
                Problem::GroupDescriptorChecksumBad { .. }
                    | Problem::UnreadableGroupDescriptors { .. }
            )
        };
        return found.0.iter().filter(is_wrong).count() * 2 < groups.len().max(1);
    }
    let layout = LayoutMap::new(superblock, geometry, &groups, device.size_bytes());
    layout.insane.is_none()
}
