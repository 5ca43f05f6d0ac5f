//! Lists all metadata structures of an undamaged image as targets for damage, with their owners.

use anyhow::{Context, Result};
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::features::{Compat, Incompat};
use floe_format::layout::{le16_at, le32_at};
use floe_format::{BlockNr, GroupNr, InodeNr};

use super::{NodeKind, Volume};

/// A metadata structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The primary superblock.
    Superblock,
    /// The backup superblock of a group.
    Backup(GroupNr),
    /// The primary descriptor of a group.
    Descriptor(GroupNr),
    /// The block bitmap of a group.
    BlockBitmap(GroupNr, BlockNr),
    /// The inode bitmap of a group.
    InodeBitmap(GroupNr, BlockNr),
    /// An inode in use.
    Inode(InodeNr),
    /// An extent node in a block.
    ExtentNode(InodeNr, BlockNr),
    /// An indirect block.
    Indirect(InodeNr, BlockNr),
    /// A directory block with entries.
    DirBlock(InodeNr, BlockNr),
    /// An index root or node of a directory.
    DirIndex(InodeNr, BlockNr),
    /// An attribute block, with one of its owners.
    XattrBlock(InodeNr, BlockNr),
    /// The journal superblock.
    JournalSuperblock(BlockNr),
    /// A block of the orphan file.
    OrphanBlock(InodeNr, BlockNr),
    /// The MMP block.
    Mmp(BlockNr),
    /// A block of a quota file.
    QuotaBlock(InodeNr, BlockNr),
    /// The target of a symlink, in a block.
    LinkTarget(InodeNr, BlockNr),
}

impl Volume<'_> {
    /// Byte offset and length of a metadata structure.
    ///
    /// # Errors
    /// The structure lies outside the image.
    pub fn range_of(&self, place: Place) -> Result<(u64, usize)> {
        let block_range = |block: BlockNr| (self.geometry.offset_bytes(block), self.block_bytes());
        Ok(match place {
            Place::Superblock => (1024, 1024),
            Place::Backup(group) => {
                let block = self.geometry.superblock_of(group).context("no copy there")?;
                (self.geometry.offset_bytes(block), 1024)
            }
            Place::Descriptor(group) => (self.desc_offset(group), self.geometry.desc_size as usize),
            Place::Inode(inode) => (self.inode_offset(inode)?, self.geometry.inode_size as usize),
            Place::BlockBitmap(_, block)
            | Place::InodeBitmap(_, block)
            | Place::ExtentNode(_, block)
            | Place::Indirect(_, block)
            | Place::DirBlock(_, block)
            | Place::DirIndex(_, block)
            | Place::XattrBlock(_, block)
            | Place::JournalSuperblock(block)
            | Place::OrphanBlock(_, block)
            | Place::Mmp(block)
            | Place::QuotaBlock(_, block)
            | Place::LinkTarget(_, block) => block_range(block),
        })
    }

    /// Updates the checksum of a metadata structure, if it has one.
    ///
    /// # Errors
    /// The structure lies outside the image (perhaps because of damage).
    pub fn fix(&self, place: Place) -> Result<()> {
        match place {
            Place::Superblock => self.fix_superblock(),
            Place::Backup(_) => self.fix_superblock_at(self.range_of(place)?.0),
            Place::Descriptor(group) => self.fix_desc(group),
            Place::BlockBitmap(group, _) | Place::InodeBitmap(group, _) => self.fix_bitmaps(group),
            Place::Inode(inode) => self.fix_inode(inode),
            Place::ExtentNode(owner, block) => self.fix_extent_node(owner, block),
            Place::DirBlock(owner, block) | Place::DirIndex(owner, block) => {
                self.fix_dir_block(owner, block)
            }
            Place::XattrBlock(_, block) => self.fix_xattr_block(block),
            Place::JournalSuperblock(block) => self.fix_journal_superblock(block),
            Place::OrphanBlock(owner, block) => self.fix_orphan_block(owner, block),
            Place::Mmp(block) => self.fix_mmp(block),
            Place::Indirect(..) | Place::QuotaBlock(..) | Place::LinkTarget(..) => Ok(()),
        }
    }
}

/// Lists all metadata structures of an undamaged image.
///
/// # Errors
/// The image is damaged.
pub fn survey(volume: &Volume<'_>) -> Result<Vec<Place>> {
    let geometry = &volume.geometry;
    let mut places = vec![Place::Superblock];
    for group in (0..geometry.group_count).map(GroupNr) {
        let desc = volume.desc(group)?;
        places.push(Place::Descriptor(group));
        places.push(Place::BlockBitmap(group, desc.block_bitmap));
        places.push(Place::InodeBitmap(group, desc.inode_bitmap));
        if group.0 != 0 && geometry.has_superblock(group) {
            places.push(Place::Backup(group));
        }
    }
    if geometry.features.incompat.contains(Incompat::MMP) {
        places.push(Place::Mmp(BlockNr(volume.superblock.mmp_block)));
    }
    for inode in volume.used_inodes()? {
        survey_inode(volume, inode, &mut places).with_context(|| format!("surveying {inode}"))?;
    }
    Ok(places)
}

fn survey_inode(volume: &Volume<'_>, inode: InodeNr, places: &mut Vec<Place>) -> Result<()> {
    let bytes = volume.inode_bytes(inode)?;
    let decoded = Inode::decode(&bytes).context("an inode has 128 bytes")?;
    if decoded.base.links_count == 0 && !volume.geometry.is_reserved(inode) {
        return Ok(());
    }
    places.push(Place::Inode(inode));
    let sb = &volume.superblock;
    let map = volume.map(inode)?;
    places.extend(map.nodes.iter().map(|node| match node.kind {
        NodeKind::Extent { .. } => Place::ExtentNode(inode, node.block),
        NodeKind::Indirect { .. } => Place::Indirect(inode, node.block),
    }));
    let journal = sb.features().compat.contains(Compat::HAS_JOURNAL) && inode.0 == sb.journal_inum;
    let orphan_file =
        sb.features().compat.contains(Compat::ORPHAN_FILE) && inode.0 == sb.orphan_file_inum;
    let quota = [sb.usr_quota_inum, sb.grp_quota_inum, sb.prj_quota_inum].contains(&inode.0);
    let data = map.data.values().copied();
    match decoded.file_type() {
        Some(FileType::Directory) => {
            let indexed = decoded.flags().contains(InodeFlags::INDEX);
            for block in data {
                let content = volume.block(block)?;
                let index = indexed && is_index(&content, geometry_csum(volume));
                places.push(if index {
                    Place::DirIndex(inode, block)
                } else {
                    Place::DirBlock(inode, block)
                });
            }
        }
        Some(FileType::Symlink) => places.extend(data.map(|block| Place::LinkTarget(inode, block))),
        _ if journal => places.extend(data.take(1).map(Place::JournalSuperblock)),
        _ if orphan_file => places.extend(data.map(|block| Place::OrphanBlock(inode, block))),
        _ if quota => places.extend(data.map(|block| Place::QuotaBlock(inode, block))),
        _ => {}
    }
    let acl = decoded.file_acl(volume.geometry.features.incompat.contains(Incompat::BIT64));
    if acl != 0 {
        places.push(Place::XattrBlock(inode, BlockNr(acl)));
    }
    Ok(())
}

fn geometry_csum(volume: &Volume<'_>) -> bool {
    volume.geometry.features.metadata_csum()
}

/// Whether a block of an indexed directory is its root or an interior node.
fn is_index(block: &[u8], checksums: bool) -> bool {
    // A node: one empty entry that spans the block, without a checksum tail.
    let node = le32_at(block, 0) == Some(0)
        && le16_at(block, 4).map(usize::from) == Some(block.len() & 0xffff)
        && le16_at(block, 6) == Some(0);
    // A root: `.` with 12 bytes, `..` up to the end of the block.
    let root = block.get(4..7) == Some(&[12, 0, 1])
        && block.get(8) == Some(&b'.')
        && le16_at(block, 12 + 4).map(usize::from) == Some(block.len() - 12);
    let tail = checksums && block.get(block.len() - 5) == Some(&0xde);
    root || (node && !tail)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::image::Contents;
    use crate::profile::Profile;
    use crate::{build, tool};

    /// e2fsprogs computed the checksums of the base images, so updating them must change nothing.
    /// This verifies every rule of `checksums.rs`.
    #[test]
    fn setting_right_checksums_right_changes_nothing() {
        if tool::missing() {
            return;
        }
        for &profile in Profile::ALL {
            let image = build::base(profile).expect("a clean image");
            let before = Contents::read(image.path()).expect("readable");
            let volume = Volume::open(&image).expect("a clean image");
            for place in survey(&volume).expect("a clean image") {
                let (at, len) = volume.range_of(place).expect("all places lie in the image");
                let mut bytes = [vec![0; len], vec![0; len]];
                image.read(at, &mut bytes[0]).expect("readable");
                volume.fix(place).expect("all places lie in the image");
                image.read(at, &mut bytes[1]).expect("readable");
                assert_eq!(bytes[0], bytes[1], "{profile}: {place:?}");
            }
            // Checksums of bitmaps are in descriptors.
            let after = Contents::read(image.path()).expect("readable");
            assert!(before.same_as(&after), "{profile}: {:x?}", before.differences(&after));
        }
    }

    #[test]
    fn base_images_hold_every_kind_of_metadata() {
        if tool::missing() {
            return;
        }
        let kinds_of = |profile: Profile| {
            let image = build::base(profile).expect("a clean image");
            let volume = Volume::open(&image).expect("a clean image");
            let mut kinds = BTreeMap::new();
            for place in survey(&volume).expect("a clean image") {
                let name = format!("{place:?}");
                let name = name.split('(').next().unwrap_or_default().to_owned();
                *kinds.entry(name).or_insert(0) += 1;
            }
            kinds
        };
        let deep = kinds_of(Profile::Ext4K1);
        for kind in [
            "Superblock",
            "Backup",
            "Descriptor",
            "BlockBitmap",
            "InodeBitmap",
            "Inode",
            "ExtentNode",
            "DirBlock",
            "DirIndex",
            "XattrBlock",
            "JournalSuperblock",
            "LinkTarget",
        ] {
            assert!(deep.contains_key(kind), "ext4-1k has no {kind}: {deep:?}");
        }
        assert!(deep["DirIndex"] >= 3, "an index of two levels: {deep:?}");
        assert!(deep["ExtentNode"] >= 6, "an extent tree of two levels: {deep:?}");
        assert!(kinds_of(Profile::Ext3)["Indirect"] >= 1 + 2 + 3);
        assert!(kinds_of(Profile::OrphanFile).contains_key("OrphanBlock"));
        assert!(kinds_of(Profile::Mmp).contains_key("Mmp"));
        assert!(kinds_of(Profile::Quota)["QuotaBlock"] >= 3);
    }
}
