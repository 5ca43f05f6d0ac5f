//! Directories and where their blocks are: what the inode pass hands to the directory pass.

use floe_exec::{Accumulator, Pool, append};
use floe_format::{BlockNr, InodeNr};

use bitflags::bitflags;

use super::stretches::sort_stretches;
use crate::saved::{Decoder, Encoder, Fault, Saved, cell};

bitflags! {
    /// Facts about a directory that the directory pass needs before it reads the first block.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DirFlags: u8 {
        /// INDEX_FL is set and the root of the index was found usable.
        const INDEXED = 0x01;
        /// The directory is encrypted.
        const ENCRYPTED = 0x02;
        /// The directory is case-folded.
        const CASEFOLD = 0x04;
        /// The content lives in the inode; it has no blocks.
        const INLINE = 0x08;
    }
}

/// A run of adjacent blocks of one directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirRun {
    /// First physical block; inside the file system.
    pub block: BlockNr,
    /// The directory.
    pub dir: InodeNr,
    /// `i_generation` of the directory: part of the seed of its checksums.
    pub generation: u32,
    /// First logical block (of 32 bits: a directory never has more).
    pub logical: u32,
    /// Number of blocks, at least 1.
    pub len_blocks: u16,
    /// Flags of the directory.
    pub flags: DirFlags,
    /// Its blocks were judged while inodes were still being read (`overlap`).
    pub judged: bool,
}

/// A directory that was found in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DirInfo {
    /// The directory.
    pub inode: InodeNr,
    /// Blocks of its data: `i_size` in blocks.
    pub size_blocks: u32,
}

/// All directories and their blocks.
#[derive(Clone, Debug, Default)]
pub struct Dirs {
    /// Runs of directory blocks, in no order while collected.
    pub runs: Vec<DirRun>,
    /// The directories, in no order while collected; sorted by [`Dirs::sort`].
    pub infos: Vec<DirInfo>,
    /// Directories whose content lives in the inode.
    pub inline: Vec<InodeNr>,
}

impl Dirs {
    /// Puts runs in disk order and directories in order of their inodes.
    ///
    /// The evidence of each worker is already in order, or nearly so.
    pub fn sort(&mut self, pool: &Pool) {
        // As one number, which takes fewer instructions to compare than its fields one after another.
        let place = |run: &DirRun| {
            let (block, dir) = (u128::from(run.block.0), u128::from(run.dir.0));
            block << 64 | dir << 32 | u128::from(run.logical)
        };
        sort_stretches(&mut self.runs, place, pool);
        let number = |info: &DirInfo| u64::from(info.inode.0) << 32 | u64::from(info.size_blocks);
        sort_stretches(&mut self.infos, number, pool);
        sort_stretches(&mut self.inline, |inode| *inode, pool);
    }

    /// The same, for who reads all blocks anew.
    #[must_use]
    pub(crate) fn unjudged(mut self) -> Self {
        self.runs.iter_mut().for_each(|run| run.judged = false);
        self
    }

    /// The index in [`Dirs::infos`] of a directory, once sorted.
    pub(crate) fn index_of(&self, dir: InodeNr) -> Option<usize> {
        self.infos.binary_search_by_key(&dir, |info| info.inode).ok()
    }
}

impl Accumulator for Dirs {
    fn merge(&mut self, other: Self) {
        let Self { runs, infos, inline } = other;
        append(&mut self.runs, runs);
        append(&mut self.infos, infos);
        append(&mut self.inline, inline);
    }
}

impl Saved for Dirs {
    fn save(&self, to: &mut Encoder<'_>) {
        let Self { runs, infos, inline } = self;
        to.put_rows(runs.iter().map(|run| {
            let DirRun { block, dir, generation, logical, len_blocks, flags, judged: _ } = *run;
            let (block, dir, generation) = (block.0, u64::from(dir.0), u64::from(generation));
            let (logical, len, flags) = (logical.into(), len_blocks.into(), flags.bits().into());
            [block, dir, generation, logical, len, flags]
        }));
        to.put_rows(infos.iter().map(|info| {
            let DirInfo { inode, size_blocks } = *info;
            [inode.0.into(), size_blocks.into()]
        }));
        to.put_rows(inline.iter().map(|inode| [inode.0.into()]));
    }

    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let mut all = Self::default();
        all.load_more(from)?;
        Ok(all)
    }

    fn load_more(&mut self, from: &mut Decoder<'_>) -> Result<(), Fault> {
        let Self { runs, infos, inline } = self;
        from.more_rows(runs, |[block, dir, generation, logical, len, flags]| {
            Some(DirRun {
                block: BlockNr(block),
                dir: InodeNr(cell(dir)?),
                generation: cell(generation)?,
                logical: cell(logical)?,
                len_blocks: cell(len)?,
                flags: DirFlags::from_bits(cell(flags)?)?,
                judged: false,
            })
        })?;
        from.more_rows(infos, |[inode, size_blocks]| {
            Some(DirInfo { inode: InodeNr(cell(inode)?), size_blocks: cell(size_blocks)? })
        })?;
        from.more_rows(inline, |[inode]| cell(inode).map(InodeNr))
    }
}

#[cfg(test)]
mod laws {
    use super::*;
    use crate::saved::tests::same;

    floe_exec::accumulator_laws!(
        Dirs,
        (1u32..50, 1u64..1000),
        |all: &mut Dirs, (inode, block): (u32, u64)| {
            let (dir, block) = (InodeNr(inode), BlockNr(block));
            let flags = DirFlags::default();
            all.runs.push(DirRun {
                block,
                dir,
                generation: 0,
                logical: 0,
                len_blocks: 1,
                flags,
                judged: false,
            });
            all.infos.push(DirInfo { inode: dir, size_blocks: 1 });
            all.inline.push(dir);
        },
        |all: Dirs| same(all, |mut all: Dirs| {
            all.sort(&Pool::new(1));
            (all.runs, all.infos, all.inline)
        })
    );
}
