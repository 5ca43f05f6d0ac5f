//! `cargo xtask boot`: tests Floe in a complete distribution. Creates a Debian in a folder,
//! installs, updates and removes the packages, and then boots it from an ext4 disk in a guest
//! (`guest`), with its own initramfs and systemd, repeatedly and with different damage (`scenes`).

mod scenes;
mod system;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use floe_testkit::image::Contents;
use floe_testkit::{Image, build, tool};

use crate::guest::{Kernel, MARK, Machine};
use scenes::{Disk, End, Left, SCENES, Scene};
use system::System;

const MEMORY_MIB: u32 = 1024;
/// Maximum time for the shutdown after the last word of a scene.
const SHUTDOWN: Duration = Duration::from_secs(180);

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The folder with the packages (make deb)
    #[arg(long, default_value = "target/debian")]
    packages: PathBuf,
    /// The kernel to boot, as for `kernel-load`; by default /usr/bin/linux.uml if installed
    #[arg(long)]
    kernel: Option<PathBuf>,
    /// The Debian release
    #[arg(long, default_value = "bookworm")]
    suite: String,
    /// The Debian mirror
    #[arg(long, default_value = "http://deb.debian.org/debian")]
    mirror: String,
    /// A folder that caches debootstrap's result
    #[arg(long)]
    base: Option<PathBuf>,
    /// Only these scenes (repeat, or separate by commas), after the package tests
    #[arg(long, value_delimiter = ',')]
    scene: Vec<String>,
    /// Write the output of each guest to a file in this folder
    #[arg(long)]
    logs: Option<PathBuf>,
}

/// Runs the command; tries all parts, and fails if any of them does.
pub(crate) fn run(args: &Args) -> Result<()> {
    let begin = Instant::now();
    let scenes = chosen(&args.scene)?;
    // List everything that is missing, not only the first.
    let kernel = kernel(args.kernel.as_deref());
    let mut missing = system::missing(args.base.as_deref(), &args.packages);
    missing.extend(kernel.as_ref().err().map(|error| format!("{error:#}")));
    if !missing.is_empty() {
        bail!("this cannot be tried here:\n  {}", missing.join("\n  "));
    }
    let kernel = kernel?;
    let system = System::make(args.base.as_deref(), &args.suite, &args.mirror, &kernel)?;
    for line in system.try_packages(&args.packages)? {
        println!("pass  packages: {line}");
    }
    let disks = Disks::make(&system)?;
    let mut failures = 0;
    for scene in scenes {
        match play(scene, &system, &kernel, &disks, args.logs.as_deref()) {
            Ok(lines) => {
                for line in lines {
                    println!("pass  {}: {line}", scene.name);
                }
            }
            Err(error) => {
                failures += 1;
                println!("FAIL  {}: {error:#}", scene.name);
            }
        }
    }
    println!("{} s", begin.elapsed().as_secs());
    ensure!(failures == 0, "{failures} scenes failed");
    Ok(())
}

/// The named kernel, or the one that boots fastest.
fn kernel(named: Option<&Path>) -> Result<Kernel> {
    let kernel = Kernel::fastest(named)?;
    ensure!(kernel.modules().is_some(), "{} has no folder with modules", kernel.image().display());
    Ok(kernel)
}

fn chosen(names: &[String]) -> Result<Vec<&'static Scene>> {
    if names.is_empty() {
        return Ok(SCENES.iter().collect());
    }
    names
        .iter()
        .map(|name| {
            let known = || SCENES.iter().map(|scene| scene.name).collect::<Vec<_>>().join(" ");
            SCENES
                .iter()
                .find(|scene| scene.name == *name)
                .with_context(|| format!("no scene {name}; there are {}", known()))
        })
        .collect()
}

/// The images of the guest's disks; see [`Disk`].
struct Disks(Vec<Image>);

impl Disks {
    fn make(system: &System) -> Result<Self> {
        let mut disks = vec![system.image()?];
        let files = tool::scratch("floe-boot-")?;
        for name in ["letter", "invoice"] {
            std::fs::write(files.path().join(name), name.repeat(1000))?;
        }
        let files = files.path().to_str().context("scratch folders have plain names")?;
        for label in ["data", "vault"] {
            let image = Image::empty(64 << 20)?;
            build::mke2fs(image.path(), &["-t", "ext4", "-L", label, "-d", files])?;
            disks.push(image);
        }
        // A disk for LVM.
        disks.push(Image::empty(512 << 20)?);
        Ok(Self(disks))
    }

    fn of(&self, disk: Disk) -> &Image {
        &self.0[disk as usize]
    }

    /// The contents of all disks but the root.
    fn contents(&self) -> Result<Vec<Contents>> {
        self.0.iter().skip(1).map(|image| Contents::read(image.path())).collect()
    }

    fn paths(&self) -> Vec<&Path> {
        self.0.iter().map(Image::path).collect()
    }
}

/// Boots the system with the damage of `scene`; returns the observations.
fn play(
    scene: &Scene,
    system: &System,
    kernel: &Kernel,
    disks: &Disks,
    logs: Option<&Path>,
) -> Result<Vec<String>> {
    for (disk, requests) in scene.damage {
        build::debugfs(disks.of(*disk), requests)?;
    }
    let before = disks.contents()?;
    let machine = Machine::of_system(kernel, &system.initramfs(scene.initramfs), MEMORY_MIB)?;
    let words = format!("root=LABEL=root ro loglevel=4 floe.scene={}", scene.name);
    let mut guest = machine.boot_system(&disks.paths(), &words)?;
    let mut seen = Vec::new();
    let reached = match scene.end {
        End::Done => guest.wait_for("done").map(drop),
        End::Stops(text) => guest.hear(text),
    };
    let log = match (&reached, scene.end) {
        (Ok(()), End::Done) => guest.finish(SHUTDOWN),
        _ => guest.kill(),
    }?;
    if let Some(folder) = logs {
        std::fs::create_dir_all(folder)?;
        let path = folder.join(format!("{}.log", scene.name));
        std::fs::write(&path, &log).with_context(|| format!("writing {}", path.display()))?;
    }
    reached?;
    for text in scene.heard {
        let line = log.lines().find(|line| line.contains(text));
        let line = line.with_context(|| format!("nobody said \"{text}\""))?;
        // systemd's progress messages may precede the text.
        let at = line.find(text).and_then(|at| line[..at].rfind("complete"));
        let line = at.map_or(line, |at| line[at..].trim_start_matches("complete"));
        seen.push(line.trim_start_matches([')', '.']).trim().to_owned());
    }
    if let Some(line) =
        scene.never.iter().find_map(|text| log.lines().find(|line| line.contains(text)))
    {
        bail!("{line}");
    }
    let tried = format!("{MARK} tried ");
    seen.extend(log.lines().filter_map(|line| Some(line.split_once(&tried)?.1.to_owned())));
    for (disk, left) in scene.left {
        let image = disks.of(*disk);
        let path = image.path().to_str().context("scratch folders have plain names")?;
        match left {
            Left::Clean => {
                tool::must("e2fsck", &["-fn", path], &[0])?;
                seen.push(format!("{disk:?}: e2fsck -fn finds nothing"));
            }
            Left::Damaged => {
                tool::must("e2fsck", &["-fn", path], &[4])?;
                seen.push(format!("{disk:?}: e2fsck -fn finds damage"));
            }
            Left::AsItWas => {
                let old = before.get(*disk as usize - 1).context("the root is never the same")?;
                // The superblock is in the first chunk.
                let now = Contents::read(image.path())?;
                let changed = old.differences(&now).into_iter().filter(|&at| at > 0).count();
                ensure!(changed == 0, "{disk:?}: {changed} chunks behind the superblock changed");
                seen.push(format!("{disk:?}: nothing behind the superblock was written"));
            }
        }
    }
    Ok(seen)
}
