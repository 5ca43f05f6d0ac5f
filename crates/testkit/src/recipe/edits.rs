//! The edits that recipes are made of.

use anyhow::{Context, Result, ensure};
use floe_format::ext::extent::{ExtentHeader, RawExtent, RawIndex};
use floe_format::ext::group_desc::GroupDesc;
use floe_format::ext::inode::{InodeBase, InodeExtra};
use floe_format::ext::superblock::Superblock;
use floe_format::features::{Compat, Incompat};
use floe_format::{BlockNr, GroupNr, InodeNr, LogicalBlock};

use super::Edit;
use crate::build;
use crate::volume::{Place, Volume};

type ChangeBytes = Box<dyn Fn(&Volume<'_>, &mut [u8]) -> Result<()> + Send + Sync>;

/// Changes the primary superblock.
pub fn superblock(change: impl Fn(&mut Superblock) + Send + Sync + 'static) -> Edit {
    superblock_at(Place::Superblock, change)
}

/// Changes the backup superblock of a group.
pub fn backup(group: u32, change: impl Fn(&mut Superblock) + Send + Sync + 'static) -> Edit {
    superblock_at(Place::Backup(GroupNr(group)), change)
}

fn superblock_at(place: Place, change: impl Fn(&mut Superblock) + Send + Sync + 'static) -> Edit {
    Edit::new(move |volume| {
        let (at, _) = volume.range_of(place)?;
        let mut bytes = [0; 1024];
        volume.image.read(at, &mut bytes)?;
        let mut decoded = Superblock::decode(&bytes);
        change(&mut decoded);
        decoded.encode_into(&mut bytes);
        volume.image.write(at, &bytes)?;
        volume.fix_superblock_at(at)
    })
}

/// Changes the primary descriptor of a group.
pub fn descriptor(group: u32, change: impl Fn(&mut GroupDesc) + Send + Sync + 'static) -> Edit {
    Edit::new(move |volume| {
        let group = GroupNr(volume.view.group(group, volume.geometry.group_count));
        let mut desc = volume.desc(group)?;
        let checksum = desc.checksum;
        change(&mut desc);
        volume.put_desc(group, &desc)?;
        // An edit that sets the checksum itself wants a wrong one.
        if desc.checksum == checksum { volume.fix_desc(group) } else { Ok(()) }
    })
}

/// Marks data blocks of `path` as used, or as free with `used` false, in the block bitmap: at most
/// `count`, starting at logical block `first`.
pub fn block_bits(path: &'static str, first: u64, count: usize, used: bool) -> Edit {
    Edit::new(move |volume| {
        let map = volume.map(volume.lookup(path)?)?;
        let blocks: Vec<BlockNr> =
            map.data.range(LogicalBlock(first)..).take(count).map(|(_, block)| *block).collect();
        ensure!(!blocks.is_empty(), "{path} has no block {first}");
        blocks.into_iter().try_for_each(|block| set_block_bit(volume, block, used))
    })
}

/// Sets or clears the bit of one block in its group's bitmap.
fn set_block_bit(volume: &Volume<'_>, block: BlockNr, used: bool) -> Result<()> {
    let geometry = &volume.geometry;
    let group = geometry.group_of(block).context("a block outside the file system")?;
    let bit = (block.0 - geometry.group_start(group).0) >> geometry.cluster_bits;
    let bitmap = volume.desc(group)?.block_bitmap;
    set_bit(volume, bitmap, bit, used)?;
    volume.fix_bitmaps(group)
}

/// Marks an inode as used or free in the inode bitmap.
pub fn inode_bits(path: &'static str, used: bool) -> Edit {
    Edit::new(move |volume| {
        let inode = volume.lookup(path)?;
        let (group, index) = volume.geometry.place_of(inode).context("an inode")?;
        set_bit(volume, volume.desc(group)?.inode_bitmap, u64::from(index), used)?;
        volume.fix_bitmaps(group)
    })
}

fn set_bit(volume: &Volume<'_>, bitmap: BlockNr, bit: u64, used: bool) -> Result<()> {
    let mut bytes = volume.block(bitmap)?;
    let byte = bytes.get_mut(usize::try_from(bit / 8)?).context("a bit outside the bitmap")?;
    let mask = 1 << (bit % 8);
    *byte = if used { *byte | mask } else { *byte & !mask };
    volume.put_block(bitmap, &bytes)
}

/// Writes bytes at an offset of the image; updates no checksum.
pub fn bytes(offset_bytes: u64, bytes: Vec<u8>) -> Edit {
    Edit::new(move |volume| volume.image.write(offset_bytes, &bytes))
}

/// Runs debugfs commands, one per line.
pub fn debugfs(script: impl Into<String>) -> Edit {
    let script = script.into();
    Edit::new(move |volume| build::debugfs(volume.image, &script).map(|_| ()))
}

/// Changes an inode of any size as one of the usual 256 bytes.
fn change_inode(bytes: &mut [u8], change: &dyn Fn(&mut [u8])) -> Result<()> {
    let mut whole = bytes.to_vec();
    whole.resize(bytes.len().max(256), 0);
    change(&mut whole);
    let (own, beyond) = whole.split_at(bytes.len());
    ensure!(beyond.iter().all(|byte| *byte == 0), "the inode has only {} bytes", bytes.len());
    bytes.copy_from_slice(own);
    Ok(())
}

/// Changes an inode.
pub fn inode(path: impl Into<String>) -> InodeEdit {
    InodeEdit { path: path.into(), changes: Vec::new(), stale: false }
}

/// Changes of an inode; see the methods.
pub struct InodeEdit {
    path: String,
    changes: Vec<ChangeBytes>,
    stale: bool,
}

impl InodeEdit {
    /// Keeps the old checksum, which is then wrong.
    #[must_use]
    pub fn stale(mut self) -> Self {
        self.stale = true;
        self
    }

    /// Changes the first 128 bytes.
    #[must_use]
    pub fn base(self, change: impl Fn(&mut InodeBase) + Send + Sync + 'static) -> Self {
        self.raw(move |bytes| {
            if let Some(bytes) = bytes.first_chunk_mut() {
                let mut base = InodeBase::decode(bytes);
                change(&mut base);
                base.encode_into(bytes);
            }
        })
    }

    /// Changes the extra fields.
    #[must_use]
    pub fn extra(self, change: impl Fn(&mut InodeExtra) + Send + Sync + 'static) -> Self {
        self.raw(move |bytes| {
            if let Some(bytes) = bytes.get_mut(128..).and_then(|rest| rest.first_chunk_mut()) {
                let mut extra = InodeExtra::decode(bytes);
                change(&mut extra);
                extra.encode_into(bytes);
            }
        })
    }

    /// Changes all bytes of the inode, however many it has.
    #[must_use]
    pub fn whole(mut self, change: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Self {
        self.changes.push(Box::new(move |_, bytes| {
            change(bytes);
            Ok(())
        }));
        self
    }

    /// Changes the raw bytes of the inode. An edit of bytes that a smaller inode does not have fails.
    #[must_use]
    pub fn raw(mut self, change: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Self {
        self.changes.push(Box::new(move |_, bytes| change_inode(bytes, &change)));
        self
    }

    /// Sets the link count.
    #[must_use]
    pub fn links(self, count: u16) -> Self {
        self.base(move |base| base.links_count = count)
    }

    /// Sets file type and permissions.
    #[must_use]
    pub fn mode(self, mode: u16) -> Self {
        self.base(move |base| base.mode = mode)
    }

    /// Sets both halves of `i_size`.
    #[must_use]
    pub fn size(self, bytes: u64) -> Self {
        self.base(move |base| {
            base.size_lo = (bytes & 0xffff_ffff) as u32;
            base.size_high = (bytes >> 32) as u32;
        })
    }

    /// Sets bits of `i_flags`.
    #[must_use]
    pub fn set_flags(self, bits: u32) -> Self {
        self.base(move |base| base.flags |= bits)
    }

    /// Clears bits of `i_flags`.
    #[must_use]
    pub fn clear_flags(self, bits: u32) -> Self {
        self.base(move |base| base.flags &= !bits)
    }

    /// Sets word `index` (0 to 14) of `i_block`.
    #[must_use]
    pub fn block_word(self, index: usize, value: u32) -> Self {
        self.raw(move |bytes| {
            let at = 0x28 + 4 * index;
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        })
    }

    /// Changes the header of the extent root.
    #[must_use]
    pub fn extent_header(self, change: impl Fn(&mut ExtentHeader) + Send + Sync + 'static) -> Self {
        self.raw(move |bytes| edit_header(&mut bytes[0x28..], &change))
    }

    /// Changes extent `at` of the extent root, which must be a leaf.
    #[must_use]
    pub fn extent(
        self,
        at: usize,
        change: impl Fn(&mut RawExtent) + Send + Sync + 'static,
    ) -> Self {
        self.raw(move |bytes| edit_extent(&mut bytes[0x28..], at, &change))
    }

    /// Changes index entry `at` of the extent root, which must not be a leaf.
    #[must_use]
    pub fn extent_index(
        self,
        at: usize,
        change: impl Fn(&mut RawIndex) + Send + Sync + 'static,
    ) -> Self {
        self.raw(move |bytes| edit_index(&mut bytes[0x28..], at, &change))
    }
}

fn edit_header(node: &mut [u8], change: &impl Fn(&mut ExtentHeader)) {
    if let Some(bytes) = node.first_chunk_mut() {
        let mut header = ExtentHeader::decode(bytes);
        change(&mut header);
        header.encode_into(bytes);
    }
}

fn edit_extent(node: &mut [u8], at: usize, change: &impl Fn(&mut RawExtent)) {
    if let Some(bytes) = node.get_mut(12 * (at + 1)..).and_then(|rest| rest.first_chunk_mut()) {
        let mut extent = RawExtent::decode(bytes);
        change(&mut extent);
        extent.encode_into(bytes);
    }
}

fn edit_index(node: &mut [u8], at: usize, change: &impl Fn(&mut RawIndex)) {
    if let Some(bytes) = node.get_mut(12 * (at + 1)..).and_then(|rest| rest.first_chunk_mut()) {
        let mut index = RawIndex::decode(bytes);
        change(&mut index);
        index.encode_into(bytes);
    }
}

impl From<InodeEdit> for Edit {
    fn from(edit: InodeEdit) -> Self {
        Self::new(move |volume| {
            let inode = volume.lookup(&edit.path)?;
            let mut bytes = volume.inode_bytes(inode)?;
            for change in &edit.changes {
                change(volume, &mut bytes)?;
            }
            volume.put_inode(inode, &bytes)?;
            if edit.stale { Ok(()) } else { volume.fix_inode(inode) }
        })
    }
}

/// Changes the directory entry at a path; its last component may be `.` or `..`.
pub fn entry(path: impl Into<String>) -> EntryEdit {
    EntryEdit { path: path.into(), changes: Vec::new(), stale: false }
}

/// Changes of a directory entry; see the methods.
pub struct EntryEdit {
    path: String,
    changes: Vec<ChangeBytes>,
    stale: bool,
}

impl EntryEdit {
    /// Keeps the old checksum of the block, which is then wrong.
    #[must_use]
    pub fn stale(mut self) -> Self {
        self.stale = true;
        self
    }

    /// Changes the bytes of the entry (`rec_len` of them).
    #[must_use]
    pub fn raw(mut self, change: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Self {
        self.changes.push(Box::new(move |_, bytes| {
            change(bytes);
            Ok(())
        }));
        self
    }

    /// Sets the inode number; 0 removes the entry.
    #[must_use]
    pub fn inode(self, inode: u32) -> Self {
        self.raw(move |bytes| bytes[..4].copy_from_slice(&inode.to_le_bytes()))
    }

    /// Sets the inode number to that of another path.
    #[must_use]
    pub fn inode_of(mut self, path: &'static str) -> Self {
        self.changes.push(Box::new(move |volume, bytes| {
            bytes[..4].copy_from_slice(&volume.lookup(path)?.0.to_le_bytes());
            Ok(())
        }));
        self
    }

    /// Sets the record length.
    #[must_use]
    pub fn rec_len(self, bytes: u16) -> Self {
        self.raw(move |entry| entry[4..6].copy_from_slice(&bytes.to_le_bytes()))
    }

    /// Sets the length of the name.
    #[must_use]
    pub fn name_len(self, bytes: u8) -> Self {
        self.raw(move |entry| entry[6] = bytes)
    }

    /// Sets the file type.
    #[must_use]
    pub fn file_type(self, file_type: u8) -> Self {
        self.raw(move |entry| entry[7] = file_type)
    }

    /// Overwrites the name and its length; it must fit the record.
    #[must_use]
    pub fn name(self, name: impl Into<Vec<u8>>) -> Self {
        let name = name.into();
        self.raw(move |entry| {
            entry[6] = name.len() as u8;
            entry[8..8 + name.len()].copy_from_slice(&name);
        })
    }
}

impl From<EntryEdit> for Edit {
    fn from(edit: EntryEdit) -> Self {
        Self::new(move |volume| {
            let (folder, name) =
                volume.view.path(&edit.path).rsplit_once('/').context("an absolute path")?;
            let directory = volume.lookup(if folder.is_empty() { "/" } else { folder })?;
            let found = volume.entry(directory, name)?;
            let mut bytes = vec![0; found.rec_len as usize];
            volume.image.read(found.offset_bytes, &mut bytes)?;
            for change in &edit.changes {
                change(volume, &mut bytes)?;
            }
            volume.image.write(found.offset_bytes, &bytes)?;
            match found.block {
                _ if edit.stale => Ok(()),
                Some(block) => volume.fix_dir_block(directory, block),
                None => volume.fix_inode(directory),
            }
        })
    }
}

type FindBlock = Box<dyn Fn(&Volume<'_>) -> Result<Place> + Send + Sync>;

/// Changes of a metadata block; see the methods.
pub struct BlockEdit {
    find: FindBlock,
    changes: Vec<ChangeBytes>,
    stale: bool,
}

impl BlockEdit {
    fn new(find: impl Fn(&Volume<'_>) -> Result<Place> + Send + Sync + 'static) -> Self {
        Self { find: Box::new(find), changes: Vec::new(), stale: false }
    }

    /// Keeps the old checksum, which is then wrong.
    #[must_use]
    pub fn stale(mut self) -> Self {
        self.stale = true;
        self
    }

    /// Changes the bytes.
    #[must_use]
    pub fn raw(mut self, change: impl Fn(&mut [u8]) + Send + Sync + 'static) -> Self {
        self.changes.push(Box::new(move |_, bytes| {
            change(bytes);
            Ok(())
        }));
        self
    }

    /// Overwrites bytes from `at` on.
    #[must_use]
    pub fn put(self, at: usize, with: impl Into<Vec<u8>>) -> Self {
        let with = with.into();
        self.raw(move |bytes| bytes[at..at + with.len()].copy_from_slice(&with))
    }

    /// Stores a little-endian 16-bit number.
    #[must_use]
    pub fn put16(self, at: usize, value: u16) -> Self {
        self.put(at, value.to_le_bytes())
    }

    /// Stores a little-endian 32-bit number.
    #[must_use]
    pub fn put32(self, at: usize, value: u32) -> Self {
        self.put(at, value.to_le_bytes())
    }

    /// Changes the header of an extent node.
    #[must_use]
    pub fn extent_header(self, change: impl Fn(&mut ExtentHeader) + Send + Sync + 'static) -> Self {
        self.raw(move |bytes| edit_header(bytes, &change))
    }

    /// Changes extent `at` of an extent leaf.
    #[must_use]
    pub fn extent(
        self,
        at: usize,
        change: impl Fn(&mut RawExtent) + Send + Sync + 'static,
    ) -> Self {
        self.raw(move |bytes| edit_extent(bytes, at, &change))
    }

    /// Changes index entry `at` of an interior extent node.
    #[must_use]
    pub fn extent_index(
        self,
        at: usize,
        change: impl Fn(&mut RawIndex) + Send + Sync + 'static,
    ) -> Self {
        self.raw(move |bytes| edit_index(bytes, at, &change))
    }
}

impl From<BlockEdit> for Edit {
    fn from(edit: BlockEdit) -> Self {
        Self::new(move |volume| {
            let place = (edit.find)(volume)?;
            let (at, len) = volume.range_of(place)?;
            let mut bytes = vec![0; len];
            volume.image.read(at, &mut bytes)?;
            for change in &edit.changes {
                change(volume, &mut bytes)?;
            }
            volume.image.write(at, &bytes)?;
            if edit.stale { Ok(()) } else { volume.fix(place) }
        })
    }
}

/// The inode of a file, and its data block `logical`.
fn data_block(volume: &Volume<'_>, path: &str, logical: u64) -> Result<(InodeNr, BlockNr)> {
    let inode = volume.lookup(path)?;
    let map = volume.map(inode)?;
    let block = map.data.get(&LogicalBlock(logical));
    Ok((inode, *block.with_context(|| format!("{path} has no block {logical}"))?))
}

/// Changes a directory block: entries, or an index root (block 0) or node.
pub fn dir_block(path: &'static str, logical: u64) -> BlockEdit {
    BlockEdit::new(move |volume| {
        let (inode, block) = data_block(volume, path, logical)?;
        Ok(Place::DirBlock(inode, block))
    })
}

/// Changes a data block of a file or symlink, which has no checksum.
pub fn block_of(path: &'static str, logical: u64) -> BlockEdit {
    BlockEdit::new(move |volume| {
        let (inode, block) = data_block(volume, path, logical)?;
        Ok(Place::LinkTarget(inode, block))
    })
}

/// Changes block `index` of a file's map: extent nodes or indirect blocks, parents first.
pub fn map_node(path: &'static str, index: usize) -> BlockEdit {
    BlockEdit::new(move |volume| {
        let inode = volume.lookup(path)?;
        let map = volume.map(inode)?;
        let node = map.nodes.get(index);
        let node = node.with_context(|| format!("{path} has {} map nodes", map.nodes.len()))?;
        Ok(match node.kind {
            crate::volume::NodeKind::Extent { .. } => Place::ExtentNode(inode, node.block),
            crate::volume::NodeKind::Indirect { .. } => Place::Indirect(inode, node.block),
        })
    })
}

/// Changes the attribute block of a file.
pub fn xattr_block(path: &'static str) -> BlockEdit {
    BlockEdit::new(move |volume| {
        let inode = volume.lookup(path)?;
        let bytes = volume.inode_bytes(inode)?;
        let base = InodeBase::decode(bytes.first_chunk().context("an inode has 128 bytes")?);
        ensure!(base.file_acl_lo != 0, "{path} has no attribute block");
        Ok(Place::XattrBlock(inode, BlockNr(u64::from(base.file_acl_lo))))
    })
}

/// Changes the journal superblock. Its numbers are big-endian.
pub fn journal_superblock() -> BlockEdit {
    BlockEdit::new(|volume| {
        ensure!(volume.geometry.features.compat.contains(Compat::HAS_JOURNAL), "no journal");
        let inode = InodeNr(volume.superblock.journal_inum);
        let map = volume.map(inode)?;
        let block = map.data.get(&LogicalBlock(0)).context("an empty journal")?;
        Ok(Place::JournalSuperblock(*block))
    })
}

/// Changes the MMP block.
pub fn mmp() -> BlockEdit {
    BlockEdit::new(|volume| {
        ensure!(volume.geometry.features.incompat.contains(Incompat::MMP), "no mmp");
        Ok(Place::Mmp(BlockNr(volume.superblock.mmp_block)))
    })
}

/// Changes a block of the orphan file.
pub fn orphan_block(logical: u64) -> BlockEdit {
    BlockEdit::new(move |volume| {
        ensure!(volume.geometry.features.compat.contains(Compat::ORPHAN_FILE), "no orphan file");
        let inode = InodeNr(volume.superblock.orphan_file_inum);
        let map = volume.map(inode)?;
        let block = map.data.get(&LogicalBlock(logical)).context("past the orphan file")?;
        Ok(Place::OrphanBlock(inode, *block))
    })
}

#[cfg(test)]
mod tests {
    use super::change_inode;

    #[test]
    fn edits_of_large_inodes_fail_on_small_ones() {
        let large = |raw: &mut [u8]| raw[128..130].copy_from_slice(&[4, 0]);
        let mut small = [7; 128];
        change_inode(&mut small, &large).unwrap_err();
        assert_eq!(small, [7; 128]);
        change_inode(&mut small, &|raw| raw[..2].fill(9)).unwrap();
        assert_eq!(small[..3], [9, 9, 7]);
        let mut usual = [7; 256];
        change_inode(&mut usual, &large).unwrap();
        assert_eq!(usual[127..131], [7, 4, 0, 7]);
    }
}
