//! Whatever counts links, findings are the same: on the image of every problem and on images with random
//! damage, for any number of threads.

#![allow(clippy::unwrap_used, clippy::panic)] // a test may

use floe_check::evidence::choice::LinkStructure;
use floe_check::{Accounting, CheckOptions, JournalUse, check};
use floe_testkit::{Subject, subjects, tool};

/// Findings and counts of an image, as text.
fn describe(subject: &Subject, links: LinkStructure, threads: usize) -> String {
    let options = CheckOptions {
        links: Some(links),
        threads,
        accounting: Accounting::Exact,
        journal: JournalUse::Ignore,
        ..Default::default()
    };
    match check(&subject.device(), &options) {
        Ok(report) => {
            assert_eq!(report.plan.unwrap().way.links, links);
            format!("{:#?}\n{:?}", report.found, report.totals)
        }
        Err(error) => error.to_string(),
    }
}

fn agree(subject: &Subject, threads: usize) {
    let bits = describe(subject, LinkStructure::Bits, 1);
    for links in [LinkStructure::Array, LinkStructure::TwinTree] {
        let other = describe(subject, links, threads);
        assert!(bits == other, "{}, {links:?}:\n{bits}\n{other}", subject.name);
    }
}

#[test]
fn damaged_images() {
    if tool::missing() {
        return;
    }
    for damaged in subjects::damaged(510_000..510_003) {
        let (seed, subject) = damaged.unwrap();
        agree(&subject, 1 + seed as usize % 3);
    }
}

#[test]
fn the_image_of_every_problem() {
    if tool::missing() {
        return;
    }
    for subject in subjects::of_every_problem() {
        agree(&subject.unwrap(), 2);
    }
}
