//! The journal of a cube: an immutable file in its first lot, made and deleted by whoever logs that lot by then.

use floe_ext4::alloc::Allocate;
use floe_ext4::make::journal_superblock::{EmptyJournal, JournalSize};
use floe_ext4::map::file;
use floe_ext4::tx::Tx;
use floe_format::ext::inode::InodeFlags;
use floe_format::ext::orphan_file::encode_clean;
use floe_format::native::cube::{OwnJournal, journal_name};
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use super::content::DAMAGED;
use super::staged::Op;
use super::{NewInode, OpError, Reserved};

impl Op<'_> {
    /// Makes the journal of a new cube, with so many blocks, and a block behind them for orphans. Nothing with 0 blocks.
    pub(super) fn make_journal(
        &mut self,
        home: InodeNr,
        cube: u32,
        blocks: u32,
    ) -> Result<OwnJournal, OpError> {
        if blocks == 0 {
            return Ok(OwnJournal::default());
        }
        let lot = self.volume.fs.space.lots_of(cube).first().copied().ok_or(DAMAGED)?;
        let (own, last) = self.make_log(home, &journal_name(cube), lot, blocks)?;
        let inode = InodeNr(own.inode);
        self.volume.fs.space.note_journal(cube, inode, blocks);
        self.volume.fs.space.record_journal(&mut self.tx, cube, last)?;
        let mut orphans = self.volume.orphans.copy();
        self.read_orphans_of_cube(&mut orphans, cube, inode)?;
        self.volume.orphans.replace(orphans);
        Ok(own)
    }

    /// Makes the file of a journal in a lot, with a block for orphans at its end, which comes back.
    pub(super) fn make_log(
        &mut self,
        home: InodeNr,
        name: &[u8],
        lot: u32,
        blocks: u32,
    ) -> Result<(OwnJournal, BlockNr), OpError> {
        let space = &mut self.volume.fs.space;
        let group = space.first_group(lot);
        let number = space.inode_in(&mut self.tx, group)?;
        let reserved = Reserved { inode: number, generation: self.volume.draw() };
        let mut home = self.directory(home)?;
        let new = NewInode::regular(0o600);
        let mut file = self.new_inode(&home, Some(name), &new, Some(reserved))?;
        file.set_flags(InodeFlags::IMMUTABLE, true);
        let places = self.map_journal(&mut file, u64::from(blocks) + 1)?;
        let size = self.volume.geometry().block_size;
        file.set_size_bytes((u64::from(blocks) + 1) * u64::from(size));
        self.put(&mut file)?;
        self.add_name(&mut home, name, &file)?;
        let uuid = std::array::from_fn(|_| (self.volume.draw() & 0xff) as u8);
        // At random, so that nothing that lay there before passes for a transaction.
        let sequence = self.volume.draw() & 0x3fff_ffff | 1;
        let size = JournalSize { blocks, fast_commit_blocks: 0 };
        let block_size = self.volume.geometry().block_size;
        let empty = EmptyJournal { block_size, size, sequence, uuid: Some(uuid) };
        let (first, last) = places;
        let place = self.tx.zeroed(first)?;
        place.get_mut(..1024).ok_or(DAMAGED)?.copy_from_slice(&empty.superblock());
        let seed = self.volume.fs.seed().map(|seed| file.seed(seed));
        encode_clean(self.tx.zeroed(last)?, seed, last);
        Ok((OwnJournal { inode: file.number.0, blocks, uuid }, last))
    }

    /// Maps blocks of a journal's file; returns the first one and the last one.
    fn map_journal(
        &mut self,
        file: &mut floe_format::ext::inode::OwnedInode,
        blocks: u64,
    ) -> Result<(BlockNr, BlockNr), OpError> {
        let geo = self.volume.geometry();
        let group = geo.place_of(file.number).ok_or(DAMAGED)?.0;
        let mut goal = geo.group_start(group);
        let (mut done, mut first, mut last) = (0, None, BlockNr(0));
        while done < blocks {
            let space = &mut self.volume.fs.space;
            let run = space.run(&mut self.tx, goal, blocks - done)?;
            // Blocks of other lots would be looked for in vain, so that the journal could not be used.
            let (geo, lot_groups) = (self.volume.geometry(), self.volume.lot_groups().max(1));
            let lot_of = |at: u64| geo.group_of(BlockNr(at)).map(|group| group.0 / lot_groups);
            let lots = [run.start.0, run.end().0 - 1].map(lot_of);
            if lots != [Some(group.0 / lot_groups); 2] {
                return Err(OpError::Invalid("a journal is longer than its lot has room"));
            }
            self.map_run(file, LogicalBlock(done), run, false)?;
            done += run.len_blocks;
            file::count(&self.volume.fs, file, run.len_blocks.cast_signed());
            first.get_or_insert(run.start);
            (goal, last) = (run.end(), BlockNr(run.end().0 - 1));
        }
        Ok((first.ok_or(DAMAGED)?, last))
    }

    /// Takes the name of a cube's journal away. The file stays an orphan until its log is no longer needed.
    pub(super) fn drop_journal(&mut self, cube: u32, journal: InodeNr) -> Result<(), OpError> {
        self.volume.fs.space.forget_cube(cube);
        // Files that somebody has open stay, although the block is free soon.
        self.move_orphans_of(cube)?;
        self.volume.orphans.forget_cube(cube);
        let home = self.cubes_home()?;
        let mut home = self.directory(home)?;
        self.take_name(&mut home, &journal_name(cube))?;
        let mut file = self.inode(journal)?;
        file.base.links_count = 0;
        self.add_orphan(&mut file)?;
        self.put(&mut file)
    }
}
