//! Variants of the recipes, and several of them on one image: each recipe on another profile, on
//! another object of its kind (including internal inodes and the ends of inode tables) and in
//! another group. The expected findings are not known beforehand; e2fsck and Linux judge.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::Result;

use crate::build;
use crate::image::Image;
use crate::profile::Profile;
use crate::rng::Rng;
use crate::volume::{View, Volume};

use super::{Case, cases};

/// Objects that are interchangeable in a recipe.
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
/// Internal inodes; the first and last inode of an inode table in most profiles.
const RESERVED: &[&str] = &[
    "<1>", "<2>", "<3>", "<4>", "<5>", "<6>", "<7>", "<8>", "<9>", "<11>", "<12>", "<256>", "<257>",
];

/// A recipe by name, and the objects it is applied to.
#[derive(Clone, Debug)]
pub struct Variant {
    at: usize,
    /// The objects that its paths and groups are replaced with.
    pub view: View,
}

/// Recipes for one image.
#[derive(Clone, Debug)]
pub struct Mixture {
    /// The feature set of the base image.
    pub profile: Profile,
    /// The variants, in the order of application.
    pub parts: Vec<Variant>,
}

/// All recipes that define only an image: a readable device, and no dependence on the clock.
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

    /// Number of recipes.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// A mixture of `parts` variants, reproducible from the seed. Seeds cycle through the recipes:
    /// each is the first part once unchanged, once on other objects, once also on another profile,
    /// and so on.
    pub fn sample(&self, seed: u64, parts: usize) -> Mixture {
        let count = self.0.len().max(1) as u64;
        self.mixture((seed % count) as usize, seed / count, parts)
    }

    /// The mixture whose first part is variant `nr` of the named recipe; it changes little when
    /// recipes are added.
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

    /// Applies the edits of the named recipe to the objects that [`Volume::view`] selects. `false`:
    /// one of them does not exist.
    pub fn apply(&self, name: &str, volume: &Volume<'_>) -> bool {
        self.0.iter().find(|case| case.recipe.name() == name).is_some_and(|case| {
            // An edit may index beyond a shorter object, and panic.
            let made = catch_unwind(AssertUnwindSafe(|| case.recipe.apply(volume)));
            matches!(made, Ok(Ok(())))
        })
    }

    /// Describes the parts of a mixture for a report.
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

    /// The image of a mixture; `None` if a part does not find its object on this profile, or has no
    /// effect.
    ///
    /// # Errors
    /// The base image cannot be built.
    pub fn build(&self, mixture: &Mixture) -> Result<Option<Image>> {
        let image = build::base(mixture.profile)?;
        for part in &mixture.parts {
            // An earlier part may have made the superblock unusable.
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

/// FNV-1a hash.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Replacements for all kinds of objects, or none.
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
            // Directory entries have no inode numbers, and the first two kinds are plain files.
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
        // A variant must differ from the clean base image, and the same seed must give the same
        // image.
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
