//! A shard of a refinement (`docs/fleet.md`): its share of the closer look at groups that sums do not prove.
//!
//! The evidence of all shards, merged, tells which groups these are. Two rounds look at them. The first one reads
//! the inode tables that concern them. The second one, in which every shard knows these inodes, judges the bitmaps
//! of these groups and the directory blocks that name their inodes. The merge then has nothing to read for them.

use std::mem::take;

use floe_blockdev::ReadBlocks;
use floe_format::BlockRun;

use super::pipeline::{Made, Setting, Start, begin_sums, on_recovered};
use super::refine::{self, ByNow, Known, Suspects};
use super::registry::{self, DIRECTORIES, Evidence, INODES, Pass};
use super::results::Scan;
use crate::checkpoint::{Found, Part, Share};
use crate::checks::context::inode::InodeEvidence;
use crate::checks::system_files::bad_blocks;
use crate::error::{CheckError, PartRefusal};
use crate::evidence::fingerprint::GroupSums;
use crate::evidence::ledger::Ledger;
use crate::options::{CheckOptions, Checkpoints};
use crate::problem::Findings;
use crate::scan::inode_tables::blocks_of;
use crate::volume::Volume;

/// The passes of a shard of a refinement, in order. The first ones complete the merged evidence of the first round.
pub const PASSES: [Pass; 5] = [
    Pass {
        name: "superblock",
        reads: "the inode of bad blocks",
        keeps: Evidence::Layout,
        needs: &[],
        estimate: None,
        weight: None,
        run: begin,
    },
    Pass { estimate: None, ..INODES },
    Pass {
        name: "shared blocks",
        reads: "nothing",
        keeps: Evidence::Sharers,
        needs: &[Evidence::Inodes],
        estimate: None,
        weight: None,
        run: take_claims,
    },
    Pass { estimate: None, ..DIRECTORIES },
    Pass {
        name: "bitmaps",
        reads: "all of a share of the groups that sums do not prove",
        keeps: Evidence::Space,
        needs: &[Evidence::Inodes, Evidence::Sharers, Evidence::Entries],
        estimate: None,
        weight: None,
        run: refine_share,
    },
];

/// The result of a shard, and the places that it read.
pub(super) struct Refinement {
    found: Found,
    places: Vec<BlockRun>,
}

/// Runs one shard of the next round of refinement of the file system on `device`. Nothing is written.
/// `options.checkpoints.parts` has the parts of all earlier rounds, each of them complete; the number of shards may differ from
/// that of other rounds.
///
/// # Errors
/// As [`check`](super::pipeline::check); [`PartRefusal::NothingLeft`] if both rounds were run.
pub fn refine_shard(
    device: &dyn ReadBlocks,
    options: &CheckOptions<'_>,
    share: Share,
) -> Result<Part, CheckError> {
    let checkpoints = Checkpoints { keeper: None, ..options.checkpoints };
    let options = CheckOptions { checkpoints, ..*options };
    let start = |held_bytes| Start::Refine(held_bytes, share);
    let part = on_recovered(device, &options, start, |made| {
        let Made { volume, scan, header, .. } = made;
        let Refinement { found, places } = scan.shards.refinement?;
        Some(Part::new(header?, share, &volume, &places, found))
    })?;
    // Only parts have a header that is not of one machine alone.
    part.ok_or(CheckError::Stopped)
}

fn begin(
    volume: &mut Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    if scan.shards.closer.judged.is_some() {
        return Err(PartRefusal::NothingLeft.into());
    }
    // The merge reports faults of the layout.
    volume.doubts.bad_table_blocks = bad_blocks::check(volume, &mut Findings::default());
    begin_sums(volume, setting);
    Ok(())
}

fn take_claims(
    volume: &mut Volume<'_>,
    _: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    registry::take_claims(volume, scan);
    Ok(())
}

fn refine_share(
    volume: &mut Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    let mut sums = take(&mut scan.blocks.sums);
    let dirs_of_groups = sums.take_dirs(&volume.geometry);
    if let Some(merged) = &mut scan.shards.merged {
        floe_exec::Accumulator::merge(&mut sums, take(&mut merged.bitmaps.sums));
    }
    let suspects = Suspects::of(&sums, volume);
    let closer = take(&mut scan.shards.closer);
    closer.must_be_of(suspects.digest())?;
    // Evidence of all these groups is kept at once.
    setting.budget.groups_at_once(volume, &suspects.clusters, &suspects.inodes)?;
    let (share, pool) = (setting.share(), setting.pool);
    let parts = refine::parts_near(volume, &suspects, &scan.blocks.claims);
    let places = share.of(&parts).iter().map(|part| blocks_of(volume, *part)).collect();
    let found = if closer.learned.is_none() {
        let again = refine::read_inodes(volume, &suspects, share.of(&parts), pool);
        let InodeEvidence { facts, mut claims, .. } = again;
        claims.take_sums();
        let learned = InodeEvidence { facts, claims, ..InodeEvidence::default() };
        Found::Inodes(suspects.digest(), Box::new(learned))
    } else {
        let known = Known {
            inodes: &scan.inodes,
            index: &scan.dirs.index,
            dirs_of_groups: &dirs_of_groups,
        };
        let (facts, claims, dirs) = (&mut scan.facts, &mut scan.blocks.claims, &scan.dirs.entries);
        let by_now = ByNow { facts, claims, dirs };
        let mut judged =
            refine::judge_share(volume, &suspects, known, by_now, closer.learned, share, pool);
        for names in [&mut judged.names_before, &mut judged.names_after] {
            // The first round has these.
            (names.sums, names.met) = (GroupSums::default(), Ledger::default());
        }
        judged.names_before.links = judged.names_before.links.emptied();
        Found::Names(suspects.digest(), Box::new(judged))
    };
    scan.shards.refinement = Some(Refinement { found, places });
    Ok(())
}
