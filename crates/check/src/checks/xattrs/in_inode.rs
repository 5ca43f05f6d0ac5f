//! Check: attributes behind the extra fields of an inode.
//! Emits: `XattrIbodyOverlap`, `XattrValueSizeBad`, `XattrHashBad`, and those
//! of `value_inode`. The first fault ends it: all attributes of the inode are dropped together.

use floe_format::BlockNr;
use floe_format::ext::inline_data;
use floe_format::ext::xattr::{
    Chars, ENTRY_SIZE, IBODY_HEADER_SIZE, INDEX_SYSTEM, XattrArea, XattrEntry, entry_hash, padded,
};

use crate::inode_pass::{InodeCx, InodeEvidence};
use crate::problem::{Problem, Sink};

use super::OfInode;
use super::region::Region;
use super::value_inode::{self, Home};

/// Checks the in-inode attributes of an inode that has some; `i_extra_isize` is sound.
pub(super) fn check(cx: &InodeCx<'_>, evidence: &mut InodeEvidence, found: &mut OfInode) {
    let bytes = cx.inode.xattr_area();
    let Some(area) = XattrArea::of_inode(bytes) else { return };
    let mut region = std::mem::take(&mut evidence.buffers.region);
    region.reset(bytes.len());
    let mut walk = Walk {
        cx,
        area,
        // The end marker needs room too.
        left: bytes.len().saturating_sub(IBODY_HEADER_SIZE),
        values_elsewhere: false,
        bytes: bytes.len().saturating_sub(IBODY_HEADER_SIZE),
        of_inode: OfInode::default(),
    };
    let judged = walk.run(&mut region, evidence);
    evidence.buffers.region = region;
    if judged.is_err() || walk.values_elsewhere {
        value_inode::count_references(cx.volume, &area, |inode| {
            evidence.attributes.add_reference(inode, 1);
        });
    }
    // A usable `system.data` in front of the damage is still usable.
    found.inline_bytes = walk.of_inode.inline_bytes;
    match judged {
        Ok(()) => {
            found.ea_inode_blocks += walk.of_inode.ea_inode_blocks;
            found.ea_inodes += walk.of_inode.ea_inodes;
        }
        Err(problem) => evidence.found.push(problem),
    }
}

struct Walk<'a> {
    cx: &'a InodeCx<'a>,
    area: XattrArea<'a>,
    /// Bytes that entries and values, the latter unpadded, may still take.
    left: usize,
    values_elsewhere: bool,
    /// Bytes behind the magic.
    bytes: usize,
    of_inode: OfInode,
}

impl Walk<'_> {
    fn run(&mut self, region: &mut Region, evidence: &mut InodeEvidence) -> Result<(), Problem> {
        let inode = self.cx.number;
        let overlap =
            |offset: usize| Problem::XattrIbodyOverlap { inode, offset_bytes: offset as u32 };
        region.take(0, IBODY_HEADER_SIZE);
        let mut end = 0;
        for entry in self.area.entries() {
            // Offsets count from the first entry, behind the magic.
            let entry = entry.map_err(|fault| overlap(fault.offset))?;
            let len = ENTRY_SIZE + padded(entry.name.len());
            end = entry.offset + len;
            if !region.take(IBODY_HEADER_SIZE + entry.offset, len) {
                return Err(overlap(entry.offset));
            }
            // What does not overlap has room.
            self.left = self.left.checked_sub(len).ok_or_else(|| overlap(entry.offset))?;
            self.value(&entry, region, evidence, &overlap)?;
            if entry.name_index == INDEX_SYSTEM && entry.name == inline_data::ATTRIBUTE_NAME {
                // No bytes, but at no place: e2fsck's library does not find the attribute then.
                let inside = usize::from(entry.value_offs) <= self.bytes;
                self.of_inode.inline_bytes =
                    self.area.value(&entry).filter(|_| inside).map(|value| value.len() as u32);
            }
        }
        if region.take(IBODY_HEADER_SIZE + end, 4) { Ok(()) } else { Err(overlap(end)) }
    }

    fn value(
        &mut self,
        entry: &XattrEntry<'_>,
        region: &mut Region,
        evidence: &mut InodeEvidence,
        overlap: &impl Fn(usize) -> Problem,
    ) -> Result<(), Problem> {
        let (inode, block, offset_bytes) = (self.cx.number, BlockNr(0), entry.offset as u32);
        if let Some(value_inode) = entry.value_inode {
            self.values_elsewhere = true;
            let home = Home { volume: self.cx.volume, inode, block };
            let blocks = value_inode::check(home, entry, value_inode, &mut evidence.found)?;
            self.of_inode.ea_inode_blocks = self.of_inode.ea_inode_blocks.saturating_add(blocks);
            self.of_inode.ea_inodes += 1;
            return Ok(());
        }
        let (size, value_size) = (entry.value_size as usize, entry.value_size);
        self.left = self.left.checked_sub(size).ok_or(Problem::XattrValueSizeBad {
            inode,
            block,
            offset_bytes,
            value_size,
        })?;
        let start = IBODY_HEADER_SIZE + usize::from(entry.value_offs);
        if size != 0 && !region.take(start, padded(size)) {
            return Err(overlap(entry.offset));
        }
        // Old kernels wrote no hash here.
        let Some(value) = self.area.hashed_value(entry).filter(|_| entry.hash != 0) else {
            return Ok(());
        };
        let expected = entry_hash(entry.name, value, Chars::Unsigned);
        if entry.hash == expected || entry.hash == entry_hash(entry.name, value, Chars::Signed) {
            return Ok(());
        }
        let stored = entry.hash;
        Err(Problem::XattrHashBad { inode, block, offset_bytes, stored, expected })
    }
}
