//! `cargo xtask faulty-device`: checks, repairs and undoes file systems on a block device with one
//! unreadable block: the device mapper's `dust`, in a guest (`guest`). Writing the block makes it
//! readable again, as on a disk that remaps the sector.

mod inside;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use floe_format::{BlockNr, GroupNr};
use floe_testkit::compare::losses;
use floe_testkit::volume::Volume;
use floe_testkit::{Image, Profile, build, oracle, tree};

use crate::guest::{Kernel, Machine, Root};
use crate::kernel_load;
use floe_testkit::tool::built_floe;

pub(crate) use inside::{Args as GuestArgs, run as inside};

/// Device mapper modules, in addition to those for disks and ext4.
const MODULES: &[&str] = &["dm_mod", "dm_dust"];
const MEMORY_MIB: u32 = 640;
/// Blocks of page size: with smaller ones, a bad block would hide its neighbours.
const PROFILE: Profile = Profile::Ext4;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The program to test; by default target/release/floe or target/debug/floe
    #[arg(long)]
    floe: Option<PathBuf>,
    /// The program `dmsetup` (Debian: apt install dmsetup)
    #[arg(long, default_value = "/usr/sbin/dmsetup")]
    dmsetup: PathBuf,
    /// The kernel to boot, as for `kernel-load`
    #[arg(long)]
    kernel: Option<PathBuf>,
}

/// The unreadable block in the file system of one disk.
struct Scene {
    name: &'static str,
    block: BlockNr,
}

/// Runs the command; fails if anything is overwritten, given up or not reported.
pub(crate) fn run(args: &Args) -> Result<()> {
    let floe = args.floe.clone().map_or_else(built_floe, Ok)?;
    let kernel = Kernel::find(args.kernel.as_deref())?;
    let mut root = Root::new(&std::env::current_exe().context("finding this program")?)?;
    root.program("bin/floe", &floe)?;
    root.program("sbin/dmsetup", &args.dmsetup)?;
    let modules = [kernel_load::MODULES, MODULES].concat();
    let machine = Machine::new(&kernel, root, &modules, MEMORY_MIB)?;
    let base = build::base(PROFILE)?;
    let before = tree::stored(&base)?;
    let scenes = scenes(&base)?;
    // The first ones are repaired without permission to overwrite, the last one with it.
    let copies: Vec<Image> = (0..=scenes.len()).map(|_| base.copy()).collect::<Result<_>>()?;
    let disks: Vec<&Path> = copies.iter().map(Image::path).collect();
    let mut order = vec!["guest-faulty".to_owned()];
    order.extend(scenes.iter().map(|scene| format!("--block={}", scene.block.0)));
    order.push(format!("--given-up={}", scenes[0].block.0));
    let mut guest = machine.boot(&disks, &order)?;
    for scene in &scenes {
        println!("{} ({}): {}", scene.name, scene.block, guest.wait_for("left")?);
    }
    println!("{}", guest.wait_for("given up")?);
    guest.wait_for("done")?;
    guest.finish(Duration::from_secs(60))?;
    for (scene, image) in scenes.iter().zip(&copies) {
        let lost = losses(&before, &tree::stored(image)?, &before);
        ensure!(lost.is_empty(), "{}: {lost:?}", scene.name);
        let theirs = oracle::e2fsck(image)?;
        ensure!(theirs.clean(), "{}: {}", scene.name, theirs.text);
    }
    println!("{} file systems: nothing was lost, and e2fsck is content", scenes.len());
    Ok(())
}

/// One block of each kind; that of a directory comes first.
fn scenes(base: &Image) -> Result<Vec<Scene>> {
    let volume = Volume::open(base)?;
    let geometry = &volume.geometry;
    let desc = volume.desc(GroupNr(0))?;
    let directory = volume.map(volume.lookup("/dir")?)?;
    let file = volume.lookup("/dir/file")?;
    let node = volume.map(volume.lookup("/fragmented")?)?;
    let table = volume.inode_offset(file)? / u64::from(geometry.block_size);
    let block = |block: Option<BlockNr>, what| block.with_context(|| format!("no {what}"));
    Ok(vec![
        Scene {
            name: "directory",
            block: block(directory.data.values().next().copied(), "names")?,
        },
        Scene {
            name: "node of a map",
            block: block(node.nodes.first().map(|node| node.block), "node")?,
        },
        Scene { name: "inode table", block: BlockNr(table) },
        Scene { name: "descriptors", block: geometry.primary_desc_block(0) },
        Scene { name: "superblock", block: BlockNr(0) },
        Scene { name: "block bitmap", block: desc.block_bitmap },
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The promises of `docs/safety.md` about unreadable blocks, on a real block device.
    #[test]
    fn a_block_device_with_a_bad_block_is_neither_written_over_nor_given_up() {
        let (Ok(floe), Ok(kernel)) = (built_floe(), Kernel::find(None)) else {
            println!("skipped: no program floe, or no kernel for a guest");
            return;
        };
        let dmsetup = PathBuf::from("/usr/sbin/dmsetup");
        if floe_testkit::tool::missing() || !dmsetup.exists() || kernel.module("dm_dust").is_none()
        {
            println!("skipped: no e2fsprogs, no dmsetup or no dm-dust");
            return;
        }
        let args = Args { floe: Some(floe), dmsetup, kernel: Some(kernel.image().to_owned()) };
        run(&args).unwrap();
    }
}
