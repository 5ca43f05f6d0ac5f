//! `-E fragcheck`: lists fragmented files.

use std::io::Write;

use floe_blockdev::ReadBlocks;
use floe_check::open::{WhichSuperblock, open};
use floe_check::reader::Reader;
use floe_format::InodeNr;

/// Lists the discontinuities in the mapping of each file: inode, logical block, expected and actual
/// location.
pub(crate) fn write(
    out: &mut impl Write,
    device: &dyn ReadBlocks,
    which: WhichSuperblock,
) -> anyhow::Result<()> {
    let opened = open(device, which)?;
    let reader = Reader::open(device, opened.used_backup, Some(opened.geometry.block_size))?;
    for number in (1..=reader.geometry.inodes_count).map(InodeNr) {
        // The locations of their blocks are determined by others.
        if matches!(number, InodeNr::RESIZE | InodeNr::BAD_BLOCKS) {
            continue;
        }
        let Ok(bytes) = reader.inode_bytes(number) else { continue };
        let Ok(inode) = reader.decode(&bytes) else { continue };
        if inode.base.mode == 0 || inode.base.links_count == 0 {
            continue;
        }
        let mut expected = None;
        for extent in reader.map(&inode).extents {
            let start = extent.run.start.0;
            if let Some(expected) = expected.filter(|&expected| expected != start) {
                writeln!(
                    out,
                    "inode {}: logical block {} is at {start} instead of {expected}, {} blocks",
                    number.0, extent.logical.0, extent.run.len_blocks,
                )?;
            }
            expected = Some(extent.run.end().0);
        }
    }
    Ok(())
}
