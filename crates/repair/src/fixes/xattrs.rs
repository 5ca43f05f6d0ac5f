//! Blocks of extended attributes.

use floe_format::ext::inline_data::ATTRIBUTE_NAME;
use floe_format::ext::inode::InodeFlags;
use floe_format::ext::xattr::{
    self, IBODY_HEADER_SIZE, INDEX_SYSTEM, VALUE_INUM_AT, VALUE_SIZE_AT, XattrArea, XattrEntry,
    XattrHeader,
};
use floe_format::{BlockNr, InodeNr};

use super::xattr_values::holds_value;
use crate::attribute_value::{content, has_value};
use crate::edit::AttributeBlockEdit;
use crate::failure::Failure;
use crate::stage::{InodeImage, Stage};

pub(super) fn apply(
    stage: &mut Stage<'_>,
    block: BlockNr,
    edit: AttributeBlockEdit,
) -> Result<(), Failure> {
    let mut bytes = stage.read_block(block)?;
    match edit {
        AttributeBlockEdit::FlipBack { at, bits } => {
            let at = usize::from(at);
            if xattr::flipped_byte(stage.seed, block, &bytes) != Some((at, bits)) {
                return Err(Failure::NotNow("the block has changed since it was examined"));
            }
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= bits;
            }
        }
        AttributeBlockEdit::References(count) => {
            if let Some(head) = bytes.first_chunk_mut() {
                let mut header = XattrHeader::decode(head);
                header.refcount = count;
                header.encode_into(head);
            }
        }
        AttributeBlockEdit::Salvage { doubted } => {
            let doubted = doubted.map(|at| at as usize);
            let holds = |entry: &XattrEntry<'_>| holds_value(stage, None, entry);
            if xattr::salvage_block(&mut bytes, doubted, holds) == 0 {
                return Err(Failure::NotNow("the block has changed since it was examined"));
            }
        }
        AttributeBlockEdit::Checksum => {}
    }
    write(stage, block, bytes)
}

/// Sets a field of an attribute: in `image` itself, or in the attribute block, which is staged.
///
/// Returns whether the attribute is in the inode, which the caller must then write.
pub(super) fn set_field(
    stage: &Stage<'_>,
    image: &mut InodeImage,
    block: BlockNr,
    offset_bytes: u32,
    field: EntryField,
) -> Result<bool, Failure> {
    let offset = offset_bytes as usize;
    if block.0 == 0 {
        let at = image.attributes_offset().ok_or(Failure::NotNow("it has no attributes"))?;
        field.put(&mut image.raw, at + IBODY_HEADER_SIZE + offset)?;
        return Ok(true);
    }
    let mut bytes = stage.read_block(block)?;
    field.put(&mut bytes, offset)?;
    write(stage, block, bytes)?;
    Ok(false)
}

/// Keeps the attributes in an inode that prove themselves.
pub(super) fn salvage_own(stage: &Stage<'_>, image: &mut InodeImage, doubted: Option<u32>) {
    let Some(at) = image.attributes_offset() else { return };
    let owner = image.clone();
    let whole = &mut image.raw[at..];
    if salvage_in_inode(stage, &owner, whole, doubted) == 0 {
        whole[..IBODY_HEADER_SIZE].fill(0);
    }
}

/// Keeps the attributes that prove themselves among those of an inode, `whole` with their magic; returns how many are left.
/// Where the inode holds its data, the attribute that goes on with them comes first: rather than it, another goes whose value
/// overlaps it, and at worst its value, not the part of the data that lies before it.
pub(super) fn salvage_in_inode(
    stage: &Stage<'_>,
    owner: &InodeImage,
    whole: &mut [u8],
    doubted: Option<u32>,
) -> usize {
    let before = whole.to_vec();
    let salvage = |bytes: &mut [u8], doubted: Option<usize>| {
        let area = bytes.get_mut(IBODY_HEADER_SIZE..).unwrap_or_default();
        let holds = |entry: &XattrEntry<'_>| holds_value(stage, Some(owner), entry);
        xattr::salvage_inode(area, doubted, holds)
    };
    let doubted = doubted.map(|at| at as usize);
    let left = salvage(whole, doubted);
    let Some(data) = data_at(&before).filter(|_| owner.flags().contains(InodeFlags::INLINE_DATA))
    else {
        return left;
    };
    if data_at(whole).is_some() {
        return left;
    }
    let others = XattrArea::of_inode(&before).into_iter().flat_map(|area| area.entries());
    let others: Vec<usize> = others.map_while(Result::ok).map(|one| one.offset).collect();
    for other in others.into_iter().filter(|other| *other != data && doubted != Some(data)) {
        whole.copy_from_slice(&before);
        let left = salvage(whole, Some(other));
        if data_at(whole).is_some() {
            return left;
        }
    }
    whole.copy_from_slice(&before);
    let field = |at: usize| IBODY_HEADER_SIZE + data + at;
    for bytes in [field(2)..field(4), field(8)..field(16)] {
        whole.get_mut(bytes).unwrap_or_default().fill(0);
    }
    salvage(whole, doubted.filter(|at| *at != data))
}

/// Byte behind the magic at which the attribute begins that goes on with inline data; `None` if there is none.
fn data_at(whole: &[u8]) -> Option<usize> {
    let found = XattrArea::of_inode(whole)?.find(INDEX_SYSTEM, ATTRIBUTE_NAME)?;
    Some(found.offset)
}

/// Makes the name of an attribute one that Linux reads, or removes the attribute: in `image` itself,
/// or in the attribute block, which is staged.
///
/// Returns whether the attribute is in the inode, which the caller must then write.
pub(super) fn mend_name(
    stage: &Stage<'_>,
    image: &mut InodeImage,
    block: BlockNr,
    offset_bytes: u32,
) -> Result<bool, Failure> {
    let offset = offset_bytes as usize;
    if block.0 == 0 {
        let at = image.attributes_offset().ok_or(Failure::NotNow("it has no attributes"))?;
        let area = image.raw.get_mut(at + IBODY_HEADER_SIZE..).unwrap_or_default();
        xattr::mend_name(area, offset);
        return Ok(true);
    }
    let mut bytes = stage.read_block(block)?;
    xattr::mend_name(&mut bytes, offset);
    write(stage, block, bytes)?;
    Ok(false)
}

/// Replaces an access list that Linux cannot read or misreads, or removes it: in `image` itself, or in
/// the attribute block, which is staged. The mode follows.
///
/// Returns whether the caller must write the inode.
pub(super) fn mend_list(
    stage: &Stage<'_>,
    image: &mut InodeImage,
    block: BlockNr,
    offset_bytes: u32,
) -> Result<bool, Failure> {
    const PERMISSIONS: u16 = 0o777;
    let (offset, mode) = (offset_bytes as usize, image.base.mode);
    if block.0 == 0 {
        let at = image.attributes_offset().ok_or(Failure::NotNow("it has no attributes"))?;
        let area = image.raw.get_mut(at + IBODY_HEADER_SIZE..).unwrap_or_default();
        let elsewhere = value_elsewhere(stage, area, offset)?;
        let mended = xattr::mend_list(area, 0, offset, mode & PERMISSIONS, &elsewhere);
        image.base.mode = mode & !PERMISSIONS | mended.permissions;
        return Ok(true);
    }
    let mut bytes = stage.read_block(block)?;
    let elsewhere = value_elsewhere(stage, &bytes, offset)?;
    let permissions = mode & PERMISSIONS;
    let mended = xattr::mend_list(&mut bytes, XattrHeader::SIZE, offset, permissions, &elsewhere);
    let sharers = bytes.first_chunk().map_or(0, |head| XattrHeader::decode(head).refcount);
    if mended.is_removed && mended.permissions != mode & PERMISSIONS && sharers > 1 {
        // Their modes, in which the bits of the group are those of the mask, would then count.
        return Err(Failure::NotNow(
            "other inodes share the list, and there is no room to mend it",
        ));
    }
    image.base.mode = mode & !PERMISSIONS | mended.permissions;
    write(stage, block, bytes)?;
    Ok(image.base.mode != mode)
}

/// The value of the attribute at a byte of an area, if an inode of its own holds it; empty if not, or if its bytes do not have the
/// hash of the value, so that Linux does not read it.
fn value_elsewhere(stage: &Stage<'_>, area: &[u8], offset: usize) -> Result<Vec<u8>, Failure> {
    let number = area.get(offset + VALUE_INUM_AT..).and_then(|rest| rest.first_chunk());
    match number.map_or(0, |number| u32::from_le_bytes(*number)) {
        0 => Ok(Vec::new()),
        number => {
            let holder = stage.read_inode(InodeNr(number))?;
            let value = content(stage, &holder, holder.size_bytes());
            Ok(value.filter(|_| has_value(stage, &holder)).unwrap_or_default())
        }
    }
}

/// A field of an attribute entry that locates its value.
#[derive(Clone, Copy)]
pub(super) enum EntryField {
    /// Bytes of the value.
    ValueSize(u32),
    /// The inode that holds the value; 0: the value is stored in place.
    ValueInode(u32),
}

impl EntryField {
    /// Writes the field of the entry at byte `entry`.
    fn put(self, bytes: &mut [u8], entry: usize) -> Result<(), Failure> {
        let (at, value) = match self {
            Self::ValueSize(size) => (VALUE_SIZE_AT, size),
            Self::ValueInode(number) => (VALUE_INUM_AT, number),
        };
        bytes
            .get_mut(entry + at..)
            .and_then(|rest| rest.first_chunk_mut())
            .map(|field| *field = value.to_le_bytes())
            .ok_or(Failure::NotNow("the attribute has changed since it was examined"))
    }
}

/// Whether an attribute block has a right checksum and entries that can be followed.
pub(super) fn is_sound(stage: &Stage<'_>, block: BlockNr, bytes: &[u8]) -> bool {
    let fits = !stage.checksummed() || xattr::block_checksum_ok(stage.seed, block, bytes);
    fits && XattrArea::of_block(bytes).is_some_and(|area| area.check().is_ok())
}

/// Stages an attribute block with its checksum.
fn write(stage: &Stage<'_>, block: BlockNr, mut bytes: Vec<u8>) -> Result<(), Failure> {
    if stage.checksummed() {
        xattr::write_block_checksum(stage.seed, block, &mut bytes);
    }
    stage.write_block(block, &bytes)
}
