//! The content of `i_block`: inline data, an extent tree, a block map. Fast commits change it without saying so: range
//! records come before the INODE record that has the new flags.

use floe_blockdev::ReadBlocks;
use floe_format::ext::inline_data::ATTRIBUTE_NAME;
use floe_format::ext::inode::{FileType, InodeFlags, OwnedInode};
use floe_format::ext::xattr::{INDEX_SYSTEM, NewValue, NewXattr, XattrArea, write_inode};

use super::changing::{Changing, Impossible, is_without_root};
use super::directory::Directory;
use crate::map::edit::TreeEditor;
use crate::map::mapping::ROOT_BYTES;
use crate::map::walk::has_map;

/// The flags that tell what `i_block` holds.
pub(super) const SHAPE: InodeFlags = InodeFlags::EXTENTS.union(InodeFlags::INLINE_DATA);

/// `i_block` of an inode with these flags that maps nothing.
pub(super) const fn no_map(flags: InodeFlags) -> [u8; ROOT_BYTES] {
    if flags.contains(InodeFlags::EXTENTS) { TreeEditor::EMPTY } else { [0; ROOT_BYTES] }
}

/// Gives an inode the form of these flags; what is mapped stays mapped. Content of an inline file is dropped, because Linux
/// writes it to blocks that range records name; an inline directory, whose blocks no record holds, keeps its names. With inline
/// data as the new form, `i_block` is for the caller to fill.
pub(super) fn adapt<D: ReadBlocks>(
    on: &mut Changing<'_, D>,
    image: &mut OwnedInode,
    flags: InodeFlags,
) -> Result<(), Impossible> {
    if (image.flags() & SHAPE) == (flags & SHAPE) {
        return Ok(());
    }
    let is_inline = image.flags().contains(InodeFlags::INLINE_DATA);
    if is_inline && image.file_type() == Some(FileType::Directory) {
        Directory::open(on, image.number)?.convert(on)?;
        *image = on.inode(image.number)?;
        return adapt(on, image, flags);
    }
    let map = on.map_of(image)?;
    for node in &map.nodes {
        on.release(*node)?;
    }
    let becomes_inline = flags.contains(InodeFlags::INLINE_DATA);
    for run in map.runs().iter().map(|extent| extent.run).filter(|_| becomes_inline) {
        on.mark(run, false)?;
    }
    image.set_flags(SHAPE, false);
    image.set_flags(flags & SHAPE, true);
    image.base.block = no_map(flags);
    if becomes_inline {
        return Ok(());
    }
    drop_inline_data(image);
    map.runs().iter().try_for_each(|extent| on.insert(image, *extent))
}

/// `i_block` for an inode that a record replaces: what `old` maps, in the form of `new`, which has a map.
pub(super) fn map_for<D: ReadBlocks>(
    on: &mut Changing<'_, D>,
    mut old: OwnedInode,
    new: &OwnedInode,
) -> Result<[u8; ROOT_BYTES], Impossible> {
    let has_form = has_map(&old.base) || old.flags().contains(InodeFlags::INLINE_DATA);
    if !has_form || !on.is_used(old.number)? {
        return Ok(no_map(new.flags()));
    }
    adapt(on, &mut old, new.flags())?;
    Ok(if is_without_root(&old) { no_map(new.flags()) } else { old.base.block })
}

/// Removes the attribute in which inline data go on. Other attributes stay.
pub(super) fn drop_inline_data(image: &mut OwnedInode) {
    let bytes = image.attributes().to_vec();
    let Some(area) = XattrArea::of_inode(&bytes) else { return };
    if area.find(INDEX_SYSTEM, ATTRIBUTE_NAME).is_none() {
        return;
    }
    let mut kept = Vec::new();
    for entry in area.entries() {
        // An area that cannot be read in full stays as it is.
        let Some((entry, value)) = entry.ok().and_then(|one| Some((one, area.value(&one)?))) else {
            return;
        };
        let (name_index, name) = (entry.name_index, entry.name);
        if (name_index, name) != (INDEX_SYSTEM, ATTRIBUTE_NAME) {
            kept.push(NewXattr { name_index, name, value: NewValue::Here(value) });
        }
    }
    // They fit where they were.
    let _ = write_inode(image.attributes_mut(), &kept);
}
