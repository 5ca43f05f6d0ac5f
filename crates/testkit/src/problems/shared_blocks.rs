//! Multiply-claimed blocks: files that share blocks, groups with overlapping metadata.

use crate::recipe::{Edit, Recipe, inode};
use crate::{Profile, Volume};
use anyhow::{Context, Result};
use floe_format::ext::extent::RawExtent;
use floe_format::ext::group_desc::GroupDesc;
use floe_format::{BlockNr, GroupNr, LogicalBlock};

use super::Case;

fn k1(name: &str, ids: &[&'static str]) -> Recipe {
    Recipe::new(format!("sharing: {name}")).expect(ids)
}

fn first_block(volume: &Volume<'_>, path: &str) -> Result<BlockNr> {
    let map = volume.map(volume.lookup(path)?)?;
    map.data.get(&LogicalBlock(0)).copied().context("a first block")
}

fn bitmap(volume: &Volume<'_>) -> Result<BlockNr> {
    Ok(volume.desc(GroupNr(1))?.block_bitmap)
}

fn table(volume: &Volume<'_>) -> Result<BlockNr> {
    Ok(volume.desc(GroupNr(1))?.inode_table)
}

/// Makes the first extent or pointer of a file start at another block.
fn moved(path: &'static str, to: fn(&Volume<'_>) -> Result<BlockNr>) -> Edit {
    Edit::new(move |volume| {
        let number = volume.lookup(path)?;
        let mut raw = volume.inode_bytes(number)?;
        let extents = raw[0x22] & 0x08 != 0;
        let at = if extents { 0x28 + 12 + 8 } else { 0x28 };
        raw[at..at + 4].copy_from_slice(&(to(volume)?.0 as u32).to_le_bytes());
        volume.put_inode(number, &raw)?;
        volume.fix_inode(number)
    })
}

/// Changes a descriptor and all its backups, so that none has the right value.
fn descriptors(group: u32, change: fn(&mut GroupDesc, &GroupDesc)) -> Edit {
    Edit::new(move |volume| {
        let group = GroupNr(volume.view.group(group, volume.geometry.group_count));
        let mut desc = volume.desc(group)?;
        change(&mut desc, &volume.desc(GroupNr(0))?);
        volume.put_desc(group, &desc)?;
        volume.fix_desc(group)?;
        let bytes = volume.desc_bytes(group)?;
        let geometry = &volume.geometry;
        let primary = geometry.offset_bytes(geometry.primary_desc_block(0));
        let within = volume.desc_offset(group) - primary;
        for copy in (1..geometry.group_count).map(GroupNr) {
            if geometry.has_superblock(copy) {
                let table = geometry.offset_bytes(geometry.group_desc_run(copy).start);
                volume.image.write(table + within, &bytes)?;
            }
        }
        Ok(())
    })
}

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    let recipes = files().into_iter().chain(groups());
    recipes.map(|recipe| Case::from(recipe).same_codes()).collect()
}

/// An extent of 6,559 blocks.
fn long(extent: &mut RawExtent) {
    extent.len = 6559;
}

fn files() -> Vec<Recipe> {
    let pair = &["multiply-claimed-file", "multiply-claimed-sharer"];
    vec![
        k1("one shared block", pair)
            .edit(moved("/tiny", |volume| first_block(volume, "/medium")))
            .expect(&["multiply-claimed-block"]),
        k1("shared by pointers", pair)
            .on(Profile::Ext3)
            .edit(moved("/tiny", |volume| first_block(volume, "/medium")))
            .expect(&["multiply-claimed-block"]),
        k1("a shared range", pair)
            .edit(moved("/file", |volume| first_block(volume, "/blocks")))
            .expect(&["multiply-claimed-range"]),
        k1("a directory's block", pair)
            .edit(moved("/tiny", |volume| first_block(volume, "/dir/sub")))
            .expect(&["multiply-claimed-block"]),
        k1("a file on a bitmap", &["multiply-claimed-with-metadata", "multiply-claimed-block"])
            .edit(moved("/tiny", bitmap)),
        k1("a file on inodes", &["multiply-claimed-with-metadata", "multiply-claimed-range"])
            .edit(moved("/file", table)),
        // There is no space to clone everything that the file claims.
        k1("half the disk", pair).edit(inode("/dir/sub/deep/file").extent(0, long)),
        k1("shared clusters", pair)
            .on(Profile::Bigalloc)
            .edit(moved("/tiny", |volume| first_block(volume, "/medium"))),
    ]
}

fn groups() -> Vec<Recipe> {
    vec![
        k1("two block bitmaps", &["group-block-bitmap-overlap"])
            .edit(descriptors(1, |desc, first| desc.block_bitmap = first.block_bitmap)),
        k1("two inode bitmaps", &["group-inode-bitmap-overlap"])
            .edit(descriptors(1, |desc, first| desc.inode_bitmap = first.inode_bitmap)),
        k1("two inode tables", &["group-inode-table-overlap"])
            .edit(descriptors(1, |desc, first| desc.inode_table = first.inode_table)),
    ]
}
