//! Sets owner, attributes, mode and times of a copied file, as far as permitted.

use std::ffi::OsStr;
use std::fmt::Display;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use floe_ext4::files::{Files, Node, Timestamp};
use floe_format::ext::inode::FileType;
use rustix::fs::{self as sys, AtFlags, Gid, Mode, Timespec, Timestamps, Uid, XattrFlags};

use super::Complaints;

/// Sets all metadata of `name` in `folder` from `node`. Only the superuser may set owners and most
/// attributes; otherwise they are skipped silently.
pub(super) fn apply(
    files: &Files<'_>,
    complaints: &Complaints,
    path: &[u8],
    node: &Node,
    folder: &OwnedFd,
    name: &[u8],
) {
    let tell = |what: &str, error: &dyn Display| {
        complaints.failure(path, format!("cannot set {what}: {error}"));
    };
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        let owner = (Uid::from_raw(node.uid()), Gid::from_raw(node.gid()));
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        if let Err(error) = sys::chownat(folder, name, Some(owner.0), Some(owner.1), flags) {
            tell("its owner", &error);
        }
    }
    let (attributes, faults) = files.attributes(node);
    complaints.faults(path, &faults);
    let place = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    let place = place.join(OsStr::from_bytes(name));
    for attribute in attributes {
        let anyone_may = [&b"user."[..], b"system."];
        if !is_root && !anyone_may.iter().any(|prefix| attribute.name.starts_with(prefix)) {
            continue;
        }
        let set =
            sys::lsetxattr(&place, &attribute.name[..], &attribute.value, XattrFlags::empty());
        if let Err(error) = set {
            let name = floe_ext4::files::printable(&attribute.name);
            tell(&format!("attribute {name}"), &error);
        }
    }
    if node.file_type() != Some(FileType::Symlink) {
        let mode = Mode::from_raw_mode(u32::from(node.permissions()));
        if let Err(error) = sys::chmodat(folder, name, mode, AtFlags::empty()) {
            tell("its mode", &error);
        }
    }
    let times = Timestamps {
        last_access: timespec(node.atime()),
        last_modification: timespec(node.mtime()),
    };
    if let Err(error) = sys::utimensat(folder, name, &times, AtFlags::SYMLINK_NOFOLLOW) {
        tell("its times", &error);
    }
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanoseconds) }
}
