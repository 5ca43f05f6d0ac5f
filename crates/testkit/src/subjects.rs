//! Images for tests that compare several ways of looking at the same thing: sound ones, ones with random
//! damage, and one for every problem.

use std::ops::Range;

use anyhow::Result;
use floe_blockdev::{Fault, Faulty};
use floe_format::BlockNr;

use crate::image::Image;
use crate::profile::Profile;
use crate::{build, damage, problems};

/// An image that is looked at.
#[derive(Debug)]
pub struct Subject {
    /// The image.
    pub image: Image,
    /// What it was made as.
    pub profile: Profile,
    /// What it is, for whom a test fails.
    pub name: String,
    unreadable: Vec<BlockNr>,
}

impl Subject {
    /// An image all blocks of which can be read.
    pub fn new(image: Image, profile: Profile, name: &str) -> Self {
        Self { image, profile, name: name.to_owned(), unreadable: Vec::new() }
    }

    /// The image as a device, on which some blocks cannot be read if that is the problem.
    pub fn device(&self) -> Faulty<&Image> {
        let faults = self.unreadable.iter().map(|&block| (block, Fault::Unreadable));
        // At most 64 KiB.
        Faulty::new(&self.image, self.profile.block_size() as u32, faults)
    }
}

/// The undamaged image of each profile.
pub fn sound() -> impl Iterator<Item = Result<Subject>> {
    Profile::ALL
        .iter()
        .map(|&profile| Ok(Subject::new(build::base(profile)?, profile, profile.name())))
}

/// Images of each profile with random damage: one for each of `seeds`, which comes along.
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
