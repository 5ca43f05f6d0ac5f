//! Multiple-mount protection of runs that write: they wait to see whether another machine has the file system mounted, and leave the
//! mark of a checker while they write.
//!
//! Source: `Documentation/filesystems/ext4/mmp.rst`.

use std::io;
use std::time::Duration;

use floe_blockdev::{ReadBlocks, Window, WriteBlocks, host_name};
use floe_check::Problem;
use floe_check::checks::superblock::mmp::{device_name, is_of_this_boot};
use floe_format::BlockNr;
use floe_format::crc::Seed;
use floe_format::ext::mmp::{MAGIC, Mmp, SEQ_CLEAN, SEQ_FSCK, SEQ_MAX};
use floe_format::ext::superblock::{MAGIC as SUPERBLOCK_MAGIC, OFFSET_BYTES, Superblock};
use floe_format::features::Incompat;
use floe_sync::{Mutex, PoisonError};

/// Least seconds between two looks of a machine that has the file system mounted; longer ones are in its fields.
const LEAST_SECONDS: u64 = 5;
/// Most seconds that a wait exceeds such an interval.
const MOST_EXTRA_SECONDS: u64 = 60;
/// Superblocks asked for the place, if the primary one is damaged: the first backup for each size of a block.
const BACKUPS_AT: [u64; 3] = [8193 << 10, (16384 * 2048), (32768 * 4096)];

/// The protection's block on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MmpBlock {
    pub(crate) block: BlockNr,
    pub(crate) block_bytes: u64,
    /// `None`: it has no checksum.
    seed: Option<Seed>,
    /// Seconds, by the superblock.
    interval: u16,
    pub(crate) bytes: Box<[u8; Mmp::SIZE]>,
}

impl MmpBlock {
    /// Reads it. `None`: the file system has none, or it cannot be read.
    pub(crate) fn of(device: &dyn ReadBlocks) -> Option<Self> {
        Self::by(device, &[])
    }

    /// The same, with superblocks at further offsets in bytes, if the others are damaged.
    fn by(device: &dyn ReadBlocks, named: &[u64]) -> Option<Self> {
        let places = std::iter::once(OFFSET_BYTES).chain(BACKUPS_AT);
        let places = places.chain(named.iter().copied());
        let superblock = places.into_iter().find_map(|at| {
            let mut bytes = [0; Superblock::SIZE];
            device.read_at(at, &mut bytes).ok()?;
            let superblock = Superblock::decode(&bytes);
            let good = superblock.magic == SUPERBLOCK_MAGIC && Superblock::checksum_ok(&bytes);
            good.then_some(superblock)
        })?;
        let features = superblock.features();
        let block = BlockNr(superblock.mmp_block);
        let is_place = block.0 > u64::from(superblock.first_data_block)
            && block.0 < superblock.blocks_count()
            && superblock.log_block_size <= 6;
        if !features.incompat.contains(Incompat::MMP) || !is_place {
            return None;
        }
        let mut found = Self {
            block,
            block_bytes: 1024 << superblock.log_block_size,
            seed: features.metadata_csum().then(|| superblock.seed()),
            interval: superblock.mmp_interval,
            bytes: Box::new([0; Mmp::SIZE]),
        };
        found.bytes = found.read(device).ok()?;
        Some(found)
    }

    /// The same, as it is on the device and not in a cache, which knows nothing of other machines.
    pub(crate) fn now(device: &dyn WriteBlocks) -> Option<Self> {
        Self::now_by(device, &[])
    }

    fn now_by(device: &dyn WriteBlocks, named: &[u64]) -> Option<Self> {
        let found = Self::by(&device, named)?;
        device.forget(found.start_bytes(), found.block_bytes);
        let bytes = found.read(&device).ok()?;
        Some(Self { bytes, ..found })
    }

    pub(crate) fn start_bytes(&self) -> u64 {
        self.block.0.saturating_mul(self.block_bytes)
    }

    fn read(&self, device: &dyn ReadBlocks) -> io::Result<Box<[u8; Mmp::SIZE]>> {
        let mut bytes = Box::new([0; Mmp::SIZE]);
        device.read_at(self.start_bytes(), bytes.as_mut_slice())?;
        Ok(bytes)
    }

    /// Whether its fields can be believed.
    fn is_whole(&self) -> bool {
        Mmp::decode(&self.bytes).magic == MAGIC
            && self.seed.is_none_or(|seed| Mmp::checksum_ok(seed, &self.bytes))
    }

    /// Its bytes after a change.
    fn with(&self, bytes: &[u8; Mmp::SIZE], change: impl FnOnce(&mut Mmp)) -> [u8; Mmp::SIZE] {
        let mut mmp = Mmp::decode(bytes);
        change(&mut mmp);
        let mut bytes = *bytes;
        mmp.encode_into(&mut bytes);
        if let Some(seed) = self.seed {
            mmp.checksum = Mmp::compute_checksum(seed, &bytes);
            mmp.encode_into(&mut bytes);
        }
        bytes
    }

    /// The bytes given, as nobody's.
    fn clean(&self, bytes: &[u8; Mmp::SIZE]) -> [u8; Mmp::SIZE] {
        let mmp = Mmp::decode(bytes);
        match mmp.magic == MAGIC && mmp.seq != SEQ_CLEAN {
            true => self.with(bytes, |mmp| mmp.seq = SEQ_CLEAN),
            false => *bytes,
        }
    }

    /// Its bytes with the mark of a checker on this machine.
    fn marked(&self) -> [u8; Mmp::SIZE] {
        self.with(&self.bytes, |mmp| {
            (mmp.magic, mmp.seq) = (MAGIC, SEQ_FSCK);
            mmp.nodename = [0; 64];
            let host = host_name();
            let len = host.len().min(mmp.nodename.len());
            mmp.nodename[..len].copy_from_slice(&host.as_bytes()[..len]);
            mmp.bdevname = device_name().unwrap_or_default();
        })
    }
}

/// Whether a file system with protection begins at a byte of `device`.
pub fn is_protected(device: &dyn ReadBlocks, offset_bytes: u64) -> bool {
    let part = Window::new(device, offset_bytes, None);
    part.is_ok_and(|part| MmpBlock::of(&part).is_some())
}

/// Looks whether another machine has the file system mounted. Where the block does not say that nobody has, `wait` is called with the
/// time after which a live one has changed it: twice its interval and a second. `None`: nobody, or the mark of a checker,
/// which does not move and which a check finds. `named` are offsets of further superblocks, in bytes.
pub fn active(
    device: &dyn WriteBlocks,
    named: &[u64],
    wait: &mut dyn FnMut(Duration),
) -> Option<Problem> {
    let before = MmpBlock::now_by(device, named)?;
    let mmp = Mmp::decode(&before.bytes);
    if before.is_whole() && (mmp.seq > SEQ_MAX) {
        return None;
    }
    let mut seconds = LEAST_SECONDS.max(before.interval.into());
    if before.is_whole() {
        seconds = seconds.max(mmp.check_interval.into());
    }
    wait(Duration::from_secs((seconds * 2 + 1).min(seconds + MOST_EXTRA_SECONDS)));
    device.forget(before.start_bytes(), before.block_bytes);
    let now = before.read(&device).ok()?;
    let sequence = Mmp::decode(&now).seq;
    (now != before.bytes).then_some(Problem::MmpInUse { block: before.block, sequence })
}

/// Stages that nobody uses the file system, where a repair by Floe that was killed says that it does.
pub(crate) fn drop_own_mark(staged: &dyn WriteBlocks) -> io::Result<()> {
    match MmpBlock::of(&staged) {
        Some(found) if found.is_whole() && is_of_this_boot(&Mmp::decode(&found.bytes)) => {
            staged.write_at(found.start_bytes(), &found.clean(&found.bytes))
        }
        _ => Ok(()),
    }
}

/// A device that carries the mark of a checker. Its block is read and written as if it had none; what it is to hold is written when the
/// mark is taken away.
pub(crate) struct Marked<'d> {
    device: &'d dyn WriteBlocks,
    /// `None`: no protection, and no mark.
    marked: Option<Mark>,
}

struct Mark {
    place: MmpBlock,
    /// Whether the block is to say that nobody uses the file system, whatever it said before.
    ends_clean: bool,
    on_device: [u8; Mmp::SIZE],
    /// `None` after the end.
    held: Mutex<Option<[u8; Mmp::SIZE]>>,
}

impl<'d> Marked<'d> {
    /// Writes the mark, durably.
    pub(crate) fn new(
        device: &'d dyn WriteBlocks,
        place: Option<MmpBlock>,
        ends_clean: bool,
    ) -> io::Result<Self> {
        // Anything else may be a block of a file: its superblock names a wrong one.
        let Some(place) = place.filter(MmpBlock::is_whole) else {
            return Ok(Self { device, marked: None });
        };
        let on_device = place.marked();
        let held = Mutex::new(Some(*place.bytes));
        let at = place.start_bytes();
        let marked = Some(Mark { place, ends_clean, on_device, held });
        // From here on the end takes it away, even if this is cut off.
        let this = Self { device, marked };
        device.write_at(at, &on_device)?;
        device.flush()?;
        Ok(this)
    }

    /// Bytes of the mark, written and taken away.
    pub(crate) fn own_bytes(&self) -> u64 {
        if self.marked.is_some() { 2 * Mmp::SIZE as u64 } else { 0 }
    }

    /// Takes the mark away, durably. Another machine's sequence stays.
    pub(crate) fn end(&self) -> io::Result<()> {
        let Some(mark) = &self.marked else { return Ok(()) };
        let Some(bytes) = mark.held.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Ok(());
        };
        self.device.forget(mark.place.start_bytes(), mark.place.block_bytes);
        let now = mark.place.read(&self.device)?;
        let is_foreign = *now != mark.on_device && Mmp::decode(&now).magic == MAGIC;
        if is_foreign && Mmp::decode(&now).seq <= SEQ_MAX {
            return Err(io::Error::other("another machine has begun to use the file system"));
        }
        let is_left = is_of_this_boot(&Mmp::decode(&bytes));
        let bytes = if mark.ends_clean || is_left { mark.place.clean(&bytes) } else { bytes };
        self.device.write_at(mark.place.start_bytes(), &bytes)?;
        self.device.flush()
    }

    /// The parts of a range of `len_bytes` and of the block that lie over each other, if any do.
    fn common(&self, at: u64, len_bytes: usize) -> Option<(&Mark, usize, usize, usize)> {
        let mark = self.marked.as_ref()?;
        let start = mark.place.start_bytes();
        let from = start.max(at);
        let to = (start + Mmp::SIZE as u64).min(at + len_bytes as u64);
        // Both lie within the two ranges, whose lengths are usize.
        (from < to)
            .then(|| (mark, (from - at) as usize, (from - start) as usize, (to - from) as usize))
    }
}

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        // After an error, which is told already.
        let _ = self.end();
    }
}

impl ReadBlocks for Marked<'_> {
    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        self.device.read_at(offset_bytes, into)?;
        if let Some((mark, here, there, len)) = self.common(offset_bytes, into.len())
            && let Some(held) = &*mark.held.lock().unwrap_or_else(PoisonError::into_inner)
        {
            into[here..here + len].copy_from_slice(&held[there..there + len]);
        }
        Ok(())
    }
}

impl WriteBlocks for Marked<'_> {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        let Some((mark, here, there, len)) = self.common(offset_bytes, from.len()) else {
            return self.device.write_at(offset_bytes, from);
        };
        let mut bytes = from.to_vec();
        let mut held = mark.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = &mut *held {
            held[there..there + len].copy_from_slice(&from[here..here + len]);
            bytes[here..here + len].copy_from_slice(&mark.on_device[there..there + len]);
        }
        self.device.write_at(offset_bytes, &bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.device.flush()
    }

    fn current_size_bytes(&self) -> io::Result<u64> {
        self.device.current_size_bytes()
    }

    fn forget(&self, offset_bytes: u64, len_bytes: u64) {
        self.device.forget(offset_bytes, len_bytes);
    }
}
