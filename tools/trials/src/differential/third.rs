//! Linux as an additional judge of repairs, in batches.

use std::path::Path;
use std::sync::Mutex;

use anyhow::{Result, anyhow};
use floe_format::features::RoCompat;
use floe_testkit::compare::Fault;
use floe_testkit::{Image, Profile, Volume};

use super::repair::Case;
use floe_vm::linux_judge::{BATCH, LinuxJudge, Opinion, known_profiles};

/// A repaired image waiting for its batch.
struct Waiting {
    profile: Profile,
    seed: u64,
    image: Image,
}

/// Verdict on a case.
struct Found {
    profile: Profile,
    seed: u64,
    fault: Option<Fault>,
}

/// The additional judge; without a guest it accepts everything.
pub(super) struct Third {
    judge: Option<LinuxJudge>,
    known: Vec<Profile>,
    waiting: Mutex<Vec<Waiting>>,
    found: Mutex<Vec<Found>>,
}

impl Third {
    /// A judge that accepts everything.
    pub(super) fn none() -> Self {
        Self { judge: None, known: Vec::new(), waiting: Mutex::default(), found: Mutex::default() }
    }

    /// The Linux of a guest, which judges images of the profiles that it supports.
    ///
    /// # Errors
    /// No kernel to boot was found.
    pub(super) fn find(profiles: &[Profile]) -> Result<Self> {
        let judge = LinuxJudge::find(None)?;
        let known = known_profiles(&judge, profiles)?;
        Ok(Self { judge: Some(judge), known, ..Self::none() })
    }

    /// Linux's refusal of a repaired image, if any.
    pub(super) fn opinion(&self, profile: Profile, image: &Image) -> Result<Option<Fault>> {
        match &self.judge {
            Some(judge) if self.known.contains(&profile) && !is_read_only(image) => {
                let opinions = judge.judge(&[image.path()])?;
                Ok(opinions.first().and_then(fault_of))
            }
            _ => Ok(None),
        }
    }

    /// Submits an image; the caller that fills a batch waits for its verdicts.
    pub(super) fn submit(&self, profile: Profile, seed: u64, image: Image) -> Result<()> {
        if !self.known.contains(&profile) || is_read_only(&image) {
            return Ok(());
        }
        let batch = {
            let mut waiting = self.waiting.lock().map_err(|_| anyhow!("a worker panicked"))?;
            waiting.push(Waiting { profile, seed, image });
            if waiting.len() < BATCH {
                return Ok(());
            }
            std::mem::take(&mut *waiting)
        };
        self.judge_all(&batch)
    }

    fn judge_all(&self, batch: &[Waiting]) -> Result<()> {
        let Some(judge) = &self.judge else { return Ok(()) };
        let paths: Vec<&Path> = batch.iter().map(|one| one.image.path()).collect();
        let opinions = judge.judge(&paths)?;
        for (one, fault) in batch.iter().zip(opinions.iter().map(fault_of)) {
            if let Some(fault) = fault {
                eprintln!("{}:{}: {fault}", one.profile, one.seed);
            }
        }
        let mut found = self.found.lock().map_err(|_| anyhow!("a worker panicked"))?;
        found.extend(batch.iter().zip(&opinions).map(|(one, opinion)| Found {
            profile: one.profile,
            seed: one.seed,
            fault: fault_of(opinion),
        }));
        Ok(())
    }

    /// Judges the remaining images, and adds the verdicts to the cases; returns the number of
    /// images judged.
    pub(super) fn finish(self, cases: &mut [Case]) -> Result<usize> {
        let waiting =
            std::mem::take(&mut *self.waiting.lock().map_err(|_| anyhow!("a worker panicked"))?);
        self.judge_all(&waiting)?;
        let found = self.found.into_inner().map_err(|_| anyhow!("a worker panicked"))?;
        let asked = found.len();
        for Found { profile, seed, fault } in found {
            let of_case = |case: &&mut Case| case.profile == profile && case.seed == seed;
            if let (Some(fault), Some(case)) = (fault, cases.iter_mut().find(of_case)) {
                case.faults.push(fault);
            }
        }
        Ok(asked)
    }
}

/// Whether a file system says that nobody may write to it: Linux, which is to write to it, then refuses, as it should.
fn is_read_only(image: &Image) -> bool {
    let features = Volume::open(image).map(|volume| volume.superblock.features().ro_compat);
    features.is_ok_and(|features| features.contains(RoCompat::READONLY))
}

fn fault_of(opinion: &Opinion) -> Option<Fault> {
    (!opinion.is_content()).then(|| Fault::Refused(opinion.complaints.join("; ")))
}
