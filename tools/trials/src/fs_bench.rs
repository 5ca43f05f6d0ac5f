//! `cargo xtask fs-bench`: the same loads on mounts by Linux's ext4, fuse2fs and Floe, and on the ceiling, a file system
//! in tables over Floe's transport: in one run, alternating, with ratios.

mod costs;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floe_testkit::{Image, build, kernel, tool};
use serde_json::Value;
use tempfile::TempDir;

use crate::mounted::Mounted;
use floe_testkit::tool::built_floe;

/// The loads, as a program in C.
const PROGRAM: &str = include_str!("fs_bench/fsbench.c");

/// The command line.
#[derive(Clone, clap::Args)]
pub(crate) struct Args {
    /// The program to measure; by default target/release/floe or target/debug/floe
    #[arg(long)]
    floe: Option<PathBuf>,
    /// The ceiling; by default target/release/examples/ceiling (`cargo build --release -p
    /// floe-fuse --example ceiling`)
    #[arg(long)]
    ceiling: Option<PathBuf>,
    /// The file systems to mount: tmpfs, ext4, fuse2fs, floe, ceiling, memory (Floe's file system in memory
    /// without a disk); floe and the ceilings with options behind a colon (`floe:rw,nodelalloc`)
    #[arg(long, value_delimiter = ' ', default_values = ["ext4", "fuse2fs", "floe", "ceiling"])]
    systems: Vec<String>,
    /// Loads of fsbench.c
    #[arg(long, value_delimiter = ',', default_values = LOADS)]
    loads: Vec<String>,
    /// Threads that use the mount
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<u32>,
    /// Seconds of each run
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Runs of each load; the median counts
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Size of the file systems in MiB
    #[arg(long, default_value_t = 2048)]
    size_mib: u64,
    /// Size of big files in MiB
    #[arg(long, default_value_t = 64)]
    big_mib: u32,
    /// The loads that wait for fsync: smallfile, mail-s, varmail and mix (dbench's proportions with its --sync-dir), by Linux's
    /// ext4 and Floe, two threads
    #[arg(long, conflicts_with_all = ["systems", "loads", "threads"])]
    durable: bool,
    /// Tell the processor time of each operation, too, and what Floe's server does for it
    #[arg(long)]
    costs: bool,
}

const LOADS: [&str; 20] = [
    "crul-priv",
    "crul-shared",
    "mkrm-priv",
    "rename-priv",
    "stat-priv",
    "stat-none",
    "open-priv",
    "readdir-priv",
    "rd4k-priv",
    "ow4k-priv",
    "app4k-priv",
    "ows4k-priv",
    "seqwrite",
    "seqread",
    "smallfile",
    "mail-p",
    "mail-s",
    "varmail",
    "fileserver",
    "webserver",
];

/// How often, and how long each time, a busy mount is waited for.
const MOST_RETRIES: u32 = 50;
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A mounted file system.
enum System {
    Folder(TempDir),
    Linux {
        mounted: kernel::Mounted,
        _image: Image,
    },
    Floe(Mounted, Image),
    /// A server that runs until its mount ends.
    Server {
        server: Server,
        _image: Option<Image>,
    },
}

/// A server of another program. Dropped after a failure, it is detached and ends.
struct Server {
    folder: TempDir,
    process: Child,
    ended: bool,
}

impl Server {
    const fn new(folder: TempDir, process: Child) -> Self {
        Self { folder, process, ended: false }
    }

    fn end(mut self) -> Result<()> {
        let mut unmount = Command::new("umount");
        unmount.arg(self.folder.path()).stderr(Stdio::null());
        for _ in 0..MOST_RETRIES {
            if unmount.status()?.success() {
                break;
            }
            std::thread::sleep(RETRY_AFTER);
        }
        self.process.wait()?;
        self.ended = true;
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.ended {
            let _ = Command::new("umount").arg("-l").arg(self.folder.path()).output();
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

impl System {
    fn new(args: &Args, what: &str) -> Result<Self> {
        let (name, options) = what.split_once(':').unwrap_or((what, "rw"));
        let image = || -> Result<Image> {
            let image = Image::empty(args.size_mib << 20)?;
            build::mke2fs(image.path(), &["-q", "-t", "ext4", "-E", "lazy_itable_init=0"])?;
            Ok(image)
        };
        match name {
            "tmpfs" => Ok(Self::Folder(tempfile::tempdir_in("/dev/shm")?)),
            "ext4" => {
                let image = image()?;
                let mounted = kernel::Mounted::new(image.path(), options)?;
                Ok(Self::Linux { mounted, _image: image })
            }
            "floe" => {
                let (image, floe) = (image()?, args.floe.clone().map_or_else(built_floe, Ok)?);
                Ok(Self::Floe(Mounted::new(&floe, image.path(), options)?, image))
            }
            "fuse2fs" => {
                let (image, folder) = (image()?, tool::scratch("floe-bench-")?);
                let mut command = Command::new("fuse2fs");
                command.arg(image.path()).arg(folder.path()).args(["-f", "-o", options]);
                let server = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
                let server = server.context("starting fuse2fs (package fuse2fs)")?;
                let server = Server::new(folder, server);
                wait_for_mount(server.folder.path())?;
                Ok(Self::Server { server, _image: Some(image) })
            }
            "ceiling" | "memory" => Self::ceiling(args, name, options),
            _ => anyhow::bail!("there is no system {what}"),
        }
    }

    fn ceiling(args: &Args, name: &str, options: &str) -> Result<Self> {
        let built =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/release/examples/ceiling");
        let program = args.ceiling.clone().unwrap_or(built);
        let folder = tool::scratch("floe-bench-")?;
        let mut command = Command::new(program);
        command.arg(folder.path()).args((name == "memory").then_some("--memory"));
        command
            .args(options.split(',').filter(|word| *word != "rw").map(|word| format!("--{word}")));
        let process = command.stdout(Stdio::piped()).spawn().context(
            "starting the ceiling (cargo build --release -p floe-fuse --example ceiling)",
        )?;
        let mut server = Server::new(folder, process);
        let said = server.process.stdout.take().and_then(|out| BufReader::new(out).lines().next());
        ensure!(said.is_some(), "the ceiling does not serve");
        Ok(Self::Server { server, _image: None })
    }

    fn path(&self) -> &Path {
        match self {
            Self::Folder(folder) => folder.path(),
            Self::Server { server, .. } => server.folder.path(),
            Self::Linux { mounted, .. } => mounted.path(),
            Self::Floe(mounted, _) => mounted.path(),
        }
    }

    /// Unmounts. Damage that e2fsck finds in what Floe wrote is an error.
    fn end(self) -> Result<()> {
        match self {
            Self::Folder(folder) => Ok(folder.close()?),
            Self::Linux { mounted, .. } => mounted.unmount(),
            Self::Floe(mounted, image) => {
                mounted.unmount()?;
                let verdict = floe_testkit::oracle::e2fsck(&image)?;
                ensure!(verdict.clean(), "e2fsck: {}", verdict.text);
                Ok(())
            }
            Self::Server { server, _image } => server.end(),
        }
    }
}

fn wait_for_mount(folder: &Path) -> Result<()> {
    for _ in 0..MOST_RETRIES {
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        if mounts.contains(&folder.display().to_string()) {
            return Ok(());
        }
        std::thread::sleep(RETRY_AFTER);
    }
    anyhow::bail!("nothing was mounted on {}", folder.display())
}

/// Rates by load, channel and threads, then by system, one for each run.
type Rates = BTreeMap<(usize, String, u32), Vec<Vec<f64>>>;

/// Systems and loads that wait for fsync.
const DURABLE: ([&str; 2], [&str; 4]) =
    (["ext4", "floe"], ["smallfile", "mail-s", "varmail", "mix"]);

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    if args.durable {
        let (systems, loads) = DURABLE;
        let mut args = args.clone();
        args.durable = false;
        args.systems = systems.map(str::to_owned).into();
        args.loads = loads.map(str::to_owned).into();
        args.threads = vec![2];
        return run(&args);
    }
    let scratch = tool::scratch("floe-bench-")?;
    let program = scratch.path().join("fsbench");
    let source = scratch.path().join("fsbench.c");
    std::fs::write(&source, PROGRAM)?;
    let compiled = Command::new("cc")
        .args(["-O2", "-std=gnu11", "-pthread", "-w", "-o"])
        .args([&program, &source])
        .status()
        .context("starting cc")?;
    ensure!(compiled.success(), "cc cannot compile the loads");
    println!("{}", machine()?);
    let names: Vec<String> = args.systems.clone();
    let systems: Result<Vec<System>> = names.iter().map(|name| System::new(args, name)).collect();
    let systems = systems?;
    let mut rates = Rates::new();
    for _ in 0..args.runs {
        for (at, load) in args.loads.iter().enumerate() {
            for &threads in &args.threads {
                for (number, system) in systems.iter().enumerate() {
                    let measured = measure(args, &program, system.path(), load, threads);
                    let measured = measured.with_context(|| names[number].clone())?;
                    for (channel, rate) in measured {
                        let all = rates.entry((at, channel, threads)).or_default();
                        all.resize_with(systems.len(), Vec::new);
                        all[number].push(rate);
                    }
                }
            }
        }
    }
    print_table(args, &names, &rates);
    if args.costs {
        costs::print(args, &program, &names, &systems)?;
    }
    systems.into_iter().try_for_each(System::end)
}

/// The machine, in words.
fn machine() -> Result<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo")?;
    let model = info.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or_default();
    let cores = std::thread::available_parallelism()?;
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?;
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let load = load.split(' ').next().unwrap_or_default();
    let model = model.trim_start_matches([' ', ':', '\t']);
    Ok(format!("{cores} cores of {model}; Linux {}; load {load}", kernel.trim()))
}

/// The rates of one run, by channel.
fn measure(
    args: &Args,
    program: &Path,
    folder: &Path,
    load: &str,
    threads: u32,
) -> Result<Vec<(String, f64)>> {
    let output = Command::new(program)
        .arg("-d")
        .arg(folder)
        .args(["-w", load, "-t", &threads.to_string(), "-s", &args.seconds.to_string()])
        .args(["-z", &args.big_mib.to_string()])
        .output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{load} on {}: {said}", folder.display());
    let mut rates = Vec::new();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let line: Value = serde_json::from_str(line)?;
        let channel = line["ch"].as_str().unwrap_or_default();
        // fsync goes with the operation that it belongs to.
        if channel != "fsync" {
            rates.push((channel.to_owned(), line["rate"].as_f64().unwrap_or(f64::NAN)));
        }
    }
    Ok(rates)
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Operations per second, and the ratios of Floe to all others.
fn print_table(args: &Args, names: &[String], rates: &Rates) {
    let floe = names.iter().rposition(|name| name.starts_with("floe"));
    println!("operations per second, medians of {} runs of {} s\n", args.runs, args.seconds);
    let others = || names.iter().enumerate().filter(|&(at, _)| Some(at) != floe);
    let ratios = others().map(|(_, name)| format!("/ {name}")).collect::<Vec<_>>().join(" | ");
    println!("| Load | Threads | {} | {ratios} |", names.join(" | "));
    println!("|---|---|{}", "---|".repeat(names.len() + others().count()));
    for ((at, channel, threads), all) in rates {
        let rates: Vec<f64> = all.iter().map(|values| median(values)).collect();
        let cells: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
        let own = floe.and_then(|at| rates.get(at)).copied().unwrap_or(f64::NAN);
        let ratios = others().map(|(at, _)| format!("{:.2}", own / rates[at]));
        let ratios = ratios.collect::<Vec<_>>().join(" | ");
        let load = &args.loads[*at];
        println!("| {load} {channel} | {threads} | {} | {ratios} |", cells.join(" | "));
    }
}
