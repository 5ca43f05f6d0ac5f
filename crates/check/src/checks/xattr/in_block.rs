//! Check: one attribute block.
//! Emits: `XattrBlockMagicBad`, `XattrBlockCountBad`, `XattrBlockOverlap`, `XattrBlockNameBad`,
//! `XattrBlockValueBad`, `XattrHashBad`, `XattrBlockChecksumBad`, and those of `names`, `lists` and `value_inode`. The
//! first fault ends it: the block is dropped as a whole. A checksum is only judged in a sound block.

use floe_format::ext::xattr::{
    Chars, ENTRY_SIZE, MAGIC, MAX_VALUE_SIZE, XattrArea, XattrEntry, XattrHeader, block_checksum,
    entry_hash, padded,
};

use super::value_inode::{self, Home};
use super::{lists, names};
use crate::evidence::region::Region;
use crate::problem::{Findings, Problem, Sink};

/// Checks a block. Returns its header, and whether the block can be kept: then nothing but its
/// checksum was found wrong.
pub(crate) fn check(
    home: Home<'_>,
    bytes: &[u8],
    region: &mut Region,
    found: &mut Findings,
) -> (XattrHeader, bool) {
    let header = XattrHeader::decode(bytes.first_chunk().unwrap_or(&[0; XattrHeader::SIZE]));
    match judge(home, bytes, &header, region, found) {
        Err(problem) => {
            found.push(problem);
            (header, false)
        }
        Ok(()) => {
            let Home { volume, inode, block } = home;
            if volume.features().metadata_csum() {
                let expected = block_checksum(volume.seed, block, bytes);
                let stored = header.checksum;
                if stored != expected {
                    let problem = Problem::XattrBlockChecksumBad { inode, block, stored, expected };
                    found.push(problem);
                }
            }
            (header, true)
        }
    }
}

fn judge(
    home: Home<'_>,
    bytes: &[u8],
    header: &XattrHeader,
    region: &mut Region,
    found: &mut Findings,
) -> Result<(), Problem> {
    let Home { inode, block, .. } = home;
    if header.magic != MAGIC {
        return Err(Problem::XattrBlockMagicBad { inode, block, stored: header.magic });
    }
    if header.blocks != 1 {
        return Err(Problem::XattrBlockCountBad { inode, block, stored: header.blocks });
    }
    let overlap =
        |offset: usize| Problem::XattrBlockOverlap { inode, block, offset_bytes: offset as u32 };
    let Some(area) = XattrArea::of_block(bytes) else { return Err(overlap(0)) };
    region.reset(bytes.len());
    region.take(0, XattrHeader::SIZE);
    let mut end = XattrHeader::SIZE;
    for entry in area.entries() {
        let entry = entry.map_err(|fault| overlap(fault.offset))?;
        let (offset_bytes, index) = (entry.offset as u32, entry.name_index);
        let len = ENTRY_SIZE + padded(entry.name.len());
        end = entry.offset + len;
        if !region.take(entry.offset, len) {
            return Err(overlap(entry.offset));
        }
        if index == 0 {
            return Err(Problem::XattrBlockNameBad { inode, block, offset_bytes, index });
        }
        if let Some(problem) = names::fault(inode, block, &entry) {
            found.push(problem);
        }
        if let Some(value_inode) = entry.value_inode {
            value_inode::check(home, &area, &entry, value_inode, found)?;
        } else {
            judge_value(home, &area, &entry, bytes.len(), region)?;
            found.0.extend(lists::fault(inode, block, &area, &entry));
        }
    }
    if region.take(end, 4) { Ok(()) } else { Err(overlap(end)) }
}

fn judge_value(
    home: Home<'_>,
    area: &XattrArea<'_>,
    entry: &XattrEntry<'_>,
    block_size: usize,
    region: &mut Region,
) -> Result<(), Problem> {
    let Home { inode, block, .. } = home;
    let (start, size) = (usize::from(entry.value_offs), entry.value_size as usize);
    let offset_bytes = entry.offset as u32;
    if entry.value_size > MAX_VALUE_SIZE || start + size > block_size {
        return Err(Problem::XattrBlockValueBad {
            inode,
            block,
            offset_bytes,
            value_offset: u32::from(entry.value_offs),
            value_size: entry.value_size,
        });
    }
    if size != 0 && !region.take(start, padded(size)) {
        return Err(Problem::XattrBlockOverlap { inode, block, offset_bytes });
    }
    let value = area.hashed_value(entry).unwrap_or(&[]);
    let expected = entry_hash(entry.name, value, Chars::Unsigned);
    let stored = entry.hash;
    if stored == expected || stored == entry_hash(entry.name, value, Chars::Signed) {
        return Ok(());
    }
    Err(Problem::XattrHashBad { inode, block, offset_bytes, stored, expected })
}
