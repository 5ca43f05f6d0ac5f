//! Changing inodes: fields by fast commits, link counts, sizes in blocks, and freeing.

use floe_blockdev::ReadBlocks;
use floe_format::ext::extent;
use floe_format::ext::inode::{FileType, Inode, InodeFlags};
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun, InodeNr};

use super::editor::{Editor, Impossible};
use super::extents::ExtentList;

/// Byte of the inode where `i_block` starts, and where `i_generation` follows it.
const BLOCK: usize = 0x28;
const GENERATION: usize = 0x64;

/// Stores a 32-bit field. The caller knows that it lies inside.
pub(crate) fn put32(raw: &mut [u8], at: usize, value: u32) {
    raw[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put16(raw: &mut [u8], at: usize, value: u16) {
    raw[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

/// The type byte of an entry: 0 without the filetype feature.
pub(crate) fn entry_type<D: ReadBlocks>(editor: &Editor<'_, D>, kind: FileType) -> u8 {
    if editor.geo.features.incompat.contains(Incompat::FILETYPE) { kind as u8 } else { 0 }
}

/// Takes over the fields of an INODE record. The block map stays (ranges change it), but for what
/// is no map: inline data, fast symlinks and device numbers.
pub(crate) fn take_over<D: ReadBlocks>(
    editor: &mut Editor<'_, D>,
    inode: InodeNr,
    from: &[u8],
) -> Result<(), Impossible> {
    let mut raw = editor.read_inode(inode)?;
    let new = Inode::decode(from).ok_or(Impossible)?;
    let len = from.len().min(raw.len());
    raw[..BLOCK].copy_from_slice(&from[..BLOCK]);
    raw[GENERATION..len].copy_from_slice(&from[GENERATION..len]);
    let root = raw[BLOCK..GENERATION].first_chunk::<2>().copied().unwrap_or_default();
    if !new.flags().contains(InodeFlags::EXTENTS) {
        let mapped = matches!(new.file_type(), Some(FileType::Regular | FileType::Directory));
        if !mapped || new.flags().contains(InodeFlags::INLINE_DATA) {
            raw[BLOCK..GENERATION].copy_from_slice(&from[BLOCK..GENERATION]);
        }
    } else if u16::from_le_bytes(root) != extent::MAGIC {
        raw[BLOCK..GENERATION].fill(0);
        put16(&mut raw, BLOCK, extent::MAGIC);
        put16(&mut raw, BLOCK + 4, 4);
    }
    let is_dir = new.file_type() == Some(FileType::Directory);
    if new.base.links_count == 0 {
        editor.write_inode(inode, &mut raw)?;
        return free(editor, inode);
    }
    if new.flags().contains(InodeFlags::EXTENTS) {
        let decoded = Inode::decode(&raw).ok_or(Impossible)?;
        let mut list = ExtentList::read(editor, &decoded)?;
        if !list.nodes.is_empty() {
            // The generation is part of the checksums of the nodes.
            list.write(editor, inode, &mut raw)?;
        }
        recount(editor, &mut raw, &list)?;
    }
    editor.write_inode(inode, &mut raw)?;
    editor.set_inode(inode, true, is_dir)
}

/// Sets `i_blocks` to what the extents, their tree and the attribute block take.
pub(crate) fn recount<D: ReadBlocks>(
    editor: &Editor<'_, D>,
    raw: &mut [u8],
    list: &ExtentList,
) -> Result<(), Impossible> {
    let inode = Inode::decode(raw).ok_or(Impossible)?;
    let bits = editor.geo.cluster_bits;
    let cluster_of =
        |run: &BlockRun| (run.start.0 >> bits, (run.end().0.saturating_sub(1)) >> bits);
    // Extents of one cluster are neighbours, so each cluster is counted at its first extent.
    let (mut clusters, mut last) = (0u64, None);
    for run in list.runs().filter(|run| run.len_blocks > 0) {
        let (from, to) = cluster_of(&run);
        clusters += to - from + 1 - u64::from(last == Some(from));
        last = Some(to);
    }
    let bit64 = editor.geo.features.incompat.contains(Incompat::BIT64);
    clusters += u64::from(inode.file_acl(bit64) != 0);
    let blocks = clusters << bits;
    let units = blocks * editor.geo.count_units(inode.flags());
    put32(raw, 0x1c, (units & 0xffff_ffff) as u32);
    put16(raw, 0x74, (units >> 32 & 0xffff) as u16);
    Ok(())
}

/// Whether an inode can be read and is a directory.
pub(crate) fn is_dir<D: ReadBlocks>(editor: &Editor<'_, D>, inode: InodeNr) -> bool {
    let raw = editor.read_inode(inode).unwrap_or_default();
    Inode::decode(&raw).and_then(|inode| inode.file_type()) == Some(FileType::Directory)
}

/// The most links a directory counts; with more it says 1 (dir_nlink).
const MOST_DIR_LINKS: u64 = 65_000;

/// Sets the link count of a directory with that many subdirectories.
pub(crate) fn set_dir_links<D: ReadBlocks>(
    editor: &Editor<'_, D>,
    inode: InodeNr,
    subdirectories: u64,
) -> Result<(), Impossible> {
    let mut raw = editor.read_inode(inode)?;
    let links = subdirectories.saturating_add(2);
    put16(&mut raw, 0x1a, if links >= MOST_DIR_LINKS { 1 } else { links as u16 });
    editor.write_inode(inode, &mut raw)
}

/// Changes the link count of a file by one, within its bounds; the new count comes back.
pub(crate) fn link<D: ReadBlocks>(
    editor: &Editor<'_, D>,
    inode: InodeNr,
    more: bool,
) -> Result<u16, Impossible> {
    let mut raw = editor.read_inode(inode)?;
    let decoded = Inode::decode(&raw).ok_or(Impossible)?;
    let links = decoded.base.links_count;
    let links = if more { links.checked_add(1) } else { links.checked_sub(1) };
    let links = links.ok_or(Impossible)?;
    put16(&mut raw, 0x1a, links);
    editor.write_inode(inode, &mut raw)?;
    Ok(links)
}

/// Frees an inode without names: its blocks, its share of the attribute block, and itself.
pub(crate) fn free<D: ReadBlocks>(
    editor: &mut Editor<'_, D>,
    inode: InodeNr,
) -> Result<(), Impossible> {
    if editor.geo.is_reserved(inode) {
        return Err(Impossible);
    }
    let mut raw = editor.read_inode(inode)?;
    let decoded = Inode::decode(&raw).ok_or(Impossible)?;
    let is_dir = decoded.file_type() == Some(FileType::Directory);
    if !editor.inode_used(inode)? {
        return Ok(());
    }
    let bit64 = editor.geo.features.incompat.contains(Incompat::BIT64);
    let attributes = BlockNr(decoded.file_acl(bit64));
    let dtime = if editor.sb.wtime > editor.geo.inodes_count { editor.sb.wtime } else { u32::MAX };
    if decoded.flags().contains(InodeFlags::EXTENTS) {
        let list = ExtentList::read(editor, &decoded)?;
        for run in list.runs() {
            editor.set_blocks(run, false)?;
        }
        let mut empty = ExtentList::default();
        empty.write(editor, inode, &mut raw)?;
    }
    if attributes.0 != 0 {
        release_attributes(editor, attributes)?;
    }
    for (at, value) in [(0x04, 0), (0x14, dtime), (0x1c, 0), (0x68, 0), (0x6c, 0)] {
        put32(&mut raw, at, value);
    }
    for at in [0x1a, 0x74, 0x76] {
        put16(&mut raw, at, 0);
    }
    editor.write_inode(inode, &mut raw)?;
    editor.set_inode(inode, false, is_dir)
}

/// Drops one reference to a block of extended attributes; frees it with the last one.
fn release_attributes<D: ReadBlocks>(
    editor: &mut Editor<'_, D>,
    block: BlockNr,
) -> Result<(), Impossible> {
    let mut bytes = editor.read_block(block)?;
    let count = floe_format::layout::le32_at(&bytes, 4).ok_or(Impossible)?;
    if count <= 1 {
        return editor.set_blocks(BlockRun::new(block, 1), false);
    }
    put32(&mut bytes, 4, count - 1);
    if editor.geo.features.metadata_csum() {
        put32(&mut bytes, 16, 0);
        let crc = floe_format::crc::crc32c(editor.seed.0, &block.0.to_le_bytes());
        let crc = floe_format::crc::crc32c(crc, &bytes);
        put32(&mut bytes, 16, crc);
    }
    editor.write_block(block, &bytes)
}
