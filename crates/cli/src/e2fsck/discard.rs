//! `-E discard`: the device is told which blocks are free.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use floe_blockdev::FileDevice;
use floe_check::reader::Reader;
use floe_check::report::human::size;
use floe_format::GroupNr;
use floe_format::ext::bitmap;
use floe_format::ext::group_desc::FLAG_BLOCK_UNINIT;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// Punches holes where the file system, which was just found to be clean, has free blocks. Groups
/// whose bitmap was never written have nothing to discard that was ever used.
pub(crate) fn free_blocks(path: &Path, name: &str, out: &mut impl Write) -> anyhow::Result<()> {
    let device = FileDevice::open(path)?;
    let reader = Reader::open(&device, None, None)?;
    let geometry = &reader.geometry;
    let file =
        File::options().write(true).open(path).with_context(|| path.display().to_string())?;
    let cluster_bytes = u64::from(geometry.cluster_blocks) * u64::from(geometry.block_size);
    let mut discarded_bytes = 0;
    for group in (0..geometry.group_count).map(GroupNr) {
        let (_, desc) = reader.group(group)?;
        if desc.flags & FLAG_BLOCK_UNINIT != 0 {
            continue;
        }
        let mut free = reader.block(desc.block_bitmap)?;
        free.iter_mut().for_each(|byte| *byte = !*byte);
        let start = geometry.offset_bytes(geometry.group_start(group));
        for free in bitmap::runs(&free, 0..geometry.clusters_of(group)) {
            let offset = start + u64::from(free.start) * cluster_bytes;
            let len = u64::from(free.end - free.start) * cluster_bytes;
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match fallocate(&file, how, offset, len) {
                Ok(()) => discarded_bytes += len,
                Err(Errno::OPNOTSUPP | Errno::NODEV) => {
                    writeln!(
                        out,
                        "{name}: the device cannot discard blocks; nothing is lost by that"
                    )?;
                    return Ok(());
                }
                Err(errno) => bail!("{}: cannot discard: {errno}", path.display()),
            }
        }
    }
    writeln!(out, "{name}: {} of free blocks discarded", size(discarded_bytes))?;
    Ok(())
}
