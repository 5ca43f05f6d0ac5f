//! Whether a device or image is in use by the system: mounted, swapped to, attached to a loop
//! device, part of another device, or claimed by a program.
//!
//! The content of a device in use changes while it is read, so a check of it reports damage that is
//! not there, and a repair destroys data. Uses are found in `/proc/self/mountinfo`, `/proc/swaps`
//! and `/sys`, by device and inode numbers rather than by names, QEMU and Floe by their locks.
//! Mounts of other mount namespaces are not listed there: those of block devices are detected by
//! claiming the device (`O_EXCL`). Users of what a device lies on count if they use the same bytes.

mod beneath;
mod places;
mod qemu;
mod tables;

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

pub use beneath::mount_over;
pub use places::{Place, places_of};

use crate::OpenError;
use crate::claim::{Access, is_locked};
use crate::stack::{DeviceNumber, Layer, Node, holders, layers, loops_on, node_of, partitions};
use qemu::is_qemu_writing;
use tables::{lines_of, mount, mounts_of, swaps};

/// One way in which a device or image is in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Use {
    /// Its file system is mounted.
    Mounted {
        /// The mount point.
        mount_point: PathBuf,
        /// The type of file system, such as "ext4".
        file_system: String,
        /// Whether the file system itself is read-only, so that nothing writes to the device.
        /// `false` for a read-only mount of a file system that is mounted writable elsewhere.
        read_only: bool,
        /// The block device that is mounted: this one, a partition of it, or a loop device on it.
        device: DeviceNumber,
    },
    /// The system swaps to it.
    Swap {
        /// The name in `/proc/swaps`.
        name: PathBuf,
    },
    /// A loop device is attached to it. By itself that writes nothing.
    Loop {
        /// The loop device, such as `/dev/loop0`.
        device: PathBuf,
        /// Whether the loop device is read-only.
        read_only: bool,
    },
    /// It is part of another block device (RAID, LVM, encryption).
    PartOf {
        /// That device's name in `/sys/block`, such as "dm-0" or "md127".
        device: String,
    },
    /// Another program has locked it, or what it lies on, to write to it: most likely another
    /// instance of Floe, which mounted or repairs it.
    Locked,
    /// QEMU has opened it for writing: most likely a running virtual machine uses it.
    VirtualMachine,
    /// Another holder has claimed the block device: a mount in another container, or a program.
    Claimed,
}

impl Use {
    /// Whether its bytes can change under a reader. An attached loop device alone does not write; a
    /// mount of it is reported as a use of its own.
    pub const fn may_write(&self) -> bool {
        !matches!(self, Self::Mounted { read_only: true, .. } | Self::Loop { .. })
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted { mount_point, file_system, read_only, .. } => {
                let how = if *read_only { "read-only" } else { "read-write" };
                write!(f, "mounted on {} ({file_system}, {how})", mount_point.display())
            }
            Self::Swap { name } => write!(f, "used as swap space ({})", name.display()),
            Self::Loop { device, read_only } => {
                let how = if *read_only { ", read-only" } else { "" };
                write!(f, "attached to {}{how}", device.display())
            }
            Self::PartOf { device } => write!(f, "part of {device}"),
            Self::VirtualMachine => f.write_str("in use by a virtual machine (QEMU)"),
            Self::Locked => f.write_str("locked by another program, most likely another `floe`"),
            Self::Claimed => {
                f.write_str("claimed by another program, or mounted in another container")
            }
        }
    }
}

/// All ways in which the device or image at `path` is in use; none if it is free, or if `/proc` is
/// not available.
///
/// Opens a block device for reading and closes it again to see whether it is claimed. For a whole
/// disk, uses of its partitions count.
///
/// # Errors
/// If `path` cannot be looked up.
pub fn uses_of(path: &Path) -> Result<Vec<Use>, OpenError> {
    uses_of_part(path, 0..u64::MAX)
}

/// The same for a range of the device or image, in bytes: uses of other parts of it, such as its
/// other partitions, are left out.
///
/// # Errors
/// If `path` cannot be looked up.
pub fn uses_of_part(path: &Path, bytes: Range<u64>) -> Result<Vec<Use>, OpenError> {
    let layers = layers(path, bytes).map_err(|source| OpenError::new(path, source))?;
    let above = Above::of(&layers);
    let mut uses: Vec<Use> = above.loops.iter().map(|found| found.used.clone()).collect();
    let mut devices = above.devices;
    devices
        .extend(layers.iter().filter(|layer| layer.exact).filter_map(|layer| layer.node.device()));
    let files: Vec<Node> = layers.iter().map(|layer| layer.node).collect();
    uses.extend(mounts_of(&devices));
    uses.extend(swaps(&files, &devices));
    let mut locked = false;
    for layer in &layers {
        let Ok(metadata) = fs::metadata(&layer.path) else { continue };
        if Node::from(&metadata) == layer.node {
            uses.extend(is_qemu_writing(&layer.path, &metadata).then_some(Use::VirtualMachine));
            locked |= is_locked(&layer.path, Access::Reading, &layer.bytes).unwrap_or(false);
        }
    }
    // Devices of this very stack are no other users of it.
    let is_ours = |device| layers.iter().any(|layer| layer.node.device() == Some(device));
    let holders = devices.iter().flat_map(|&device| holders(device));
    let holders = holders.filter(|(_, number)| !number.is_some_and(is_ours));
    uses.extend(holders.map(|(device, _)| Use::PartOf { device }));
    uses.extend(locked.then_some(Use::Locked));
    let claimable = layers.iter().take(1).filter(|layer| layer.node.device().is_some());
    let mut claimable = claimable.map(|layer| layer.path.clone());
    let is_claimed = |path: PathBuf| is_claimed(&path);
    if !uses.iter().any(claims)
        && (claimable.any(is_claimed) || above.loops.into_iter().any(|found| found.is_claimed()))
    {
        uses.push(Use::Claimed);
    }
    Ok(uses)
}

/// The devices that hold bytes of a stack of layers, but are no part of it.
#[derive(Default)]
struct Above {
    loops: Vec<LoopAbove>,
    devices: BTreeSet<DeviceNumber>,
}

/// A loop device over one of the layers.
struct LoopAbove {
    used: Use,
    /// Its partitions with bytes of the layers; itself, if it has none.
    parts: Vec<PathBuf>,
}

impl LoopAbove {
    /// A claim of a loop device excludes claims of its partitions.
    fn is_claimed(&self) -> bool {
        self.parts.iter().any(|part| is_claimed(part))
    }
}

impl Above {
    fn of(layers: &[Layer]) -> Self {
        let mut found = Self::default();
        let stack: Vec<DeviceNumber> =
            layers.iter().filter_map(|layer| layer.node.device()).collect();
        for layer in layers {
            found.add(layer.node, &layer.bytes, &stack);
        }
        found
    }

    /// Adds the loop devices over a range of a file or device, its partitions, and what is over
    /// those.
    fn add(&mut self, node: Node, bytes: &Range<u64>, stack: &[DeviceNumber]) {
        let is_new = |found: &Self, device: &DeviceNumber| {
            !stack.contains(device) && !found.devices.contains(device)
        };
        for over in loops_on(node, bytes) {
            if !is_new(self, &over.device) {
                continue;
            }
            self.devices.insert(over.device);
            let start = bytes.start.max(over.bytes.start) - over.bytes.start;
            let end = bytes.end.min(over.bytes.end) - over.bytes.start;
            let parts = partitions(over.device, &(start..end));
            let mut parts: Vec<PathBuf> = parts.into_iter().filter_map(node_of).collect();
            if parts.is_empty() {
                parts.push(over.node.clone());
            }
            let used = Use::Loop { device: over.node, read_only: over.read_only };
            self.loops.push(LoopAbove { used, parts });
            self.add(Node::Block(over.device), &(start..end), stack);
        }
        let Node::Block(device) = node else { return };
        for part in partitions(device, bytes) {
            if is_new(self, &part) {
                self.devices.insert(part);
                self.add(Node::Block(part), &(0..u64::MAX), stack);
            }
        }
    }
}

/// The mount at a mount point: always a [`Use::Mounted`]. `None` if nothing is mounted there, or if
/// `/proc` is not available. The path is compared literally, so resolve links first.
pub fn mounted_at(mount_point: &Path) -> Option<Use> {
    let is_there = |found: &Use| match found {
        Use::Mounted { mount_point: point, .. } => point == mount_point,
        _ => false,
    };
    // The last mount hides those before it.
    lines_of("/proc/self/mountinfo").iter().filter_map(|line| mount(line)).rfind(is_there)
}

/// Whether this use explains why a block device is claimed.
const fn claims(found: &Use) -> bool {
    !matches!(found, Use::Loop { .. } | Use::VirtualMachine)
}

/// Whether a block device is claimed by another holder. Other errors are left to the caller, which
/// opens the device itself.
fn is_claimed(device: &Path) -> bool {
    // Linux: without O_CREAT, O_EXCL claims a block device; the claim ends with the close.
    let flags = OFlags::EXCL.bits().cast_signed();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(device);
    let errno = opened.err().and_then(|error| error.raw_os_error());
    errno.is_some_and(|errno| Errno::from_raw_os_error(errno) == Errno::BUSY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Output};

    #[test]
    fn a_plain_file_is_free_and_a_missing_one_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(uses_of(file.path()).unwrap(), []);
        let missing = uses_of(Path::new("/nonexistent/image"));
        assert!(matches!(missing, Err(OpenError::NotFound { .. })));
    }

    fn run(program: &str, args: &[&str]) -> std::io::Result<Output> {
        let output = Command::new(program).args(args).output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(output) } else { Err(std::io::Error::other(said)) }
    }

    /// Undoes a loop mount, even a partial one, also when a test fails.
    struct LoopMount {
        dir: tempfile::TempDir,
        device: String,
    }

    impl Drop for LoopMount {
        fn drop(&mut self) {
            let _ = run("umount", &[self.dir.path().join("mnt").to_str().unwrap()]);
            let _ = run("losetup", &["-d", &self.device]);
        }
    }

    fn loop_mount(options: &str) -> std::io::Result<LoopMount> {
        let dir = tempfile::tempdir()?;
        let image = dir.path().join("image");
        fs::File::create(&image)?.set_len(4 << 20)?;
        let image = image.to_str().unwrap().to_owned();
        run("mke2fs", &["-q", "-F", &image])?;
        let device = run("losetup", &["-f", "--show", &image])?.stdout;
        let device = String::from_utf8_lossy(&device).trim().to_owned();
        let held = LoopMount { dir, device };
        let mount_point = held.dir.path().join("mnt");
        fs::create_dir(&mount_point)?;
        run("mount", &["-o", options, &held.device, mount_point.to_str().unwrap()])?;
        Ok(held)
    }

    #[test]
    fn a_loop_mount_is_found_from_both_ends() {
        for (options, read_only) in [("rw", false), ("ro", true)] {
            let held = match loop_mount(options) {
                Ok(held) => held,
                Err(error) => {
                    println!("skipped: no loop mounts here: {error}");
                    return;
                }
            };
            let mount_point = held.dir.path().join("mnt");
            let image = held.dir.path().join("image");
            for path in [Path::new(&held.device), &image] {
                let uses = uses_of(path).unwrap();
                let found = uses.iter().find_map(|found| match found {
                    Use::Mounted { mount_point, read_only, file_system, .. } => {
                        Some((mount_point.clone(), *read_only, file_system.starts_with("ext")))
                    }
                    _ => None,
                });
                assert_eq!(found, Some((mount_point.clone(), read_only, true)), "{uses:?}");
                assert!(!uses.contains(&Use::Claimed), "said twice: {uses:?}");
                assert_eq!(uses.iter().any(Use::may_write), !read_only);
            }
            let at = mounted_at(&mount_point).unwrap();
            assert!(uses_of(&image).unwrap().contains(&at), "{at:?}");
            let of_image = uses_of(&image).unwrap();
            assert!(of_image.iter().any(|found| found.to_string().contains(&held.device)));
            // Without the mount, only the loop device is left, and nothing writes.
            run("umount", &[mount_point.to_str().unwrap()]).unwrap();
            assert_eq!(mounted_at(&mount_point), None);
            assert_eq!(uses_of(Path::new(&held.device)).unwrap(), []);
            assert!(!uses_of(&image).unwrap().iter().any(Use::may_write));
        }
    }

    #[test]
    fn a_claimed_device_is_noticed() {
        let held = match loop_mount("rw") {
            Ok(held) => held,
            Err(error) => {
                println!("skipped: no loop mounts here: {error}");
                return;
            }
        };
        let mount_point = held.dir.path().join("mnt");
        run("umount", &[mount_point.to_str().unwrap()]).unwrap();
        let flags = OFlags::EXCL.bits().cast_signed();
        let claim = OpenOptions::new().read(true).custom_flags(flags).open(&held.device).unwrap();
        assert_eq!(uses_of(Path::new(&held.device)).unwrap(), [Use::Claimed]);
        assert!(uses_of(&held.dir.path().join("image")).unwrap().contains(&Use::Claimed));
        let second = crate::WritableFile::open_exclusive(Path::new(&held.device));
        assert!(matches!(second, Err(OpenError::Busy { .. })));
        drop(claim);
        // A process that another test is forking holds a copy of the claim until it calls exec.
        let free = || uses_of(Path::new(&held.device)).unwrap().is_empty();
        assert!((0..500).any(|_| free() || {
            floe_sync::thread::sleep(std::time::Duration::from_millis(10));
            false
        }));
    }
}
