//! Native images, made by the program itself, with the files of the profiles. For e2fsck and Linux
//! they are ext4. Those of rext3 are made here, too.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Mutex;

use anyhow::{Context, Result, anyhow};
use floe_testkit::image::Contents;
use floe_testkit::{Image, Profile, build, tool};

use super::super::{Args, built_floe, chosen};
use super::rext3;

/// Size of the images: four lots.
const SIZE: &str = "64m";
const OPTIONS: [&str; 8] =
    ["-t", "native", "-E", "lot_size=16m,region_size=1m", "-N", "2048", "-J", "size=4"];

/// The chosen profiles whose files a native image can hold: those with extents and attributes.
pub(super) fn profiles(args: &Args) -> Result<Vec<Profile>> {
    let mut profiles = chosen(args)?;
    let unlike = ["casefold", "encrypt", "verity", "bigalloc", "stable_inodes", "quota"];
    profiles
        .retain(|profile| profile.extents() && !unlike.iter().any(|feature| profile.has(feature)));
    Ok(profiles)
}

/// The native image with the files of a profile; made once for each profile.
pub(super) fn base(args: &Args, profile: Profile) -> Result<Image> {
    static MADE: Mutex<BTreeMap<Profile, Contents>> = Mutex::new(BTreeMap::new());
    let mut made = MADE.lock().map_err(|_| anyhow!("a worker panicked"))?;
    let contents = match made.entry(profile) {
        Entry::Occupied(made) => made.into_mut(),
        Entry::Vacant(entry) => entry.insert(make(args, profile)?),
    };
    contents.to_image()
}

fn make(args: &Args, profile: Profile) -> Result<Contents> {
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    let (options, size): (&[&str], &str) =
        if args.rext3 { (&rext3::OPTIONS, rext3::SIZE) } else { (&OPTIONS, SIZE) };
    let files = build::base(profile)?;
    let image = Image::empty(0)?;
    let mut command = tool::command(floe.to_str().context("a path that is not UTF-8")?);
    command.arg("mkfs").args(options).args(["-F", "-U", build::UUID, "--from"]);
    command.arg(format!("image:{}", files.path().display())).arg(image.path()).arg(size);
    tool::run(&command, 60)?.expect("floe mkfs", &[0])?;
    Contents::read(image.path())
}
