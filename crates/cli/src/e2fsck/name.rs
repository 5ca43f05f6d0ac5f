//! Devices by label or UUID, as in fstab and on e2fsck's command line.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use floe_blockdev::FileDevice;
use floe_check::reader::Reader;

use crate::input::block_devices;

/// The folders that udev fills, and their tags.
const TAGS: &[(&str, &str)] = &[
    ("LABEL=", "by-label"),
    ("UUID=", "by-uuid"),
    ("PARTLABEL=", "by-partlabel"),
    ("PARTUUID=", "by-partuuid"),
];

/// Resolves a device name: a path stays; `LABEL=`, `UUID=`, `PARTLABEL=` and `PARTUUID=` are looked
/// up in udev's links. Without those (in a small initramfs), all block devices that the kernel
/// lists are searched for an ext file system with that label or UUID.
///
/// # Errors
/// No device, or more than one, has that label or UUID.
pub(crate) fn resolve(named: &Path) -> Result<PathBuf, String> {
    let bytes = named.as_os_str().as_bytes();
    let Some((tag, folder)) = TAGS.iter().find(|(tag, _)| bytes.starts_with(tag.as_bytes())) else {
        return Ok(named.to_owned());
    };
    let value = &bytes[tag.len()..];
    let value =
        value.strip_prefix(b"\"").and_then(|rest| rest.strip_suffix(b"\"")).unwrap_or(value);
    let link = Path::new("/dev/disk").join(folder).join(link_name(value, tag));
    if value.is_empty() {
        // A file system without a label does not match an empty one.
        return Err(format!("{} names nothing", named.display()));
    }
    if link.exists() {
        return Ok(link);
    }
    let text = String::from_utf8_lossy(value);
    let found = match *tag {
        "LABEL=" => with(|reader| reader.superblock.label() == text),
        "UUID=" => with(|reader| reader.superblock.uuid_text().eq_ignore_ascii_case(&text)),
        _ => Vec::new(),
    };
    match found.as_slice() {
        [one] => Ok(one.clone()),
        [] => Err(format!("no device has {}", named.display())),
        [one, other, ..] => {
            let (one, other) = (one.display(), other.display());
            Err(format!("{} is ambiguous: {one} and {other} have it", named.display()))
        }
    }
}

/// The name of udev's link, with special characters written as `\x20`.
fn link_name(value: &[u8], tag: &str) -> PathBuf {
    let mut name = Vec::new();
    for &byte in value {
        let byte = if tag.ends_with("UUID=") { byte.to_ascii_lowercase() } else { byte };
        if byte.is_ascii_alphanumeric() || b"#+-.:=@_".contains(&byte) || byte >= 0x80 {
            name.push(byte);
        } else {
            name.extend_from_slice(format!("\\x{byte:02x}").as_bytes());
        }
    }
    PathBuf::from(OsStr::from_bytes(&name))
}

/// Block devices with an ext file system that satisfies `wanted`.
fn with(wanted: impl Fn(&Reader<'_>) -> bool) -> Vec<PathBuf> {
    block_devices::paths()
        .into_iter()
        .filter(|path| {
            FileDevice::open(path)
                .is_ok_and(|device| Reader::open(&device, None, None).is_ok_and(|fs| wanted(&fs)))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_paths() {
        for path in ["/dev/sda1", "LABEL", "x.img"] {
            assert_eq!(resolve(Path::new(path)), Ok(path.into()));
        }
    }

    #[test]
    fn unknown_labels_are_told() {
        for name in ["LABEL=floe-nobody-has-this", "UUID=", "LABEL=", "PARTUUID=00"] {
            let why = resolve(Path::new(name)).unwrap_err();
            assert!(why.contains(name), "{why}");
        }
    }

    #[test]
    fn names_of_links_are_those_of_udev() {
        assert_eq!(link_name(b"my disk/1", "LABEL="), Path::new("my\\x20disk\\x2f1"));
        assert_eq!(link_name("größe".as_bytes(), "LABEL="), Path::new("größe"));
        assert_eq!(link_name(b"AB-CD", "UUID="), Path::new("ab-cd"));
        assert_eq!(link_name(b"AB", "PARTLABEL="), Path::new("AB"));
    }
}
