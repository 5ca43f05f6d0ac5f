//! File systems that the running kernel filled, in every profile it can mount: unmounted cleanly, and
//! cut off at random moments with a journal to replay. All are clean, for Floe and for e2fsck.
//!
//! Only on request, `FLOE_KERNEL_ROUNDS=1 cargo test -p floe-check --test kernel_images`: Linux 6.18
//! was seen to deadlock under this load, and then `sync` hangs for every program of the machine.

use floe_blockdev::FileDevice;
use floe_check::{CheckOptions, JournalUse, check};
use floe_testkit::image::Image;
use floe_testkit::kernel::{crashed, loaded, mount_available};
use floe_testkit::{Profile, oracle};

/// How long the kernel works on each image.
const LOAD_MILLIS: u64 = 120;
/// Power failures of each profile with a journal.
const CRASHES: usize = 2;

/// What Floe says against an image; empty if it is clean.
fn complaints(image: &Image, journal: JournalUse) -> Vec<String> {
    let device = FileDevice::open(image.path()).expect("the image was just written");
    let options = CheckOptions { threads: 2, journal, ..CheckOptions::default() };
    match check(&device, &options) {
        Ok(report) if report.is_clean() => Vec::new(),
        Ok(report) => report.found.iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}

fn faults_of(profile: Profile, seed: u64) -> Vec<String> {
    if profile.has("inline_data") {
        // Linux 6.18: the thread that commits a transaction flushes data, turns inline data into
        // blocks for it, needs room in a small journal, and waits for itself. For ever.
        eprintln!(
            "skipped {profile}: under load Linux deadlocks on inline data and a small journal"
        );
        return Vec::new();
    }
    let image = match loaded(profile, seed, LOAD_MILLIS) {
        Ok(image) => image,
        Err(refusal) => {
            let reason = format!("{refusal:#}");
            eprintln!("skipped {profile}: {}", reason.lines().next().unwrap_or_default());
            return Vec::new();
        }
    };
    let mut faults = Vec::new();
    let found = complaints(&image, JournalUse::Replay);
    if !found.is_empty() {
        faults.push(format!("{profile}, seed {seed}, unmounted: {found:?}"));
    }
    // Without a journal nothing promises a clean file system after a power failure.
    let images = crashed(profile, seed, CRASHES).unwrap_or_default();
    for (at, image) in images.iter().enumerate() {
        let found = complaints(image, JournalUse::Replay);
        if found.is_empty() {
            continue;
        }
        let (recovered, after) = oracle::e2fsck_repair(image).expect("e2fsck runs");
        let clean = oracle::e2fsck(&after).expect("e2fsck runs").clean();
        if matches!(recovered.exit, Some(0 | 1)) && clean && has_journal(profile) {
            faults.push(format!(
                "{profile}, seed {seed}, crash {at}: {found:?}\ne2fsck: {}",
                recovered.text
            ));
        }
    }
    faults
}

fn has_journal(profile: Profile) -> bool {
    !profile.has("^has_journal") && !profile.mke2fs_args().contains(&"ext2")
}

#[test]
fn what_the_kernel_wrote_is_clean() {
    if let Err(reason) = mount_available() {
        eprintln!("skipped: {reason}");
        return;
    }
    let asked = std::env::var("FLOE_KERNEL_ROUNDS").ok().and_then(|text| text.parse().ok());
    let Some(rounds) = asked else {
        eprintln!("skipped: the load can deadlock Linux; set FLOE_KERNEL_ROUNDS to run it");
        return;
    };
    let faults: Vec<String> = (0..rounds)
        .flat_map(|seed| Profile::ALL.iter().flat_map(move |&profile| faults_of(profile, seed)))
        .collect();
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}
