//! Estimates the cost of a check from the superblock and the group descriptors alone.
//!
//! A check that sweeps lots (native, rext3) reads what descriptors tell, by the same plan: its bytes, reads and times are those of
//! `floe_check::scan::forecast`, on models of the devices. For all others there is a formula:
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

use std::time::Duration;

use floe_blockdev::{Model, ReadBlocks};
use floe_check::memory::mapped::Mapped;
use floe_check::memory::{Load, Plan};
use floe_check::reader::{Reader, ReaderError};
use floe_check::scan::forecast::Forecast;
use floe_check::volume::used_inodes_bound;
use floe_check::{CheckError, CheckOptions, MemoryLimit};
use floe_format::{Geometry, GroupNr};

/// Directory blocks assumed per directory: most have one, a few have very many.
const DIR_BLOCKS_PER_DIR: f64 = 1.3;
/// Inodes in use per assumed map or attribute block.
const INODES_PER_EXTRA_BLOCK: u64 = 50;
/// Bytes of a large read.
const BYTES_PER_READ: u64 = 1 << 20;
/// Inodes that one core checks per second, including their names: where half of them are directories, with the reads from the page
/// cache (`docs/measurements/predictions.md`).
const INODES_PER_CORE_SECOND: f64 = 3_000_000.0;

/// A kind of device for which times are estimated.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) name: &'static str,
    model: Model,
    /// Seconds of a read of a few blocks anywhere in a file system.
    random_read: f64,
}

impl Device {
    /// All that are shown.
    pub(crate) fn all() -> [Self; 3] {
        let solid = |name, bytes_per_second, read: Duration| {
            let model = Model { read, bytes_per_second, ..Model::ssd() };
            Self { name, model, random_read: read.as_secs_f64() }
        };
        let sata = solid("SATA SSD (500 MB/s, 100 us)", 500_000_000, Duration::from_micros(100));
        let nvme = solid("NVMe SSD (3 GB/s, 20 us)", 3_000_000_000, Duration::from_micros(20));
        let (name, model) = ("hard disk (1 TB, 180 MB/s)", Model::rotating());
        [Self { name, model, random_read: 8e-3 }, sata, nvme]
    }

    /// Seconds that the sweep of a device takes; `None` if a check does not sweep it.
    fn sweep(&self, device: &dyn ReadBlocks) -> Option<f64> {
        let forecast = Forecast::on(device, self.model.medium())?;
        Some(self.model.replay(forecast.requests()).as_secs_f64())
    }
}

/// Reads and resources of a check.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// Seconds of the sweep on each of the devices, if there is one.
    sweep: Option<Vec<f64>>,
}

impl Estimate {
    /// Seconds on each of the devices with this number of threads.
    pub(crate) fn seconds(&self, threads: usize) -> Vec<(&'static str, f64)> {
        let cores = self.inodes_used as f64 / INODES_PER_CORE_SECOND / threads.max(1) as f64;
        let formula = |device: &Device| {
            let bytes = self.bytes as f64 / device.model.bytes_per_second as f64;
            bytes + self.reads as f64 * device.random_read
        };
        let all = Device::all();
        let reading = self.sweep.clone().unwrap_or_else(|| all.iter().map(formula).collect());
        all.iter().zip(reading).map(|(device, time)| (device.name, time.max(cores))).collect()
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
    if let Some(forecast) = Forecast::of(reader.device()) {
        (sum.bytes, sum.reads) = (forecast.bytes(), forecast.requests().count() as u64);
        sum.sweep = Device::all().iter().map(|device| device.sweep(reader.device())).collect();
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_save_time_of_the_cores_only() {
        let sum = Estimate {
            inodes_used: 30_000_000,
            bytes: 3_000_000_000,
            reads: 0,
            ..Estimate::default()
        };
        let seconds = |threads| sum.seconds(threads)[2].1;
        assert!((seconds(1) - 30e6 / INODES_PER_CORE_SECOND).abs() < 1e-6);
        assert!((seconds(4) - seconds(1) / 4.0).abs() < 1e-6);
        assert!((seconds(100) - 1.0).abs() < 1e-6);
    }
}
