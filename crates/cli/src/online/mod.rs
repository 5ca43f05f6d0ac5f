//! `floe check --online`: a check of a file system in use, by way of a snapshot of it.
//!
//! Somebody writes to a mounted file system all the time, so what is read of its device fits together
//! nowhere. A snapshot stands still. How one is made depends on what the file system lies on; where it
//! cannot be made, the reason is said, and nothing is checked. `docs/online.md` is for users.

use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use floe_blockdev::{DeviceNumber, ReadBlocks, Use, mounted_at};
use serde_json::{Value, json};

use crate::clock::now_seconds;
use crate::device::Source;
use crate::files::Judged;

mod command;
pub(crate) mod freeze;
mod hook;
mod lvm;
mod reflink;
mod teardown;

use lvm::Lvm;
use teardown::Teardown;

/// What the command line says about snapshots.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct OnlineArgs {
    /// Check a file system in use: DEVICE is its mount point, or the image file of a running virtual
    /// machine; a snapshot is taken, checked and dropped (see docs/online.md)
    #[arg(long, conflicts_with_all = ["force", "external_journal", "ignore_journal"])]
    pub(crate) online: bool,
    /// Make the snapshot with this shell command, which prints its path (see docs/online.md)
    #[arg(long, value_name = "COMMAND", requires = "online")]
    snapshot_command: Option<String>,
    /// The snapshot command makes sure itself that nothing is written meanwhile
    #[arg(long, requires = "snapshot_command")]
    no_freeze: bool,
    /// Space for what changes while a thick LVM snapshot exists, as for lvcreate --size or --extents
    #[arg(long, value_name = "SIZE", requires = "online", default_value = "10%ORIGIN")]
    snapshot_size: String,
    /// Let writers wait for this many seconds at most; a snapshot that takes longer is given up
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "online",
        default_value_t = 10,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    freeze_limit: u16,
}

/// What a snapshot is of, and how it came about.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// The mount point, or the image file.
    pub(crate) target: PathBuf,
    /// `reflink`, `lvm-thin`, `lvm-thick` or `command`.
    pub(crate) method: &'static str,
    /// When it was taken, in seconds since 1970.
    pub(crate) taken_seconds: i64,
    /// How long writers had to wait. `None`: nobody was stopped by us (LVM does it by itself).
    pub(crate) frozen: Option<Duration>,
}

impl About {
    /// The member `snapshot` of the report for programs.
    pub(crate) fn json(&self) -> Value {
        json!({
            "method": self.method,
            "taken": self.taken_seconds,
            "frozen_seconds": self.frozen.map(|frozen| frozen.as_secs_f64()),
        })
    }
}

impl fmt::Display for About {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "This is a snapshot of {} ({})", self.target.display(), self.method)?;
        match self.frozen {
            Some(frozen) => write!(f, "; writers waited {:.3} s.", frozen.as_secs_f64()),
            None => f.write_str("."),
        }
    }
}

/// A snapshot that can be checked. Dropped with the value.
pub(crate) struct Snapshot {
    pub(crate) about: About,
    pub(crate) device: Box<dyn ReadBlocks>,
    teardown: Teardown,
    /// Whether what was read is still what was there when the snapshot was taken.
    verdict_counts: Box<dyn Fn() -> anyhow::Result<()>>,
}

impl Snapshot {
    /// Fails if what was read need not be what was there when the snapshot was taken.
    pub(crate) fn verify(&self) -> anyhow::Result<()> {
        (self.verdict_counts)()
    }

    /// Drops the snapshot. Also done, with a word on standard error if it fails, when the value goes.
    pub(crate) fn remove(self) -> anyhow::Result<()> {
        let Self { device, teardown, .. } = self;
        // LVM removes nothing that is open.
        drop(device);
        teardown.run()
    }
}

/// Takes a snapshot of what `source` names.
///
/// # Errors
/// If none can be made, or what was made is where an output of `files` goes.
pub(crate) fn take(source: &Source, args: &OnlineArgs, files: &Judged) -> anyhow::Result<Snapshot> {
    let path = fs::canonicalize(&source.device).with_context(|| source.name())?;
    let metadata = fs::metadata(&path).with_context(|| source.name())?;
    let limit = Duration::from_secs(args.freeze_limit.into());
    if metadata.is_file() {
        ensure!(
            args.snapshot_command.is_none(),
            "--snapshot-command is for mounted file systems: name the mount point"
        );
        return reflink::of_image(source, &path);
    }
    ensure!(
        source.partition.is_none() && source.offset == 0 && source.format.is_none(),
        "--partition, --offset and --format say where in an image a file system is; a mounted one is \
         found by its mount point"
    );
    let mounted = Mounted::at(&path)?;
    if let Some(command) = &args.snapshot_command {
        let freeze = (!args.no_freeze).then_some(limit);
        return hook::snapshot(&mounted, command, freeze, files);
    }
    match origin(mounted.number)? {
        Origin::Loop(backing) => reflink::of_loop(&mounted, &backing, limit),
        Origin::Lvm(device) => Lvm::default().snapshot(&mounted, &device, &args.snapshot_size),
        Origin::None { reason } => bail!(
            "no snapshot of {} can be made: {} is {reason}. Nothing was checked. Snapshots can be made \
             of LVM volumes, and of loop devices whose image file is on XFS or Btrfs; \
             --snapshot-command makes one in your own way (see docs/online.md)",
            mounted.point.display(),
            mounted.device.display()
        ),
    }
}

/// A mounted ext file system.
struct Mounted {
    point: PathBuf,
    /// The device node, for people and hooks.
    device: PathBuf,
    number: DeviceNumber,
}

impl Mounted {
    fn at(point: &Path) -> anyhow::Result<Self> {
        let name = point.display();
        let Some(Use::Mounted { file_system, read_only, device: number, .. }) = mounted_at(point)
        else {
            bail!(
                "{name} is no mount point. --online checks a mounted file system by its mount point, \
                 or the image file of a virtual machine"
            );
        };
        ensure!(
            ["ext2", "ext3", "ext4"].contains(&file_system.as_str()),
            "{name} is a {file_system} file system; only ext2, ext3 and ext4 are checked"
        );
        let device = node(number);
        ensure!(
            !read_only,
            "{name} is mounted read-only, so nothing changes: check its device, {}",
            device.display()
        );
        Ok(Self { point: point.to_owned(), device, number })
    }

    fn about(&self, method: &'static str, frozen: Option<Duration>) -> About {
        About { target: self.point.clone(), method, taken_seconds: now_seconds(), frozen }
    }
}

/// The folder of a block device in `/sys`.
fn sys(number: DeviceNumber) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{number}"))
}

/// The node of a block device in `/dev`.
fn node(number: DeviceNumber) -> PathBuf {
    let name = fs::read_link(sys(number)).ok();
    let name = name.as_deref().and_then(Path::file_name).map(|name| Path::new("/dev").join(name));
    name.unwrap_or_else(|| PathBuf::from(format!("block device {number}")))
}

/// The file of a loop device, and which part of it a file system is in.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Backing {
    file: PathBuf,
    offset_bytes: u64,
    /// `None`: to the end.
    len_bytes: Option<u64>,
}

/// What a file system lies on.
enum Origin {
    Loop(Backing),
    /// A logical volume, by its node.
    Lvm(PathBuf),
    None {
        reason: String,
    },
}

fn origin(number: DeviceNumber) -> anyhow::Result<Origin> {
    let sys = sys(number);
    if let Some(backing) = backing(&sys)? {
        return Ok(Origin::Loop(backing));
    }
    let text = |file: &str| fs::read_to_string(sys.join(file)).unwrap_or_default();
    let none = |reason: &str| Ok(Origin::None { reason: reason.to_owned() });
    let uuid = text("dm/uuid");
    if uuid.starts_with("LVM-") {
        return Ok(Origin::Lvm(Path::new("/dev/mapper").join(text("dm/name").trim())));
    }
    if uuid.starts_with("CRYPT-") {
        return none("encrypted, and a snapshot of what lies below would be, too");
    }
    if !uuid.is_empty() || sys.join("dm").exists() {
        return none("made by the device mapper, but not by LVM");
    }
    if sys.join("md").exists() {
        return none("an md array");
    }
    none("a disk or partition")
}

/// The file behind a loop device or a partition of one.
fn backing(sys: &Path) -> anyhow::Result<Option<Backing>> {
    let sectors = |path: PathBuf| -> Option<u64> {
        fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()?.checked_mul(512)
    };
    let bytes =
        |path: PathBuf| -> Option<u64> { fs::read_to_string(path).ok()?.trim().parse().ok() };
    let partition = sys.join("partition").exists();
    let disk = if partition { sys.join("..") } else { sys.to_owned() };
    let Ok(mut name) = fs::read(disk.join("loop/backing_file")) else { return Ok(None) };
    if name.last() == Some(&b'\n') {
        name.pop();
    }
    let file = PathBuf::from(std::ffi::OsString::from_vec(name));
    let disk_offset = bytes(disk.join("loop/offset")).unwrap_or(0);
    let limit = bytes(disk.join("loop/sizelimit")).filter(|&limit| limit != 0);
    let (start, len) = if partition {
        let part = (sectors(sys.join("start")), sectors(sys.join("size")));
        let (Some(start), Some(len)) = part else {
            bail!("cannot tell where in {} the partition is", file.display())
        };
        (start, Some(len))
    } else {
        (0, limit)
    };
    ensure!(
        file.exists(),
        "the image file behind the loop device is not there: {}",
        file.display()
    );
    Ok(Some(Backing { file, offset_bytes: disk_offset.saturating_add(start), len_bytes: len }))
}
