//! Replaces lost identifiers reproducibly: two repairs of the same bytes produce the same bytes.

use std::hash::Hasher;

use floe_blockdev::ReadBlocks;
use siphasher::sip128::{Hasher128, SipHasher24};

/// Bytes at the start of the device that distinguish file systems: superblock and descriptors.
const HEAD_BYTES: u64 = 64 << 10;

/// Sixteen bytes for [`RepairOptions::random`](crate::RepairOptions::random), derived only from the
/// readable part of the device and from `epoch_seconds`. Equal images give equal bytes. Meant for
/// reproducible images (`SOURCE_DATE_EPOCH`), because anyone can compute them.
pub fn derived(device: &dyn ReadBlocks, epoch_seconds: i64) -> [u8; 16] {
    let mut hasher = SipHasher24::new();
    hasher.write(b"identifiers of floe");
    hasher.write(&epoch_seconds.to_le_bytes());
    hasher.write(&device.size_bytes().to_le_bytes());
    let mut block = [0; 1024];
    for at in (0..HEAD_BYTES.min(device.size_bytes())).step_by(block.len()) {
        if device.read_at(at, &mut block).is_ok() {
            hasher.write(&block);
        }
    }
    hasher.finish128().as_bytes()
}

#[cfg(test)]
mod tests {
    use floe_blockdev::MemDevice;

    use super::*;

    #[test]
    fn they_depend_on_the_device_and_the_epoch_alone() {
        let of = |bytes: &[u8], epoch| derived(&MemDevice::new(bytes.to_vec()), epoch);
        let mut image = vec![7; 5000];
        let first = of(&image, 1);
        assert_eq!(of(&image, 1), first);
        assert_ne!(of(&image, 2), first);
        image[1100] = 8;
        assert_ne!(of(&image, 1), first);
    }
}
