//! `cargo xtask linux-fields`: sets fields of inodes, the superblock and group descriptors to odd
//! values, one per image, and lets Floe, e2fsck and Linux judge the result. Images that Floe calls
//! clean, or repairs and then calls clean, must be mountable and readable in Linux.

mod fields;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, anyhow, bail};
use floe_testkit::{Image, Profile, Rng, oracle, tool};

use crate::findings::{Names, findings_codes, name_of, names};
use crate::linux_judge::{BATCH, LinuxJudge, known_profiles};
use fields::{Change, changes};
use floe_testkit::tool::built_floe;

/// Time limit in seconds, after which Floe counts as hung.
const LIMIT_SECONDS: u32 = 60;
/// Number of changes tried before Linux judges them together.
const PORTION: usize = 4 * BATCH;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only these profiles (repeat, or separate by commas)
    #[arg(long, value_delimiter = ',', default_value = "orphan-file,quota,ext4,ext3,fast-commit")]
    profile: Vec<String>,
    /// Only changes whose name contains this, such as "<8>" or "i_extra_isize"
    #[arg(long, default_value = "")]
    only: String,
    /// At most this many changes of each profile, chosen by --seed; by default all
    #[arg(long)]
    sample: Option<usize>,
    /// Seed of the sample
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The program to judge; by default target/release/floe or target/debug/floe
    #[arg(long)]
    floe: Option<PathBuf>,
    /// The kernel that judges; by default User Mode Linux, else as for kernel-load
    #[arg(long)]
    kernel: Option<PathBuf>,
    /// Folder for images with a fault
    #[arg(long, default_value = "target/linux-fields")]
    keep: PathBuf,
}

/// One changed image, and its results.
struct Tried {
    name: String,
    profile: Profile,
    image: Image,
    /// The image after Floe's repair, if Floe found damage and repaired it.
    repaired: Option<Image>,
    floe: Option<i32>,
    e2fsck: Option<i32>,
    found: String,
}

/// Totals.
#[derive(Default)]
struct Summary {
    changes: usize,
    clean: usize,
    repaired: usize,
    not_repaired: usize,
    stricter_than_e2fsck: usize,
    stricter_than_both: BTreeMap<String, Vec<String>>,
    faults: Vec<String>,
}

/// Runs the command; fails if Linux refuses an image that Floe calls clean.
pub(crate) fn run(args: &Args) -> Result<()> {
    tool::available().map_err(|reason| anyhow!(reason))?;
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    let judge = LinuxJudge::find(args.kernel.as_deref())?;
    let names = names();
    let begin = Instant::now();
    let mut summary = Summary::default();
    for profile in known_profiles(&judge, &Profile::named(&args.profile)?)? {
        let mut wanted = changes(profile)?;
        wanted.retain(|change| change.name.contains(&args.only));
        if let Some(sample) = args.sample {
            shuffle(&mut wanted, args.seed);
            wanted.truncate(sample);
        }
        for portion in wanted.chunks(PORTION) {
            let tried: Vec<Tried> = portion
                .iter()
                .filter_map(|change| attempt(change, profile, &floe, &names).transpose())
                .collect::<Result<_>>()?;
            ask_linux(&judge, tried, &args.keep, &mut summary)?;
            eprintln!("{profile}: {} changes", summary.changes);
        }
    }
    summary.print(begin.elapsed().as_secs_f64());
    if !summary.faults.is_empty() {
        bail!("{} faults; their images are in {}", summary.faults.len(), args.keep.display());
    }
    Ok(())
}

fn shuffle(changes: &mut [Change], seed: u64) {
    let mut rng = Rng::new(seed);
    for at in (1..changes.len()).rev() {
        changes.swap(at, rng.below(at as u64 + 1) as usize);
    }
}

/// Applies a change, and lets Floe and e2fsck judge it; `None` if nothing changed.
fn attempt(change: &Change, profile: Profile, floe: &Path, names: &Names) -> Result<Option<Tried>> {
    let image = change.recipe.build()?;
    let base = change.recipe.base()?;
    if floe_testkit::compare::same_but_times(&base, &image)? {
        return Ok(None);
    }
    let name = change.name.clone();
    let mut check = tool::command(&floe.display().to_string());
    check.args(["check", "--json"]).arg(image.path());
    let check = tool::run(&check, LIMIT_SECONDS)?;
    let codes = findings_codes(&check.text).unwrap_or_default();
    let found = codes.iter().map(|&code| name_of(names, code)).collect::<Vec<_>>().join(" ");
    let e2fsck = oracle::e2fsck(&image)?.exit;
    let mut repaired = None;
    if check.exit == Some(4) {
        let copy = image.copy()?;
        let mut repair = tool::command(&floe.display().to_string());
        repair.args(["fsck", "-fy"]).arg(copy.path());
        if matches!(tool::run(&repair, LIMIT_SECONDS)?.exit, Some(0 | 1)) {
            repaired = Some(copy);
        }
    }
    Ok(Some(Tried { name, profile, image, repaired, floe: check.exit, e2fsck, found }))
}

/// Lets Linux judge images that Floe calls clean or repaired, and those that only Floe calls
/// damaged.
fn ask_linux(
    judge: &LinuxJudge,
    tried: Vec<Tried>,
    keep: &Path,
    summary: &mut Summary,
) -> Result<()> {
    let asked_as_is = |one: &Tried| one.floe == Some(0) || one.e2fsck == Some(0);
    let mut paths = Vec::new();
    for one in &tried {
        paths.extend(asked_as_is(one).then(|| one.image.path()));
        paths.extend(one.repaired.as_ref().map(Image::path));
    }
    let mut opinions = judge.judge(&paths)?.into_iter();
    for one in &tried {
        let as_is = asked_as_is(one).then(|| opinions.next()).flatten();
        let repaired = one.repaired.is_some().then(|| opinions.next()).flatten();
        summary.changes += 1;
        let (profile, name) = (one.profile, &one.name);
        if let (Some(0), Some(opinion)) = (one.floe, &as_is) {
            summary.clean += 1;
            if !opinion.is_content() {
                let said = opinion.complaints.join("; ");
                summary.faults.push(format!("{profile} {name}: Floe: clean; Linux: {said}"));
                kept(&one.image, keep, profile, name)?;
            }
        } else if let (Some(4), Some(opinion)) = (one.floe, &as_is) {
            summary.stricter_than_e2fsck += 1;
            if opinion.is_content() {
                let names = summary.stricter_than_both.entry(one.found.clone()).or_default();
                names.push(format!("{profile} {name}"));
            }
        }
        match (&repaired, one.floe) {
            (Some(opinion), _) => {
                summary.repaired += 1;
                if !opinion.is_content() {
                    let said = opinion.complaints.join("; ");
                    let found = &one.found;
                    summary
                        .faults
                        .push(format!("{profile} {name}: Floe repaired {found}; Linux: {said}"));
                    kept(&one.image, keep, profile, name)?;
                }
            }
            (None, Some(0)) => {}
            (None, _) => summary.not_repaired += 1,
        }
    }
    Ok(())
}

fn kept(image: &Image, keep: &Path, profile: Profile, name: &str) -> Result<()> {
    std::fs::create_dir_all(keep)?;
    let name: String =
        name.chars().map(|char| if char.is_alphanumeric() { char } else { '-' }).collect();
    std::fs::copy(image.path(), keep.join(format!("{profile}-{name}.img")))?;
    Ok(())
}

impl Summary {
    fn print(&self, seconds: f64) {
        for (found, names) in &self.stricter_than_both {
            println!(
                "damaged only according to Floe ({}): {found}, such as {}",
                names.len(),
                names[0]
            );
        }
        for fault in &self.faults {
            println!("FAULT {fault}");
        }
        println!(
            "{} changed images in {seconds:.0} s: Floe called {} clean and repaired {}, all but {} faults \
             accepted by Linux; {} not repaired; e2fsck called {} clean that Floe called damaged, and with \
             Linux against Floe {}",
            self.changes,
            self.clean,
            self.repaired,
            self.faults.len(),
            self.not_repaired,
            self.stricter_than_e2fsck,
            self.stricter_than_both.values().map(Vec::len).sum::<usize>(),
        );
    }
}
