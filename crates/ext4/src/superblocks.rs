//! Superblocks, looked for anywhere on a device.

use floe_blockdev::ReadBlocks;
use floe_format::ext::superblock::has_magic;

/// Calls `look` with each byte in `limit_bytes` at which something may be a superblock, at steps of so many, until it returns false.
pub fn each_magic(
    device: &dyn ReadBlocks,
    limit_bytes: u64,
    step_bytes: usize,
    look: &mut dyn FnMut(u64) -> bool,
) {
    const CHUNK_BYTES: usize = 1 << 20;
    let end = device.size_bytes().min(limit_bytes);
    let mut bytes = vec![0; CHUNK_BYTES];
    for start in (0..end).step_by(CHUNK_BYTES) {
        let len = (end - start).min(CHUNK_BYTES as u64) as usize;
        let bytes = &mut bytes[..len];
        if device.is_hole(start, len as u64) || device.read_at(start, bytes).is_err() {
            continue;
        }
        for at in (0..len).step_by(step_bytes).filter(|at| has_magic(&bytes[*at..])) {
            if !look(start + at as u64) {
                return;
            }
        }
    }
}
