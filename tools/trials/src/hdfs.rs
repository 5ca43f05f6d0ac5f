//! `cargo xtask hdfs`: a real NameNode and three DataNodes of Hadoop, whose volumes are cubes of one mount of Floe's each. Part of
//! the disk below one cube fails while four clients write and read: the DataNode must report one failed volume and serve the
//! others, clients must not notice, and HDFS must copy the blocks of that cube again, and no others (IceFS, section 5.3.2).
//!
//! The failing disk is an image on a tmpfs of its size: the place of the cube's journal is taken out of the image, and its memory
//! is given to another file, so that writes to that place fail with `ENOSPC` from then on, and to no other.

mod cluster;
mod disk;
mod timeline;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use floe_testkit::tool::{self, built_floe};
use floe_testkit::{Image, kernel, oracle};

use cluster::Cluster;
use disk::Node;
use timeline::{Moment, Timeline};

/// The command line.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The program to test; by default the newest built floe
    #[arg(long)]
    floe: Option<PathBuf>,
    /// Folder of Hadoop's jars; fetched by mvn if it is not there
    #[arg(long, default_value = "target/hdfs/jars")]
    jars: PathBuf,
    /// Seconds that clients work
    #[arg(long, default_value_t = 90)]
    seconds: u64,
    /// Write the timeline as a picture (SVG)
    #[arg(long)]
    picture: Option<PathBuf>,
}

/// The cube that fails, in the first DataNode's mount.
const FAILS: u32 = 2;

/// Runs the command; fails unless the failure stays in its cube.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    if let Err(reason) = kernel::mount_available() {
        bail!("{reason}");
    }
    cluster::fetch(&args.jars)?;
    let scratch = tool::scratch("floe-hdfs-")?;
    let nodes = (1..=3).map(|number| Node::new(&floe, scratch.path(), number));
    let nodes = nodes.collect::<Result<Vec<_>>>()?;
    let volumes: Vec<Vec<PathBuf>> = nodes.iter().map(Node::volumes).collect();
    let mut cluster = Cluster::start(&args.jars, scratch.path(), &volumes)?;
    let (timeline, mut lost) = watch(args, &mut cluster, &nodes[0])?;
    let copied = cluster.copied_blocks()?;
    lost.extend(cluster.interrupted_blocks()?);
    let failed_volumes = cluster.failed_volumes()?;
    drop(cluster);
    if let Some(picture) = &args.picture {
        std::fs::write(picture, timeline.svg()).context("writing the picture")?;
    }
    print!("{timeline}");
    // Blocks that came between the look at the volume and its failure.
    lost.extend(repaired(&floe, nodes)?);
    judge(&timeline, &failed_volumes, &lost, &copied)
}

/// Lets clients work, and a cube fail after a third of the time. Returns what happened, and the blocks in the failed volume.
fn watch(args: &Args, cluster: &mut Cluster, node: &Node) -> Result<(Timeline, BTreeSet<String>)> {
    let clients = cluster.clients(args.seconds)?;
    let (begin, mut timeline, mut lost) = (Instant::now(), Timeline::default(), None);
    for line in clients {
        let counts = line?;
        let at = begin.elapsed();
        if lost.is_none() && at > Duration::from_secs(args.seconds / 3) {
            lost = Some(blocks_below(&node.volumes()[FAILS as usize - 1])?);
            node.fail(FAILS)?;
            timeline.failed_at = Some(at);
        }
        let behind = cluster.under_replicated()?;
        let failed_volumes = cluster.failed_volumes()?.len();
        timeline.moments.push(Moment { at, counts, behind, failed_volumes });
    }
    let lost = lost.context("the clients ended before the failure")?;
    Ok((timeline, lost))
}

/// Names of HDFS's blocks in a volume.
fn blocks_below(volume: &Path) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let mut folders = vec![volume.to_owned()];
    while let Some(folder) = folders.pop() {
        // Folders come and go meanwhile.
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for entry in entries.filter_map(Result::ok) {
            let name = entry.file_name().to_string_lossy().into_owned();
            if is_block(&name) {
                names.insert(name);
            } else if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                folders.push(entry.path());
            }
        }
    }
    ensure!(!names.is_empty(), "{} has no blocks", volume.display());
    Ok(names)
}

fn is_block(name: &str) -> bool {
    name.starts_with("blk_") && !name.ends_with(".meta")
}

fn judge(
    timeline: &Timeline,
    failed_volumes: &[String],
    lost: &BTreeSet<String>,
    copied: &BTreeSet<String>,
) -> Result<()> {
    let last = timeline.moments.last().context("no client ran")?;
    let name = format!("/v{FAILS}");
    ensure!(
        failed_volumes.len() == 1 && failed_volumes[0].ends_with(&name),
        "failed volumes: {failed_volumes:?}, expected is {name} alone"
    );
    ensure!(last.counts.iter().all(|client| client.failed == 0), "clients failed");
    ensure!(last.behind == 0, "{} blocks still lack a copy", last.behind);
    let of_others: Vec<_> = copied.difference(lost).collect();
    println!(
        "blocks in the failed cube: {}; copied again: {}, of these in other cubes: {}",
        lost.len(),
        copied.len(),
        of_others.len()
    );
    ensure!(!copied.is_empty(), "no block was copied again");
    ensure!(of_others.is_empty(), "blocks of other cubes were copied, too: {of_others:?}");
    Ok(())
}

/// Repairs the image whose disk is whole again, and lets e2fsck judge all. Returns the blocks in the volume that had failed.
fn repaired(floe: &Path, nodes: Vec<Node>) -> Result<BTreeSet<String>> {
    let (floe, mut blocks) = (floe.to_string_lossy(), BTreeSet::new());
    for (at, node) in nodes.into_iter().enumerate() {
        let image = node.unmounted()?;
        if at == 0 {
            let image = image.to_string_lossy().into_owned();
            tool::must(&floe, &["repair", "--yes", &image], &[1])?;
            tool::must(&floe, &["check", &image], &[0])?;
            let listed = tool::must(&floe, &["ls", "-R", &image, &format!("/v{FAILS}")], &[0])?;
            let names = listed.text.lines().filter_map(|line| line.rsplit(['/', ' ']).next());
            blocks.extend(names.filter(|name| is_block(name)).map(str::to_owned));
        }
        let verdict = oracle::e2fsck(&Image::open(&image)?)?;
        ensure!(verdict.clean(), "DataNode {}: {}", at + 1, verdict.text);
    }
    println!(
        "the disk is whole again: floe repair, floe check and e2fsck find all three images clean"
    );
    Ok(blocks)
}
