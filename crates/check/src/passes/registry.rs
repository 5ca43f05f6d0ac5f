//! The registry of passes: what each reads, keeps and needs, and what it is expected to take.
//!
//! The pipeline runs [`PASSES`] in a loop. A new pass is a function here and a row; the row is found wanting by a
//! test if something that it needs is not kept by a row before it.

use std::mem::take;
use std::time::Duration;

use floe_exec::{Accumulator, Work as Expected};

use super::pipeline::{Setting, check_layout, scan_inodes};
use super::refine::{self, Known, Refined};
use super::results::Scan;
use super::{directories, pipeline, shard};
use crate::checks::directory::{connectivity, link_counts, paths};
use crate::checks::inode::inodes;
use crate::checks::space::{bitmaps, shared_blocks};
use crate::checks::system_files::{orphan_file, quota};
use crate::error::CheckError;
use crate::estimate::work::{DIRECTORY_BLOCK_TIME, INODE_TIME, Work};
use crate::evidence::dir_index::DirIndex;
use crate::evidence::inode_facts::InodeFacts;
use crate::problem::{Findings, Problem, Sink, Weight};
use crate::report::{in_order, inodes_of};
use crate::volume::Volume;

/// Evidence that a pass leaves complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The superblock, the descriptors and their copies were judged; bad blocks are known.
    Layout,
    /// Metadata of a native file system are in memory, or are read lot by lot from now on.
    Lots,
    /// Types, links, claims, directories and attributes of all inodes.
    Inodes,
    /// Inodes that share clusters.
    Sharers,
    /// Entries of directories, and the links that they are.
    Entries,
    /// Bitmaps were compared, and groups that sums do not prove were looked at object by object.
    Space,
    /// Directories and their parents.
    Tree,
    /// Link counts, orphans and quotas: all findings are there.
    Links,
    /// Paths of inodes that findings name.
    Paths,
}

/// A pass.
#[derive(Clone, Copy)]
pub struct Pass {
    /// The name of its phase in reports and in the progress.
    pub name: &'static str,
    /// Structures that it reads from the device.
    pub reads: &'static str,
    /// Evidence that it completes.
    pub keeps: Evidence,
    /// Evidence that must be complete before it starts.
    pub needs: &'static [Evidence],
    /// The work that the descriptors tell of, with so many threads; `None`: too little to count.
    pub estimate: Option<fn(&Work, usize) -> Expected>,
    /// Time of one element in a pipeline of passes that overlap, until the run has measured its own.
    pub weight: Option<Duration>,
    pub(super) run: Run,
}

/// The function that runs a pass.
type Run = fn(&mut Volume<'_>, &mut Setting<'_, '_, '_>, &mut Scan) -> Result<(), CheckError>;

/// The lots of a native file system; it runs for no other.
pub const LOTS: Pass = Pass {
    name: "lots",
    reads: "the used prefixes of descriptors, bitmaps, inode tables and region of each lot",
    keeps: Evidence::Lots,
    needs: &[Evidence::Layout],
    estimate: None,
    weight: None,
    run: run_lots,
};

/// Inodes; plain directory blocks along with them, where passes overlap.
pub const INODES: Pass = Pass {
    name: "inodes",
    reads: "inode tables, mapping blocks, attribute blocks",
    keeps: Evidence::Inodes,
    needs: &[Evidence::Layout],
    estimate: Some(Work::of_inodes),
    weight: Some(INODE_TIME),
    run: run_inodes,
};

/// Directory blocks.
pub const DIRECTORIES: Pass = Pass {
    name: "directories",
    reads: "directory blocks",
    keeps: Evidence::Entries,
    needs: &[Evidence::Inodes],
    estimate: Some(Work::of_directories),
    weight: Some(DIRECTORY_BLOCK_TIME),
    run: run_directories,
};

/// All passes, in order.
pub const PASSES: [Pass; 9] = [
    Pass {
        name: "superblock",
        reads: "copies of the superblock and the descriptors, the inodes of bad blocks and of growing",
        keeps: Evidence::Layout,
        needs: &[],
        estimate: Some(Work::of_superblock),
        weight: None,
        run: run_layout,
    },
    LOTS,
    INODES,
    Pass {
        name: "shared blocks",
        reads: "inode tables near clusters that are claimed twice",
        keeps: Evidence::Sharers,
        needs: &[Evidence::Inodes],
        estimate: Some(Work::of_shared_blocks),
        weight: None,
        run: run_shared_blocks,
    },
    DIRECTORIES,
    Pass {
        name: "bitmaps",
        reads: "bitmaps, and all of the groups that sums do not prove",
        keeps: Evidence::Space,
        needs: &[Evidence::Inodes, Evidence::Sharers, Evidence::Entries],
        estimate: Some(Work::of_bitmaps),
        weight: None,
        run: run_bitmaps,
    },
    Pass {
        name: "connectivity",
        reads: "directory blocks again where a directory has several names",
        keeps: Evidence::Tree,
        needs: &[Evidence::Inodes, Evidence::Entries, Evidence::Space],
        estimate: Some(Work::of_connectivity),
        weight: None,
        run: run_connectivity,
    },
    Pass {
        name: "link counts",
        reads: "the orphan file, quota files, inodes without a name",
        keeps: Evidence::Links,
        needs: &[Evidence::Inodes, Evidence::Entries, Evidence::Tree],
        estimate: Some(Work::of_link_counts),
        weight: None,
        run: run_link_counts,
    },
    Pass {
        name: "paths",
        reads: "directory blocks that name inodes of findings",
        keeps: Evidence::Paths,
        needs: &[Evidence::Entries, Evidence::Tree, Evidence::Links],
        estimate: None,
        weight: None,
        run: run_paths,
    },
];

fn run_layout(
    volume: &mut Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    check_layout(volume, &mut scan.found);
    pipeline::begin_sums(volume, setting);
    Ok(())
}

fn run_lots(
    _: &mut Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    _: &mut Scan,
) -> Result<(), CheckError> {
    if let Some(sweep) = setting.sweep {
        sweep.begin();
    }
    Ok(())
}

fn run_inodes(
    volume: &mut Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    setting.clock.resume(volume, setting.session.as_deref());
    scan_inodes(volume, setting, scan)?;
    let all = &mut scan.inodes;
    scan.found.merge(take(&mut all.found));
    setting.budget.after_inodes(all)?;
    inodes::check_totals(volume, &all.totals, &mut scan.found);
    scan.facts = InodeFacts::new(&volume.geometry, take(&mut all.facts));
    all.dirs.sort(&setting.pool.watched(None));
    all.policies.sort();
    Ok(())
}

fn run_shared_blocks(
    volume: &mut Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    // Now that their blocks are known.
    setting.clock.plan_directories(volume, &scan.inodes.dirs, setting.session.as_deref());
    take_claims(volume, scan);
    let uses = &scan.inodes.attributes.block_uses;
    scan.blocks.shared =
        shared_blocks::check(volume, &scan.facts, &scan.blocks.claims, uses, setting.pool);
    Ok(())
}

/// Takes claims and sums from the evidence of inodes, and adds the claims of static metadata.
pub(super) fn take_claims(volume: &Volume<'_>, scan: &mut Scan) {
    let all = &mut scan.inodes;
    scan.blocks.claims = take(&mut all.claims);
    scan.blocks.sums = take(&mut all.sums);
    scan.blocks.sums.clusters.merge(scan.blocks.claims.take_sums());
    scan.blocks.claims.claim_metadata(&volume.metadata, volume.sums());
}

fn run_directories(
    volume: &mut Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    scan.dirs.index = DirIndex::made_by(setting.pool, &scan.inodes.dirs.infos);
    let early = take(&mut scan.dirs.early);
    let session = setting.session.as_deref_mut();
    scan.dirs.entries = match scan.shards.merged.as_mut().filter(|_| volume.mode.tables.is_some()) {
        Some(merged) => {
            let (found, left) = (take(&mut merged.directories), take(&mut merged.left_inline));
            shard::complete_directories(&scan.cx(volume), found, &left, setting.pool)
        }
        None => directories::run(&scan.cx(volume), early, setting.pool, session)?,
    };
    scan.blocks.sums.links.merge(take(&mut scan.dirs.entries.sums));
    scan.dirs.other_names = volume.backpointers.take().and_then(|all| all.wrong());
    Ok(())
}

fn run_bitmaps(
    volume: &mut Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    let mut sums = take(&mut scan.blocks.sums);
    let dirs_of_groups = sums.take_dirs(&volume.geometry);
    let (facts, claims) = (&scan.facts, &scan.blocks.claims);
    let wanted = |group| scan.shards.merged.is_none() || !shard::has_bitmaps_of(volume, group);
    let mut bitmaps =
        bitmaps::check_where(volume, facts, claims, &dirs_of_groups, setting.pool, wanted);
    if let Some(merged) = &mut scan.shards.merged {
        bitmaps.merge(take(&mut merged.bitmaps));
    }
    let known =
        Known { inodes: &scan.inodes, index: &scan.dirs.index, dirs_of_groups: &dirs_of_groups };
    let refined = Refined {
        facts: &mut scan.facts,
        claims: &mut scan.blocks.claims,
        dirs: &mut scan.dirs.entries,
        bitmaps: &mut bitmaps,
        shared: &mut scan.blocks.shared,
    };
    let pool = setting.pool.watched(None);
    let closer = take(&mut scan.shards.closer);
    scan.rescanned_groups =
        refine::prove(volume, sums, known, refined, closer, setting.budget, &pool)?;
    scan.found.merge(take(&mut scan.blocks.shared));
    scan.blocks.clusters_used = bitmaps.settle(volume, &mut scan.found);
    Ok(())
}

fn run_connectivity(
    volume: &mut Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    let mut entries = take(&mut scan.dirs.entries);
    let cx = scan.cx(volume);
    directories::finish(&cx, &mut entries, setting.pool);
    let mut found = take(&mut entries.found);
    let (tree, of_tree) = connectivity::check(&cx, &mut entries, setting.pool);
    found.merge(of_tree);
    (scan.dirs.tree, scan.dirs.entries) = (tree, entries);
    scan.found.merge(found);
    Ok(())
}

fn run_link_counts(
    volume: &mut Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    let mut found =
        link_counts::check(&scan.cx(volume), &scan.dirs.entries, &scan.dirs.tree, setting.pool);
    orphan_file::check(volume, &mut found);
    quota::check(volume, &scan.inodes.quota, &mut found);
    scan.found.merge(found);
    // Names that damage took away, or gave, say nothing of backpointers.
    let is_damage = |problem: &Problem| problem.row().weight != Weight::Remark;
    if let Some((inode, inodes)) = scan.dirs.other_names
        && !scan.found.0.iter().any(is_damage)
    {
        scan.found.push(Problem::BackpointersWrong { inode, inodes });
    }
    Ok(())
}

fn run_paths(
    volume: &mut Volume<'_>,
    setting: &mut Setting<'_, '_, '_>,
    scan: &mut Scan,
) -> Result<(), CheckError> {
    let found = in_order(take(&mut scan.found));
    let (met, wanted) = (&scan.dirs.entries.met, inodes_of(&found));
    scan.dirs.paths = paths::find(&scan.cx(volume), &scan.dirs.tree, met, &wanted, setting.pool);
    scan.found = Findings(found);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::work::PHASES;

    /// Passes that come before one whose evidence they need.
    fn too_early<'p>(passes: impl IntoIterator<Item = &'p Pass>) -> Vec<&'static str> {
        let (mut kept, mut early) = (Vec::new(), Vec::new());
        for pass in passes {
            if !pass.needs.iter().all(|need| kept.contains(need)) {
                early.push(pass.name);
            }
            kept.push(pass.keeps);
        }
        early
    }

    #[test]
    fn each_pass_has_what_it_needs() {
        assert!(too_early(&PASSES).is_empty());
        assert_eq!(too_early([&PASSES[0], &DIRECTORIES, &INODES]), ["directories"]);
    }

    #[test]
    fn passes_are_phases_in_the_same_order() {
        let names: Vec<&str> = PASSES.iter().map(|pass| pass.name).collect();
        let phases = PHASES.iter().filter(|phase| names.contains(phase));
        assert_eq!(phases.copied().collect::<Vec<_>>(), names);
    }
}
