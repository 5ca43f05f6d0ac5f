//! `-E discard`: the device is told which blocks are free.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use floe_blockdev::FileDevice;
use floe_check::report::human::size;
use floe_check::{CheckOptions, Volume};
use floe_format::GroupNr;
use floe_format::ext::bitmap;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

/// Punches holes where the file system, which was just found to be clean, has free blocks: in an image
/// file, which gets smaller by that, or in a block device, whose driver is told by the same call that
/// nobody needs the blocks, and reads them as zeroes from then on.
pub(crate) fn free_blocks(path: &Path, name: &str, out: &mut impl Write) -> anyhow::Result<()> {
    let device = FileDevice::open(path)?;
    let opened = floe_check::open::open(&device, &CheckOptions::default())?;
    let (volume, _) = Volume::new(&device, opened, 0);
    let geometry = &volume.geometry;
    let file =
        File::options().write(true).open(path).with_context(|| path.display().to_string())?;
    let cluster_bytes = u64::from(geometry.cluster_blocks) * u64::from(geometry.block_size);
    let mut discarded_bytes = 0;
    for group in (0..geometry.group_count).map(GroupNr) {
        let mut free = in_use(&volume, group)?;
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

/// The block bitmap of a group, or what stands for it where it was never written.
fn in_use(volume: &Volume<'_>, group: GroupNr) -> anyhow::Result<Vec<u8>> {
    if volume.block_bitmap_computed(group) {
        let words = volume.computed_block_bitmap(group);
        return Ok(words.into_iter().flat_map(u64::to_le_bytes).collect());
    }
    let geometry = &volume.geometry;
    let mut bytes = vec![0; geometry.block_size as usize];
    let block = volume.group(group).block_bitmap;
    volume
        .device
        .read_at(geometry.offset_bytes(block), &mut bytes)
        .with_context(|| format!("the block bitmap of group {}", group.0))?;
    Ok(bytes)
}
