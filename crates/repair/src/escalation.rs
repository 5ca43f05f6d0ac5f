//! Repairs in escalating stages: makes the first stage that repairs everything, provided its cost
//! stays within the allowance. The decision falls on staged repairs, before any byte is written.

use std::collections::BTreeSet;

use floe_blockdev::ReadBlocks;
use floe_check::reader::Reader;
use floe_check::{Problem, Report};
use floe_format::InodeNr;
use floe_format::ext::extent::Extent;
use floe_format::native::identity::Identity;

use crate::deed::Deed;
use crate::edit::{CubeEdit, Edit, InodeEdit, JournalEdit, Loss, OrphanEdit};
use crate::plan::{Plan, plan};
use crate::policy::{Decision, Policy, Preen, Yes};
use crate::safety::is_safe;
use crate::session::{Repair, RepairError};

/// How far a repair may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The repairs that e2fsck makes unattended; any other finding stops the repair.
    Preen,
    /// All safe repairs (`is_safe`); other findings are left.
    Safe,
    /// All possible repairs.
    All,
}

impl Stage {
    /// The name on the command line and in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Preen => "preen",
            Self::Safe => "safe",
            Self::All => "all",
        }
    }
}

/// Maximum cost of a repair. `None`: unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Lost objects, see [`Toll::things`].
    pub things: Option<u64>,
    /// Bytes of lost file data.
    pub bytes: Option<u64>,
}

/// Cost of a staged repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toll {
    /// Files, directories, names and parts of the file system that an unsafe change touched, each
    /// counted once. Objects in lost+found are not lost.
    pub things: u64,
    /// Bytes of deleted or truncated files, as mapped before the repair, up to the end of the file.
    pub bytes: u64,
    /// A loss that cannot be counted: a journal with its transactions, or an inode table.
    pub uncounted: bool,
}

impl Toll {
    /// The cost of a repair of the file system on `device`.
    pub fn of(repair: &Repair<'_>, device: &dyn ReadBlocks) -> Self {
        let risky: Vec<&Deed> = repair
            .deeds
            .iter()
            .filter(|deed| !is_safe(&deed.edit, deed.problem.as_ref()))
            .collect();
        let mut things: BTreeSet<(Option<InodeNr>, Option<&Edit>)> = BTreeSet::new();
        let mut emptied: BTreeSet<InodeNr> = BTreeSet::new();
        let mut toll = Self::default();
        for deed in risky {
            // A file counts as one loss; in a directory, each name counts.
            let name = matches!(deed.edit, Edit::Entry { .. });
            let inode = deed.inode();
            things.insert((inode, (name || inode.is_none()).then_some(&deed.edit)));
            match (&deed.edit, inode) {
                (Edit::Inode { edit: InodeEdit::Size(_), .. }, Some(_)) => {
                    if let Some(
                        Problem::InodeSizeWrong { stored, expected, .. }
                        | Problem::InodeSizeBeyondLinux { stored, expected, .. },
                    ) = deed.problem
                    {
                        toll.bytes = toll.bytes.saturating_add(stored.saturating_sub(expected));
                    }
                }
                (Edit::Cube { edit: CubeEdit::Journal, .. }, _) => toll.uncounted = true,
                (_, Some(inode)) if deed.loss >= Loss::Data => {
                    emptied.insert(inode);
                }
                (
                    Edit::Journal(
                        JournalEdit::Drop
                        | JournalEdit::Reset
                        | JournalEdit::LoseTransactions
                        | JournalEdit::LoseFastCommits,
                    )
                    | Edit::Group { .. },
                    _,
                ) => {
                    toll.uncounted = true;
                }
                _ => {}
            }
        }
        toll.things = (things.len() as u64).max(vanished(repair));
        toll.bytes = toll.bytes.saturating_add(bytes_gone(repair, device, &emptied));
        toll
    }

    /// Whether the cost is within the allowance. An uncounted loss exceeds any number of bytes.
    pub(crate) fn is_within(&self, allowance: &Allowance) -> bool {
        let none = allowance.things == Some(0) || allowance.bytes.is_some();
        allowance.things.is_none_or(|most| self.things <= most)
            && allowance.bytes.is_none_or(|most| self.bytes <= most)
            && !(self.uncounted && none)
    }
}

/// Inodes no longer in use, except those that their owners had deleted and the fence of a native file system, which holds free
/// blocks alone. An independent count that does not trust the list of changes.
fn vanished(repair: &Repair<'_>) -> u64 {
    let fences = |report: &Report| {
        u64::from(Identity::of(&report.superblock).is_some_and(|own| own.fence_inode > 0))
    };
    let fence = fences(&repair.before).saturating_sub(fences(&repair.after));
    let finished = |deed: &&Deed| matches!(deed.edit, Edit::Orphans(OrphanEdit::Finish(_)));
    let finished = repair.deeds.iter().filter(finished).count() as u64;
    let (before, after) = (repair.before.totals.inodes_used, repair.after.totals.inodes_used);
    before.saturating_sub(after).saturating_sub(finished + fence)
}

/// Bytes that files had mapped and lost.
fn bytes_gone(repair: &Repair<'_>, device: &dyn ReadBlocks, inodes: &BTreeSet<InodeNr>) -> u64 {
    let block_size = repair.before.geometry.block_size;
    let open = |device, backup| Reader::open(device, backup, Some(block_size)).ok();
    let before = open(device, repair.before.used_backup);
    let after = open(&repair.staged, None);
    let blocks = |reader: &Option<Reader<'_>>, inode: InodeNr| {
        let reader = reader.as_ref()?;
        let bytes = reader.inode_bytes(inode).ok()?;
        let inode = reader.decode(&bytes).ok()?;
        let end_block = inode.size_bytes().div_ceil(u64::from(block_size));
        (inode.base.links_count > 0).then(|| mapped_blocks(reader.map(&inode).extents, end_block))
    };
    let gone = |&inode: &InodeNr| {
        let after = blocks(&after, inode).unwrap_or(0);
        blocks(&before, inode).unwrap_or(0).saturating_sub(after)
    };
    inodes.iter().map(gone).sum::<u64>().saturating_mul(u64::from(block_size))
}

/// Logical blocks in front of the end of a file that its map has. A damaged extent may claim any length: it counts up to the next one.
fn mapped_blocks(mut extents: Vec<Extent>, end_block: u64) -> u64 {
    extents.sort_by_key(|extent| extent.logical);
    let (mut blocks, mut next) = (0, end_block);
    for Extent { logical, run, .. } in extents.iter().rev() {
        let end = logical.0.saturating_add(run.len_blocks).min(next);
        blocks += end.saturating_sub(logical.0);
        next = next.min(logical.0);
    }
    blocks
}

/// Policy: makes all safe repairs.
#[derive(Clone, Debug, Default)]
struct Safe {
    /// Findings whose repair turned out to need more than planned.
    refused: BTreeSet<Problem>,
}

impl Policy for Safe {
    fn decide(&mut self, problems: &[Problem], _report: &Report) -> Decision {
        let safe = |problem: &Problem| {
            let edits = match plan(problem) {
                Plan::Edits(edits) => edits,
                _ => Vec::new(),
            };
            !self.refused.contains(problem) && edits.iter().all(|edit| is_safe(edit, Some(problem)))
        };
        Decision::Each(problems.iter().map(safe).collect())
    }
}

/// Policy: repairs nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Nothing;

impl Policy for Nothing {
    fn decide(&mut self, problems: &[Problem], _report: &Report) -> Decision {
        Decision::Each(vec![false; problems.len()])
    }
}

/// A stage that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The stage.
    pub stage: Stage,
    /// Whether it repairs everything.
    pub complete: bool,
    /// Whether its cost is within the allowance.
    pub allowed: bool,
    /// Whether it halted at a finding that needs a person.
    pub halted: bool,
    /// Findings that it leaves.
    pub left: u64,
    /// Its cost.
    pub toll: Toll,
}

/// The selected repair, and the attempts that led to it.
pub struct Escalated<'d> {
    /// The repair.
    pub repair: Repair<'d>,
    /// Its stage; `None`: no stage is within the allowance, so only the journal is replayed, as any
    /// mount does; nothing is done if transactions in it are damaged.
    pub stage: Option<Stage>,
    /// Its cost.
    pub toll: Toll,
    /// All stages tried, in order.
    pub attempts: Vec<Attempt>,
}

/// Maximum restarts of the safe stage.
const MOST_RESTARTS: usize = 8;

/// Stages repairs of the file system on `device`, one stage after the other, until one repairs
/// everything within the allowance. If none does, selects the last one that is allowed and repairs
/// anything.
///
/// # Errors
/// Those of `stage`, the function that plans and stages a repair under a policy.
pub fn escalate<'d>(
    stages: &[Stage],
    allowance: &Allowance,
    device: &dyn ReadBlocks,
    mut stage: impl FnMut(&mut dyn Policy) -> Result<Repair<'d>, RepairError>,
) -> Result<Escalated<'d>, RepairError> {
    let (mut attempts, mut best) = (Vec::new(), None);
    for &wanted in stages {
        let repair = match wanted {
            Stage::Preen => stage(&mut Preen)?,
            Stage::All => stage(&mut Yes)?,
            Stage::Safe => match stage_safely(&mut stage)? {
                Some(repair) => repair,
                None => continue,
            },
        };
        let toll = Toll::of(&repair, device);
        let halted = repair.halted.is_some();
        let complete = repair.is_clean() && repair.left.is_empty() && !halted;
        let allowed = !halted && toll.is_within(allowance);
        let left = repair.left.len() as u64;
        attempts.push(Attempt {
            stage: wanted,
            complete,
            allowed,
            halted,
            left,
            toll: toll.clone(),
        });
        if allowed && (complete || !repair.deeds.is_empty()) {
            best = Some((wanted, toll, repair));
            if complete {
                break;
            }
        }
    }
    if let Some((stage, toll, repair)) = best {
        return Ok(Escalated { repair, stage: Some(stage), toll, attempts });
    }
    let repair = stage(&mut Nothing)?;
    Ok(Escalated { repair, stage: None, toll: Toll::default(), attempts })
}

/// The safe stage: if a change turns out not to be safe, starts over with its finding refused.
/// `None` if that does not converge.
fn stage_safely<'d>(
    stage: &mut impl FnMut(&mut dyn Policy) -> Result<Repair<'d>, RepairError>,
) -> Result<Option<Repair<'d>>, RepairError> {
    let mut policy = Safe::default();
    for _ in 0..MOST_RESTARTS {
        let repair = stage(&mut policy)?;
        let risky = |deed: &&Deed| !is_safe(&deed.edit, deed.problem.as_ref());
        let risky: Vec<&Deed> = repair.deeds.iter().filter(risky).collect();
        if risky.is_empty() {
            return Ok(Some(repair));
        }
        let causes = risky.iter().filter_map(|deed| deed.problem.clone());
        let known = policy.refused.len();
        policy.refused.extend(causes);
        if policy.refused.len() == known {
            return Ok(None);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use floe_format::{BlockNr, BlockRun, LogicalBlock};

    use super::*;

    #[test]
    fn a_damaged_length_counts_up_to_the_next_extent_and_the_end_of_the_file() {
        let extent = |logical, len_blocks| Extent {
            logical: LogicalBlock(logical),
            run: BlockRun { start: BlockNr(1000), len_blocks },
            unwritten: false,
        };
        assert_eq!(mapped_blocks(vec![extent(10, 50), extent(0, 4565)], 60), 60);
        assert_eq!(mapped_blocks(vec![extent(0, 4), extent(8, 4)], 60), 8);
        // Behind the end there is no content.
        assert_eq!(mapped_blocks(vec![extent(0, 4), extent(58, 4), extent(90, 9)], 60), 6);
        assert_eq!(mapped_blocks(vec![extent(0, u64::MAX), extent(7, u64::MAX)], 0), 0);
    }
}
