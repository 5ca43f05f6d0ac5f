//! Features that the primary superblock has alone: no backup has them, and no inode uses them. Tools that switch a feature on
//! write the backups, too, so that is a damaged bit.
//!
//! Only bits are looked at whose use shows in the flags of inodes, and the one that forbids writing, whose use shows nowhere.
//! A superblock without such bits costs nothing, and inode tables are read only where backups disagree.

use floe_blockdev::ReadBlocks;
use floe_ext4::inode_table::inode_offset;
use floe_format::ext::inode::{Inode, InodeFlags};
use floe_format::ext::superblock::Superblock;
use floe_format::features::{Incompat, RoCompat};
use floe_format::{BlockRun, GroupNr};

use super::contradicted::Contradicted;
use super::{Opened, rext3};
use crate::volume::used_inodes_bound;

/// Bytes of an inode table that are read at once.
const READ_BYTES: usize = 1 << 18;

/// Features that show in flags of the inodes that use them.
const INCOMPAT: [(Incompat, InodeFlags); 4] = [
    (Incompat::INLINE_DATA, InodeFlags::INLINE_DATA),
    (Incompat::ENCRYPT, InodeFlags::ENCRYPT),
    (Incompat::CASEFOLD, InodeFlags::CASEFOLD),
    (Incompat::EA_INODE, InodeFlags::EA_INODE),
];

/// The first word of features with such a bit. Linux mounts the file system all the same, unless it has case-folded names in an
/// encoding that does not exist.
pub(super) fn find(device: &dyn ReadBlocks, opened: &Opened) -> Option<Contradicted> {
    let sb = &opened.superblock;
    let (mut incompat, ro_compat) = candidates(sb);
    if incompat == 0 && ro_compat == 0 {
        return None;
    }
    let copies = rext3::copies(device, opened);
    let said = |word: fn(&Superblock) -> u32| copies.iter().fold(0, |all, copy| all | word(copy));
    incompat &= !said(|copy| copy.feature_incompat);
    let mut ro_compat = ro_compat & !said(|copy| copy.feature_ro_compat);
    if copies.is_empty() || (incompat == 0 && ro_compat == 0) {
        return None;
    }
    let used = flags_in_use(device, opened)?;
    for (feature, flag) in INCOMPAT {
        if used.contains(flag) {
            incompat &= !feature.bits();
        }
    }
    if used.contains(InodeFlags::VERITY) {
        ro_compat &= !RoCompat::VERITY.bits();
    }
    let unknown = sb.features().incompat.contains(Incompat::CASEFOLD) && sb.encoding == 0;
    let (field, stored, bits) = match incompat {
        0 => ("s_feature_ro_compat", sb.feature_ro_compat, ro_compat),
        _ => ("s_feature_incompat", sb.feature_incompat, incompat),
    };
    let mut superblock = sb.clone();
    superblock.feature_incompat &= !incompat;
    if incompat == 0 {
        superblock.feature_ro_compat &= !ro_compat;
    }
    (bits != 0).then_some(Contradicted {
        field,
        stored: stored.into(),
        expected: (stored & !bits).into(),
        superblock,
        is_harmless: !unknown,
    })
}

/// Bits of a superblock that may be such ones.
fn candidates(sb: &Superblock) -> (u32, u32) {
    let features = sb.features();
    let incompat = INCOMPAT.iter().fold(Incompat::empty(), |all, (feature, _)| all | *feature);
    let ro_compat = RoCompat::VERITY | RoCompat::READONLY;
    ((features.incompat & incompat).bits(), (features.ro_compat & ro_compat).bits())
}

/// The flags of all inodes with links; `None` if some of them cannot be read.
fn flags_in_use(device: &dyn ReadBlocks, opened: &Opened) -> Option<InodeFlags> {
    let geometry = &opened.geometry;
    let mut used = InodeFlags::empty();
    let size = geometry.inode_size as usize;
    let per_read = (READ_BYTES / size).max(1);
    let mut bytes = vec![0; per_read * size];
    for (group, desc) in (0..).map(GroupNr).zip(&opened.groups) {
        let table = BlockRun::new(desc.inode_table, u64::from(geometry.inode_table_blocks));
        if !geometry.contains(table.start) || table.end().0 > geometry.blocks_count {
            return None;
        }
        let count = used_inodes_bound(geometry, desc) as usize;
        for first in (0..count).step_by(per_read) {
            let len = (count - first).min(per_read) * size;
            // Below the number of inodes of a group.
            let start = geometry.inode_at(group, first as u32);
            let offset = inode_offset(start, geometry, &opened.groups)?;
            let bytes = bytes.get_mut(..len)?;
            device.read_at(offset, bytes).ok()?;
            let inodes = bytes.chunks_exact(size).filter_map(Inode::decode);
            let in_use = inodes.filter(|inode| inode.base.links_count > 0);
            used |= in_use.fold(InodeFlags::empty(), |all, inode| all | inode.flags());
        }
    }
    Some(used)
}
