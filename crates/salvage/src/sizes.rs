//! Sizes that a file cannot have.

use std::io;

use floe_ext4::map::pointers::end_of_reach;
use floe_format::Geometry;
use floe_format::ext::inode::InodeFlags;

use crate::maps::BLOCKS_OF_A_FILE;
use crate::state::State;
use crate::summary::Provenance;

/// Whether a file with a map says that it is larger than any map of that kind.
pub(crate) fn is_too_large(size_bytes: u64, flags: InodeFlags, geometry: &Geometry) -> bool {
    let has_extents = flags.contains(InodeFlags::EXTENTS);
    let blocks = if has_extents { BLOCKS_OF_A_FILE } else { end_of_reach(geometry.indirect()).0 };
    size_bytes > blocks * u64::from(geometry.block_size)
}

impl State<'_> {
    /// Ends files at the last byte of their map if their size is impossible, or if it lies behind
    /// the map and the checksum of the inode is wrong.
    pub(crate) fn correct_sizes(&mut self) -> io::Result<()> {
        for number in std::mem::take(&mut self.evidence.doubtful_sizes) {
            let Some(mut inode) = self.space.inode(number) else { continue };
            let map = self.space.files().map_of(&inode);
            let end = map.extents.last().map_or(0, |last| last.logical.0 + last.run.len_blocks);
            let end_bytes = end.saturating_mul(u64::from(self.frame.geometry.block_size));
            if inode.size_bytes() <= end_bytes {
                continue;
            }
            let size = self.size_of(&map.extents);
            inode.set_size_bytes(size);
            if self.space.put_inode(&mut inode)?.is_some() {
                self.summary.inodes.sizes_corrected += 1;
                self.summary.provenance.insert(number, Provenance::Size);
            }
        }
        Ok(())
    }
}
