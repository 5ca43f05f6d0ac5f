//! `-E discard`: discards free blocks and unused inode table blocks.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, bail};
use floe_blockdev::WritableFile;
use floe_check::Volume;
use floe_check::open::WhichSuperblock;
use floe_format::GroupNr;
use floe_format::ext::bitmap;
use floe_report::human::size;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::input::device::Source;

/// Punches holes where the file system, which was just found clean, has free blocks or unused parts
/// of inode tables: in an image file, which shrinks, or in a block device, where the same call
/// discards the blocks, which then read as zeroes.
pub(crate) fn unused(path: &Path, name: &str, out: &mut impl Write) -> anyhow::Result<()> {
    // Others stay away until the last hole is punched.
    let device = WritableFile::open_exclusive(path)?;
    Source::whole(path).mind_other_machines(&device)?;
    let opened = floe_check::open::open(&device, WhichSuperblock::default())?;
    let (volume, _) = Volume::new(&device, opened, 0);
    let geometry = &volume.geometry;
    let file =
        File::options().write(true).open(path).with_context(|| path.display().to_string())?;
    let cluster_bytes = u64::from(geometry.cluster_blocks) * u64::from(geometry.block_size);
    let (mut of_blocks, mut of_tables) = (0, 0);
    for group in (0..geometry.group_count).map(GroupNr) {
        let mut free = in_use(&volume, group)?;
        free.iter_mut().for_each(|byte| *byte = !*byte);
        let start = geometry.offset_bytes(geometry.group_start(group));
        for free in bitmap::runs(&free, 0..geometry.clusters_of(group)) {
            let offset = start + u64::from(free.start) * cluster_bytes;
            let len = u64::from(free.end - free.start) * cluster_bytes;
            if !punched(&file, path, offset, len)? {
                return writeln!(
                    out,
                    "{name}: the device cannot discard blocks, which is harmless"
                )
                .map_err(Into::into);
            }
            of_blocks += len;
        }
        let (offset, len) = unused_table(&volume, group);
        if len > 0 && punched(&file, path, offset, len)? {
            of_tables += len;
        }
    }
    let (blocks, tables) = (size(of_blocks), size(of_tables));
    writeln!(out, "{name}: {blocks} of free blocks and {tables} of unused inodes discarded")?;
    Ok(())
}

/// Punches a hole; `false` if the device does not support it.
fn punched(file: &File, path: &Path, offset: u64, len: u64) -> anyhow::Result<bool> {
    let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(file, how, offset, len) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NODEV) => Ok(false),
        Err(errno) => bail!("{}: cannot discard: {errno}", path.display()),
    }
}

/// Byte range of the inode table blocks that hold only unused inodes. Empty if descriptors have no
/// checksums, because the unused count is then unknown.
fn unused_table(volume: &Volume<'_>, group: GroupNr) -> (u64, u64) {
    let geometry = &volume.geometry;
    let block = u64::from(geometry.block_size);
    let used = u64::from(volume.used_inodes_bound(group)) * u64::from(geometry.inode_size);
    let all = u64::from(geometry.inode_table_blocks) * block;
    let used = used.div_ceil(block) * block;
    (geometry.offset_bytes(volume.group(group).inode_table) + used, all.saturating_sub(used))
}

/// The block bitmap of a group, or the one implied by its uninit flag.
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
