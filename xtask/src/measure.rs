//! Runs one program and measures it: a process of its own, because the system tells time, memory
//! and bytes of *all* children of a process together.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};

/// Options of the chore.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
}

/// What one run of a program took.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// Seconds from start to end.
    pub(crate) wall: f64,
    /// Seconds of all cores, in the program and in the system for it.
    pub(crate) cpu: f64,
    /// Most memory at a time, in MiB.
    pub(crate) peak_mib: f64,
    /// MB (10^6 bytes) that it asked to read.
    pub(crate) read_mb: f64,
    /// What came from devices for that, in MB: io_uring does not count as asking.
    pub(crate) device_mb: f64,
    /// Seconds for which a host took processors of this machine away meanwhile; 0 where there is no host.
    pub(crate) stolen: f64,
    /// Exit status.
    pub(crate) exit: i64,
}

/// Runs the program with its output thrown away and prints one line of JSON.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (program, rest) = args.command.split_first().context("no program")?;
    // To take on an identity, even one's own, a process is forked first. Otherwise it would begin with the
    // memory of this one, and what the system says it took at most would never be less.
    let own = nix::unistd::getuid().as_raw();
    let (asked, came, stolen) = (bytes("rchar: ")?, bytes("read_bytes: ")?, stolen_ticks()?);
    let begin = Instant::now();
    let status = Command::new(program)
        .args(rest)
        .uid(own)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .with_context(|| format!("starting {program}"))?;
    let wall = begin.elapsed().as_secs_f64();
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    let line = json!({
        "wall": wall,
        "cpu": seconds(usage.user_time()) + seconds(usage.system_time()),
        "peak_kib": usage.max_rss(),
        "read_bytes": bytes("rchar: ")?.saturating_sub(asked),
        "device_bytes": bytes("read_bytes: ")?.saturating_sub(came),
        "stolen": stolen_ticks()?.saturating_sub(stolen) as f64 / TICKS_PER_SECOND,
        "exit": status.code(),
    });
    println!("{line}");
    Ok(())
}

/// Bytes that this process and its children that have ended read, as a line of `/proc/self/io` counts them.
fn bytes(line: &str) -> Result<u64> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    let found = io.lines().find_map(|at| at.strip_prefix(line));
    Ok(found.with_context(|| format!("/proc/self/io has no {line}"))?.parse()?)
}

/// What `/proc/stat` counts in, on all architectures (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// Time that a host took from all processors of this virtual machine, so far.
fn stolen_ticks() -> Result<u64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let all = stat.lines().next().unwrap_or_default();
    // user, nice, system, idle, iowait, irq, softirq, steal.
    Ok(all.split_whitespace().nth(8).context("/proc/stat tells of no steal")?.parse()?)
}

/// Measures a program in a helper process.
pub(crate) fn measure(command: &[String]) -> Result<Cost> {
    let output = Command::new(std::env::current_exe()?)
        .arg("measure")
        .arg("--")
        .args(command)
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "measuring {}", command.join(" "));
    let line: Value = serde_json::from_slice(&output.stdout)?;
    let number = |name: &str| line[name].as_f64().unwrap_or(f64::NAN);
    Ok(Cost {
        wall: number("wall"),
        cpu: number("cpu"),
        peak_mib: number("peak_kib") / 1024.0,
        read_mb: number("read_bytes") / 1e6,
        device_mb: number("device_bytes") / 1e6,
        stolen: number("stolen"),
        exit: line["exit"].as_i64().unwrap_or(-1),
    })
}
