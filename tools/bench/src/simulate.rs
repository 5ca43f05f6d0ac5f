//! `cargo xtask simulate-schedule`: simulates the scheduling policies with more workers than this
//! machine has cores.
//!
//! The scheduling decisions are made by the real code (`floe_exec::scheduler`); only time is
//! simulated. The model, in `model.rs`: a batch takes its number of elements times the time per
//! element in a recorded run with one thread; one worker at a time holds the lock of the queues,
//! for as long as measured on this machine at the start; a sleeping worker needs some time to wake
//! up; all other work of the check is serial. Cores, caches, memory and disk are unlimited, so a
//! real check is slower. For comparison, real threads and queues run the same work as sleeps, which
//! validates only the model of waiting and handing over.

mod model;
mod real;

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use floe_exec::Policy;
use serde_json::Value;

use model::{Model, Simulated};

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Outputs of `floe check --threads 1 --json` whose times to use; by default two recorded ones
    #[arg(long)]
    recorded: Vec<PathBuf>,
    /// Numbers of workers
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16, 32, 64, 128])]
    workers: Vec<usize>,
    /// Inodes in use per chunk, the unit of the first queue
    #[arg(long, default_value_t = 2048)]
    chunk: u64,
    /// Directory blocks per batch
    #[arg(long, default_value_t = 256)]
    batch: u64,
    /// Maximum number of queued directory blocks
    #[arg(long, default_value_t = 16_384)]
    queue: u64,
    /// Microseconds until a worker that was woken runs
    #[arg(long, default_value_t = 20)]
    wake_us: u64,
    /// Microseconds to merge the results of one worker, serially
    #[arg(long, default_value_t = 0)]
    merge_us: u64,
    /// Run nothing real: assume 1 microsecond of locking per batch, and compare with nothing
    #[arg(long)]
    only_simulate: bool,
}

/// Times of a check with one thread, and its object counts.
struct Recorded {
    name: String,
    inodes: u64,
    directory_blocks: u64,
    inodes_seconds: f64,
    directories_seconds: f64,
    other_seconds: f64,
}

/// The images of `cargo xtask bench --inodes 1000000` with a warm cache on the machine of
/// docs/measurements/threads.md: the fastest of twenty and of eighteen runs, with other load on its two
/// cores.
fn built_in() -> Vec<Recorded> {
    let recorded = |name: &str, inodes, directory_blocks, [pass_1, pass_2, other]: [f64; 3]| {
        let name = name.to_owned();
        let (inodes_seconds, directories_seconds, other_seconds) = (pass_1, pass_2, other);
        Recorded {
            name,
            inodes,
            directory_blocks,
            inodes_seconds,
            directories_seconds,
            other_seconds,
        }
    };
    vec![
        recorded("file-intensive", 1_010_166, 10_167, [0.1408, 0.0448, 0.0061]),
        recorded("directory-intensive", 1_000_066, 500_066, [0.1978, 0.7723, 0.0197]),
    ]
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    let recorded = if args.recorded.is_empty() {
        built_in()
    } else {
        args.recorded.iter().map(read).collect::<Result<_>>()?
    };
    let cost = if args.only_simulate { real::Visit::assumed() } else { real::Visit::measured() };
    println!(
        "A visit to the queues: {:.0} ns, and {:.1} ns for each entry ({}).",
        cost.visit_ns,
        cost.entry_ns,
        if args.only_simulate { "assumed" } else { "measured here" }
    );
    for recorded in &recorded {
        let model = model_of(args, recorded, cost);
        print(args, recorded, &model);
        if !args.only_simulate {
            beside_real(args, &model);
        }
    }
    Ok(())
}

fn read(path: &PathBuf) -> Result<Recorded> {
    let text = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let json: Value = serde_json::from_slice(&text)?;
    ensure!(json["schema"] == "floe-check", "{}: no output of floe check", path.display());
    ensure!(json["cost"]["threads"] == 1, "{}: not of one thread", path.display());
    let phases = json["cost"]["phases"].as_array().context("no phases")?;
    let seconds = |name: &str| -> f64 {
        let phase = phases.iter().find(|phase| phase["name"] == name);
        phase.and_then(|phase| phase["seconds"].as_f64()).unwrap_or(0.0)
    };
    let all: f64 = phases.iter().filter_map(|phase| phase["seconds"].as_f64()).sum();
    let count = |name: &str| json["totals"][name].as_u64().context(name.to_owned());
    let (inodes_seconds, directories_seconds) = (seconds("inodes"), seconds("directories"));
    ensure!(inodes_seconds > 0.0 && directories_seconds > 0.0, "no times of the two passes");
    Ok(Recorded {
        name: path.display().to_string(),
        inodes: count("inodes_used")?,
        // Most directories have one block; the report does not tell the number of further blocks.
        directory_blocks: count("directories")?,
        inodes_seconds,
        directories_seconds,
        other_seconds: all - inodes_seconds - directories_seconds,
    })
}

fn model_of(args: &Args, recorded: &Recorded, cost: real::Visit) -> Model {
    let nanos = |seconds: f64, elements: u64| seconds * 1e9 / elements.max(1) as f64;
    let chunk = args.chunk.max(1);
    Model {
        inodes: recorded.inodes,
        chunk,
        blocks: recorded.directory_blocks,
        batch_blocks: args.batch.max(1),
        most_blocks: args.queue.max(1),
        inode_ns: nanos(recorded.inodes_seconds, recorded.inodes),
        block_ns: nanos(recorded.directories_seconds, recorded.directory_blocks),
        serial_ns: recorded.other_seconds * 1e9,
        visit_ns: cost.visit_ns,
        entry_ns: cost.entry_ns,
        wake_ns: args.wake_us as f64 * 1e3,
        merge_ns: args.merge_us as f64 * 1e3,
    }
}

/// The curve: speed-up relative to one worker without queues.
fn print(args: &Args, recorded: &Recorded, model: &Model) {
    println!(
        "\n**{}: {} inodes at {:.0} ns, {} directory blocks at {:.0} ns, {:.1} ms serial**\n",
        recorded.name,
        model.inodes,
        model.inode_ns,
        model.blocks,
        model.block_ns,
        model.serial_ns / 1e6
    );
    println!(
        "| workers | data | split-equal | dynamic | Amdahl | lock held, dynamic | dynamic ms |"
    );
    println!("|---:|---:|---:|---:|---:|---:|---:|");
    let alone = model.alone_ns();
    for &workers in &args.workers {
        let [data, equal, dynamic] = Policy::ALL.map(|policy| model.run(policy, workers));
        let speed = |simulated: &Simulated| alone / simulated.end_ns;
        println!(
            "| {workers} | {:.2} | {:.2} | {:.2} | {:.2} | {:.1} % | {:.1} |",
            speed(&data),
            speed(&equal),
            speed(&dynamic),
            alone / (model.serial_ns + (alone - model.serial_ns) / workers as f64),
            100.0 * dynamic.lock_ns / dynamic.end_ns,
            dynamic.end_ns / 1e6,
        );
    }
}

/// Runs real threads and queues with work that sleeps, for those worker counts that do not take too
/// long.
fn beside_real(args: &Args, model: &Model) {
    /// Maximum duration of a real run in seconds.
    const MOST_SECONDS: f64 = 3.0;
    println!(
        "\nReal threads with sleeps {} times as long, compared with the model:\n",
        real::SLOWER
    );
    println!("| workers | data ms | model | split-equal ms | model | dynamic ms | model |");
    println!("|---:|---:|---:|---:|---:|---:|---:|");
    for &workers in &args.workers {
        if model.alone_ns() * real::SLOWER / workers as f64 > MOST_SECONDS * 1e9 {
            continue;
        }
        let cells = Policy::ALL.map(|policy| {
            let slower = model.with_work_slower(real::SLOWER);
            let simulated = slower.run(policy, workers).end_ns - model.serial_ns;
            format!("{:.1} | {:.1}", real::run(model, policy, workers) / 1e6, simulated / 1e6)
        });
        println!("| {workers} | {} |", cells.join(" | "));
    }
}
