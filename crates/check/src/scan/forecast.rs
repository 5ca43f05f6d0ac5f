//! The reads of a check of a native file system, told from the superblock and the descriptors alone (in rext3 from block bitmaps,
//! too), before the first inode is read: by the same plan as those of the sweep itself.

use floe_blockdev::{Medium, ReadBlocks, Request};
use floe_ext4::inode_table::each_desc;
use floe_format::ext::extent::ExtentNode;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::superblock::Superblock;
use floe_format::{BlockNr, BlockRun, Geometry};

use super::groups::Group;
use super::lots::{Lot, READ_BYTES};
use super::sweep::Sweep;

/// `s_jnl_backup_type` where the superblock has a copy of the map of the journal.
const HAS_JOURNAL_MAP: u8 = 1;

/// The reads of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forecast {
    /// Runs of blocks in the order in which they are read.
    pub runs: Vec<BlockRun>,
    block_size: u32,
}

impl Forecast {
    /// The reads of a check of a sealed file system; `None` if it is not native, or its superblock cannot be read. Descriptors
    /// that cannot be read, as those of lots without a record, are passed over.
    pub fn of(device: &dyn ReadBlocks) -> Option<Self> {
        Self::by(device, &Sweep::over(device, None)?)
    }

    /// The same as if the bytes lay on another medium.
    pub fn on(device: &dyn ReadBlocks, medium: Medium) -> Option<Self> {
        Self::by(device, &Sweep::over(device, None)?.on(medium))
    }

    fn by(device: &dyn ReadBlocks, sweep: &Sweep<'_>) -> Option<Self> {
        let geometry = sweep.geometry();
        if let Some(region_blocks) = sweep.region_blocks() {
            return Some(Self::of_groups(device, sweep, region_blocks));
        }
        let (mut runs, mut bytes) = (Vec::new(), vec![0; geometry.block_size as usize]);
        let (mut left_bytes, mut later) = (Some(sweep.room_bytes()), Vec::new());
        for lot in 0..geometry.desc_blocks {
            let block = geometry.primary_desc_block(lot);
            let is_read = device.read_at(geometry.offset_bytes(block), &mut bytes).is_ok();
            let Some(of_lot) = Lot::of(geometry, lot, &bytes).filter(|_| is_read) else { continue };
            let own = of_lot.runs(&sweep.place(), of_lot.sealed_region());
            let len = own.iter().map(|run| run.len_blocks * u64::from(geometry.block_size)).sum();
            left_bytes = left_bytes.and_then(|left: u64| left.checked_sub(len));
            if left_bytes.is_some() {
                runs.extend(own);
                continue;
            }
            // There is no room for it before inodes are read.
            let beginning = Lot::beginning(geometry, lot);
            runs.push(beginning);
            later.extend(own.into_iter().filter_map(|run| behind(run, beginning.end())));
        }
        runs.extend(later);
        Some(Self { runs, block_size: geometry.block_size })
    }

    /// The same for rext3. Nothing is known of groups whose descriptor or bitmap cannot be read.
    fn of_groups(device: &dyn ReadBlocks, sweep: &Sweep<'_>, region_blocks: u32) -> Self {
        let geometry = sweep.geometry();
        let mut runs = vec![sweep.head()];
        let _: Result<(), (BlockNr, _)> = each_desc(device, geometry, |group, raw| {
            let places = Group::of(geometry, group, &GroupDesc::of(raw), region_blocks);
            places.runs(&sweep.place()).into_iter().for_each(|run| add(&mut runs, run));
            let mut bitmap = vec![0; geometry.block_size as usize];
            let offset = geometry.offset_bytes(places.block_bitmap());
            if device.read_at(offset, &mut bitmap).is_ok() {
                let behind = places.runs_behind(&sweep.place(), &bitmap);
                behind.into_iter().for_each(|run| add(&mut runs, run));
            }
        });
        Self { runs, block_size: geometry.block_size }
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.len_blocks * u64::from(self.block_size)).sum()
    }

    /// The same as requests of at most [`READ_BYTES`] each, for a model of a device.
    pub fn requests(&self) -> impl Iterator<Item = Request> {
        let size = u64::from(self.block_size);
        self.runs.iter().flat_map(move |run| {
            let (start, len) = (run.start.0 * size, run.len_blocks * size);
            let parts = (0..len).step_by(READ_BYTES as usize);
            parts.map(move |at| Request::read(start + at, READ_BYTES.min(len - at)))
        })
    }
}

/// Adds a run, or lengthens the last one that it follows.
fn add(runs: &mut Vec<BlockRun>, run: BlockRun) {
    match runs.last_mut() {
        Some(last) if last.end() == run.start => last.len_blocks += run.len_blocks,
        _ => runs.push(run),
    }
}

/// The part of a run from a block on.
fn behind(run: BlockRun, from: BlockNr) -> Option<BlockRun> {
    let start = run.start.max(from);
    (start < run.end()).then(|| BlockRun::new(start, run.end().0 - start.0))
}

/// Blocks outside of the structures of lots that each check reads: the first block of the journal. The superblock has a copy of
/// its map.
pub(super) fn besides(superblock: &Superblock, geometry: &Geometry) -> Vec<BlockNr> {
    if superblock.jnl_backup_type != HAS_JOURNAL_MAP || superblock.journal_inum == 0 {
        return Vec::new();
    }
    let words = superblock.jnl_blocks.iter().take(15);
    let map: Vec<u8> = words.flat_map(|word| word.to_le_bytes()).collect();
    if geometry.indirect().has_header() {
        let first = superblock.jnl_blocks.first().map(|word| BlockNr(u64::from(*word)));
        return first.filter(|block| geometry.contains(*block)).into_iter().collect();
    }
    let first = ExtentNode::new(&map).filter(ExtentNode::header_ok).and_then(|root| {
        let header = root.header();
        (header.depth == 0 && header.entries > 0).then(|| root.extent(0).run.start)
    });
    first.filter(|block| geometry.contains(*block)).into_iter().collect()
}
