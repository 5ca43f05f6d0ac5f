//! The repair of one cube of a native file system (`docs/cubes.md`): planned and staged on a device that shows the lots of the
//! cube alone, so that no block of another cube is read or changed.

use std::io;

use floe_blockdev::{Overlay, ReadBlocks, WriteBlocks};
use floe_check::cube::{CubeDevice, CubeScope, project};
use floe_check::open::{WhichSuperblock, open};
use floe_check::problem::Weight;
use floe_check::{Problem, Report};
use floe_ext4::apart::Lots;
use floe_ext4::cubes::Copy;
use floe_ext4::files::Files;
use floe_ext4::fs::read_superblock;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::native::cube::{State, SubSuperblock};
use floe_format::native::identity::Identity;
use floe_format::{Geometry, GroupNr, InodeNr};

use crate::deed::Reason;
use crate::failure::Failure;
use crate::policy::{Decision, Policy, Sharing};
use crate::session::{Repair, RepairError, RepairOptions, repair};
use crate::shared_owners::SharedGroup;

/// A policy that decides about findings of one cube, and refuses all others.
struct OnlyCube<'p> {
    inner: &'p mut dyn Policy,
    scope: &'p CubeScope,
}

impl Policy for OnlyCube<'_> {
    fn decide(&mut self, problems: &[Problem], report: &Report) -> Decision {
        let own: Vec<Problem> =
            problems.iter().filter(|problem| self.scope.concerns(problem)).cloned().collect();
        if own.is_empty() {
            return Decision::Each(vec![false; problems.len()]);
        }
        match self.inner.decide(&own, report) {
            Decision::Each(wanted) => {
                let mut wanted = wanted.into_iter();
                let each = |problem| self.scope.concerns(problem) && wanted.next() == Some(true);
                Decision::Each(problems.iter().map(each).collect())
            }
            other => other,
        }
    }

    fn share(&mut self, group: &SharedGroup, report: &Report) -> Sharing {
        self.inner.share(group, report)
    }

    fn may_delete(&mut self, problem: &Problem) -> bool {
        self.inner.may_delete(problem)
    }
}

/// Plans and stages the repair of one cube. `device` shows its lots alone; [`changes`] turns what is staged into changes of the
/// file system.
///
/// # Errors
/// As [`repair`].
pub fn repair_cube<'d>(
    device: &'d CubeDevice<'_>,
    scope: &'d CubeScope,
    options: &RepairOptions<'d>,
    policy: &mut dyn Policy,
) -> Result<Repair<'d>, RepairError> {
    if misses_lots(device, scope) {
        return Err(RepairError::Stage(Failure::NotNow(
            "the group descriptors of one of its lots are damaged, and only `floe repair` of the whole unmounted file system can \
             repair them; nothing was changed",
        )));
    }
    let superblock = options.check.superblock;
    let top = |device: &dyn ReadBlocks| parent_of_top(device, scope, superblock);
    let before = top(device)?;
    let mut options = RepairOptions { cube: Some(scope), ..*options };
    options.check.cube = Some(scope.known());
    let mut policy = OnlyCube { inner: policy, scope };
    let mut repaired = repair(device, &options, &mut policy)?;
    // If it is lost, only its parent, which lies outside of the cube, says what it was; and no `..` is made that may be wrong.
    let is_whole = match repaired.halted {
        None => {
            let above = top(&repaired.staged)?;
            above.is_some() && (above == device.parent() || above == before)
        }
        Some(_) => true,
    };
    if !is_whole {
        return Err(RepairError::Stage(Failure::NotNow(
            "the directory of the cube itself is damaged, and only `floe repair` of the whole unmounted file system can \
             repair it; nothing was changed",
        )));
    }
    for report in [&mut repaired.before, &mut repaired.after] {
        report.found.retain(|problem| scope.concerns(problem));
    }
    repaired.left.retain(|(problem, _): &(Problem, Reason)| scope.concerns(problem));
    Ok(repaired)
}

/// Whether a lot that the cube lists has damaged descriptors, which say no more that it is the cube's.
fn misses_lots(device: &CubeDevice<'_>, scope: &CubeScope) -> bool {
    let Ok((superblock, geometry)) = read_superblock(device.base()) else { return false };
    let Some(stored) = Lots::read(device.base(), &superblock, &geometry) else { return false };
    let first = |lot: u32| GroupNr(lot.saturating_mul(geometry.descs_per_block()));
    scope.sub.lots.iter().any(|lot| stored.is_damaged(*lot) && !scope.holds_group(first(*lot)))
}

/// The directory above a cube's own directory, as that says it; 0 if it does not. `None` if the inode of the cube's directory is not
/// that of a directory.
fn parent_of_top(
    device: &dyn ReadBlocks,
    scope: &CubeScope,
    superblock: WhichSuperblock,
) -> Result<Option<InodeNr>, RepairError> {
    let opened = open(device, superblock)?;
    let files = Files::new(device, opened.superblock, opened.geometry, opened.groups);
    let top = files.node(scope.top()).ok();
    let top = top.filter(|top| top.checksum_ok && top.in_use() && top.is_directory());
    let listed = top.map(|top| files.list(&top).ok().and_then(|listing| listing.parent));
    Ok(listed.map(Option::unwrap_or_default))
}

/// Stages the changes of a cube's repair over the whole file system: blocks in lots of the cube, its damaged copies of the
/// sub-superblock, and the totals of free blocks and inodes in the primary superblock. The record of a failure is cleared unless
/// the repair left damage. `onto` is an overlay of the file system without changes. Returns how many blocks belong to the cube.
///
/// # Errors
/// The device's error.
pub fn changes<B: ReadBlocks>(
    repaired: &Repair<'_>,
    scope: &CubeScope,
    onto: &Overlay<B>,
) -> io::Result<u64> {
    let mut count = project(&repaired.staged, scope, onto)?;
    let is_whole = repaired.left.iter().all(|(left, _)| left.row().weight == Weight::Remark);
    let state = if is_whole { State::Sound } else { scope.sub.state };
    let sound = SubSuperblock { state, ..scope.sub.clone() };
    let copies = scope.map().copies().and_then(|all| all.get(&scope.sub.cube));
    for copy in copies.into_iter().flatten() {
        let is_good = matches!(copy, Copy::Valid(_, sub) if *sub == sound);
        if let (Some(block), false) = (copy.block(), is_good) {
            let size = u64::from(scope.geometry().block_size);
            onto.write_at(block.0 * size, &sound.encode()[..])?;
            count += 1;
        }
    }
    settle(onto, scope.geometry(), is_whole)?;
    Ok(count)
}

/// Brings the totals of a valid primary superblock up to date, which are those of all descriptors that can be used. `is_whole`: nothing
/// of the cube is left to repair.
fn settle(onto: &dyn WriteBlocks, geometry: &Geometry, is_whole: bool) -> io::Result<()> {
    let mut bytes = [0; Superblock::SIZE];
    onto.read_at(OFFSET_BYTES, &mut bytes)?;
    let before = Superblock::decode(&bytes);
    let lots = Lots::read(&onto, &before, geometry);
    let Some(lots) = lots.filter(|_| Superblock::checksum_ok(&bytes)) else { return Ok(()) };
    let mut superblock = before.clone();
    let (mut blocks, mut inodes) = (0, 0);
    for desc in lots.without_damaged() {
        blocks += u64::from(desc.free_blocks_count);
        inodes += u64::from(desc.free_inodes_count);
    }
    superblock.free_blocks_count_lo = (blocks & 0xffff_ffff) as u32;
    superblock.free_blocks_count_hi = (blocks >> 32) as u32;
    superblock.free_inodes_count = u32::try_from(inodes).unwrap_or(u32::MAX);
    if is_whole && lots.is_sound() {
        Identity::put_mended(&mut superblock);
    }
    if superblock == before {
        return Ok(());
    }
    // The seal is broken now, but by nobody else.
    let coupled = Identity::is_coupled(&before);
    Identity::put_in_use(&mut superblock, coupled);
    superblock.encode_with_checksum(&mut bytes);
    onto.write_at(OFFSET_BYTES, &bytes)
}
