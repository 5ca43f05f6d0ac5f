//! Variants of the recipes, and several of them on one image: each recipe on another profile, on another
//! object of its kind (inodes of the file system's own and the ends of inode tables, too) and in another
//! group. What must be found is not known beforehand; oracles judge.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::Result;

use crate::build;
use crate::image::Image;
use crate::profile::Profile;
use crate::rng::Rng;
use crate::volume::{View, Volume};

use super::{Case, cases};

/// Objects that may stand for each other.
const KINDS: &[&[&str]] = &[
    &["/file", "/dir/file", "/dir/sub/deep/file", "/hard-a", "/blocks", "/unwritten"],
    &["/empty", "/tiny", "/medium", "/many/f000", "/many/f001", "/many/f059"],
    &["/dir", "/dir/sub", "/dir/sub/deep", "/many", "/big", "/lost+found", "/"],
    &["/fragmented", "/far", "/blocks", "/big"],
    &["/fast-link", "/slow-link", "/long-link"],
    &["/char", "/block", "/fifo", "/socket"],
    &["/ea", "/ea-block", "/ea-shared-a", "/ea-shared-b", "/acl"],
    &["/dir/.", "/dir/sub/.", "/many/.", "/big/.", "/lost+found/."],
    &["/dir/..", "/dir/sub/..", "/many/..", "/big/..", "/lost+found/.."],
];
/// Inodes of the file system's own; the last and the first of an inode table of most profiles.
const RESERVED: &[&str] = &[
    "<1>", "<2>", "<3>", "<4>", "<5>", "<6>", "<7>", "<8>", "<9>", "<11>", "<12>", "<256>", "<257>",
];

/// A recipe by its name, and what it is made on.
#[derive(Clone, Debug)]
pub struct Variant {
    at: usize,
    /// What its paths and groups stand for.
    pub view: View,
}

/// Recipes for one image.
#[derive(Clone, Debug)]
pub struct Mixture {
    /// The feature set of the base image.
    pub profile: Profile,
    /// The variants, in the order in which they are made.
    pub parts: Vec<Variant>,
}

/// All recipes that make nothing but an image: the device can be read, and the clock does not matter.
pub struct Recipes(Vec<Case>);

impl Default for Recipes {
    fn default() -> Self {
        Self::new()
    }
}

impl Recipes {
    /// The recipes of the problem table.
    pub fn new() -> Self {
        let mut all = cases();
        all.retain(|case| {
            !case.has_unreadable_blocks()
                && case.external_journal.is_none()
                && case.now_seconds.is_none()
                && case.recipe.is_whole()
        });
        Self(all)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// A mixture of `parts` variants; the same for the same seed. Seeds count through the recipes: each is
    /// the first part once as it is, once on other objects and once on another profile too, and so on.
    pub fn sample(&self, seed: u64, parts: usize) -> Mixture {
        let count = self.0.len().max(1) as u64;
        self.mixture((seed % count) as usize, seed / count, parts)
    }

    /// The mixture whose first part is the recipe of this name, in its variant `nr`; what it is made of
    /// changes little when there are more recipes.
    pub fn of(&self, name: &str, nr: u64, parts: usize) -> Option<Mixture> {
        let at = self.0.iter().position(|case| case.recipe.name() == name)?;
        Some(self.mixture(at, nr, parts))
    }

    fn mixture(&self, first: usize, nr: u64, parts: usize) -> Mixture {
        let recipe = &self.0[first].recipe;
        let mut rng = Rng::new(hash(recipe.name()).wrapping_add(nr));
        let other = *rng.pick(Profile::ALL).unwrap_or(&recipe.profile());
        let profile = if nr % 3 == 2 { other } else { recipe.profile() };
        let mut variants = vec![Variant { at: first, view: view(&mut rng, !nr.is_multiple_of(3)) }];
        while variants.len() < parts {
            let of_profile = rng.chance(2);
            let key = rng.next_u64();
            let fits = |at: &usize| !of_profile || self.0[*at].recipe.profile() == profile;
            let rank = |at: &usize| Rng::new(key ^ hash(self.0[*at].recipe.name())).next_u64();
            let at = (0..self.0.len()).filter(fits).min_by_key(rank).unwrap_or(first);
            let elsewhere = !rng.chance(3);
            variants.push(Variant { at, view: view(&mut rng, elsewhere) });
        }
        Mixture { profile, parts: variants }
    }

    /// Names of the recipes on a profile.
    pub fn names_on(&self, profile: Profile) -> Vec<String> {
        let on_this = self.0.iter().filter(|case| case.recipe.profile() == profile);
        on_this.map(|case| case.recipe.name().to_owned()).collect()
    }

    /// Makes the edits of the recipe of this name on the objects that [`Volume::view`] says. `false`: it
    /// does not find one.
    pub fn apply(&self, name: &str, volume: &Volume<'_>) -> bool {
        self.0.iter().find(|case| case.recipe.name() == name).is_some_and(|case| {
            // Edits index what may be shorter on another object.
            let made = catch_unwind(AssertUnwindSafe(|| case.recipe.apply(volume)));
            matches!(made, Ok(Ok(())))
        })
    }

    /// What a mixture consists of, for a report.
    pub fn describe(&self, mixture: &Mixture) -> Vec<String> {
        let describe = |part: &Variant| {
            let name = self.0[part.at].recipe.name();
            let view = &part.view;
            if *view == View::default() {
                return name.to_owned();
            }
            let seen = view.paths.iter().map(|(named, meant)| format!("{named}={meant}"));
            format!("{name} [group+{} {}]", view.groups, seen.collect::<Vec<_>>().join(" "))
        };
        mixture.parts.iter().map(describe).collect()
    }

    /// The image of a mixture; `None` if a part does not find its object on this profile, or changes
    /// nothing.
    ///
    /// # Errors
    /// The base image cannot be built.
    pub fn build(&self, mixture: &Mixture) -> Result<Option<Image>> {
        let image = build::base(mixture.profile)?;
        for part in &mixture.parts {
            // After an earlier part the superblock may make no sense.
            let Ok(mut volume) = Volume::open(&image) else { return Ok(None) };
            volume.view = part.view.clone();
            let before = image.to_vec()?;
            let made = self.apply(self.0[part.at].recipe.name(), &volume);
            if !made || image.to_vec()? == before {
                return Ok(None);
            }
        }
        Ok(Some(image))
    }
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Other objects for all kinds, or none.
fn view(rng: &mut Rng, elsewhere: bool) -> View {
    if !elsewhere {
        return View::default();
    }
    let reserved = rng.chance(3);
    let mut paths = Vec::new();
    for (nr, kind) in KINDS.iter().enumerate() {
        let step = 1 + rng.index(kind.len() - 1);
        for (at, named) in kind.iter().enumerate() {
            let is_known = paths.iter().any(|(known, _): &(String, String)| known == named);
            // Directory entries have no inode numbers, and the first two kinds are the plain files.
            let meant = if reserved && nr < 3 {
                rng.pick(RESERVED).copied().unwrap_or(named)
            } else {
                kind[(at + step) % kind.len()]
            };
            if !is_known {
                paths.push(((*named).to_owned(), meant.to_owned()));
            }
        }
    }
    View { paths, groups: rng.below(4) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool;

    #[test]
    fn each_recipe_has_three_variants_and_most_can_be_made() {
        if tool::missing() {
            return;
        }
        let recipes = Recipes::new();
        let count = recipes.count() as u64;
        assert!(count > 200, "{count} recipes");
        for seed in 0..count {
            let kinds = [0, 1, 2].map(|kind| recipes.sample(seed + kind * count, 1));
            assert_eq!(kinds[0].parts[0].view, View::default());
            assert!(kinds[1..].iter().all(|kind| kind.parts[0].view != View::default()));
            assert_eq!(kinds[0].profile, kinds[1].profile);
        }
        // The clean base is no variant, and the same seed gives the same image.
        let mut made = 0;
        for seed in (0..3 * count).step_by(41) {
            let mixture = recipes.sample(seed, 2);
            let (one, two) = (recipes.build(&mixture), recipes.build(&recipes.sample(seed, 2)));
            let bytes = |image: Result<Option<Image>>| image.unwrap().map(|image| image.to_vec());
            let (one, two) = (bytes(one), bytes(two));
            assert_eq!(one.is_some(), two.is_some());
            if let (Some(one), Some(two)) = (one, two) {
                assert!(one.unwrap() == two.unwrap(), "seed {seed}");
                made += 1;
            }
        }
        assert!(made > 5, "{made} images");
    }
}
