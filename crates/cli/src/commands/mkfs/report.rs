//! The report of `floe mkfs` on a plan.

use std::io::{self, Write};
use std::path::Path;

use floe_disk::mkfs::{Options, Plan};
use floe_format::features::{Compat, RoCompat};
use floe_format::words::agree;
use floe_format::{BlockRun, GroupNr};

use crate::message::message;

/// Warns if a requested journal could not be created.
pub(super) fn warn(options: &Options, plan: &Plan) {
    if options.asks_for_journal()
        && !plan.superblock().features().compat.contains(Compat::HAS_JOURNAL)
    {
        message!("floe mkfs: the file system is too small for a journal, so it has none");
    }
}

/// Prints a summary of the layout; with `verbose`, also a line per group.
pub(super) fn tell(
    device: &Path,
    plan: &Plan,
    verbose: bool,
    out: &mut dyn Write,
) -> io::Result<()> {
    let (superblock, geometry) = (plan.superblock(), plan.geometry());
    let blocks = geometry.blocks_count;
    let sizes = format!(
        "{blocks} blocks of {} bytes, {} inodes of {} bytes, {} groups",
        geometry.block_size, geometry.inodes_count, geometry.inode_size, geometry.group_count,
    );
    writeln!(out, "{}: {}", device.display(), agree(&sizes))?;
    writeln!(out, "UUID: {}", superblock.uuid_text())?;
    if !superblock.label().is_empty() {
        writeln!(out, "Label: {}", superblock.label())?;
    }
    writeln!(out, "Features: {}", superblock.features().names().join(" "))?;
    let reserved = superblock.reserved_blocks_count();
    let free = format!(
        "{} blocks, of which {reserved} are reserved for root, and {} inodes",
        superblock.free_blocks_count(),
        superblock.free_inodes_count,
    );
    writeln!(out, "Free: {}", agree(&free))?;
    if geometry.features.ro_compat.contains(RoCompat::BIGALLOC) {
        writeln!(out, "Clusters: {} blocks each", geometry.cluster_blocks)?;
    }
    if geometry.features.compat.contains(Compat::HAS_JOURNAL) {
        let bytes =
            u64::from(superblock.jnl_blocks[15]) << 32 | u64::from(superblock.jnl_blocks[16]);
        writeln!(out, "Journal: {} blocks", bytes / u64::from(geometry.block_size))?;
    }
    let backups: Vec<String> = (1..geometry.group_count)
        .filter_map(|group| geometry.superblock_of(GroupNr(group)))
        .map(|block| block.0.to_string())
        .collect();
    if !backups.is_empty() {
        writeln!(out, "Superblock backups stored on blocks: {}", backups.join(", "))?;
    }
    if verbose {
        for group in (0..geometry.group_count).map(GroupNr) {
            let desc = plan.group(group);
            let BlockRun { start, .. } = geometry.blocks_of(group);
            writeln!(
                out,
                "{group}: blocks {} to {}, block bitmap {}, inode bitmap {}, inode table {}",
                start.0,
                geometry.blocks_of(group).end().0 - 1,
                desc.block_bitmap.0,
                desc.inode_bitmap.0,
                desc.inode_table.0,
            )?;
        }
    }
    Ok(())
}
