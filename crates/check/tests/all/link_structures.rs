//! The structure that counts links never changes the findings: on the images of all problems and on
//! images with random damage, for any number of threads. The automatic choice follows the equations
//! of lwFSCK.

use floe_check::evidence::choice::{InodeUse, LinkChoice, LinkStructure};
use floe_check::open::open;
use floe_check::{Accounting, CheckOptions, JournalUse, Tuning, check};
use floe_testkit::{Subject, subjects, tool};

/// Findings and counts of an image, as text.
fn describe(subject: &Subject, links: LinkChoice, threads: usize) -> String {
    let options = CheckOptions {
        threads,
        tuning: Tuning { links, accounting: Accounting::Exact, ..Tuning::default() },
        journal: JournalUse::Ignore,
        ..Default::default()
    };
    match check(&subject.device(), &options) {
        Ok(report) => {
            let taken = report.plan.unwrap().way.links;
            match links {
                LinkChoice::Always(links) => assert_eq!(taken, links),
                LinkChoice::Adaptive => assert_eq!(taken, by_equations(subject, &options)),
                LinkChoice::Auto => {}
            }
            format!("{:#?}\n{:?}", report.found, report.totals)
        }
        Err(error) => error.to_string(),
    }
}

/// The choice by equations 1 to 3, from the descriptors alone. Inodes that an uninitialised table
/// cannot hold are not in use, whatever the group's counts say.
fn by_equations(subject: &Subject, options: &CheckOptions<'_>) -> LinkStructure {
    let opened = open(&subject.device(), options.superblock).unwrap();
    let geometry = &opened.geometry;
    let mut inodes = InodeUse::default();
    for desc in &opened.groups {
        let of_group = InodeUse::of_groups(geometry, std::slice::from_ref(desc));
        let slots = u64::from(floe_check::volume::used_inodes_bound(geometry, desc));
        let used = of_group.used.min(slots);
        inodes.total += of_group.total;
        inodes.used += used;
        inodes.directories += of_group.directories.min(used);
    }
    inodes.leaner()
}

fn agree(subject: &Subject, threads: usize) {
    let bits = describe(subject, LinkChoice::Always(LinkStructure::Bits), 1);
    for links in [
        LinkChoice::Always(LinkStructure::Array),
        LinkChoice::Always(LinkStructure::TwinTree),
        LinkChoice::Adaptive,
    ] {
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
