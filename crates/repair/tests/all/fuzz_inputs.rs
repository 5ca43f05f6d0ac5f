//! Repairs of damage found by fuzzing (`fuzz/regressions/repair_image`, and the inputs that broke
//! the check), and of some random damage.

use std::path::Path;

use floe_testkit::damage::script::{self, Maker};
use floe_testkit::{Profile, Rng, tool};

use crate::repaired_image::Stages;

#[test]
fn inputs_that_once_hurt_do_not_any_more() {
    if tool::missing() {
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
    if tool::missing() {
        return;
    }
    let (mut stages, mut rng) = (Stages::default(), Rng::new(0xf10e));
    for round in 0..120u32 {
        // Few profiles, because building an image takes longer than checking it.
        let profiles = [Profile::Ext4K1, Profile::Ext3, Profile::Bigalloc, Profile::InlineEaInode];
        let script = script::random(&mut rng, profiles[round as usize % profiles.len()]);
        eprintln!("round {round}: {script:02x?}");
        stages.repair(&script);
    }
}

/// The same for file systems that only Floe makes.
#[test]
fn random_scripts_for_images_of_floe_are_repaired_once_and_undone() {
    if tool::missing() {
        return;
    }
    let (mut stages, mut rng) = (Stages::default(), Rng::new(0xf10f));
    for round in 0..80u32 {
        let maker = if round % 2 == 0 { Maker::Native } else { Maker::Rext3 };
        let script = script::random_for(&mut rng, maker);
        eprintln!("round {round}: {script:02x?}");
        stages.repair(&script);
    }
}
