//! `floe check --online`: checks a mounted file system by a snapshot.
//!
//! A mounted file system changes all the time, so reads of its device are inconsistent; a snapshot
//! is not. The method depends on the underlying storage; if none is possible, the reason is
//! reported, and nothing is checked. `docs/online.md` is the user documentation.

use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use floe_blockdev::{DeviceNumber, ReadBlocks, Use, mounted_at};
use serde_json::{Value, json};

use crate::input::clock::now_seconds;
use crate::input::device::Source;
use crate::input::files::Judged;

mod command;
pub(crate) mod freeze;
mod hook;
mod lvm;
mod reflink;
mod teardown;

use lvm::Lvm;
use teardown::Teardown;

/// Command-line options for snapshots.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct OnlineArgs {
    /// Check a file system in use: DEVICE is its mount point, or the image file of a running
    /// virtual machine; a snapshot is taken, checked and removed (see docs/online.md)
    #[arg(long, conflicts_with_all = ["force", "external_journal", "ignore_journal"])]
    pub(crate) online: bool,
    /// Create the snapshot with this shell command, which prints its path (see docs/online.md)
    #[arg(long, value_name = "COMMAND", requires = "online")]
    snapshot_command: Option<String>,
    /// The snapshot command itself ensures that nothing is written meanwhile
    #[arg(long, requires = "snapshot_command")]
    no_freeze: bool,
    /// Space for changes while a thick LVM snapshot exists, as for lvcreate --size or --extents
    #[arg(long, value_name = "SIZE", requires = "online", default_value = "10%ORIGIN")]
    snapshot_size: String,
    /// Block writers for at most this many seconds; a snapshot that takes longer is discarded
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "online",
        default_value_t = 10,
        value_parser = clap::value_parser!(u16).range(1..)
    )]
    freeze_limit: u16,
}

/// The origin and method of a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// The mount point, or the image file.
    pub(crate) target: PathBuf,
    /// `reflink`, `lvm-thin`, `lvm-thick` or `command`.
    pub(crate) method: &'static str,
    /// Time of the snapshot, in seconds since 1970.
    pub(crate) taken_seconds: i64,
    /// How long writers waited. `None`: Floe did not freeze them (LVM does that itself).
    pub(crate) frozen: Option<Duration>,
}

impl About {
    /// The member `snapshot` of the JSON report.
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

/// A snapshot for a check. Removed on drop.
pub(crate) struct Snapshot {
    pub(crate) about: About,
    pub(crate) device: Box<dyn ReadBlocks>,
    teardown: Teardown,
    /// Whether the data read so far is the state at the time of the snapshot.
    verdict_counts: Box<dyn Fn() -> anyhow::Result<()>>,
}

impl Snapshot {
    /// Fails if the data read so far may differ from the state at the time of the snapshot.
    pub(crate) fn verify(&self) -> anyhow::Result<()> {
        (self.verdict_counts)()
    }

    /// Removes the snapshot. Also done on drop, with a message on standard error if it fails.
    pub(crate) fn remove(self) -> anyhow::Result<()> {
        let Self { device, teardown, .. } = self;
        // LVM refuses to remove open volumes.
        drop(device);
        teardown.run()
    }
}

/// Takes a snapshot of `source`.
///
/// # Errors
/// None is possible, or its path is also an output in `files`.
pub(crate) fn take(source: &Source, args: &OnlineArgs, files: &Judged) -> anyhow::Result<Snapshot> {
    let path = fs::canonicalize(&source.device).with_context(|| source.name())?;
    let metadata = fs::metadata(&path).with_context(|| source.name())?;
    let limit = Duration::from_secs(args.freeze_limit.into());
    if metadata.is_file() {
        ensure!(
            args.snapshot_command.is_none(),
            "--snapshot-command is for mounted file systems: give the mount point"
        );
        return reflink::of_image(source, &path);
    }
    ensure!(
        source.partition.is_none() && source.offset == 0 && source.format.is_none(),
        "--partition, --offset and --format locate a file system in an image; a mounted one is \
         located by its mount point"
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
            "no snapshot of {} is possible: {} is {reason}. Nothing was checked. Snapshots are possible \
             of LVM volumes, and of loop devices whose image file is on XFS or Btrfs; \
             --snapshot-command uses a method of your own (see docs/online.md)",
            mounted.point.display(),
            mounted.device.display()
        ),
    }
}

/// A mounted ext file system.
struct Mounted {
    point: PathBuf,
    /// The device node, for messages and hooks.
    device: PathBuf,
    number: DeviceNumber,
}

impl Mounted {
    fn at(point: &Path) -> anyhow::Result<Self> {
        let name = point.display();
        let Some(Use::Mounted { file_system, read_only, device: number, .. }) = mounted_at(point)
        else {
            bail!(
                "{name} is not a mount point. --online needs the mount point of a file system, \
                 or the image file of a virtual machine"
            );
        };
        ensure!(
            ["ext2", "ext3", "ext4"].contains(&file_system.as_str()),
            "{name} is a {file_system} file system; only ext2, ext3 and ext4 are supported"
        );
        let device = node(number);
        ensure!(
            !read_only,
            "{name} is mounted read-only and does not change: check its device, {}",
            device.display()
        );
        Ok(Self { point: point.to_owned(), device, number })
    }

    fn about(&self, method: &'static str, frozen: Option<Duration>) -> About {
        About { target: self.point.clone(), method, taken_seconds: now_seconds(), frozen }
    }
}

/// The `/sys` folder of a block device.
fn sys(number: DeviceNumber) -> PathBuf {
    PathBuf::from(format!("/sys/dev/block/{number}"))
}

/// The `/dev` node of a block device.
fn node(number: DeviceNumber) -> PathBuf {
    let name = fs::read_link(sys(number)).ok();
    let name = name.as_deref().and_then(Path::file_name).map(|name| Path::new("/dev").join(name));
    name.unwrap_or_else(|| PathBuf::from(format!("block device {number}")))
}

/// The file of a loop device, and the part of it that holds a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Backing {
    file: PathBuf,
    offset_bytes: u64,
    /// `None`: up to the end.
    len_bytes: Option<u64>,
}

/// The storage below a file system.
enum Origin {
    Loop(Backing),
    /// A logical volume, by its device node.
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
        return none("encrypted, and so would be a snapshot of the volume below");
    }
    if !uuid.is_empty() || sys.join("dm").exists() {
        return none("a device mapper device, but not an LVM volume");
    }
    if sys.join("md").exists() {
        return none("an md array");
    }
    none("a disk or partition")
}

/// The file behind a loop device or one of its partitions.
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
            bail!("cannot locate the partition in {}", file.display())
        };
        (start, Some(len))
    } else {
        (0, limit)
    };
    ensure!(
        file.exists(),
        "the image file behind the loop device does not exist: {}",
        file.display()
    );
    Ok(Some(Backing { file, offset_bytes: disk_offset.saturating_add(start), len_bytes: len }))
}
