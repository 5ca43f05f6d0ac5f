//! Whatever counts links, findings are the same: on the image of every problem and on images with random
//! damage, for any number of threads.

#![allow(clippy::unwrap_used, clippy::panic)] // a test may

use floe_check::evidence::choice::LinkStructure;
use floe_check::{Accounting, CheckOptions, JournalUse, check};
use floe_testkit::{Image, Profile, damage, problems, tool};

/// Findings and counts of an image, as text.
fn describe(image: &Image, links: LinkStructure, threads: usize) -> String {
    let options = CheckOptions {
        links: Some(links),
        threads,
        accounting: Accounting::Exact,
        journal: JournalUse::Ignore,
        ..Default::default()
    };
    match check(image, &options) {
        Ok(report) => {
            assert_eq!(report.plan.unwrap().way.links, links);
            format!("{:#?}\n{:?}", report.found, report.totals)
        }
        Err(error) => error.to_string(),
    }
}

fn agree(image: &Image, threads: usize, what: &str) {
    let bits = describe(image, LinkStructure::Bits, 1);
    for links in [LinkStructure::Array, LinkStructure::TwinTree] {
        let other = describe(image, links, threads);
        assert!(bits == other, "{what}, {links:?}:\n{bits}\n{other}");
    }
}

#[test]
fn damaged_images() {
    if let Err(reason) = tool::available() {
        eprintln!("skipped: {reason}");
        return;
    }
    for &profile in Profile::ALL {
        for seed in 0..3 {
            let (image, damage) = damage::damaged_image(profile, 510_000 + seed).unwrap();
            agree(&image, 1 + seed as usize, &format!("{}, {damage}", profile.name()));
        }
    }
}

#[test]
fn the_image_of_every_problem() {
    if let Err(reason) = tool::available() {
        eprintln!("skipped: {reason}");
        return;
    }
    for case in problems::cases() {
        agree(&case.recipe.build().unwrap(), 2, case.recipe.name());
    }
}
