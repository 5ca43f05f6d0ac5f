//! Blocks of extended attributes.

use floe_check::Problem;
use floe_format::ext::xattr::value_inode::{stored_hash, value_hash};
use floe_format::ext::xattr::{
    self, IBODY_HEADER_SIZE, MAGIC, VALUE_INUM_AT, VALUE_SIZE_AT, XattrArea, XattrEntry,
    XattrHeader,
};
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use crate::edit::{AttributeBlockEdit, Edit, InodeEdit};
use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::{InodeImage, Stage};

/// Maximum length of a value (`EXT4_XATTR_SIZE_MAX`).
const MOST_VALUE_BYTES: u64 = 1 << 24;

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
        AttributeBlockEdit::Checksum => {}
    }
    write(stage, block, bytes)
}

/// The edit for a faulty attribute block if its checksum tells that one byte is wrong, and the
/// block without that fault holds attributes: nothing need be dropped or sealed with its fault.
pub(crate) fn flipped_attribute_block(stage: &Stage<'_>, problem: &Problem) -> Option<Edit> {
    let block = match *problem {
        Problem::XattrBlockMagicBad { block, .. }
        | Problem::XattrBlockCountBad { block, .. }
        | Problem::XattrBlockOverlap { block, .. }
        | Problem::XattrBlockNameBad { block, .. }
        | Problem::XattrBlockValueBad { block, .. }
        | Problem::XattrValueSizeBad { block, .. }
        | Problem::XattrHashBad { block, .. }
        | Problem::XattrEaInodeNumberBad { block, .. }
        | Problem::XattrNameWithZero { block, .. }
        | Problem::XattrAclWithName { block, .. }
        | Problem::XattrListUnreadable { block, .. }
        | Problem::XattrListMisread { block, .. }
        | Problem::XattrBlockChecksumBad { block, .. } => block,
        _ => return None,
    };
    if block.0 == 0 || !stage.checksummed() {
        return None;
    }
    let mut bytes = stage.read_block(block).ok()?;
    let (at, bits) = xattr::flipped_byte(stage.seed, block, &bytes)?;
    *bytes.get_mut(at)? ^= bits;
    let has_magic =
        bytes.first_chunk().is_some_and(|head| XattrHeader::decode(head).magic == MAGIC);
    let sound = has_magic && XattrArea::of_block(&bytes)?.check().is_ok();
    let edit = AttributeBlockEdit::FlipBack { at: u16::try_from(at).ok()?, bits };
    sound.then_some(Edit::AttributeBlock { block, edit })
}

/// The edit for an attribute whose value inode is wrong or shorter than the value size, if the
/// value itself reveals which field is wrong; `None` without such proof.
pub(crate) fn mended_value(stage: &Stage<'_>, problem: &Problem) -> Option<Edit> {
    let (inode, block, offset_bytes) = match *problem {
        Problem::XattrValueSizeBad { inode, block, offset_bytes, .. }
        | Problem::XattrEaInodeNumberBad { inode, block, offset_bytes, .. }
        | Problem::XattrHashBad { inode, block, offset_bytes, .. } => (inode, block, offset_bytes),
        _ => return None,
    };
    let bytes = match block {
        BlockNr(0) => {
            let image = stage.read_inode(inode).ok()?;
            image.raw.get(image.attributes_offset()?..)?.to_vec()
        }
        block => stage.read_block(block).ok()?,
    };
    let area = match block {
        BlockNr(0) => XattrArea::of_inode(&bytes)?,
        _ => XattrArea::of_block(&bytes)?,
    };
    let entry =
        area.entries().map_while(Result::ok).find(|entry| entry.offset == offset_bytes as usize)?;
    if area.has_value_here(&entry) {
        return Some(Edit::Inode { inode, edit: InodeEdit::ValueHere { block, offset_bytes } });
    }
    match problem {
        Problem::XattrValueSizeBad { .. } => mended_value_size(stage, inode, block, &entry),
        _ => None,
    }
}

/// For an attribute whose value size differs from the size of its value inode: the value hash in
/// that inode tells which is wrong.
fn mended_value_size(
    stage: &Stage<'_>,
    inode: InodeNr,
    block: BlockNr,
    entry: &XattrEntry<'_>,
) -> Option<Edit> {
    let holder = stage.read_inode(entry.value_inode?).ok()?;
    let whole = |size: u64| {
        content(stage, &holder, size)
            .is_some_and(|value| value_hash(stage.seed, &value) == stored_hash(&holder.base))
    };
    if whole(holder.size_bytes()) {
        let size = u32::try_from(holder.size_bytes()).ok()?;
        // The attribute area has at most one block.
        let offset_bytes = entry.offset as u32;
        let edit = InodeEdit::ValueSize { block, offset_bytes, size };
        return Some(Edit::Inode { inode, edit });
    }
    let size = u64::from(entry.value_size);
    whole(size).then_some(Edit::Inode { inode: holder.number, edit: InodeEdit::Size(size) })
}

/// The first `size` bytes of a file, if it is that long and readable.
fn content(stage: &Stage<'_>, image: &InodeImage, size: u64) -> Option<Vec<u8>> {
    if size == 0 || size > MOST_VALUE_BYTES {
        return None;
    }
    let map = FileMap::load(stage, image);
    let mut content = Vec::new();
    for logical in 0..size.div_ceil(stage.block_size() as u64) {
        content.extend(stage.read_block(map.find(LogicalBlock(logical))?).ok()?);
    }
    content.truncate(usize::try_from(size).ok()?);
    Some(content)
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

/// The value of the attribute at a byte of an area, if an inode of its own holds it; empty if not.
fn value_elsewhere(stage: &Stage<'_>, area: &[u8], offset: usize) -> Result<Vec<u8>, Failure> {
    let number = area.get(offset + VALUE_INUM_AT..).and_then(|rest| rest.first_chunk());
    match number.map_or(0, |number| u32::from_le_bytes(*number)) {
        0 => Ok(Vec::new()),
        number => {
            let holder = stage.read_inode(InodeNr(number))?;
            content(stage, &holder, holder.size_bytes())
                .ok_or(Failure::NotNow("the value of the list cannot be read"))
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

/// Stages an attribute block with its checksum.
fn write(stage: &Stage<'_>, block: BlockNr, mut bytes: Vec<u8>) -> Result<(), Failure> {
    if stage.checksummed() {
        xattr::write_block_checksum(stage.seed, block, &mut bytes);
    }
    stage.write_block(block, &bytes)
}
