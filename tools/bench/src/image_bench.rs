//! `cargo xtask image-bench`: compares image builders, alternating, in one run on one machine:
//! `floe mkfs --from`, `mke2fs -d`, genext2fs if installed, and for root `tar | tar` onto a mounted
//! image.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use floe_testkit::{oracle, tool};

use crate::bench::median;
use crate::measure::{Cost, measure};
use floe_testkit::tool::built_floe;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Build images of this folder instead of generated folders of small files
    #[arg(long)]
    source: Option<PathBuf>,
    /// Number of files in the generated folders
    #[arg(long, default_value_t = 200_000)]
    files: u32,
    /// Thread counts of Floe
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    threads: Vec<usize>,
    /// Runs of each program; the median is reported
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Folder for sources and images; preferably in a memory file system
    #[arg(long, default_value = "target/image-bench")]
    folder: PathBuf,
    /// The program to measure; by default the newest built floe
    #[arg(long)]
    floe: Option<PathBuf>,
}

/// Files per folder, if there are many folders.
const FILES_A_FOLDER: u32 = 500;
/// Size of the largest small file.
const MOST_BYTES: u32 = 2048;

/// An image builder, as a shell command.
struct Builder {
    name: String,
    command: Vec<String>,
    costs: Vec<Cost>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<()> {
    tool::available().map_err(anyhow::Error::msg)?;
    fs::create_dir_all(&args.folder)?;
    let folder = args.folder.canonicalize()?;
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    println!("{} runs of each program, alternating; medians", args.runs);
    match &args.source {
        Some(source) => bench(args, &floe, &folder, &source.canonicalize()?),
        None => {
            let many = made_up(&folder, "small-files", args.files, FILES_A_FOLDER)?;
            bench(args, &floe, &folder, &many)?;
            // mke2fs needs minutes for more: its time grows with the square.
            let one = made_up(&folder, "one-folder", args.files / 10, args.files / 10)?;
            bench(args, &floe, &folder, &one)
        }
    }
}

/// A folder of small files, with `a_folder` files per subfolder; kept for later runs.
fn made_up(folder: &Path, name: &str, files: u32, a_folder: u32) -> Result<PathBuf> {
    let top = folder.join(format!("{name}-{files}"));
    if top.exists() {
        return Ok(top);
    }
    // Renamed when complete: an interrupted run leaves only the temporary name.
    let unfinished = folder.join("unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)?;
    }
    let bytes = vec![b'x'; MOST_BYTES as usize];
    for at in 0..files {
        let below = unfinished.join(format!("folder-{}", at / a_folder));
        if at % a_folder == 0 {
            fs::create_dir_all(&below)?;
        }
        // Cycles through all sizes.
        let size = at.wrapping_mul(2_654_435_761) % MOST_BYTES;
        fs::write(below.join(format!("file-{at}")), &bytes[..size as usize])?;
    }
    fs::rename(&unfinished, &top)?;
    Ok(top)
}

fn bench(args: &Args, floe: &Path, folder: &Path, source: &Path) -> Result<()> {
    let (inodes, bytes) = counted(source)?;
    let mib = (bytes + u64::from(inodes) * 512) / (1 << 20) * 6 / 5 + 64;
    let image = folder.join("image");
    let mut builders = builders(args, floe, folder, source, &image, (inodes, mib))?;
    for _ in 0..args.runs {
        for builder in &mut builders {
            if image.exists() {
                fs::remove_file(&image)?;
            }
            let cost = measure(&builder.command)?;
            ensure!(cost.exit == 0, "{} exited with {}", builder.name, cost.exit);
            builder.costs.push(cost);
            judge(builder, &image)?;
        }
    }
    fs::remove_file(&image)?;
    report(source, (inodes, bytes), &builders);
    Ok(())
}

/// Inodes of a folder, and bytes of its content in blocks of 4 KiB.
fn counted(source: &Path) -> Result<(u32, u64)> {
    let (mut inodes, mut bytes) = (0u32, 0);
    let mut folders = vec![source.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            inodes += 1;
            bytes += metadata.len().next_multiple_of(4096);
            if metadata.is_dir() {
                folders.push(entry.path());
            }
        }
    }
    Ok((inodes, bytes))
}

fn builders(
    args: &Args,
    floe: &Path,
    folder: &Path,
    source: &Path,
    image: &Path,
    (inodes, mib): (u32, u64),
) -> Result<Vec<Builder>> {
    let (source, image) = (source.display(), image.display());
    let shell = |name: &str, script: String| Builder {
        name: name.to_owned(),
        command: ["sh", "-ec", &script].map(str::to_owned).to_vec(),
        costs: Vec::new(),
    };
    let made = format!("mke2fs -q -F -t ext4 -N {} ", inodes + 1000);
    let mut all = vec![shell("mke2fs -d", format!("{made} -d '{source}' '{image}' {mib}M"))];
    for threads in &args.threads {
        let floe = floe.display();
        let options = format!("--threads {threads} --progress never");
        let script = format!("'{floe}' mkfs -q {options} --from 'dir:{source}' '{image}'");
        all.push(shell(&format!("floe mkfs --threads {threads}"), script));
    }
    if has("genext2fs") {
        let (blocks, inodes) = (mib * 256, inodes + 1000);
        let script = format!("genext2fs -B 4096 -b {blocks} -N {inodes} -d '{source}' '{image}'");
        all.push(shell("genext2fs (ext2)", script));
    } else {
        println!("genext2fs is not installed: skipped");
    }
    if rustix::process::geteuid().is_root() {
        let mount = folder.join("mount");
        fs::create_dir_all(&mount)?;
        let mount = mount.display();
        let script = format!(
            "{made} '{image}' {mib}M; mount -o loop '{image}' '{mount}'; \
             tar -C '{source}' -c . | tar -C '{mount}' -x; umount '{mount}'"
        );
        all.push(shell("tar, onto a mounted image", script));
    } else {
        println!("tar | tar onto a mount needs root: skipped");
    }
    Ok(all)
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// e2fsck's verdict on the first image of each builder.
fn judge(builder: &Builder, image: &Path) -> Result<()> {
    if builder.costs.len() == 1 {
        let judged = oracle::run(image, &["-fn"])?;
        ensure!(judged.exit == Some(0), "{}: {}", builder.name, judged.text);
    }
    Ok(())
}

fn report(source: &Path, (inodes, bytes): (u32, u64), builders: &[Builder]) {
    let name = source.file_name().unwrap_or_default().to_string_lossy();
    println!("\n{name}: {inodes} files and folders, {} MB in blocks of 4 KiB\n", bytes / 1_000_000);
    println!("| Program | Time | Processor | Peak memory | mke2fs -d takes |");
    println!("|---|---|---|---|---|");
    let usual = builders.first().map_or(f64::NAN, |first| median(&first.costs, |cost| cost.wall));
    for builder in builders {
        let wall = median(&builder.costs, |cost| cost.wall);
        let cpu = median(&builder.costs, |cost| cost.cpu);
        let peak = median(&builder.costs, |cost| cost.peak_mib);
        println!(
            "| {} | {wall:.2} s | {cpu:.2} s | {peak:.0} MiB | {:.1} times as long |",
            builder.name,
            usual / wall
        );
    }
}
