//! The rest of a budget while a check runs.

use std::collections::BTreeSet;

use floe_format::GroupNr;

use super::{Load, Plan};
use crate::checks::context::inode::InodeEvidence;
use crate::error::CheckError;
use crate::evidence::choice::{InodeUse, LinkStructure};
use crate::evidence::dirs::DirRun;
use crate::volume::Volume;

/// The rest of a budget while the check runs, when the numbers missing from descriptors are known.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The contents according to the descriptors.
    pub load: Load,
    /// How the check is made.
    pub plan: Plan,
    /// See [`crate::Tuning::groups_per_sweep`].
    pub groups_per_sweep: Option<u32>,
}

impl Budget {
    /// Counts what the inodes have left, now that all are read: directories follow.
    ///
    /// # Errors
    /// [`CheckError::OverBudget`] if there is more than fits.
    pub fn after_inodes(&self, inodes: &InodeEvidence) -> Result<(), CheckError> {
        let Some(budget_bytes) = self.plan.budget_bytes else { return Ok(()) };
        let mut load = self.load;
        let dirs = &inodes.dirs;
        let blocks = dirs.runs.iter().map(|run| u64::from(run.len_blocks)).sum();
        load.inodes.directories = dirs.infos.len() as u64;
        load.directory_blocks = load.inodes.directories.max(blocks);
        let more_runs = dirs.runs.len().saturating_sub(dirs.infos.len());
        let uses = &inodes.attributes.block_uses;
        load.other_bytes += (more_runs * size_of::<DirRun>() + size_of_val(&uses[..])) as u64
            + size_of_val(&inodes.found.0[..]) as u64;
        self.must_fit("the directories", load.bytes(self.plan.way).total(), budget_bytes)
    }

    /// Whether so many bytes more would fit.
    pub(crate) fn has_room_for(&self, bytes: u64) -> bool {
        bytes <= self.plan.left_bytes()
    }

    /// The number of groups whose claims are kept at the same time while `suspects` are examined
    /// object by object.
    ///
    /// # Errors
    /// [`CheckError::OverBudget`] if not even the other evidence of all of them fits.
    pub(crate) fn groups_at_once(
        &self,
        volume: &Volume<'_>,
        clusters: &BTreeSet<GroupNr>,
        inodes: &BTreeSet<GroupNr>,
    ) -> Result<u32, CheckError> {
        let most = self.groups_per_sweep.unwrap_or(u32::MAX);
        let Some(budget_bytes) = self.plan.budget_bytes else { return Ok(most) };
        let way = self.plan.way;
        let mut load = Load::new(&volume.geometry, 0);
        for &group in inodes {
            load.add(&volume.geometry, &volume.group(group), volume.used_inodes_bound(group));
        }
        let InodeUse { used, directories, .. } = load.inodes;
        let links = match way.links {
            // It reaches from the first inode to the last one that is looked at.
            LinkStructure::Array => &self.load,
            LinkStructure::Bits | LinkStructure::TwinTree => &load,
        };
        let objects = load.facts_bytes(load.slots, used, directories)
            + links.links_bytes(way.links, way.threads as u64);
        let taken = self.plan.estimate.total() + objects;
        let phase = "a closer look at damaged groups";
        if volume.mode.keeps_whole_groups {
            // Edits build on all of them: none is forgotten for the next sweep.
            let count = clusters.len() as u64;
            let need_bytes = taken + self.load.of_groups(count, way).claims;
            self.must_fit(phase, need_bytes.min(self.plan.exact_bytes), budget_bytes)?;
            return Ok(most);
        }
        // The claims of one group at least.
        let claims = self.load.of_groups(1, way).claims.max(1);
        self.must_fit(phase, taken + claims, budget_bytes)?;
        let groups = budget_bytes.saturating_sub(taken) / claims;
        Ok(most.min(u32::try_from(groups).unwrap_or(u32::MAX)))
    }

    fn must_fit(
        &self,
        phase: &'static str,
        need_bytes: u64,
        budget_bytes: u64,
    ) -> Result<(), CheckError> {
        if need_bytes <= budget_bytes {
            return Ok(());
        }
        Err(CheckError::OverBudget { phase, need_bytes, budget_bytes })
    }
}
