//! Stages the edits of a round, and records what came of them.

use floe_check::open::open;
use floe_check::{Examination, Problem};
use floe_format::features::{Compat, Incompat};
use floe_format::{BlockNr, Geometry, InodeNr};

use super::settle::edit_superblock;
use super::{Attempts, RepairError, Session};
use crate::better_edits::loses_blocks;
use crate::deed::Deed;
use crate::edit::{Edit, GroupEdit, InodeEdit, JournalEdit, Phase, SuperblockEdit, TreeEdit};
use crate::failure::{Failed, Failure};
use crate::fixes::{self, Made};
use crate::plan::{Plan, Wanted, plan};
use crate::stage::Stage;

impl Session<'_> {
    /// Makes the edits of one phase.
    pub(super) fn make(
        &mut self,
        examination: &Examination<'_>,
        wanted: Wanted,
    ) -> Result<(), RepairError> {
        let (edits, causes): (Vec<Edit>, Vec<Option<Problem>>) = wanted.into_iter().unzip();
        let now = self.options.check.now_seconds;
        let mut stage = Stage::new(self.staged, examination, now, self.options.random)
            .of_cube(self.options.cube);
        self.attempts.keep_covered(&edits, &stage);
        // Files have blocks to which their maps no longer lead: nothing may be allocated there.
        let finds_lost = |problem: &Problem| {
            loses_blocks(problem)
                && problem.inode().is_some_and(|inode| fixes::finds_lost_blocks(&stage, inode))
        };
        let keeps_marked =
            self.hidden.hides_owners() || examination.report.found.iter().any(finds_lost);
        self.attempts.leaks_stay =
            keeps_marked && edits.iter().any(|edit| matches!(edit, Edit::GroupMaps { .. }));
        if keeps_marked || self.attempts.ahead.is_now {
            // Descriptors whose repair waits for these copies may hide inodes.
            stage.keep_marked();
        }
        if self.attempts.root_is_lost_found {
            stage.set_lost_found(InodeNr::ROOT, InodeNr::ROOT);
        }
        stage.leave_alone(self.hidden.left_in_place());
        stage.journal_device = self.journal_device;
        stage.move_files(self.couples.moves);
        stage.remember_covered(&self.attempts.covered);
        let results = fixes::apply_all(&mut stage, &edits);
        if stage.lacks_evidence() {
            return Err(self.lacks_evidence(examination));
        }
        must_have_room(&edits, &results)?;
        let all = edits.into_iter().zip(causes).zip(results);
        for ((edit, problem), (result, mut notes)) in all {
            if self.attempts.ahead.is_now && result.is_err() {
                continue;
            }
            let no_space = matches!(result, Err(Failure::NoSpace(_)));
            self.attempts.root_is_lost_found |=
                no_space && edit == Edit::Tree(TreeEdit::CreateLostFound);
            let failed = result.err().as_ref().map(Failed::of);
            if let (true, Some(problem)) = (no_space, &problem) {
                self.attempts.without_space.insert(problem.clone());
            }
            if let Some(problem) = &problem {
                *self.attempts.tries.entry(problem.clone()).or_default() += 1;
                if let Some(failed) = &failed {
                    self.attempts.failures.insert(problem.clone(), failed.clone());
                }
            }
            if failed.is_some() {
                continue;
            }
            self.attempts.primary_written |=
                edit == Edit::Superblock(SuperblockEdit::PrimaryFromBackup);
            self.journal.dropped |= edit == Edit::Journal(JournalEdit::Drop)
                && stage.superblock().feature_compat & Compat::HAS_JOURNAL.bits() == 0;
            let inode = problem.as_ref().and_then(Problem::inode);
            if let (Edit::Inode { edit: InodeEdit::Clear, .. }, Some(inode)) = (&edit, inode)
                && matches!(problem, Some(Problem::MultiplyClaimedFile { .. }))
            {
                notes.extend(self.decisions.sentences.get(&inode).cloned());
            }
            let path = inode.and_then(|inode| examination.report.paths.get(&inode).cloned());
            let follows = self.optional.listed
                && (edit.phase() == Phase::Counts || matches!(edit, Edit::BadBlocks { .. }));
            let (loss, round, extra) = (edit.loss(), self.rounds, self.optional.extra || follows);
            self.attempts.deeds.push(Deed { problem, edit, loss, path, notes, round, extra });
        }
        stage.finish()?;
        Ok(())
    }

    /// Repairs an MMP block that stops every check at once, if the policy agrees.
    pub(super) fn mend_mmp(&mut self, problem: &Problem) -> Result<bool, RepairError> {
        let opened = open(self.staged, self.options.check.superblock)?;
        let Plan::Edits(edits) = plan(problem) else { return Ok(false) };
        if self.staged.protects() && !self.staged.unreadable_offsets().is_empty() {
            // An unreadable MMP block may hold the record of another active host.
            return Ok(false);
        }
        // No report exists yet for a decision. Only policies that accept everything may make a
        // repair that is not allowed unattended.
        if !problem.row().preen && !self.policy.may_delete(problem) {
            return Ok(false);
        }
        let tries = self.attempts.tries.entry(problem.clone()).or_default();
        *tries += 1;
        if *tries > 1 {
            return Ok(false);
        }
        for edit in edits {
            match edit {
                Edit::CleanMmp => {
                    let block = BlockNr(opened.superblock.mmp_block);
                    let (geometry, seed) = (&opened.geometry, opened.superblock.seed());
                    let now = self.options.check.now_seconds;
                    fixes::clean_mmp(self.staged, geometry, seed, block, now)?;
                }
                Edit::Superblock(SuperblockEdit::DropMmp) => {
                    let incompat = !Incompat::MMP.bits();
                    edit_superblock(self.staged, |sb| {
                        sb.feature_incompat &= incompat;
                        sb.mmp_block = 0;
                    })?;
                }
                Edit::Superblock(SuperblockEdit::MmpBlock(block)) => {
                    edit_superblock(self.staged, |sb| sb.mmp_block = block.0)?;
                }
                _ => return Ok(false),
            }
            let (loss, round) = (edit.loss(), self.rounds);
            let problem = Some(problem.clone());
            let (path, notes) = (None, Vec::new());
            self.attempts.deeds.push(Deed {
                problem,
                edit,
                loss,
                path,
                notes,
                round,
                extra: false,
            });
        }
        Ok(true)
    }
}

impl Attempts {
    /// Keeps the content of blocks that edits cover.
    fn keep_covered(&mut self, edits: &[Edit], stage: &Stage<'_>) {
        for block in edits.iter().filter_map(|edit| covered_by(edit, &stage.geometry)) {
            // One that cannot be read is nobody's content.
            if let Ok(bytes) = stage.read_block(block) {
                self.covered.entry(block).or_insert(bytes);
            }
        }
    }
}

/// The block of descriptors that an edit changes before it is known which files have it: by their descriptors, inodes are found.
fn covered_by(edit: &Edit, geometry: &Geometry) -> Option<BlockNr> {
    match edit {
        Edit::Group { group, edit: GroupEdit::InodeTableFromBackup } => {
            Some(geometry.primary_desc_block(geometry.meta_group_of(*group)))
        }
        _ => None,
    }
}

/// Ends the repair if bitmaps or inode tables of a group find no room, and no edit of this round can change that.
fn must_have_room(edits: &[Edit], results: &[Made]) -> Result<(), RepairError> {
    let no_run = results.iter().find_map(|(result, _)| match result {
        &Err(Failure::NoRun { group, what, blocks }) => Some((group, what, blocks)),
        _ => None,
    });
    // A relocated structure may show that the disk is less full than it seemed.
    let is_news = |edit: &Edit| *edit != Edit::Superblock(SuperblockEdit::PrimaryFromBackup);
    let is_stuck =
        edits.iter().zip(results).all(|(edit, (made, _))| made.is_err() || !is_news(edit));
    match no_run.filter(|_| is_stuck) {
        Some((group, what, blocks)) => Err(RepairError::NoRoom { group, what, blocks }),
        None => Ok(()),
    }
}
