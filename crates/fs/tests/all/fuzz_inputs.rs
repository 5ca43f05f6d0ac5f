//! Mounts of damage found by fuzzing (`fuzz/regressions/mount_image`, and the inputs that broke the check and the
//! repair), and of some random damage.

use std::path::Path;

use floe_testkit::damage::script::{self, Maker};
use floe_testkit::{Profile, Rng, tool};

use crate::mounted_image::Stages;

#[test]
fn inputs_that_once_hurt_do_not_any_more() {
    if tool::missing() {
        return;
    }
    let mut stages = Stages::default();
    for target in ["mount_image", "repair_image", "check_image"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/regressions");
        let Ok(listing) = std::fs::read_dir(folder.join(target)) else { continue };
        for file in listing.map(|entry| entry.expect("listed").path()) {
            eprintln!("{}", file.display());
            stages.mount(&std::fs::read(&file).expect("readable"));
        }
    }
}

#[test]
fn random_scripts_do_not_hurt_a_mount() {
    if tool::missing() {
        return;
    }
    let (mut stages, mut rng) = (Stages::default(), Rng::new(0x0f10e));
    // Few profiles, because building an image takes longer than mounting it.
    let profiles = [Profile::Ext4K1, Profile::Bigalloc, Profile::InlineEaInode, Profile::Quota];
    for round in 0..160u32 {
        let mut script = script::random(&mut rng, profiles[round as usize % profiles.len()]);
        if round % 10 == 0 {
            // Nothing is damaged: the mount must keep it so.
            script.truncate(3);
        }
        eprintln!("round {round}: {script:02x?}");
        stages.mount(&script);
    }
}

/// The same for native file systems.
#[test]
fn random_scripts_do_not_hurt_a_mount_of_a_native_image() {
    if tool::missing() {
        return;
    }
    let (mut stages, mut rng) = (Stages::default(), Rng::new(0x0f10f));
    for round in 0..80u32 {
        let mut script = script::random_for(&mut rng, Maker::Native);
        if round % 10 == 0 {
            script.truncate(3);
        }
        eprintln!("round {round}: {script:02x?}");
        stages.mount(&script);
    }
}
