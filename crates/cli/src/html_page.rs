//! The page of a report: what it needs besides the report, and where it goes.

use std::path::Path;

use anyhow::Context;
use floe_blockdev::{NewFile, ReadBlocks};
use floe_check::Report;
use floe_check::reader::Reader;
use floe_report::html::DiskMap;

/// A page begins with this.
pub(crate) const HEAD: &[u8] = b"<!DOCTYPE html>";

/// The map of the disk that a report is about.
pub(crate) fn disk_map(report: &Report, device: &dyn ReadBlocks) -> anyhow::Result<DiskMap> {
    let block_size = Some(report.geometry.block_size);
    let reader = Reader::open(device, report.used_backup, block_size);
    let reader = reader.context("cannot read the superblock for the map of the disk")?;
    Ok(DiskMap::new(&reader, &report.found))
}

/// Sees whether a page could be written to `path`, before the long work begins.
pub(crate) fn probe(path: &Path) -> anyhow::Result<()> {
    // Who reads from a pipe would take this for its end.
    if path.metadata().is_ok_and(|found| !found.is_file()) {
        return Ok(());
    }
    NewFile::replacing(path, 0o666, HEAD)
        .map(drop)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Writes the page: all of it, or none.
pub(crate) fn write(path: &Path, page: &str) -> anyhow::Result<()> {
    NewFile::replace(path, 0o666, HEAD, page.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
}
