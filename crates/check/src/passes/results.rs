//! Results of passes, each for those after it.

use std::collections::BTreeMap;

use floe_format::InodeNr;

use super::clock::Clock;
use super::pipeline::Examination;
use super::refine_shard;
use crate::checkpoint::{Closer, PartEvidence};
use crate::checks::context::directory::{DirCx, DirEvidence};
use crate::checks::context::inode::InodeEvidence;
use crate::checks::directory::connectivity::DirTree;
use crate::estimate::memory::Plan;
use crate::evidence::claims::Claims;
use crate::evidence::dir_index::DirIndex;
use crate::evidence::fingerprint::PartialSums;
use crate::evidence::inode_facts::InodeFacts;
use crate::passes::overlap::EarlyDirs;
use crate::passes::rescan::Kept;
use crate::problem::Findings;
use crate::report::Report;
use crate::volume::Volume;
use crate::volume::journal::JournalState;

/// Everything that passes find and keep, each for those after it.
#[derive(Default)]
pub(super) struct Scan {
    pub(super) found: Findings,
    pub(super) inodes: InodeEvidence,
    pub(super) facts: InodeFacts,
    pub(super) blocks: Blocks,
    pub(super) dirs: Directories,
    pub(super) shards: Shards,
    pub(super) rescanned_groups: Option<u32>,
    pub(super) rescanned_parts: Option<u32>,
    pub(super) kept: Option<Kept>,
}

/// Which blocks are in use, and by whom.
#[derive(Default)]
pub(super) struct Blocks {
    pub(super) claims: Claims,
    pub(super) sums: PartialSums,
    /// Findings about blocks that several inodes claim; a closer look at damaged groups replaces them.
    pub(super) shared: Findings,
    pub(super) clusters_used: u64,
}

/// The evidence from directories.
#[derive(Default)]
pub(super) struct Directories {
    /// Evidence from directory blocks that were judged along with the inodes.
    pub(super) early: EarlyDirs,
    pub(super) index: DirIndex,
    pub(super) entries: DirEvidence,
    pub(super) tree: DirTree,
    /// The first inode whose backpointer is not that of its name, and how many there are.
    pub(super) other_names: Option<(InodeNr, u64)>,
    pub(super) paths: BTreeMap<InodeNr, Vec<u8>>,
}

/// Results of the shards of this check, or of the one that this is.
#[derive(Default)]
pub(super) struct Shards {
    /// The merged evidence of all shards.
    pub(super) merged: Option<PartEvidence>,
    /// The merged evidence of refinements.
    pub(super) closer: Closer,
    /// The result of a shard of a refinement.
    pub(super) refinement: Option<refine_shard::Refinement>,
}

impl Scan {
    /// The input of checks of directories.
    pub(super) fn cx<'a>(&'a self, volume: &'a Volume<'a>) -> DirCx<'a> {
        let InodeEvidence { dirs, policies, attributes, .. } = &self.inodes;
        DirCx::new(volume, dirs, &self.dirs.index, &self.facts, policies, &attributes.ea_references)
    }

    pub(super) fn into_examination<'a>(
        self,
        volume: Volume<'a>,
        journal: JournalState,
        clock: Clock<'_>,
        plan: Plan,
    ) -> Examination<'a> {
        let InodeEvidence { dirs, attributes, quota, totals, .. } = self.inodes;
        let report = Report {
            found: self.found.0,
            superblock: volume.superblock.clone(),
            geometry: volume.geometry.clone(),
            used_backup: volume.doubts.used_backup,
            totals,
            clusters_used: self.blocks.clusters_used,
            journal,
            paths: self.dirs.paths,
            phases: clock.phases,
            pipeline: clock.pipeline,
            rescanned_groups: self.rescanned_groups,
            plan: Some(plan),
        };
        Examination {
            report,
            volume,
            facts: self.facts,
            claims: self.blocks.claims,
            dirs: dirs.unjudged(),
            index: self.dirs.index,
            tree: self.dirs.tree,
            entries: self.dirs.entries,
            attributes,
            quota,
            rescanned_parts: self.rescanned_parts,
            kept: self.kept,
        }
    }
}
