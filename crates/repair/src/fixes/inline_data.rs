//! Inline data: in `i_block`, and in the value of the attribute `system.data`.

use floe_format::ext::inline_data::{ATTRIBUTE_NAME, IN_BLOCK_SIZE, InlineDirSize, judge_dir_size};
use floe_format::ext::inode::InodeFlags;
use floe_format::ext::xattr::{
    Chars, ENTRY_SIZE, IBODY_HEADER_SIZE, INDEX_SYSTEM, MAGIC, RawXattrEntry, XattrArea,
    entry_hash, padded,
};

use crate::failure::Failure;
use crate::stage::InodeImage;

/// An in-inode attribute, decoded.
struct Attribute {
    raw: RawXattrEntry,
    name: Vec<u8>,
    value: Vec<u8>,
}

impl Attribute {
    fn is_data(&self) -> bool {
        self.raw.name_index == INDEX_SYSTEM && self.name == ATTRIBUTE_NAME
    }
}

/// All attributes in the inode, up to the first invalid entry.
fn attributes(image: &InodeImage) -> Vec<Attribute> {
    let area = image.attributes_offset().and_then(|at| image.raw.get(at..)).unwrap_or(&[]);
    let Some(area) = XattrArea::of_inode(area) else { return Vec::new() };
    area.entries()
        .map_while(Result::ok)
        .filter_map(|entry| {
            let value = match entry.value_inode {
                Some(_) => &[][..],
                None => area.value(&entry)?,
            };
            let raw = RawXattrEntry {
                // A name has at most 255 bytes.
                name_len: entry.name.len() as u8,
                name_index: entry.name_index,
                value_offs: entry.value_offs,
                value_inum: entry.value_inode.map_or(0, |inode| inode.0),
                value_size: entry.value_size,
                hash: entry.hash,
            };
            Some(Attribute { raw, name: entry.name.to_vec(), value: value.to_vec() })
        })
        .collect()
}

/// Rewrites all attributes of the inode: entries from the start, values from the end.
fn write(image: &mut InodeImage, attributes: &[Attribute]) -> Result<(), Failure> {
    let no_room = Failure::NotNow("its attributes do not fit the inode");
    let Some(at) = image.attributes_offset() else { return Err(no_room) };
    let mut area = vec![0; image.raw.len() - at];
    if !attributes.is_empty() {
        area[..IBODY_HEADER_SIZE].copy_from_slice(&MAGIC.to_le_bytes());
        let body = &mut area[IBODY_HEADER_SIZE..];
        let (mut next, mut end) = (0, body.len() & !3);
        for attribute in attributes {
            let mut raw = attribute.raw.clone();
            let len = ENTRY_SIZE + padded(attribute.name.len());
            let value_len = padded(attribute.value.len());
            // The end marker needs four more bytes.
            if next + len + 4 + value_len > end {
                return Err(no_room);
            }
            if raw.value_inum == 0 {
                raw.value_size = attribute.value.len() as u32;
                end -= value_len;
                raw.value_offs = if value_len == 0 { 0 } else { end as u16 };
                body[end..end + attribute.value.len()].copy_from_slice(&attribute.value);
            }
            if let Some(head) = body[next..].first_chunk_mut::<ENTRY_SIZE>() {
                raw.encode_into(head);
            }
            let name = next + ENTRY_SIZE;
            body[name..name + attribute.name.len()].copy_from_slice(&attribute.name);
            next += len;
        }
    }
    image.raw[at..].copy_from_slice(&area);
    Ok(())
}

/// The part of the inline data outside `i_block`; `None` without the attribute.
pub(super) fn value(image: &InodeImage) -> Option<Vec<u8>> {
    attributes(image).into_iter().find(Attribute::is_data).map(|attribute| attribute.value)
}

/// Replaces the part of the inline data outside `i_block`; all other attributes stay. `None`
/// removes the attribute.
///
/// # Errors
/// [`Failure::NotNow`] if it does not fit.
pub(super) fn set_value(image: &mut InodeImage, value: Option<&[u8]>) -> Result<(), Failure> {
    let mut all = attributes(image);
    match value {
        None => all.retain(|attribute| !attribute.is_data()),
        Some(value) => {
            let data = all.iter_mut().find(|attribute| attribute.is_data());
            let data = data.ok_or(Failure::NotNow("it has no inline data"))?;
            data.value = value.to_vec();
            // A zero hash means none: old kernels store that for in-inode attributes.
            if data.raw.hash != 0 {
                data.raw.hash = entry_hash(&data.name, value, Chars::Unsigned);
            }
        }
    }
    write(image, &all)
}

/// Sets an inline directory to a size at which entries can end: sizes from 61 to 71 bytes are cut
/// to 60; other sizes are rounded up to a multiple of four, or down if there is no room.
pub(super) fn set_directory_size(image: &mut InodeImage) -> Result<(), Failure> {
    let old = value(image).ok_or(Failure::NotNow("it has no inline data"))?;
    let size = (IN_BLOCK_SIZE + old.len()) as u64;
    if judge_dir_size(size) == InlineDirSize::Good {
        return Ok(());
    }
    let resized = |len: usize| {
        let mut new = old.clone();
        new.resize(len, 0);
        new
    };
    let up = old.len().next_multiple_of(4);
    let new = if old.len() < 12 { Vec::new() } else { resized(up) };
    if set_value(image, Some(&new)).is_err() {
        set_value(image, Some(&resized(up - 4)))?;
    }
    let size = IN_BLOCK_SIZE + value(image).map_or(0, |value| value.len());
    image.set_size_bytes(size as u64);
    Ok(())
}

/// Removes the inline data of an inode.
pub(super) fn remove(image: &mut InodeImage) -> Result<(), Failure> {
    set_value(image, None)?;
    image.base.flags &= !InodeFlags::INLINE_DATA.bits();
    image.base.block = [0; IN_BLOCK_SIZE];
    Ok(())
}
