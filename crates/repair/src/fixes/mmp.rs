//! Marks the MMP block clean.

use floe_blockdev::WriteBlocks;
use floe_format::BlockNr;
use floe_format::Geometry;
use floe_format::crc::Seed;
use floe_format::ext::mmp::{MAGIC, Mmp, SEQ_CLEAN};

use crate::failure::Failure;

/// Default update interval in seconds.
const INTERVAL: u16 = 5;

/// Rewrites the MMP block in `block` as clean. Runs before the first round, because a check cannot
/// continue without it.
pub(crate) fn clean(
    device: &impl WriteBlocks,
    geometry: &Geometry,
    seed: Seed,
    block: BlockNr,
    now_seconds: i64,
) -> Result<(), Failure> {
    let mut bytes = [0; 1024];
    let mut mmp = Mmp::decode(&bytes);
    mmp.magic = MAGIC;
    mmp.seq = SEQ_CLEAN;
    mmp.time = now_seconds.unsigned_abs();
    mmp.check_interval = INTERVAL;
    mmp.encode_into(&mut bytes);
    if geometry.features.metadata_csum() {
        mmp.checksum = Mmp::compute_checksum(seed, &bytes);
        mmp.encode_into(&mut bytes);
    }
    device.write_at(geometry.offset_bytes(block), &bytes)?;
    Ok(())
}
