//! Estimates the cost of a check from the superblock and the group descriptors alone.
//!
//! The formula (`floe info` prints all of its terms):
//!
//! - **Bytes** = superblock and descriptors
//!   + inode tables: the used part of each group's table (all of it without descriptor checksums),
//!     in whole blocks
//!   + bitmaps: two blocks per group, except uninitialised ones
//!   + directories: [`DIR_BLOCKS_PER_DIR`] blocks each
//!   + maps and attributes: one block for every [`INODES_PER_EXTRA_BLOCK`] inodes in use. Fragmented
//!     files need more, which the descriptors cannot tell.
//! - **Reads** = one for every [`BYTES_PER_READ`] of inode tables and bitmaps, plus one for every
//!   two directory, map or attribute blocks, which lie scattered.
//! - **Time** on a device = bytes / throughput + reads * latency, or the processor time (inodes in
//!   use / [`INODES_PER_CORE_SECOND`] / threads), whichever is longer, because they overlap.
//! - **Memory**: the formula of the check itself, `floe_check::memory` (docs/memory.md).

use floe_check::memory::mapped::Mapped;
use floe_check::memory::{Load, Plan};
use floe_check::reader::{Reader, ReaderError};
use floe_check::volume::used_inodes_bound;
use floe_check::{CheckError, CheckOptions, MemoryLimit};
use floe_format::{Geometry, GroupNr};

/// Directory blocks assumed per directory: most have one, a few have very many.
const DIR_BLOCKS_PER_DIR: f64 = 1.3;
/// Inodes in use per assumed map or attribute block.
const INODES_PER_EXTRA_BLOCK: u64 = 50;
/// Bytes of a large read.
const BYTES_PER_READ: u64 = 1 << 20;
/// Inodes that one core checks per second, including their names.
const INODES_PER_CORE_SECOND: f64 = 1_000_000.0;

/// A kind of device: name, bytes per second, seconds per random read.
type Device = (&'static str, f64, f64);

/// Devices for which times are estimated.
pub(crate) const DEVICES: [Device; 3] = [
    ("hard disk (150 MB/s, 8 ms)", 150e6, 8e-3),
    ("SATA SSD (500 MB/s, 100 us)", 500e6, 100e-6),
    ("NVMe SSD (3 GB/s, 20 us)", 3e9, 20e-6),
];

/// Reads and resources of a check.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Estimate {
    /// Inodes in use.
    pub(crate) inodes_used: u64,
    /// Directories.
    pub(crate) directories: u64,
    /// Bytes of inode tables to read.
    pub(crate) table_bytes: u64,
    /// Total bytes.
    pub(crate) bytes: u64,
    /// Reads.
    pub(crate) reads: u64,
    /// Parameters of the memory estimate.
    pub(crate) load: Load,
}

impl Estimate {
    /// Seconds on a device with this number of threads.
    pub(crate) fn seconds(&self, (_, throughput, latency): Device, threads: usize) -> f64 {
        let device = self.bytes as f64 / throughput + self.reads as f64 * latency;
        let cores = self.inodes_used as f64 / INODES_PER_CORE_SECOND / threads.max(1) as f64;
        device.max(cores)
    }

    /// Peak memory with this number of threads, and the minimum for a check.
    pub(crate) fn memory_bytes(&self, geometry: &Geometry, threads: usize) -> (u64, u64) {
        let usual = CheckOptions { threads, ..CheckOptions::default() };
        let tight =
            CheckOptions { memory: MemoryLimit { limit_bytes: Some(0), held_bytes: 0 }, ..usual };
        let total =
            |options: &CheckOptions<'_>| match Plan::new(&self.load, geometry, options.into()) {
                Ok(plan) => plan.estimate.total(),
                Err(CheckError::OverBudget { need_bytes, .. }) => need_bytes,
                Err(_) => 0,
            };
        (total(&usual), total(&tight))
    }
}

/// Makes the estimate.
///
/// # Errors
/// A descriptor cannot be read.
pub(crate) fn estimate(reader: &Reader<'_>) -> Result<Estimate, ReaderError> {
    let geometry = &reader.geometry;
    let block_size = u64::from(geometry.block_size);
    let has_csum = geometry.features.group_desc_csum();
    let load = Load::new(geometry, reader.superblock.log_groups_per_flex);
    let mut sum = Estimate { load, ..Estimate::default() };
    let mut mapped = Mapped::default();
    let mut bitmap_blocks = 0u64;
    for group in 0..geometry.group_count {
        let (_, desc) = reader.group(GroupNr(group))?;
        let slots = used_inodes_bound(geometry, &desc);
        sum.load.add(geometry, &desc, slots);
        mapped.add(geometry, GroupNr(group), &desc);
        let bytes = u64::from(slots) * u64::from(geometry.inode_size);
        sum.table_bytes += bytes.div_ceil(block_size) * block_size;
        bitmap_blocks += u64::from(!(has_csum && desc.block_uninit()));
        bitmap_blocks += u64::from(!(has_csum && desc.inode_uninit()));
        let free = desc.free_inodes_count.min(geometry.inodes_per_group);
        sum.inodes_used += u64::from(geometry.inodes_per_group - free);
        sum.directories += u64::from(desc.used_dirs_count.min(geometry.inodes_per_group));
    }
    sum.load.mapped_chunks = mapped.chunks(geometry);
    let directory_blocks = (sum.directories as f64 * DIR_BLOCKS_PER_DIR).ceil() as u64;
    let extra_blocks = sum.inodes_used.div_ceil(INODES_PER_EXTRA_BLOCK);
    let fixed = (1 + u64::from(geometry.desc_blocks) + bitmap_blocks) * block_size;
    let scattered = directory_blocks + extra_blocks;
    sum.bytes = fixed + sum.table_bytes + scattered * block_size;
    sum.reads = (fixed + sum.table_bytes).div_ceil(BYTES_PER_READ) + scattered.div_ceil(2);
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_save_time_of_the_cores_only() {
        let sum = Estimate {
            inodes_used: 10_000_000,
            bytes: 3_000_000_000,
            reads: 0,
            ..Estimate::default()
        };
        assert!((sum.seconds(DEVICES[2], 1) - 10.0).abs() < 1e-6);
        assert!((sum.seconds(DEVICES[2], 4) - 2.5).abs() < 1e-6);
        assert!((sum.seconds(DEVICES[2], 100) - 1.0).abs() < 1e-6);
    }
}
