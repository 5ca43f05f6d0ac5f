//! Turns findings into the edits that the policy accepts. Nothing else is consulted.

use std::collections::{BTreeMap, BTreeSet};

use floe_check::problem::Object;
use floe_check::{Examination, Problem, Report};
use floe_format::InodeNr;
use floe_format::features::Incompat;

use super::ahead::on_metadata;
use super::copy_space::{CopySpace, clusters_of_inode};
use super::hidden::HiddenParts;
use super::in_place::InPlace;
use super::{MOST_TRIES, Session};
use crate::deed::Reason;
use crate::edit::{Edit, InodeEdit, Phase};
use crate::plan::{Plan, Wanted, plan};
use crate::policy::{Decision, Sharing};
use crate::shared_owners::{Owner, SharedBlocks};

/// Findings with their possible repairs.
type Plans<'r> = Vec<(&'r Problem, Vec<Edit>)>;

impl Session<'_> {
    /// The edits that findings require and the policy accepts, each with the first such finding.
    pub(super) fn wanted(&mut self, examination: &Examination<'_>) -> Wanted {
        let report = &examination.report;
        let unreadable = self.staged.protects().then(|| self.staged.unreadable_offsets());
        self.hidden = HiddenParts::of(examination, unreadable.as_deref());
        self.decisions.doubts.note(report);
        let mut plans = self.plans(examination);
        let asks = self.options.shared_blocks == SharedBlocks::Ask && !self.optional.unsharing;
        let is_shared = |problem: &Problem| {
            matches!(problem, Problem::MultiplyClaimedFile { .. })
                && asks
                && !self.attempts.without_space.contains(problem)
        };
        let (mut shared, others): (Plans<'_>, Plans<'_>) =
            plans.drain(..).partition(|(problem, _)| is_shared(problem));
        if !self.decide(&others, report) {
            return Wanted::new();
        }
        let mut wanted = self.accepted(others);
        // Earlier phases may end the sharing, and yield evidence on the wrong owner.
        let is_time =
            wanted.keys().all(|edit| edit.phase() >= Phase::SharedBlocks || edit.is_quiet());
        let in_the_way = on_metadata(examination);
        if !is_time {
            // These are copied ahead, because earlier phases write where they lie.
            shared.retain(|(problem, _)| {
                problem.inode().is_some_and(|inode| in_the_way.contains(&inode))
            });
        }
        if !shared.is_empty() {
            let Some(shared) = self.share(shared, report) else { return Wanted::new() };
            wanted.extend(shared);
        }
        let left = self.without_copies(report, &wanted, in_the_way);
        self.hidden.leave(InPlace::of(examination, &left));
        wanted.retain(|edit, cause| {
            cause.as_ref().is_none_or(|cause| self.hidden.objection(cause, edit).is_none())
        });
        wanted
    }

    /// Those of some files that share blocks and get no copies, although nothing else is going to mend that.
    fn without_copies(
        &self,
        report: &Report,
        wanted: &Wanted,
        mut files: BTreeSet<InodeNr>,
    ) -> BTreeSet<InodeNr> {
        let is_mended = |problem: &Problem, inode| {
            let copy = Edit::CloneShared { inode };
            let is_asked_later = !self.decisions.decided.contains_key(problem)
                && self.hidden.objection(problem, &copy).is_none();
            is_asked_later || wanted.contains_key(&copy) || wanted.contains_key(&deletion(inode))
        };
        for problem in &report.found {
            if let Problem::MultiplyClaimedFile { inode, .. } = *problem
                && is_mended(problem, inode)
            {
                files.remove(&inode);
            }
        }
        files
    }

    /// The possible repairs of each finding.
    fn plans<'r>(&mut self, examination: &'r Examination<'_>) -> Plans<'r> {
        let report = &examination.report;
        let mut plans = Vec::new();
        let goes = self.who_goes(examination);
        let culprits = match self.options.shared_blocks {
            SharedBlocks::Clone | SharedBlocks::Ask => BTreeSet::new(),
            SharedBlocks::DropCulprit => self.decisions.doubts.culprits(report),
        };
        let keeps_number = number_is_undecided(report);
        for problem in &report.found {
            let tries = self.attempts.tries.get(problem).copied().unwrap_or(0);
            if tries >= MOST_TRIES || self.options.extras.skips(problem) {
                continue;
            }
            if keeps_number && differs_in_number(problem)
                || self.attempts.leaks_stay && is_leak(problem)
            {
                continue;
            }
            match (plan(problem), problem) {
                // No space for copies: wait for the space that a deletion frees.
                (Plan::Edits(_), &Problem::MultiplyClaimedFile { inode, .. })
                    if goes.contains(&inode) =>
                {
                    self.decisions
                        .sentences
                        .insert(inode, self.decisions.doubts.why_it_goes(inode, true));
                    plans.push((problem, vec![deletion(inode)]));
                }
                (Plan::Edits(_), Problem::MultiplyClaimedFile { .. })
                    if self.attempts.without_space.contains(problem) => {}
                (Plan::Edits(_), &Problem::MultiplyClaimedFile { inode, .. })
                    if culprits.contains(&inode) =>
                {
                    self.decisions
                        .sentences
                        .insert(inode, self.decisions.doubts.why_it_goes(inode, false));
                    plans.push((problem, vec![deletion(inode)]));
                }
                (Plan::Edits(edits), _) => plans.push((problem, edits)),
                _ => {}
            }
        }
        if !goes.is_empty() {
            // Retry all others.
            for problem in std::mem::take(&mut self.attempts.without_space) {
                self.attempts.tries.remove(&problem);
            }
        }
        let hidden = &self.hidden;
        plans.retain(|(problem, edits)| {
            edits.iter().all(|edit| hidden.objection(problem, edit).is_none())
        });
        plans
    }

    /// Selects the owners to delete when there is no space for copies, until the rest fits: in each
    /// round as many as the space certainly missing requires. From a group with an owner that found
    /// no space, it takes the owner that the evidence convicts, else the one with the most shared
    /// blocks. Owners that the file system itself needs are spared as long as there are others.
    fn who_goes(&mut self, examination: &Examination<'_>) -> BTreeSet<InodeNr> {
        let report = &examination.report;
        let mut goes = BTreeSet::new();
        if self.optional.unsharing || self.attempts.without_space.is_empty() {
            return goes;
        }
        let files: BTreeMap<InodeNr, &Problem> = report
            .found
            .iter()
            .filter(|problem| matches!(problem, Problem::MultiplyClaimedFile { .. }))
            .filter(|problem| self.decisions.decided.get(*problem) != Some(&false))
            .filter_map(|problem| Some((problem.inode()?, problem)))
            .collect();
        let has_no_room = |owner: &Owner| {
            files
                .get(&owner.inode)
                .is_some_and(|problem| self.attempts.without_space.contains(*problem))
        };
        let is_needed = |inode| inode == InodeNr::ROOT || report.geometry.is_reserved(inode);
        let groups = self.decisions.doubts.groups(report);
        let mut owners: Vec<&Owner> = groups
            .iter()
            .filter(|group| group.owners.iter().any(has_no_room))
            .flat_map(|group| &group.owners)
            .collect();
        owners.sort_by_key(|owner| {
            (owner.culprit, !is_needed(owner.inode), owner.shared_blocks, owner.inode)
        });
        let mut room = CopySpace::of(examination, |inode| files.contains_key(&inode));
        for Owner { inode, shared_blocks, .. } in owners.into_iter().rev() {
            if !goes.is_empty() && room.missing() == 0 {
                break;
            }
            if files.get(inode).is_some_and(|problem| self.policy.may_delete(problem)) {
                let shared_clusters = shared_blocks >> report.geometry.cluster_bits;
                let clusters = clusters_of_inode(&examination.volume, *inode);
                room.without(*inode, clusters.saturating_sub(shared_clusters));
                goes.insert(*inode);
            }
        }
        goes
    }

    /// Asks the policy about new findings. `false`: it ends the repair.
    fn decide(&mut self, plans: &Plans<'_>, report: &Report) -> bool {
        let new: Vec<Problem> = plans
            .iter()
            .filter(|(problem, _)| !self.decisions.decided.contains_key(*problem))
            .filter(|(problem, _)| !self.waits(problem, plans, report))
            .map(|(problem, _)| (*problem).clone())
            .collect();
        if self.optional.unsharing {
            // The caller's request implies consent.
            self.decisions.decided.extend(new.into_iter().map(|problem| (problem, true)));
        } else if !new.is_empty() {
            match self.policy.decide(&new, report) {
                Decision::Each(answers) => {
                    self.decisions.decided.extend(new.into_iter().zip(answers))
                }
                Decision::Halt(problem) => {
                    self.decisions.halted = Some(problem);
                    return false;
                }
                Decision::Quit => {
                    self.decisions.quit = true;
                    return false;
                }
            }
        }
        true
    }

    /// Whether a finding may be gone once another is mended in this round, so that nobody is asked about it yet.
    fn waits(&self, problem: &Problem, plans: &Plans<'_>, report: &Report) -> bool {
        // Whether a log that could not be replayed may be given up is for the policy to say, before anything else.
        let is_used = report.superblock.features().incompat.contains(Incompat::RECOVER);
        let is_of_log = problem.row().object == Object::Journal;
        let journal = InodeNr(report.superblock.journal_inum);
        let explains = |cause: &Problem| match *cause {
            // Its map seems to share blocks with others, for example. Where it could not be mended, the inode is cleared.
            Problem::JournalInodeInvalid { inode, .. }
            | Problem::InodeChecksumBad { inode, .. }
            | Problem::JournalInodeLeftover { inode } => {
                let is_it =
                    inode == journal || matches!(cause, Problem::JournalInodeLeftover { .. });
                let follows = problem.inode() == Some(inode) || is_of_sharing(problem);
                is_it && follows && !is_used && !is_of_log
            }
            Problem::Bits64bitWithoutExtents => matches!(
                problem,
                Problem::ExtentsFeatureMissing { .. } | Problem::ExtentsFlagUnsupported { .. }
            ),
            _ => false,
        };
        let is_mended = |cause: &Problem| self.decisions.decided.get(cause) != Some(&false);
        !problem.row().preen && plans.iter().any(|(cause, _)| explains(cause) && is_mended(cause))
    }

    fn accepted(&self, plans: Plans<'_>) -> Wanted {
        let mut wanted = Wanted::new();
        for (problem, edits) in plans {
            if self.decisions.decided.get(problem) == Some(&true) {
                for edit in edits {
                    wanted.entry(edit).or_insert_with(|| Some(problem.clone()));
                }
            }
        }
        wanted
    }

    /// Asks the policy about groups of owners of shared blocks; returns the accepted edits. `None`:
    /// it ends the repair.
    fn share(&mut self, plans: Plans<'_>, report: &Report) -> Option<Wanted> {
        let asked: BTreeSet<InodeNr> =
            plans.iter().filter_map(|(problem, _)| problem.inode()).collect();
        for group in self.decisions.doubts.groups(report) {
            let is_decided = |inode| self.decisions.sharing.contains_key(inode);
            let mut owners = group.owners.iter().map(|owner| &owner.inode);
            if owners.clone().all(is_decided) || !owners.any(|owner| asked.contains(owner)) {
                continue;
            }
            let answer = self.policy.share(&group, report);
            if answer == Sharing::Quit {
                self.decisions.quit = true;
                return None;
            }
            self.decisions.sharing.extend(group.owners.iter().map(|owner| (owner.inode, answer)));
        }
        let culprits = self.decisions.doubts.culprits(report);
        for &inode in &culprits {
            self.decisions.sentences.insert(inode, self.decisions.doubts.why_it_goes(inode, false));
        }
        let plans: Plans<'_> = plans
            .into_iter()
            .map(|(problem, edits)| {
                let inode = problem.inode().unwrap_or(InodeNr(0));
                let sharing = self.decisions.sharing.get(&inode).copied().unwrap_or(Sharing::Clone);
                self.decisions.decided.insert(problem.clone(), sharing != Sharing::Leave);
                let goes = sharing == Sharing::DropCulprit && culprits.contains(&inode);
                (problem, if goes { vec![deletion(inode)] } else { edits })
            })
            .collect();
        Some(self.accepted(plans))
    }

    /// Why a finding is left.
    pub(super) fn reason(&self, problem: &Problem) -> Reason {
        let objection = |edit: &Edit| self.hidden.objection(problem, edit);
        let mut made = self.attempts.tries.contains_key(problem);
        match plan(problem) {
            Plan::Impossible(why) => return Reason::Impossible(why),
            Plan::Edits(edits) => {
                let is_refused = self.decisions.decided.get(problem) == Some(&false);
                if let Some(why) = edits.iter().find_map(objection).filter(|_| !is_refused) {
                    return Reason::Impossible(why);
                }
                // Another finding may have asked for the same.
                made |= self.attempts.deeds.iter().any(|deed| edits.contains(&deed.edit));
                made &= !(self.attempts.leaks_stay && is_leak(problem));
            }
            _ => {}
        }
        match (self.decisions.decided.get(problem), self.attempts.failures.get(problem)) {
            (Some(false), _) | (None, None) => Reason::Refused,
            (_, Some(failed)) => Reason::Failed(failed.text.clone()),
            (Some(true), None) if self.decisions.decided.values().any(|granted| !granted) => {
                Reason::Waits { made }
            }
            (Some(true), None) => Reason::CameBack,
        }
    }
}

/// Whether `s_inodes_per_group` of the primary superblock still differs from the value used for the
/// examination. Until that is repaired, or for good if it is refused, each copy keeps its own
/// value.
fn number_is_undecided(report: &Report) -> bool {
    report.found.iter().any(|problem| matches!(problem, Problem::InodesPerGroupWrong { .. }))
}

/// Whether a copy of the superblock differs only in `s_inodes_per_group`.
fn differs_in_number(problem: &Problem) -> bool {
    matches!(problem, Problem::BackupSuperblockDiffers { field: "s_inodes_per_group", .. })
}

/// Whether it says that several inodes, or metadata and an inode, claim a block.
const fn is_of_sharing(problem: &Problem) -> bool {
    matches!(
        problem,
        Problem::MultiplyClaimedBlock { .. }
            | Problem::MultiplyClaimedRange { .. }
            | Problem::MultiplyClaimedFile { .. }
            | Problem::MapNodeOverlapsCriticalMetadata { .. }
    )
}

/// Whether blocks are marked as used, and nothing uses them; or the count of a group, which follows from that.
const fn is_leak(problem: &Problem) -> bool {
    matches!(
        problem,
        Problem::BlockBitmapLeakedBlock { .. }
            | Problem::BlockBitmapLeakedRange { .. }
            | Problem::GroupFreeBlockCountWrong { .. }
    )
}

fn deletion(inode: InodeNr) -> Edit {
    Edit::Inode { inode, edit: InodeEdit::Clear }
}
