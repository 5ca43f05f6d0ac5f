//! `cargo xtask mount-damage`: does a mount spread damage? Floe mounts damaged images and a load
//! changes files. Then one `e2fsck -fy` must be enough, and no file that the load left alone may be
//! lost that `e2fsck -fy` keeps in the same image if nobody ever mounts it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use floe_testkit::damage::{Damage, damaged_image};
use floe_testkit::rng::Rng;
use floe_testkit::tree::{self, Tree};
use floe_testkit::{Image, Profile, build, oracle, tool};

use crate::mounted::Mounted;
use floe_testkit::tool::built_floe;

/// e2fsck's code for a usage in a quota file that is wrong.
const QUOTA_USAGE: u32 = 0x06_0002;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of damaged images, distributed over the profiles
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Only these profiles (repeat, or separate by commas); by default all
    #[arg(long, value_delimiter = ',')]
    profile: Vec<String>,
    /// The program to test; by default target/release/floe or target/debug/floe
    #[arg(long)]
    floe: Option<PathBuf>,
    /// Mount options
    #[arg(long, short, default_value = "errors=continue")]
    options: String,
    /// Print every image, not only those with a difference
    #[arg(long)]
    verbose: bool,
    /// Keep images that differ, as they are after the unmount, and print their paths
    #[arg(long)]
    keep: bool,
}

/// The end of one image.
enum Fate {
    /// Floe does not mount it, or only for reading.
    Unwritten(String),
    /// e2fsck itself needs a second repair, or cannot repair the image that nobody mounted.
    NoMeasure,
    /// Floe wrote to it: what is worse than without the mount.
    Written(Vec<String>),
}

/// Runs the command; fails if a checksum betrays the damage and the mount spread it all the same.
pub(crate) fn run(args: &Args) -> Result<()> {
    tool::available().map_err(|reason| anyhow!(reason))?;
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    let profiles = Profile::named(&args.profile)?;
    let (mut written, mut unwritten, mut unmeasured) = (0, 0, 0);
    // Hidden: with right checksums, which no program that mounts can notice at once.
    let (mut spread, mut spread_hidden) = (0, 0);
    for seed in args.from..args.from + args.seeds {
        let profile = profiles[(seed % profiles.len() as u64) as usize];
        let (image, damage) = damaged_image(profile, seed)?;
        let hidden = is_hidden(profile, &damage);
        let name = format!("{}:{seed}{}", profile.name(), if hidden { " (hidden)" } else { "" });
        match fate(&floe, args, profile, &image, seed)? {
            Fate::Unwritten(why) => {
                unwritten += 1;
                if args.verbose {
                    println!("{name}: not written: {}", why.trim());
                }
            }
            Fate::NoMeasure => unmeasured += 1,
            Fate::Written(worse) => {
                written += 1;
                if worse.is_empty() {
                    continue;
                }
                *if hidden { &mut spread_hidden } else { &mut spread } += 1;
                println!("{name}: {damage}");
                worse.iter().take(8).for_each(|line| println!("    {line}"));
                if args.keep {
                    println!("    kept: {}", image.keep().display());
                }
            }
        }
    }
    println!(
        "{} images: {written} written by a mount, {unwritten} not, {unmeasured} beyond one \
         e2fsck -fy without a mount; worse by the mount: {spread} with damage that a checksum \
         betrays, {spread_hidden} with hidden damage",
        args.seeds
    );
    if spread > 0 {
        bail!("a mount spread damage that a checksum betrays");
    }
    Ok(())
}

/// Whether damage has right checksums, or the file system has none.
fn is_hidden(profile: Profile, damage: &Damage) -> bool {
    let without = ["ext2", "ext3", "no-csum", "gdt-csum"];
    without.iter().any(|name| profile.name().starts_with(name))
        || damage.events.iter().any(|event| event.contains("checksum updated"))
}

fn fate(floe: &Path, args: &Args, profile: Profile, image: &Image, seed: u64) -> Result<Fate> {
    let (_, alone) = oracle::e2fsck_repair(image)?;
    let (true, Ok(kept)) = (oracle::e2fsck(&alone)?.clean(), tree::stored(&alone)) else {
        return Ok(Fate::NoMeasure);
    };
    let mounted = match Mounted::new(floe, image.path(), &args.options) {
        Ok(mounted) => mounted,
        Err(refused) => return Ok(Fate::Unwritten(refused.to_string())),
    };
    if mounted.said.contains("read-only") {
        let said = mounted.said.clone();
        mounted.unmount()?;
        return Ok(Fate::Unwritten(said));
    }
    let touched = load(mounted.path(), seed);
    // Fails where damage ended writing.
    let unmounted = mounted.unmount();
    let mut worse = Vec::new();
    if let Err(error) = unmounted {
        println!("    {}:{seed}: {error:#}", profile.name());
    }
    let (first, after) = oracle::e2fsck_repair(image)?;
    let second = oracle::e2fsck(&after)?;
    // Where e2fsck shrinks a directory in pass 3A, its own quota files keep the old usage.
    let by_e2fsck = first.text.contains("Optimizing directories")
        && second.codes().iter().all(|&code| code == QUOTA_USAGE);
    if !second.clean() && !by_e2fsck {
        worse.push(format!("e2fsck -fy was not enough; then: {}", second.text.trim()));
    }
    match tree::stored(&after) {
        Ok(after) => {
            let whole = tree::stored(&build::base(profile)?)?;
            worse.extend(lost(&whole, &kept, &after, &touched));
        }
        Err(error) => worse.push(format!("nothing can be read: {error:#}")),
    }
    if !worse.is_empty() && args.verbose {
        println!("{}", first.text);
    }
    Ok(Fate::Written(worse))
}

/// Files that a repair without a mount keeps as they were, and one after a mount does not, but for
/// those that the load touched.
fn lost(whole: &Tree, alone: &Tree, after: &Tree, touched: &BTreeSet<Vec<u8>>) -> Vec<String> {
    let mut names: BTreeMap<_, usize> = BTreeMap::new();
    for node in whole.values() {
        *names.entry(node.inode).or_default() += 1;
    }
    let mut lost = Vec::new();
    for (path, node) in whole {
        let again = alone.get(path).is_some_and(|kept| kept.identity() == node.identity());
        let kept = after.get(path).is_some_and(|kept| kept.identity() == node.identity());
        let linked = names.get(&node.inode).is_some_and(|&count| count > 1);
        if again && !kept && !touched.contains(path) && !linked && !node.is_dir() {
            lost.push(format!("lost or changed: {}", String::from_utf8_lossy(path)));
        }
    }
    lost
}

/// Makes, changes and removes files; the paths of existing files that it touched. Calls that meet
/// damage fail, and that is fine.
fn load(top: &Path, seed: u64) -> BTreeSet<Vec<u8>> {
    let mut rng = Rng::new(seed ^ 0x6c6f_6164);
    let mut touched = BTreeSet::new();
    let mut folders = vec![top.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries.flatten() {
            match entry.file_type() {
                // Damage can hide loops; real trees of the profiles are not so deep.
                Ok(kind) if kind.is_dir() && entry.path().components().count() < 40 => {
                    folders.push(entry.path());
                }
                Ok(kind) if kind.is_file() => files.push(entry.path()),
                _ => {}
            }
        }
        let _ = make(&folder, &mut rng);
    }
    files.sort();
    for path in files {
        if !rng.chance(3) {
            continue;
        }
        touched.insert(inside(top, &path));
        let _ = change(&path, &mut rng);
    }
    touched
}

/// The path in the image of a path below a mount point.
fn inside(top: &Path, path: &Path) -> Vec<u8> {
    let below = path.strip_prefix(top).unwrap_or(path);
    [b"/", below.as_os_str().as_bytes()].concat()
}

/// Makes files of many kinds in a folder, and removes half of them.
fn make(folder: &Path, rng: &mut Rng) -> std::io::Result<()> {
    for number in 0..4 {
        let path = folder.join(format!("floe-load-{number:x<60}"));
        let mut bytes = vec![0; 1 + rng.index(40_000)];
        rng.fill(&mut bytes);
        fs::write(&path, &bytes)?;
        let _ = rustix::fs::setxattr(
            &path,
            "user.load",
            &bytes[..bytes.len().min(300)],
            rustix::fs::XattrFlags::empty(),
        );
        symlink("t".repeat(100), folder.join(format!("floe-link-{number}")))?;
        fs::create_dir(folder.join(format!("floe-folder-{number}")))?;
        if number % 2 == 0 {
            fs::remove_file(path)?;
            fs::remove_dir(folder.join(format!("floe-folder-{number}")))?;
        }
    }
    Ok(())
}

/// Changes one existing file.
fn change(path: &Path, rng: &mut Rng) -> std::io::Result<()> {
    match rng.below(6) {
        0 => fs::remove_file(path),
        1 => fs::rename(path, path.with_extension("renamed")),
        2 => fs::set_permissions(path, fs::Permissions::from_mode(0o640)),
        3 => OpenOptions::new().write(true).open(path)?.set_len(rng.below(5000)),
        _ => {
            let file = OpenOptions::new().write(true).open(path)?;
            let at = file.metadata()?.len().min(1 << 20) + rng.below(30_000);
            file.write_all_at(&[b'f'; 3000], at)?;
            file.sync_all()
        }
    }
}
