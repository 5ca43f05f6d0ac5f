//! Floe, Linux and e2fsck take turns at one file system, beside a model: a short run of what `cargo xtask relay` does over all
//! profiles.

use floe_testkit::relay::{self, Relay};
use floe_testkit::{Image, Profile, build, kernel, oracle};

use super::floe;
use super::mount::{Ours, can_mount};

/// Calls of a turn.
const CALLS: u32 = 150;

/// A new native file system.
fn native() -> Image {
    let image = Image::empty(0).unwrap();
    let path = image.path().to_str().unwrap();
    let made = floe(&["mkfs", "-q", "-F", "-t", "native", "-E", "lot_size=16m", path, "48m"]);
    assert_eq!((made.code, made.err.as_str()), (0, ""));
    image
}

fn judge(image: &Image, what: &str) {
    let checked = floe(&["check", image.path().to_str().unwrap()]);
    assert_eq!(checked.code, 0, "{what}: {}", checked.out);
    let judged = oracle::e2fsck(image).unwrap();
    assert!(judged.clean(), "{what}: {}", judged.text);
}

#[test]
fn each_turn_of_a_relay_leaves_what_the_model_has() {
    let able = kernel::mount_available().and_then(|()| relay::available());
    if let Err(why) = able {
        eprintln!("skipped: {why}");
        return;
    }
    if !can_mount() {
        return;
    }
    let stock = [Profile::Ext2K1, Profile::Ext4K1, Profile::InlineData];
    let images = stock.map(|profile| (profile.name(), build::base(profile).unwrap()));
    for (seed, (name, image)) in (1..).zip(images.into_iter().chain([("native", native())])) {
        let mut relay = Relay::new(seed).unwrap();
        let mut made = 0;
        for round in 0..2 {
            let what = format!("{name}, round {round}");
            let ours = Ours::new(image.path(), &[]);
            let turn = relay.turn(ours.path(), CALLS);
            let seen = turn.and_then(|turn| relay.compare(ours.path()).map(|()| turn));
            ours.unmount();
            made += seen.unwrap_or_else(|error| panic!("{what}, Floe: {error:#}"));
            judge(&image, &what);

            let theirs = kernel::Mounted::new(image.path(), "").unwrap();
            let found = relay.compare(theirs.path());
            let turn = found.and_then(|()| relay.turn(theirs.path(), CALLS));
            theirs.unmount().unwrap();
            made += turn.unwrap_or_else(|error| panic!("{what}, Linux: {error:#}"));
            let sorted = oracle::run(image.path(), &["-fyD"]).unwrap();
            assert!(matches!(sorted.exit, Some(0 | 1)), "{what}: {}", sorted.text);
            judge(&image, &what);
        }
        assert!(made > 80, "{name}: only {made} calls succeeded");
    }
}
