//! Finds the smallest file system that holds a tree.

use floe_format::features::Incompat;

use crate::mkfs::params::{InodeCount, Params, PlanError};
use crate::mkfs::plan::Plan;
use crate::mkfs::system;
use crate::mkfs::tree::Tree;

use super::{TreePlan, attributes};

/// Maximum number of corrections of a computed size: fragmented files may need further mapping
/// blocks.
const MOST_CORRECTIONS: usize = 64;

impl<'t> TreePlan<'t> {
    /// Plans a file system with the fewest blocks for a tree, plus `spare_percent` percent;
    /// `params.blocks` is ignored. It has as many inodes as the tree needs, plus the same
    /// percentage, unless the parameters set their number.
    ///
    /// # Errors
    /// Those of [`TreePlan::new`], if no size holds the tree.
    pub fn fitted(params: &Params, tree: &'t Tree, spare_percent: u32) -> Result<Self, PlanError> {
        let spare = |count: u64| count + (count * u64::from(spare_percent)).div_ceil(100);
        let mut params = params.clone();
        let counted = matches!(params.inodes, InodeCount::Ratio(_));
        if counted {
            // Reserved inodes, lost+found, and inodes that features need.
            let values = value_inodes(&params, tree)?;
            let wanted = spare(tree.len() as u64 + values) + 16 + kept_inodes(&params, tree);
            let count = u32::try_from(wanted);
            let count = count.map_err(|_| PlanError::TooManyInodes { inodes: wanted })?;
            params.inodes = InodeCount::Count(count);
        }
        // Plan with ample space, to measure the tree itself.
        let (data_blocks, nodes) = (tree.data_blocks(params.block_size), tree.len() as u64);
        params.blocks = (data_blocks + nodes) * 2 + 65_536;
        params.blocks += nodes * u64::from(params.inode_size) * 2 / u64::from(params.block_size);
        let roomy = Self::with_inodes(&mut params, tree, counted)?;
        // Metadata in regions may not find room in smaller ones.
        let used = roomy.plan.space.used() + roomy.plan.lots.used();
        // In rext3 data cannot use what metadata leave of regions, nor metadata what is elsewhere.
        let regions = &roomy.plan.regions;
        let (metadata, spare_region) = (regions.used(), regions.blocks() - regions.used());
        let mut demand = used + spare_region - by_size(&roomy.plan);
        drop(roomy);
        for _ in 0..MOST_CORRECTIONS {
            params.blocks = spare(least(&params, demand, metadata)?);
            // The groups may be of another size, and lack others.
            match Self::with_inodes(&mut params, tree, counted) {
                // Maps of fragmented files need more blocks than in the ample plan.
                Err(PlanError::Full { wanted } | PlanError::RegionsFull { wanted }) => {
                    demand += wanted.clamp(1, 4096);
                }
                done => return done,
            }
        }
        Self::new(&params, tree)
    }

    /// Plans with more inodes than the parameters say, if those were `counted` here and are too few: the inodes of a group are a
    /// multiple of 8, rounded down as mke2fs does.
    fn with_inodes(params: &mut Params, tree: &'t Tree, counted: bool) -> Result<Self, PlanError> {
        loop {
            let planned = Self::new(params, tree);
            let (Err(PlanError::NoInodes { have, wanted }), InodeCount::Count(count), true) =
                (&planned, params.inodes, counted)
            else {
                return planned;
            };
            // At least a thousandth at a time: there may be many groups, and each is rounded.
            let missing = wanted.saturating_sub(*have).max(u64::from(count) / 1024).max(1);
            let more = u32::try_from(u64::from(count) + missing);
            let more = more.map_err(|_| PlanError::TooManyInodes { inodes: *wanted })?;
            params.inodes = InodeCount::Count(more);
        }
    }
}

/// Inodes for values of attributes that lie in inodes of their own.
fn value_inodes(params: &Params, tree: &Tree) -> Result<u64, PlanError> {
    if !params.incompat(Incompat::EA_INODE) {
        return Ok(0);
    }
    // Whatever its size, it stores attributes alike.
    let blocks = params.blocks.max(65_536);
    let plan = Plan::tables(&Params { blocks, ..params.clone() })?;
    Ok(attributes::forms(&plan, tree)?.1.len() as u64)
}

/// Inodes for the own files of a native file system that holds a tree twice.
fn kept_inodes(params: &Params, tree: &Tree) -> u64 {
    let Some(native) = params.native else { return 0 };
    let group_blocks = u64::from(params.blocks_per_group.unwrap_or(params.block_size * 8));
    let region = native.region_blocks(params.flex_groups, 32768);
    let blocks = tree.data_blocks(params.block_size) * 2 + u64::from(region);
    4 + blocks / (group_blocks * u64::from(params.flex_groups.max(1)))
}

/// Clusters of structures whose size depends on that of the file system: tables and backups, the
/// journal, the orphan file.
fn by_size(plan: &Plan) -> u64 {
    let ratio = u64::from(plan.geometry.cluster_blocks);
    let journal = system::journal_blocks(plan) + system::orphan_blocks(plan);
    plan.tables_clusters + journal.div_ceil(ratio)
}

/// The fewest blocks that hold `demand` clusters besides the structures that grow with the size, and whose regions hold so many
/// blocks of `metadata` (rext3).
fn least(params: &Params, demand: u64, metadata: u64) -> Result<u64, PlanError> {
    let mut params = params.clone();
    params.blocks = demand;
    if let InodeCount::Count(count) = params.inodes {
        let tables = u64::from(count) * u64::from(params.inode_size);
        params.blocks = demand + tables / u64::from(params.block_size);
    }
    params.blocks = params.blocks.max(64);
    // Tables, backups and a journal take a fraction of the size.
    let most = params.blocks.saturating_mul(8).saturating_add(1 << 22);
    loop {
        match Plan::tables(&params) {
            Ok(plan) => {
                let have = plan.geometry.clusters_count();
                let mut missing = (demand + by_size(&plan)).saturating_sub(have);
                if metadata > plan.regions.blocks() {
                    // Regions grow as the file system does.
                    let (lacking, regions) =
                        (metadata - plan.regions.blocks(), plan.regions.blocks());
                    missing = missing.max((lacking * have).div_ceil(regions.max(1)));
                }
                if missing == 0 {
                    return Ok(plan.geometry.blocks_count);
                }
                // Converges from below: each step adds only what is missing.
                params.blocks += missing * u64::from(plan.geometry.cluster_blocks);
            }
            Err(
                PlanError::TooSmall { .. }
                | PlanError::Full { .. }
                | PlanError::TooManyInodes { .. },
            ) if params.blocks < most => params.blocks += (params.blocks / 256).max(8),
            Err(error) => return Err(error),
        }
    }
}
