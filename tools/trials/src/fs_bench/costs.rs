//! Processor time of each operation, and what the server of Floe's mounts does for it: `fs-bench --costs`. Unlike rates, these
//! figures hold on a machine with other work.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use floe_testkit::tool::built_floe;
use serde_json::Value;

use super::{Args, System};

/// Figures of a server since its mount began.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    switches: u64,
    written_bytes: u64,
    requests: u64,
}

/// Prints a row for each load, number of threads and system.
pub(super) fn print(
    args: &Args,
    program: &Path,
    names: &[String],
    systems: &[System],
) -> Result<()> {
    println!("\nprocessor time of each operation in us; what the server did for it\n");
    println!(
        "| Load | Threads | System | Clients | Kernel threads | Server | All | Switches | KB written | Requests |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for load in &args.loads {
        for &threads in &args.threads {
            for (name, system) in names.iter().zip(systems) {
                let row = row(args, program, system, load, threads);
                println!("| {load} | {threads} | {name} | {} |", row.context(name.clone())?);
            }
        }
    }
    Ok(())
}

/// One run, apart from the making of its files.
fn row(args: &Args, program: &Path, system: &System, load: &str, threads: u32) -> Result<String> {
    let folder = system.path().join(format!("costs-{load}-{threads}"));
    fs::create_dir(&folder)?;
    let run = |phase: &str, server: Option<u32>| {
        let mut command = Command::new(program);
        command.arg("-d").arg(&folder).args(["-w", load, "-t", &threads.to_string(), "-k"]);
        command.args(["-s", &args.seconds.to_string(), "-z", &args.big_mib.to_string()]);
        command.args(["-p", phase]);
        command.args(server.map(|server| format!("-P{server}")));
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{load} on {}: {said}", folder.display());
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    run("setup", None)?;
    let server = matches!(system, System::Floe(..)).then(|| server_of(args, system)).transpose()?;
    let before = server.map(|server| done(args, system, server)).transpose()?;
    let text = run("run", server)?;
    let after = server.map(|server| done(args, system, server)).transpose()?;
    fs::remove_dir_all(&folder)?;
    let first = text.lines().next().context("the load says nothing")?;
    let line: Value = serde_json::from_str(first)?;
    let number = |name: &str| line[name].as_f64().unwrap_or(f64::NAN);
    let each = |seconds: f64| seconds * 1e6 / number("ops");
    let clients = each(number("cpu_u") + number("cpu_s"));
    let (kernel, own) = (each(number("kth")), each(number("dmn_cpu")));
    let all = clients + kernel + own;
    let figures = format!("{clients:.1} | {kernel:.1} | {own:.1} | {all:.1}");
    let Some((before, after)) = before.zip(after) else {
        return Ok(format!("{figures} | | |"));
    };
    let each = |after: u64, before: u64| after.saturating_sub(before) as f64 / number("ops");
    Ok(format!(
        "{figures} | {:.1} | {:.1} | {:.1}",
        each(after.switches, before.switches),
        each(after.written_bytes, before.written_bytes) / 1e3,
        each(after.requests, before.requests),
    ))
}

fn floe_status(args: &Args, system: &System, options: &[&str]) -> Result<String> {
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    let output = Command::new(floe).arg("status").args(options).arg(system.path()).output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The process that serves a mount.
fn server_of(args: &Args, system: &System) -> Result<u32> {
    let text = floe_status(args, system, &[])?;
    let process = text.lines().find_map(|line| line.trim_start().strip_prefix("process:"));
    Ok(process.context("floe status names no process")?.trim().parse()?)
}

fn done(args: &Args, system: &System, server: u32) -> Result<Done> {
    let mut done = Done::default();
    for thread in fs::read_dir(format!("/proc/{server}/task"))? {
        let text = fs::read_to_string(thread?.path().join("status")).unwrap_or_default();
        done.switches += field(&text, "voluntary_ctxt_switches:").unwrap_or_default();
    }
    // Answers to the kernel count, too: a few dozen bytes for each request.
    let io = fs::read_to_string(format!("/proc/{server}/io"))?;
    done.written_bytes = field(&io, "wchar:").context("/proc has no bytes")?;
    let counts = floe_status(args, system, &["--prometheus"])?;
    let requests = counts.lines().filter(|line| line.starts_with("floe_mount_requests_total{"));
    done.requests = requests
        .filter_map(|line| line.rsplit_once(' ').and_then(|(_, count)| count.parse::<u64>().ok()))
        .sum();
    Ok(done)
}

fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)).and_then(|rest| rest.trim().parse().ok())
}
