//! The HTML page of a report: its additional data, and its destination.

use std::path::Path;

use anyhow::Context;
use floe_blockdev::{NewFile, ReadBlocks};
use floe_check::Report;
use floe_check::reader::Reader;
use floe_report::html::DiskMap;

use crate::input::files::{self, HTML_HEAD, is_standard_output};

/// The map of the reported disk.
pub(crate) fn disk_map(report: &Report, device: &dyn ReadBlocks) -> anyhow::Result<DiskMap> {
    let block_size = Some(report.geometry.block_size);
    let reader = Reader::open(device, report.used_backup, block_size);
    let reader = reader.context("cannot read the superblock for the map of the disk")?;
    Ok(DiskMap::new(&reader, &report.found))
}

/// Tests early whether a page can be written to `path`.
pub(crate) fn probe(path: &Path) -> anyhow::Result<()> {
    // Opening a pipe would make its reader see the end.
    if is_standard_output(path) || path.metadata().is_ok_and(|found| !found.is_file()) {
        return Ok(());
    }
    NewFile::replacing(path, 0o666, HTML_HEAD)
        .map(drop)
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Writes the page completely or not at all.
pub(crate) fn write(path: &Path, page: &str) -> anyhow::Result<()> {
    files::replace(path, 0o666, HTML_HEAD, page.as_bytes())
        .with_context(|| format!("cannot write {}", path.display()))
}
