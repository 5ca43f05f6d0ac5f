//! Attributes that prove themselves, or the field that is wrong: by checksums, hashes and values.

use floe_check::Problem;
use floe_format::ext::inode::InodeFlags;
use floe_format::ext::xattr::value_inode::{is_of_lustre, stored_hash, value_hash};
use floe_format::ext::xattr::{
    self, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, MAGIC, XattrArea, XattrEntry, XattrHeader,
    has_hash_of_inode,
};
use floe_format::{BlockNr, InodeNr};

use super::xattrs::salvage_in_inode;
use crate::attribute_value::{content, has_value};
use crate::edit::{AttributeBlockEdit, Edit, InodeEdit};
use crate::stage::{InodeImage, Stage};

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
        | Problem::XattrValueUnreadable { block, .. }
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

/// The edit that keeps more of the attributes than the plan for a fault in them: the checksum of the block, the value or the
/// other attributes decide. `None`: nothing of them is proved.
pub(crate) fn better_than_dropping(stage: &Stage<'_>, problem: &Problem) -> Option<Edit> {
    if let Problem::XattrValueUnreadable { inode, block, offset_bytes, .. } = *problem
        && entry_at(stage, inode, block, offset_bytes, is_list)?
    {
        // Without its list a file might be open to its group.
        return Some(Edit::Inode { inode, edit: InodeEdit::AccessList { block, offset_bytes } });
    }
    mended_value(stage, problem).or_else(|| salvaged(stage, problem))
}

/// Whether an attribute is an access list.
fn is_list(_: &XattrArea<'_>, entry: &XattrEntry<'_>) -> bool {
    let index = matches!(entry.name_index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT);
    index && entry.name.is_empty()
}

/// Looks at the entry at a byte of the attributes of an inode (block 0), or of a block.
fn entry_at<T>(
    stage: &Stage<'_>,
    inode: InodeNr,
    block: BlockNr,
    offset_bytes: u32,
    look: impl FnOnce(&XattrArea<'_>, &XattrEntry<'_>) -> T,
) -> Option<T> {
    let bytes = bytes_of(stage, inode, block)?;
    let area = match block {
        BlockNr(0) => XattrArea::of_inode(&bytes)?,
        _ => XattrArea::of_block(&bytes)?,
    };
    let entry =
        area.entries().map_while(Result::ok).find(|entry| entry.offset == offset_bytes as usize)?;
    Some(look(&area, &entry))
}

/// Where a fault of attributes is: the inode, the block (0: in the inode), and the byte of the attribute, if it is that one alone.
fn place_of_fault(problem: &Problem) -> Option<(InodeNr, BlockNr, Option<u32>)> {
    Some(match *problem {
        Problem::XattrValueSizeBad { inode, block, offset_bytes, .. }
        | Problem::XattrEaInodeNumberBad { inode, block, offset_bytes, .. }
        | Problem::XattrHashBad { inode, block, offset_bytes, .. }
        | Problem::XattrValueUnreadable { inode, block, offset_bytes, .. }
        | Problem::XattrBlockNameBad { inode, block, offset_bytes, .. }
        | Problem::XattrBlockValueBad { inode, block, offset_bytes, .. } => {
            (inode, block, Some(offset_bytes))
        }
        Problem::XattrIbodyOverlap { inode, .. } => (inode, BlockNr(0), None),
        Problem::XattrBlockOverlap { inode, block, .. }
        | Problem::XattrBlockCountBad { inode, block, .. } => (inode, block, None),
        _ => return None,
    })
}

/// The bytes with the attributes of an inode (block 0), or of a block.
fn bytes_of(stage: &Stage<'_>, inode: InodeNr, block: BlockNr) -> Option<Vec<u8>> {
    match block {
        BlockNr(0) => {
            let image = stage.read_inode(inode).ok()?;
            Some(image.raw.get(image.attributes_offset()?..)?.to_vec())
        }
        block => stage.read_block(block).ok(),
    }
}

/// The edit that removes damaged attributes and keeps the others, if any prove themselves.
fn salvaged(stage: &Stage<'_>, problem: &Problem) -> Option<Edit> {
    let (inode, block, doubted) = place_of_fault(problem)?;
    let at = doubted.map(|at| at as usize);
    let mut bytes = bytes_of(stage, inode, block)?;
    if block.0 == 0 {
        let owner = stage.read_inode(inode).ok()?;
        XattrArea::of_inode(&bytes)?;
        let left = salvage_in_inode(stage, &owner, &mut bytes, doubted);
        let edit = InodeEdit::SalvageAttributes { doubted };
        return (left > 0).then_some(Edit::Inode { inode, edit });
    }
    let left = xattr::salvage_block(&mut bytes, at, |entry| holds_value(stage, None, entry));
    let edit = AttributeBlockEdit::Salvage { doubted };
    (left > 0).then_some(Edit::AttributeBlock { block, edit })
}

/// Whether the inode that an entry names holds its value, by hash, size and the bytes of the value. `owner`: the inode with the
/// attribute, if it is in that.
pub(super) fn holds_value(
    stage: &Stage<'_>,
    owner: Option<&InodeImage>,
    entry: &XattrEntry<'_>,
) -> bool {
    let Some(holder) = holder_of(stage, entry) else { return false };
    let is_marked = holder.flags().contains(InodeFlags::EA_INODE);
    let is_lustre = || {
        owner.is_some_and(|owner| is_of_lustre(&holder.base, (owner.number, owner.base.generation)))
    };
    entry.value_size != 0
        && u64::from(entry.value_size) == holder.size_bytes()
        && (holder.base.links_count > 0 || is_marked)
        && (is_lustre()
            || (has_hash_of_inode(entry, stored_hash(&holder.base)) && has_value(stage, &holder)))
}

/// The inode that an entry names, if it may be the home of a value.
fn holder_of(stage: &Stage<'_>, entry: &XattrEntry<'_>) -> Option<InodeImage> {
    let number = entry.value_inode.filter(|&number| number >= stage.geometry.first_inode)?;
    stage.read_inode(number).ok()
}

/// The edit for an attribute whose value inode is wrong or shorter than the value size, if the
/// value itself reveals which field is wrong; `None` without such proof.
fn mended_value(stage: &Stage<'_>, problem: &Problem) -> Option<Edit> {
    let (inode, block, offset_bytes) = match *problem {
        Problem::XattrValueSizeBad { inode, block, offset_bytes, .. }
        | Problem::XattrEaInodeNumberBad { inode, block, offset_bytes, .. }
        | Problem::XattrHashBad { inode, block, offset_bytes, .. } => (inode, block, offset_bytes),
        _ => return None,
    };
    entry_at(stage, inode, block, offset_bytes, |area, entry| {
        if area.has_value_here(entry) {
            return Some(Edit::Inode { inode, edit: InodeEdit::ValueHere { block, offset_bytes } });
        }
        match problem {
            Problem::XattrValueSizeBad { .. } => mended_value_size(stage, inode, block, entry),
            _ => mended_value_hash(stage, entry),
        }
    })?
}

/// For an attribute whose hash is not that which its value inode gives it: the value itself may have it, so that only the
/// inode remembers a wrong one.
fn mended_value_hash(stage: &Stage<'_>, entry: &XattrEntry<'_>) -> Option<Edit> {
    let holder = holder_of(stage, entry)?;
    let size = holder.size_bytes();
    if u64::from(entry.value_size) != size {
        return None;
    }
    let hash = value_hash(stage.seed, &content(stage, &holder, size)?);
    let edit = InodeEdit::ValueHash(hash);
    has_hash_of_inode(entry, hash).then_some(Edit::Inode { inode: holder.number, edit })
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
