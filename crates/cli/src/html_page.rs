//! The page of a report: what it needs besides the report, and where it goes.

use std::path::Path;

use anyhow::Context;
use floe_blockdev::ReadBlocks;
use floe_check::Report;
use floe_check::reader::Reader;
use floe_check::report::html::DiskMap;

/// The map of the disk that a report is about.
pub(crate) fn disk_map(report: &Report, device: &dyn ReadBlocks) -> anyhow::Result<DiskMap> {
    let block_size = Some(report.geometry.block_size);
    let reader = Reader::open(device, report.used_backup, block_size);
    let reader = reader.context("cannot read the superblock for the map of the disk")?;
    Ok(DiskMap::new(&reader, &report.found))
}

/// Writes the page.
pub(crate) fn write(path: &Path, page: &str) -> anyhow::Result<()> {
    std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))
}
