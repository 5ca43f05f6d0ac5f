//! Mounts and swap spaces, as `/proc` lists them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use super::Use;
use crate::stack::{DeviceNumber, Node};

/// The lines of a file in `/proc`, as bytes, because file names need not be UTF-8.
pub(super) fn lines_of(path: &str) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).unwrap_or_default();
    bytes.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect()
}

/// Undoes the octal escapes (`\040` for a blank) of names in `/proc`.
pub(super) fn unescaped(field: &[u8]) -> PathBuf {
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

pub(super) fn mounts_of(devices: &BTreeSet<DeviceNumber>) -> Vec<Use> {
    let lines = lines_of("/proc/self/mountinfo");
    let of_ours = |found: &Use| match found {
        Use::Mounted { device, .. } => devices.contains(device),
        _ => false,
    };
    lines.iter().filter_map(|line| mount(line)).filter(of_ours).collect()
}

/// One line of `mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) id: u64,
    /// The block device, or a number that the kernel made up.
    pub(super) device: DeviceNumber,
    pub(super) mount_point: PathBuf,
    /// Its type, such as "ext4".
    pub(super) file_system: String,
    /// A device, a file, or any text.
    pub(super) source: PathBuf,
    /// Options of the file system, separated by commas.
    pub(super) options: Vec<u8>,
}

impl Mount {
    /// Parses "36 35 98:0 /root /point rw,noatime shared:1 - ext3 /dev/x rw,errors".
    pub(super) fn parse(line: &[u8]) -> Option<Self> {
        let mut fields = line.split(|&byte| byte == b' ');
        let text = |field: Option<&[u8]>| std::str::from_utf8(field?).ok().map(str::to_owned);
        let id = text(fields.next())?.parse().ok()?;
        let device = DeviceNumber::parse(&text(fields.nth(1))?)?;
        let mount_point = unescaped(fields.nth(1)?);
        let mut behind = fields.skip_while(|field| *field != b"-").skip(1);
        let file_system = String::from_utf8_lossy(behind.next()?).into_owned();
        let (source, options) = (unescaped(behind.next()?), behind.next()?.to_vec());
        Some(Self { id, device, mount_point, file_system, source, options })
    }
}

/// The use that a line of `mountinfo` states.
pub(super) fn mount(line: &[u8]) -> Option<Use> {
    let Mount { device, mount_point, file_system, options, .. } = Mount::parse(line)?;
    let read_only = options.split(|&byte| byte == b',').any(|option| option == b"ro");
    Some(Use::Mounted { mount_point, file_system, read_only, device })
}

/// Swap devices and files among these, which `/proc/swaps` names in its first column.
pub(super) fn swaps(files: &[Node], devices: &BTreeSet<DeviceNumber>) -> Vec<Use> {
    let mut found = Vec::new();
    for line in lines_of("/proc/swaps").iter().skip(1) {
        let Some(field) = line.split(|byte| matches!(byte, b' ' | b'\t')).next() else { continue };
        let name = unescaped(field);
        let Ok(swap) = fs::metadata(&name) else { continue };
        let is_ours = match Node::from(&swap) {
            Node::Block(device) => devices.contains(&device),
            file @ Node::File { .. } => files.contains(&file),
        };
        if is_ours {
            found.push(Use::Swap { name });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

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
}
