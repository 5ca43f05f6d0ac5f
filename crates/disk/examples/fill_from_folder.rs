//! Makes an ext4 image that just fits a folder: `fill_from_folder FOLDER IMAGE [THREADS]`. Prints
//! how long each step took, and the process's peak memory so far.

use std::fs;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use floe_blockdev::WritableFile;
use floe_disk::mkfs::tree::Timestamp;
use floe_disk::mkfs::{FillOptions, Fresh, FsType, Options, TreePlan, WriteOptions, fill};
use floe_disk::source::{Loaded, directory};

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let mut next = || arguments.next().map(PathBuf::from);
    let (folder, image) =
        (next().context("FOLDER is missing")?, next().context("IMAGE is missing")?);
    let threads = next().and_then(|text| text.to_str()?.parse().ok()).unwrap_or(2);
    let mut last = Instant::now();
    let mut lap = |what: &str| {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let memory = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or("");
        println!("{what}: {:.2} s, {memory}", last.elapsed().as_secs_f64());
        last = Instant::now();
    };

    let Loaded { tree, contents, .. } = directory(&folder)?;
    lap("scanned");

    // A pure function of parameters and tree that writes nothing.
    let fresh = Fresh { uuid: [1; 16], hash_seed: [2; 16], now: Timestamp::default() };
    let params = Options::of_type(FsType::Ext4).params(1 << 30, None, &fresh)?;
    let plan = TreePlan::fitted(&params, &tree, 0)?;
    lap("planned");

    let device = WritableFile::create(&image, plan.plan().bytes())?;
    let write = WriteOptions { reads_as_zeroes: true };
    fill(&plan, &*contents, &device, FillOptions { threads, write, progress: None })?;
    lap("written");
    println!("{} files", tree.len());
    Ok(())
}
