//! Check: the sub-superblocks of cubes (`docs/cubes.md`) are whole, and agree with the records of lots and with the tree.
//! Reads: the inodes of cubes' directories, and the directories that their paths lead through.  Keeps: nothing.
//! Emits: `CubeJournalDamaged`, `EmptyJournalSuperblockBit`, `CubeCopyDamaged`, `CubeFailureRecorded`, `CubeSuperblockLost`, `UnreadableBlock`, `CubeTopWrong`, `CubeWithoutLot`, `CubeHintOld`.
//! Does not verify: references out of a cube (`checks/mapping/mapper.rs`, `checks/directory/dirents.rs`).

use std::collections::BTreeSet;

use floe_ext4::cubes::{Copies, Copy};
use floe_ext4::files::{Files, FilesError, Follow};
use floe_ext4::journal::{find_cubes, next_orphan, orphans_in};
use floe_format::native::cube::{State, SubSuperblock};
use floe_format::native::is_locked;
use floe_format::{GroupNr, InodeNr};

use crate::checks::system_files::journal::superblock_damage;
use crate::problem::{Findings, Problem, Sink};
use crate::volume::Volume;
use crate::volume::cubes::CubeMap;

/// Checks all cubes, or one.
pub(super) fn check(volume: &Volume<'_>, only: Option<u32>, found: &mut Findings) {
    // The root cube may have several journals without there being another cube.
    journals(volume, only, found);
    let Some(cubes) = &volume.cubes else { return };
    let files = volume.files();
    let owned = cubes.numbers();
    let Some(all) = cubes.copies() else {
        // Another check reports the damage of the file; without it nothing is known of its cubes.
        return;
    };
    let numbers: BTreeSet<u32> = owned.iter().chain(all.keys()).copied().collect();
    for cube in numbers.into_iter().filter(|cube| only.is_none_or(|only| only == *cube)) {
        let none = Copies::default();
        let copies = all.get(&cube).unwrap_or(&none);
        match cubes.current(cube) {
            None if owned.contains(&cube) => {
                let lot = cubes.lots_of(cube).next().unwrap_or(0);
                let group = GroupNr(lot * cubes.lot_groups());
                found.push(Problem::CubeSuperblockLost { cube, group });
            }
            None => found.push(Problem::CubeWithoutLot { cube }),
            Some(sub) => {
                copies_agree(cube, copies, &sub, found);
                if sub.state == State::Failed {
                    found.push(Problem::CubeFailureRecorded { cube });
                }
                if !owned.contains(&cube) {
                    found.push(Problem::CubeWithoutLot { cube });
                } else {
                    judge(&files, cubes, &sub, found);
                }
            }
        }
    }
}

/// Reports journals that cannot be used, and damaged lists of orphans behind others. Damage inside a usable log shows when
/// it is replayed.
fn journals(volume: &Volume<'_>, only: Option<u32>, found: &mut Findings) {
    let all = find_cubes(volume.device, &volume.superblock, &volume.geometry, &volume.groups);
    let is_wanted = |cube| only.is_none_or(|only| only == cube);
    let mut bytes = Vec::new();
    let mut next = |orphan| next_orphan(orphan, volume.device, &volume.geometry, &volume.groups);
    for own in all.usable.iter().filter(|own| is_wanted(own.cube)) {
        let (cube, inode, block) = (own.cube, own.inode, own.orphan_block);
        found.0.extend(superblock_damage(own, is_locked(&volume.superblock)));
        if volume.read_block(block, &mut bytes).is_err() {
            found.push(Problem::UnreadableBlock { inode, block });
        } else if orphans_in(own, &volume.geometry, &bytes, &mut next).is_none() {
            let reason = "the list of its orphans";
            found.push(Problem::CubeJournalDamaged { cube, inode, reason });
        }
    }
    let lost = all.unusable.into_iter().filter(|lost| !lost.is_unread);
    for lost in lost.filter(|lost| is_wanted(lost.cube)) {
        let (cube, inode, reason) = (lost.cube, lost.inode, lost.why);
        found.push(Problem::CubeJournalDamaged { cube, inode, reason });
    }
}

fn copies_agree(cube: u32, copies: &Copies, current: &SubSuperblock, found: &mut Findings) {
    for (copy, each) in (1..).zip(copies) {
        let reason = match each {
            Copy::Valid(_, sub) if sub == current => continue,
            Copy::Valid(..) => "it differs from the other one",
            Copy::Damaged(_) => "it is unreadable, or its checksum is wrong",
            Copy::Absent => "it has no block",
        };
        found.push(Problem::CubeCopyDamaged { cube, copy, reason });
    }
}

/// Compares a sub-superblock with the records and the tree.
fn judge(files: &Files<'_>, cubes: &CubeMap, sub: &SubSuperblock, found: &mut Findings) {
    let (cube, inode) = (sub.cube, InodeNr(sub.top_inode));
    let is_inside = files.geometry().place_of(inode).is_some()
        && cubes.of_inode(files.geometry(), inode) == cube;
    if !is_inside {
        let reason = "that lies in no lot of the cube";
        found.push(Problem::CubeTopWrong { cube, inode, reason });
        return;
    }
    // An inode that cannot be read or has a wrong checksum is a finding of another check.
    let Some(top) = files.node(inode).ok().filter(|top| top.checksum_ok) else { return };
    if !top.is_directory() || !top.in_use() {
        found.push(Problem::CubeTopWrong { cube, inode, reason: "that is no directory" });
        return;
    }
    // A cube that has grown since has more lots than its list, and nothing is wrong with that.
    let lots: BTreeSet<u32> = cubes.lots_of(cube).collect();
    if sub.lots.iter().any(|lot| !lots.contains(lot)) {
        found.push(Problem::CubeHintOld { cube, what: "list of lots" });
    }
    let is_old = match files.lookup(&sub.path, Follow::NotLast) {
        Ok(node) => node.number != inode,
        // Anything else in the way is a finding of another check.
        Err(error) => matches!(error, FilesError::NoSuchName { .. }),
    };
    if is_old {
        found.push(Problem::CubeHintOld { cube, what: "path" });
    }
}
