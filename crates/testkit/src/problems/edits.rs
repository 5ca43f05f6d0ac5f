//! Edits shared by the recipes of several modules.

use anyhow::{Context, Result};

use crate::recipe::{Edit, InodeEdit, inode, superblock};
use crate::volume::{Place, Volume};
use floe_format::ext::crypt;
use floe_format::ext::inode::InodeBase;
use floe_format::ext::superblock::{OFFSET_BYTES, Superblock};
use floe_format::ext::xattr::{Chars, INDEX_ENCRYPTION, MAGIC, entry_hash};
use floe_format::{BlockNr, GroupNr, InodeNr};

/// `has_journal` in `s_feature_compat`.
pub(crate) const HAS_JOURNAL: u32 = 0x4;
/// `needs_recovery` in `s_feature_incompat`.
pub(crate) const RECOVER: u32 = 0x4;
/// `orphan_present` in `s_feature_ro_compat`.
pub(crate) const ORPHAN_PRESENT: u32 = 0x1_0000;

/// Sets the needs_recovery flag.
pub(crate) fn needs_recovery() -> Edit {
    superblock(|sb| sb.feature_incompat |= RECOVER)
}

/// Sets the orphan_present flag.
pub(crate) fn orphan_present() -> Edit {
    superblock(|sb| sb.feature_ro_compat |= ORPHAN_PRESENT)
}

/// Makes the inode of `path` the head of the orphan list.
pub(crate) fn orphan_head(path: &'static str) -> Edit {
    Edit::new(move |volume| {
        let inode = volume.lookup(path)?;
        change_superblock(volume, |superblock| superblock.last_orphan = inode.0)
    })
}

/// Changes the primary superblock, and updates its checksum.
pub(crate) fn change_superblock(
    volume: &Volume<'_>,
    change: impl FnOnce(&mut Superblock),
) -> Result<()> {
    let mut bytes = [0; 1024];
    volume.image.read(OFFSET_BYTES, &mut bytes)?;
    let mut superblock = Superblock::decode(&bytes);
    change(&mut superblock);
    superblock.encode_into(&mut bytes);
    volume.image.write(OFFSET_BYTES, &bytes)?;
    volume.fix_superblock()
}

/// One of the two bitmaps of a group.
#[derive(Clone, Copy)]
pub(crate) enum Bitmap {
    Blocks,
    Inodes,
}

/// Changes a bitmap of a group.
pub(crate) fn bitmap(
    which: Bitmap,
    group: u32,
    change: impl Fn(&mut [u8]) + Send + Sync + 'static,
) -> Edit {
    Edit::new(move |volume| {
        let group = volume.view.group(group, volume.geometry.group_count);
        let desc = volume.desc(GroupNr(group))?;
        let block = match which {
            Bitmap::Blocks => desc.block_bitmap,
            Bitmap::Inodes => desc.inode_bitmap,
        };
        let mut bytes = volume.block(block)?;
        change(&mut bytes);
        volume.put_block(block, &bytes)?;
        volume.fix_bitmaps(GroupNr(group))
    })
}

/// Sets or clears bits of a bitmap.
pub(crate) fn bits(which: Bitmap, group: u32, bits: std::ops::Range<usize>, used: bool) -> Edit {
    bitmap(which, group, move |bytes| {
        for bit in bits.clone() {
            let mask = 1 << (bit % 8);
            if used { bytes[bit / 8] |= mask } else { bytes[bit / 8] &= !mask }
        }
    })
}

/// Changes the first interior node of the index of `/big`.
pub(crate) fn index_node(stale: bool, change: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Edit {
    Edit::new(move |volume| {
        let inode = volume.lookup("/big")?;
        let map = volume.map(inode)?;
        // An index node: one unused entry that spans the block.
        let is_node = |bytes: &[u8]| {
            bytes[..4] == [0; 4] && bytes[4..6] == (bytes.len() as u16).to_le_bytes()
        };
        let mut blocks = map.data.values().map(|&block| (block, volume.block(block)));
        let node = blocks.find(|(_, bytes)| bytes.as_ref().is_ok_and(|bytes| is_node(bytes)));
        let (block, bytes) = node.context("/big has no index of two levels")?;
        let mut bytes = bytes?;
        change(&mut bytes);
        volume.put_block(block, &bytes)?;
        if stale { Ok(()) } else { volume.fix_dir_block(inode, block) }
    })
}

/// The first block of a group's inode table.
pub(crate) fn inode_table(volume: &Volume<'_>, group: u32) -> Vec<BlockNr> {
    vec![volume.desc(GroupNr(group)).expect("a group").inode_table]
}

/// Data blocks of a file.
pub(crate) fn data_of(volume: &Volume<'_>, path: &str) -> Vec<BlockNr> {
    let inode = volume.lookup(path).expect("a path of the base image");
    volume.map(inode).expect("a sound map").data.into_values().collect()
}

/// Map blocks of a file.
pub(crate) fn nodes_of(volume: &Volume<'_>, path: &str) -> Vec<BlockNr> {
    let inode = volume.lookup(path).expect("a path of the base image");
    volume.map(inode).expect("a sound map").nodes.iter().map(|node| node.block).collect()
}

/// Makes the entry at `path` name the first value inode.
pub(crate) fn entry_to_ea_inode(path: &'static str) -> Edit {
    Edit::new(move |volume| {
        let value = ea_inode(volume)?;
        let (folder, name) = path.rsplit_once('/').expect("an absolute path");
        let directory = volume.lookup(if folder.is_empty() { "/" } else { folder })?;
        let entry = volume.entry(directory, name)?;
        volume.image.write(entry.offset_bytes, &value.0.to_le_bytes())?;
        match entry.block {
            Some(block) => volume.fix(Place::DirBlock(directory, block)),
            None => volume.fix_inode(directory),
        }
    })
}

/// Changes the first value inode.
pub(crate) fn change_ea_inode(change: impl Fn(&mut InodeBase) + Send + Sync + 'static) -> Edit {
    Edit::new(move |volume| {
        let inode = ea_inode(volume)?;
        let mut bytes = volume.inode_bytes(inode)?;
        if let Some(raw) = bytes.first_chunk_mut() {
            let mut base = InodeBase::decode(raw);
            change(&mut base);
            base.encode_into(raw);
        }
        volume.put_inode(inode, &bytes)?;
        volume.fix_inode(inode)
    })
}

/// The first value inode.
pub(crate) fn ea_inode(volume: &Volume<'_>) -> Result<InodeNr> {
    let used = volume.used_inodes()?;
    let holds_value =
        |inode: &InodeNr| volume.inode_bytes(*inode).is_ok_and(|bytes| bytes[0x22] & 0x20 != 0);
    used.into_iter().find(holds_value).context("no inode holds a value")
}

/// Gives a 256-byte inode an encryption context, and sets the flag.
pub(crate) fn context(path: &'static str, value: [u8; 28]) -> InodeEdit {
    inode(path).raw(move |raw| write_context(raw, value)).set_flags(0x800)
}

/// Writes an encryption context into a 256-byte inode, as its only attribute.
pub fn write_context(raw: &mut [u8], value: [u8; 28]) {
    const FIRST: usize = 164;
    raw[128..130].copy_from_slice(&32u16.to_le_bytes());
    raw[160..].fill(0);
    raw[160..164].copy_from_slice(&MAGIC.to_le_bytes());
    let name = crypt::ATTRIBUTE_NAME;
    let at = raw.len() - value.len();
    raw[at..].copy_from_slice(&value);
    raw[FIRST] = name.len() as u8;
    raw[FIRST + 1] = INDEX_ENCRYPTION;
    raw[FIRST + 2..FIRST + 4].copy_from_slice(&((at - FIRST) as u16).to_le_bytes());
    raw[FIRST + 8..FIRST + 12].copy_from_slice(&(value.len() as u32).to_le_bytes());
    let hash = entry_hash(name, &value, Chars::Unsigned);
    raw[FIRST + 12..FIRST + 16].copy_from_slice(&hash.to_le_bytes());
    raw[FIRST + 16..FIRST + 16 + name.len()].copy_from_slice(name);
}
