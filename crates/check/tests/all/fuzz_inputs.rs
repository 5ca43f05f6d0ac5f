//! Damage on which a fuzzer once succeeded (`fuzz/regressions/check_image`), and some it never saw.

use std::path::Path;

use floe_testkit::damage::script;
use floe_testkit::{Profile, Rng, tool};

use crate::fuzzed_image::Stages;

#[test]
fn inputs_that_once_hurt_do_not_any_more() {
    if tool::missing() {
        return;
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/regressions/check_image");
    let Ok(listing) = std::fs::read_dir(&folder) else { return };
    let mut stages = Stages::default();
    for file in listing.map(|entry| entry.expect("listed").path()) {
        eprintln!("{}", file.display());
        stages.check(&std::fs::read(&file).expect("readable"));
    }
}

#[test]
fn random_scripts_neither_panic_nor_depend_on_threads() {
    if tool::missing() {
        return;
    }
    let (mut stages, mut rng) = (Stages::default(), Rng::new(0xf10e));
    for round in 0..300u32 {
        // A few profiles, as building an image takes longer than looking at it.
        let profiles = [Profile::Ext4K1, Profile::Ext3, Profile::Bigalloc, Profile::InlineEaInode];
        let script = script::random(&mut rng, profiles[round as usize % profiles.len()]);
        eprintln!("round {round}: {script:02x?}");
        stages.check(&script);
    }
}
