//! rext3 images, made by Floe with the files of the profiles. No other program knows them, so a repair is judged by Floe and by testkit's
//! reader: it must be clean, must not change in a second run, and must keep what the damage left whole.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use floe_testkit::compare::{Fault, Judgement, losses, same_but_times};
use floe_testkit::tool::{self, Outcome};
use floe_testkit::tree::{self, Tree};
use floe_testkit::{Image, Profile, Volume};

use super::{LIMIT_SECONDS, Program};
use crate::differential::{Args, chosen};

/// Size of the images, and how they are made: several groups with regions and files of two levels of indirect blocks.
pub(super) const SIZE: &str = "24m";
pub(super) const OPTIONS: [&str; 10] =
    ["-t", "rext3", "-b", "1024", "-g", "4096", "-N", "2048", "-J", "size=1"];

/// The chosen profiles whose files it can hold.
pub(super) fn profiles(args: &Args) -> Result<Vec<Profile>> {
    let mut profiles = chosen(args)?;
    let unlike =
        ["casefold", "encrypt", "verity", "bigalloc", "stable_inodes", "quota", "ea_inode"];
    profiles.retain(|profile| !unlike.iter().any(|feature| profile.has(feature)));
    Ok(profiles)
}

/// The files that the damage left as they were, by a reader that shares no code with the check.
fn left_whole(image: &Image, original: &Tree) -> Option<Tree> {
    Volume::open(image).ok()?;
    let mut left = tree::stored(image).ok()?;
    left.retain(|path, node| original.get(path) == Some(node));
    Some(left)
}

/// Judges the repair of an image with an original before the damage.
pub(super) fn judge(program: &Program, original: &Image, image: &Image) -> Result<Judgement> {
    let before = tree::stored(original).context("the undamaged image")?;
    let left = left_whole(image, &before);
    let ours = image.copy()?;
    let first = program.repair(ours.path())?;
    let mut judgement = Judgement {
        faults: Vec::new(),
        no_measure: left
            .is_none()
            .then(|| "the reader finds no files in the damaged image".to_owned()),
        hinted: false,
        theirs: image.copy()?,
        ours,
        done: matches!(first.exit, Some(0..=3)),
        said: first.text.clone(),
        codes: BTreeSet::new(),
    };
    if let Some(fault) = crash(&first) {
        judgement.faults.push(fault);
        return Ok(judgement);
    }
    let after = verdict(program, &judgement.ours)?;
    let is_clean = judgement.done && after.exit == Some(0);
    if !is_clean && (judgement.done || left.is_some()) {
        let (ours, theirs) = (first.exit, after.exit);
        judgement.faults.push(Fault::Unclean { ours, theirs, codes: BTreeSet::new() });
    }
    if let Some(left) = left {
        let now = tree::stored(&judgement.ours).unwrap_or_default();
        judgement.faults.extend(losses(&left, &now, &before).into_iter().map(|loss| {
            if loss.kind.is_of_metadata() { Fault::Metadata(loss) } else { Fault::Lost(loss) }
        }));
    }
    let repaired = judgement.ours.copy()?;
    let second = program.repair(judgement.ours.path())?;
    match crash(&second) {
        Some(fault) => judgement.faults.push(fault),
        None => {
            let changed = !same_but_times(&repaired, &judgement.ours)?;
            if changed || second.exit != Some(0) && judgement.done {
                judgement.faults.push(Fault::NotFixpoint { exit: second.exit, changed });
            }
        }
    }
    judgement.faults.sort();
    Ok(judgement)
}

/// What Floe says of an image.
fn verdict(program: &Program, image: &Image) -> Result<Outcome> {
    let (name, first) = program.0.split_first().context("no program")?;
    let mut command = tool::command(name);
    command.args(first).arg("-fn").arg(image.path());
    tool::run(&command, LIMIT_SECONDS)
}

fn crash(outcome: &Outcome) -> Option<Fault> {
    match outcome.exit {
        _ if outcome.timed_out => Some(Fault::Timeout),
        exit @ (None | Some(100..)) => Some(Fault::Crash { exit }),
        Some(_) => None,
    }
}
