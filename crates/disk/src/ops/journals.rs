//! Further journals of the root cube of a native file system (`docs/journal.md`), made before anybody uses it.

use floe_ext4::tx::Tx;
use floe_format::native::cube::{FEWEST_JOURNAL_BLOCKS, further_journal_name};
use floe_format::native::identity::Identity;
use floe_format::{BlockNr, InodeNr};

use super::staged::Op;
use super::{Caller, OpError};
use crate::volume::Volume;

/// Part of a lot that its journal takes at most.
const PART_OF_LOT: u64 = 8;
/// A journal is as long as that of inode 8, of which an operation may change this part.
const SHARE: usize = 5;

/// A further journal of the root cube.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FurtherJournal {
    /// Inode of its file.
    pub inode: InodeNr,
    /// Blocks of the log.
    pub blocks: u32,
    orphan_block: BlockNr,
}

impl Volume {
    /// Makes a further journal of the root cube: the file `/.cubes/journal.0.N`, whose inode and blocks lie in lot N, which it logs
    /// from then on. Nobody else uses the file system yet.
    ///
    /// # Errors
    /// [`OpError::Invalid`] without such a lot, or if it has no room; [`OpError::Unsupported`] on a stock file system.
    pub fn make_further_journal(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        number: u32,
    ) -> Result<FurtherJournal, OpError> {
        self.op(tx, caller, |op| op.make_further_journal(number))
    }

    /// Lets a further journal log a lot of the root cube.
    ///
    /// # Errors
    /// [`OpError::Invalid`] without such a lot.
    pub fn give_to_journal(
        &mut self,
        tx: &mut dyn Tx,
        caller: &Caller,
        lot: u32,
        journal: FurtherJournal,
    ) -> Result<(), OpError> {
        self.op(tx, caller, |op| op.give_to_journal(lot, journal))
    }

    /// Lots of a native file system; 0 in others.
    pub fn lot_count(&self) -> u32 {
        self.fs.space.lots().end
    }
}

impl Op<'_> {
    fn make_further_journal(&mut self, number: u32) -> Result<FurtherJournal, OpError> {
        let Some(identity) = Identity::of(self.volume.superblock()) else {
            return Err(OpError::Unsupported(
                "several journals in a file system that was not made by `mkfs -t native`",
            ));
        };
        self.judge_lot(number)?;
        let most = self.volume.lot_blocks() / PART_OF_LOT;
        let same = self.volume.most_changed_blocks().saturating_mul(SHARE);
        let blocks = u32::try_from(most.min(same as u64)).unwrap_or(u32::MAX);
        if blocks < FEWEST_JOURNAL_BLOCKS {
            return Err(OpError::Invalid("the lots are too short for journals of their own"));
        }
        let (name, home) = (further_journal_name(number), InodeNr(identity.home_inode));
        let (own, orphan_block) = self.make_log(home, &name, number, blocks)?;
        let journal = FurtherJournal { inode: InodeNr(own.inode), blocks, orphan_block };
        self.give_to_journal(number, journal)?;
        Ok(journal)
    }

    fn give_to_journal(&mut self, lot: u32, journal: FurtherJournal) -> Result<(), OpError> {
        self.judge_lot(lot)?;
        let FurtherJournal { inode, blocks, orphan_block } = journal;
        let space = &mut self.volume.fs.space;
        Ok(space.give_to_journal(&mut self.tx, lot, (inode, blocks), orphan_block)?)
    }

    /// `Err` unless it is one of the root cube, not the first one.
    fn judge_lot(&self, lot: u32) -> Result<(), OpError> {
        let space = &self.volume.fs.space;
        let is_there = lot > 0 && lot < self.volume.lot_count();
        if is_there && space.cube_of_group(space.first_group(lot)) == 0 {
            return Ok(());
        }
        Err(OpError::Invalid("there are fewer lots than journals"))
    }
}
