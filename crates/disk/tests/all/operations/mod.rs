//! Random operations on volumes of every profile, judged by e2fsck, by a small reader and by the kernel.

mod cached;
mod colocate;
mod content;
mod damage;
mod known;
mod limits;
mod lists;
mod model;
mod native;
mod refusals;
mod rext3;
mod sweep;
mod values;

use floe_blockdev::MemDevice;
use floe_testkit::{Image, Profile, build, kernel, oracle, tool, tree};
use model::Model;

/// The content of the device as an image file.
fn image_of(device: &MemDevice) -> Image {
    Image::of(device).unwrap()
}

fn device_of(image: &Image) -> MemDevice {
    MemDevice::new(std::fs::read(image.path()).unwrap())
}

fn judge(image: &Image, what: &str) {
    let verdict = oracle::e2fsck(image).unwrap();
    assert!(verdict.clean(), "{what}: {}", verdict.text);
}

/// Profiles whose features are refused for writing.
const REFUSED: &[Profile] = &[Profile::Mmp];

fn writable() -> impl Iterator<Item = Profile> {
    let only = std::env::var("FLOE_PROFILE").ok();
    let all = Profile::ALL.iter().copied().filter(|profile| !REFUSED.contains(profile));
    all.filter(move |profile| only.as_deref().is_none_or(|only| only == profile.name()))
}

#[test]
fn random_operations_do_what_the_model_does() {
    if tool::missing() {
        return;
    }
    let mount = kernel::mount_available();
    if let Err(reason) = &mount {
        eprintln!("not compared with the kernel: {reason}");
    }
    let seeds = std::env::var("FLOE_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    for (profile, seed) in
        writable().flat_map(|profile| (0..seeds).map(move |seed| (profile, seed)))
    {
        let what = format!("{profile}, seed {seed}");
        eprintln!("{what}");
        let device = device_of(&build::empty(profile).unwrap());
        let mut model = Model::new(&device, profile, seed);
        for _ in 0..400 {
            model.step();
        }
        model.leave();
        let image = image_of(&device);
        judge(&image, &what);
        model.compare(&tree::stored(&image).unwrap());
        // A kernel may lack a feature.
        let empty = build::empty(profile).unwrap();
        if mount.is_ok() && kernel::verdict(&empty, "ro").unwrap().is_ok() {
            let mounted = kernel::Mounted::new(image.path(), "ro").expect(&what);
            model.compare(&tree::mounted(mounted.path()).unwrap());
            mounted.unmount().unwrap();
        }
    }
}
