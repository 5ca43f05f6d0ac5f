//! Check: attributes behind the extra fields of an inode.
//! Emits: `XattrIbodyOverlap`, `XattrValueSizeBad`, `XattrHashBad`, and those
//! of `names`, `lists` and `value_inode`. The first fault ends it: all attributes of the inode are dropped together.

use floe_format::ext::inline_data;
use floe_format::ext::xattr::{
    Chars, ENTRY_SIZE, IBODY_HEADER_SIZE, INDEX_SYSTEM, XattrArea, XattrEntry, entry_hash, padded,
};
use floe_format::{BlockNr, InodeNr};

use super::value_inode::{self, Home};
use super::{OfInode, lists, names};
use crate::checks::context::inode::{InodeCx, InodeEvidence};
use crate::evidence::region::Region;
use crate::problem::{Problem, Sink};

/// Checks the in-inode attributes of an inode that has some; `i_extra_isize` is sound.
pub(super) fn check(cx: &InodeCx<'_>, evidence: &mut InodeEvidence, found: &mut OfInode) {
    let bytes = cx.inode.xattr_area();
    let mut region = std::mem::take(&mut evidence.buffers.region);
    let mut values_elsewhere = false;
    let mut of_inode = OfInode::default();
    let mut nowhere = false;
    let judged = walk(cx.number, bytes, &mut region, |special| {
        match special {
            Special::ValueElsewhere(area, entry, value_inode) => {
                values_elsewhere = true;
                let home = Home { volume: cx.volume, inode: cx.number, block: BlockNr(0) };
                let blocks =
                    value_inode::check(home, area, entry, value_inode, &mut evidence.found)?;
                of_inode.ea_inode_blocks = of_inode.ea_inode_blocks.saturating_add(blocks);
                of_inode.ea_inodes += 1;
            }
            Special::InlineData(value) => {
                of_inode.inline_bytes = value.map(|value| value.len() as u32);
            }
            Special::ValueNowhere => nowhere = true,
            Special::Fault(problem) => evidence.found.push(problem),
        }
        Ok(())
    });
    evidence.buffers.region = region;
    if judged.is_err() || values_elsewhere {
        let Some(area) = XattrArea::of_inode(bytes) else { return };
        value_inode::count_references(cx.volume, &area, |inode| {
            evidence.attributes.add_reference(inode, 1);
        });
    }
    // A usable `system.data` in front of the damage is still usable.
    found.inline_bytes = of_inode.inline_bytes.filter(|_| !nowhere);
    match judged {
        Ok(()) => {
            found.ea_inode_blocks += of_inode.ea_inode_blocks;
            found.ea_inodes += of_inode.ea_inodes;
        }
        Err(problem) => evidence.found.push(problem),
    }
}

/// Whether the attributes of an inode are in order and nothing needs to be kept of them: each value
/// lies beside its name, and none is the inode's data. `bytes` is its attribute area.
#[inline]
pub(crate) fn are_plain(inode: InodeNr, bytes: &[u8], region: &mut Region) -> bool {
    let mut plain = true;
    let judged = walk(inode, bytes, region, |_| {
        plain = false;
        Ok(())
    });
    judged.is_ok() && plain
}

/// An attribute that is more than bytes of its own.
enum Special<'e> {
    /// Its value is in an inode of its own.
    ValueElsewhere(&'e XattrArea<'e>, &'e XattrEntry<'e>, InodeNr),
    /// Data of the inode, if it can be used.
    InlineData(Option<&'e [u8]>),
    /// Its name or its list is none; everything else may be right.
    Fault(Problem),
    /// No bytes, but at a place that is not there. It hurts nobody but the data of the inode: e2fsck's
    /// library finds either all attributes or none.
    ValueNowhere,
}

/// Judges all attributes of an inode; `each` is told of the special ones.
fn walk(
    inode: InodeNr,
    bytes: &[u8],
    region: &mut Region,
    mut each: impl FnMut(Special<'_>) -> Result<(), Problem>,
) -> Result<(), Problem> {
    let Some(area) = XattrArea::of_inode(bytes) else { return Ok(()) };
    let overlap = |offset: usize| Problem::XattrIbodyOverlap { inode, offset_bytes: offset as u32 };
    region.reset(bytes.len());
    region.take(0, IBODY_HEADER_SIZE);
    let room = bytes.len().saturating_sub(IBODY_HEADER_SIZE);
    // Bytes that entries and values, the latter unpadded, may still take. (The end marker needs room
    // too.)
    let mut left = room;
    let mut end = 0;
    for entry in area.entries() {
        // Offsets count from the first entry, behind the magic.
        let entry = entry.map_err(|fault| overlap(fault.offset))?;
        let len = ENTRY_SIZE + padded(entry.name.len());
        end = entry.offset + len;
        if !region.take(IBODY_HEADER_SIZE + entry.offset, len) {
            return Err(overlap(entry.offset));
        }
        // Values that do not overlap always fit.
        left = left.checked_sub(len).ok_or_else(|| overlap(entry.offset))?;
        if let Some(problem) = names::fault(inode, BlockNr(0), &entry) {
            each(Special::Fault(problem))?;
        }
        match entry.value_inode {
            Some(value_inode) => each(Special::ValueElsewhere(&area, &entry, value_inode))?,
            None => {
                judge_value(inode, &area, &entry, &mut left, region)?;
                if let Some(problem) = lists::fault(inode, BlockNr(0), &area, &entry) {
                    each(Special::Fault(problem))?;
                }
            }
        }
        if entry.value_inode.is_none() && usize::from(entry.value_offs) > room {
            each(Special::ValueNowhere)?;
        }
        if entry.name_index == INDEX_SYSTEM && entry.name == inline_data::ATTRIBUTE_NAME {
            each(Special::InlineData(area.value(&entry)))?;
        }
    }
    if region.take(IBODY_HEADER_SIZE + end, 4) { Ok(()) } else { Err(overlap(end)) }
}

/// Judges a value that lies in the inode.
fn judge_value(
    inode: InodeNr,
    area: &XattrArea<'_>,
    entry: &XattrEntry<'_>,
    left: &mut usize,
    region: &mut Region,
) -> Result<(), Problem> {
    let (block, offset_bytes) = (BlockNr(0), entry.offset as u32);
    let (size, value_size) = (entry.value_size as usize, entry.value_size);
    *left = left.checked_sub(size).ok_or(Problem::XattrValueSizeBad {
        inode,
        block,
        offset_bytes,
        value_size,
    })?;
    let start = IBODY_HEADER_SIZE + usize::from(entry.value_offs);
    if size != 0 && !region.take(start, padded(size)) {
        return Err(Problem::XattrIbodyOverlap { inode, offset_bytes });
    }
    // Old kernels wrote no hash here.
    let Some(value) = area.hashed_value(entry).filter(|_| entry.hash != 0) else {
        return Ok(());
    };
    let expected = entry_hash(entry.name, value, Chars::Unsigned);
    if entry.hash == expected || entry.hash == entry_hash(entry.name, value, Chars::Signed) {
        return Ok(());
    }
    let stored = entry.hash;
    Err(Problem::XattrHashBad { inode, block, offset_bytes, stored, expected })
}
