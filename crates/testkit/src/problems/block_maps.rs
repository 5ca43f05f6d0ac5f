//! Direct and indirect pointers.

use crate::Profile;
use crate::recipe::{Edit, Recipe, inode, map_node};
use anyhow::Context;

use super::Case;

fn on(profile: Profile, name: &str, ids: &[&'static str]) -> Recipe {
    Recipe::new(format!("block maps: {name}")).on(profile).expect(ids)
}

fn ext3(name: &str, ids: &[&'static str]) -> Recipe {
    on(Profile::Ext3, name, ids)
}

/// Makes the first indirect pointer of a file lead to the first bitmap.
fn indirect_on_bitmap() -> Edit {
    Edit::new(|volume| {
        let number = volume.lookup("/fragmented")?;
        let bitmap = volume.desc(floe_format::GroupNr(0))?.block_bitmap;
        let mut raw = volume.inode_bytes(number)?;
        raw[0x58..0x5c].copy_from_slice(&(bitmap.0 as u32).to_le_bytes());
        volume.put_inode(number, &raw)
    })
}

/// Makes the last block of the file system the first indirect block of a file.
fn indirect_last() -> Edit {
    Edit::new(|volume| {
        let number = volume.lookup("/fragmented")?;
        let map = volume.map(number)?;
        let node = map.nodes.first().context("an indirect block")?.block;
        let last = floe_format::BlockNr(volume.geometry.blocks_count - 1);
        volume.put_block(last, &volume.block(node)?)?;
        let mut raw = volume.inode_bytes(number)?;
        raw[0x58..0x5c].copy_from_slice(&(last.0 as u32).to_le_bytes());
        volume.put_inode(number, &raw)
    })
}

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> =
        recipes().into_iter().map(|recipe| Case::from(recipe).same_codes()).collect();
    cases.extend(cut_off().into_iter().map(Case::from));
    cases
}

fn recipes() -> Vec<Recipe> {
    vec![
        ext3("outside", &["block-map-block-out-of-range"])
            .edit(inode("/blocks").block_word(2, 0x0fff_fff0)),
        ext3("block 0", &["block-map-block-out-of-range"])
            .edit(map_node("/fragmented", 0).put32(0, 0x0fff_fff0)),
        on(Profile::NoExtents, "outside, with checksums", &["block-map-block-out-of-range"])
            .edit(inode("/blocks").block_word(2, 0x0fff_fff0)),
        ext3("many outside", &["block-map-too-many-bad-blocks"])
            .edit(map_node("/fragmented", 0).put(0, [0xf0; 80])),
        ext3("an indirect block outside", &["block-map-block-out-of-range"])
            .edit(inode("/fragmented").block_word(12, 0x0fff_fff0)),
        ext3("an indirect block on a bitmap", &["map-node-overlaps-critical-metadata"])
            .edit(indirect_on_bitmap()),
        ext3("a long link", &["symlink-too-big"]).edit(inode("/long-link").raw(|raw| {
            raw.copy_within(0x28..0x2c, 0x2c);
        })),
        ext3("a directory far behind", &["directory-too-big"]).edit(Edit::new(|volume| {
            // Beyond all three levels of indirect blocks: past 2 GiB.
            let number = volume.lookup("/dir")?;
            let mut raw = volume.inode_bytes(number)?;
            let far = volume.map(volume.lookup("/far")?)?;
            let top = far.nodes.iter().rev().nth(2).context("a triple indirect block")?.block;
            let mid = far.nodes.iter().rev().nth(1).context("a double indirect block")?.block;
            raw[0x60..0x64].copy_from_slice(&(top.0 as u32).to_le_bytes());
            let mut pointers = volume.block(top)?;
            pointers.fill(0);
            pointers[255 * 4..256 * 4].copy_from_slice(&(mid.0 as u32).to_le_bytes());
            volume.put_block(top, &pointers)?;
            volume.put_inode(number, &raw)
        })),
    ]
}

/// Blocks past the end of the image are unreadable; e2fsck reads them as zeroes.
fn cut_off() -> Vec<Recipe> {
    let ids = ["inode-block-walk-failed", "unreadable-block"];
    vec![
        ext3("an indirect block cut off", &ids).edit(indirect_last()).cut((8 << 20) - 1024),
        on(Profile::Ext4K1, "an attribute block cut off", &["xattr-block-unreadable"])
            .edit(inode("/ea-block").base(|base| base.file_acl_lo = 8191))
            .cut((8 << 20) - 1024),
    ]
}
