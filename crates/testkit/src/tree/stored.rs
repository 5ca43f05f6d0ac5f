//! Reads a tree with testkit's own small reader.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use floe_format::ext::inline_data::{self, InlineData};
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::ext::xattr::value_inode::{stored_hash, value_hash};
use floe_format::ext::xattr::{INDEX_SYSTEM, MAX_VALUE_SIZE, XattrArea, XattrEntry, full_name};
use floe_format::features::Incompat;
use floe_format::{BlockNr, InodeNr};

use super::{Digest, Node, Pieces, Tree, UNREADABLE};
use crate::Image;
use crate::volume::Volume;

/// The tree reachable from the root. Read errors of objects are stored in their nodes.
///
/// # Errors
/// There is no usable superblock or root directory.
pub fn stored(image: &Image) -> Result<Tree> {
    let volume = Volume::open(image)?;
    let mut tree = Tree::new();
    let root = node(&volume, InodeNr::ROOT)?;
    anyhow::ensure!(root.is_dir(), "the root inode is no directory");
    tree.insert(b"/".to_vec(), root);
    let mut entered = BTreeSet::from([InodeNr::ROOT]);
    let mut folders = vec![(Vec::new(), InodeNr::ROOT)];
    while let Some((path, folder)) = folders.pop() {
        let entries = match volume.entries(folder) {
            Ok(entries) => entries,
            Err(error) => {
                let path = if path.is_empty() { b"/".to_vec() } else { path };
                if let Some(node) = tree.get_mut(&path) {
                    node.content = format!("{UNREADABLE}: {error:#}");
                }
                continue;
            }
        };
        for entry in entries {
            if entry.inode.0 == 0 || matches!(entry.name.as_slice(), b"." | b"..") {
                continue;
            }
            let path = [&path[..], b"/", &entry.name].concat();
            let node = node(&volume, entry.inode).unwrap_or_else(|error| unreadable(&entry, error));
            if node.is_dir() && entered.insert(entry.inode) {
                folders.push((path.clone(), entry.inode));
            }
            tree.insert(path, node);
        }
    }
    Ok(tree)
}

fn unreadable(entry: &crate::volume::Entry, error: anyhow::Error) -> Node {
    Node {
        kind: None,
        inode: entry.inode,
        size_bytes: 0,
        content: format!("{UNREADABLE}: {error:#}"),
        pieces: Pieces::new(),
        permissions: 0,
        uid: 0,
        gid: 0,
        xattrs: BTreeMap::new(),
    }
}

fn node(volume: &Volume<'_>, number: InodeNr) -> Result<Node> {
    let bytes = volume.inode_bytes(number)?;
    let inode = Inode::decode(&bytes).context("an inode has 128 bytes")?;
    let kind = inode.file_type();
    let sized = matches!(kind, Some(FileType::Regular | FileType::Symlink));
    let content = match kind {
        Some(FileType::Regular | FileType::Symlink) => content(volume, number, &inode),
        Some(FileType::CharDevice | FileType::BlockDevice) => Ok((device(&inode), Pieces::new())),
        _ => Ok(Default::default()),
    };
    let (content, pieces) =
        content.unwrap_or_else(|error| (format!("{UNREADABLE}: {error:#}"), Pieces::new()));
    Ok(Node {
        kind,
        inode: number,
        size_bytes: if sized { inode.size_bytes() } else { 0 },
        content,
        pieces,
        permissions: inode.base.mode & 0o7777,
        uid: inode.uid(),
        gid: inode.gid(),
        xattrs: xattrs(volume, &inode),
    })
}

/// Major and minor number, from the old encoding (16 bits in the first word) or the new one.
fn device(inode: &Inode<'_>) -> String {
    let (old, new) = (inode.block_word(0).unwrap_or(0), inode.block_word(1).unwrap_or(0));
    let (major, minor) = match old {
        0 => (new >> 8 & 0xfff, (new & 0xff) | (new >> 12 & 0xf_ff00)),
        old => (old >> 8 & 0xff, old & 0xff),
    };
    format!("{major}:{minor}")
}

/// The digest of a file or link target, and those of its chunks.
fn content(volume: &Volume<'_>, number: InodeNr, inode: &Inode<'_>) -> Result<(String, Pieces)> {
    let size_bytes = inode.size_bytes();
    let flags = inode.flags();
    let mut digest = Digest::default();
    if flags.contains(InodeFlags::INLINE_DATA) {
        let data = InlineData::of(inode).context("inline data without their attribute")?;
        digest.add(0, &data.content(size_bytes).concat());
        return Ok((digest.text(), digest.pieces));
    }
    let fast = inode.file_type() == Some(FileType::Symlink)
        && size_bytes < 60
        && !flags.contains(InodeFlags::EXTENTS);
    if fast {
        digest.add(0, inode.base.block.get(..size_bytes as usize).unwrap_or_default());
        return Ok((digest.text(), digest.pieces));
    }
    pieces(volume, number, size_bytes, |offset_bytes, bytes| digest.add(offset_bytes, bytes))?;
    Ok((digest.text(), digest.pieces))
}

/// Passes every written block of a file to the callback, in order, truncated at the file's end.
fn pieces(
    volume: &Volume<'_>,
    number: InodeNr,
    size_bytes: u64,
    mut piece: impl FnMut(u64, &[u8]),
) -> Result<()> {
    let block_bytes = volume.block_bytes() as u64;
    let map = volume.map(number)?;
    for (logical, &block) in &map.data {
        let offset_bytes = logical.0.saturating_mul(block_bytes);
        if offset_bytes >= size_bytes || map.unwritten.contains(logical) {
            continue;
        }
        let bytes = volume.block(block)?;
        let end = usize::try_from((size_bytes - offset_bytes).min(block_bytes))?;
        piece(offset_bytes, &bytes[..end]);
    }
    Ok(())
}

fn xattrs(volume: &Volume<'_>, inode: &Inode<'_>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut found = BTreeMap::new();
    if let Some(area) = XattrArea::of_inode(inode.xattr_area()) {
        add_xattrs(volume, area, &mut found);
    }
    let block =
        BlockNr(inode.file_acl(volume.geometry.features.incompat.contains(Incompat::BIT64)));
    if block.0 != 0 {
        match volume.block(block) {
            Ok(bytes) => {
                if let Some(area) = XattrArea::of_block(&bytes) {
                    add_xattrs(volume, area, &mut found);
                }
            }
            Err(error) => {
                found.insert(b"(block)".to_vec(), format!("{UNREADABLE}: {error:#}").into());
            }
        }
    }
    found
}

fn add_xattrs(volume: &Volume<'_>, area: XattrArea<'_>, found: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
    for entry in area.entries().map_while(Result::ok) {
        let inline = entry.name_index == INDEX_SYSTEM && entry.name == inline_data::ATTRIBUTE_NAME;
        if inline {
            continue;
        }
        let value = value(volume, area, &entry)
            .unwrap_or_else(|error| Some(format!("{UNREADABLE}: {error:#}").into()));
        if let Some(value) = value {
            found.insert(full_name(entry.name_index, entry.name).into(), value);
        }
    }
}

/// The value of an attribute; `None` if its bytes do not have the hash that the inode with them remembers: then Linux does not
/// read it, and a repair that leaves it saves nothing.
fn value(
    volume: &Volume<'_>,
    area: XattrArea<'_>,
    entry: &XattrEntry<'_>,
) -> Result<Option<Vec<u8>>> {
    let Some(holder) = entry.value_inode else {
        return Ok(Some(area.value(entry).context("a value behind the end")?.to_vec()));
    };
    // Values that the kernel wrote have at most 64 KiB; one digest covers them.
    let mut digest = Digest::default();
    anyhow::ensure!(entry.value_size <= MAX_VALUE_SIZE, "a value that is too long");
    let mut value = vec![0; entry.value_size as usize];
    pieces(volume, holder, u64::from(entry.value_size), |offset_bytes, bytes| {
        digest.add(offset_bytes, bytes);
        let rest = usize::try_from(offset_bytes).ok().and_then(|at| value.get_mut(at..));
        rest.unwrap_or_default().iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    })?;
    let raw = volume.inode_bytes(holder)?;
    let remembered = Inode::decode(&raw).map(|inode| stored_hash(&inode.base));
    let is_whole = remembered == Some(value_hash(volume.superblock.seed(), &value));
    Ok(is_whole.then(|| digest.text().into()))
}
