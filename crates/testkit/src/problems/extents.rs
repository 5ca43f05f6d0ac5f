//! Extent trees, and clusters.

use crate::Profile;
use crate::recipe::{Edit, Recipe, block_bits, inode, map_node};
use floe_format::ext::extent::RawExtent;
use floe_format::ext::inode::Inode;

use super::Case;

const EXTENTS: u32 = 0x0008_0000;

/// A recipe on the standard image.
fn k1(name: &str, ids: &[&'static str]) -> Recipe {
    Recipe::new(format!("extents: {name}")).expect(ids)
}

/// The first extent of a file, whose root is a leaf.
fn leaf(
    name: &str,
    path: &str,
    change: impl Fn(&mut RawExtent) + Send + Sync + 'static,
    ids: &[&'static str],
) -> Recipe {
    k1(name, ids).edit(inode(path).extent(0, change))
}

/// Makes the first index entry of a root lead to the first bitmap.
fn node_on_bitmap(path: &'static str) -> Edit {
    Edit::new(move |volume| {
        let number = volume.lookup(path)?;
        let bitmap = volume.desc(floe_format::GroupNr(0))?.block_bitmap;
        let mut raw = volume.inode_bytes(number)?;
        raw[0x28 + 12 + 4..0x28 + 12 + 8].copy_from_slice(&(bitmap.0 as u32).to_le_bytes());
        volume.put_inode(number, &raw)?;
        volume.fix_inode(number)
    })
}

/// Makes two index entries of a node lead to the same leaf.
fn node_twice(path: &'static str) -> Edit {
    Edit::new(move |volume| {
        let number = volume.lookup(path)?;
        let map = volume.map(number)?;
        let [parent, leaf, ..] = map.nodes[..] else { anyhow::bail!("{path} has no tree") };
        let mut node = volume.block(parent.block)?;
        node[24 + 4..24 + 8].copy_from_slice(&(leaf.block.0 as u32).to_le_bytes());
        volume.put_block(parent.block, &node)?;
        volume.fix_extent_node(number, parent.block)
    })
}

/// Makes the first extent of a file map the first leaf of another file's tree.
fn extent_on_node(path: &'static str, other: &'static str) -> Edit {
    Edit::new(move |volume| {
        let nodes = volume.map(volume.lookup(other)?)?.nodes;
        let [_, leaf, ..] = nodes[..] else { anyhow::bail!("{other} has no tree") };
        let number = volume.lookup(path)?;
        let mut raw = volume.inode_bytes(number)?;
        raw[0x28 + 12 + 4..0x28 + 12 + 6].copy_from_slice(&1u16.to_le_bytes());
        raw[0x28 + 12 + 8..0x28 + 12 + 12].copy_from_slice(&(leaf.block.0 as u32).to_le_bytes());
        volume.put_inode(number, &raw)?;
        volume.fix_inode(number)
    })
}

/// Converts a file to a block map.
fn block_mapped(path: &'static str) -> Edit {
    Edit::new(move |volume| {
        let number = volume.lookup(path)?;
        let mut raw = volume.inode_bytes(number)?;
        let block = volume.map(number)?.data.into_values().next().unwrap_or_default();
        let flags = Inode::decode(&raw).map_or(0, |inode| inode.base.flags) & !EXTENTS;
        raw[0x20..0x24].copy_from_slice(&flags.to_le_bytes());
        raw[0x28..0x64].fill(0);
        raw[0x28..0x2c].copy_from_slice(&(block.0 as u32).to_le_bytes());
        volume.put_inode(number, &raw)?;
        volume.fix_inode(number)
    })
}

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    let recipes = [leaves(), trees(), directories(), shapes(), clusters()].into_iter().flatten();
    let mut cases: Vec<Case> = recipes.map(|recipe| Case::from(recipe).same_codes()).collect();
    // e2fsck follows the node twice, and finds that its extents overlap.
    cases.push(
        k1("a node met twice", &["extent-tree-walk-failed"]).edit(node_twice("/fragmented")).into(),
    );
    cases.extend(depths());
    cases.extend(sizes());
    cases
}

/// Makes a file end after 20 blocks by its size and its sectors; the nodes lead further.
fn ends_early(path: &'static str) -> Edit {
    Edit::new(move |volume| {
        let number = volume.lookup(path)?;
        let mut blocks: Vec<_> = volume.map(number)?.data.into_keys().map(|key| key.0).collect();
        blocks.sort_unstable();
        let mut raw = volume.inode_bytes(number)?;
        let extents = Inode::decode(&raw).is_some_and(|inode| inode.base.flags & EXTENTS != 0);
        let nodes = if extents { u32::from(raw[0x28 + 6]) } else { 1 };
        let size = (blocks[19] + 1) * u64::from(volume.geometry.block_size);
        raw[4..8].copy_from_slice(&(size as u32).to_le_bytes());
        let sectors = (20 + nodes) * (volume.geometry.block_size / 512);
        raw[0x1c..0x20].copy_from_slice(&sectors.to_le_bytes());
        volume.put_inode(number, &raw)?;
        volume.fix_inode(number)
    })
}

/// Files whose size and sectors agree, and whose map leads further: to blocks that the bitmaps have in use, or as free. e2fsck asks
/// no bitmap.
fn sizes() -> Vec<Case> {
    let past = &["blocks-past-agreed-size"];
    let freed = || block_bits("/fragmented", 39, 400, false);
    vec![
        k1("freed blocks past a size that sectors confirm", past)
            .edit(freed())
            .edit(ends_early("/fragmented"))
            .into(),
        k1("freed pointers past a size that sectors confirm", past)
            .on(Profile::Ext3)
            .edit(freed())
            .edit(ends_early("/fragmented"))
            .into(),
        k1("blocks past a size that sectors confirm", past).edit(ends_early("/fragmented")).into(),
        k1("pointers past a size that sectors confirm", past)
            .on(Profile::Ext3)
            .edit(ends_early("/fragmented"))
            .into(),
    ]
}

/// Nodes below the root with a wrong depth.
fn depths() -> Vec<Case> {
    const WRONG: &[&str] = &["extent-node-depth-wrong"];
    let says = |index, depth| {
        map_node("/fragmented", index).extent_header(move |header| header.depth = depth)
    };
    let alone = |recipe: Recipe| {
        Case::from(recipe).unlike_e2fsck("it follows the depth of the root, Linux refuses the node")
    };
    let checksum = k1("depth and checksum of a node", &["extent-block-checksum-bad", WRONG[0]]);
    let bytes = Edit::from(map_node("/fragmented", 0).put32(8, 9).stale());
    vec![
        alone(k1("depth of a leaf", WRONG).edit(says(1, 8))),
        alone(k1("depth of an index node", WRONG).edit(says(0, 0))),
        alone(k1("depth of nodes of two levels", WRONG).edit(says(2, 1)).edit(says(0, u16::MAX))),
        alone(k1("depth of a leaf without checksum", WRONG).on(Profile::NoCsum).edit(says(1, 1))),
        // As after a bit flip. e2fsck trusts the node.
        checksum.edit(says(1, 1).stale()).into(),
        // Findings about the parent node do not change.
        k1("depth below a checksum", &["extent-block-checksum-bad", WRONG[0]])
            .edit(says(1, 1))
            .edit(bytes)
            .into(),
        // The node may be the data of the other file, so it must stay.
        k1("depth of a node in a file", &["multiply-claimed-block", WRONG[0]])
            .on(Profile::NoCsum)
            .edit(extent_on_node("/blocks", "/fragmented"))
            .edit(says(1, 1))
            .into(),
        // The tree is rebuilt, which corrects the depth.
        k1("depth above an extent", &["extent-length-zero"])
            .edit(map_node("/fragmented", 1).extent(3, |extent| extent.len = 0))
            .edit(says(0, 4))
            .into(),
    ]
}

fn leaves() -> Vec<Recipe> {
    vec![
        leaf("outside", "/blocks", |e| e.start_lo = 0x0fff_fff0, &["extent-start-out-of-range"]),
        leaf("at block 0", "/blocks", |e| e.start_lo = 0, &["extent-start-out-of-range"]),
        leaf("high half", "/blocks", |e| e.start_hi = 1, &["extent-start-out-of-range"]),
        leaf("past the end", "/blocks", |e| e.start_lo = 8190, &["extent-end-out-of-range"]),
        leaf("no length", "/blocks", |e| e.len = 0, &["extent-length-zero"]),
        k1("magic of the root", &["inode-extent-header-corrupt"])
            .edit(inode("/blocks").extent_header(|header| header.magic = 0)),
        k1("more entries than room", &["inode-extent-header-corrupt"])
            .edit(inode("/blocks").extent_header(|header| header.entries = 5)),
        k1("too deep", &["extent-tree-too-deep"])
            .edit(inode("/fragmented").extent_header(|header| header.depth = 6)),
    ]
}

fn trees() -> Vec<Recipe> {
    let node = |index| map_node("/fragmented", index);
    vec![
        k1("order in a leaf", &["extents-out-of-order"])
            .edit(node(1).extent(3, |extent| extent.block = 0)),
        k1("order of nodes", &["extent-index-start-mismatch"])
            .edit(node(0).extent_index(2, |index| index.block = 0)),
        k1("no length in a leaf", &["extent-length-zero"])
            .edit(node(1).extent(3, |extent| extent.len = 0)),
        k1("a node outside", &["extent-start-out-of-range"])
            .edit(node(0).extent_index(1, |index| index.leaf_hi = 9)),
        // The rest of the node stays.
        k1("depth of a node, and an extent", &["extent-start-out-of-range"])
            .edit(node(1).extent_header(|header| header.depth = 8))
            .edit(node(1).extent(3, |extent| extent.start_hi = 9)),
        k1("magic of a node", &["extent-node-header-corrupt"])
            .edit(node(1).extent_header(|header| header.magic = 0)),
        k1("a node with more room than a block", &["extent-node-header-corrupt"])
            .edit(node(1).extent_header(|header| header.max = 200)),
        k1("an empty node", &["extent-tree-walk-failed"])
            .edit(node(1).extent_header(|header| header.entries = 0)),
        k1("checksum of a node", &["extent-block-checksum-bad"])
            .edit(node(1).extent_header(|header| header.generation = 9).stale()),
        k1("an index that starts early", &["extent-index-start-mismatch"])
            .edit(node(0).extent_index(1, |index| index.block -= 1)),
        k1("past the next node's start", &["extent-past-parent-range"])
            .edit(node(1).extent_header(|header| header.entries = 3))
            .edit(node(1).extent(2, |extent| extent.block = 5000)),
        k1("over the node before", &["extent-overlaps-previous"])
            .edit(node(2).extent(0, |extent| extent.block = 4)),
        k1("a node on a bitmap", &["map-node-overlaps-critical-metadata"])
            .edit(node_on_bitmap("/fragmented")),
    ]
}

fn directories() -> Vec<Recipe> {
    vec![
        leaf("a gap", "/dir", |e| e.block = 1, &["directory-extent-gap"]),
        leaf("unwritten", "/dir", |e| e.len += 0x8000, &["directory-extent-unwritten"]),
        leaf("far behind", "/dir", |e| e.block = 1 << 22, &["directory-too-big"]),
    ]
}

fn shapes() -> Vec<Recipe> {
    vec![
        k1("a tree for one extent", &["extent-tree-collapsible"])
            .edit(inode("/fragmented").extent_header(|header| header.entries = 1))
            .edit(map_node("/fragmented", 0).extent_header(|header| header.entries = 1))
            .edit(map_node("/fragmented", 1).extent_header(|header| header.entries = 1)),
        k1("leaves half empty", &["extent-tree-narrowable"])
            .edit(map_node("/fragmented", 1).extent_header(|header| header.entries = 20))
            .edit(map_node("/fragmented", 2).extent_header(|header| header.entries = 20)),
    ]
}

fn clusters() -> Vec<Recipe> {
    let on = |name: &str, ids: &[&'static str]| k1(name, ids).on(Profile::Bigalloc);
    vec![
        on("a shifted extent", &["cluster-misaligned-mapping"])
            .edit(inode("/blocks").extent(0, |extent| extent.start_lo += 1)),
        on("no extents", &["bigalloc-block-mapped-file"]).edit(block_mapped("/file")),
    ]
}
