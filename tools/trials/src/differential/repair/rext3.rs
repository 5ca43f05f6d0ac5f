//! rext3 images, made by Floe with the files of the profiles. No other program knows them, so a repair is judged by Floe and by testkit's
//! reader: it must be clean, must not change in a second run, and must keep what the damage left whole.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use floe_testkit::compare::{Fault, Judgement, losses, same_but_times};
use floe_testkit::tool::{self, Outcome};
use floe_testkit::tree::{self, Tree};
use floe_testkit::{Image, Profile, Volume};

use super::{LIMIT_SECONDS, Program, native};
use crate::differential::{Args, chosen};

/// Size of the images, and how they are made: several groups with regions and files of two levels of indirect blocks.
pub(super) const SIZE: &str = "24m";
pub(super) const OPTIONS: [&str; 10] =
    ["-t", "rext3", "-b", "1024", "-g", "4096", "-N", "2048", "-J", "size=1"];

/// The chosen profiles whose files it can hold. The reader knows nothing of encrypted and folded names there.
pub(super) fn profiles(args: &Args) -> Result<Vec<Profile>> {
    let mut profiles = chosen(args)?;
    let unlike =
        ["casefold", "encrypt", "verity", "bigalloc", "stable_inodes", "quota", "ea_inode"];
    profiles.retain(|profile| !unlike.iter().any(|feature| profile.has(feature)));
    profiles.retain(|profile| match native::base(args, *profile) {
        Ok(_) => true,
        Err(error) => {
            eprintln!("left out: {profile}: {error:#}");
            false
        }
    });
    anyhow::ensure!(!profiles.is_empty(), "rext3 holds the files of none of these profiles");
    Ok(profiles)
}

/// The files that the damage left as they were, by a reader that shares no code with the check, and did not touch themselves: neither their
/// inode, their blocks of maps and attributes, nor their directory. As there is no e2fsck to tell what of a damaged object can be kept,
/// only what damage elsewhere takes from a file counts as lost.
fn left_whole(image: &Image, original: &Tree, events: &[String]) -> Option<Tree> {
    Volume::open(image).ok()?;
    let mut left = tree::stored(image).ok()?;
    let touched: BTreeSet<u32> = events.iter().flat_map(|event| inodes_in(event)).collect();
    let is_touched =
        |path: &[u8]| original.get(path).is_some_and(|of| touched.contains(&of.inode.0));
    left.retain(|path, node| {
        let end = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        let above = path.get(..end).filter(|above| !above.is_empty()).unwrap_or(b"/");
        original.get(path) == Some(node) && !is_touched(path) && !is_touched(above)
    });
    Some(left)
}

/// The inodes that an event of damage names.
fn inodes_in(event: &str) -> impl Iterator<Item = u32> + '_ {
    let named = event.split("InodeNr(").skip(1);
    let number = |rest: &str| rest.split(')').next().and_then(|number| number.parse().ok());
    named.filter_map(number)
}

/// Judges the repair of an image with an original before the damage.
pub(super) fn judge(
    program: &Program,
    original: &Image,
    image: &Image,
    events: &[String],
) -> Result<Judgement> {
    let before = tree::stored(original).context("the undamaged image")?;
    let left = left_whole(image, &before, events);
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
    // Nobody can repair a journal or a superblock of a kind that only a newer program knows, and the like.
    let is_impossible = !judgement.done
        && ["it cannot be repaired: ", "Something newer wrote this file system"]
            .iter()
            .any(|said| first.text.contains(said));
    if is_impossible {
        judgement.no_measure = Some("Floe leaves damage that it cannot repair".to_owned());
    } else if !is_clean && (judgement.done || left.is_some()) {
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

/// The verdict of Floe on an image.
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
