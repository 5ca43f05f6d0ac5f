//! `cargo xtask bench --share-cores`: runs checks beside a program that uses all cores, half of
//! them or none, and measures the slowdown of each: figure 9 of the pFSCK paper, with `xz` in place
//! of its database.
//!
//! A check is short, so checks are repeated for as long as the other program runs; those that end
//! in that time count. Each round runs every case once; the medians are printed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use floe_testkit::rng::Rng;

/// The programs that run in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Case {
    /// Only the other program.
    Busy,
    /// Only checks, for as long as the other program took in this round.
    Checks,
    /// Both.
    Beside,
    /// Both, with `--share-cores` checks: one of their threads competes for cores.
    Sharing,
    /// Both, with `--share-cores=0` checks: all their threads yield.
    GivingWay,
}

impl Case {
    const ALL: [Self; 5] = [Self::Busy, Self::Checks, Self::Beside, Self::Sharing, Self::GivingWay];

    fn name(self) -> &'static str {
        match self {
            Self::Busy => "xz alone",
            Self::Checks => "checks alone",
            Self::Beside => "xz beside checks",
            Self::Sharing => "xz beside checks with --share-cores",
            Self::GivingWay => "xz beside checks with --share-cores=0",
        }
    }

    /// The option of the checks.
    const fn option(self) -> Option<&'static str> {
        match self {
            Self::Sharing => Some("--share-cores"),
            Self::GivingWay => Some("--share-cores=0"),
            Self::Busy | Self::Checks | Self::Beside => None,
        }
    }
}

/// Result of a case.
#[derive(Clone, Copy, Debug)]
struct Outcome {
    /// Duration of the other program in seconds; in [`Case::Checks`], of the series of checks.
    seconds: f64,
    /// Checks completed in that time.
    checks: u64,
}

/// Parameters of the measurement.
pub(crate) struct Plan<'a> {
    /// The checker.
    pub(crate) floe: &'a Path,
    /// The image to check.
    pub(crate) image: &'a Path,
    /// Its `--schedule`; `None`: its own choice.
    pub(crate) schedule: Option<&'a str>,
    /// Folder for the input of the other program.
    pub(crate) folder: &'a Path,
    /// Size of that input in MiB.
    pub(crate) mib: usize,
    /// Number of rounds.
    pub(crate) runs: usize,
    /// Print a table in Markdown.
    pub(crate) markdown: bool,
}

/// Measures all cases in alternation, and prints the slowdown of each program.
pub(crate) fn run(plan: &Plan<'_>) -> Result<()> {
    let text = text(plan.folder, plan.mib)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for copies in [cores, cores / 2] {
        beside(plan, copies, &text)?;
    }
    on_idle_cores(plan)
}

/// Measures all cases with `copies` copies of the other program.
fn beside(plan: &Plan<'_>, copies: usize, text: &Path) -> Result<()> {
    if copies == 0 {
        return Ok(());
    }
    let mut outcomes = Case::ALL.map(|_| Vec::new());
    // Round 0 fills the page cache and is not counted.
    for round in 0..=plan.runs {
        let mut alone = 0.0;
        for (case, outcomes) in Case::ALL.into_iter().zip(&mut outcomes) {
            let outcome = one(plan, case, text, copies, alone)?;
            if case == Case::Busy {
                alone = outcome.seconds;
            }
            if round > 0 {
                outcomes.push(outcome);
            }
        }
    }
    print(plan, copies, &outcomes);
    Ok(())
}

/// The cost of the core budget for a check with all cores idle: median seconds per check.
fn on_idle_cores(plan: &Plan<'_>) -> Result<()> {
    let cases = [Case::Checks, Case::Sharing, Case::GivingWay];
    let mut seconds = cases.map(|_| Vec::new());
    for _ in 0..10 * plan.runs.max(1) {
        for (case, seconds) in cases.into_iter().zip(&mut seconds) {
            let begin = Instant::now();
            check(plan, case, |_| Ok(false))?;
            seconds.push(begin.elapsed().as_secs_f64());
        }
    }
    println!("\nNo other program: seconds of a check, median of {}", seconds[0].len());
    for (case, seconds) in cases.into_iter().zip(&mut seconds) {
        seconds.sort_by(f64::total_cmp);
        let options = case.option().unwrap_or("no option");
        println!("{options:<20} {:.4}", seconds[seconds.len() / 2]);
    }
    Ok(())
}

fn one(plan: &Plan<'_>, case: Case, text: &Path, copies: usize, alone: f64) -> Result<Outcome> {
    let begin = Instant::now();
    let mut busy = Vec::new();
    if case != Case::Checks {
        for _ in 0..copies {
            busy.push(compress(text)?);
        }
    }
    let mut checks = 0;
    if case != Case::Busy {
        loop {
            let ended = check(plan, case, |begun: &mut Child| {
                let over = match case {
                    Case::Checks => begin.elapsed().as_secs_f64() >= alone,
                    _ => !still_running(&mut busy)?,
                };
                if over {
                    begun.kill()?;
                }
                Ok(over)
            })?;
            if !ended {
                break;
            }
            checks += 1;
        }
    }
    for program in &mut busy {
        ensure!(program.wait()?.success(), "xz failed");
    }
    Ok(Outcome { seconds: begin.elapsed().as_secs_f64(), checks })
}

/// Starts one copy of the other program.
fn compress(text: &Path) -> Result<Child> {
    let mut command = Command::new("xz");
    command.args(["--keep", "--stdout", "--threads=1"]).arg(text).stdout(Stdio::null());
    command.spawn().context("starting xz")
}

fn still_running(programs: &mut [Child]) -> Result<bool> {
    for program in programs {
        if program.try_wait()?.is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Runs a check to completion; `false` if `over` returned true before.
fn check(
    plan: &Plan<'_>,
    case: Case,
    mut over: impl FnMut(&mut Child) -> Result<bool>,
) -> Result<bool> {
    let mut command = Command::new(plan.floe);
    command.arg("check").arg(plan.image).stdout(Stdio::null());
    command.args(plan.schedule.into_iter().flat_map(|policy| ["--schedule", policy]));
    command.args(case.option());
    let mut child = command.spawn().context("starting floe")?;
    loop {
        if let Some(status) = child.try_wait()? {
            ensure!(status.success(), "the check ended with {status}");
            return Ok(true);
        }
        if over(&mut child)? {
            child.wait()?;
            return Ok(false);
        }
        std::thread::sleep(std::time::Duration::from_micros(500));
    }
}

/// A file of invented words, about as compressible as text.
fn text(folder: &Path, mib: usize) -> Result<PathBuf> {
    let path = folder.join(format!("words-{mib}.txt"));
    if path.exists() {
        return Ok(path);
    }
    let mut rng = Rng::new(9);
    let mut word = || {
        let letters = 2 + rng.below(9);
        (0..letters).map(|_| b'a' + rng.below(26) as u8).collect::<Vec<_>>()
    };
    let words: Vec<_> = (0..20_000).map(|_| word()).collect();
    let mut content = Vec::with_capacity(mib << 20);
    while content.len() < mib << 20 {
        // A skewed distribution: few words are frequent.
        let most = 1 + rng.below(words.len() as u64);
        content.extend_from_slice(&words[rng.below(most) as usize]);
        content.push(b' ');
    }
    fs::write(&path, content)?;
    Ok(path)
}

fn print(plan: &Plan<'_>, copies: usize, outcomes: &[Vec<Outcome>; Case::ALL.len()]) {
    let median = |at: usize, of: fn(&Outcome) -> f64| {
        let mut values: Vec<f64> = outcomes[at].iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
    };
    let (alone, rate) =
        (median(0, |one| one.seconds), median(1, |one| one.checks as f64 / one.seconds));
    let title = format!(
        "{copies} copies of xz beside checks of {}, median of {} rounds",
        plan.image.file_name().unwrap_or_default().to_string_lossy(),
        plan.runs
    );
    let header = ["running", "xz s", "xz slowdown", "checks/s", "check slowdown"];
    let mut lines = vec![header.map(str::to_owned)];
    for (at, case) in Case::ALL.into_iter().enumerate() {
        let seconds = median(at, |one| one.seconds);
        let of_case = median(at, |one| one.checks as f64 / one.seconds);
        let none = String::new;
        lines.push([
            case.name().to_owned(),
            if case == Case::Checks { none() } else { format!("{seconds:.2}") },
            if case == Case::Checks {
                none()
            } else {
                format!("{:.1} %", 100.0 * (1.0 - alone / seconds))
            },
            if case == Case::Busy { none() } else { format!("{of_case:.2}") },
            if case == Case::Busy {
                none()
            } else {
                format!("{:.1} %", 100.0 * (1.0 - of_case / rate))
            },
        ]);
    }
    if plan.markdown {
        println!("\n**{title}**\n");
        for (at, line) in lines.iter().enumerate() {
            println!("| {} |", line.join(" | "));
            if at == 0 {
                println!("|---{}|", "|---:".repeat(line.len() - 1));
            }
        }
        return;
    }
    println!("\n{title}");
    for [name, rest @ ..] in &lines {
        let rest: Vec<String> = rest.iter().map(|cell| format!("{cell:>18}")).collect();
        println!("{name:<38}{}", rest.concat());
    }
}
