//! References between inodes and blocks, which stay in one cube unless a system that does not know cubes has written.

use floe_ext4::files::Bounds;
use floe_format::{BlockRun, GroupNr, InodeNr};
use floe_sync::atomic::Ordering;

use super::Gates;

impl Gates {
    /// Sets the inodes of `/.cubes`, `/.cubes/super` and `/.cubes/fence`, and whether names and blocks may lead from one cube into another.
    pub(crate) fn set_bounds(&self, own_files: [u32; 3], coupled: bool) {
        for (place, inode) in self.own_files.iter().zip(own_files) {
            place.store(inode, Ordering::Release);
        }
        self.coupled.store(coupled, Ordering::Release);
    }

    /// Whether blocks of an inode may lie in all cubes.
    fn is_shared(&self, inode: InodeNr) -> bool {
        self.own_files[1..].iter().any(|own| own.load(Ordering::Acquire) == inode.0)
    }

    /// Whether the references of one inode to another may be judged by their cubes.
    fn keeps_apart(&self) -> bool {
        self.has_cubes() && !self.coupled.load(Ordering::Acquire)
    }

    /// Whether a directory may name an inode, whatever that inode says: it lies in the same cube, or is the directory of one.
    pub(crate) fn may_name(&self, directory: InodeNr, inode: InodeNr) -> bool {
        if !self.keeps_apart() {
            return true;
        }
        let (own, other) = (self.of_inode(directory), self.of_inode(inode));
        let is_home = directory.0 == self.own_files[0].load(Ordering::Acquire);
        own == other || own == 0 && (is_home || self.pins().may_be_top(other, inode))
    }
}

impl Bounds for Gates {
    fn may_have(&self, inode: InodeNr, run: BlockRun) -> bool {
        if !self.keeps_apart() || self.is_shared(inode) {
            return true;
        }
        let own = self.of_inode(inode);
        let group =
            |block: u64| u32::try_from(block / u64::from(self.sizes.blocks_per_group.max(1)));
        // Native file systems have no blocks before the first group.
        let ends = (group(run.start.0), group(run.end().0.saturating_sub(1)));
        let (Ok(first), Ok(last)) = ends else { return false };
        (first..=last).all(|group| self.of_group(GroupNr(group)) == own)
    }
}
