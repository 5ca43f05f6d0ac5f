//! A file system that is written: opened, judged, changed by the operations of [`crate::ops`], and left as Linux would leave it.

pub mod cubes;
mod errors;
mod features;
mod native;
mod reopen;

use floe_blockdev::{Noting, ReadBlocks, WriteBlocks};
use floe_ext4::alloc::Space;
use floe_ext4::apart::LostCubes;
use floe_ext4::fs::{FileSystem, read_superblock};
use floe_ext4::inode_table::read_inode;
use floe_ext4::map::runs::BlockMap;
use floe_ext4::tx::{Refusal, Tx};
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::{Inode, Timestamp};
use floe_format::ext::quota::QuotaKind;
use floe_format::ext::superblock::{STATE_VALID, Superblock};
use floe_format::features::{Compat, Incompat, RoCompat};
use floe_format::native::identity::Identity;
use floe_format::{BlockRun, Geometry, GroupNr, InodeNr, rext3};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, RandomState};
use std::io;

use crate::caller::Caller;
use crate::journal::Journal;
use crate::op_error::OpError;
use crate::orphans::Orphans;
use crate::space::{Epoch, Pool};
pub use errors::{ErrorCode, ErrorRecord};
pub use features::{ReadOnly, judge};
pub use native::seal;
pub(crate) use native::settle as settle_native;

/// Blocks of a journal that fast commits have where its superblock does not say (`JBD2_DEFAULT_FAST_COMMIT_BLOCKS`).
const FAST_COMMIT_BLOCKS: u64 = 256;

/// A file system that is written. One operation runs at a time; each is a change of the blocks of a transaction
/// ([`Tx`]), which is the caller's to begin and to make durable.
///
/// A transaction that is given up takes its operations with it, and what the volume knows of free space is wrong then: open
/// the volume anew.
#[derive(Debug)]
pub struct Volume {
    pub(crate) fs: FileSystem<Pool>,
    pub(crate) orphans: Orphans,
    /// Files whose cutting is not finished.
    pub(crate) cutting: BTreeSet<InodeNr>,
    /// An operation could not be put into its transaction as a whole.
    pub(crate) stopped: bool,
    /// Blocks that an operation may change.
    pub(crate) most_changed: usize,
    /// Blocks that the last operation changed.
    pub(crate) last_changed: usize,
    /// The superblock said that the file system was clean when it was opened.
    pub(crate) was_clean: bool,
    /// Quotas whose limits count.
    pub(crate) enforced: Vec<QuotaKind>,
    /// Nobody has written since Floe sealed it (native file systems).
    was_sealed: bool,
    /// Sub-superblocks tell which cubes are coupled.
    knows_couples: bool,
    /// Cubes that cannot be used because of damaged descriptors.
    lost: LostCubes,
    draws: Draws,
}

/// Numbers that nobody foresees, or a test does.
#[derive(Debug)]
struct Draws {
    random: Random,
    /// How many were drawn.
    drawn: u64,
}

/// Where a volume draws numbers from.
#[derive(Debug)]
enum Random {
    Unforeseen(RandomState),
    Seeded(u64),
}

/// Why a file system was not opened for writing. Nothing of it was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It may be read, but not written.
    #[error(transparent)]
    ReadOnly(#[from] ReadOnly),
    /// It cannot be read.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The device failed.
    #[error("a part of the file system cannot be read: {0}")]
    Device(#[source] io::Error),
}

/// Room of a volume, for `statfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Free blocks.
    pub free_blocks: u64,
    /// Those of them that everybody may use.
    pub available_blocks: u64,
    /// Free inodes.
    pub free_inodes: u64,
}

impl Volume {
    /// Reads superblock and descriptors. A journal must have been replayed before.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(device: &dyn ReadBlocks) -> Result<Self, OpenError> {
        Self::open_despite(device, Incompat::empty())?.whole()
    }

    /// As [`Volume::open`], where damaged descriptors cost their cubes alone ([`Volume::lost_cubes`]). A [`Journal`] keeps everybody
    /// away from their lots.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_beside_lost(device: &dyn ReadBlocks) -> Result<Self, OpenError> {
        Self::open_despite(device, Incompat::empty())
    }

    /// `Err` if descriptors of a cube are damaged.
    fn whole(self) -> Result<Self, OpenError> {
        match self.lost.is_empty() {
            true => Ok(self),
            false => Err(Refusal::Damaged("a group descriptor of a cube").into()),
        }
    }

    /// The cubes that cannot be used because of damaged descriptors.
    pub const fn lost_cubes(&self) -> &LostCubes {
        &self.lost
    }

    /// The volume of a file system that may be written but for these features.
    fn open_despite(device: &dyn ReadBlocks, known: Incompat) -> Result<Self, OpenError> {
        let (superblock, geometry) = read_superblock(device)?;
        let mut judged = superblock.clone();
        judged.feature_incompat &= !known.bits();
        judge(&judged, device.size_bytes())?;
        Self::of(device, FileSystem::of_sound(device, superblock, geometry)?)
    }

    /// As [`Volume::open`], for the one who has replayed the journal, wherever it lies, and keeps other machines out.
    pub(crate) fn open_recovered(device: &dyn ReadBlocks) -> Result<Self, OpenError> {
        let (superblock, geometry) = read_superblock(device)?;
        let mut judged = superblock.clone();
        judged.feature_compat &= !Compat::HAS_JOURNAL.bits();
        judged.feature_incompat &= !Incompat::MMP.bits();
        judge(&judged, device.size_bytes())?;
        Self::of(device, FileSystem::of_sound(device, superblock, geometry)?)?.whole()
    }

    /// As [`Volume::open`], for rext3, which that refuses: a layout for measurements, whose writer is proved by less than the
    /// others ([`crate::journal`] does not open it). Without it the caller must be the only one who ever uses the file system.
    ///
    /// # Errors
    /// [`OpenError`]; so for another file system.
    pub fn open_rext3(device: &dyn ReadBlocks) -> Result<Self, OpenError> {
        let volume = Self::open_despite(device, Incompat::REXT3)?;
        if rext3::region_blocks(volume.superblock()).is_none() {
            return Err(Refusal::Damaged("the record of the metadata regions").into());
        }
        Ok(volume)
    }

    /// As [`Volume::open`], where the journal is open: then `needs_recovery` is no reason against writing.
    ///
    /// ```
    /// use floe_blockdev::MemDevice;
    /// use floe_disk::journal::Journal;
    /// use floe_disk::mkfs::{self, Fresh, FsType, Options, Plan};
    /// use floe_disk::ops::{Caller, NewInode};
    /// use floe_disk::volume::Volume;
    /// use floe_format::InodeNr;
    /// use floe_format::ext::inode::Timestamp;
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = MemDevice::new(vec![0; 16 << 20]);
    /// let now = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
    /// let fresh = Fresh { uuid: [7; 16], hash_seed: [9; 16], now };
    /// let params = Options::of_type(FsType::Ext4).params(16 << 20, None, &fresh)?;
    /// mkfs::write(&Plan::new(&params)?, &device)?;
    ///
    /// let journal = Journal::open(device)?;
    /// let mut volume = Volume::open_journaled(&journal)?;
    /// let caller = Caller::system(now);
    /// let mut tx = journal.begin(30)?;
    /// volume.begin_writing(&mut tx, now)?;
    /// let file = volume.create(&mut tx, &caller, InodeNr::ROOT, b"file", &NewInode::regular(0o644))?;
    /// // Data go past the log, but before the commit of the transaction that maps them.
    /// volume.write(&mut tx, &journal, &caller, file, 0, b"hello")?;
    /// let epoch = volume.end_epoch();
    /// let id = tx.finish()?;
    /// journal.commit(id)?; // fsync
    /// volume.durable(epoch);
    ///
    /// let mut tx = journal.begin(30)?;
    /// volume.end_writing(&mut tx, now)?;
    /// tx.finish()?;
    /// journal.close()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`OpenError`]. Nothing was changed but by opening the journal, which is to be closed.
    pub fn open_journaled<D: WriteBlocks>(journal: &Journal<D>) -> Result<Self, OpenError> {
        Self::open_unrecovered(journal)?.whole()
    }

    /// As [`Volume::open_beside_lost`], where the journal may hold changes that are not on the device yet: to judge whether they can be
    /// replayed, or through an open [`Journal`].
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open_unrecovered(device: &dyn ReadBlocks) -> Result<Self, OpenError> {
        Self::open_despite(device, Incompat::RECOVER)
    }

    /// The checksums of `fs` are right, those of lost cubes aside.
    fn of(device: &dyn ReadBlocks, (fs, lost): (FileSystem, LostCubes)) -> Result<Self, OpenError> {
        Self::of_owned(device, fs, lost, BTreeMap::new())
    }

    /// The same, with the owners of lots whose descriptors on the device are not used.
    fn of_owned(
        device: &dyn ReadBlocks,
        fs: FileSystem,
        lost: LostCubes,
        mut owners: BTreeMap<u32, u32>,
    ) -> Result<Self, OpenError> {
        let noting = Noting::new(device);
        owners.extend(lost.iter().flat_map(|(cube, own)| own.lots.iter().map(|lot| (*lot, *cube))));
        let volume = Self::taken_up(&noting, device, fs, (lost, &owners));
        // A cube that is overlooked would lose its lots to others.
        noting.judge().map_err(OpenError::Device)?;
        volume
    }

    fn taken_up(
        device: &dyn ReadBlocks,
        optional: &dyn ReadBlocks,
        fs: FileSystem,
        (lost, owners): (LostCubes, &BTreeMap<u32, u32>),
    ) -> Result<Self, OpenError> {
        let reserved = fs.superblock.reserved_blocks_count() >> fs.geometry().cluster_bits;
        let journal = journal_inode(device, &fs)?;
        let most_changed = most_changed(&fs, journal.as_deref());
        let mut space = Pool::new(fs.space.groups, reserved);
        if let Some(raw) = &journal {
            space.add_system(journal_runs(device, space.groups().geometry(), raw));
        }
        space.refuse_overlaps()?;
        native::use_lots(device, optional, &fs.superblock, &mut space, owners);
        if let Some(region_blocks) = rext3::region_blocks(&fs.superblock) {
            space.use_group_regions(region_blocks);
        }
        let was_sealed = Identity::is_sealed(&fs.superblock);
        let knows_couples = Identity::knows_couples(&fs.superblock);
        let draws = Draws { random: Random::Unforeseen(RandomState::new()), drawn: 0 };
        let was_clean = Identity::is_clean(&fs.superblock) && lost.is_empty();
        let superblock = native::with_super_inode(optional, fs.superblock, &space);
        let fs = FileSystem { superblock, space };
        Ok(Self {
            fs,
            orphans: Orphans::default(),
            cutting: BTreeSet::new(),
            stopped: false,
            most_changed,
            last_changed: 0,
            was_clean,
            enforced: Vec::new(),
            was_sealed,
            knows_couples,
            lost,
            draws,
        })
    }

    /// Lets limits of these quotas count, as the mount options `usrquota`, `grpquota` and `prjquota` of Linux do. At first
    /// usage is counted, and nobody is refused.
    pub fn enforce_limits(&mut self, kinds: Vec<QuotaKind>) {
        self.enforced = kinds;
    }

    /// Puts metadata together at the beginning of groups, or of flexible groups, from now on, as far as there is room: a check
    /// of an aged file system seeks less. Nothing on the disk tells of it. Native file systems have regions for that.
    pub fn colocate(&mut self) {
        let superblock = &self.fs.superblock;
        let is_flexible = superblock.features().incompat.contains(Incompat::FLEX_BG);
        let groups = 1u32.checked_shl(u32::from(superblock.log_groups_per_flex)).unwrap_or(1);
        self.fs.space.colocate(if is_flexible { groups } else { 1 });
    }

    /// The geometry that follows from the superblock.
    pub fn geometry(&self) -> &Geometry {
        self.fs.geometry()
    }

    /// The descriptors of all groups, with all changes.
    pub fn groups(&self) -> &[GroupDesc] {
        self.fs.space.groups().descs()
    }

    /// The superblock, with totals as of the last [`Volume::settle`].
    pub const fn superblock(&self) -> &Superblock {
        &self.fs.superblock
    }

    /// Free blocks and inodes.
    pub fn room(&self) -> Room {
        let bits = self.geometry().cluster_bits;
        let (free, reserved) = (self.fs.space.free_clusters(), self.fs.space.reserved_clusters());
        Room {
            free_blocks: free << bits,
            available_blocks: free.saturating_sub(reserved) << bits,
            free_inodes: self.fs.space.groups().free_inodes(),
        }
    }

    /// Blocks that the last operation changed: a measure of its share of a journal.
    pub const fn last_changed_blocks(&self) -> usize {
        self.last_changed
    }

    /// Says whether [`Volume::write`] puts content into the transaction, as blocks that it changes, instead of in its place on the
    /// device. Content in blocks that the log has a copy of goes into the transaction in any case.
    pub const fn log_content(&mut self, logs: bool) {
        self.fs.space.log_all_data(logs);
    }

    /// Blocks that an operation may change.
    pub const fn most_changed_blocks(&self) -> usize {
        self.most_changed
    }

    /// Lets no operation change more than so many blocks: one that would is [`OpError::TooLong`], and changes nothing. At
    /// first that is a fifth of the journal, below the quarter that a transaction may have; without one there is no limit.
    pub const fn limit_changes(&mut self, most_blocks: usize) {
        self.most_changed = most_blocks;
    }

    /// The caller commits now: what was freed so far belongs to this epoch.
    pub const fn end_epoch(&mut self) -> Epoch {
        self.fs.space.end_epoch()
    }

    /// Runs of blocks that transactions up to an epoch freed, before [`Volume::durable`] says so: nobody uses them.
    pub fn freed_until(&self, epoch: Epoch) -> impl Iterator<Item = std::ops::Range<u64>> {
        self.fs.space.freed_until(epoch)
    }

    /// The transactions up to an epoch are durable: what they freed may be used again. Without a journal that is so once they
    /// are written.
    pub fn durable(&mut self, epoch: Epoch) {
        self.fs.space.durable(epoch);
    }

    /// Groups with a damaged bitmap, as far as they were used. Nothing is allocated in them, and what is deleted there stays
    /// marked as used until a check.
    pub fn damaged_groups(&self) -> Vec<GroupNr> {
        self.fs.space.damaged().iter().copied().collect()
    }

    /// Whether freed blocks or inodes wait for [`Volume::durable`]: a commit may help where an operation found no space.
    pub fn holds_back(&self) -> bool {
        self.fs.space.holds_back()
    }

    /// Marks the file system as mounted and reads its orphans, which [`Volume::orphans`] lists and
    /// [`Volume::finish_orphan`] finishes. Without a journal it is not clean from now on.
    ///
    /// # Errors
    /// The orphans cannot be read, or the superblock cannot be changed.
    pub fn begin_writing(&mut self, tx: &mut dyn Tx, now: Timestamp) -> Result<(), OpError> {
        self.begin_writing_beside(tx, now, false)
    }

    /// The same; `a_log_waits`: the log of a cube waits for a repair. By the time of the last mount, its commits would pass for remnants
    /// of an earlier use, so that time stays.
    ///
    /// # Errors
    /// As [`Volume::begin_writing`].
    pub fn begin_writing_beside(
        &mut self,
        tx: &mut dyn Tx,
        now: Timestamp,
        a_log_waits: bool,
    ) -> Result<(), OpError> {
        self.op(tx, &Caller::system(now), |op| {
            op.read_orphans()?;
            let features = op.volume.geometry().features;
            let own_files = Identity::of(op.volume.superblock())
                .map_or([0; 2], |own| [own.super_inode, own.fence_inode]);
            let (is_coupled, is_known) = (op.volume.is_coupled(), op.volume.knows_couples);
            let has_lost = !op.volume.lost.is_empty();
            op.edit_superblock(|sb| {
                if !features.compat.contains(Compat::HAS_JOURNAL) {
                    sb.state &= !STATE_VALID;
                }
                // With damaged descriptors it must not pass for sound, whoever mounts it next.
                match has_lost {
                    true => Identity::put_lost(sb),
                    false => Identity::put_mended(sb),
                }
                if features.compat.contains(Compat::ORPHAN_FILE) {
                    sb.feature_ro_compat |= RoCompat::ORPHAN_PRESENT.bits();
                }
                sb.mnt_count = sb.mnt_count.saturating_add(1);
                if !a_log_waits {
                    (sb.mtime, sb.mtime_hi) = seconds_of(now);
                }
                (sb.wtime, sb.wtime_hi) = seconds_of(now);
                native::unseal(sb, own_files, is_coupled, is_known);
            })
        })
    }

    /// Writes the totals of free blocks and inodes into the superblock. A journal needs them at its end alone; without one they
    /// belong into each transaction.
    ///
    /// # Errors
    /// The superblock cannot be changed.
    pub fn settle(&mut self, tx: &mut dyn Tx, now: Timestamp) -> Result<(), OpError> {
        self.op(tx, &Caller::system(now), |op| op.settle(now, false))
    }

    /// Leaves the file system as it is after an unmount: totals right, and clean if it was so when it was opened. Its journal must be empty when this is durable.
    ///
    /// # Errors
    /// The superblock cannot be changed.
    pub fn end_writing(&mut self, tx: &mut dyn Tx, now: Timestamp) -> Result<(), OpError> {
        self.op(tx, &Caller::system(now), |op| op.settle(now, true))
    }

    /// Inodes without a name, or cut while the system stopped, in no order.
    pub fn orphans(&self) -> Vec<InodeNr> {
        self.orphans.all()
    }

    /// A number that nobody foresees: for generations.
    pub(crate) fn draw(&mut self) -> u32 {
        let Draws { random, drawn } = &mut self.draws;
        *drawn += 1;
        let number = match random {
            Random::Unforeseen(state) => state.hash_one(*drawn),
            Random::Seeded(seed) => {
                BuildHasherDefault::<DefaultHasher>::default().hash_one((seed, *drawn))
            }
        };
        (number & 0xffff_ffff) as u32
    }

    /// Draws the same numbers each time from now on, by which generations, places of directories and numbers of new journals come: for
    /// tests, where the same changes are to leave the same file system.
    pub fn draw_by_seed(&mut self, seed: u64) {
        self.draws.random = Random::Seeded(seed);
    }
}

/// Blocks that an operation may change: a fifth of the journal's log, by the size of its inode.
fn most_changed(fs: &FileSystem, journal: Option<&[u8]>) -> usize {
    let Some(raw) = journal else { return usize::MAX };
    let (features, geo) = (fs.geometry().features, fs.geometry());
    let size_bytes = Inode::decode(raw).map_or(0, |inode| inode.size_bytes());
    let blocks = size_bytes / u64::from(geo.block_size);
    // The area for fast commits is not part of the log.
    let fast = if features.compat.contains(Compat::FAST_COMMIT) { FAST_COMMIT_BLOCKS } else { 0 };
    usize::try_from(blocks.saturating_sub(fast) / 5).unwrap_or(usize::MAX)
}

/// The bytes of the journal's inode; `None` without a journal inside the file system.
fn journal_inode(device: &dyn ReadBlocks, fs: &FileSystem) -> Result<Option<Vec<u8>>, Refusal> {
    let (features, geo) = (fs.geometry().features, fs.geometry());
    let journal = InodeNr(fs.superblock.journal_inum);
    if !features.compat.contains(Compat::HAS_JOURNAL) || journal.0 == 0 {
        return Ok(None);
    }
    let raw = read_inode(journal, device, geo, fs.space.groups.descs());
    raw.map(Some).ok_or(Refusal::Missing("journal"))
}

/// Blocks of the journal; none if its map is damaged, and then it cannot be opened either.
fn journal_runs(device: &dyn ReadBlocks, geo: &Geometry, raw: &[u8]) -> Vec<BlockRun> {
    let map = Inode::decode(raw).map(|inode| BlockMap::of(&inode, device, geo, u64::MAX));
    map.and_then(Result::ok).map_or_else(Vec::new, |map| map.all_runs().collect())
}

/// Seconds since 1970 as the superblock has them: 32 bits, and the byte above.
pub(crate) fn seconds_of(now: Timestamp) -> (u32, u8) {
    let seconds = now.seconds.max(0);
    ((seconds & 0xffff_ffff) as u32, (seconds >> 32 & 0xff) as u8)
}
