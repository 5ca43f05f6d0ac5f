//! Signatures of others beside that of an ext file system: what an accident with mkfs leaves behind.

use floe_blockdev::{IDENTIFY_BYTES, ReadBlocks, identify};

/// Words for what claims a whole device. Archives, disk images and partition tables do not.
const CLAIMS: [&str; 8] =
    ["file system", "swap space", "encrypted", "APFS", "LVM2", "RAID", "ZFS", "bcache"];

/// What else the start of a device says that it is, which is an ext file system: `mount` finds two, and
/// refuses to choose.
pub(crate) fn other_signature(device: &dyn ReadBlocks) -> Option<&'static str> {
    let len = device.size_bytes().min(IDENTIFY_BYTES as u64) as usize;
    let mut head = vec![0; len];
    device.read_at(0, &mut head).ok()?;
    let name = identify(&head)?.name;
    CLAIMS.iter().any(|words| name.contains(words)).then_some(name)
}

/// What to know about it. `word` is the device as a shell takes it.
pub(crate) fn note(name: &str, word: &str) -> String {
    format!(
        "Note: the device begins like {name}, too, as after mkfs on the wrong device. `mount` and `blkid` see \
         two\nsignatures and may refuse both or take the other: say `mount -t ext4`. `wipefs {word}` lists them \
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
