//! QEMU's locks on the files and devices that its machines write to.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use super::tables::lines_of;
use crate::claim::{Access, is_locked};
use crate::stack::DeviceNumber;

/// The byte that QEMU locks in a file while it may write to it. QEMU locks one byte for each
/// permission it uses and for each that it denies to others: from 100 on those it uses, where 1 is
/// writing (`docs/interop` and `qemu-img(1)`, "image locking").
const QEMU_WRITES: u64 = 101;

/// Whether QEMU holds the lock that lets it write to the file.
///
/// The list of all locks of the system is read only if there is a lock on QEMU's byte: producing
/// that list stops all lockers and takes Linux 10 to 20 ms, more than the check of a small file
/// system.
pub(super) fn is_qemu_writing(path: &Path, metadata: &Metadata) -> bool {
    let kind = metadata.file_type();
    // Other kinds are not opened: opening a pipe would wait for its writer.
    (kind.is_file() || kind.is_block_device())
        && is_locked(path, Access::Writing, &(QEMU_WRITES..QEMU_WRITES + 1)).unwrap_or(true)
        && lines_of("/proc/locks").iter().any(|line| {
            is_lock_of_qemu_writing(line, DeviceNumber::of(metadata.dev()), metadata.ino())
        })
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

#[cfg(test)]
mod tests {
    use nix::fcntl::{FcntlArg, fcntl};

    use super::super::{Use, uses_of};
    use super::*;
    use crate::claim::request;

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
            let lock = request(kind, &(byte..byte + 1));
            fcntl(&file, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
        };
        lock(nix::libc::F_RDLCK, 100);
        assert_eq!(uses_of(file.path()).unwrap(), [], "a reader counts as a use");
        lock(nix::libc::F_RDLCK, QEMU_WRITES);
        assert_eq!(uses_of(file.path()).unwrap(), [Use::VirtualMachine]);
        lock(nix::libc::F_UNLCK, QEMU_WRITES);
        assert_eq!(uses_of(file.path()).unwrap(), []);
    }
}
