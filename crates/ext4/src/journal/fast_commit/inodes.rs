//! Changes inodes: fields from fast commits, link counts, `i_blocks`, and freeing.

use floe_blockdev::ReadBlocks;
use floe_format::ext::inode::{FileType, InodeFlags, OwnedInode};
use floe_format::ext::xattr::{XattrHeader, write_block_checksum};
use floe_format::features::Incompat;
use floe_format::{BlockNr, BlockRun, InodeNr};

use super::changing::{Changing, Impossible};
use super::shape;
use crate::map::runs::BlockMap;
use crate::map::walk::has_map;
use crate::tx::Tx;

/// The type byte of an entry: 0 without the filetype feature.
pub(super) fn entry_type<D: ReadBlocks>(on: &Changing<'_, D>, kind: FileType) -> u8 {
    if on.geometry().features.incompat.contains(Incompat::FILETYPE) { kind as u8 } else { 0 }
}

/// Copies the fields of an INODE record. The block map stays, because range records change it; but
/// `i_block` is copied if it holds inline data, a fast symlink or a device number.
pub(super) fn take_over<D: ReadBlocks>(
    on: &mut Changing<'_, D>,
    number: InodeNr,
    from: &[u8],
) -> Result<(), Impossible> {
    let (old, is_used) = (on.inode(number)?, on.is_used(number)?);
    let mut raw = from[..from.len().min(old.raw.len())].to_vec();
    raw.extend_from_slice(&old.raw[raw.len()..]);
    let mut new = OwnedInode::of(number, raw).ok_or(Impossible)?;
    if new.base.links_count == 0 && !is_used {
        // An UNLINK record freed it already.
        return Ok(());
    }
    if has_map(&new.base) {
        new.base.block = shape::map_for(on, old, &new)?;
    } else if is_used {
        // The record has the content of its blocks now.
        for run in on.map_of(&old)?.all_runs() {
            on.mark(run, false)?;
        }
    }
    if new.base.links_count == 0 {
        on.put_inode(&mut new)?;
        return free(on, number);
    }
    if has_map(&new.base) {
        shape::drop_inline_data(&mut new);
        let map = on.map_of(&new)?;
        if new.flags().contains(InodeFlags::EXTENTS) && !map.nodes.is_empty() {
            // The checksums of the nodes include the generation.
            on.edit_tree(&mut new, |editor, root| editor.reseal(root))?;
        }
        recount(on, &mut new, &map);
        if new.file_type() == Some(FileType::Directory) {
            // Blocks of directories are in no record: names are added again, and may need fewer.
            let blocks = map.blocks_without_hole();
            new.set_size_bytes(blocks.saturating_mul(u64::from(on.geometry().block_size)));
        }
    }
    on.put_inode(&mut new)?;
    let is_directory = new.file_type() == Some(FileType::Directory);
    on.fs.space.groups.mark_inode(&mut on.tx, number, true, is_directory)?;
    Ok(())
}

/// Sets `i_blocks` to the blocks of the extents, their tree and the attribute block.
pub(super) fn recount<D: ReadBlocks>(on: &Changing<'_, D>, inode: &mut OwnedInode, map: &BlockMap) {
    let geo = on.geometry();
    let bit64 = geo.features.incompat.contains(Incompat::BIT64);
    let clusters = map.clusters(geo) + u64::from(inode.file_acl(bit64).0 != 0);
    inode.set_blocks((clusters << geo.cluster_bits).saturating_mul(geo.count_units(inode.flags())));
}

/// Whether an inode can be read and is a directory.
pub(super) fn is_dir<D: ReadBlocks>(on: &mut Changing<'_, D>, inode: InodeNr) -> bool {
    on.inode(inode).is_ok_and(|inode| inode.file_type() == Some(FileType::Directory))
}

/// The largest link count of a directory; with more subdirectories it is 1 (dir_nlink).
const MOST_DIR_LINKS: u64 = 65_000;

/// Sets the link count of a directory, given its number of subdirectories.
pub(super) fn set_dir_links<D: ReadBlocks>(
    on: &mut Changing<'_, D>,
    inode: InodeNr,
    subdirectories: u64,
) -> Result<(), Impossible> {
    let mut image = on.inode(inode)?;
    let links = subdirectories.saturating_add(2);
    image.base.links_count = if links >= MOST_DIR_LINKS { 1 } else { links as u16 };
    on.put_inode(&mut image)
}

/// Changes the link count of a file by one, within its bounds; returns the new count.
pub(super) fn link<D: ReadBlocks>(
    on: &mut Changing<'_, D>,
    inode: InodeNr,
    more: bool,
) -> Result<u16, Impossible> {
    let mut image = on.inode(inode)?;
    let links = image.base.links_count;
    let links = if more { links.checked_add(1) } else { links.checked_sub(1) };
    image.base.links_count = links.ok_or(Impossible)?;
    on.put_inode(&mut image)?;
    Ok(image.base.links_count)
}

/// Frees an inode without names: its blocks, its reference to the attribute block, and itself.
pub(super) fn free<D: ReadBlocks>(
    on: &mut Changing<'_, D>,
    inode: InodeNr,
) -> Result<(), Impossible> {
    if on.geometry().is_reserved(inode) {
        return Err(Impossible);
    }
    let mut image = on.inode(inode)?;
    if !on.is_used(inode)? {
        return Ok(());
    }
    if has_map(&image.base) {
        for run in on.map_of(&image)?.all_runs() {
            on.mark(run, false)?;
            on.tx.revoke(run);
        }
        image.base.block = shape::no_map(image.flags());
    }
    let bit64 = on.geometry().features.incompat.contains(Incompat::BIT64);
    let attributes = image.file_acl(bit64);
    if attributes.0 != 0 {
        release_attributes(on, attributes)?;
    }
    let written = on.fs.superblock.wtime;
    image.base.dtime = if written > on.geometry().inodes_count { written } else { u32::MAX };
    image.set_size_bytes(0);
    image.set_blocks(0);
    image.set_file_acl(BlockNr(0));
    image.base.links_count = 0;
    on.put_inode(&mut image)?;
    let is_directory = image.file_type() == Some(FileType::Directory);
    on.fs.space.groups.mark_inode(&mut on.tx, inode, false, is_directory)?;
    Ok(())
}

/// Drops one reference to a block of extended attributes, and frees the block with the last one.
fn release_attributes<D: ReadBlocks>(
    on: &mut Changing<'_, D>,
    block: BlockNr,
) -> Result<(), Impossible> {
    let seed = on.fs.seed();
    let bytes = on.tx.block_mut(block)?;
    let head = bytes.first_chunk_mut().ok_or(Impossible)?;
    let mut header = XattrHeader::decode(head);
    if header.refcount <= 1 {
        return on.mark(BlockRun::new(block, 1), false);
    }
    header.refcount -= 1;
    header.encode_into(head);
    if let Some(seed) = seed {
        write_block_checksum(seed, block, bytes);
    }
    Ok(())
}
