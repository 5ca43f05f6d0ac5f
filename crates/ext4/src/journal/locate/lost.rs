//! Journals in use whose superblock is lost: the log may lead to another one (`rebuilt.rs`).

use floe_blockdev::ReadBlocks;
use floe_format::ext::jbd2::{self, JournalSuperblock};
use floe_format::ext::superblock::Superblock;
use floe_format::native::identity::Identity;
use floe_format::native::is_locked;
use floe_format::{Geometry, InodeNr};

use super::super::event::{InodeFault, JournalEvent, JournalPlace};
use super::super::mended::{SuperblockDamage, is_async, leads};
use super::super::rebuilt::{Headless, OLD};
use super::{Candidate, Finder, Journal, is_checksum_wrong, since_seconds};
use crate::map::runs::BlockMap;

impl Journal {
    /// Stands for the journal of a file system that has lost its inode: it has no blocks, and holds nothing.
    pub fn gone(sb: &Superblock, geo: &Geometry) -> Self {
        Self::headless(JournalPlace::Inode(InodeNr(sb.journal_inum)), sb, geo, None, 0)
    }

    /// A journal whose superblock is not known yet.
    pub(in super::super) fn headless(
        place: JournalPlace,
        sb: &Superblock,
        geo: &Geometry,
        map: Option<BlockMap>,
        blocks: u32,
    ) -> Self {
        Self {
            place,
            superblock: JournalSuperblock::decode(&[0; 1024]),
            blocks,
            fast_commit_blocks: 0,
            needs_replay: true,
            block_size: geo.block_size,
            cut: None,
            is_native: Identity::of(sb).is_some(),
            damage: None,
            since_seconds: since_seconds(sb),
            map,
        }
    }
}

/// Whether several file systems use an external journal: a number that a checksum disproves, also one that nobody but Floe keeps,
/// counts for nothing.
pub(super) fn is_shared(candidate: &Candidate, superblock: &JournalSuperblock) -> bool {
    let bytes = &candidate.superblock;
    let is_kept = is_async(superblock) && superblock.checksum != 0;
    let is_disproved =
        is_checksum_wrong(superblock, bytes) || is_kept && !JournalSuperblock::checksum_ok(bytes);
    candidate.place == JournalPlace::External && superblock.nr_users > 1 && !is_disproved
}

impl Finder<'_> {
    /// The map of an inode; an error if it leads to no journal, and the copy of the map in the superblock does.
    pub(super) fn map_that_leads(&self, inode: InodeNr) -> Result<(BlockMap, u32), InodeFault> {
        let own = self.map_of_inode(inode)?;
        let is_elsewhere = !self.leads_to_journal(&own.0)
            && self.map_of_backup().is_some_and(|(map, _)| self.leads_to_journal(&map));
        if is_elsewhere { Err(InodeFault::NoMagic) } else { Ok(own) }
    }

    /// Whether the first block of a map begins as a block of a journal.
    fn leads_to_journal(&self, map: &BlockMap) -> bool {
        let mut first = [0; 1024];
        let Some(block) = map.block(0) else { return false };
        let read = self.device.read_at(self.geo.offset_bytes(block), &mut first);
        read.is_ok() && jbd2::header(&first).is_some()
    }

    /// Why a superblock cannot be used, by the events behind the first ones; `None`: nothing that the log could settle.
    pub(super) fn reason(&self, before: usize) -> Option<&'static str> {
        let reasons = match self.events.get(before..)? {
            // Fields are looked at before the checksum is.
            [JournalEvent::StaleV2Fields, behind @ ..] => behind,
            all => all,
        };
        match reasons {
            [JournalEvent::SuperblockCorrupt { fault }] => Some(fault.reason()),
            [JournalEvent::UnknownVersion { .. }] => Some("it is of no known kind"),
            [
                JournalEvent::InodeInvalid { fault: InodeFault::NoMagic, .. }
                | JournalEvent::ExternalNotAJournal,
            ] => Some(InodeFault::NoMagic.reason()),
            _ => None,
        }
    }

    /// Whether a superblock leads to no transaction, and does not fit the checksum that Floe keeps beside asynchronous commits.
    pub(super) fn is_doubtful(
        &self,
        candidate: &Candidate,
        superblock: &JournalSuperblock,
    ) -> bool {
        let Candidate { place, map, blocks, .. } = candidate;
        let journal = Journal::headless(*place, self.sb, self.geo, map.clone(), *blocks);
        is_async(superblock)
            && !JournalSuperblock::checksum_ok(&candidate.superblock)
            && superblock.start != 0
            && !leads(superblock, self.log_device(*place), &|block| journal.offset_bytes(block))
    }

    /// The device of a log.
    fn log_device(&self, place: JournalPlace) -> &dyn ReadBlocks {
        self.external.filter(|_| place == JournalPlace::External).unwrap_or(self.device)
    }

    /// Makes the superblock of a log in use anew, if the log proves it.
    pub(super) fn rebuild(
        &self,
        candidate: &mut Candidate,
        reason: &'static str,
    ) -> Option<JournalSuperblock> {
        let superblock = self.headless(candidate)?.superblock()?;
        candidate.damage = Some(SuperblockDamage::Rebuilt(reason));
        Some(superblock)
    }

    /// A superblock in which nothing is wrong, or the one that the log proves to be newer.
    pub(super) fn newest(
        &self,
        candidate: &mut Candidate,
        superblock: JournalSuperblock,
    ) -> JournalSuperblock {
        let headless = self.headless(candidate).filter(|_| candidate.damage.is_none());
        let newer = headless.and_then(|headless| headless.newer(&superblock));
        candidate.damage =
            newer.as_ref().map(|_| SuperblockDamage::Rebuilt(OLD)).or(candidate.damage);
        newer.unwrap_or(superblock)
    }

    /// The log of a journal in use.
    fn headless<'a>(&'a self, candidate: &'a Candidate) -> Option<Headless<'a>> {
        let is_used = self.has_journal() && (self.needs_recovery() || is_locked(self.sb));
        if !is_used {
            return None;
        }
        let Candidate { place, map, blocks, superblock: bytes, .. } = candidate;
        let journal = Journal::headless(*place, self.sb, self.geo, map.clone(), *blocks);
        let (device, home) = (self.log_device(*place), self.device);
        Some(Headless { device, home, geo: self.geo, sb: self.sb, bytes, journal })
    }
}
