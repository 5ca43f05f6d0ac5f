//! Data for the map of the disk: divides a file system of any size into cells of equal size.
//!
//! Use, fragmentation of free space and metadata come from descriptors and bitmaps, read
//! sequentially; damage comes from the findings. If a file system has more groups than
//! [`MOST_BITMAPS`], only an evenly spread sample of bitmaps is read for the fragmentation.

use floe_check::problem::{Evidence, Problem, Severity, Weight};
use floe_check::reader::Reader;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::{BlockNr, Geometry, GroupNr, InodeNr};

/// Cells per row.
pub(crate) const COLUMNS: u64 = 64;
/// Maximum number of rows.
const MOST_ROWS: u64 = 16;
/// Maximum number of bitmaps read for the fragmentation of free space.
const MOST_BITMAPS: u32 = 4096;

/// One part of the file system.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Cell {
    /// Number of file system blocks in it; fewer in the last cell.
    pub(crate) blocks: u64,
    /// Blocks in use.
    pub(crate) used: f64,
    /// Blocks of static metadata: superblocks, descriptors, bitmaps, inode tables.
    pub(crate) metadata: f64,
    /// Free blocks according to the bitmaps that were read.
    pub(crate) free_seen: u64,
    /// Runs of free blocks in these bitmaps.
    pub(crate) free_runs: u64,
    /// Findings in it that need repair.
    pub(crate) damage: u64,
    /// The part of them with data at risk.
    pub(crate) at_risk: u64,
}

/// The whole file system.
#[derive(Clone, Debug, PartialEq)]
pub struct DiskMap {
    pub(crate) cells: Vec<Cell>,
    pub(crate) cell_blocks: u64,
    pub(crate) groups: u32,
    pub(crate) blocks_per_group: u64,
    pub(crate) first_block: u64,
    /// Bitmaps read for the fragmentation of free space.
    pub(crate) bitmaps_seen: u32,
    /// Damage without a location on the disk.
    pub(crate) placeless: u64,
}

impl DiskMap {
    /// Reads the groups of the file system through `reader`, and locates the findings `found`.
    /// Unreadable descriptors and bitmaps count as free space.
    pub fn new(reader: &Reader<'_>, found: &[Problem]) -> Self {
        let geometry = &reader.geometry;
        let mut map = Self::empty(geometry);
        let every = geometry.group_count.div_ceil(MOST_BITMAPS).max(1);
        let mut tables = Vec::new();
        for group in (0..geometry.group_count).map(GroupNr) {
            let desc = reader.group(group).map(|(_, desc)| desc).unwrap_or_default();
            tables.push(desc.inode_table);
            let bitmap = (group.0 % every == 0).then(|| bitmap_of(reader, &desc)).flatten();
            map.add_group(geometry, group, &desc, bitmap.as_deref());
        }
        for problem in found.iter().filter(|problem| problem.row().weight > Weight::Remark) {
            map.add_finding(geometry, &tables, problem);
        }
        map
    }

    fn empty(geometry: &Geometry) -> Self {
        let blocks_per_group = u64::from(geometry.blocks_per_group).max(1);
        let first_block = geometry.first_data_block.0;
        let blocks = geometry.blocks_count.saturating_sub(first_block).max(1);
        let groups = u64::from(geometry.group_count).max(1);
        // A row holds whole groups; a cell holds whole groups or a fixed fraction of one.
        let row_blocks = groups.div_ceil(MOST_ROWS).saturating_mul(blocks_per_group);
        let cell_blocks = row_blocks.div_ceil(COLUMNS).max(1);
        let count = blocks.div_ceil(cell_blocks);
        let cells = (0..count)
            .map(|at| Cell {
                blocks: cell_blocks.min(blocks - at * cell_blocks),
                ..Cell::default()
            })
            .collect();
        Self {
            cells,
            cell_blocks,
            groups: geometry.group_count,
            blocks_per_group,
            first_block,
            bitmaps_seen: 0,
            placeless: 0,
        }
    }

    /// Calls `each` with every cell that a run of blocks touches, and the number of blocks in it.
    fn spread(&mut self, start: u64, len: u64, mut each: impl FnMut(&mut Cell, u64)) {
        let mut at = start.saturating_sub(self.first_block);
        let end = at.saturating_add(len);
        while at < end {
            let index = at / self.cell_blocks;
            let next = (index + 1).saturating_mul(self.cell_blocks).min(end);
            let Some(cell) = usize::try_from(index).ok().and_then(|at| self.cells.get_mut(at))
            else {
                return;
            };
            each(cell, next - at);
            at = next;
        }
    }

    fn add_group(
        &mut self,
        geometry: &Geometry,
        group: GroupNr,
        desc: &GroupDesc,
        bitmap: Option<&[u8]>,
    ) {
        let start = self.first_block + u64::from(group.0) * self.blocks_per_group;
        let blocks = self.blocks_per_group.min(geometry.blocks_count.saturating_sub(start));
        let cluster = u64::from(geometry.cluster_blocks);
        match bitmap {
            Some(bitmap) => {
                self.bitmaps_seen += 1;
                for (used, from, to) in runs(bitmap, blocks.div_ceil(cluster)) {
                    let (from, to) = (from * cluster, blocks.min(to * cluster));
                    self.spread(start + from, to - from, |cell, blocks| {
                        cell.used += if used { blocks as f64 } else { 0.0 };
                        cell.free_seen += if used { 0 } else { blocks };
                        cell.free_runs += u64::from(!used);
                    });
                }
            }
            None => {
                let free = u64::from(desc.free_blocks_count).saturating_mul(cluster).min(blocks);
                let share = 1.0 - free as f64 / blocks.max(1) as f64;
                self.spread(start, blocks, |cell, blocks| {
                    cell.used += blocks as f64 * share;
                    // An uninitialised bitmap: the free blocks are contiguous.
                    let free = (blocks as f64 * (1.0 - share)) as u64;
                    let is_piece = geometry.features.group_desc_csum() && desc.block_uninit();
                    if is_piece && free > 0 {
                        cell.free_seen += free;
                        cell.free_runs += 1;
                    }
                });
            }
        }
        let mut metadata = |start: BlockNr, len: u64| {
            self.spread(start.0, len, |cell, blocks| cell.metadata += blocks as f64);
        };
        if let Some(superblock) = geometry.superblock_of(group) {
            metadata(superblock, 1 + u64::from(geometry.desc_blocks));
        }
        for (place, len) in [
            (desc.block_bitmap, 1),
            (desc.inode_bitmap, 1),
            (desc.inode_table, u64::from(geometry.inode_table_blocks)),
        ] {
            if geometry.contains(place) {
                metadata(place, len);
            }
        }
    }

    fn add_finding(&mut self, geometry: &Geometry, tables: &[BlockNr], problem: &Problem) {
        let at_risk = u64::from(problem.row().severity >= Severity::DataRisk);
        let block = place_of(geometry, tables, problem)
            .filter(|block| *block >= self.first_block && *block < geometry.blocks_count);
        match block {
            Some(block) => self.spread(block, 1, |cell, _| {
                cell.damage += 1;
                cell.at_risk += at_risk;
            }),
            None => self.placeless += 1,
        }
    }
}

/// The block at which a finding is shown: the one that it names, that of its inode, or the first of
/// its group.
fn place_of(geometry: &Geometry, tables: &[BlockNr], problem: &Problem) -> Option<u64> {
    let evidence = problem.evidence();
    let block = evidence.iter().find_map(|(name, value)| match value {
        // For other findings 0 means "in the inode".
        Evidence::Block(block) if *name == "block" && block.0 != 0 => Some(block.0),
        _ => None,
    });
    let inode = || {
        let InodeNr(number) = problem.inode()?;
        let index = number.checked_sub(1)?;
        let table = tables.get((index / geometry.inodes_per_group) as usize)?;
        let byte = u64::from(index % geometry.inodes_per_group) * u64::from(geometry.inode_size);
        table.0.checked_add(byte / u64::from(geometry.block_size))
    };
    let group = || {
        evidence.iter().find_map(|(_, value)| match value {
            Evidence::Group(group) => Some(
                geometry.first_data_block.0
                    + u64::from(group.0) * u64::from(geometry.blocks_per_group),
            ),
            _ => None,
        })
    };
    block.or_else(inode).or_else(group)
}

/// Runs of equal bits: whether they are set, first bit, end (exclusive). Bits beyond the bitmap are
/// clear.
fn runs(bitmap: &[u8], bits: u64) -> Vec<(bool, u64, u64)> {
    let mut runs: Vec<(bool, u64, u64)> = Vec::new();
    let mut add = |set: bool, from: u64, to: u64| match runs.last_mut() {
        Some((last, _, end)) if *last == set => *end = to,
        _ => runs.push((set, from, to)),
    };
    let mut at = 0;
    while at < bits {
        let byte = bitmap.get((at / 8) as usize).copied().unwrap_or(0);
        if byte == 0 || byte == u8::MAX {
            let to = bits.min(at + 8);
            add(byte != 0, at, to);
            at = to;
        } else {
            for bit in at..bits.min(at + 8) {
                add(byte >> (bit % 8) & 1 == 1, bit, bit + 1);
            }
            at = bits.min(at + 8);
        }
    }
    runs
}

/// The block bitmap of a group, if it is initialised and readable.
fn bitmap_of(reader: &Reader<'_>, desc: &GroupDesc) -> Option<Vec<u8>> {
    if reader.geometry.features.group_desc_csum() && desc.block_uninit() {
        return None;
    }
    reader.block(desc.block_bitmap).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::sample;

    #[test]
    fn cells_cover_the_file_system_once() {
        let report = sample();
        let mut map = DiskMap::empty(&report.geometry);
        let blocks = report.geometry.blocks_count;
        assert_eq!(map.cells.iter().map(|cell| cell.blocks).sum::<u64>(), blocks);
        assert_eq!(map.cells.len() as u64, 2 * COLUMNS, "two groups, two rows");
        let mut seen = 0;
        map.spread(500, 1100, |_, blocks| seen += blocks);
        assert_eq!(seen, 1100);
        map.spread(u64::MAX, 5, |_, _| panic!("outside"));
    }

    #[test]
    fn any_number_of_groups_fits() {
        let mut report = sample();
        for groups in [1, 16, 17, 1000, 100_000, u32::MAX] {
            report.geometry.group_count = groups;
            report.geometry.blocks_count = u64::from(groups) * 32768;
            let map = DiskMap::empty(&report.geometry);
            let cells = map.cells.len() as u64;
            let fine = COLUMNS / 2..=COLUMNS * MOST_ROWS;
            assert!(fine.contains(&cells), "{groups}: {cells}");
        }
    }

    #[test]
    fn runs_of_bits() {
        let all = runs(&[0xff, 0x0f, 0, 0xf0], 40);
        let set = [(true, 0, 12), (false, 12, 28), (true, 28, 32), (false, 32, 40)];
        assert_eq!(all, set);
        assert_eq!(runs(&[0xff], 3), [(true, 0, 3)]);
    }

    #[test]
    fn findings_have_places() {
        let report = sample();
        let mut map = DiskMap::empty(&report.geometry);
        let tables = [BlockNr(100), BlockNr(33_000)];
        for problem in report.found.iter().filter(|one| one.row().weight > Weight::Remark) {
            map.add_finding(&report.geometry, &tables, problem);
        }
        let damage: u64 = map.cells.iter().map(|cell| cell.damage).sum();
        let at_risk: u64 = map.cells.iter().map(|cell| cell.at_risk).sum();
        assert_eq!((damage, at_risk, map.placeless), (3, 1, 0));
        assert_eq!(map.cells[0].damage, 2, "two inodes of the first group");
    }
}
