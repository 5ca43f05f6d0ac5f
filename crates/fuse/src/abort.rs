//! Ending a connection whose server answers nothing any more, through the kernel's file system for that (fusectl).

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::getuid;

/// The place where systems mount fusectl.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";

/// The file that ends a mount's connection when a byte is written to it. It stays that of this connection: once the connection has ended,
/// a write fails, even if another one has got its number. `minor` is the minor number of the mount's device.
///
/// Where fusectl is not mounted, as in containers, root mounts it out of sight.
///
/// # Errors
/// fusectl cannot be used, or the connection is somebody else's.
pub fn open_abort(minor: u32) -> io::Result<File> {
    let name = format!("{minor}/abort");
    let mounted = OpenOptions::new().write(true).open(Path::new(CONNECTIONS).join(&name));
    if mounted.is_ok() || !getuid().is_root() {
        return mounted;
    }
    let control = fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&control)?;
    let root = fsmount(&control, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    Ok(File::from(openat(&root, name, flags, Mode::empty())?))
}
