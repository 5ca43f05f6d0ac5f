//! Structures built anew in real images, judged by e2fsck: files keep their contents, and nothing is
//! found wrong.

use anyhow::{Context, Result};
use floe_format::ext::extent::Extent;
use floe_format::ext::inode::{Inode, InodeFlags};
use floe_format::{BlockNr, BlockRun, InodeNr};
use floe_repair::build::block_map::{self, MappedRun};
use floe_repair::build::extent_tree::{self, NodeForm};
use floe_repair::build::mapping::Built;
use floe_testkit::volume::Volume;
use floe_testkit::{Profile, build, oracle, tool};

/// Builds the map of a file anew in the blocks of the old one.
fn rebuilt(volume: &Volume<'_>, inode: InodeNr) -> Result<Built> {
    let bytes = volume.inode_bytes(inode)?;
    let decoded = Inode::decode(&bytes).context("an inode")?;
    let map = volume.map(inode)?;
    let nodes: Vec<BlockNr> = map.nodes.iter().map(|node| node.block).collect();
    let block_size = volume.geometry.block_size;
    Ok(if decoded.flags().contains(InodeFlags::EXTENTS) {
        let seed = volume.geometry.features.metadata_csum().then(|| volume.superblock.seed());
        let form = NodeForm::of(block_size, seed, inode, decoded.base.generation);
        let one =
            |(&logical, &block)| Extent { logical, run: BlockRun::new(block, 1), unwritten: false };
        let extents: Vec<Extent> = map.data.iter().map(one).collect();
        assert!(extent_tree::nodes_needed(&extents, block_size)? <= nodes.len());
        extent_tree::build(&extents, form, &nodes)?
    } else {
        let one = |(&logical, &block)| MappedRun { logical, run: BlockRun::new(block, 1) };
        let runs: Vec<MappedRun> = map.data.iter().map(one).collect();
        assert_eq!(block_map::nodes_needed(&runs, block_size), Ok(nodes.len()));
        block_map::build(&runs, block_size, &nodes)?
    })
}

#[test]
fn files_with_rebuilt_maps_are_whole() {
    if let Err(reason) = tool::available() {
        eprintln!("skipped: {reason}");
        return;
    }
    let profiles = [
        Profile::Ext2K1,
        Profile::Ext3,
        Profile::Ext4,
        Profile::Ext4K1,
        Profile::NoCsum,
        Profile::NoExtents,
        Profile::Bigalloc,
    ];
    for profile in profiles {
        let image = build::base(profile).unwrap();
        let volume = Volume::open(&image).unwrap();
        let mut with_nodes = 0;
        for path in ["/fragmented", "/blocks", "/big"] {
            let inode = volume.lookup(path).unwrap();
            let before = volume.map(inode).unwrap();
            let built = rebuilt(&volume, inode).unwrap();
            // What is not written now must not be found by luck.
            for node in &before.nodes {
                volume.put_block(node.block, &vec![0xa5; volume.block_bytes()]).unwrap();
            }
            let mut bytes = volume.inode_bytes(inode).unwrap();
            bytes[0x28..0x28 + 60].copy_from_slice(&built.root);
            volume.put_inode(inode, &bytes).unwrap();
            volume.fix_inode(inode).unwrap();
            for (block, contents) in &built.blocks {
                volume.put_block(*block, contents).unwrap();
            }
            let after = volume.map(inode).unwrap();
            assert_eq!(after.data, before.data, "{profile} {path}");
            with_nodes += usize::from(!built.blocks.is_empty());
            // A shallower tree leaves blocks behind, which would be found.
            assert_eq!(after.nodes.len(), before.nodes.len(), "{profile} {path}");
        }
        assert!(with_nodes > 0, "{profile}: no map has a block of its own");
        let verdict = oracle::e2fsck(&image).unwrap();
        assert!(verdict.clean(), "{profile}: {}", verdict.text);
    }
}
