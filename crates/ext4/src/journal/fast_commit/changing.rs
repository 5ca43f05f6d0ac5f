//! The file system in the overlay while fast commits change it, with a limit on the work that they
//! may cause.

use std::ops::Range;

use floe_blockdev::{Overlay, ReadBlocks};
use floe_format::ext::extent::{Extent, ExtentNode, MAGIC};
use floe_format::ext::inode::{InodeFlags, OwnedInode};
use floe_format::{BlockNr, BlockRun, Geometry, InodeNr};

use crate::alloc::Allocate;
use crate::fs::FileSystem;
use crate::journal::finish;
use crate::map::edit::TreeEditor;
use crate::map::extent_tree::NodeForm;
use crate::map::mapping::ROOT_BYTES;
use crate::map::pointers::PointerEditor;
use crate::map::runs::BlockMap;
use crate::map::walk::{Depths, has_map};
use crate::tx::{DirectTx, Refusal, Tx};

/// A record requests an impossible change: the file system or the journal is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Impossible;

impl From<Refusal> for Impossible {
    fn from(_: Refusal) -> Self {
        Self
    }
}

/// Steps of work (a block read, an extent moved) that a replay may take. Real replays take
/// thousands; the limit only stops hostile images.
const BUDGET: u64 = 1 << 24;

/// A file system in an overlay that is being changed. Changes are staged by [`Changing::finish`],
/// or earlier if many blocks were changed.
pub(super) struct Changing<'a, D> {
    pub(super) fs: FileSystem,
    pub(super) tx: DirectTx<'a, Overlay<D>>,
    budget: u64,
}

impl<'a, D: ReadBlocks> Changing<'a, D> {
    /// Reads superblock and descriptors through the overlay; `opened` is the geometry with which
    /// the file system was opened.
    pub(super) fn open(overlay: &'a Overlay<D>, opened: &Geometry) -> Result<Self, Impossible> {
        let (superblock, geometry) =
            finish::replayed_superblock(overlay, opened).ok_or(Impossible)?;
        let tx = DirectTx::new(overlay, geometry.clone());
        let fs = FileSystem::of(overlay, superblock, geometry)?;
        Ok(Self { fs, tx, budget: BUDGET })
    }

    pub(super) fn geometry(&self) -> &Geometry {
        self.fs.geometry()
    }

    /// Counts steps of work; [`Impossible`] when the limit is exceeded.
    pub(super) fn charge(&mut self, steps: u64) -> Result<(), Impossible> {
        self.budget = self.budget.checked_sub(steps).ok_or(Impossible)?;
        Ok(())
    }

    pub(super) fn inode(&mut self, number: InodeNr) -> Result<OwnedInode, Impossible> {
        Ok(self.fs.inode(&mut self.tx, number)?)
    }

    pub(super) fn put_inode(&mut self, inode: &mut OwnedInode) -> Result<(), Impossible> {
        Ok(self.fs.put_inode(&mut self.tx, inode)?)
    }

    pub(super) fn is_used(&mut self, inode: InodeNr) -> Result<bool, Impossible> {
        Ok(self.fs.space.groups.is_inode_used(&mut self.tx, inode)?)
    }

    /// Whether a run lies among the blocks of the file system.
    pub(super) fn is_inside(&self, run: BlockRun) -> bool {
        let geo = self.geometry();
        geo.contains(run.start) && run.end().0 <= geo.blocks_count
    }

    /// Marks the clusters of a run as used or free.
    pub(super) fn mark(&mut self, run: BlockRun, used: bool) -> Result<(), Impossible> {
        self.charge(1)?;
        self.fs.space.groups.mark_blocks(&mut self.tx, run, used)?;
        Ok(())
    }

    /// The map of an inode, if it is valid; only then it may be changed. A root of extents without magic counts as empty, and so
    /// does an inode without a map.
    pub(super) fn map_of(&mut self, inode: &OwnedInode) -> Result<BlockMap, Impossible> {
        let root = &inode.base.block;
        if !has_map(&inode.base) || is_without_root(inode) {
            return Ok(BlockMap::default());
        }
        let geo = self.fs.geometry();
        let mut left = self.budget;
        let mut read = |node: BlockNr| {
            // A node may have hundreds of entries, so it costs more than one step.
            left = left.checked_sub(1 + u64::from(geo.block_size) / 256)?;
            self.tx.block(node).ok().map(|bytes| bytes.to_vec())
        };
        let flags = inode.flags();
        let map = BlockMap::follow(root, flags, geo, Depths::Agree, u64::MAX, &mut read);
        self.budget = left;
        map.map_err(|_| Impossible)
    }

    /// Maps an extent where nothing is mapped; the inode itself is not written.
    pub(super) fn insert(
        &mut self,
        inode: &mut OwnedInode,
        extent: Extent,
    ) -> Result<(), Impossible> {
        if inode.flags().contains(InodeFlags::EXTENTS) {
            return self.edit_tree(inode, |editor, root| editor.insert(root, extent));
        }
        self.charge(1 + extent.run.len_blocks)?;
        self.edit_pointers(inode, |editor, root| editor.insert(root, extent))
    }

    /// Turns a range of logical blocks into a hole; returns what was mapped there. The inode itself is not written.
    pub(super) fn remove(
        &mut self,
        inode: &mut OwnedInode,
        range: Range<u64>,
    ) -> Result<Vec<BlockRun>, Impossible> {
        if inode.flags().contains(InodeFlags::EXTENTS) {
            return self.edit_tree(inode, |editor, root| editor.remove(root, range));
        }
        let nodes = self.map_of(inode)?.nodes.len() as u64;
        self.charge(1 + nodes)?;
        self.edit_pointers(inode, |editor, root| editor.remove(root, range))
    }

    fn edit_pointers<T>(
        &mut self,
        inode: &mut OwnedInode,
        edit: impl FnOnce(&mut PointerEditor<'_>, &mut [u8; ROOT_BYTES]) -> Result<T, Refusal>,
    ) -> Result<T, Impossible> {
        let geo = self.fs.geometry();
        let (home, _) = geo.place_of(inode.number).ok_or(Impossible)?;
        let (goal, form, owner) = (geo.group_start(home), geo.indirect(), inode.number);
        let before = self.fs.space.steps;
        let space = &mut self.fs.space;
        let mut editor = PointerEditor { tx: &mut self.tx, space, form, owner, goal };
        let edited = edit(&mut editor, &mut inode.base.block);
        self.charge(self.fs.space.steps - before)?;
        Ok(edited?)
    }

    /// Frees a block of metadata.
    pub(super) fn release(&mut self, block: BlockNr) -> Result<(), Impossible> {
        self.charge(1)?;
        Ok(self.fs.space.release(&mut self.tx, BlockRun::new(block, 1))?)
    }

    /// Changes the extent tree of an inode; the inode itself is not written.
    pub(super) fn edit_tree<T>(
        &mut self,
        inode: &mut OwnedInode,
        edit: impl FnOnce(&mut TreeEditor<'_>, &mut [u8; 60]) -> Result<T, Refusal>,
    ) -> Result<T, Impossible> {
        let no_root = is_without_root(inode);
        let geo = self.fs.geometry();
        let (home, _) = geo.place_of(inode.number).ok_or(Impossible)?;
        let inode_seed = self.fs.seed().map(|seed| inode.seed(seed));
        let form = NodeForm { block_size: geo.block_size, inode_seed, owner_hint: 0 }
            .hinting(self.fs.is_native(), inode.number);
        let goal = geo.group_start(home);
        let before = self.fs.space.steps;
        let space = &mut self.fs.space;
        let mut editor = TreeEditor { tx: &mut self.tx, space, form, goal, steps: 0 };
        if no_root {
            inode.base.block = TreeEditor::EMPTY;
        }
        let edited = edit(&mut editor, &mut inode.base.block);
        let steps = 1 + editor.steps + (self.fs.space.steps - before);
        self.charge(steps)?;
        Ok(edited?)
    }

    /// Allocates a zeroed block, preferably in the group of `near`.
    pub(super) fn allocate(&mut self, near: InodeNr) -> Result<BlockNr, Impossible> {
        let (home, _) = self.geometry().place_of(near).ok_or(Impossible)?;
        let (goal, before) = (self.geometry().group_start(home), self.fs.space.steps);
        let block = self.fs.space.block(&mut self.tx, goal)?;
        self.tx.zeroed(block)?;
        self.charge(1 + self.fs.space.steps - before)?;
        Ok(block)
    }

    /// Stages the changes.
    pub(super) fn finish(mut self) -> Result<(), Impossible> {
        Ok(self.tx.commit()?)
    }
}

/// Whether an inode with extents has no root of them.
pub(super) fn is_without_root(inode: &OwnedInode) -> bool {
    let has_magic = |node: ExtentNode<'_>| node.header().magic == MAGIC;
    inode.flags().contains(InodeFlags::EXTENTS)
        && !ExtentNode::new(&inode.base.block).is_some_and(has_magic)
}
