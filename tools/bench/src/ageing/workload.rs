//! The load: files of random sizes in one directory per group, until 95 % are in use; then creation, appending, truncation and
//! removal, chosen uniformly. Allocation is that of the mount; what files contain is not stored.

use std::io;

use anyhow::{Result, bail};
use floe_blockdev::{ReadBlocks, WriteBlocks};
use floe_disk::ops::{Caller, NewInode, OpError, Step};
use floe_disk::volume::Volume;
use floe_ext4::tx::DirectTx;
use floe_format::InodeNr;
use floe_format::ext::inode::Timestamp;
use floe_testkit::Rng;

/// The time of everything.
pub(super) const NOW: Timestamp = Timestamp { seconds: 1_700_000_000, nanoseconds: 0 };
const BLOCK: u64 = 4096;
/// Share of blocks in use, in percent, that the load keeps to.
const FULL: u64 = 95;
/// Blocks that a directory's first files have: a fifth of a group.
const FIRST_BLOCKS: u64 = 6553;
/// Operations of a transaction.
const TOGETHER: u32 = 64;

/// A device for contents, which are dropped.
#[derive(Debug)]
pub(super) struct Dropped(pub(super) u64);

impl ReadBlocks for Dropped {
    fn size_bytes(&self) -> u64 {
        self.0
    }

    fn read_at(&self, _: u64, into: &mut [u8]) -> io::Result<()> {
        into.fill(0);
        Ok(())
    }
}

impl WriteBlocks for Dropped {
    fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

type Transaction<'t, 'd, D> = &'t mut DirectTx<'d, D>;

/// A file of the load.
#[derive(Clone, Copy, Debug)]
struct Member {
    inode: InodeNr,
    /// Its name, as a number.
    name: u32,
    blocks: u64,
}

/// The state of the load.
#[derive(Debug)]
pub(super) struct Load {
    rng: Rng,
    most_blocks: u64,
    dirs: Vec<(InodeNr, Vec<Member>)>,
    names: u32,
    used_percent: u64,
    pending: u32,
    zeroes: Vec<u8>,
}

impl Load {
    pub(super) fn new(seed: u64, most_blocks: u64) -> Self {
        let zeroes = vec![0; (most_blocks.max(1) * BLOCK) as usize];
        let (dirs, rng) = (Vec::new(), Rng::new(seed));
        Self { rng, most_blocks, dirs, names: 0, used_percent: 0, pending: 0, zeroes }
    }

    pub(super) fn files(&self) -> usize {
        self.dirs.iter().map(|(_, files)| files.len()).sum()
    }

    pub(super) const fn used_percent(&self) -> u64 {
        self.used_percent
    }

    fn caller() -> Caller {
        Caller::system(NOW)
    }

    fn note_use(&mut self, volume: &Volume) {
        let all = volume.geometry().blocks_count;
        self.used_percent = (all - volume.room().free_blocks) * 100 / all;
    }

    /// Commits from time to time, so that freed blocks can be used again.
    fn commit<D: WriteBlocks>(
        &mut self,
        volume: &mut Volume,
        tx: Transaction<'_, '_, D>,
        now: bool,
    ) -> Result<()> {
        self.pending += 1;
        if now || self.pending >= TOGETHER {
            self.pending = 0;
            let epoch = volume.end_epoch();
            tx.commit()?;
            volume.durable(epoch);
        }
        self.note_use(volume);
        Ok(())
    }

    /// Fills the file system.
    pub(super) fn fill<D: WriteBlocks>(
        &mut self,
        volume: &mut Volume,
        tx: Transaction<'_, '_, D>,
        data: &Dropped,
    ) -> Result<()> {
        for group in 0..volume.geometry().group_count {
            let (name, new) = (format!("d{group}"), NewInode::directory(0o755));
            let caller = Self::caller();
            let dir = volume.create(tx, &caller, InodeNr::ROOT, name.as_bytes(), &new)?;
            self.dirs.push((dir, Vec::new()));
        }
        for dir in 0..self.dirs.len() {
            let mut blocks = 0;
            while blocks < FIRST_BLOCKS {
                blocks += self.create(volume, tx, data, dir)?;
            }
        }
        while self.used_percent < FULL {
            let dir = self.rng.index(self.dirs.len());
            if self.rng.below(2) == 0 {
                self.create(volume, tx, data, dir)?;
            } else {
                self.append(volume, tx, data, dir)?;
            }
        }
        Ok(())
    }

    /// A round of ageing: so many operations in each directory.
    pub(super) fn age<D: WriteBlocks>(
        &mut self,
        volume: &mut Volume,
        tx: Transaction<'_, '_, D>,
        data: &Dropped,
        operations: u32,
    ) -> Result<()> {
        for _ in 0..operations {
            for dir in 0..self.dirs.len() {
                match self.rng.below(4) {
                    0 if self.used_percent < FULL => drop(self.create(volume, tx, data, dir)?),
                    1 if self.used_percent < FULL => self.append(volume, tx, data, dir)?,
                    2 => self.truncate(volume, tx, data, dir)?,
                    _ => self.delete(volume, tx, data, dir)?,
                }
            }
        }
        // Back to the share in use at which checks are compared.
        while self.used_percent < FULL {
            let dir = self.rng.index(self.dirs.len());
            self.create(volume, tx, data, dir)?;
        }
        Ok(())
    }

    /// Unmounts.
    pub(super) fn leave<D: WriteBlocks>(
        &mut self,
        volume: &mut Volume,
        tx: Transaction<'_, '_, D>,
    ) -> Result<()> {
        self.commit(volume, tx, true)?;
        for lot in volume.lots_to_reserve() {
            volume.reserve_lot(tx, NOW, lot)?;
        }
        volume.end_writing(tx, NOW)?;
        tx.commit()?;
        Ok(())
    }

    fn create<D: WriteBlocks>(
        &mut self,
        volume: &mut Volume,
        tx: Transaction<'_, '_, D>,
        data: &Dropped,
        dir: usize,
    ) -> Result<u64> {
        let blocks = 1 + self.rng.below(self.most_blocks);
        self.names += 1;
        let (name, new) = (self.names, NewInode::regular(0o644));
        let text = format!("f{name}");
        let inode = volume.create(tx, &Self::caller(), self.dirs[dir].0, text.as_bytes(), &new)?;
        self.dirs[dir].1.push(Member { inode, name, blocks: 0 });
        let at = self.dirs[dir].1.len() - 1;
        self.extend(volume, tx, data, (dir, at), blocks)?;
        Ok(blocks)
    }

    fn append<D: WriteBlocks>(
        &mut self,
        volume: &mut Volume,
        tx: Transaction<'_, '_, D>,
        data: &Dropped,
        dir: usize,
    ) -> Result<()> {
        let count = self.dirs[dir].1.len();
        if count == 0 {
            return Ok(());
        }
        let blocks = 1 + self.rng.below((self.most_blocks / 2).max(1));
        let at = self.rng.index(count);
        self.extend(volume, tx, data, (dir, at), blocks)
    }

    fn extend<D: WriteBlocks>(
        &mut self,
        volume: &mut Volume,
        tx: Transaction<'_, '_, D>,
        data: &Dropped,
        (dir, at): (usize, usize),
        blocks: u64,
    ) -> Result<()> {
        let Member { inode, blocks: before, .. } = self.dirs[dir].1[at];
        let bytes = &self.zeroes[..(blocks * BLOCK) as usize];
        match volume.write(tx, data, &Self::caller(), inode, before * BLOCK, bytes) {
            Ok(()) => self.dirs[dir].1[at].blocks += blocks,
            Err(OpError::NoSpace | OpError::Refused(_)) => {}
            Err(error) => bail!(error),
        }
        self.commit(volume, tx, false)
    }

    fn truncate<D: WriteBlocks>(
        &mut self,
        volume: &mut Volume,
        tx: Transaction<'_, '_, D>,
        data: &Dropped,
        dir: usize,
    ) -> Result<()> {
        let count = self.dirs[dir].1.len();
        if count == 0 {
            return Ok(());
        }
        let at = self.rng.index(count);
        let Member { inode, blocks, .. } = self.dirs[dir].1[at];
        let left = self.rng.below(blocks + 1);
        while volume.truncate(tx, data, &Self::caller(), inode, left * BLOCK)? == Step::More {
            self.commit(volume, tx, true)?;
        }
        self.dirs[dir].1[at].blocks = left;
        self.commit(volume, tx, false)
    }

    fn delete<D: WriteBlocks>(
        &mut self,
        volume: &mut Volume,
        tx: Transaction<'_, '_, D>,
        data: &Dropped,
        dir: usize,
    ) -> Result<()> {
        let count = self.dirs[dir].1.len();
        if count == 0 {
            return Ok(());
        }
        let at = self.rng.index(count);
        let Member { inode, name, .. } = self.dirs[dir].1.swap_remove(at);
        let (caller, name) = (Self::caller(), format!("f{name}"));
        volume.unlink(tx, &caller, self.dirs[dir].0, name.as_bytes())?;
        while volume.finish_orphan(tx, data, &caller, inode)? == Step::More {
            self.commit(volume, tx, true)?;
        }
        self.commit(volume, tx, false)
    }
}
