//! Every way to share workers between passes gives the same findings, and leaves the same evidence, for
//! any number of threads: on sound images, on the image of every problem, and on images with random
//! damage.

use floe_blockdev::FileDevice;
use floe_check::open::open;
use floe_check::problem::Findings;
use floe_check::report::PipelineUse;
use floe_check::{
    Accounting, CheckOptions, JournalUse, MemoryLimit, Report, SharedCores, Tuning, check, examine,
};
use floe_exec::{CoreSample, CoreSource, Dealing, Policy};
use floe_testkit::rng::Rng;
use floe_testkit::{Image, Profile, Subject, build, subjects, tool};

use crate::examined;

/// A machine on which others need the cores now and then.
struct Now(std::sync::atomic::AtomicU64);

impl CoreSource for Now {
    fn sample(&self) -> Option<CoreSample> {
        let look = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let idle = if look.is_multiple_of(3) { 0.0 } else { 2.0 };
        Some(CoreSample { idle, own: 1.0, allowed: 16 })
    }
}

fn run(subject: &Subject, options: &CheckOptions<'_>) -> Result<Report, String> {
    check(&subject.device(), options).map_err(|error| error.to_string())
}

/// Findings, totals and paths of an image, as text.
fn describe(outcome: &Result<Report, String>) -> String {
    match outcome {
        Ok(report) => format!(
            "{:#?}\n{:?}\n{}\n{:?}",
            report.found, report.totals, report.clusters_used, report.paths
        ),
        Err(error) => error.clone(),
    }
}

/// Compares one thread with some policies, for both ways of accounting and numbers of threads that `rng`
/// picks, sometimes with a budget of cores.
fn agree(subject: &Subject, policies: &[Policy], rng: &mut Rng) {
    let journal = JournalUse::Ignore;
    for accounting in [Accounting::Exact, Accounting::Fingerprint] {
        let tuning = Tuning { accounting, ..Tuning::default() };
        let alone = CheckOptions { tuning, journal, threads: 1, ..Default::default() };
        let expected = describe(&run(subject, &alone));
        for &schedule in policies {
            let threads = 2 + rng.below(15) as usize;
            let source = Now(0.into());
            let minimum = rng.below(3) as usize;
            let cores = rng.chance(3).then_some(SharedCores { source: &source, minimum });
            let dealing = if rng.chance(2) { Dealing::Ranges } else { Dealing::InOrder };
            let tuning = Tuning { schedule, dealing, ..tuning };
            let options = CheckOptions { threads, tuning, cores, ..alone };
            let got = describe(&run(subject, &options));
            assert!(
                got == expected,
                "{}, {schedule}, {dealing:?}, {threads} threads, {accounting:?}:\none thread: {expected}\nnow: {got}",
                subject.name
            );
        }
    }
}

/// How often a random test is repeated: `FLOE_SCHEDULING_SEEDS`, for a longer run by hand.
fn seeds(usual: u64) -> u64 {
    std::env::var("FLOE_SCHEDULING_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[test]
fn sound_images() {
    if tool::missing() {
        return;
    }
    let mut rng = Rng::new(4);
    for subject in subjects::sound() {
        agree(&subject.unwrap(), &Policy::ALL, &mut rng);
    }
}

#[test]
fn damaged_images() {
    if tool::missing() {
        return;
    }
    let mut rng = Rng::new(5);
    for damaged in subjects::damaged(700_000..700_000 + seeds(3)) {
        let (_, subject) = damaged.unwrap();
        agree(&subject, &Policy::ALL, &mut rng);
    }
}

#[test]
fn the_image_of_every_problem() {
    if tool::missing() {
        return;
    }
    let mut rng = Rng::new(6);
    for subject in subjects::of_every_problem() {
        // One of the policies for each, as there are so many.
        let policies = &Policy::ALL[rng.below(3) as usize..][..1];
        agree(&subject.unwrap(), policies, &mut rng);
    }
}

/// All that an examination leaves, as text, and what its pipeline took.
fn leaves(
    image: &Image,
    threads: usize,
    schedule: Policy,
    dealing: Dealing,
) -> (String, Option<PipelineUse>) {
    let device = FileDevice::open(image.path()).unwrap();
    let journal = JournalUse::Ignore;
    let tuning = Tuning { schedule, dealing, ..Tuning::default() };
    let options = CheckOptions { threads, tuning, journal, ..Default::default() };
    let opened = match open(&device, options.superblock) {
        Ok(opened) => opened,
        Err(error) => return (error.to_string(), None),
    };
    match examine(&device, opened, Findings::default(), &options) {
        Ok(examination) => {
            let pipeline = examination.report.pipeline.clone();
            (examined::describe(&examination), pipeline)
        }
        Err(error) => (error.to_string(), None),
    }
}

/// The evidence for a repair is the same as well. Nearly all directory blocks must be judged early,
/// or the other tests would prove nothing.
#[test]
fn the_evidence_is_the_same_and_most_blocks_run_ahead() {
    if tool::missing() {
        return;
    }
    let (mut ahead, mut left) = (0, 0);
    for &profile in Profile::ALL {
        let image = build::base(profile).unwrap();
        let (expected, none) = leaves(&image, 1, Policy::Dynamic, Dealing::InOrder);
        assert!(none.is_none(), "one worker overlaps nothing");
        let (ranges, _) = leaves(&image, 3, Policy::Data, Dealing::Ranges);
        assert!(ranges == expected, "{profile}:\none thread: {expected}\nby ranges: {ranges}");
        for schedule in Policy::ALL {
            let (got, used) = leaves(&image, 3, schedule, Dealing::InOrder);
            assert!(got == expected, "{profile}, {schedule}:\none thread: {expected}\nnow: {got}");
            assert!(used.is_none() || schedule != Policy::Data);
            let Some(PipelineUse { policy, counts, blocks }) = used else { continue };
            assert_eq!(policy, schedule);
            ahead += blocks.plain + blocks.delayed;
            left += blocks.left;
            // One visit to the queues a batch, and one for each time that a worker slept or found
            // nothing left to do: no lock for an inode or a block.
            let visits = counts.batches + counts.spilled + 2 * counts.sleeps + 2 * 3;
            assert!(counts.locks <= visits, "{profile}: {counts:?}");
        }
    }
    assert!(ahead > 10 * left, "{ahead} ahead, {left} left");
}

/// A budget of memory has passes overlap where there is room for what that keeps besides, and has them
/// come one after the other where there is not.
#[test]
fn passes_overlap_within_a_budget_that_has_room() {
    if tool::missing() {
        return;
    }
    for subject in subjects::sound() {
        let subject = subject.unwrap();
        let journal = JournalUse::Ignore;
        let accounting = Accounting::Exact;
        let tuning = Tuning { schedule: Policy::Dynamic, accounting, ..Tuning::default() };
        let options = |limit_bytes| CheckOptions {
            threads: 2,
            tuning,
            journal,
            memory: MemoryLimit { limit_bytes, held_bytes: 0 },
            ..Default::default()
        };
        let free = run(&subject, &options(None)).unwrap();
        let estimate = free.plan.unwrap().estimate.total();
        let overlapped = |report: &Report| report.pipeline.is_some();
        // Between is what overlapping takes besides on such small images. (A little room is for what the
        // descriptors do not tell.)
        let (tight, wide) = (Some(estimate + (512 << 10)), Some(estimate + (4 << 20)));
        let [tight, wide] = [tight, wide].map(|budget| run(&subject, &options(budget)).unwrap());
        assert_eq!(overlapped(&wide), overlapped(&free), "{}", subject.name);
        assert!(!overlapped(&tight), "{}", subject.name);
        assert_eq!(tight.plan.unwrap().way, wide.plan.unwrap().way);
        let [free, tight, wide] = [free, tight, wide].map(|report| describe(&Ok(report)));
        assert!(free == tight && free == wide, "{}", subject.name);
    }
}
