//! `cargo xtask fs-memory`: bytes that the file system in memory keeps for each inode and name, beside the slabs of the
//! kernel's ext4 for the same tree (needs root and loop devices; without them the kernel is left out).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use floe_testkit::kernel::{self, Mounted};

/// Slabs that ext4 fills when it looks at a file.
const SLABS: [&str; 3] = ["ext4_inode_cache", "dentry", "extent_status"];

/// The command line.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Files of the tree, 1,000 in a directory
    #[arg(long, default_value_t = 1_000_000)]
    files: u32,
    /// Fail if Floe takes more than so many times what the kernel takes
    #[arg(long, default_value_t = 1.2)]
    at_most: f64,
    /// A limit, in MiB, within which the same tree is walked once more
    #[arg(long, default_value_t = 64)]
    limit: u64,
    /// Folder of the image, which is kept and reused
    #[arg(long, default_value = "target/fs-memory")]
    folder: PathBuf,
}

/// Builds the tree, walks it by both, and prints bytes for each inode and name.
pub(crate) fn run(args: &Args) -> Result<()> {
    let image = args.folder.join(format!("{}.img", args.files));
    if !image.exists() {
        build(args, &image)?;
    }
    let (count, floe) = walk(&image, None)?;
    println!(
        "Floe:   {:6.0} bytes an inode and name ({count} of them, {floe} bytes)",
        each(floe, count)
    );
    let (_, bounded) = walk(&image, Some(args.limit << 20))?;
    println!("        {bounded} bytes within a limit of {} MiB", args.limit);
    if let Err(why) = kernel::mount_available() {
        println!("kernel: {why}");
        return Ok(());
    }
    let slabs = of_kernel(&image)?;
    println!("kernel: {:6.0} bytes an inode and name ({slabs} bytes of slabs)", each(slabs, count));
    let times = floe as f64 / slabs as f64;
    println!("{times:.2} times the kernel's slabs");
    ensure!(times <= args.at_most, "more than {} times", args.at_most);
    Ok(())
}

fn each(bytes: u64, count: u64) -> f64 {
    bytes as f64 / count as f64
}

/// An example of `floe-fs`, as a release without link-time optimisation.
pub(crate) fn example(name: &str) -> Command {
    let mut command = Command::new(std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned()));
    command.args(["run", "--quiet", "--release", "--package", "floe-fs", "--example", name]);
    command.args(["--config", "profile.release.lto=\"off\""]);
    command.args(["--config", "profile.release.codegen-units=16", "--"]);
    command
}

fn build(args: &Args, image: &Path) -> Result<()> {
    fs::create_dir_all(&args.folder).context("creating the folder")?;
    let part = image.with_extension("part");
    // Two directories of the root lie in a group of their own, so there are more inodes than files.
    let inodes = u64::from(args.files) * 5 / 4 + 10_000;
    fs::File::create(&part)?.set_len(inodes * 1024 + (256 << 20))?;
    let inodes = inodes.to_string();
    let made = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-I", "256", "-b", "4096", "-N", &inodes])
        .arg(&part)
        .status()
        .context("running mke2fs")?;
    ensure!(made.success(), "mke2fs failed");
    let filled =
        example("footprint").arg("fill").arg(&part).arg(args.files.to_string()).status()?;
    ensure!(filled.success(), "the tree was not built");
    fs::rename(&part, image).context("renaming the image")
}

/// Inodes with names, and bytes of memory.
fn walk(image: &Path, limit: Option<u64>) -> Result<(u64, u64)> {
    let limit = limit.map(|limit| limit.to_string());
    let out = example("footprint").arg("walk").arg(image).args(limit).output()?;
    let text = String::from_utf8_lossy(&out.stdout);
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let numbers: Vec<u64> = text.split_whitespace().flat_map(str::parse).collect();
    match numbers[..] {
        [inodes, _, bytes] => Ok((inodes, bytes)),
        _ => anyhow::bail!("not understood: {text}"),
    }
}

/// Bytes of the slabs' objects that are in use.
fn slab_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/slabinfo").context("reading /proc/slabinfo")?;
    let bytes = |line: &str| {
        let mut words = line.split_whitespace();
        let name = words.next()?;
        let active: u64 = words.next()?.parse().ok()?;
        let size: u64 = words.nth(1)?.parse().ok()?;
        SLABS.contains(&name).then_some(active * size)
    };
    Ok(text.lines().filter_map(bytes).sum())
}

fn of_kernel(image: &Path) -> Result<u64> {
    let mount = Mounted::new(image, "ro,noload")?;
    let before = slab_bytes()?;
    let mut due = vec![mount.path().to_owned()];
    while let Some(folder) = due.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            // Looks at the inode, which the name alone would not.
            if entry.metadata()?.is_dir() {
                due.push(entry.path());
            }
        }
    }
    let bytes = slab_bytes()?.saturating_sub(before);
    mount.unmount()?;
    Ok(bytes)
}
