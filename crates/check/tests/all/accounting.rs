//! Exact and fingerprint accounting give the same findings, the latter in any number of sweeps: on sound images, on the image of every
//! problem, and on images with random damage; for any number of threads and any key.

use floe_check::open::open;
use floe_check::problem::Findings;
use floe_check::{Accounting, CheckOptions, JournalUse, Report, Tuning, check, examine};
use floe_format::{BlockNr, GroupNr};
use floe_testkit::recipe::{Edit, Recipe, descriptor};
use floe_testkit::{Profile, Subject, subjects, tool};

fn run(subject: &Subject, options: &CheckOptions<'_>) -> Result<Report, String> {
    check(&subject.device(), options).map_err(|error| error.to_string())
}

/// Findings, totals and paths of an image, as text.
fn describe(outcome: Result<Report, String>) -> String {
    match outcome {
        Ok(report) => format!(
            "{:#?}\n{:?}\n{}\n{:?}",
            report.found, report.totals, report.clusters_used, report.paths
        ),
        Err(error) => error,
    }
}

/// Compares both ways; comes back with how many groups the sums did not prove, where there were sums.
fn agree(subject: &Subject, seed: u64) -> Option<u32> {
    let journal = JournalUse::Ignore;
    let tuning = Tuning { accounting: Accounting::Exact, ..Tuning::default() };
    let exact = CheckOptions { tuning, journal, ..Default::default() };
    let (threads, key) = (1 + seed as usize % 3, Some([seed as u8; 16]));
    let tuning = Tuning { accounting: Accounting::Fingerprint, key, ..Tuning::default() };
    let summed = CheckOptions { tuning, threads, journal, ..Default::default() };
    // In one sweep, and with the claims of a group or two at a time.
    let groups_per_sweep = Some(1 + seed as u32 % 2);
    let swept = CheckOptions { tuning: Tuning { groups_per_sweep, ..tuning }, ..summed };
    let exact = describe(run(subject, &exact));
    let summed = run(subject, &summed);
    let rescanned = summed.as_ref().ok().and_then(|report| report.rescanned_groups);
    let summed = describe(summed);
    let swept = describe(run(subject, &swept));
    let what = &subject.name;
    assert!(exact == summed, "{what}:\nexact: {exact}\nsums: {summed}");
    assert!(exact == swept, "{what}:\nexact: {exact}\nsums, in sweeps: {swept}");
    rescanned
}

/// How many seeds a profile gets: `FLOE_ACCOUNTING_SEEDS`, for a longer run by hand.
fn seeds(usual: u64) -> u64 {
    std::env::var("FLOE_ACCOUNTING_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// Nobody can make a file system whose damage the sums of a later run do not show.
#[test]
fn each_run_draws_its_own_key() {
    if tool::missing() {
        return;
    }
    let image = floe_testkit::build::base(Profile::Ext4K1).unwrap();
    let tables = |key| {
        let tuning = Tuning { accounting: Accounting::Fingerprint, key, ..Tuning::default() };
        let options = CheckOptions { tuning, ..Default::default() };
        let opened = open(&image, options.superblock).unwrap();
        let examination = examine(&image, opened, Findings::default(), &options).unwrap();
        examination.volume.mode.tables.clone().unwrap()
    };
    assert!(CheckOptions::default().tuning.key.is_none());
    let (one, other) = (tables(None), tables(None));
    assert!(one != other, "two runs have one key");
    assert!(tables(Some([1; 16])) == tables(Some([1; 16])), "a given key is used");
}

#[test]
fn sound_images() {
    if tool::missing() {
        return;
    }
    let mut proved = 0;
    for subject in subjects::sound().map(Result::unwrap) {
        let rescanned = agree(&subject, 1);
        // Where sums are made they prove all of a sound file system.
        assert_eq!(rescanned.unwrap_or(0), 0, "{}", subject.name);
        proved += u32::from(rescanned.is_some());
    }
    assert!(proved > 20, "sums were made for {proved} profiles only");
}

#[test]
fn damaged_images() {
    if tool::missing() {
        return;
    }
    for damaged in subjects::damaged(500_000..500_000 + seeds(8)) {
        let (seed, subject) = damaged.unwrap();
        agree(&subject, seed);
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

/// Metadata of one group in another whose bitmap was never written: no inode claims it, so that no sum
/// shows it.
#[test]
fn metadata_of_others_in_a_group_never_written() {
    if tool::missing() {
        return;
    }
    let (home, guest) = (GroupNr(1), GroupNr(2));
    let image = Recipe::new("a guest")
        .on(Profile::Ext4K1)
        .edit(Edit::new(move |volume| {
            let mut desc = volume.desc(guest)?;
            let bitmap = volume.block(desc.inode_bitmap)?;
            // Far from the home group's own metadata.
            desc.inode_bitmap = BlockNr(volume.geometry.group_start(home).0 + 1000);
            volume.put_block(desc.inode_bitmap, &bitmap)?;
            volume.put_desc(guest, &desc)?;
            volume.fix_desc(guest)
        }))
        .edit(descriptor(home.0, |desc| desc.flags |= 2))
        .build()
        .unwrap();
    let subject = Subject::new(image, Profile::Ext4K1, "a guest");
    let rescanned = agree(&subject, 3);
    assert_eq!(rescanned, Some(1), "the home group");
    let options = CheckOptions { journal: JournalUse::Ignore, ..Default::default() };
    let report = run(&subject, &options).unwrap();
    let seen = report.found.iter().any(|problem| problem.row().id == "block-used-in-uninit-group");
    assert!(seen, "{:#?}", report.found);
}
