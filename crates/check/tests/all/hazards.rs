//! The promises of `docs/safety.md` about failing devices and truncated images: a check reports
//! them in findings, ends, and gives the same answer for any number of threads.

use floe_blockdev::{Fault, FaultMix, Faulty, MemDevice, ReadBlocks};
use floe_check::report::Verdict;
use floe_check::{CheckError, CheckOptions, Problem, Report, check};
use floe_format::BlockNr;
use floe_testkit::volume::{Place, Volume, survey};
use floe_testkit::{Image, Profile, build, damage, tool};

/// Whether images can be built; says why not.
fn check_with(device: &dyn ReadBlocks, threads: usize) -> Result<Report, CheckError> {
    check(device, &CheckOptions { threads, ..CheckOptions::default() })
}

/// The answer without what may differ: times, and the system's words for an error.
fn answer(device: &dyn ReadBlocks, threads: usize) -> String {
    match check_with(device, threads) {
        Ok(report) => format!(
            "{:?} {:#?} {:?} {} {:?}",
            report.verdict(),
            report.found,
            report.totals,
            report.clusters_used,
            report.paths
        ),
        Err(CheckError::Read { what, .. }) => format!("cannot read {what}"),
        Err(error) => format!("{error:?}"),
    }
}

/// One block of each kind of metadata of an image, without what opening it needs.
fn metadata_blocks(image: &Image) -> Vec<(Place, BlockNr)> {
    let volume = Volume::open(image).expect("a base image");
    let mut blocks: Vec<(Place, BlockNr)> = Vec::new();
    for place in survey(&volume).expect("a base image") {
        let known = |(seen, _): &(Place, BlockNr)| {
            std::mem::discriminant(seen) == std::mem::discriminant(&place)
        };
        let opening = matches!(place, Place::Superblock | Place::Descriptor(_) | Place::Backup(_));
        if !opening && !blocks.iter().any(known) {
            let (at, _) = volume.range_of(place).expect("a base image");
            blocks.push((place, BlockNr(at / u64::from(volume.geometry.block_size))));
        }
    }
    blocks
}

#[test]
fn an_unreadable_block_is_a_finding_and_the_check_goes_on() {
    if tool::missing() {
        return;
    }
    let mut silent = Vec::new();
    for profile in [Profile::Ext4K1, Profile::Ext3, Profile::EaInode, Profile::Casefold] {
        let image = build::base(profile).expect("built");
        let block_bytes = u32::try_from(profile.block_size()).expect("small");
        for (place, block) in metadata_blocks(&image) {
            let device = Faulty::new(&image, block_bytes, [(block, Fault::Unreadable)]);
            let report = check_with(&device, 2).expect("the check goes on");
            if report.verdict() == Verdict::Clean {
                silent.push(format!("{profile}: {place:?} in {block}"));
            }
            assert_eq!(answer(&device, 1), answer(&device, 3), "{profile}: {place:?}");
        }
    }
    assert!(silent.is_empty(), "not a word about unreadable blocks:\n{}", silent.join("\n"));
}

#[test]
fn a_truncated_image_is_a_finding() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::Ext4K1).expect("built");
    let whole = image.size();
    for size_bytes in [whole - 1, whole - 1024, whole / 2, whole / 3, 70_000, 3000, 2048] {
        let device = Faulty::new(&image, 1024, []).truncated(size_bytes);
        match check_with(&device, 2) {
            Ok(report) => {
                let said = |problem: &Problem| {
                    use Problem::{FilesystemExceedsDevice, ImageTruncated};
                    matches!(problem, ImageTruncated { .. } | FilesystemExceedsDevice { .. })
                };
                assert!(report.found.iter().any(said), "{size_bytes}: {:?}", report.found);
                assert_ne!(report.verdict(), Verdict::Clean, "{size_bytes}");
            }
            // Too little is left to begin with.
            Err(_) => assert!(size_bytes < whole / 2, "{size_bytes} bytes are enough"),
        }
        assert_eq!(answer(&device, 1), answer(&device, 3), "{size_bytes} bytes");
    }
}

/// A superblock that claims `groups` groups, for a device that is far smaller.
fn claim_groups(image: &Image, groups: u32) {
    let volume = Volume::open(image).expect("a base image");
    let geometry = &volume.geometry;
    let mut bytes = [0; 1024];
    image.read(1024, &mut bytes).expect("read");
    let mut sb = volume.superblock.clone();
    sb.blocks_count_lo = groups * geometry.blocks_per_group;
    sb.inodes_count = groups * geometry.inodes_per_group;
    sb.encode_into(&mut bytes);
    image.write(1024, &bytes).expect("written");
    volume.fix_superblock().expect("written");
}

#[test]
fn a_small_image_that_claims_to_be_huge_costs_little() {
    if tool::missing() {
        return;
    }
    let image = build::base(Profile::Ext4K1).expect("built");
    let volume = Volume::open(&image).expect("a base image");
    for place in survey(&volume).expect("a base image") {
        // Without backups the claim has to be believed.
        if let (Place::Backup(_), Ok((at, len))) = (place, volume.range_of(place)) {
            image.write(at, &vec![0; len]).expect("written");
        }
    }
    // Behind the boot block and the superblock the device has room for so many descriptors.
    let most = u32::try_from((image.size() - 2048) / 64).expect("small");
    for groups in [1000, most, most + 16, 0x001f_ffff] {
        claim_groups(&image, groups);
        let begin = std::time::Instant::now();
        let seen = check_with(&image, 2);
        eprintln!("{groups} groups: {:?}", begin.elapsed());
        match seen {
            Ok(report) => {
                assert!(groups <= most && report.verdict() != Verdict::Clean);
                let mut kinds = std::collections::BTreeMap::<&str, usize>::new();
                report
                    .found
                    .iter()
                    .for_each(|found| *kinds.entry(found.row().id).or_default() += 1);
                assert!(report.found.len() < 4000, "{groups} groups: {kinds:?}");
            }
            Err(error) => assert!(groups > most, "{groups} groups: {error}"),
        }
    }
}

#[test]
fn the_number_of_threads_cannot_be_seen() {
    if tool::missing() {
        return;
    }
    for seed in 0..120u64 {
        let profile = Profile::ALL[seed as usize % Profile::ALL.len()];
        let (image, damage) = damage::damaged_image(profile, 7000 + seed).expect("damaged");
        let bytes = MemDevice::new(image.to_vec().expect("read"));
        // Every third device cannot read some blocks either.
        let unreadable = if seed % 3 == 0 { 3 } else { 0 };
        let mix = FaultMix { unreadable, ..FaultMix::default() };
        let device = Faulty::from_seed(&bytes, 1024, seed, mix);
        let alone = answer(&device, 1);
        for threads in [2, 3 + seed as usize % 14, 16] {
            assert!(alone == answer(&device, threads), "{profile}, {threads} threads, {damage}");
        }
    }
}
