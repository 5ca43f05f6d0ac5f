//! Blocks of extended attributes.

use floe_format::ext::xattr::value_inode::{stored_hash, value_hash};
use floe_format::ext::xattr::{self, IBODY_HEADER_SIZE, XattrArea, XattrHeader};
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use crate::edit::{AttributeBlockEdit, Edit, InodeEdit};
use crate::failure::Failure;
use crate::file_map::FileMap;
use crate::stage::{InodeImage, Stage};

/// Byte of an entry at which the size of its value stands.
const VALUE_SIZE_AT: usize = 8;
/// No value is longer (`EXT4_XATTR_SIZE_MAX`).
const MOST_VALUE_BYTES: u64 = 1 << 24;

pub(super) fn apply(
    stage: &mut Stage<'_>,
    block: BlockNr,
    edit: AttributeBlockEdit,
) -> Result<(), Failure> {
    let mut bytes = stage.read_block(block)?;
    if let (AttributeBlockEdit::References(count), Some(head)) = (edit, bytes.first_chunk_mut()) {
        let mut header = XattrHeader::decode(head);
        header.refcount = count;
        header.encode_into(head);
    }
    write(stage, block, bytes)
}

/// An attribute and the inode that holds its value disagree about its size: the edit of the one that
/// is wrong. The hash that the inode keeps of the value tells; without proof there is none.
pub(crate) fn mended_value_size(
    stage: &Stage<'_>,
    inode: InodeNr,
    block: BlockNr,
    offset_bytes: u32,
) -> Option<Edit> {
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
    let holder = stage.read_inode(entry.value_inode?).ok()?;
    let whole = |size: u64| {
        content(stage, &holder, size)
            .is_some_and(|value| value_hash(stage.seed, &value) == stored_hash(&holder.base))
    };
    if whole(holder.size_bytes()) {
        let size = u32::try_from(holder.size_bytes()).ok()?;
        let edit = InodeEdit::ValueSize { block, offset_bytes, size };
        return Some(Edit::Inode { inode, edit });
    }
    let size = u64::from(entry.value_size);
    whole(size).then_some(Edit::Inode { inode: holder.number, edit: InodeEdit::Size(size) })
}

/// The first bytes of a file, if it has so many and they can be read.
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

/// The size of the value of an attribute in a block.
pub(super) fn set_value_size(
    stage: &Stage<'_>,
    block: BlockNr,
    offset_bytes: u32,
    size: u32,
) -> Result<(), Failure> {
    let mut bytes = stage.read_block(block)?;
    put_value_size(&mut bytes, offset_bytes as usize, size)?;
    write(stage, block, bytes)
}

/// Stages a block of attributes with its checksum.
fn write(stage: &Stage<'_>, block: BlockNr, mut bytes: Vec<u8>) -> Result<(), Failure> {
    if stage.checksummed() {
        xattr::write_block_checksum(stage.seed, block, &mut bytes);
    }
    stage.write_block(block, &bytes)
}

/// The size of the value of an attribute in an inode.
pub(super) fn set_own_value_size(
    image: &mut InodeImage,
    offset_bytes: u32,
    size: u32,
) -> Result<(), Failure> {
    let at = image.attributes_offset().ok_or(Failure::NotNow("it has no attributes"))?;
    put_value_size(&mut image.raw, at + IBODY_HEADER_SIZE + offset_bytes as usize, size)
}

fn put_value_size(bytes: &mut [u8], entry: usize, size: u32) -> Result<(), Failure> {
    bytes
        .get_mut(entry + VALUE_SIZE_AT..)
        .and_then(|rest| rest.first_chunk_mut())
        .map(|field| *field = size.to_le_bytes())
        .ok_or(Failure::NotNow("the attribute is not as it was found"))
}
