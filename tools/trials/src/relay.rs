//! `cargo xtask relay`: Floe writes, Linux mounts and writes, `e2fsck -fyD`, Floe writes ...: after each turn both find what a model
//! has, and e2fsck and Floe find nothing wrong.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use floe_testkit::relay::{self, Relay};
use floe_testkit::tool::built_floe;
use floe_testkit::{Image, Profile, build, kernel, oracle};

use crate::mounted::{Kind, Mounted};

/// Bytes of a native image.
const NATIVE_BYTES: u64 = 80 << 20;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Rounds, distributed over the profiles: one turn of Floe and one of Linux each
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// Calls of a turn
    #[arg(long, default_value_t = 300)]
    calls: u32,
    /// Only these profiles (repeat, or separate by commas), `native` among them; by default all
    #[arg(long, value_delimiter = ',')]
    profile: Vec<String>,
    /// Options of Floe's mounts
    #[arg(long, short, default_value = "rw")]
    options: String,
    /// First seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// The program to test; by default target/release/floe or target/debug/floe
    #[arg(long)]
    floe: Option<PathBuf>,
}

/// Runs the command; keeps the first image with a difference.
pub(crate) fn run(args: &Args) -> Result<()> {
    kernel::mount_available().and_then(|()| relay::available()).map_err(anyhow::Error::msg)?;
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    let names: Vec<String> =
        args.profile.iter().filter(|name| *name != "native").cloned().collect();
    let only_native = names.is_empty() && !args.profile.is_empty();
    let profiles = if only_native { Vec::new() } else { Profile::named(&names)? };
    let native = args.profile.is_empty() || names.len() < args.profile.len();
    let profiles = profiles.into_iter().map(Some).chain(native.then_some(None));
    let (mut able, mut left_out) = (Vec::new(), Vec::new());
    for profile in profiles {
        let name = profile.map_or("native", Profile::name);
        match both_write(&floe, args, profile) {
            Ok(()) => able.push((name, profile)),
            Err(why) => left_out.push(format!("{name}: {why:#}")),
        }
    }
    ensure!(!able.is_empty(), "no profile is written by both: {}", left_out.join("; "));
    let (mut done, mut calls) = (0, 0);
    for (at, (name, profile)) in (0u32..).zip(&able) {
        let count = able.len() as u32;
        let rounds = args.rounds / count + u32::from(at < args.rounds % count);
        if rounds == 0 {
            continue;
        }
        let image = image_of(&floe, *profile)?;
        let seed = args.from + u64::from(at);
        let made = relayed(&floe, args, &image, seed, rounds);
        let made =
            made.with_context(|| format!("{name}, seed {seed}: kept {}", image.keep().display()))?;
        println!("{name}: {rounds} rounds, {made} calls that succeeded");
        (done, calls) = (done + rounds, calls + made);
    }
    left_out.iter().for_each(|line| println!("left out: {}", line.trim()));
    println!("{done} rounds, {calls} calls: clean and equal to the model after each turn");
    Ok(())
}

/// `Err` unless both Floe and the kernel mount such an image for writing.
fn both_write(floe: &Path, args: &Args, profile: Option<Profile>) -> Result<()> {
    let image = image_of(floe, profile)?;
    kernel::Mounted::new(image.path(), "rw")?.unmount()?;
    let ours = Mounted::new(floe, image.path(), &args.options)?;
    let said = ours.said.clone();
    ours.unmount()?;
    if said.contains("read-only") {
        bail!("{said}");
    }
    Ok(())
}

fn image_of(floe: &Path, profile: Option<Profile>) -> Result<Image> {
    let Some(profile) = profile else {
        let image = Image::empty(NATIVE_BYTES)?;
        Kind::Native.make(floe, image.path())?;
        return Ok(image);
    };
    build::base(profile)
}

fn relayed(floe: &Path, args: &Args, image: &Image, seed: u64, rounds: u32) -> Result<u32> {
    let mut relay = Relay::new(seed)?;
    let mut calls = 0;
    for round in 0..rounds {
        let ours = Mounted::new(floe, image.path(), &args.options)?;
        let turn = relay.turn(ours.path(), args.calls);
        let seen = turn.and_then(|made| relay.compare(ours.path()).map(|()| made));
        let unmounted = ours.unmount();
        calls += seen.with_context(|| format!("round {round}, Floe"))?;
        unmounted?;
        judge(floe, image).with_context(|| format!("round {round}, after Floe"))?;

        let theirs = kernel::Mounted::new(image.path(), "rw")?;
        let found = relay.compare(theirs.path()).context("what Floe wrote");
        let turn = found.and_then(|()| relay.turn(theirs.path(), args.calls));
        theirs.unmount()?;
        calls += turn.with_context(|| format!("round {round}, Linux"))?;
        let sorted = oracle::run(image.path(), &["-fyD"])?;
        ensure!(matches!(sorted.exit, Some(0 | 1)), "round {round}, e2fsck -fyD: {}", sorted.text);
        judge(floe, image).with_context(|| format!("round {round}, after Linux"))?;
    }
    let theirs = kernel::Mounted::new(image.path(), "ro")?;
    let found = relay.compare(theirs.path());
    theirs.unmount()?;
    found.context("at the end")?;
    Ok(calls)
}

/// Floe and e2fsck find nothing wrong.
fn judge(floe: &Path, image: &Image) -> Result<()> {
    let checked = Command::new(floe).arg("check").arg(image.path()).output()?;
    ensure!(checked.status.success(), "floe check: {}", String::from_utf8_lossy(&checked.stdout));
    let judged = oracle::e2fsck(image)?;
    ensure!(judged.clean(), "e2fsck -fn: {}", judged.text);
    Ok(())
}
