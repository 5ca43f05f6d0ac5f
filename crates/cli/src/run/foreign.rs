//! Detects signatures of other formats in an ext file system, as left by an accidental mkfs.

use floe_blockdev::{ReadBlocks, SIGNATURE_BYTES, identify};

/// Formats that claim a whole device. Archives, disk images and partition tables do not.
const CLAIMS: [&str; 8] =
    ["file system", "swap space", "encrypted", "APFS", "LVM2", "RAID", "ZFS", "bcache"];

/// The other format whose signature is at the start of a device with an ext file system: `mount`
/// finds two formats, and refuses to choose.
pub(crate) fn other_signature(device: &dyn ReadBlocks) -> Option<&'static str> {
    let len = device.size_bytes().min(SIGNATURE_BYTES as u64) as usize;
    let mut head = vec![0; len];
    device.read_at(0, &mut head).ok()?;
    let name = identify(&head)?.name;
    CLAIMS.iter().any(|words| name.contains(words)).then_some(name)
}

/// A note for the user. `word` is the device, quoted for a shell.
pub(crate) fn note(name: &str, word: &str) -> String {
    format!(
        "Note: the device also begins like {name}, as after mkfs on the wrong device. `mount` and `blkid` see \
         two\nsignatures and may refuse both or use the other: try `mount -t ext4`. `wipefs {word}` lists them \
         with their\noffsets, and removes one with --offset."
    )
}

#[cfg(test)]
mod tests {
    use floe_blockdev::MemDevice;

    use super::*;

    #[test]
    fn only_what_claims_a_device_is_told() {
        let with = |at: usize, bytes: &[u8]| {
            let mut head = vec![0x11; 80 << 10];
            head[at..at + bytes.len()].copy_from_slice(bytes);
            other_signature(&MemDevice::new(head))
        };
        assert_eq!(with(0, b"XFSB"), Some("an XFS file system"));
        assert_eq!(with(4086, b"SWAPSPACE2"), Some("swap space"));
        for (at, bytes) in
            [(0, &b"\x1f\x8b\x08"[..]), (257, b"ustar"), (512, b"EFI PART"), (9, b"x")]
        {
            assert_eq!(with(at, bytes), None, "{bytes:?}");
        }
    }
}
