//! `cargo xtask differential --repair`: compares the repairs of damaged images by Floe and e2fsck.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use floe_testkit::compare::{Fault, Judgement, ReadBy, Terms, judge};
use floe_testkit::damage::{self, Damage};
use floe_testkit::problems::Recipes;
use floe_testkit::tool::{self, Outcome};
use floe_testkit::{Image, Profile, build};

use super::third::Third;
use super::{Args, Names, built_floe, chosen, for_all_seeds, name_of, names, parse_case};

mod mixture;
mod native;
mod rext3;

/// Time limit in seconds, after which the program counts as hung.
const LIMIT_SECONDS: u32 = 60;

/// The program under test, with its first arguments.
struct Program(Vec<String>);

impl Program {
    fn of(args: &Args) -> Result<Self> {
        if let Some(checker) = &args.checker {
            let words: Vec<String> = checker.split_whitespace().map(str::to_owned).collect();
            anyhow::ensure!(!words.is_empty(), "--checker names no program");
            return Ok(Self(words));
        }
        let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
        let floe = floe.to_str().context("a path that is not UTF-8")?.to_owned();
        Ok(Self(vec![floe, "fsck".to_owned()]))
    }

    /// Repairs the image at a path.
    fn repair(&self, image: &Path) -> Result<Outcome> {
        let (program, first) = self.0.split_first().context("no program")?;
        let mut command = tool::command(program);
        command.args(first).arg("-fy").arg(image);
        tool::run(&command, LIMIT_SECONDS)
    }
}

/// A damaged image with a faulty repair, or without e2fsck's repair as reference.
pub(super) struct Case {
    pub(super) profile: Profile,
    pub(super) seed: u64,
    events: Vec<String>,
    pub(super) faults: Vec<Fault>,
    no_measure: Option<String>,
}

/// The undamaged image of a profile.
fn base(args: &Args, profile: Profile) -> Result<Image> {
    if args.native || args.rext3 { native::base(args, profile) } else { build::base(profile) }
}

/// The damaged image of a seed.
fn damaged(args: &Args, profile: Profile, seed: u64) -> Result<(Image, Damage)> {
    let image = base(args, profile)?;
    let damage = damage::damage(&image, seed)?;
    Ok((image, damage))
}

/// Judges the repair of an image derived from the base image of `profile`.
fn judge_image(
    args: &Args,
    program: &Program,
    profile: Profile,
    image: &Image,
) -> Result<Judgement> {
    let read_by = if args.kernel { ReadBy::Kernel } else { ReadBy::Testkit };
    let original = base(args, profile)?;
    let terms = Terms { read_by, original: Some(&original) };
    judge(image, &terms, &|path| program.repair(path))
}

/// The same for damage that is known.
fn judge_damaged(
    args: &Args,
    program: &Program,
    profile: Profile,
    (image, damage): (&Image, &Damage),
) -> Result<Judgement> {
    if args.rext3 {
        return rext3::judge(program, &base(args, profile)?, image, &damage.events);
    }
    judge_image(args, program, profile, image)
}

fn judge_one(
    args: &Args,
    program: &Program,
    (recipes, linux): (&Recipes, &Third),
    profile: Profile,
    seed: u64,
) -> Result<Option<Case>> {
    if let Some(parts) = args.recipes {
        return mixture::judge_one(args, program, (recipes, linux), parts, seed);
    }
    let (image, damage) = damaged(args, profile, seed)?;
    let judgement = judge_damaged(args, program, profile, (&image, &damage))?;
    let Judgement { faults, no_measure, ours, done, .. } = judgement;
    if done {
        linux.submit(profile, seed, ours)?;
    }
    Ok(Some(Case { profile, seed, events: damage.events, faults, no_measure }))
}

/// Runs the command; fails if a repair is faulty.
pub(super) fn run(args: &Args) -> Result<()> {
    let program = Program::of(args)?;
    let names = names();
    if let (Some(case), Some(parts)) = (&args.replay, args.recipes) {
        return mixture::replay(args, case, &program, parts, &names);
    }
    if let Some(case) = &args.replay {
        return replay(args, case, &program, &names);
    }
    let profiles = match (args.native, args.rext3) {
        (true, _) => native::profiles(args)?,
        (_, true) => rext3::profiles(args)?,
        _ => chosen(args)?,
    };
    let begin = Instant::now();
    let recipes = Recipes::new();
    let linux = if args.linux { Third::find(&profiles)? } else { Third::none() };
    let cases = for_all_seeds(args, &profiles, &|profile, seed| {
        let case = judge_one(args, &program, (&recipes, &linux), profile, seed)?;
        // At once, for runs that are ended before they print their groups.
        for fault in case.iter().flat_map(|case| &case.faults) {
            eprintln!("{}:{seed}: {fault}", case.as_ref().map_or(profile, |case| case.profile));
        }
        Ok(case)
    })?;
    let (all, mut cases) = (cases.len(), cases.into_iter().flatten().collect::<Vec<Case>>());
    if all > cases.len() {
        println!("{} combinations of recipes lack an object", all - cases.len());
    }
    let asked = linux.finish(&mut cases)?;
    if args.linux {
        println!("Linux judged {asked} repaired images");
    }
    let no_measure = cases.iter().filter(|case| case.no_measure.is_some()).count();
    let faulty = cases.iter().filter(|case| !case.faults.is_empty()).count();
    print_groups(&cases, args.examples, &names);
    println!(
        "{} images of {} profiles in {:.1} s: {faulty} faulty repairs; e2fsck was no reference for \
         {no_measure}",
        cases.len(),
        profiles.len(),
        begin.elapsed().as_secs_f64(),
    );
    if faulty > 0 {
        bail!("{faulty} repairs are faulty; repeat one with --repair --replay PROFILE:SEED");
    }
    Ok(())
}

/// Groups cases by cause: worst faults first, then the largest groups.
fn print_groups(cases: &[Case], examples: usize, names: &Names) {
    let mut groups: BTreeMap<String, Vec<(&Case, &Fault)>> = BTreeMap::new();
    for case in cases {
        let mut named = BTreeSet::new();
        for fault in &case.faults {
            let cause = fault.cause(&|code| name_of(names, code));
            if named.insert(cause.clone()) {
                groups.entry(cause).or_default().push((case, fault));
            }
        }
    }
    let mut groups: Vec<_> = groups.into_iter().collect();
    // Faults with one cause are of one kind.
    let worst = |members: &[(&Case, &Fault)]| members.first().map(|(_, fault)| rank(fault));
    groups.sort_by_key(|(_, members)| (worst(members), std::cmp::Reverse(members.len())));
    for (cause, mut members) in groups {
        println!("{:5}  {cause}", members.len());
        members.sort_by_key(|(case, _)| (case.profile, case.seed));
        for (case, fault) in members.iter().take(examples) {
            let events = case.events.join("; ");
            println!("         {}:{} ({events}): {fault}", case.profile, case.seed);
        }
    }
    let mut reasons: BTreeMap<&str, Vec<&Case>> = BTreeMap::new();
    for case in cases {
        if let Some(reason) = &case.no_measure {
            reasons.entry(reason).or_default().push(case);
        }
    }
    for (reason, mut members) in reasons {
        println!("{:5}  without reference: {reason}", members.len());
        members.sort_by_key(|case| (case.profile, case.seed));
        for case in members.iter().take(examples) {
            println!("         {}:{} ({})", case.profile, case.seed, case.events.join("; "));
        }
    }
}

/// 0 is the worst.
fn rank(fault: &Fault) -> u8 {
    match fault {
        Fault::Crash { .. } => 0,
        Fault::Timeout => 1,
        Fault::Lost(_) => 2,
        Fault::Unclean { .. } => 3,
        Fault::NotFixpoint { .. } => 4,
        Fault::Refused(_) => 5,
        Fault::Metadata(_) => 6,
    }
}

fn replay(args: &Args, case: &str, program: &Program, names: &Names) -> Result<()> {
    let (profile, seed) = parse_case(case)?;
    let (image, damage) = damaged(args, profile, seed)?;
    println!("{profile}: {damage}");
    let mut judgement = judge_damaged(args, program, profile, (&image, &damage))?;
    if args.linux && judgement.done {
        let linux = Third::find(&[profile])?;
        judgement.faults.extend(linux.opinion(profile, &judgement.ours)?);
    }
    show(args, &image, judgement, names);
    Ok(())
}

/// Prints the result of a case.
fn show(args: &Args, image: &Image, judgement: Judgement, names: &Names) {
    let codes: Vec<String> = judgement.codes.iter().map(|&code| name_of(names, code)).collect();
    println!("--- e2fsck repaired: {}", codes.join(" "));
    println!("--- output of the program:\n{}", judgement.said.trim());
    if let Some(reason) = &judgement.no_measure {
        println!("--- no reference: {reason}");
    }
    if judgement.hinted {
        println!("--- e2fsck needed the location of a backup superblock");
    }
    for fault in &judgement.faults {
        println!("--- {}: {fault}", fault.cause(&|code| name_of(names, code)));
    }
    if judgement.faults.is_empty() {
        println!("--- without fault");
    }
    if args.keep {
        match image.copy() {
            Ok(copy) => println!("damaged:  {}", copy.keep().display()),
            Err(error) => println!("damaged: {error:#}"),
        }
        println!("e2fsck's: {}", judgement.theirs.keep().display());
        println!("ours:     {}", judgement.ours.keep().display());
    }
}
