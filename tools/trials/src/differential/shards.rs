//! `cargo xtask differential --shards`: what many machines say of a damaged image is what one says, byte for byte: the
//! report as JSON and as text, and the exit code; after no round of refinement, after one and after both. The machines are
//! processes, and their parts are files. The merge gets the parts in another order than they were made in.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use floe_testkit::{Image, Profile, damage, tool};
use serde_json::Value;

use super::{Args, LIMIT_SECONDS, chosen, for_all_seeds, parse_case};

/// How many shards check an image, in turn.
const COUNTS: [u32; 4] = [1, 2, 5, 16];
/// Shards of a round of refinement: neither one nor as many as checked.
const REFINERS: u32 = 3;

/// Runs the command.
pub(super) fn run(args: &Args, floe: &Path) -> Result<()> {
    if let Some(case) = &args.replay {
        let (profile, seed) = parse_case(case)?;
        let (image, damage) = damage::damaged_image(profile, seed)?;
        println!("{profile}: {damage}");
        println!("{}", difference(floe, &image)?.unwrap_or_else(|| "the same".to_owned()));
        return Ok(());
    }
    let (profiles, begin) = (chosen(args)?, Instant::now());
    let judge = |profile: Profile, seed: u64| {
        let (image, _) = damage::damaged_image(profile, seed)?;
        let differs = difference(floe, &image)?;
        // At once: a long run may be ended before its end.
        if let Some(how) = &differs {
            println!("{profile}:{seed}: {how}");
        }
        Ok(differs.is_some())
    };
    let differ = for_all_seeds(args, &profiles, &judge)?.into_iter().filter(|differs| *differs);
    let differ = differ.count();
    println!(
        "{} images of {} profiles in {COUNTS:?} shards, with both rounds of refinement, in {:.0} s: {differ} reports differ",
        args.seeds,
        profiles.len(),
        begin.elapsed().as_secs_f64(),
    );
    if differ > 0 {
        bail!("{differ} reports differ; repeat one with --shards --replay PROFILE:SEED");
    }
    Ok(())
}

/// The result of one program.
#[derive(PartialEq, Eq)]
struct Said {
    exit: Option<i32>,
    text: String,
}

/// A check of one image.
struct Subject<'a> {
    floe: &'a Path,
    image: &'a Path,
}

impl Subject<'_> {
    fn run(&self, options: &[OsString]) -> Result<Said> {
        let mut command = Command::new(self.floe);
        command.args(["check", "--accounting", "fingerprint", "--threads", "1"]);
        // Reports name the time, and one run is a second later than another.
        command.env("E2FSCK_TIME", tool::NOW.to_string());
        command.arg(self.image).args(options);
        let said = tool::run(&command, LIMIT_SECONDS)?;
        Ok(Said { exit: said.exit, text: said.text })
    }

    /// The output of a check without the lines about its cost.
    fn say(&self, options: &[OsString]) -> Result<Said> {
        let said = self.run(options)?;
        let costs = |line: &&str| line.contains(" read in ") || line.contains(" thread");
        let kept: Vec<&str> = said.text.lines().filter(|line| !costs(line)).collect();
        Ok(Said { text: kept.join("\n"), ..said })
    }

    /// The report as JSON, without the cost, and as text.
    fn report(&self, options: &[OsString]) -> Result<[Said; 2]> {
        let mut json = self.run(&[&["--json".into()], options].concat())?;
        if let Ok(mut value) = serde_json::from_str::<Value>(&json.text) {
            value.as_object_mut().context("the report is no object")?.remove("cost");
            json.text = value.to_string();
        }
        Ok([json, self.say(options)?])
    }

    /// Runs `count` shards, and adds their parts in `folder` to `parts`; what the first one said that made none.
    fn round(
        &self,
        kind: &str,
        count: u32,
        folder: &Path,
        parts: &mut Vec<PathBuf>,
    ) -> Result<Option<Said>> {
        let known = merge(parts);
        let mut new = Vec::new();
        for index in 0..count {
            let part = folder.join(format!("{kind}-{}-{index}", parts.len()));
            let mut options = known.clone();
            options.extend([format!("--{kind}").into(), format!("{index}/{count}").into()]);
            options.extend(["--out".into(), part.clone().into()]);
            let said = self.say(&options)?;
            if said.exit != Some(0) {
                return Ok(Some(said));
            }
            new.push(part);
        }
        new.reverse();
        parts.append(&mut new);
        Ok(None)
    }
}

/// The options that merge these parts.
fn merge(parts: &[PathBuf]) -> Vec<OsString> {
    let first = (!parts.is_empty()).then(|| "--merge".into());
    first.into_iter().chain(parts.iter().map(Into::into)).collect()
}

/// How the reports of any number of shards differ from that of one machine, if one does.
fn difference(floe: &Path, image: &Image) -> Result<Option<String>> {
    let subject = Subject { floe, image: image.path() };
    let alone = subject.report(&[])?;
    for count in COUNTS {
        let folder = tool::scratch("floe-shards-")?;
        let (folder, mut parts) = (folder.path(), Vec::new());
        for (kind, of_round) in [("shard", count), ("refine", REFINERS), ("refine", REFINERS)] {
            let how = format!("{count} shards, {} parts, then --{kind}", parts.len());
            if let Some(refused) = subject.round(kind, of_round, folder, &mut parts)? {
                // A device that one machine cannot check cannot be checked by many, for the same reason.
                if refused != alone[1] {
                    return Ok(Some(told(&how, &alone[1], &refused)));
                }
                break;
            }
            let merged = subject.report(&merge(&parts))?;
            let differs = alone.iter().zip(&merged).find(|(one, many)| one != many);
            if let Some((one, many)) = differs {
                return Ok(Some(told(&how, one, many)));
            }
        }
    }
    Ok(None)
}

fn told(how: &str, one: &Said, many: &Said) -> String {
    format!(
        "{how}\n--- one machine: exit {:?}\n{}\n--- many: exit {:?}\n{}",
        one.exit, one.text, many.exit, many.text
    )
}
