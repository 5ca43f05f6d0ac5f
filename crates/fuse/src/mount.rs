//! Mounting and unmounting: as root by the system's own calls, else through `fusermount3`.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use rustix::process::{getgid, getuid};

use crate::device::{DevFuse, Transport};
use crate::options::Synchronous;

/// How the kernel mounts.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Shown as the source of the mount.
    pub fsname: OsString,
    /// Shown behind `fuse.` as the type.
    pub subtype: String,
    /// Nothing can be changed through this mount.
    pub read_only: bool,
    /// All users may use the mount, not only the one who mounts.
    pub allow_other: bool,
    /// Set-user-ID bits do nothing. Always so without root.
    pub no_suid: bool,
    /// Devices cannot be opened. Always so without root.
    pub no_devices: bool,
    /// Programs cannot be run.
    pub no_exec: bool,
    /// Reading changes no access times.
    pub no_atime: bool,
    /// The kernel makes writes durable.
    pub synchronous: Synchronous,
    /// The kernel judges who may do what.
    pub judged: bool,
    /// How requests come.
    pub transport: Transport,
}

/// Why a file system could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    /// There is no `/dev/fuse`.
    #[error(
        "/dev/fuse cannot be opened: {0}; load the module (`modprobe fuse`), or in a container, pass the device"
    )]
    NoDevice(io::Error),
    /// The system refuses.
    #[error("cannot mount on {}: {source}", .place.display())]
    Refused {
        /// The mount point.
        place: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// `fusermount3` cannot be run.
    #[error("cannot run fusermount3: {0}; install the package fuse3, or mount as root")]
    NoHelper(io::Error),
    /// `fusermount3` refuses; it has said why on standard error.
    #[error("fusermount3 refused to mount on {}", .0.display())]
    HelperRefused(PathBuf),
    /// The machine keeps the high byte of a number first.
    #[error("big-endian machines are not served")]
    BigEndian,
}

/// A place to mount on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountPoint {
    /// A directory.
    Directory(PathBuf),
    /// A descriptor of `/dev/fuse` that somebody else has mounted already and given us (`/dev/fd/N`).
    Descriptor(PathBuf),
}

impl MountPoint {
    /// The place that a path names.
    pub fn of(path: &Path) -> Self {
        match path.strip_prefix("/dev/fd") {
            Ok(rest) if rest.to_str().is_some_and(|number| number.parse::<u32>().is_ok()) => {
                Self::Descriptor(path.to_owned())
            }
            _ => Self::Directory(path.to_owned()),
        }
    }
}

/// Mounts, and returns the connection to the kernel. The kernel waits with all requests until it is served.
///
/// # Errors
/// [`MountError`].
pub fn mount(place: &MountPoint, options: &MountOptions) -> Result<DevFuse, MountError> {
    if cfg!(target_endian = "big") {
        return Err(MountError::BigEndian);
    }
    match place {
        MountPoint::Descriptor(path) => {
            let refused = |source| MountError::Refused { place: path.clone(), source };
            let device = connected(path).map_err(refused)?;
            Ok(DevFuse::new(device, options.transport))
        }
        MountPoint::Directory(path) if getuid().is_root() => mount_as_root(path, options),
        MountPoint::Directory(path) => mount_by_helper(path, options),
    }
}

/// A further descriptor of the connection that the descriptor `/dev/fd/N` has. Opening that name would give one without a connection.
#[cfg(feature = "io-uring")]
fn connected(path: &Path) -> io::Result<OwnedFd> {
    let number = path.file_name().and_then(OsStr::to_str).and_then(|number| number.parse().ok());
    crate::ring::clone_number(number.ok_or(Errno::BADF)?)
}

/// Only a call that is not safe gives one.
#[cfg(not(feature = "io-uring"))]
fn connected(_: &Path) -> io::Result<OwnedFd> {
    Err(io::Error::other("this build of Floe lacks io_uring, and so a call that this takes"))
}

fn open_device(path: &Path) -> Result<OwnedFd, Errno> {
    open(path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

fn mount_as_root(place: &Path, options: &MountOptions) -> Result<DevFuse, MountError> {
    use std::os::fd::AsRawFd;
    let device = open_device(Path::new("/dev/fuse"));
    let device = device.map_err(|errno| MountError::NoDevice(errno.into()))?;
    let refused = |source: io::Error| MountError::Refused { place: place.to_owned(), source };
    let root_mode = std::fs::metadata(place).map(|metadata| {
        use std::os::unix::fs::MetadataExt;
        metadata.mode()
    });
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={}",
        device.as_raw_fd(),
        root_mode.map_err(refused)?,
        getuid().as_raw(),
        getgid().as_raw()
    );
    if options.judged {
        data.push_str(",default_permissions");
    }
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let mut flags = MountFlags::empty();
    for (wanted, flag) in [
        (options.read_only, MountFlags::RDONLY),
        (options.no_suid, MountFlags::NOSUID),
        (options.no_devices, MountFlags::NODEV),
        (options.no_exec, MountFlags::NOEXEC),
        (options.no_atime, MountFlags::NOATIME),
        (options.synchronous.data, MountFlags::SYNCHRONOUS),
        (options.synchronous.names, MountFlags::DIRSYNC),
    ] {
        flags.set(flag, wanted);
    }
    let kind = format!("fuse.{}", options.subtype);
    // Holds no zero byte.
    let data = CString::new(data).map_err(|error| refused(error.into()))?;
    let mounted =
        rustix::mount::mount(&options.fsname, place, kind.as_str(), flags, data.as_c_str());
    mounted.map_err(|errno| refused(errno.into()))?;
    Ok(DevFuse::new(device, options.transport))
}

/// Mounts through `fusermount3`, which is root: it opens the device, mounts, and passes the descriptor over a
/// socket, which is its standard input here.
fn mount_by_helper(place: &Path, options: &MountOptions) -> Result<DevFuse, MountError> {
    let refused =
        |errno: Errno| MountError::Refused { place: place.to_owned(), source: errno.into() };
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .map_err(refused)?;
    let mut child = Command::new("fusermount3")
        .arg("-o")
        .arg(helper_options(options))
        .arg("--")
        .arg(place)
        .env("_FUSE_COMMFD", "0")
        .stdin(Stdio::from(theirs))
        .spawn()
        .map_err(MountError::NoHelper)?;
    let received = receive_descriptor(&ours);
    let status = child.wait().map_err(MountError::NoHelper)?;
    match received {
        Ok(Some(device)) if status.success() => Ok(DevFuse::new(device, options.transport)),
        Err(errno) => Err(refused(errno)),
        Ok(_) => Err(MountError::HelperRefused(place.to_owned())),
    }
}

/// Options as `fusermount3` takes them. Commas and backslashes in the name are escaped.
fn helper_options(options: &MountOptions) -> OsString {
    let mut list = Vec::new();
    let mut add = |wanted: bool, text: &str| list.extend(wanted.then(|| text.as_bytes().to_vec()));
    add(options.judged, "default_permissions");
    add(true, if options.read_only { "ro" } else { "rw" });
    add(options.allow_other, "allow_other");
    add(options.no_exec, "noexec");
    add(options.no_atime, "noatime");
    add(options.synchronous.data, "sync");
    add(options.synchronous.names, "dirsync");
    add(true, &format!("subtype={}", options.subtype));
    let mut name = b"fsname=".to_vec();
    for &byte in options.fsname.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            name.push(b'\\');
        }
        name.push(byte);
    }
    list.push(name);
    OsStr::from_bytes(&list.join(&b',')).to_owned()
}

/// Waits for a descriptor; `None` if the other side closes the socket without one.
fn receive_descriptor(socket: &OwnedFd) -> Result<Option<OwnedFd>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0; 1];
    let mut parts = [io::IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut messages = control.drain();
    Ok(messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

/// Unmounts. With `detach`, the mount leaves the tree at once and ends when nobody uses it any more.
///
/// # Errors
/// `Busy` if the mount is in use and not to be detached, or what the system or `fusermount3` says.
pub fn unmount(place: &Path, detach: bool) -> io::Result<()> {
    if getuid().is_root() {
        let flags = if detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
        return Ok(rustix::mount::unmount(place, flags)?);
    }
    let mut command = Command::new("fusermount3");
    command.arg(if detach { "-uz" } else { "-u" }).arg("--").arg(place);
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.contains("busy") {
        return Err(Errno::BUSY.into());
    }
    Err(io::Error::other(said))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_is_known_by_its_path() {
        let place = |path: &str| MountPoint::of(Path::new(path));
        assert!(matches!(place("/dev/fd/3"), MountPoint::Descriptor(_)));
        assert!(matches!(place("/dev/fd/3/x"), MountPoint::Directory(_)));
        assert!(matches!(place("/mnt"), MountPoint::Directory(_)));
    }

    #[test]
    fn names_with_commas_are_one_option() {
        let options = MountOptions {
            fsname: "/a,b\\c".into(),
            subtype: "floe".to_owned(),
            read_only: true,
            allow_other: false,
            no_suid: true,
            no_devices: true,
            no_exec: false,
            no_atime: false,
            synchronous: Synchronous { names: true, data: false },
            judged: true,
            transport: Transport::Auto,
        };
        let text = helper_options(&options);
        assert_eq!(text, "default_permissions,ro,dirsync,subtype=floe,fsname=/a\\,b\\\\c");
    }
}
