//! Finding a superblock that can be used, the geometry that follows from it, and the descriptors.
//!
//! The choice follows e2fsck: the primary superblock, else the first backup that opens, else the
//! primary once more with a relaxed judgement. Insane descriptors make a backup be tried too, and so
//! does a primary superblock by which alone everything would be lost.

use floe_blockdev::ReadBlocks;
use floe_format::BlockNr;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::features::{Features, Incompat};
use floe_format::geometry::{Geometry, Strictness};
use floe_format::rext3::region_blocks;

use self::backups::{
    backup_of_known_features, backup_that_fits, backup_with_more_files,
    backup_with_sane_descriptors, find_backup, sizes,
};
use self::candidate::{
    Candidate, Refusal, judged_features, read_candidate, read_superblock, unknown_features,
};
use crate::error::CheckError;
use crate::problem::{Findings, Problem, Sink};
use crate::volume::descriptors;
use crate::volume::layout_map::LayoutMap;

mod backup_groups;
mod backups;
mod candidate;
mod contradicted;
mod desc_size;
mod group_size;
mod inodes_per_group;
mod lost_primary;
mod lots;
pub mod orphan_inode;
pub mod quota_inode;
mod rext3;
mod start;
mod stray_features;

use self::lost_primary::{beside_a_backup, of_lost_primary};

pub use self::backups::good_backups;
pub use self::lost_primary::lost_primary;
pub use self::start::{first_start, start_of};

/// The superblock that a caller wants to be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WhichSuperblock {
    /// Its block, counted in `block_size`; `None`: the primary one, or a backup where that cannot be used.
    pub block: Option<BlockNr>,
    /// Bytes of a block, where the superblock cannot say (1024 to 65536).
    pub block_size: Option<u32>,
}

/// A file system whose superblock and descriptors were read.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The superblock in use.
    pub superblock: Superblock,
    /// Its bytes.
    pub bytes: Box<[u8; 1024]>,
    /// The geometry derived from it.
    pub geometry: Geometry,
    /// All descriptors.
    pub groups: Vec<GroupDesc>,
    /// Where static metadata lies.
    pub layout: LayoutMap,
    /// The block of the superblock in use, if it is not the primary one; in blocks of the file
    /// system.
    pub used_backup: Option<BlockNr>,
    /// The flags of descriptors from a backup, which are not believed; empty for those of the primary superblock.
    pub backup_flags: Vec<u16>,
    /// Problems found so far.
    pub found: Findings,
}

/// Opens the file system on `device`.
///
/// # Errors
/// [`CheckError::NoSuperblock`] if nothing usable was found (with the backups that look good),
/// [`CheckError::UnknownFeatures`], [`CheckError::Fatal`] for an unknown revision or encoding, and
/// [`CheckError::Read`] if the device does not even let the primary superblock be read.
pub fn open(device: &dyn ReadBlocks, which: WhichSuperblock) -> Result<Opened, CheckError> {
    let WhichSuperblock { block, block_size } = which;
    let mut found = Findings::default();
    let opened = match block {
        Some(block) => {
            let candidate = open_named(device, block, block_size)?;
            if candidate.backup.is_some() {
                found.0.extend(of_lost_primary(device));
                found.0.extend(of_insane_primary(device));
            }
            finish(device, candidate, &mut found)
        }
        None => open_unnamed(device, block_size, &mut found)?,
    };
    refuse_unknown(device, &judged_features(&opened.superblock))?;
    refuse_encoding(&opened)?;
    refuse_first_data_block(&opened)?;
    let mut opened = opened;
    if opened.used_backup.is_some() {
        rext3::settle_backup(device, &mut opened);
    }
    opened.found = found;
    judge_device_size(device, &mut opened);
    judge_desc_size(&mut opened);
    orphan_inode::judge(device, &mut opened);
    quota_inode::judge(device, &mut opened);
    Ok(opened)
}

/// Opens the superblock at `block`, of the block size given or of the first one that fits.
fn open_named(
    device: &dyn ReadBlocks,
    block: BlockNr,
    block_size: Option<u32>,
) -> Result<Candidate, CheckError> {
    let mut last = None;
    for strictness in [Strictness::Strict, Strictness::Relaxed] {
        for size in sizes(block_size) {
            let Some(offset) = block.0.checked_mul(u64::from(size)) else { continue };
            // `-b 1` of 1 KiB blocks names the primary one.
            let backup = (offset != OFFSET_BYTES).then_some(block);
            match read_candidate(device, offset, Some(size), backup, strictness) {
                Ok(candidate) => return Ok(candidate),
                // A refusal that says more than "there is nothing" is the one to report.
                Err(refusal) => match (&last, &refusal) {
                    (Some(Refusal::Field(_) | Refusal::Checksum { .. }), _) => {}
                    _ => last = Some(refusal),
                },
            }
        }
    }
    let refusal = last.unwrap_or(Refusal::Magic);
    let reason = refusal.reason();
    Err(match no_superblock(device, refusal, block, Vec::new()) {
        CheckError::NoSuperblock { mut problems, backups, .. } => {
            problems.retain(|own| !matches!(own, Problem::PrimarySuperblockOpenFailed { .. }));
            CheckError::NoSuperblock { problems, backups, named: Some((block, reason)) }
        }
        error => error,
    })
}

fn open_unnamed(
    device: &dyn ReadBlocks,
    block_size: Option<u32>,
    found: &mut Findings,
) -> Result<Opened, CheckError> {
    let primary = read_candidate(device, OFFSET_BYTES, None, None, Strictness::Strict);
    let refusal = match primary {
        Ok(candidate) => return Ok(open_primary(device, candidate, found)),
        Err(refusal @ (Refusal::Revision(_) | Refusal::Features(_))) => {
            if let Some(backup) = backup_of_rext3(device, &refusal) {
                let reason =
                    "it lacks the record that goes with the feature rext3, and a backup has it";
                found.push(Problem::PrimarySuperblockOpenFailed { reason });
                return Ok(finish(device, backup, found));
            }
            return match without_stray_bit(device, &refusal, found) {
                Some(candidate) => Ok(open_primary(device, candidate, found)),
                None => Err(fatal(device, refusal)),
            };
        }
        Err(refusal) => refusal,
    };
    let block = BlockNr(0);
    let mut own = refusal.problems(block);
    own.push(Problem::PrimarySuperblockOpenFailed { reason: refusal.reason() });
    let with_backup = |candidate: Candidate, found: &mut Findings| {
        found.0.extend(beside_a_backup(&refusal));
        finish(device, candidate, found)
    };
    if let Some(candidate) = find_backup(device, block_size, None) {
        return Ok(with_backup(candidate, found));
    }
    if matches!(refusal, Refusal::Field(_)) {
        // It is whole: where the backups are it may know all the same, although e2fsck does not ask.
        let backup = group_size::backup_where_stated(device);
        if backup.is_none()
            && let Some(primary) = with_counted_inodes(device, found)
                .or_else(|| with_counted_descriptors(device, found))
        {
            return Ok(open_primary(device, primary, found));
        }
        let relaxed = read_candidate(device, OFFSET_BYTES, None, None, Strictness::Relaxed);
        match (relaxed, backup) {
            (Ok(primary), backup)
                if backup.as_ref().is_none_or(|backup| has_the_groups(&primary, backup)) =>
            {
                // With the right groups it is s_first_meta_bg that is wrong, which is repaired in
                // place; descriptors are looked for at the wrong places, and tell nothing.
                let opened = if primary.counts_fit() {
                    finish(device, primary, found)
                } else {
                    open_primary(device, primary, found)
                };
                if opened.used_backup.is_none() {
                    relaxed_findings(&opened, found);
                }
                return Ok(opened);
            }
            (_, Some(backup)) => return Ok(with_backup(backup, found)),
            // The field that stands in the way even so.
            (Err(refusal), None) => return Err(no_superblock(device, refusal, block, Vec::new())),
            _ => {}
        }
    }
    Err(no_superblock(device, refusal, block, own))
}

/// A backup with the record that a primary superblock of rext3 lacks, if nothing else is unknown of that.
fn backup_of_rext3(device: &dyn ReadBlocks, refusal: &Refusal) -> Option<Candidate> {
    if !is_rext3_alone(refusal) {
        return None;
    }
    let mut bytes = [0; 1024];
    device.read_at(OFFSET_BYTES, &mut bytes).ok()?;
    let uuid = Superblock::decode(&bytes).uuid;
    let (size, per_group) = stated_layout(device)?;
    let backup = find_backup(device, Some(size), Some(per_group))?;
    let is_rext3 = region_blocks(&backup.superblock).is_some();
    (is_rext3 && backup.superblock.uuid == uuid).then_some(backup)
}

/// Whether the feature rext3 is all that is unknown.
fn is_rext3_alone(refusal: &Refusal) -> bool {
    let bit = Features::from_words(0, Incompat::REXT3.bits(), 0);
    matches!(refusal, Refusal::Features(names) if *names == bit.names())
}

/// The primary superblock without the feature rext3, where a flipped bit is all that says that it has it.
fn without_stray_bit(
    device: &dyn ReadBlocks,
    refusal: &Refusal,
    found: &mut Findings,
) -> Option<Candidate> {
    if !is_rext3_alone(refusal) {
        return None;
    }
    let mut bytes = Box::new([0; 1024]);
    device.read_at(OFFSET_BYTES, &mut *bytes).ok()?;
    let mut superblock = Superblock::decode(&bytes);
    let stored = superblock.feature_incompat;
    superblock.feature_incompat &= !Incompat::REXT3.bits();
    let expected = superblock.feature_incompat;
    let geometry = Geometry::new(&superblock, Strictness::Strict).ok()?;
    candidate::has_room(device, &geometry).ok()?;
    let candidate = || Candidate {
        superblock: superblock.clone(),
        bytes: bytes.clone(),
        geometry: geometry.clone(),
        backup: None,
    };
    let opened = finish(device, candidate(), &mut Findings::default());
    if !rext3::is_stray_bit(device, &opened) {
        return None;
    }
    found.push(Problem::SuperblockFieldContradicted {
        field: "s_feature_incompat",
        stored: stored.into(),
        expected: expected.into(),
    });
    Some(candidate())
}

/// Whether a primary superblock that only the relaxed judgement lets pass has the right groups, by a
/// backup. If both state one inode count, for which the primary has too many groups or too few, it is
/// the number of groups that is wrong, and files would be looked for where there are none.
fn has_the_groups(primary: &Candidate, backup: &Candidate) -> bool {
    let fits = primary.counts_fit();
    let (primary, backup) = (&primary.superblock, &backup.superblock);
    primary.inodes_per_group == backup.inodes_per_group
        && (fits || primary.inodes_count != backup.inodes_count)
}

/// The block size and the blocks of a group as the primary superblock states them, if they can be.
fn stated_layout(device: &dyn ReadBlocks) -> Option<(u32, u32)> {
    let mut bytes = [0; 1024];
    device.read_at(OFFSET_BYTES, &mut bytes).ok()?;
    let superblock = Superblock::decode(&bytes);
    let size = 1024u32.checked_shl(superblock.log_block_size).filter(|&size| size <= 1 << 16)?;
    let per_group = superblock.blocks_per_group;
    (per_group >= 8 && per_group <= size.saturating_mul(8)).then_some((size, per_group))
}

/// The primary superblock with the inodes of a group that its inode count says, if it is that number
/// which is wrong.
fn with_counted_inodes(device: &dyn ReadBlocks, found: &mut Findings) -> Option<Candidate> {
    let (superblock, bytes) = read_superblock(device, OFFSET_BYTES).ok()?;
    let stored = superblock.inodes_per_group;
    let (superblock, geometry) = inodes_per_group::counted(device, &superblock)?;
    found.push(Problem::InodesPerGroupWrong { stored, expected: geometry.inodes_per_group });
    Some(Candidate { superblock, bytes, geometry, backup: None })
}

/// The primary superblock with the size of descriptors by which they make sense, if it is that size which
/// is wrong.
fn with_counted_descriptors(device: &dyn ReadBlocks, found: &mut Findings) -> Option<Candidate> {
    let (superblock, bytes) = read_superblock(device, OFFSET_BYTES).ok()?;
    let (stored, inodes) = (superblock.desc_size, superblock.inodes_per_group);
    let (superblock, geometry) = desc_size::counted(device, &superblock)?;
    found.push(Problem::DescriptorSizeWrong { stored, expected: superblock.desc_size });
    if superblock.inodes_per_group != inodes {
        let expected = superblock.inodes_per_group;
        found.push(Problem::InodesPerGroupWrong { stored: inodes, expected });
    }
    Some(Candidate { superblock, bytes, geometry, backup: None })
}

/// Reports the values that the relaxed test accepted.
fn relaxed_findings(opened: &Opened, found: &mut Findings) {
    let (superblock, geometry) = (&opened.superblock, &opened.geometry);
    if superblock.inodes_count != geometry.inodes_count {
        found.push(Problem::InodeCountMismatch {
            stored: superblock.inodes_count,
            expected: u64::from(geometry.inodes_count),
        });
    }
    let meta_bg = geometry.features.incompat.contains(Incompat::META_BG);
    if meta_bg && superblock.first_meta_bg > geometry.desc_blocks {
        found.push(Problem::FirstMetaBgTooBig {
            stored: superblock.first_meta_bg,
            limit: geometry.desc_blocks,
        });
    }
}

/// Takes the primary superblock, unless its descriptors are insane and a backup opens.
fn open_primary(device: &dyn ReadBlocks, candidate: Candidate, found: &mut Findings) -> Opened {
    let mut own = Findings::default();
    let opened = finish(device, candidate, &mut own);
    if let Some(backup) = backup_that_fits(device, &opened, &own) {
        let reason = "no checksum of a descriptor fits its UUID, but they fit that of a backup";
        found.push(Problem::PrimarySuperblockOpenFailed { reason });
        return finish(device, backup, found);
    }
    if let Some(backup) = backup_with_more_files(device, &opened) {
        let reason = "it calls inodes reserved that are not, by a backup";
        found.push(Problem::PrimarySuperblockOpenFailed { reason });
        return finish(device, backup, found);
    }
    if let Some(wrong) = contradicted::find(device, &opened)
        && let Ok(geometry) = Geometry::new(&wrong.superblock, Strictness::Strict)
    {
        let contradicted::Contradicted { field, stored, expected, superblock, is_harmless } = wrong;
        found.push(match is_harmless {
            true => Problem::SuperblockFieldDoubtful { field, stored, expected },
            false => Problem::SuperblockFieldContradicted { field, stored, expected },
        });
        let candidate = Candidate { superblock, bytes: opened.bytes, geometry, backup: None };
        return finish(device, candidate, found);
    }
    let Some((group, reason)) = opened.layout.insane else {
        found.0.append(&mut own.0);
        return opened;
    };
    if let Some(mended) = lots::mended(device, &opened) {
        found.0.append(&mut own.0);
        return mended;
    }
    found.push(Problem::GroupDescriptorsInsane { group, reason });
    let geometry = &opened.geometry;
    if geometry.group_count > 1
        && let Some(backup) = backup_with_sane_descriptors(device, geometry)
    {
        // Unreadable primary descriptors are reported whichever copy is used.
        own.0.retain(|problem| matches!(problem, Problem::UnreadableGroupDescriptors { .. }));
        found.0.append(&mut own.0);
        return finish(device, backup, found);
    }
    found.0.append(&mut own.0);
    opened
}

/// The findings for which a check that names no superblock uses a backup instead of the primary one, although that opens: a named
/// backup does not make them untrue.
fn of_insane_primary(device: &dyn ReadBlocks) -> Vec<Problem> {
    let mut own = Findings::default();
    if let Ok(primary) = read_candidate(device, OFFSET_BYTES, None, None, Strictness::Strict) {
        open_primary(device, primary, &mut own);
    }
    own.0.retain(|problem| {
        matches!(
            problem,
            Problem::PrimarySuperblockOpenFailed { .. } | Problem::GroupDescriptorsInsane { .. }
        )
    });
    own.0
}

/// Reads the descriptors of a superblock and lays out its metadata.
fn finish(device: &dyn ReadBlocks, candidate: Candidate, found: &mut Findings) -> Opened {
    let Candidate { superblock, bytes, geometry, backup } = candidate;
    let (groups, backup_flags) =
        descriptors::read_with_flags(device, &superblock, &geometry, backup, found);
    let layout = LayoutMap::new(&superblock, &geometry, &groups, device.size_bytes());
    Opened {
        superblock,
        bytes,
        geometry,
        groups,
        layout,
        used_backup: backup,
        backup_flags,
        found: Findings::default(),
    }
}

fn no_superblock(
    device: &dyn ReadBlocks,
    refusal: Refusal,
    block: BlockNr,
    mut problems: Vec<Problem>,
) -> CheckError {
    let backups = good_backups(device);
    let refusal = match refusal {
        Refusal::Read(source) if backups.is_empty() => {
            return CheckError::Read { what: "the superblock", source };
        }
        Refusal::Revision(_) | Refusal::Features(_) => return fatal(device, refusal),
        refusal => refusal,
    };
    if problems.is_empty() {
        problems = refusal.problems(block);
        problems.push(Problem::PrimarySuperblockOpenFailed { reason: refusal.reason() });
    }
    problems.push(Problem::SuperblockUnusable);
    CheckError::NoSuperblock { problems, backups, named: None }
}

fn fatal(device: &dyn ReadBlocks, refusal: Refusal) -> CheckError {
    match refusal {
        Refusal::Features(names) => unknown(device, names),
        Refusal::Revision(value) => {
            CheckError::Fatal { problem: Problem::UnknownRevision { value } }
        }
        _ => CheckError::Fatal { problem: Problem::SuperblockUnusable },
    }
}

/// The refusal of unknown features, with a backup that has none of them.
fn unknown(device: &dyn ReadBlocks, names: Vec<String>) -> CheckError {
    CheckError::UnknownFeatures { names, backup: backup_of_known_features(device) }
}

fn refuse_unknown(device: &dyn ReadBlocks, features: &Features) -> Result<(), CheckError> {
    let names = unknown_features(features);
    if names.is_empty() { Ok(()) } else { Err(unknown(device, names)) }
}

/// `s_encoding` must be known where names are case-folded: 1 is UTF-8 12.1.
fn refuse_encoding(opened: &Opened) -> Result<(), CheckError> {
    let value = opened.superblock.encoding;
    if opened.geometry.features.incompat.contains(Incompat::CASEFOLD) && value != 1 {
        return Err(CheckError::Fatal { problem: Problem::UnknownNameEncoding { value } });
    }
    Ok(())
}

/// `s_first_data_block` follows from the block size: 1 with blocks of 1 KiB that are no clusters.
fn refuse_first_data_block(opened: &Opened) -> Result<(), CheckError> {
    let geometry = &opened.geometry;
    let expected = u32::from(geometry.block_size == 1024 && geometry.cluster_blocks == 1);
    let value = opened.superblock.first_data_block;
    if value != expected {
        return Err(CheckError::Fatal {
            problem: Problem::FirstDataBlockWrong { value, expected },
        });
    }
    Ok(())
}

/// `s_desc_size` is judged without 64bit too, although nothing follows from it then.
fn judge_desc_size(opened: &mut Opened) {
    let stored = opened.superblock.desc_size;
    if stored != 0 && (!stored.is_power_of_two() || stored > 1024) {
        opened.found.push(Problem::DescriptorSizeWrong { stored, expected: 0 });
    }
}

fn judge_device_size(device: &dyn ReadBlocks, opened: &mut Opened) {
    let geometry = &opened.geometry;
    let device_blocks = device.size_bytes() / u64::from(geometry.block_size);
    if device_blocks < geometry.blocks_count {
        opened.found.push(Problem::FilesystemExceedsDevice {
            blocks: geometry.blocks_count,
            device_blocks,
        });
    }
    if let Some(needed_bytes) = opened.layout.past_device_end {
        opened
            .found
            .push(Problem::ImageTruncated { size_bytes: device.size_bytes(), needed_bytes });
    }
}
