//! Repairs for programs: stages that go further and further, of which the first that mends everything
//! is made, if it costs no more than is allowed. All is decided on what is staged, before a byte is
//! written.

use std::collections::BTreeSet;

use floe_blockdev::ReadBlocks;
use floe_check::reader::Reader;
use floe_check::{Problem, Report};
use floe_format::InodeNr;

use crate::deed::Deed;
use crate::edit::{Edit, InodeEdit, JournalEdit, Loss, OrphanEdit};
use crate::plan::{Plan, plan};
use crate::policy::{Decision, Policy, Preen, Yes};
use crate::safety::is_safe;
use crate::session::{Repair, RepairError};

/// How far a repair may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// What e2fsck does unattended; anything else, and nothing is done.
    Preen,
    /// All that is safe ([`is_safe`]), and the rest is left.
    Safe,
    /// Everything that can be repaired.
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

/// What a repair may cost. `None`: any amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Allowance {
    /// Things that are lost, see [`Toll::things`].
    pub things: Option<u64>,
    /// Bytes of files.
    pub bytes: Option<u64>,
}

/// What a staged repair costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Toll {
    /// Files, directories, names and parts of the file system that a change touched that is not safe:
    /// each once. What is in lost+found is not lost.
    pub things: u64,
    /// Bytes of files that were deleted or cut, as mapped before.
    pub bytes: u64,
    /// Something is lost that nobody can count: a journal with what it holds, a table of inodes.
    pub uncounted: bool,
}

impl Toll {
    /// The toll of a repair of what is on `device`.
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
            // Of a file, one loss; of a directory, each name.
            let name = matches!(deed.edit, Edit::Entry { .. });
            let inode = deed.inode();
            things.insert((inode, (name || inode.is_none()).then_some(&deed.edit)));
            match (&deed.edit, inode) {
                (Edit::Inode { edit: InodeEdit::Size(_), .. }, Some(_)) => {
                    if let Some(Problem::InodeSizeWrong { stored, expected, .. }) = deed.problem {
                        toll.bytes = toll.bytes.saturating_add(stored.saturating_sub(expected));
                    }
                }
                (_, Some(inode)) if deed.loss >= Loss::Data => {
                    emptied.insert(inode);
                }
                (Edit::Journal(JournalEdit::Drop | JournalEdit::Reset) | Edit::Group { .. }, _) => {
                    toll.uncounted = true;
                }
                _ => {}
            }
        }
        toll.things = (things.len() as u64).max(vanished(repair));
        toll.bytes = toll.bytes.saturating_add(bytes_gone(repair, device, &emptied));
        toll
    }

    /// Whether it is no more than is allowed. What cannot be counted is more than any number of bytes.
    pub fn is_within(&self, allowance: &Allowance) -> bool {
        let none = allowance.things == Some(0) || allowance.bytes.is_some();
        allowance.things.is_none_or(|most| self.things <= most)
            && allowance.bytes.is_none_or(|most| self.bytes <= most)
            && !(self.uncounted && none)
    }
}

/// Inodes that are used no more, besides those that their owners had deleted: a second count, which
/// does not go by what the deeds say of themselves.
fn vanished(repair: &Repair<'_>) -> u64 {
    let finished = |deed: &&Deed| matches!(deed.edit, Edit::Orphans(OrphanEdit::Finish(_)));
    let finished = repair.deeds.iter().filter(finished).count() as u64;
    let (before, after) = (repair.before.totals.inodes_used, repair.after.totals.inodes_used);
    before.saturating_sub(after).saturating_sub(finished)
}

/// Bytes that files had mapped and have no more.
fn bytes_gone(repair: &Repair<'_>, device: &dyn ReadBlocks, inodes: &BTreeSet<InodeNr>) -> u64 {
    let block_size = repair.before.geometry.block_size;
    let open = |device, backup| Reader::open(device, backup, Some(block_size)).ok();
    let before = open(device, repair.before.used_backup);
    let after = open(&repair.staged, None);
    let blocks = |reader: &Option<Reader<'_>>, inode: InodeNr| {
        let reader = reader.as_ref()?;
        let bytes = reader.inode_bytes(inode).ok()?;
        let inode = reader.decode(&bytes).ok()?;
        (inode.base.links_count > 0).then(|| reader.map(&inode).blocks())
    };
    let gone = |&inode: &InodeNr| {
        let after = blocks(&after, inode).unwrap_or(0);
        blocks(&before, inode).unwrap_or(0).saturating_sub(after)
    };
    inodes.iter().map(gone).sum::<u64>().saturating_mul(u64::from(block_size))
}

/// Repairs all that is safe.
#[derive(Clone, Debug, Default)]
struct Safe {
    /// Findings whose repair turned out to need more than was planned.
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

/// Repairs nothing.
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
    /// Whether it mends everything.
    pub complete: bool,
    /// Whether it may be made.
    pub allowed: bool,
    /// It halted at a finding that needs a person.
    pub halted: bool,
    /// Findings that it leaves.
    pub left: u64,
    /// What it costs.
    pub toll: Toll,
}

/// The repair that is to be made, and how it was found.
pub struct Climbed<'d> {
    /// The repair.
    pub repair: Repair<'d>,
    /// Its stage; `None`: no stage may be made, and nothing is repaired but that the journal is
    /// replayed, as any mount does.
    pub stage: Option<Stage>,
    /// What it costs.
    pub toll: Toll,
    /// All that was tried, in order.
    pub attempts: Vec<Attempt>,
}

/// Restarts of the safe stage after which it is given up.
const MOST_RESTARTS: usize = 8;

/// Stages repairs of what is on `device`, one after the other, until one mends everything and costs no
/// more than is allowed. If none does, the last that may be made and mends something is it.
///
/// # Errors
/// As `stage`, which plans and stages a repair as a policy decides.
pub fn climb<'d>(
    stages: &[Stage],
    allowance: &Allowance,
    device: &dyn ReadBlocks,
    mut stage: impl FnMut(&mut dyn Policy) -> Result<Repair<'d>, RepairError>,
) -> Result<Climbed<'d>, RepairError> {
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
        return Ok(Climbed { repair, stage: Some(stage), toll, attempts });
    }
    let repair = stage(&mut Nothing)?;
    Ok(Climbed { repair, stage: None, toll: Toll::default(), attempts })
}

/// The safe stage: if a change that was made is not safe after all, its finding is refused from the
/// start. `None` if that never ends.
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
