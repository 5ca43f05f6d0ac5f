//! The file system in memory over a disk: a recorded device with an image of mke2fs.

use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_check::{CheckOptions, check};
use floe_fs::{Disk, Limits, Live, MemFs, Timestamp};
use floe_testkit::{Image, build, oracle};

pub(crate) const NOW: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 5 };

/// An empty file system of 3 MiB with blocks of 1 KiB and the smallest journal.
pub(crate) fn base() -> &'static [u8] {
    static BASE: OnceLock<Vec<u8>> = OnceLock::new();
    BASE.get_or_init(|| {
        let image = Image::empty(3 << 20).unwrap();
        let args = ["-t", "ext4", "-b", "1024", "-J", "size=1", "-N", "128"];
        build::mke2fs(image.path(), &args).unwrap();
        image.to_vec().unwrap()
    })
}

/// Mounts a device, lets `work` use it, and unmounts it.
pub(crate) fn mounted<D: WriteBlocks, T>(
    device: D,
    limits: Limits,
    work: impl FnOnce(&MemFs<Live<'_, '_, D>>) -> Result<T>,
) -> Result<T> {
    let (disk, volume) = Disk::open(device)?;
    let value = {
        let files = disk.files()?;
        let memory = MemFs::new(Live::new(&disk, &files, volume, NOW)?, limits);
        let value = work(&memory)?;
        let (live, lost) = memory.finish()?;
        live.finish(NOW)?;
        lost?;
        value
    };
    disk.close()?;
    Ok(value)
}

/// Whether Floe's check and `e2fsck -fn` find nothing.
pub(crate) fn judge(device: &MemDevice, by_e2fsck: bool) -> Result<()> {
    let report = check(device, &CheckOptions { threads: 1, ..CheckOptions::default() })?;
    ensure!(report.is_clean(), "{:?}", report.found);
    if by_e2fsck {
        let image = Image::empty(device.size_bytes())?;
        image.write(0, &device.to_vec())?;
        let verdict = oracle::e2fsck(&image).context("running e2fsck")?;
        ensure!(verdict.clean(), "e2fsck: {}", verdict.text);
    }
    Ok(())
}
