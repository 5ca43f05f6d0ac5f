//! The file system in memory over a disk: a recorded device with an image of mke2fs.

use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use floe_blockdev::{MemDevice, ReadBlocks, WriteBlocks};
use floe_check::{CheckOptions, check};
use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
use floe_disk::volume::Volume;
use floe_format::ext::quota::QuotaKind;
use floe_fs::{Dependencies, Disk, Limits, Live, MemFs, Timestamp};
use floe_testkit::{Image, build, oracle};

pub(crate) const NOW: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 5 };

/// The kind of file system, empty at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// 3 MiB with blocks of 1 KiB and the smallest journal.
    Stock,
    /// The same, with quotas of users, groups and projects.
    Quota,
    /// Three lots of 4 MiB, with metadata regions.
    Native,
}

pub(crate) fn base() -> &'static [u8] {
    base_of(Base::Stock)
}

pub(crate) fn base_of(kind: Base) -> &'static [u8] {
    static BASES: [OnceLock<Vec<u8>>; 3] = [const { OnceLock::new() }; 3];
    BASES[kind as usize].get_or_init(|| match kind {
        Base::Stock => made(&["-t", "ext4"]),
        Base::Quota => made(&["-t", "ext4", "-O", "quota,project", "-I", "256"]),
        Base::Native => native(9 << 20, "lot_size=4m", "256"),
    })
}

fn made(kind: &[&str]) -> Vec<u8> {
    let image = Image::empty(3 << 20).unwrap();
    let args = ["-b", "1024", "-J", "size=1", "-N", "128"];
    build::mke2fs(image.path(), &[kind, &args].concat()).unwrap();
    image.to_vec().unwrap()
}

/// An empty native file system with these extended options and so many inodes.
pub(crate) fn native(size_bytes: usize, extended: &str, inodes: &str) -> Vec<u8> {
    let mut options = Options::of_type(FsType::Native);
    for (letter, value) in [('E', extended), ('J', "size=4"), ('N', inodes)] {
        options.set(letter, value).unwrap();
    }
    let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now: NOW };
    let device = MemDevice::new(vec![0; size_bytes]);
    let params = options.params(device.size_bytes(), None, &fresh).unwrap();
    mkfs::write(&Plan::new(&params).unwrap(), &device).unwrap();
    device.to_vec()
}

/// Mounts a device, lets `work` use it, and unmounts it.
pub(crate) fn mounted<D: WriteBlocks, T>(
    device: D,
    limits: Limits,
    work: impl FnOnce(&MemFs<Live<'_, '_, D>>) -> Result<T>,
) -> Result<T> {
    mounted_with_quotas(device, limits, &[], work)
}

/// The same, where the limits of some quotas count.
pub(crate) fn mounted_with_quotas<D: WriteBlocks, T>(
    device: D,
    limits: Limits,
    enforced: &[QuotaKind],
    work: impl FnOnce(&MemFs<Live<'_, '_, D>>) -> Result<T>,
) -> Result<T> {
    let (disk, mut volume) = Disk::open(device)?;
    volume.enforce_limits(enforced.to_vec());
    opened((disk, volume), limits, work)
}

/// The same, where changes of several journals of the root cube depend on each other in this way.
pub(crate) fn mounted_depending<D: WriteBlocks, T>(
    device: D,
    dependencies: Dependencies,
    limits: Limits,
    work: impl FnOnce(&MemFs<Live<'_, '_, D>>) -> Result<T>,
) -> Result<T> {
    let (disk, volume) = Disk::open(device)?;
    disk.set_dependencies(dependencies);
    opened((disk, volume), limits, work)
}

fn opened<D: WriteBlocks, T>(
    (disk, volume): (Disk<D>, Volume),
    limits: Limits,
    work: impl FnOnce(&MemFs<Live<'_, '_, D>>) -> Result<T>,
) -> Result<T> {
    let value = {
        let files = disk.files_of(&volume)?;
        let live = Live::new(&disk, &files, volume, NOW)?.discard_freed(true);
        let memory = MemFs::new(live, limits);
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
        let image = Image::of(&device)?;
        let verdict = oracle::e2fsck(&image).context("running e2fsck")?;
        ensure!(verdict.clean(), "e2fsck: {}", verdict.text);
    }
    Ok(())
}
