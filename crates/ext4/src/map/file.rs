//! Changes the map of a file, of either kind.

use std::ops::Range;

use floe_format::ext::extent::Extent;
use floe_format::ext::inode::{InodeFlags, OwnedInode};
use floe_format::{BlockNr, BlockRun, Geometry, InodeNr};

use super::edit::TreeEditor;
use super::extent_tree::NodeForm;
use super::mapping::ROOT_BYTES;
use super::pointers::PointerEditor;
use super::seek::{MapLook, NodeJudge};
use crate::alloc::{Allocate, Space, Tally};
use crate::fs::FileSystem;
use crate::tx::{Refusal, Tx};

/// The lookup of an inode's map.
pub fn look<'m, S: Space>(fs: &'m FileSystem<S>, inode: &'m OwnedInode) -> MapLook<'m> {
    let form = fs.geometry().indirect();
    let inode_seed = fs.seed().map(|seed| inode.seed(seed));
    let judge = Some(NodeJudge { space: &fs.space, inode: inode.number });
    MapLook { root: &inode.base.block, flags: inode.flags(), form, inode_seed, judge }
}

/// Maps an extent of a file where nothing is mapped. Updates `i_blocks` for new mapping blocks, not
/// for the extent itself.
///
/// # Errors
/// Those of [`TreeEditor::insert`]; [`Refusal::TooMuch`] for unwritten extents of a block map.
pub fn insert<S: Space>(
    tx: &mut dyn Tx,
    fs: &mut FileSystem<S>,
    inode: &mut OwnedInode,
    extent: Extent,
) -> Result<(), Refusal> {
    let mut change = |editor: &mut Editor<'_>, root: &mut [u8; ROOT_BYTES]| match editor {
        Editor::Tree(tree) => tree.insert(root, extent),
        Editor::Pointers(pointers) => pointers.insert(root, extent),
    };
    edit(tx, fs, inode, extent.run.start, &mut change)
}

/// Turns a range of logical blocks of a file into a hole. Returns the blocks that were mapped
/// there, which the caller must free and subtract from `i_blocks`; only mapping blocks are
/// subtracted here.
///
/// # Errors
/// Those of [`TreeEditor::remove`].
pub fn remove<S: Space>(
    tx: &mut dyn Tx,
    fs: &mut FileSystem<S>,
    inode: &mut OwnedInode,
    range: Range<u64>,
) -> Result<Vec<BlockRun>, Refusal> {
    let mut freed = Vec::new();
    let mut change = |editor: &mut Editor<'_>, root: &mut [u8; ROOT_BYTES]| {
        freed = match editor {
            Editor::Tree(tree) => tree.remove(root, range.clone())?,
            Editor::Pointers(pointers) => pointers.remove(root, range.clone())?,
        };
        Ok(())
    };
    let goal = fs.geometry().place_of(inode.number);
    let goal = goal.map_or(BlockNr(0), |(group, _)| fs.geometry().group_start(group));
    edit(tx, fs, inode, goal, &mut change)?;
    Ok(freed)
}

/// An edit of the map whose root is `i_block`.
type Edit<'c> = dyn FnMut(&mut Editor<'_>, &mut [u8; ROOT_BYTES]) -> Result<(), Refusal> + 'c;

enum Editor<'e> {
    Tree(TreeEditor<'e>),
    Pointers(PointerEditor<'e>),
}

fn edit<S: Space>(
    tx: &mut dyn Tx,
    fs: &mut FileSystem<S>,
    inode: &mut OwnedInode,
    goal: BlockNr,
    change: &mut Edit<'_>,
) -> Result<(), Refusal> {
    let (block_size, bits) = (fs.geometry().block_size, fs.geometry().cluster_bits);
    let inode_seed = fs.seed().map(|seed| inode.seed(seed));
    let owner_hint = if fs.is_native() { inode.number.0 } else { 0 };
    let indirect = fs.geometry().indirect();
    // In the region of the file's own lot, or in rext3 of its own group, wherever its data are.
    let home = fs.geometry().place_of(inode.number).filter(|_| fs.is_native());
    let home = home.map(|(group, _)| fs.geometry().group_start(group));
    let goal = home.or(home_region(fs.geometry(), inode.number)).unwrap_or(goal);
    let has_tree = inode.flags().contains(InodeFlags::EXTENTS);
    let mut tally = Tally::of(&mut fs.space, bits, inode.number);
    let space: &mut dyn Allocate = &mut tally;
    let mut editor = if has_tree {
        let form = NodeForm { block_size, inode_seed, owner_hint };
        Editor::Tree(TreeEditor { tx, space, form, goal, steps: 0 })
    } else {
        Editor::Pointers(PointerEditor { tx, space, form: indirect, owner: inode.number, goal })
    };
    change(&mut editor, &mut inode.base.block)?;
    let clusters = tally.clusters;
    count(fs, inode, clusters);
    Ok(())
}

/// The goal of metadata of an inode in rext3: its own group, whose region comes first.
pub fn home_region(geometry: &Geometry, inode: InodeNr) -> Option<BlockNr> {
    let home = geometry.place_of(inode).filter(|_| geometry.indirect().has_header());
    home.map(|(group, _)| geometry.group_start(group))
}

/// Adds clusters to `i_blocks`, or subtracts them.
pub fn count<S: Space>(fs: &FileSystem<S>, inode: &mut OwnedInode, clusters: i64) {
    let units = fs.geometry().count_units(inode.flags()) << fs.geometry().cluster_bits;
    let change = clusters.saturating_mul(units.cast_signed());
    inode.set_blocks(inode.blocks().saturating_add_signed(change));
}
