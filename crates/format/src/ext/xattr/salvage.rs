//! Keeps the attributes of a damaged area that prove themselves.

use super::{
    Chars, ENTRY_SIZE, MAX_VALUE_SIZE, XattrArea, XattrEntry, XattrHeader, block_hash, entry_hash,
    padded,
};

/// The end marker behind the entries.
const MARKER_SIZE: usize = 4;

/// An attribute that is kept: bytes of its entry, and those of its value in the area.
struct Kept {
    entry: std::ops::Range<usize>,
    value: std::ops::Range<usize>,
    hash: u32,
}

/// Builds the attributes of an inode again: those that prove themselves stay, the others go. `area` is what follows the
/// magic. See [`salvage_block`].
pub fn salvage_inode(
    area: &mut [u8],
    doubted: Option<usize>,
    holds: impl FnMut(&XattrEntry<'_>) -> bool,
) -> usize {
    salvage(area, 0, doubted, holds).len()
}

/// Builds an attribute block again: those attributes stay that can be followed, have a hash that fits, and a value behind
/// all entries that overlaps no other. An attribute in an inode may lack a hash; then the list must be whole, and nothing else
/// may claim the place of its value. The attribute at byte `doubted` goes in any case. `holds` tells whether an inode holds
/// the value of an entry that names one. Values stay at their places. Returns how many attributes are left; the checksum is the
/// caller's.
pub fn salvage_block(
    block: &mut [u8],
    doubted: Option<usize>,
    holds: impl FnMut(&XattrEntry<'_>) -> bool,
) -> usize {
    if block.len() < XattrHeader::SIZE {
        return 0;
    }
    let kept = salvage(block, XattrHeader::SIZE, doubted, holds);
    if let Some(head) = block.first_chunk_mut() {
        let mut header = XattrHeader::decode(head);
        header.blocks = 1;
        header.hash = block_hash(kept.iter().map(|attribute| attribute.hash));
        header.encode_into(head);
    }
    kept.len()
}

fn salvage(
    area: &mut [u8],
    first: usize,
    doubted: Option<usize>,
    mut holds: impl FnMut(&XattrEntry<'_>) -> bool,
) -> Vec<Kept> {
    let old = area.to_vec();
    let before = XattrArea { bytes: &old, first };
    let is_list_whole = before.entries().all(|entry| entry.is_ok());
    let mut kept: Vec<Kept> = Vec::new();
    for entry in before.entries().map_while(Result::ok) {
        let is_believed = match entry.value_inode {
            Some(_) => holds(&entry),
            None => {
                is_hash_right(&before, &entry)
                    || (first == 0
                        && entry.hash == 0
                        && is_list_whole
                        && is_alone(&before, &entry, doubted))
            }
        };
        // Linux knows no attribute of class 0 in a block.
        let has_class = first == 0 || entry.name_index != 0;
        if is_believed && has_class && doubted != Some(entry.offset) {
            let end = entry.offset + ENTRY_SIZE + padded(entry.name.len());
            let value = place_of_value(&before, &entry).unwrap_or(0..0);
            kept.push(Kept { entry: entry.offset..end, value, hash: entry.hash });
        }
    }
    drop_collisions(&mut kept, first, area.len());
    area[first..].fill(0);
    let mut at = first;
    for Kept { entry, value, .. } in &kept {
        area[at..at + entry.len()].copy_from_slice(&old[entry.clone()]);
        at += entry.len();
        area[value.clone()].copy_from_slice(&old[value.clone()]);
    }
    kept
}

/// Where the value of an entry lies, with the padding behind it; `None` if it is no place in the area.
fn place_of_value(area: &XattrArea<'_>, entry: &XattrEntry<'_>) -> Option<std::ops::Range<usize>> {
    if entry.value_inode.is_some() || entry.value_size == 0 {
        return Some(0..0);
    }
    let start = usize::from(entry.value_offs);
    let end = start.checked_add(padded(entry.value_size as usize))?;
    (entry.value_size <= MAX_VALUE_SIZE && end <= area.bytes.len()).then_some(start..end)
}

fn is_hash_right(area: &XattrArea<'_>, entry: &XattrEntry<'_>) -> bool {
    let value = place_of_value(area, entry).and_then(|_| area.hashed_value(entry));
    value.is_some_and(|value| {
        let is = |chars| entry.hash == entry_hash(entry.name, value, chars);
        is(Chars::Unsigned) || is(Chars::Signed)
    })
}

/// Whether the value of an entry lies in the area, and no other entry but the doubted one claims part of its place.
fn is_alone(area: &XattrArea<'_>, entry: &XattrEntry<'_>, doubted: Option<usize>) -> bool {
    let Some(own) = place_of_value(area, entry) else { return false };
    let others = area
        .entries()
        .map_while(Result::ok)
        .filter(|other| other.offset != entry.offset && doubted != Some(other.offset));
    others
        .filter_map(|other| place_of_value(area, &other))
        .all(|other| own.is_empty() || other.end <= own.start || own.end <= other.start)
}

/// Removes attributes whose values overlap what is in front of them: entries that are kept, or another's value.
fn drop_collisions(kept: &mut Vec<Kept>, first: usize, len: usize) {
    loop {
        let entries: usize = kept.iter().map(|attribute| attribute.entry.len()).sum();
        let end = first + entries + MARKER_SIZE;
        let mut places: Vec<_> = kept
            .iter()
            .enumerate()
            .filter(|(_, attribute)| !attribute.value.is_empty())
            .map(|(index, attribute)| (attribute.value.start, attribute.value.end, index))
            .collect();
        places.sort_unstable();
        let mut free_from = end;
        let mut hit = None;
        for (start, stop, index) in places {
            if start < free_from {
                hit = Some(index);
                break;
            }
            free_from = stop;
        }
        // Without room for the marker the last one goes.
        let full = (end > len && !kept.is_empty()).then(|| kept.len() - 1);
        let Some(index) = hit.or(full) else { return };
        kept.remove(index);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{INDEX_USER, NewValue, NewXattr, write_block, write_inode};
    use super::*;
    use crate::{BlockNr, InodeNr};

    const NAMES: [&[u8]; 3] = [b"one", b"second", b"third"];
    const VALUES: [&[u8]; 3] = [b"value", b"another value", b"x"];

    fn attributes() -> Vec<NewXattr<'static>> {
        let value = NewValue::Here;
        let attribute =
            |(name, bytes)| NewXattr { name_index: INDEX_USER, name, value: value(bytes) };
        NAMES.into_iter().zip(VALUES).map(attribute).collect()
    }

    /// An area of three attributes, behind its magic.
    fn area() -> Vec<u8> {
        let mut bytes = vec![0; 132];
        write_inode(&mut bytes, &attributes()).unwrap();
        bytes.split_off(4)
    }

    fn names(area: &[u8]) -> Vec<Vec<u8>> {
        let area = XattrArea { bytes: area, first: 0 };
        assert!(area.check().is_ok());
        area.entries().map(|entry| entry.unwrap().name.to_vec()).collect()
    }

    /// Byte of the entry of an attribute.
    fn entry(bytes: &[u8], index: usize) -> usize {
        XattrArea { bytes, first: 0 }.entries().nth(index).unwrap().unwrap().offset
    }

    #[test]
    fn a_sound_area_stays_as_it_is() {
        let whole = area();
        let mut bytes = whole.clone();
        assert_eq!(salvage_inode(&mut bytes, None, |_| false), 3);
        assert_eq!(bytes, whole);
    }

    #[test]
    fn each_byte_of_an_entry_costs_that_attribute_at_most() {
        let whole = area();
        for index in 0..3 {
            let at = entry(&whole, index);
            // Place and size of the value.
            for byte in [2, 3, 8, 9, 10, 11] {
                let mut bytes = whole.clone();
                bytes[at + byte] ^= 0xa5;
                salvage_inode(&mut bytes, Some(at), |_| false);
                let mut expected: Vec<Vec<u8>> = NAMES.iter().map(|name| name.to_vec()).collect();
                expected.remove(index);
                assert_eq!(names(&bytes), expected, "byte {byte} of entry {index}");
            }
        }
    }

    #[test]
    fn without_hashes_a_list_that_is_cut_proves_nothing() {
        let whole = area();
        let at = entry(&whole, 1);
        let mut bytes = whole;
        bytes[at] = 250;
        assert_eq!(salvage_inode(&mut bytes, None, |_| false), 0);
        assert!(names(&bytes).is_empty());
    }

    #[test]
    fn hashes_prove_attributes_in_front_of_a_cut() {
        let mut block = vec![0; 1024];
        write_block(&mut block, &attributes(), None, BlockNr(7), InodeNr(12)).unwrap();
        let whole = block.clone();
        let second = XattrArea::of_block(&whole).unwrap().entries().nth(1).unwrap().unwrap();
        block[second.offset] = 255;
        block[8] = 3;
        assert_eq!(salvage_block(&mut block, None, |_| false), 1);
        let area = XattrArea::of_block(&block).unwrap();
        assert_eq!(area.check(), Ok(1));
        let header = XattrHeader::decode(block.first_chunk().unwrap());
        assert_eq!(header.blocks, 1);
        // All of them are kept if only the header was wrong.
        let mut block = whole.clone();
        block[8] = 3;
        assert_eq!(salvage_block(&mut block, None, |_| false), 3);
        assert_eq!(block, whole);
    }

    #[test]
    fn an_inode_with_a_value_is_asked_for() {
        let whole = area();
        let at = entry(&whole, 2);
        for holds in [false, true] {
            let mut bytes = whole.clone();
            bytes[at + 4] = 99;
            let left = salvage_inode(&mut bytes, None, |_| holds);
            assert_eq!(left, 2 + usize::from(holds));
        }
    }
}
