//! `cargo xtask differential --repair --recipes N`: applies N variants of recipes of the problem
//! table to one image. The repair must not lose anything that the repairs of the single variants
//! keep.

use anyhow::{Context, Result};
use floe_testkit::compare::{Fault, losses};
use floe_testkit::problems::{Mixture, Recipes};
use floe_testkit::tree::{self, Tree};
use floe_testkit::{Image, build};

use super::super::third::Third;
use super::super::{Args, Names};
use super::{Case, Program, judge_image, show};

const UNREADABLE_LIST: &str = "e2fsck leaves a list that Linux cannot read or misreads";

/// Differences that are no faults: the recipe, the end of what it loses according to e2fsck's
/// repair, and why. `floe-repair`'s tests have the same exceptions.
const KNOWN: &[(&str, &str, &str)] = &[
    (
        "to a value",
        "/dir/file",
        "e2fsck rejects names of value inodes since 1.47.4, and 1.47.0 leaves them",
    ),
    (
        "block maps: a directory far behind",
        "/far",
        "Floe keeps the blocks of the file, e2fsck frees them",
    ),
    (
        "journal with a name",
        "/empty",
        "e2fsck leaves the journal as a file of this name, and Floe hides it",
    ),
    ("access list of another version", "/acl", UNREADABLE_LIST),
    ("access list with others in front", "/acl", UNREADABLE_LIST),
    ("access list without others", "/acl", UNREADABLE_LIST),
    ("default access list without the group", "/dir", UNREADABLE_LIST),
    ("access list without room for another", "/acl", UNREADABLE_LIST),
    ("default access list with an unknown entry", "/dir", UNREADABLE_LIST),
];

/// Whether a loss is one of [`KNOWN`] of a recipe that is part of the mixture, perhaps on another
/// object: `recipes` says which one stands for which.
fn is_known(fault: &Fault, recipes: &[String]) -> bool {
    let (Fault::Lost(loss) | Fault::Metadata(loss)) = fault else { return false };
    KNOWN.iter().any(|(recipe, path, _)| {
        let views = recipes.iter().filter_map(|one| one.strip_prefix(recipe));
        // The name of one recipe may begin with that of another.
        let views = views.filter(|view| view.is_empty() || view.starts_with(" ["));
        views.into_iter().any(|view| may_concern(view, path, &loss.path))
    })
}

/// Whether a recipe that names `path`, seen through a view, concerns `other`: the object that stands for it, or the
/// name in the directory that stands for its directory, as edits of directory entries have it.
fn may_concern(view: &str, path: &str, other: &str) -> bool {
    let meant = |named: &str| -> String {
        let mut pairs = view.split(['[', ' ', ']']).filter_map(|pair| pair.split_once('='));
        pairs.find(|(of, _)| *of == named).map_or(named, |(_, meant)| meant).to_owned()
    };
    let in_folder = path.rsplit_once('/').map(|(folder, name)| {
        let folder = meant(if folder.is_empty() { "/" } else { folder });
        format!("{}/{name}", folder.trim_end_matches('/'))
    });
    meant(path) == other || in_folder.is_some_and(|path| path == other)
}

/// Judges the mixture of a seed; `None` if it cannot be built.
pub(super) fn judge_one(
    args: &Args,
    program: &Program,
    (recipes, linux): (&Recipes, &Third),
    parts: u8,
    seed: u64,
) -> Result<Option<Case>> {
    let mixture = recipes.sample(seed, parts.into());
    let Some(image) = recipes.build(&mixture)? else { return Ok(None) };
    let judgement = judge_image(args, program, mixture.profile, &image)?;
    let mut faults = judgement.faults;
    let is_lost = |fault: &Fault| matches!(fault, Fault::Lost(_));
    // Nothing was repaired where Floe asks for the place of a backup superblock, as e2fsck does.
    if parts > 1 && judgement.done && !faults.iter().any(is_lost) {
        faults.extend(lost_together(program, recipes, &mixture, &judgement.ours)?);
    }
    let events = recipes.describe(&mixture);
    faults.retain(|fault| !is_known(fault, &events));
    let no_measure = judgement.no_measure;
    if judgement.done {
        linux.submit(mixture.profile, seed, judgement.ours)?;
    }
    Ok(Some(Case { profile: mixture.profile, seed, events, faults, no_measure }))
}

/// Data that the repair of the mixture lost, although the repairs of the single variants keep it
/// unchanged.
fn lost_together(
    program: &Program,
    recipes: &Recipes,
    mixture: &Mixture,
    ours: &Image,
) -> Result<Vec<Fault>> {
    let original = tree::stored(&build::base(mixture.profile)?)?;
    let mut kept: Tree = original.clone();
    for part in &mixture.parts {
        let alone = Mixture { profile: mixture.profile, parts: vec![part.clone()] };
        let Some(image) = recipes.build(&alone)? else { return Ok(Vec::new()) };
        program.repair(image.path())?;
        let after = tree::stored(&image).unwrap_or_default();
        kept.retain(|path, node| {
            after.get(path).is_some_and(|own| own.identity() == node.identity())
        });
    }
    let ours = tree::stored(ours).unwrap_or_default();
    let lost = losses(&kept, &ours, &original).into_iter();
    Ok(lost.filter(|loss| !loss.kind.is_of_metadata()).map(Fault::Lost).collect())
}

/// Repeats a case and prints it in detail.
pub(super) fn replay(
    args: &Args,
    case: &str,
    program: &Program,
    parts: u8,
    names: &Names,
) -> Result<()> {
    let seed = case.rsplit(':').next().unwrap_or(case).parse().context("PROFILE:SEED or SEED")?;
    let recipes = Recipes::new();
    let mixture = recipes.sample(seed, parts.into());
    println!("{}: {}", mixture.profile, recipes.describe(&mixture).join("; "));
    let Some(image) = recipes.build(&mixture)? else {
        println!("the recipes lack an object");
        return Ok(());
    };
    let mut judgement = judge_image(args, program, mixture.profile, &image)?;
    if args.linux && judgement.done {
        let linux = Third::find(&[mixture.profile])?;
        judgement.faults.extend(linux.opinion(mixture.profile, &judgement.ours)?);
    }
    if parts > 1 {
        for fault in lost_together(program, &recipes, &mixture, &judgement.ours)? {
            println!("--- kept by the repair of each variant: {fault}");
        }
    }
    show(args, &image, judgement, names);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_known_difference_is_recognised_on_another_object() {
        let view = " [group+2 /dir=/dir/sub/deep /dir/file=/file]";
        for (view, other, concerns) in [
            ("", "/dir/file", true),
            ("", "/file", false),
            (view, "/file", true),
            (view, "/dir/sub/deep/file", true),
            (view, "/dir/file", false),
        ] {
            assert_eq!(may_concern(view, "/dir/file", other), concerns, "{view}: {other}");
        }
    }
}
