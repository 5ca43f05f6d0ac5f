//! Requested work besides repairs, and quota files as e2fsck counts them: made when nothing is left to repair.

use std::collections::VecDeque;

use floe_check::Examination;
use floe_check::checks::system_files::quota::not_as_e2fsck_counts;

use super::settle::is_sound;
use super::{BadBlocks, Session, Skip};
use crate::deed::Deed;
use crate::edit::{Edit, Phase};
use crate::extras::Step;

/// Requested work besides repairs, made when nothing is left to repair.
#[derive(Default)]
pub(super) struct Optional<'s> {
    /// Asked once behind recovery whether that was all.
    pub(super) skip: Option<&'s Skip<'s>>,
    /// Steps still to be made.
    pub(super) steps: VecDeque<Step>,
    /// A step was made; later findings follow from it.
    pub(super) extra: bool,
    /// The shared_blocks feature was dropped, and files are getting their own copies.
    pub(super) unsharing: bool,
    /// Quota files hold what e2fsck counts.
    pub(super) counted: bool,
    /// The bad block list was changed, and bitmaps and counts follow from that.
    pub(super) listed: bool,
}

impl Session<'_> {
    /// Quota files that Linux accepts but e2fsck would not, after a repair that changed inodes: both
    /// counts were right before, and someone who repairs wants e2fsck to agree.
    pub(super) fn quotas(&mut self, examination: &Examination<'_>) -> Vec<Edit> {
        let changes = |deed: &Deed| !matches!(deed.edit.phase(), Phase::Ground | Phase::Counts);
        if !is_sound(&examination.report) || !self.attempts.deeds.iter().any(changes) {
            return Vec::new();
        }
        self.optional.counted = true;
        let kinds = not_as_e2fsck_counts(&examination.volume, &examination.quota);
        kinds.into_iter().map(|kind| Edit::QuotaFile { kind }).collect()
    }

    /// The next optional step, when nothing is left to repair.
    pub(super) fn extras(&mut self, examination: &Examination<'_>) -> Vec<Edit> {
        let report = &examination.report;
        if !is_sound(report) {
            // There was no space for copies, so the blocks stay shared.
            return if self.optional.unsharing { self.share_again(report) } else { Vec::new() };
        }
        self.optional.unsharing = false;
        if let (Some(wanted), false) = (self.options.bad_blocks, self.optional.listed) {
            self.optional.listed = true;
            let BadBlocks { blocks, replace } = wanted.clone();
            return vec![Edit::BadBlocks { blocks, replace }];
        }
        while let Some(step) = self.optional.steps.pop_front() {
            let edits = step.edits(examination);
            if !edits.is_empty() {
                self.optional.extra = true;
                self.optional.unsharing = step == Step::UnshareBlocks;
                return edits;
            }
        }
        Vec::new()
    }
}
