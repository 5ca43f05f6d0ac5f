//! Repairs of damage on which a fuzzer once succeeded (`fuzz/regressions/repair_image`, and what hurt
//! the check), and of some it never saw.

use std::path::Path;

use floe_testkit::{Profile, Rng, tool};

mod repaired_image;

use repaired_image::Stages;

#[test]
fn inputs_that_once_hurt_do_not_any_more() {
    if let Err(reason) = tool::available() {
        eprintln!("skipped: {reason}");
        return;
    }
    let mut stages = Stages::default();
    for target in ["repair_image", "check_image"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/regressions");
        let Ok(listing) = std::fs::read_dir(folder.join(target)) else { continue };
        for file in listing.map(|entry| entry.expect("listed").path()) {
            eprintln!("{}", file.display());
            stages.repair(&std::fs::read(&file).expect("readable"));
        }
    }
}

#[test]
fn random_scripts_are_repaired_once_and_undone() {
    if let Err(reason) = tool::available() {
        eprintln!("skipped: {reason}");
        return;
    }
    let (mut stages, mut rng) = (Stages::default(), Rng::new(0xf10e));
    for round in 0..120u32 {
        let mut script = vec![0; 3 + 13 * (1 + rng.index(4))];
        rng.fill(&mut script);
        let profiles = [Profile::Ext4K1, Profile::Ext3, Profile::Bigalloc, Profile::InlineEaInode];
        let profile = profiles[round as usize % profiles.len()];
        let number = Profile::ALL.iter().position(|&one| one == profile);
        script[0] = u8::try_from(number.expect("listed")).expect("few profiles");
        // Mostly whole images whose blocks can all be read.
        script[1] &= if rng.chance(8) { 0xff } else { 1 };
        eprintln!("round {round}: {script:02x?}");
        stages.repair(&script);
    }
}
