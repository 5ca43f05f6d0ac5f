//! Limits of quotas, set in an image as `setquota` would set them.

use anyhow::{Result, ensure};
use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_format::ext::quota::{
    BLOCK_SIZE, Dquot, LEAF_ENTRIES, LEAF_HEADER_SIZE, QuotaHeader, QuotaKind,
};

/// Changes the entry of an id that has one inode of at most a few blocks, and that no other quota knows; sets the seconds of
/// grace, of blocks and of inodes, for all ids of the kind. Copies in an empty journal change, too, which does no harm.
///
/// # Errors
/// The device fails, or there is no such entry.
pub fn set_limits<D: ReadBlocks + WriteBlocks>(
    device: &D,
    kind: QuotaKind,
    id: u32,
    grace_seconds: (u32, u32),
    edit: impl Fn(&mut Dquot),
) -> Result<()> {
    const MOST_BYTES: u64 = 8192;
    let (mut found, mut bytes) = (0, [0; BLOCK_SIZE]);
    for block in (0..device.size_bytes()).step_by(BLOCK_SIZE) {
        device.read_at(block, &mut bytes)?;
        if let Some(raw) = bytes.first_chunk() {
            let mut header = QuotaHeader::decode(raw);
            if header.magic == kind.magic() && header.version == 1 {
                (header.bgrace, header.igrace) = grace_seconds;
                let mut raw = [0; QuotaHeader::SIZE];
                header.encode_into(&mut raw);
                device.write_at(block, &raw)?;
            }
        }
        for slot in 0..LEAF_ENTRIES {
            let at = LEAF_HEADER_SIZE + slot * Dquot::SIZE;
            let Some(raw) = bytes.get(at..).and_then(|rest| rest.first_chunk()) else { continue };
            let mut entry = Dquot::decode(raw);
            let small = entry.inodes == 1 && entry.space_bytes <= MOST_BYTES;
            if entry.id == id && entry.pad == 0 && small {
                edit(&mut entry);
                let mut raw = [0; Dquot::SIZE];
                entry.encode_into(&mut raw);
                device.write_at(block + at as u64, &raw)?;
                found += 1;
            }
        }
    }
    ensure!(found > 0, "no entry of {id}");
    Ok(())
}
