//! Blocks of files, directory entries, and paths.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail, ensure};
use floe_format::ext::extent::{ExtentNode, MAX_DEPTH};
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::layout::{le16_at, le32_at};
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use super::Volume;

/// Kind of a map block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// A node of an extent tree; depth 0 is a leaf.
    Extent {
        /// Levels below it.
        depth: u16,
    },
    /// An indirect block; level 1 points to data.
    Indirect {
        /// 1 to 3.
        level: u32,
    },
}

/// A block of a file's map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its location.
    pub block: BlockNr,
    /// Its kind.
    pub kind: NodeKind,
}

/// The block mapping of a file.
#[derive(Clone, Debug, Default)]
pub struct FileMap {
    /// Data blocks by logical block; without holes, but with unwritten blocks.
    pub data: BTreeMap<LogicalBlock, BlockNr>,
    /// Blocks that are allocated, but read as zeroes.
    pub unwritten: BTreeSet<LogicalBlock>,
    /// Blocks of the map itself, parents first.
    pub nodes: Vec<Node>,
}

/// A directory entry and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Byte offset of the entry in the image.
    pub offset_bytes: u64,
    /// Its block; `None` for an entry in an inode (inline data).
    pub block: Option<BlockNr>,
    /// Its inode number; 0 if unused.
    pub inode: InodeNr,
    /// `rec_len`, decoded.
    pub rec_len: u32,
    /// `file_type`; without the filetype feature, the high byte of the name length.
    pub file_type: u8,
    /// The name.
    pub name: Vec<u8>,
}

impl Volume<'_> {
    /// The block mapping of a file; empty for inline data, devices and fast symlinks.
    ///
    /// # Errors
    /// The map is damaged.
    pub fn map(&self, inode: InodeNr) -> Result<FileMap> {
        let bytes = self.inode_bytes(inode)?;
        let decoded = Inode::decode(&bytes).context("an inode has 128 bytes")?;
        let mut map = FileMap::default();
        let flags = decoded.flags();
        let mapped = match decoded.file_type() {
            Some(FileType::Regular | FileType::Directory) => true,
            Some(FileType::Symlink) => {
                decoded.size_bytes() >= 60 || flags.contains(InodeFlags::EXTENTS)
            }
            // Reserved inodes (resize, bad blocks) have a map, but no file type.
            None => decoded.base.blocks_lo != 0,
            _ => false,
        };
        if !mapped || flags.contains(InodeFlags::INLINE_DATA) {
            return Ok(map);
        }
        if flags.contains(InodeFlags::EXTENTS) {
            let root = ExtentNode::new(&decoded.base.block).context("an extent root")?;
            self.map_extents(&decoded.base.block, root.header().depth, &mut map)?;
        } else {
            let mut first = 0;
            for index in 0..15 {
                let level = (index as u32).saturating_sub(11);
                let word = decoded.block_word(index).unwrap_or(0);
                first = self.map_pointer(word, level, first, &mut map)?;
            }
        }
        Ok(map)
    }

    /// Follows a node with `depth` levels below it. Ignores the depth stored in nodes, like e2fsck,
    /// and unlike Linux.
    fn map_extents(&self, node: &[u8], depth: u16, map: &mut FileMap) -> Result<()> {
        let node = ExtentNode::new(node).context("an extent node")?;
        ensure!(node.header_ok(), "a bad extent header");
        ensure!(depth <= MAX_DEPTH, "an extent tree that is too deep");
        for at in 0..node.header().entries {
            if depth == 0 {
                let extent = node.extent(at);
                for step in 0..extent.run.len_blocks {
                    let block = self.check_block(extent.run.start.0 + step)?;
                    let logical = LogicalBlock(extent.logical.0 + step);
                    map.data.insert(logical, block);
                    if extent.unwritten {
                        map.unwritten.insert(logical);
                    }
                }
            } else {
                let block = self.check_block(node.index(at).node.0)?;
                map.nodes.push(Node { block, kind: NodeKind::Extent { depth: depth - 1 } });
                let child = self.block(block)?;
                self.map_extents(&child, depth - 1, map)?;
            }
        }
        Ok(())
    }

    /// Follows a block map pointer, and returns the first logical block after its range.
    fn map_pointer(&self, word: u32, level: u32, first: u64, map: &mut FileMap) -> Result<u64> {
        let (form, span) = (self.geometry.indirect(), self.geometry.indirect().span_blocks(level));
        if word == 0 {
            return Ok(first + span);
        }
        let block = self.check_block(u64::from(word))?;
        if level == 0 {
            map.data.insert(LogicalBlock(first), block);
            return Ok(first + 1);
        }
        map.nodes.push(Node { block, kind: NodeKind::Indirect { level } });
        let bytes = self.block(block)?;
        let mut next = first;
        for pointer in floe_format::ext::indirect::pointers(form.body(&bytes)) {
            next = self.map_pointer(pointer, level - 1, next, map)?;
        }
        Ok(first + span)
    }

    /// The entries of a directory in on-disk order, including unused ones and checksum tails.
    /// Interior index blocks contribute their `.` and `..`, or one empty entry.
    ///
    /// # Errors
    /// A record length exceeds its block.
    pub fn entries(&self, directory: InodeNr) -> Result<Vec<Entry>> {
        let bytes = self.inode_bytes(directory)?;
        let decoded = Inode::decode(&bytes).context("an inode has 128 bytes")?;
        ensure!(decoded.file_type() == Some(FileType::Directory), "{directory} is no directory");
        let mut entries = Vec::new();
        if decoded.flags().contains(InodeFlags::INLINE_DATA) {
            // The first four bytes hold `..`; entries follow. The rest, in the attribute area
            // (system.data), is located through its own header.
            let at = self.inode_offset(directory)? + 0x28 + 4;
            self.parse_entries(&decoded.base.block[4..], at, None, &mut entries)?;
            if let Some((start, len)) = self.inline_rest(&bytes) {
                let at = self.inode_offset(directory)? + start as u64;
                self.parse_entries(&bytes[start..start + len], at, None, &mut entries)?;
            }
            return Ok(entries);
        }
        for &block in self.map(directory)?.data.values() {
            let content = self.block(block)?;
            let at = self.geometry.offset_bytes(block);
            self.parse_entries(&content, at, Some(block), &mut entries)?;
        }
        Ok(entries)
    }

    fn parse_entries(
        &self,
        area: &[u8],
        offset_bytes: u64,
        block: Option<BlockNr>,
        into: &mut Vec<Entry>,
    ) -> Result<()> {
        let mut at = 0;
        while at + 8 <= area.len() {
            let inode = InodeNr(le32_at(area, at).unwrap_or(0));
            let stored = u32::from(le16_at(area, at + 4).unwrap_or(0));
            // The record length of a 64 KiB block does not fit 16 bits (`ext4_rec_len_from_disk`).
            let rec_len = match stored {
                65535 | 0 if area.len() == 65536 => 65536,
                other => (other & 0xfffc) | ((other & 3) << 16),
            };
            let (name_len, file_type) = (usize::from(area[at + 6]), area[at + 7]);
            ensure!(
                rec_len >= 8 && at + rec_len as usize <= area.len(),
                "a record of {rec_len} bytes at {at}"
            );
            let name = area.get(at + 8..at + 8 + name_len).unwrap_or(&[]).to_vec();
            let offset_bytes = offset_bytes + at as u64;
            into.push(Entry { offset_bytes, block, inode, rec_len, file_type, name });
            at += rec_len as usize;
        }
        Ok(())
    }

    /// Offset and length of the value of `system.data` in an inode: inline data past 60 bytes.
    pub(crate) fn inline_rest(&self, inode: &[u8]) -> Option<(usize, usize)> {
        const NAME: &[u8] = b"data";
        const INDEX_SYSTEM: u8 = 7;
        let area = 128 + usize::from(le16_at(inode, 128)?);
        if le32_at(inode, area)? != 0xea02_0000 {
            return None;
        }
        let first = area + 4;
        let mut at = first;
        while le32_at(inode, at)? != 0 {
            let name_len = usize::from(*inode.get(at)?);
            if inode.get(at + 1) == Some(&INDEX_SYSTEM)
                && inode.get(at + 16..at + 16 + name_len) == Some(NAME)
            {
                let start = first + usize::from(le16_at(inode, at + 2)?);
                let len = le32_at(inode, at + 8)? as usize;
                return (len > 0 && start + len <= inode.len()).then_some((start, len));
            }
            at += (16 + name_len).next_multiple_of(4);
        }
        None
    }

    /// The entry with this name in a directory.
    ///
    /// # Errors
    /// The entry does not exist, or the directory is damaged.
    pub fn entry(&self, directory: InodeNr, name: &str) -> Result<Entry> {
        self.entries(directory)?
            .into_iter()
            .find(|entry| entry.inode.0 != 0 && entry.name == name.as_bytes())
            .with_context(|| format!("{directory} has no entry {name:?}"))
    }

    /// The inode at an absolute path. Does not follow symlinks; `<12>` names inode 12.
    ///
    /// # Errors
    /// A component of the path does not exist.
    pub fn lookup(&self, path: &str) -> Result<InodeNr> {
        let path = self.view.path(path);
        if let Some(number) = path.strip_prefix('<').and_then(|rest| rest.strip_suffix('>')) {
            return Ok(InodeNr(number.parse().with_context(|| format!("inode {number}"))?));
        }
        let Some(relative) = path.strip_prefix('/') else {
            bail!("{path:?} is not absolute");
        };
        let mut at = InodeNr::ROOT;
        for name in relative.split('/').filter(|name| !name.is_empty()) {
            at = self.entry(at, name)?.inode;
        }
        Ok(at)
    }
}
