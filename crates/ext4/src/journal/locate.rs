//! Locates the journal and validates its superblock.

mod lost;

use floe_blockdev::ReadBlocks;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::ext::jbd2::{
    self, CHECKSUM_CRC32C, JournalCompat, JournalIncompat, JournalSuperblock, MIN_JOURNAL_BLOCKS,
};
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, Superblock};
use floe_format::features::{Compat, Features, Incompat};
use floe_format::native::identity::Identity;
use floe_format::{Geometry, InodeNr};

use super::event::{InodeFault, JournalEvent, JournalPlace, LogBounds, SuperblockFault};
use super::log::Ring;
use super::mended::{SuperblockDamage, is_async, mend};
use crate::inode_table::read_inode;
use crate::map::runs::BlockMap;

/// A journal with a valid superblock.
#[derive(Clone, Debug)]
pub struct Journal {
    /// Its place.
    pub place: JournalPlace,
    /// Its superblock; the fields of version 2 are zero in a superblock of version 1.
    pub superblock: JournalSuperblock,
    /// Blocks of the journal, its superblock and the fast-commit area included.
    pub blocks: u32,
    /// Blocks of the fast-commit area at its end.
    pub fast_commit_blocks: u32,
    /// Whether it must be replayed: needs_recovery is set, or it holds transactions although the
    /// flag is clear.
    pub needs_replay: bool,
    /// Bytes of a block, as in the file system.
    pub block_size: u32,
    /// The transaction from which on nothing is replayed, because others on which it depends are missing.
    pub cut: Option<u32>,
    /// Whether it belongs to a native file system: a commit block is written only when all of its transaction is durable, so one
    /// whose transaction cannot be followed is a sign of damage, not of a crash.
    pub is_native: bool,
    /// Damage of its superblock that was overcome: recovery writes it anew.
    pub damage: Option<SuperblockDamage>,
    /// When the present use of the file system began at the earliest, in seconds since 1970: older commits are remnants.
    pub since_seconds: u64,
    /// The map of its inode; `None` for an external journal, whose block numbers are those of its
    /// device.
    pub(crate) map: Option<BlockMap>,
}

impl Journal {
    /// Offset of a block of the journal on the device that holds it; `None` past the end of the
    /// journal.
    pub fn offset_bytes(&self, log_block: u32) -> Option<u64> {
        if log_block >= self.blocks {
            return None;
        }
        let block = match &self.map {
            Some(map) => map.block(u64::from(log_block))?.0,
            None => u64::from(log_block),
        };
        block.checked_mul(u64::from(self.block_size))
    }

    /// The blocks for transactions; `None` if `s_first` lies past their end.
    pub fn ring(&self) -> Option<Ring> {
        Ring::new(self.superblock.first, self.blocks.saturating_sub(self.fast_commit_blocks))
    }
}

/// Locates and validates the journal of a file system, as e2fsck does before its first pass.
///
/// `device`, and the structures decoded from it, are the file system's; `external` is the device of
/// an external journal, if the caller has one. Returns no journal if there is none, or none that
/// can be used (the events say why).
pub fn find(
    device: &dyn ReadBlocks,
    sb: &Superblock,
    geo: &Geometry,
    groups: &[GroupDesc],
    external: Option<&dyn ReadBlocks>,
) -> (Option<Journal>, Vec<JournalEvent>) {
    let mut finder = Finder { device, sb, geo, groups, external, events: Vec::new() };
    let journal = finder.find();
    (journal, finder.events)
}

/// The last time at which a file system was made, mounted by Linux, or checked, in seconds since 1970.
pub(super) fn since_seconds(sb: &Superblock) -> u64 {
    let all =
        [(sb.mkfs_time, sb.mkfs_time_hi), (sb.mtime, sb.mtime_hi), (sb.lastcheck, sb.lastcheck_hi)];
    let seconds = all.map(|(low, high)| u64::from(low) | u64::from(high) << 32);
    seconds.into_iter().max().unwrap_or(0)
}

/// A journal whose superblock is not yet validated.
struct Candidate {
    place: JournalPlace,
    map: Option<BlockMap>,
    blocks: u32,
    superblock: Box<[u8; 1024]>,
    damage: Option<SuperblockDamage>,
}

struct Finder<'a> {
    device: &'a dyn ReadBlocks,
    sb: &'a Superblock,
    geo: &'a Geometry,
    groups: &'a [GroupDesc],
    external: Option<&'a dyn ReadBlocks>,
    events: Vec<JournalEvent>,
}

impl Finder<'_> {
    fn has_journal(&self) -> bool {
        self.geo.features.compat.contains(Compat::HAS_JOURNAL)
    }

    fn needs_recovery(&self) -> bool {
        self.geo.features.incompat.contains(Incompat::RECOVER)
    }

    fn find(&mut self) -> Option<Journal> {
        let sb = self.sb;
        let named = sb.journal_inum != 0 || sb.journal_dev != 0 || sb.journal_uuid != [0; 16];
        if !self.has_journal() && !self.needs_recovery() && !named {
            return None;
        }
        let mut candidate = if sb.journal_uuid == [0; 16] {
            match self.internal() {
                Ok(candidate) => candidate,
                Err(fault) => {
                    self.inode_invalid(fault);
                    return None;
                }
            }
        } else {
            self.on_device()?
        };
        let before = self.events.len();
        let judged = self.judge(&candidate);
        let superblock = match judged {
            Some(superblock) if !self.is_doubtful(&candidate, &superblock) => {
                self.newest(&mut candidate, superblock)
            }
            Some(superblock) => {
                let reason = SuperblockFault::Checksum.reason();
                self.rebuild(&mut candidate, reason).unwrap_or(superblock)
            }
            None => {
                let rebuilt =
                    self.reason(before).and_then(|reason| self.rebuild(&mut candidate, reason))?;
                self.events.truncate(before);
                rebuilt
            }
        };
        self.events.extend(candidate.damage.map(JournalEvent::from));
        let fast_commit_blocks = superblock.fast_commit_blocks();
        if !self.has_journal() {
            self.events.push(JournalEvent::PresentWithoutFeature);
            if self.needs_recovery() {
                self.events.push(JournalEvent::NeedsRecoveryWithoutJournal);
            }
        }
        let has_data = self.has_journal() && superblock.start != 0;
        if has_data && !self.needs_recovery() {
            self.events.push(JournalEvent::DataWithoutNeedsRecovery);
        }
        let needs_replay = self.has_journal() && (self.needs_recovery() || has_data);
        if superblock.errno != 0 {
            self.events.push(JournalEvent::ErrorRecorded { errno: superblock.errno });
        }
        self.compare_backup(&candidate);
        Some(Journal {
            place: candidate.place,
            // The log ends at `s_maxlen` if the file is longer.
            blocks: superblock.maxlen.min(candidate.blocks),
            superblock,
            fast_commit_blocks,
            needs_replay,
            block_size: self.geo.block_size,
            cut: None,
            is_native: Identity::of(sb).is_some(),
            damage: candidate.damage,
            since_seconds: since_seconds(sb),
            map: candidate.map,
        })
    }

    fn inode_invalid(&mut self, fault: InodeFault) {
        let inode = InodeNr(self.sb.journal_inum);
        if self.has_journal() || inode.0 != 0 {
            self.events.push(JournalEvent::InodeInvalid { inode, fault });
        } else if self.needs_recovery() {
            self.events.push(JournalEvent::NeedsRecoveryWithoutJournal);
        }
    }

    /// The journal in an inode: through the inode itself, or through its copy in the superblock.
    fn internal(&mut self) -> Result<Candidate, InodeFault> {
        let inode = InodeNr(self.sb.journal_inum);
        if inode.0 == 0 || inode.0 > self.geo.inodes_count {
            return Err(InodeFault::Number);
        }
        let own = self.map_that_leads(inode);
        let (place, map, blocks) = match own {
            Ok((map, blocks)) => (JournalPlace::Inode(inode), map, blocks),
            Err(fault) => {
                let (map, blocks) = self.map_of_backup().ok_or(fault)?;
                self.events.push(JournalEvent::InodeFromBackup { inode, fault });
                (JournalPlace::InodeBackup(inode), map, blocks)
            }
        };
        if inode != InodeNr::JOURNAL {
            self.events.push(JournalEvent::InodeNotReserved { inode });
        }
        let first = map.block(0).ok_or(InodeFault::Map)?;
        let mut superblock = Box::new([0; 1024]);
        let read = self.device.read_at(self.geo.offset_bytes(first), superblock.as_mut_slice());
        let at = |block| Some(self.geo.offset_bytes(map.block(u64::from(block))?));
        let damage = mend(&mut superblock, self.device, self.geo.block_size, &at);
        if read.is_err() {
            return Err(InodeFault::NoMagic);
        }
        Ok(Candidate { place, map: Some(map), blocks, superblock, damage })
    }

    fn map_of_inode(&self, inode: InodeNr) -> Result<(BlockMap, u32), InodeFault> {
        let raw =
            read_inode(inode, self.device, self.geo, self.groups).ok_or(InodeFault::Unreadable)?;
        let inode = Inode::decode(&raw).ok_or(InodeFault::Unreadable)?;
        let encrypted = inode.flags().contains(InodeFlags::ENCRYPT);
        let regular = inode.file_type() == Some(FileType::Regular);
        if inode.base.links_count == 0 || !regular || encrypted {
            return Err(InodeFault::NotAJournalFile);
        }
        self.map_of_words(&inode.base.block, inode.flags(), inode.size_bytes())
    }

    /// The map from `s_jnl_blocks`: `i_block`, `i_size_high`, `i_size`. The copy has no flags; an
    /// extent root is recognised by its magic.
    fn map_of_backup(&self) -> Option<(BlockMap, u32)> {
        if self.sb.jnl_backup_type != 1 {
            return None;
        }
        let words = &self.sb.jnl_blocks;
        let size_bytes = u64::from(words[16]) | u64::from(words[15]) << 32;
        let mut block = [0; 60];
        for (bytes, word) in block.chunks_exact_mut(4).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let extents = block[..2] == floe_format::ext::extent::MAGIC.to_le_bytes();
        let flags = if extents { InodeFlags::EXTENTS } else { InodeFlags::empty() };
        self.map_of_words(&block, flags, size_bytes).ok()
    }

    fn map_of_words(
        &self,
        words: &[u8; 60],
        flags: InodeFlags,
        size_bytes: u64,
    ) -> Result<(BlockMap, u32), InodeFault> {
        let blocks = size_bytes / u64::from(self.geo.block_size);
        if blocks < u64::from(MIN_JOURNAL_BLOCKS) {
            return Err(InodeFault::TooShort);
        }
        let limit = size_bytes.div_ceil(u64::from(self.geo.block_size));
        let map = BlockMap::of_words(words, flags, self.device, self.geo, limit)
            .map_err(|_| InodeFault::Map)?;
        // Linux needs no more blocks than the log has, which `judge` compares. e2fsck wants all of
        // the size to be mapped, but compares it as a signed number of 32 bits.
        let mapped = map.blocks_without_hole();
        let wanted_bytes = u64::try_from(size_bytes as u32 as i32).unwrap_or(0);
        if mapped < wanted_bytes.div_ceil(u64::from(self.geo.block_size)) {
            return Err(InodeFault::Map);
        }
        Ok((map, u32::try_from(blocks.min(mapped)).unwrap_or(u32::MAX)))
    }

    /// The external journal: a device whose file system superblock has journal_dev, followed by the
    /// journal superblock.
    fn on_device(&mut self) -> Option<Candidate> {
        let Some(device) = self.external else {
            self.events.push(JournalEvent::ExternalNotFound { uuid: self.sb.journal_uuid });
            return None;
        };
        let mut bytes = [0; 1024];
        let read = device.read_at(OFFSET_BYTES, &mut bytes);
        let outer = Superblock::decode(&bytes);
        let is_journal = outer.features().incompat.contains(Incompat::JOURNAL_DEV);
        if read.is_err() || outer.magic != MAGIC || !is_journal {
            self.events.push(JournalEvent::ExternalNotAJournal);
            return None;
        }
        if outer.uuid != self.sb.journal_uuid {
            self.events.push(JournalEvent::ExternalUuidMismatch { found: outer.uuid });
            return None;
        }
        if !Superblock::checksum_ok(&bytes) {
            self.events.push(JournalEvent::ExternalChecksum);
        }
        let mut superblock = Box::new([0; 1024]);
        let offset = u64::from(external_superblock(self.geo)) * u64::from(self.geo.block_size);
        let read = device.read_at(offset, superblock.as_mut_slice());
        let at = |block| u64::from(block).checked_mul(u64::from(self.geo.block_size));
        let damage = mend(&mut superblock, device, self.geo.block_size, &at);
        if read.is_err() {
            self.events.push(JournalEvent::ExternalNotAJournal);
            return None;
        }
        let blocks = u32::try_from(outer.blocks_count()).unwrap_or(u32::MAX);
        Some(Candidate { place: JournalPlace::External, map: None, blocks, superblock, damage })
    }

    /// Validates the journal superblock; the returned one has no stale fields.
    fn judge(&mut self, candidate: &Candidate) -> Option<JournalSuperblock> {
        let internal = candidate.place != JournalPlace::External;
        if jbd2::header(candidate.superblock.as_slice()).is_none() {
            match internal {
                true => self.inode_invalid(InodeFault::NoMagic),
                false => self.events.push(JournalEvent::ExternalNotAJournal),
            }
            return None;
        }
        let superblock = JournalSuperblock::decode(&candidate.superblock);
        let clean = match superblock.blocktype {
            jbd2::SUPERBLOCK_V1 => {
                let fields = [
                    superblock.feature_compat,
                    superblock.feature_incompat,
                    superblock.feature_ro_compat,
                    superblock.nr_users,
                ];
                fields == [0; 4]
            }
            jbd2::SUPERBLOCK_V2 if lost::is_shared(candidate, &superblock) => {
                self.events.push(JournalEvent::MultipleUsers { users: superblock.nr_users });
                return None;
            }
            // Linux looks at no number of users. Fields of version 2 are what the log was written by.
            jbd2::SUPERBLOCK_V2 => {
                if superblock.nr_users > 1 {
                    self.events.push(JournalEvent::StaleV2Fields);
                }
                true
            }
            kind @ (jbd2::DESCRIPTOR_BLOCK | jbd2::COMMIT_BLOCK | jbd2::REVOKE_BLOCK) => {
                return self.corrupt(SuperblockFault::BlockType(kind));
            }
            blocktype => {
                self.events.push(JournalEvent::UnknownVersion { blocktype });
                return None;
            }
        };
        let mut bytes = *candidate.superblock;
        if !clean {
            self.events.push(JournalEvent::StaleV2Fields);
            bytes[0x24..].fill(0);
        }
        let superblock = JournalSuperblock::decode(&bytes);
        if is_checksum_wrong(&superblock, &bytes) {
            return self.corrupt(SuperblockFault::Checksum);
        }
        let unknown = superblock.incompat().bits() & !JournalIncompat::all().bits();
        if unknown != 0 {
            self.events.push(JournalEvent::UnknownIncompat { bits: unknown });
            return None;
        }
        if superblock.is_v2() && superblock.feature_ro_compat != 0 {
            let bits = superblock.feature_ro_compat;
            self.events.push(JournalEvent::UnknownRoCompat { bits });
            return None;
        }
        match self.superblock_fault(&superblock, &bytes, candidate.blocks) {
            Some(fault) => self.corrupt(fault),
            None => Some(self.with_bounds(superblock, candidate)),
        }
    }

    /// The superblock with bounds of the log that Linux accepts. Every maker of journals lets the log begin right
    /// behind the superblock and end with the journal, so that is what a bound that cannot be is replaced by: the
    /// transactions in the log are found where they were written.
    fn with_bounds(
        &mut self,
        mut superblock: JournalSuperblock,
        candidate: &Candidate,
    ) -> JournalSuperblock {
        let behind = match candidate.place {
            JournalPlace::External => external_superblock(self.geo) + 1,
            JournalPlace::Inode(_) | JournalPlace::InodeBackup(_) => 1,
        };
        // `jbd2_journal_reset` and `journal_load_superblock` of Linux.
        let fits = |bounds: &LogBounds| {
            let room = bounds.maxlen.checked_sub(bounds.first).map(|room| room.saturating_add(1));
            bounds.first != 0 && room.is_some_and(|room| room >= MIN_JOURNAL_BLOCKS)
        };
        let stored = LogBounds { first: superblock.first, maxlen: superblock.maxlen };
        let blocks = candidate.blocks;
        let possible = [
            stored,
            LogBounds { first: behind, ..stored },
            LogBounds { maxlen: blocks, ..stored },
            LogBounds { first: behind, maxlen: blocks },
        ];
        // A journal that is too short anyway is reported as such.
        let expected = possible.into_iter().find(fits).unwrap_or(stored);
        if expected != stored {
            self.events.push(JournalEvent::BoundsWrong { stored, expected });
        }
        (superblock.first, superblock.maxlen) = (expected.first, expected.maxlen);
        superblock
    }

    fn superblock_fault(
        &self,
        superblock: &JournalSuperblock,
        bytes: &[u8; 1024],
        blocks: u32,
    ) -> Option<SuperblockFault> {
        let incompat = superblock.incompat();
        let v2 = incompat.contains(JournalIncompat::CSUM_V2);
        let v3 = incompat.contains(JournalIncompat::CSUM_V3);
        let v1 = superblock.compat().contains(JournalCompat::CHECKSUM);
        if (v2 && v3) || ((v2 || v3) && v1) {
            return Some(SuperblockFault::ChecksumVersions);
        }
        if v2 || v3 {
            if superblock.checksum_type != CHECKSUM_CRC32C {
                return Some(SuperblockFault::ChecksumType(superblock.checksum_type));
            }
            if !JournalSuperblock::checksum_ok(bytes) {
                return Some(SuperblockFault::Checksum);
            }
        }
        if superblock.blocksize != self.geo.block_size {
            return Some(SuperblockFault::BlockSize(superblock.blocksize));
        }
        if superblock.maxlen > blocks {
            let (stated_blocks, actual_blocks) = (superblock.maxlen, blocks);
            return Some(SuperblockFault::TooLong { stated_blocks, actual_blocks });
        }
        let area = superblock.fast_commit_blocks();
        let too_large =
            superblock.maxlen.checked_sub(area).is_none_or(|rest| rest < MIN_JOURNAL_BLOCKS);
        (area > 0 && too_large).then_some(SuperblockFault::FastCommitArea(area))
    }

    fn corrupt(&mut self, fault: SuperblockFault) -> Option<JournalSuperblock> {
        if self.has_journal() {
            self.events.push(JournalEvent::SuperblockCorrupt { fault });
        } else {
            self.inode_invalid(InodeFault::BadSuperblock);
        }
        None
    }

    /// Compares the copy of the journal inode in the superblock with the inode.
    fn compare_backup(&mut self, candidate: &Candidate) {
        let JournalPlace::Inode(inode) = candidate.place else { return };
        let Some(raw) = read_inode(inode, self.device, self.geo, self.groups) else { return };
        let Some(own) = Inode::decode(&raw) else { return };
        let words = &self.sb.jnl_blocks;
        let same = (0..15).all(|index| own.block_word(index) == words.get(index).copied());
        let stale = match self.sb.jnl_backup_type {
            0 => true,
            1 => !same,
            _ => false,
        };
        if stale && self.has_journal() {
            self.events.push(JournalEvent::InodeBackupStale { inode });
        }
    }
}

/// Whether a checksum proves that the superblock is damaged: its features are no newer ones then. Floe keeps one beside asynchronous
/// commits; where others have written since, it is old, and features are known.
fn is_checksum_wrong(superblock: &JournalSuperblock, bytes: &[u8; 1024]) -> bool {
    let unknown = superblock.incompat().bits() & !JournalIncompat::all().bits();
    let is_unknown = unknown != 0 || superblock.feature_ro_compat != 0;
    let is_kept = is_async(superblock) && superblock.checksum != 0 && is_unknown;
    let has_one = superblock.format().has_block_tails();
    let is_proof = has_one && superblock.checksum_type == CHECKSUM_CRC32C;
    (is_proof || is_kept) && !JournalSuperblock::checksum_ok(bytes)
}

/// The block of an external journal's superblock: the one behind the file system superblock, which
/// is in block 1 with blocks of 1 KiB, and otherwise in block 0.
pub fn external_superblock(geo: &Geometry) -> u32 {
    if geo.block_size == 1024 { 2 } else { 1 }
}

/// The features of a superblock without needs_recovery: what a recovered file system has.
pub(crate) fn recovered_features(sb: &Superblock) -> Features {
    let mut features = sb.features();
    features.incompat.remove(Incompat::RECOVER);
    features
}
