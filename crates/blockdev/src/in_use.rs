//! Whether a device or image is in use by the system: mounted, swapped to, attached to a loop
//! device, part of another device, or claimed by a program.
//!
//! The content of a device in use changes while it is read, so a check of it reports damage that is
//! not there, and a repair destroys data. Uses are found in `/proc/self/mountinfo`, `/proc/swaps`
//! and `/sys`, by device and inode numbers rather than by names, and QEMU by its locks on the file.
//! Mounts of other mount namespaces are not listed there: those of block devices are detected by
//! claiming the device (`O_EXCL`).

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, OpenOptions};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, fcntl};
use rustix::fs::{OFlags, major, minor};
use rustix::io::Errno;

use crate::OpenError;

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
    /// QEMU has opened it for writing: most likely a running virtual machine uses it.
    VirtualMachine,
    /// Another holder has claimed the block device: a mount in another container, or a program.
    Claimed,
}

/// Number of a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// The device of that driver.
    pub minor: u32,
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
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
    let metadata = fs::metadata(path).map_err(|source| OpenError::new(path, source))?;
    let mut uses = Vec::new();
    let mut devices = BTreeSet::new();
    let is_block_device = metadata.file_type().is_block_device();
    if is_block_device {
        devices.insert(number(metadata.rdev()));
    } else {
        loops_on(&metadata, &mut uses, &mut devices);
    }
    let parts: Vec<DeviceNumber> = devices.iter().flat_map(|&device| partitions(device)).collect();
    devices.extend(parts);
    uses.extend(mounts_of(&devices));
    uses.extend(swaps(&metadata, &devices));
    if is_qemu_writing(path, &metadata) {
        uses.push(Use::VirtualMachine);
    }
    uses.extend(devices.iter().flat_map(|&device| holders(device)));
    if is_block_device {
        if !uses.iter().any(claims) && is_claimed(path) {
            uses.push(Use::Claimed);
        }
    } else {
        let loops = uses.iter().filter_map(|found| match found {
            Use::Loop { device, .. } => Some(device.clone()),
            _ => None,
        });
        let claimed = loops.collect::<Vec<_>>().iter().any(|device| is_claimed(device));
        if claimed && !uses.iter().any(claims) {
            uses.push(Use::Claimed);
        }
    }
    Ok(uses)
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

fn number(device: u64) -> DeviceNumber {
    DeviceNumber { major: major(device), minor: minor(device) }
}

fn parse_number(text: &str) -> Option<DeviceNumber> {
    let (major, minor) = text.trim().split_once(':')?;
    Some(DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? })
}

/// The lines of a file in `/proc`, as bytes, because file names need not be UTF-8.
fn lines_of(path: &str) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).unwrap_or_default();
    bytes.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// Undoes the octal escapes (`\040` for a blank) of names in `/proc`.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut name = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let octal = |digits: &[u8; 3]| {
            digits.iter().try_fold(0u32, |value, digit| {
                (b'0'..=b'7').contains(digit).then(|| value * 8 + u32::from(digit - b'0'))
            })
        };
        let escaped = after.first_chunk().filter(|_| byte == b'\\').and_then(octal);
        match escaped.and_then(|value| u8::try_from(value).ok()) {
            Some(value) => {
                name.push(value);
                rest = &after[3..];
            }
            None => name.push(byte),
        }
    }
    PathBuf::from(OsString::from_vec(name))
}

fn mounts_of(devices: &BTreeSet<DeviceNumber>) -> Vec<Use> {
    let lines = lines_of("/proc/self/mountinfo");
    let of_ours = |found: &Use| match found {
        Use::Mounted { device, .. } => devices.contains(device),
        _ => false,
    };
    lines.iter().filter_map(|line| mount(line)).filter(of_ours).collect()
}

/// One line of `mountinfo`: "36 35 98:0 /root /point rw,noatime shared:1 - ext3 /dev/x rw,errors".
fn mount(line: &[u8]) -> Option<Use> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = parse_number(std::str::from_utf8(fields.nth(2)?).ok()?)?;
    let mount_point = unescaped(fields.nth(1)?);
    let mut behind = fields.skip_while(|field| *field != b"-").skip(1);
    let file_system = String::from_utf8_lossy(behind.next()?).into_owned();
    let options = behind.nth(1)?;
    let read_only = options.split(|&byte| byte == b',').any(|option| option == b"ro");
    Some(Use::Mounted { mount_point, file_system, read_only, device })
}

/// Swap devices and files, which `/proc/swaps` names in its first column.
fn swaps(metadata: &fs::Metadata, devices: &BTreeSet<DeviceNumber>) -> Vec<Use> {
    let mut found = Vec::new();
    for line in lines_of("/proc/swaps").iter().skip(1) {
        let Some(field) = line.split(|byte| matches!(byte, b' ' | b'\t')).next() else { continue };
        let name = unescaped(field);
        let Ok(swap) = fs::metadata(&name) else { continue };
        let same_device =
            swap.file_type().is_block_device() && devices.contains(&number(swap.rdev()));
        if same_device || (swap.dev(), swap.ino()) == (metadata.dev(), metadata.ino()) {
            found.push(Use::Swap { name });
        }
    }
    found
}

/// The byte that QEMU locks in a file while it may write to it. QEMU locks one byte for each
/// permission it uses and for each that it denies to others: from 100 on those it uses, where 1 is
/// writing (`docs/interop` and `qemu-img(1)`, "image locking").
const QEMU_WRITES: u64 = 101;

/// Whether QEMU holds the lock that lets it write to the file.
///
/// The list of all locks of the system is read only if there is a lock on QEMU's byte: producing
/// that list stops all lockers and takes Linux 10 to 20 ms, more than the check of a small file
/// system.
fn is_qemu_writing(path: &Path, metadata: &fs::Metadata) -> bool {
    let kind = metadata.file_type();
    // Other kinds are not opened: opening a pipe would wait for its writer.
    (kind.is_file() || kind.is_block_device())
        && is_locked(path, QEMU_WRITES).unwrap_or(true)
        && lines_of("/proc/locks")
            .iter()
            .any(|line| is_lock_of_qemu_writing(line, number(metadata.dev()), metadata.ino()))
}

/// Whether another process has locked a byte of a file. An error if the system does not say.
fn is_locked(path: &Path, byte: u64) -> nix::Result<bool> {
    let opened = OpenOptions::new().read(true).open(path);
    let file = opened.map_err(|error| nix::Error::from_raw(error.raw_os_error().unwrap_or(0)))?;
    // Asks which lock would prevent ours. That needs the file open for reading only.
    let mut lock = lock_of_byte(nix::libc::F_WRLCK, byte);
    fcntl(&file, FcntlArg::F_OFD_GETLK(&mut lock))?;
    Ok(lock.l_type != nix::libc::F_UNLCK as i16)
}

/// A request about a lock of one byte, counted from the start of a file.
const fn lock_of_byte(kind: i32, byte: u64) -> nix::libc::flock {
    let (l_type, l_whence) = (kind as i16, nix::libc::SEEK_SET as i16);
    nix::libc::flock { l_type, l_whence, l_start: byte.cast_signed(), l_len: 1, l_pid: 0 }
}

/// Whether a line of `/proc/locks` ("1: OFDLCK ADVISORY READ -1 fe:00:1234 100 101") is the lock
/// that lets QEMU write to a file.
fn is_lock_of_qemu_writing(line: &[u8], device: DeviceNumber, inode: u64) -> bool {
    const BYTES: std::ops::RangeInclusive<u64> = 100..=299;
    let Ok(line) = std::str::from_utf8(line) else { return false };
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [.., place, start, end] = fields[..] else { return false };
    let place: Vec<&str> = place.split(':').collect();
    let [major, minor, number] = place[..] else { return false };
    let same = u32::from_str_radix(major, 16) == Ok(device.major)
        && u32::from_str_radix(minor, 16) == Ok(device.minor)
        && number.parse() == Ok(inode);
    let (Ok(start), Ok(end)) = (start.parse::<u64>(), end.parse::<u64>()) else { return false };
    // Locks of whole files, by other programs, end in "0 EOF".
    same && BYTES.contains(&start) && BYTES.contains(&end) && (start..=end).contains(&QEMU_WRITES)
}

/// The loop devices attached to an image file; their numbers are added to `devices`.
fn loops_on(image: &fs::Metadata, uses: &mut Vec<Use>, devices: &mut BTreeSet<DeviceNumber>) {
    let Ok(entries) = fs::read_dir("/sys/block") else { return };
    let mut names: Vec<OsString> = entries.flatten().map(|entry| entry.file_name()).collect();
    names.sort_unstable();
    for name in names {
        let dir = Path::new("/sys/block").join(&name);
        // Only attached loop devices have this file. The kernel ends it with a newline.
        let Ok(mut backing) = fs::read(dir.join("loop/backing_file")) else { continue };
        if backing.last() == Some(&b'\n') {
            backing.pop();
        }
        let Ok(file) = fs::metadata(PathBuf::from(OsString::from_vec(backing))) else { continue };
        if (file.dev(), file.ino()) != (image.dev(), image.ino()) {
            continue;
        }
        let text = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
        devices.extend(parse_number(&text("dev")));
        uses.push(Use::Loop {
            device: Path::new("/dev").join(&name),
            read_only: text("ro").trim() == "1",
        });
    }
}

/// The partitions of a whole disk.
fn partitions(device: DeviceNumber) -> Vec<DeviceNumber> {
    let Ok(entries) = fs::read_dir(format!("/sys/dev/block/{device}")) else { return Vec::new() };
    let parts = entries.flatten().map(|entry| entry.path());
    parts
        .filter(|path| path.join("partition").exists())
        .filter_map(|path| parse_number(&fs::read_to_string(path.join("dev")).ok()?))
        .collect()
}

/// The devices built on this one.
fn holders(device: DeviceNumber) -> Vec<Use> {
    let entries = fs::read_dir(format!("/sys/dev/block/{device}/holders"));
    let Ok(entries) = entries else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names.into_iter().map(|device| Use::PartOf { device }).collect()
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
    fn a_line_of_mountinfo() {
        let line =
            br"36 35 98:0 /mnt1 /mnt\0402\134 rw,noatime master:1 x:2 - ext3 /dev/root ro,x=y";
        let Some(Use::Mounted { mount_point, file_system, read_only, device }) = mount(line) else {
            panic!("not understood")
        };
        assert_eq!(mount_point, Path::new(r"/mnt 2\"));
        assert_eq!((file_system.as_str(), read_only), ("ext3", true));
        assert_eq!(device, DeviceNumber { major: 98, minor: 0 });
        let bound = b"36 35 98:0 / /x ro - ext4 /dev/a rw,errors=continue";
        assert!(mount(bound).unwrap().may_write(), "a read-only view of a writable one");
        for bad in [&b""[..], b"36 35 98:0 / /x rw", b"1 2 3 4 5 6 - a b c", b"1 2 1:2 4 5 6 - a b"]
        {
            assert_eq!(mount(bad), None);
        }
        assert_eq!(unescaped(br"a\04"), Path::new(r"a\04"));
        assert_eq!(unescaped(br"\777\101"), Path::new(r"\777A"));
    }

    #[test]
    fn a_lock_of_qemu() {
        let device = DeviceNumber { major: 0xfe, minor: 0x1a };
        let writes = |line: &str| is_lock_of_qemu_writing(line.as_bytes(), device, 77);
        assert!(writes("6: OFDLCK ADVISORY  READ -1 fe:1a:77 100 101"));
        assert!(writes("6: OFDLCK ADVISORY  READ -1 fe:1a:77 101 101"));
        for other in [
            "6: OFDLCK ADVISORY  READ -1 fe:1a:77 100 100",
            "6: OFDLCK ADVISORY  READ -1 fe:1a:77 201 201",
            "6: OFDLCK ADVISORY  READ -1 fe:1a:78 101 101",
            "6: OFDLCK ADVISORY  READ -1 fe:1b:77 101 101",
            "6: POSIX  ADVISORY  WRITE 12 fe:1a:77 0 EOF",
            "6: FLOCK  ADVISORY  WRITE 12 fe:1a:77 0 EOF",
            "6: POSIX  ADVISORY  WRITE 12 fe:1a:77 0 1000",
            "",
            "a b",
        ] {
            assert!(!writes(other), "{other}");
        }
    }

    #[test]
    fn a_file_that_is_locked_as_qemu_does() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let lock = |kind, byte| {
            let lock = lock_of_byte(kind, byte);
            fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
        };
        lock(nix::libc::F_RDLCK, 100);
        assert_eq!(uses_of(file.path()).unwrap(), [], "a reader counts as a use");
        lock(nix::libc::F_RDLCK, QEMU_WRITES);
        assert_eq!(uses_of(file.path()).unwrap(), [Use::VirtualMachine]);
        lock(nix::libc::F_UNLCK, QEMU_WRITES);
        assert_eq!(uses_of(file.path()).unwrap(), []);
    }

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
        let claim = crate::WritableFile::open_exclusive(Path::new(&held.device)).unwrap();
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
