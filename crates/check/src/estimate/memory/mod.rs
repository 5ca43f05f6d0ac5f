//! Estimates the memory of a check from the superblock and the descriptors, before anything else is
//! read, and chooses structures that fit into a budget. `docs/memory.md` explains the formula and
//! the command that fits its constants.
//!
//! The formula is an upper bound if the descriptors are true. They do not tell the number of
//! fragments of directories, of attribute blocks, or of findings; the check counts these while it
//! runs, and stops before it would exceed the budget.

use floe_blockdev::ReadBlocks;
use floe_format::Geometry;
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, Superblock};
use floe_format::geometry::Strictness;

use crate::error::CheckError;
use crate::evidence::accounting::Accounting;
use crate::evidence::choice::{LinkChoice, LinkStructure};

mod budget;
mod load;
pub mod mapped;

pub use budget::Budget;
pub use load::{Bytes, Load, Way};

/// Choices of a caller that the memory of a check depends on.
#[derive(Clone, Copy, Debug)]
pub struct Ways {
    /// Most workers.
    pub threads: usize,
    /// How cross-checks are proved.
    pub accounting: Accounting,
    /// The structure that counts links.
    pub links: LinkChoice,
    /// Most bytes of memory; `None`: no limit.
    pub memory_bytes: Option<u64>,
}

/// How a check is made, and what that takes: decided before the first inode is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The way taken.
    pub way: Way,
    /// The estimate by the formula.
    pub estimate: Bytes,
    /// The least with which all evidence can be kept.
    pub exact_bytes: u64,
    /// The budget.
    pub budget_bytes: Option<u64>,
}

impl Plan {
    /// The fastest way that fits the budget.
    ///
    /// # Errors
    /// [`CheckError::OverBudget`] if not even the leanest one does.
    pub fn new(load: &Load, geometry: &Geometry, options: Ways) -> Result<Self, CheckError> {
        Self::first_that_fits(ways(load, geometry, options), load, options)
    }

    /// The way of an examination for a repair, unless the options name one: all evidence, be it with one
    /// thread, as long as the budget has room for that; else sums, by which some repairs can be made and a
    /// sound file system is known to be sound.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub(crate) fn for_repair(
        load: &Load,
        geometry: &Geometry,
        options: Ways,
    ) -> Result<Self, CheckError> {
        let by = |accounting| ways(load, geometry, Ways { accounting, ..options });
        let mut ways = match options.accounting {
            Accounting::Auto => by(Accounting::Exact),
            named => by(named),
        };
        let by_sums = Accounting::Fingerprint.sums_up(geometry);
        if options.accounting == Accounting::Auto && options.memory_bytes.is_some() && by_sums {
            ways.extend(by(Accounting::Fingerprint));
        }
        Self::first_that_fits(ways, load, options)
    }

    fn first_that_fits(ways: Vec<Way>, load: &Load, options: Ways) -> Result<Self, CheckError> {
        let exact = LinkStructure::ALL.map(|links| Way { threads: 1, sums: false, links });
        let plan = |way: Way| Self {
            way,
            estimate: load.bytes(way),
            exact_bytes: exact.map(|way| load.bytes(way).total()).into_iter().min().unwrap_or(0),
            budget_bytes: options.memory_bytes,
        };
        let Some(budget_bytes) = options.memory_bytes else {
            return Ok(plan(ways.first().copied().unwrap_or(Way {
                threads: options.threads,
                sums: false,
                links: LinkStructure::default(),
            })));
        };
        let plans: Vec<Self> = ways.into_iter().map(plan).collect();
        if let Some(fits) = plans.iter().find(|plan| plan.estimate.total() <= budget_bytes) {
            return Ok(*fits);
        }
        let least = plans.iter().map(|plan| plan.estimate.total()).min().unwrap_or(0);
        Err(CheckError::OverBudget { phase: "start", need_bytes: least, budget_bytes })
    }

    /// Bytes of the budget that the estimate leaves; all there are without a budget.
    pub(crate) fn left_bytes(&self) -> u64 {
        self.budget_bytes.map_or(u64::MAX, |budget| budget.saturating_sub(self.estimate.total()))
    }
}

/// Looks whether the descriptors alone would fit into a budget, before they are read: a stranger's
/// image may claim any number of groups. `edits`: the examination is one for a repair.
///
/// # Errors
/// [`CheckError::OverBudget`] if they do not. A superblock that cannot be used is not judged here.
pub fn must_hold_descriptors(
    device: &dyn ReadBlocks,
    options: Ways,
    edits: bool,
) -> Result<(), CheckError> {
    let Some(budget_bytes) = options.memory_bytes else { return Ok(()) };
    let mut bytes = [0; 1024];
    if device.read_at(OFFSET_BYTES, &mut bytes).is_err() {
        return Ok(());
    }
    let superblock = Superblock::decode(&bytes);
    let Ok(geometry) = Geometry::new(&superblock, Strictness::Relaxed) else { return Ok(()) };
    let log_groups_per_flex = superblock.log_groups_per_flex;
    let bare = Load::new(&geometry, log_groups_per_flex);
    let way = Way { threads: 1, sums: false, links: LinkStructure::default() };
    let Bytes { program, layout, .. } = bare.bytes(way);
    if superblock.magic != MAGIC || program + layout <= budget_bytes {
        return Ok(());
    }
    let load = Load { edits, ..Load::stream(device, &geometry, log_groups_per_flex) };
    let plan = if edits { Plan::for_repair } else { Plan::new };
    plan(&load, &geometry, options).map(|_| ())
}

/// The ways that the options leave open, the one that is wanted first: fewer threads and leaner
/// structures follow.
fn ways(load: &Load, geometry: &Geometry, options: Ways) -> Vec<Way> {
    let usual = options.accounting.sums_up(geometry);
    // Sums are leaner as a rule; not where hardly anything is in use.
    let can_change =
        options.accounting == Accounting::Auto && Accounting::Fingerprint.sums_up(geometry);
    let mut accounting = vec![usual];
    accounting.extend(can_change.then_some(!usual));
    let mut ways = Vec::new();
    let mut threads = options.threads.max(1);
    loop {
        for &sums in &accounting {
            let structures = match options.links {
                LinkChoice::Always(links) => vec![links],
                LinkChoice::Adaptive => vec![load.inodes.leaner()],
                LinkChoice::Auto => {
                    let mut all = LinkStructure::ALL;
                    // The usual one is fast; the leanest of the others comes after it.
                    all[1..].sort_by_key(|links| load.links_bytes(*links, threads as u64));
                    all.to_vec()
                }
            };
            ways.extend(structures.into_iter().map(|links| Way { threads, sums, links }));
        }
        if threads == 1 {
            return ways;
        }
        threads /= 2;
    }
}
