//! Images for tests that compare several implementations: undamaged ones, ones with random damage,
//! and one for every problem.

use std::ops::Range;

use anyhow::Result;
use floe_blockdev::{Fault, Faulty};
use floe_format::BlockNr;

use crate::image::Image;
use crate::profile::Profile;
use crate::{build, damage, problems};

/// An image under test.
#[derive(Debug)]
pub struct Subject {
    /// The image.
    pub image: Image,
    /// The profile of its base image.
    pub profile: Profile,
    /// A description for failing tests.
    pub name: String,
    unreadable: Vec<BlockNr>,
}

impl Subject {
    /// An image without unreadable blocks.
    pub fn new(image: Image, profile: Profile, name: &str) -> Self {
        Self { image, profile, name: name.to_owned(), unreadable: Vec::new() }
    }

    /// The image as a device, with unreadable blocks if they are the problem.
    pub fn device(&self) -> Faulty<&Image> {
        let faults = self.unreadable.iter().map(|&block| (block, Fault::Unreadable));
        // A block has at most 64 KiB.
        Faulty::new(&self.image, self.profile.block_size() as u32, faults)
    }
}

/// The undamaged image of each profile.
pub fn sound() -> impl Iterator<Item = Result<Subject>> {
    Profile::ALL
        .iter()
        .map(|&profile| Ok(Subject::new(build::base(profile)?, profile, profile.name())))
}

/// Images of each profile with random damage: one per seed in `seeds`, returned with its seed.
pub fn damaged(seeds: Range<u64>) -> impl Iterator<Item = Result<(u64, Subject)>> {
    let each = move |&profile: &Profile| seeds.clone().map(move |seed| (profile, seed));
    Profile::ALL.iter().flat_map(each).map(|(profile, seed)| {
        let (image, damage) = damage::damaged_image(profile, seed)?;
        Ok((seed, Subject::new(image, profile, &format!("{}, {damage}", profile.name()))))
    })
}

/// The image that raises each problem.
pub fn of_every_problem() -> impl Iterator<Item = Result<Subject>> {
    problems::cases().into_iter().map(|case| {
        let image = case.recipe.build()?;
        let unreadable = case.unreadable_blocks(&image);
        let (profile, name) = (case.recipe.profile(), case.recipe.name());
        Ok(Subject { unreadable, ..Subject::new(image, profile, name) })
    })
}
