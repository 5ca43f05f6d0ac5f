//! Structures that must not be trusted as evidence: a map that leads onto metadata or to nothing,
//! flags of a device, the size of an inode without content, an attribute block whose users are
//! deleted.

use anyhow::Context as _;

use crate::Profile;
use crate::recipe::{Edit, Recipe, entry, inode};
use floe_format::{BlockNr, GroupNr};

use super::Case;

const EXTENTS: u32 = 0x0008_0000;
const INLINE_DATA: u32 = 0x1000_0000;

fn on(profile: Profile, name: &str, ids: &[&'static str]) -> Recipe {
    Recipe::new(format!("proofs: {name}")).on(profile).expect(ids)
}

/// Metadata of group 0.
#[derive(Clone, Copy)]
enum Metadata {
    Superblock,
    Descriptors,
    BlockBitmap,
    InodeTable,
}

/// Makes a word of a file's block map lead to metadata.
fn onto(path: &'static str, word: usize, metadata: Metadata) -> Edit {
    Edit::new(move |volume| {
        let desc = volume.desc(GroupNr(0))?;
        let first = volume.geometry.first_data_block;
        let block = match metadata {
            Metadata::Superblock => first,
            Metadata::Descriptors => BlockNr(first.0 + 1),
            Metadata::BlockBitmap => desc.block_bitmap,
            Metadata::InodeTable => desc.inode_table,
        };
        let number = volume.lookup(path)?;
        let mut raw = volume.inode_bytes(number)?;
        let at = 0x28 + 4 * word;
        raw[at..at + 4].copy_from_slice(&(block.0 as u32).to_le_bytes());
        volume.put_inode(number, &raw)?;
        volume.fix_inode(number)
    })
}

/// Gives the map of a directory one empty node, in what was its first block: no two directories share one.
fn empty_map(path: &'static str, word: usize) -> Edit {
    Edit::new(move |volume| {
        let number = volume.lookup(path)?;
        let node = *volume.map(number)?.data.values().next().context("a directory's block")?;
        volume.put_block(node, &vec![0; volume.block_bytes()])?;
        let mut raw = volume.inode_bytes(number)?;
        raw[0x28..0x64].fill(0);
        raw[0x28 + 4 * word..0x2c + 4 * word].copy_from_slice(&(node.0 as u32).to_le_bytes());
        raw[0x04..0x08].fill(0);
        volume.put_inode(number, &raw)?;
        volume.fix_inode(number)
    })
}

/// The recipes of this module.
pub(super) fn cases() -> Vec<Case> {
    let recipes = [sizes(), maps(), flags(), attributes()].into_iter().flatten();
    recipes.map(Case::from).collect()
}

fn sizes() -> Vec<Recipe> {
    let wrong = &["inode-size-wrong"];
    let mut recipes = Vec::new();
    for profile in [Profile::Ext4K1, Profile::Ext3, Profile::Ext4K2, Profile::Ext2K4] {
        let name = |what: &str| format!("{what} of the resize inode, {profile}");
        recipes.push(on(profile, &name("size"), wrong).edit(inode("<7>").size(1 << 50)));
        recipes.push(on(profile, &name("no size"), wrong).edit(inode("<7>").size(0)));
    }
    recipes
}

fn maps() -> Vec<Recipe> {
    use Metadata::{BlockBitmap, Descriptors, InodeTable, Superblock};
    let meets = &["map-node-overlaps-critical-metadata"];
    let mut recipes = Vec::new();
    for (what, metadata) in [
        ("the superblock", Superblock),
        ("descriptors", Descriptors),
        ("a bitmap", BlockBitmap),
        ("an inode table", InodeTable),
    ] {
        for path in ["/many", "/dir/sub", "/blocks"] {
            let name = format!("an indirect block of {path} on {what}");
            recipes.push(on(Profile::NoExtents, &name, meets).edit(onto(path, 12, metadata)));
        }
        let name = format!("a double indirect block of /blocks on {what}");
        recipes.push(on(Profile::Ext3, &name, meets).edit(onto("/blocks", 13, metadata)));
        let name = format!("a block of /blocks on {what}");
        let shared = &["multiply-claimed-file"];
        recipes.push(on(Profile::Ext3, &name, shared).edit(onto("/blocks", 3, metadata)));
    }
    for (profile, word) in [(Profile::NoExtents, 14), (Profile::Ext3, 13), (Profile::Ext2K1, 12)] {
        let name = format!("a directory whose map is empty from word {word} on");
        recipes.push(on(profile, &name, &["directory-hole"]).edit(empty_map("/dir/sub", word)));
    }
    recipes
}

fn flags() -> Vec<Recipe> {
    let mut recipes = Vec::new();
    for path in ["/char", "/block", "/fifo", "/socket"] {
        for (flags, what) in
            [(EXTENTS | INLINE_DATA, "both"), (EXTENTS, "extents"), (INLINE_DATA, "inline data")]
        {
            let name = format!("{what} of {path}");
            let edit = || inode(path).set_flags(flags);
            recipes.push(on(Profile::InlineData, &name, &[]).edit(edit()));
            recipes.push(on(Profile::Ext4K2, &format!("{name}, no inline data"), &[]).edit(edit()));
        }
        // The entry that proves its type is read once the directory is salvaged.
        let name = format!("extents of {path}, named behind a broken entry");
        let salvaged = &["dirent-structure-corrupt"];
        recipes.push(
            on(Profile::InlineData, &name, salvaged)
                .edit(inode(path).set_flags(EXTENTS))
                .edit(entry("/lost+found").rec_len(99)),
        );
    }
    recipes
}

fn attributes() -> Vec<Recipe> {
    let illegal = |path: &'static str| inode(path).mode(0o130_644);
    vec![
        on(Profile::Ext4K1, "one of two users of an attribute block goes", &["inode-mode-illegal"])
            .edit(illegal("/ea-shared-a")),
        on(
            Profile::Ext3,
            "the other of two users of an attribute block goes",
            &["inode-mode-illegal"],
        )
        .edit(illegal("/ea-shared-b")),
        on(Profile::Quota, "both users of an attribute block go", &["inode-mode-illegal"])
            .edit(illegal("/ea-shared-a"))
            .edit(illegal("/ea-shared-b")),
        on(Profile::Ext4K2, "a user of an attribute block amid garbage", &["inode-block-garbage"])
            .edit(Edit::new(|volume| {
                let per_block = volume.geometry.block_size / volume.geometry.inode_size;
                let first = (volume.lookup("/ea-shared-a")?.0 - 1) / per_block * per_block + 1;
                for number in (first..first + per_block).map(floe_format::InodeNr) {
                    let mut raw = volume.inode_bytes(number)?;
                    raw[0x08..0x14].fill(0x55);
                    raw[0x00] ^= 0xff;
                    raw[0x01] = 0;
                    volume.put_inode(number, &raw)?;
                }
                Ok(())
            })),
    ]
}
