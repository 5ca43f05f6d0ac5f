//! The lines for scripts, in e2fsck's format, and the statistics of `-v`.

use std::io::{self, Write};

use floe_check::Report;
use floe_format::Geometry;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::FileType;
use floe_format::ext::superblock::Superblock;
use floe_report::human::{grouped, plural};

/// Numbers of free inodes and blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Free {
    pub(crate) inodes: u64,
    pub(crate) blocks: u64,
}

impl Free {
    /// According to the superblock.
    pub(crate) fn of_superblock(sb: &Superblock) -> Self {
        Self { inodes: u64::from(sb.free_inodes_count), blocks: sb.free_blocks_count() }
    }

    /// According to the group descriptors, which Linux updates while a file system is mounted: it
    /// writes the superblock's totals only at unmount.
    pub(crate) fn of_groups(geometry: &Geometry, groups: &[GroupDesc]) -> Self {
        let inodes = groups.iter().map(|group| u64::from(group.free_inodes_count)).sum();
        let clusters: u64 = groups.iter().map(|group| u64::from(group.free_blocks_count)).sum();
        Self { inodes, blocks: clusters.saturating_mul(u64::from(geometry.cluster_blocks)) }
    }
}

/// For a skipped file system: "NAME: clean, 11/128 files, 59/512 blocks".
pub(crate) fn clean_line(name: &str, sb: &Superblock, free: Free, announcement: &str) -> String {
    let (inodes, blocks) = (u64::from(sb.inodes_count), sb.blocks_count());
    format!(
        "{name}: clean, {}/{inodes} files, {}/{blocks} blocks{announcement}",
        inodes.saturating_sub(free.inodes),
        blocks.saturating_sub(free.blocks),
    )
}

/// For a checked file system: "NAME: 11/128 files (9.1% non-contiguous), 59/512 blocks".
pub(crate) fn checked_line(name: &str, report: &Report) -> String {
    let sb = &report.superblock;
    let free = Free::of_superblock(sb);
    let (inodes, blocks) = (u64::from(sb.inodes_count), sb.blocks_count());
    let used = inodes.saturating_sub(free.inodes);
    let fragmented = report.totals.fragmented;
    let per_mille = (fragmented * 1000 + used / 2).checked_div(used).unwrap_or(0);
    format!(
        "{name}: {used}/{inodes} files ({}.{}% non-contiguous), {}/{blocks} blocks",
        per_mille / 10,
        per_mille % 10,
        blocks.saturating_sub(free.blocks),
    )
}

/// The statistics of `-v`.
pub(crate) fn statistics(out: &mut impl Write, report: &Report, features: bool) -> io::Result<()> {
    let totals = &report.totals;
    if features {
        writeln!(out, "features: {}", report.superblock.features().names().join(" "))?;
    }
    let kinds = [
        (FileType::Regular, "regular file"),
        (FileType::Directory, "directory"),
        (FileType::Symlink, "symbolic link"),
        (FileType::CharDevice, "character device"),
        (FileType::BlockDevice, "block device"),
        (FileType::Fifo, "FIFO"),
        (FileType::Socket, "socket"),
    ];
    for (kind, name) in kinds {
        let count = totals.by_type[kind as usize];
        let name = match (name, count) {
            ("directory", 2..) | ("directory", 0) => "directories".to_owned(),
            (name, count) => format!("{name}{}", plural(count)),
        };
        writeln!(out, "{:>15} {name}", grouped(count))?;
    }
    for (count, what) in [
        (totals.fragmented, "of them fragmented"),
        (totals.large_files, "of 2 GiB or more"),
        (totals.blocks_mapped, "blocks of data and of their maps"),
    ] {
        writeln!(out, "{:>15} {what}", grouped(count))?;
    }
    Ok(())
}
