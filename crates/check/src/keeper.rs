//! Keepers: the interface through which a caller stores checkpoints and hears of them; and the parts that shards of
//! a check leave, which it hands over to have them merged.

use std::io::{self, Read, Write};

use floe_exec::Interrupt;

/// Keeps a checkpoint, tells when the next leg is to end, and tells people what became of it.
pub trait Keeper: Sync {
    /// The wish to stop. It is held while a leg runs: whoever asks meanwhile has the leg ended, its
    /// record written, and [`crate::CheckError::Stopped`] returned.
    fn interrupt(&self) -> &Interrupt;

    /// Whether it is time to end the leg that is running. Each worker asks after each unit of work.
    fn due(&self) -> bool;

    /// Whether to begin anew whatever there is.
    fn restart(&self) -> bool;

    /// The bytes of the checkpoint that there is; `None` without one.
    ///
    /// # Errors
    /// It cannot be read.
    fn stored(&self) -> io::Result<Option<Box<dyn Read + '_>>>;

    /// Makes a checkpoint of these bytes in place of the one that there is, or of none. Whatever
    /// happens meanwhile, one or the other is there, whole.
    ///
    /// # Errors
    /// The checkpoint cannot be replaced; the old one is still there.
    fn replace(&self, bytes: &[u8]) -> io::Result<()>;

    /// Goes on with the checkpoint that there is, of which the first `bytes` are good.
    ///
    /// # Errors
    /// It cannot be written.
    fn resume(&self, bytes: u64) -> io::Result<()>;

    /// Adds what `write` writes, and makes it last.
    ///
    /// # Errors
    /// It cannot be written. Then nothing will be added any more.
    fn append(&self, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<()>;

    /// Tells whoever waits.
    fn tell(&self, notice: &Notice);
}

/// Events of a checkpoint that the caller reports.
#[derive(Debug)]
pub enum Notice {
    /// The check goes on from it.
    Resumed {
        /// When the check was begun, in seconds since 1970.
        begun_seconds: i64,
        /// Parts of inode tables that were read before, and all.
        parts: (usize, usize),
        /// Runs of directory blocks that were read before.
        runs: usize,
        /// Whether its end could not be used.
        cut: bool,
    },
    /// It could not be used, and the check begins anew.
    Restarted {
        /// Why: a clause that begins with "it".
        why: String,
    },
    /// It could not be written any more; the check goes on without.
    Lost(io::Error),
}

/// Which shard of a check: number `index` of `count`, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    index: u32,
    count: u32,
}

/// Shards of a check, at most.
pub(crate) const MOST_SHARDS: u32 = 1 << 16;

impl Share {
    /// Shard `index` of `count`; `None` unless `index < count` and `count` is at most `MOST_SHARDS`.
    pub fn new(index: u32, count: u32) -> Option<Self> {
        (index < count && count <= MOST_SHARDS).then_some(Self { index, count })
    }

    /// Its number, from 0.
    pub const fn index(self) -> u32 {
        self.index
    }

    /// How many shards there are.
    pub const fn count(self) -> u32 {
        self.count
    }

    /// The only shard, which has everything.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// Its stretch of a list. The shards of all indexes have stretches of nearly equal length, in
    /// order, which together are the list.
    pub fn of<T>(self, all: &[T]) -> &[T] {
        let count = u64::from(self.count.max(1));
        // Lists that fit into memory have far fewer than 2^48 elements, and a bound is at most their length.
        let bound = |index: u32| (all.len() as u64 * u64::from(index) / count) as usize;
        all.get(bound(self.index)..bound(self.index + 1)).unwrap_or(&[])
    }
}

/// The rounds of a check in shards. The last two look closer at groups that sums do not prove.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Round {
    /// Each shard examines its block groups.
    Shards,
    /// The inode tables that concern unproved groups are read again.
    Inodes,
    /// The directory blocks and bitmaps that concern unproved groups are judged again.
    Names,
}

impl Round {
    /// One shard of the round, in messages.
    pub const fn shard(self) -> &'static str {
        match self {
            Self::Shards => "shard",
            Self::Inodes => "refinement (inodes)",
            Self::Names => "refinement (names)",
        }
    }

    /// Several shards of the round, in messages.
    pub const fn shards(self) -> &'static str {
        match self {
            Self::Shards => "shards",
            Self::Inodes => "refinements (inodes)",
            Self::Names => "refinements (names)",
        }
    }
}

/// The parts of a check, one for each shard, in any order.
pub trait Parts: Sync {
    /// How many there are.
    fn count(&self) -> usize;

    /// The name of a part in messages, by its place among them.
    fn name(&self, at: usize) -> String;

    /// The bytes of a part. The first ones of all are read before any is read as a whole.
    ///
    /// # Errors
    /// It cannot be read.
    fn open(&self, at: usize) -> io::Result<Box<dyn Read + '_>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_together_are_the_list() {
        let all: Vec<u32> = (0..23).collect();
        for count in [1, 2, 5, 22, 23, 40] {
            let stretch = |index| Share::new(index, count).unwrap().of(&all);
            let together: Vec<u32> = (0..count).flat_map(stretch).copied().collect();
            assert_eq!(together, all, "{count}");
            let lengths = (0..count).map(|index| stretch(index).len());
            assert!(lengths.clone().max().unwrap() - lengths.min().unwrap() <= 1, "{count}");
        }
        assert_eq!(Share::WHOLE.of(&all), all);
    }
}
