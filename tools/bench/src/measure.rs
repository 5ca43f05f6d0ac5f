//! Runs one program and measures it, in a process of its own, because the system reports time,
//! memory and bytes only for *all* children of a process together.

use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<String>,
}

/// Resources used by one run of a program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Cost {
    /// Wall time in seconds.
    pub(crate) wall: f64,
    /// Processor time in seconds, over all cores, user and system.
    pub(crate) cpu: f64,
    /// Peak memory in MiB.
    pub(crate) peak_mib: f64,
    /// MB (10^6 bytes) requested by read calls.
    pub(crate) read_mb: f64,
    /// MB read from devices for that; unlike `read_mb`, it includes io_uring.
    pub(crate) device_mb: f64,
    /// Seconds that the hypervisor stole from the processors meanwhile; 0 on bare metal.
    pub(crate) stolen: f64,
    /// Exit status.
    pub(crate) exit: i64,
}

/// Runs the program with its output discarded and prints one line of JSON.
pub(crate) fn run(args: &Args) -> Result<()> {
    let (program, rest) = args.command.split_first().context("no program")?;
    // Setting the user id, even to its own value, makes `Command` fork instead of sharing memory.
    // Otherwise the child would start with the memory of this process, which would be a lower bound
    // of its reported peak.
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

/// A counter in `/proc/self/io` for this process and its terminated children.
fn bytes(line: &str) -> Result<u64> {
    let io = std::fs::read_to_string("/proc/self/io")?;
    let found = io.lines().find_map(|at| at.strip_prefix(line));
    Ok(found.with_context(|| format!("/proc/self/io has no {line}"))?.parse()?)
}

/// Unit of `/proc/stat` on all architectures (`USER_HZ`).
const TICKS_PER_SECOND: f64 = 100.0;

/// Ticks that the hypervisor has stolen from all processors of this virtual machine so far.
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
