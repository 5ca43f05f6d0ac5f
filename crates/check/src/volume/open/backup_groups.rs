//! Which groups have copies of the superblock: `sparse_super`, `sparse_super2` and `s_backup_bgs` say it, and without `metadata_csum`
//! nothing proves these bits. By a wrong one, blocks of files count as copies and are written over, or copies as free space.
//!
//! The copies know it: each states the same, and they lie where they say. One copy is read of a superblock that agrees with it.

use std::collections::BTreeSet;

use floe_blockdev::ReadBlocks;
use floe_format::ext::superblock::Superblock;
use floe_format::features::{Compat, RoCompat};
use floe_format::{Geometry, GroupNr};

use super::Opened;
use super::contradicted::{Contradicted, FEW};
use super::rext3::copy_at;

/// Groups at whose start a copy is looked for, beside those that the superblocks name.
const MOST_GROUPS: u32 = 64;

/// The groups with copies that a superblock states.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Places {
    is_sparse: bool,
    /// `s_backup_bgs` of `sparse_super2`.
    only_in: Option<[u32; 2]>,
}

impl Places {
    fn of(superblock: &Superblock) -> Self {
        let features = superblock.features();
        Self {
            is_sparse: features.ro_compat.contains(RoCompat::SPARSE_SUPER),
            only_in: features
                .compat
                .contains(Compat::SPARSE_SUPER2)
                .then_some(superblock.backup_bgs),
        }
    }

    /// The same superblock with these places.
    fn put(self, superblock: &Superblock) -> Superblock {
        let mut right = superblock.clone();
        let (compat, ro_compat) = (Compat::SPARSE_SUPER2.bits(), RoCompat::SPARSE_SUPER.bits());
        right.feature_compat &= !compat;
        right.feature_ro_compat &= !ro_compat;
        if self.is_sparse {
            right.feature_ro_compat |= ro_compat;
        }
        if let Some(groups) = self.only_in {
            right.feature_compat |= compat;
            right.backup_bgs = groups;
        }
        right
    }

    /// The geometry with these places.
    fn geometry(self, own: &Geometry) -> Geometry {
        let mut geometry = own.clone();
        geometry.features.compat.set(Compat::SPARSE_SUPER2, self.only_in.is_some());
        geometry.features.ro_compat.set(RoCompat::SPARSE_SUPER, self.is_sparse);
        geometry.backup_groups = self.only_in.unwrap_or_default();
        geometry
    }

    /// The first group with a copy.
    fn first(self, group_count: u32) -> Option<GroupNr> {
        let groups = self.only_in.unwrap_or([1, 1]);
        groups.into_iter().filter(|at| (1..group_count).contains(at)).min().map(GroupNr)
    }
}

/// The first field that all copies contradict.
pub(super) fn find(device: &dyn ReadBlocks, opened: &Opened) -> Option<Contradicted> {
    let geometry = &opened.geometry;
    if geometry.group_count <= 2 {
        return None;
    }
    let own = Places::of(&opened.superblock);
    let read = |group| copy_in(device, opened, group);
    let first = own.first(geometry.group_count);
    if read(first.unwrap_or(GroupNr(1))).map_or(first.is_none(), |said| said == own) {
        return None;
    }
    let near = (1..geometry.group_count.min(MOST_GROUPS)).chain([geometry.group_count - 1]);
    let named =
        geometry.backup_groups.into_iter().filter(|at| (1..geometry.group_count).contains(at));
    let groups: BTreeSet<GroupNr> = near.chain(named).map(GroupNr).collect();
    let said: Vec<(GroupNr, Option<Places>)> =
        groups.into_iter().map(|group| (group, read(group))).collect();
    let right = said.iter().find_map(|(_, said)| said.filter(|said| *said != own))?;
    let theirs = right.geometry(geometry);
    let differ =
        |(at, _): &(GroupNr, _)| theirs.has_superblock(*at) != geometry.has_superblock(*at);
    // A copy where the others have none is as old as the primary superblock, or proves that they are wrong.
    let is_stray =
        |(at, said): &(GroupNr, Option<_>)| said.is_some() && !theirs.has_superblock(*at);
    let places = said.iter().filter(|(at, _)| theirs.has_superblock(*at));
    let lost = places.clone().filter(|(_, said)| *said != Some(right)).count();
    let is_proved =
        said.iter().any(differ) && !said.iter().any(is_stray) && lost * FEW < places.count();
    is_proved.then(|| contradicted(&opened.superblock, &right.put(&opened.superblock)))
}

/// The groups that the copy of this superblock at the start of a group states.
fn copy_in(device: &dyn ReadBlocks, opened: &Opened, group: GroupNr) -> Option<Places> {
    let at = opened.geometry.offset_bytes(opened.geometry.group_start(group));
    copy_at(device, opened, at).as_ref().map(Places::of)
}

fn contradicted(own: &Superblock, right: &Superblock) -> Contradicted {
    let [first, second] = [own.backup_bgs, right.backup_bgs]
        .map(|[low, high]| u64::from(low) | u64::from(high) << u32::BITS);
    let fields = [
        ("s_feature_compat", own.feature_compat.into(), right.feature_compat.into()),
        ("s_feature_ro_compat", own.feature_ro_compat.into(), right.feature_ro_compat.into()),
        ("s_backup_bgs", first, second),
    ];
    let differs = |(_, stored, expected): &(_, u64, u64)| stored != expected;
    let (field, stored, expected) = fields.into_iter().find(differs).unwrap_or(fields[2]);
    Contradicted { field, stored, expected, superblock: right.clone(), is_harmless: false }
}
