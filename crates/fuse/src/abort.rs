//! Ending a connection whose server answers nothing any more: through the kernel's file system for that (fusectl), or by answering in its place.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::process::getuid;

use crate::abi::{InHeader, Opcode, OutHeader};
use crate::carrier::REQUEST_BYTES;

/// The place where systems mount fusectl.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// `FUSE_NOTIFY_RESEND` (Linux 6.9): the kernel sends again what was sent and not answered.
const RESEND: u32 = 7;
/// Time after which the kernel is asked again to send.
const RESEND_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

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

/// Answers each request of a connection whose server is dead with `ENOTCONN`, by another descriptor of the connection, so that neither
/// programs nor threads of the server wait for it. Requests that the server had taken come again from Linux 6.9 on; an older kernel
/// sends only those that it had not taken. Returns when the connection has ended.
///
/// # Errors
/// The kernel refuses to be read from or written to.
pub fn refuse_requests(device: &impl AsFd) -> io::Result<()> {
    let mut buffer = vec![0; REQUEST_BYTES];
    loop {
        // An older kernel does not know it.
        let _ = rustix::io::write(device, &answer(RESEND, 0));
        loop {
            let mut found = [PollFd::new(device, PollFlags::IN)];
            match poll(&mut found, Some(&RESEND_EVERY)) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
            match rustix::io::read(device, &mut buffer[..]) {
                Ok(len) => refuse(device, buffer.get(..len).unwrap_or_default())?,
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Refuses a request, if somebody waits for its answer.
fn refuse(device: &impl AsFd, request: &[u8]) -> io::Result<()> {
    let Some(header) = request.first_chunk().map(InHeader::decode) else { return Ok(()) };
    let awaited = !matches!(
        Opcode::of(header.opcode),
        Some(Opcode::Forget | Opcode::BatchForget | Opcode::Interrupt)
    );
    if awaited {
        let error = Errno::NOTCONN.raw_os_error().wrapping_neg().cast_unsigned();
        match rustix::io::write(device, &answer(error, header.unique)) {
            // The caller is gone, or the mount.
            Ok(_) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

fn answer(error: u32, unique: u64) -> [u8; OutHeader::SIZE] {
    let mut bytes = [0; OutHeader::SIZE];
    OutHeader { len: OutHeader::SIZE as u32, error, unique }.encode_into(&mut bytes);
    bytes
}

/// The name that [`set_name_of_watcher`] gives to a process.
const WATCHER: &str = "floe-watch";

/// Lets this process be known as one that watches over a mount, and is not its server.
pub fn set_name_of_watcher() {
    // A name is no more than that.
    let _ = fs::write("/proc/self/comm", WATCHER);
}

/// Processes that serve the connection of a mount, alive, stopped, or dead but for a thread that waits in the kernel; as far as the
/// system lets us look. Nothing is asked of them. `minor` is the minor number of the mount's device.
pub fn servers_of(minor: u32) -> Vec<u32> {
    processes(|process| !is_watcher(process) && serves(process, minor))
}

/// Processes that watch over the mount with this minor number, and are stopped: they end nothing.
pub fn stopped_watchers_of(minor: u32) -> Vec<u32> {
    processes(|process| is_watcher(process) && is_stopped(process) && watches(process, minor))
}

fn processes(is_wanted: impl Fn(&Path) -> bool) -> Vec<u32> {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    numbers.filter(|number| is_wanted(&PathBuf::from(format!("/proc/{number}")))).collect()
}

fn is_watcher(process: &Path) -> bool {
    fs::read_to_string(process.join("comm")).is_ok_and(|name| name.trim_end() == WATCHER)
}

fn is_stopped(process: &Path) -> bool {
    let told = fs::read_to_string(process.join("stat")).unwrap_or_default();
    // The state follows the name, which may have any characters.
    told.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// Whether a watcher has the file that ends the connection, or a descriptor of it.
fn watches(process: &Path, minor: u32) -> bool {
    let all = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let mut links = all.filter_map(|descriptor| fs::read_link(descriptor.path()).ok());
    links.any(|link| link.ends_with(format!("{minor}/abort")))
        || holds(process, minor).unwrap_or(false)
}

fn serves(process: &Path, minor: u32) -> bool {
    // Once its main thread is dead, a process shows the descriptors only with its other threads.
    let threads = || fs::read_dir(process.join("task")).into_iter().flatten().flatten();
    holds(process, minor)
        .unwrap_or_else(|| threads().any(|thread| holds(&thread.path(), minor).unwrap_or(false)))
}

/// Whether a thread has a descriptor of the connection; `None` if it shows no descriptor at all.
fn holds(thread: &Path, minor: u32) -> Option<bool> {
    let (mut has_any, mut has_device, mut has_abort) = (false, false, false);
    let (abort, of_ended) = (format!("{minor}/abort"), format!("{minor}/abort (deleted)"));
    let mut serves = false;
    for descriptor in fs::read_dir(thread.join("fd")).ok()?.flatten() {
        has_any = true;
        let Ok(link) = fs::read_link(descriptor.path()) else { continue };
        has_abort |= link.ends_with(&abort);
        // A mount that has ended had the same number. Its server, stopped perhaps, still has the descriptor.
        if link.ends_with(&of_ended) {
            return Some(false);
        }
        if link != Path::new("/dev/fuse") {
            continue;
        }
        let told = fs::read_to_string(thread.join("fdinfo").join(descriptor.file_name()));
        match told.as_deref().map(connection_of) {
            Ok(Some(connection)) => serves |= connection == minor,
            _ => has_device = true,
        }
    }
    // Linux older than 6.17 does not tell the connection of a descriptor; but a server has the file open that ends its own.
    has_any.then_some(serves || has_device && has_abort)
}

/// The number of the connection that a descriptor of `/dev/fuse` has, from its `fdinfo`.
fn connection_of(text: &str) -> Option<u32> {
    text.lines().find_map(|line| line.strip_prefix("fuse_connection:"))?.trim().parse().ok()
}
