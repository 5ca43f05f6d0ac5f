//! `cargo xtask differential`: compares Floe with e2fsck on randomly damaged images: their
//! findings, or with `--repair` their repairs. With `--shards` it compares Floe on many machines with Floe on one.

mod repair;
mod shards;
mod third;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use floe_testkit::differential::{Case, Group, Opinion, compare, difference, group};
use floe_testkit::tool::built_floe;
use floe_testkit::{Image, Profile, damage, oracle, tool};
use floe_vm::findings::{Names, findings_codes, name_of, names};

/// Time limit in seconds, after which Floe counts as hung.
const LIMIT_SECONDS: u32 = 20;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Number of damaged images to check, distributed over the profiles
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Aim the damage at weaknesses found in trials: reserved inodes, shared attribute blocks,
    /// collisions with metadata, maps that lead nowhere, bits of several inodes of one block
    #[arg(long)]
    aimed: bool,
    /// Damage as a hostile examiner makes it: one fault in all objects of a kind, structures
    /// exchanged or moved, all copies lost, ends of tables, false orphans
    #[arg(long, conflicts_with = "aimed")]
    hostile: bool,
    /// Only these profiles (repeat, or separate by commas); by default all but the unusual ones
    #[arg(long, value_delimiter = ',')]
    profile: Vec<String>,
    /// Unusual profiles: blocks of 64 KiB, nearly all features at once, a tiny last group, ...
    #[arg(long, conflicts_with = "profile")]
    unusual: bool,
    /// Fill native images (`floe mkfs -t native --from`) with the files of the profiles
    #[arg(long, requires = "repair", conflicts_with = "recipes")]
    native: bool,
    /// Fill rext3 images with the files of the profiles. Nobody else knows rext3: a repair must be clean for Floe, change nothing in a
    /// second run, and keep what the damage left whole
    #[arg(long, requires = "repair", conflicts_with_all = ["recipes", "native", "kernel", "linux", "checker"])]
    rext3: bool,
    /// Number of images checked concurrently
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// The program to compare; by default target/release/floe or target/debug/floe
    #[arg(long)]
    floe: Option<PathBuf>,
    /// Number of cases to list in each group of differences
    #[arg(long, default_value_t = 3)]
    examples: usize,
    /// Show only differences of the verdict: crash, missed damage, false alarm
    #[arg(long)]
    verdicts: bool,
    /// Repeat one case, given as PROFILE:SEED, and show the output of both programs
    #[arg(long)]
    replay: Option<String>,
    /// With --replay: keep the damaged image and print its path
    #[arg(long)]
    keep: bool,
    /// Compare Floe with itself: the reports of 1, 2, 5 and 16 shards, with and without refinement,
    /// must be that of one machine, byte for byte
    #[arg(long, conflicts_with_all = ["repair", "verdicts", "keep"])]
    shards: bool,
    /// Let both programs repair a copy, and report damage that Floe leaves and data that it loses,
    /// if e2fsck does not
    #[arg(long)]
    repair: bool,
    /// With --repair: instead of random damage, apply this many variants of recipes of the problem
    /// table to one image: 1 uses each recipe on other objects and profiles, 2 uses pairs. Seeds
    /// count through the recipes
    #[arg(long, requires = "repair", value_name = "PARTS", value_parser = clap::value_parser!(u8).range(1..=8))]
    recipes: Option<u8>,
    /// With --repair: the program that repairs, called with `-fy IMAGE`, instead of `floe fsck`
    #[arg(long, requires = "repair")]
    checker: Option<String>,
    /// With --repair: compare files as the kernel's mount shows them (needs root)
    #[arg(long, requires = "repair")]
    kernel: bool,
    /// With --repair: mount and read every repaired image with Linux in a guest; a refusal is a
    /// fault
    #[arg(long, requires = "repair")]
    linux: bool,
}

/// Runs the command; fails if a verdict differs.
pub(crate) fn run(args: &Args) -> Result<()> {
    tool::available().map_err(|reason| anyhow!(reason))?;
    if args.repair {
        return repair::run(args);
    }
    let floe = match &args.floe {
        Some(path) => path.clone(),
        None => built_floe()?,
    };
    if args.shards {
        return shards::run(args, &floe);
    }
    let names = names();
    if let Some(case) = &args.replay {
        return replay(case, &floe, args.keep, &names);
    }
    let profiles = chosen(args)?;
    let begin = Instant::now();
    let cases = compare_all(args, &floe, &profiles, &names)?;
    let groups = group(cases);
    print_groups(&groups, args, &names);
    let of_verdict: usize = groups
        .iter()
        .filter(|group| group.difference.is_of_verdict())
        .map(|group| group.cases.len())
        .sum();
    let all: usize = groups.iter().map(|group| group.cases.len()).sum();
    println!(
        "{} images of {} profiles in {:.1} s: {of_verdict} verdicts differ, {} other differences",
        args.seeds,
        profiles.len(),
        begin.elapsed().as_secs_f64(),
        all - of_verdict,
    );
    if of_verdict > 0 {
        bail!("{of_verdict} verdicts differ; repeat one with --replay PROFILE:SEED");
    }
    Ok(())
}

/// The profiles that the options choose.
fn chosen(args: &Args) -> Result<Vec<Profile>> {
    if args.unusual { Ok(Profile::UNUSUAL.to_vec()) } else { Profile::named(&args.profile) }
}

fn compare_all(args: &Args, floe: &Path, profiles: &[Profile], names: &Names) -> Result<Vec<Case>> {
    let cases = for_all_seeds(args, profiles, &|profile, seed| {
        compare(profile, seed, &|code| names.contains_key(&code), &|image| ask(floe, image))
    })?;
    Ok(cases.into_iter().flatten().collect())
}

/// Calls `work` for every seed, several concurrently; the results are unordered.
fn for_all_seeds<T: Send>(
    args: &Args,
    profiles: &[Profile],
    work: &(dyn Fn(Profile, u64) -> Result<T> + Sync),
) -> Result<Vec<T>> {
    let first = args.from
        + match (args.aimed, args.hostile) {
            (true, _) => damage::AIMED_FROM,
            (_, true) => damage::HOSTILE_FROM,
            _ => 0,
        };
    let next = AtomicU64::new(first);
    let done = AtomicUsize::new(0);
    let end = first + args.seeds;
    let results = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let work = || -> Result<()> {
            loop {
                let seed = next.fetch_add(1, Ordering::Relaxed);
                if seed >= end {
                    return Ok(());
                }
                let profile = profiles[(seed % profiles.len() as u64) as usize];
                let result = work(profile, seed).with_context(|| format!("{profile}:{seed}"))?;
                if let Ok(mut results) = results.lock() {
                    results.push(result);
                }
                let done = done.fetch_add(1, Ordering::Relaxed) + 1;
                if done.is_multiple_of(500) {
                    eprintln!("{done} of {}", args.seeds);
                }
            }
        };
        let workers: Vec<_> = (0..args.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().map_err(|_| anyhow!("a worker panicked"))?)
    })?;
    results.into_inner().map_err(|_| anyhow!("a worker panicked"))
}

/// The profile and the seed in `PROFILE:SEED`.
fn parse_case(case: &str) -> Result<(Profile, u64)> {
    let (profile, seed) = case.rsplit_once(':').context("PROFILE:SEED")?;
    let seed = seed.parse().with_context(|| format!("seed {seed}"))?;
    Ok((Profile::named(&[profile.to_owned()])?[0], seed))
}

/// Runs the program in place of e2fsck for its verdict, and again for its findings.
fn ask(floe: &Path, image: &Image) -> Result<Opinion> {
    let mut verdict = Command::new(floe);
    verdict.args(["fsck", "-fn"]).arg(image.path());
    let verdict = tool::run(&verdict, LIMIT_SECONDS)?;
    if verdict.timed_out {
        return Ok(Opinion { exit: None, text: verdict.text, ..Opinion::default() });
    }
    let mut findings = Command::new(floe);
    findings.args(["check", "--json", "--ignore-journal"]).arg(image.path());
    let findings = tool::run(&findings, LIMIT_SECONDS)?;
    let codes = findings_codes(&findings.text).unwrap_or_default();
    Ok(Opinion { exit: verdict.exit, codes, text: verdict.text + &findings.text })
}

fn print_groups(groups: &[Group], args: &Args, names: &Names) {
    for group in groups {
        if args.verdicts && !group.difference.is_of_verdict() {
            continue;
        }
        let line = group.difference.describe(&|code| name_of(names, code));
        println!("{:5}  {line}", group.cases.len());
        for case in group.cases.iter().take(args.examples) {
            println!("         {case}");
        }
    }
}

fn replay(case: &str, floe: &Path, keep: bool, names: &Names) -> Result<()> {
    let (profile, seed) = parse_case(case)?;
    let (image, damage) = damage::damaged_image(profile, seed)?;
    println!("{profile}: {damage}");
    let theirs = oracle::e2fsck(&image)?;
    println!("--- e2fsck -fn: exit {:?}\n{}", theirs.exit, theirs.text.trim());
    for problem in &theirs.problems {
        println!("{} {:?}", name_of(names, problem.code), problem.attributes);
    }
    let ours = ask(floe, &image)?;
    println!("--- floe: exit {:?}\n{}", ours.exit, ours.text.trim());
    let mut codes = theirs.codes();
    codes.retain(|code| names.contains_key(code));
    let theirs = Opinion { exit: theirs.exit, codes, text: theirs.text };
    match difference(&theirs, &ours) {
        Some(difference) => {
            println!("--- {}", difference.describe(&|code| name_of(names, code)));
        }
        None => println!("--- the same"),
    }
    if keep {
        println!("{}", image.keep().display());
    }
    Ok(())
}
