//! Facts that one sweep over the device collects. The comments give the memory of each.

use floe_exec::{Accumulator, append};
use floe_format::{BlockNr, BlockRun, InodeNr};

/// Identifies the owner of blocks before its inode is known: the seed of their checksums, or,
/// without checksums, a number above 32 bits that belongs to this block alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OwnerKey(u64);

impl OwnerKey {
    /// The owner of blocks with this seed.
    pub(crate) fn of_seed(seed: u32) -> Self {
        Self(u64::from(seed))
    }

    /// An owner of nothing but this block.
    pub(crate) fn of_block(block: BlockNr) -> Self {
        Self(1 << 63 | block.0)
    }

    /// The seed; `None` without checksums.
    pub(crate) fn seed(self) -> Option<u32> {
        u32::try_from(self.0).ok()
    }

    /// The seed in hexadecimal digits, or the block.
    pub(crate) fn name(self) -> String {
        match self.seed() {
            Some(seed) => format!("seed-{seed:08x}"),
            None => format!("block-{}", self.0 & !(1 << 63)),
        }
    }
}

/// An extent node in a block: 32 bytes a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeFound {
    pub(crate) owner: OwnerKey,
    pub(crate) depth: u16,
    /// First logical block that it maps.
    pub(crate) first: u32,
    pub(crate) block: BlockNr,
}

/// An indirect block of rext3, as its header has it: 16 bytes a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Headed {
    pub(crate) inode: InodeNr,
    /// 1 to 3.
    pub(crate) level: u8,
    pub(crate) block: BlockNr,
}

/// A directory block: 32 bytes a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct DirectoryFound {
    pub(crate) owner: OwnerKey,
    pub(crate) block: BlockNr,
    /// The inode that `.` names; 0 if this is not the first block.
    pub(crate) dot: InodeNr,
    /// The inode that `..` names; 0 if this is not the first block.
    pub(crate) dotdot: InodeNr,
}

/// An inode outside of its place in the inode tables, usually in the journal: 24 bytes a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InodeCopy {
    pub(crate) inode: InodeNr,
    /// Change time: seconds << 30 | nanoseconds; or, of a copy that the log alone tells, a number that grows with its transaction.
    pub(crate) stamp: u64,
    pub(crate) offset_bytes: u64,
    pub(crate) in_use: bool,
}

/// An inode in use that lies in its place: 8 bytes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct InPlace {
    /// The seed of the checksums of its blocks; 0 without metadata_csum.
    pub(crate) seed: u32,
    pub(crate) inode: InodeNr,
}

/// The evidence of a sweep.
#[derive(Debug, Default)]
pub(crate) struct Evidence {
    pub(crate) in_place: Vec<InPlace>,
    /// Deleted inodes in their places: 4 bytes each.
    pub(crate) deleted: Vec<InodeNr>,
    /// Directories among the inodes in place: 4 bytes each.
    pub(crate) directories: Vec<InodeNr>,
    /// Regular files among the inodes in place with a map in blocks: 4 bytes each.
    pub(crate) deep: Vec<InodeNr>,
    /// Data of regular files in place whose whole map is in the inode: 16 bytes an extent.
    pub(crate) claims: Vec<BlockRun>,
    pub(crate) copies: Vec<InodeCopy>,
    pub(crate) nodes: Vec<NodeFound>,
    pub(crate) headed: Vec<Headed>,
    pub(crate) directory_blocks: Vec<DirectoryFound>,
    /// Regular files in place whose size may be wrong: 4 bytes each.
    pub(crate) doubtful_sizes: Vec<InodeNr>,
    /// Blocks that cannot be read: 16 bytes a run.
    pub(crate) unreadable: Vec<BlockRun>,
}

impl Accumulator for Evidence {
    fn merge(&mut self, other: Self) {
        let Self {
            in_place,
            deleted,
            directories,
            deep,
            claims,
            copies,
            nodes,
            headed,
            directory_blocks,
            doubtful_sizes,
            unreadable,
        } = other;
        append(&mut self.in_place, in_place);
        append(&mut self.deleted, deleted);
        append(&mut self.directories, directories);
        append(&mut self.deep, deep);
        append(&mut self.claims, claims);
        append(&mut self.copies, copies);
        append(&mut self.nodes, nodes);
        append(&mut self.headed, headed);
        append(&mut self.directory_blocks, directory_blocks);
        append(&mut self.doubtful_sizes, doubtful_sizes);
        append(&mut self.unreadable, unreadable);
    }
}

impl Evidence {
    /// Sorts everything, so that results do not depend on the number of threads.
    pub(crate) fn settle(&mut self) {
        self.in_place.sort_unstable();
        self.deleted.sort_unstable();
        self.directories.sort_unstable();
        self.deep.sort_unstable();
        self.claims.sort_unstable();
        self.copies.sort_unstable();
        self.nodes.sort_unstable();
        self.headed.sort_unstable();
        self.directory_blocks.sort_unstable();
        self.doubtful_sizes.sort_unstable();
        self.unreadable.sort_unstable();
        self.unreadable.dedup_by(|next, run| {
            let adjoins = run.end() == next.start;
            run.len_blocks += if adjoins { next.len_blocks } else { 0 };
            adjoins
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    floe_exec::accumulator_laws!(
        Evidence,
        0u32..9,
        |all: &mut Evidence, item: u32| {
            let (inode, block) = (InodeNr(item), BlockNr(u64::from(item)));
            let owner = OwnerKey::of_seed(item);
            all.in_place.push(InPlace { seed: item, inode });
            all.deleted.push(inode);
            all.directories.push(inode);
            all.deep.push(inode);
            all.claims.push(BlockRun::new(block, 1));
            all.copies.push(InodeCopy { inode, stamp: 3, offset_bytes: block.0, in_use: true });
            all.nodes.push(NodeFound { owner, depth: 0, first: item, block });
            all.headed.push(Headed { inode, level: 1, block });
            all.directory_blocks.push(DirectoryFound { owner, block, dot: inode, dotdot: inode });
            all.doubtful_sizes.push(inode);
            all.unreadable.push(BlockRun::new(BlockNr(block.0 * 2), 1));
        },
        |mut all: Evidence| {
            all.settle();
            format!("{all:?}")
        }
    );
}
