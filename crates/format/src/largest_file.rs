//! How large a file can be.

use crate::ext::indirect::{DIRECT, MOST_LEVELS};
use crate::features::RoCompat;
use crate::geometry::Geometry;

/// Bytes of the sectors that `i_blocks` counts.
const SECTOR_BYTES: u64 = 512;

impl Geometry {
    /// Bytes of the largest file that Linux opens (`ext4_max_size`, `ext4_max_bitmap_size`): as far as its map reaches, and, without
    /// `huge_file`, as the 32 bits of `i_blocks` count its blocks with those of its map.
    pub fn largest_file_bytes(&self, extents: bool) -> u64 {
        let block_bytes = u64::from(self.block_size);
        let counted = match self.features.ro_compat.contains(RoCompat::HUGE_FILE) {
            true => (1 << 48) - 1,
            false => u64::from(u32::MAX) / (block_bytes / SECTOR_BYTES),
        };
        let blocks = match extents {
            true => counted.min(u64::from(u32::MAX)),
            false => self.most_mapped_blocks(counted),
        };
        blocks.saturating_mul(block_bytes).min(i64::MAX.cast_unsigned())
    }

    /// Data blocks of the largest block map that has at most so many blocks together with its indirect blocks.
    fn most_mapped_blocks(&self, counted: u64) -> u64 {
        let form = self.indirect();
        let span = |level| form.span_blocks(level);
        let all = DIRECT + (1..=MOST_LEVELS).map(span).sum::<u64>();
        // One block a tree, and those below: of each level as many as its spans.
        let of_trees = |levels: u32| (1..levels).map(span).sum::<u64>() + 1;
        let full = (1..=MOST_LEVELS).map(of_trees).sum::<u64>();
        if all.saturating_add(full) <= counted {
            return all;
        }
        // Linux counts the indirect blocks of a map with `counted` data blocks, which are a few too many.
        let in_double = counted.saturating_sub(DIRECT + span(1));
        let Some(in_triple) = in_double.checked_sub(span(2)) else {
            return counted.saturating_sub(of_trees(1) + 1 + in_double.div_ceil(span(1)));
        };
        let triple = 1 + in_triple.div_ceil(span(1)) + in_triple.div_ceil(span(2));
        counted.saturating_sub(of_trees(1) + of_trees(2) + triple)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext::superblock::Superblock;
    use crate::features::Incompat;
    use crate::geometry::Strictness;

    /// Linux 6.18 opens files of so many bytes, and of no byte more: those of empty images, whose sizes debugfs had set.
    #[test]
    fn files_are_as_large_as_linux_opens_them() {
        for (log_size, extents, huge, most) in [
            (0, false, false, 17_247_252_480),
            (1, false, false, 275_415_851_008),
            (2, false, false, 2_196_873_666_560),
            (1, false, true, 275_415_851_008),
            (2, false, true, 4_402_345_721_856),
            (0, true, false, 2_199_023_254_528),
            (2, true, false, 2_199_023_251_456),
            (0, true, true, 4_398_046_510_080),
            (2, true, true, 17_592_186_040_320),
        ] {
            let huge = if huge { RoCompat::HUGE_FILE.bits() } else { 0 };
            let superblock = Superblock {
                rev_level: 1,
                log_block_size: log_size,
                log_cluster_size: log_size,
                first_data_block: u32::from(log_size == 0),
                blocks_per_group: 8192 << log_size,
                clusters_per_group: 8192 << log_size,
                inodes_per_group: 64,
                inodes_count: 64,
                blocks_count_lo: 8193,
                inode_size: 256,
                first_ino: 11,
                feature_incompat: Incompat::EXTENTS.bits(),
                feature_ro_compat: huge,
                ..Superblock::decode(&[0; 1024])
            };
            let geometry = Geometry::new(&superblock, Strictness::Relaxed).unwrap();
            assert_eq!(geometry.largest_file_bytes(extents), most, "{log_size} {extents} {huge}");
        }
    }
}
