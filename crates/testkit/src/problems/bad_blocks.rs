//! The bad block list, inode 1.

use crate::recipe::{Edit, Recipe, inode};
use crate::{Profile, Volume};
use anyhow::{Context, Result};
use floe_format::ext::inode::InodeFlags;
use floe_format::{GroupNr, InodeNr};

use super::Case;

fn k1(name: &str, ids: &[&'static str]) -> Recipe {
    Recipe::new(format!("bad blocks: {name}")).expect(ids)
}

/// Lists blocks as bad: words of `i_block` starting at `first`.
fn listed(first: usize, blocks: fn(&Volume<'_>) -> Result<Vec<u64>>) -> Edit {
    Edit::new(move |volume| {
        let number = InodeNr::BAD_BLOCKS;
        let mut raw = volume.inode_bytes(number)?;
        let blocks = blocks(volume)?;
        for (word, block) in (first..).zip(&blocks) {
            let at = 0x28 + 4 * word;
            raw[at..at + 4].copy_from_slice(&(*block as u32).to_le_bytes());
        }
        let sectors = blocks.len() as u32 * (volume.geometry.block_size / 512);
        raw[0x1c..0x20].copy_from_slice(&sectors.to_le_bytes());
        volume.put_inode(number, &raw)?;
        volume.fix_inode(number)
    })
}

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    recipes().into_iter().map(|recipe| Case::from(recipe).same_codes()).collect()
}

fn recipes() -> Vec<Recipe> {
    vec![
        k1("linked", &["badblocks-inode-invalid"]).edit(inode("<1>").links(1)),
        k1("with a mode", &["badblocks-inode-invalid"]).edit(inode("<1>").mode(0o100_644)),
        k1("with the casefold flag", &["casefold-flag-on-non-directory"])
            .edit(inode("<1>").set_flags(InodeFlags::CASEFOLD.bits())),
        k1("the list with the extents flag", &["extents-flag-unsupported"])
            .on(Profile::Ext3)
            .edit(inode("<1>").set_flags(InodeFlags::EXTENTS.bits())),
        k1("a listed block outside", &["badblocks-inode-block-out-of-range"])
            .edit(listed(0, |_| Ok(vec![0x0fff_fff0]))),
        k1("the superblock is bad", &["primary-superblock-on-bad-block"])
            .edit(listed(0, |_| Ok(vec![1]))),
        k1("the descriptors are bad", &["primary-descriptors-on-bad-block"])
            .edit(listed(0, |_| Ok(vec![2]))),
        k1("a backup superblock is bad", &["backup-superblock-on-bad-block"]).edit(listed(
            0,
            |volume| {
                let block = volume.geometry.superblock_of(GroupNr(1)).context("a backup")?;
                Ok(vec![block.0])
            },
        )),
        k1("backup descriptors are bad", &["backup-descriptors-on-bad-block"])
            .edit(listed(0, |volume| Ok(vec![volume.geometry.group_desc_run(GroupNr(1)).start.0]))),
        k1("a block bitmap is bad", &["group-block-bitmap-on-bad-block"])
            .edit(listed(0, |volume| Ok(vec![volume.desc(GroupNr(1))?.block_bitmap.0]))),
        k1("an inode bitmap is bad", &["group-inode-bitmap-on-bad-block"])
            .edit(listed(0, |volume| Ok(vec![volume.desc(GroupNr(1))?.inode_bitmap.0]))),
        k1("the list is bad", &["badblocks-list-contains-itself"])
            .edit(listed(0, |volume| Ok(vec![volume.desc(GroupNr(0))?.inode_table.0]))),
        k1("a list on a bitmap", &["badblocks-inode-indirect-on-metadata"])
            .edit(listed(12, |volume| Ok(vec![volume.desc(GroupNr(0))?.block_bitmap.0]))),
        k1("a list that lists itself", &["badblocks-inode-indirect-block-bad"]).edit(listed(
            12,
            |volume| {
                let last = volume.geometry.blocks_count - 1;
                let mut pointers = vec![0; volume.block_bytes()];
                pointers[..4].copy_from_slice(&(last as u32).to_le_bytes());
                volume.put_block(floe_format::BlockNr(last), &pointers)?;
                Ok(vec![last])
            },
        )),
        k1("reserved descriptors are bad", &["bad-block-owner-unknown"])
            .edit(listed(0, |volume| {
                Ok(vec![volume.geometry.reserved_gdt_run(GroupNr(0)).start.0])
            })),
        k1("an honest list", &["block-bitmap-missing-block"]).on(Profile::Ext2K1).edit(listed(
            0,
            |volume| {
                // Free according to the bitmaps, which are now wrong.
                Ok(vec![volume.geometry.blocks_count - 2])
            },
        )),
    ]
}
