//! Inline directories: `.` is implied, `..` is the first four bytes of `i_block`, entries fill the
//! rest of it and then the value of the attribute `system.data`.

use floe_format::InodeNr;
use floe_format::ext::dirent::{DirCursor, MIN_REC_LEN};
use floe_format::ext::inline_data::{IN_BLOCK_SIZE, PARENT_SIZE};

use super::area::{inode_at, insert as insert_into, write_empty};
use super::gather::collect;
use super::rebuild::{Rebuilt, rebuild};
use super::{AreaForm, DirFormat, Directory, Entry};

/// The first part: the bytes behind the parent in the 60 bytes of `i_block`.
pub fn first_part(in_block: &mut [u8]) -> &mut [u8] {
    in_block.get_mut(PARENT_SIZE..).unwrap_or_default()
}

/// The second part: the value of `system.data`, cut to a multiple of 4; empty if no entry fits.
pub fn second_part(value: &mut [u8]) -> &mut [u8] {
    let len = part_len(value);
    value.get_mut(..len).unwrap_or_default()
}

fn part_len(value: &[u8]) -> usize {
    let len = value.len() & !3;
    if len < MIN_REC_LEN as usize { 0 } else { len }
}

/// The inode that `..` names; 0 if `in_block` is too short.
pub fn parent(in_block: &[u8]) -> InodeNr {
    inode_at(in_block, 0).unwrap_or_default()
}

/// Makes `..` name another directory and returns the inode it named.
pub fn set_parent(in_block: &mut [u8], new: InodeNr) -> Option<InodeNr> {
    let old = inode_at(in_block, 0)?;
    in_block.get_mut(..PARENT_SIZE)?.copy_from_slice(&new.0.to_le_bytes());
    Some(old)
}

/// `i_block` of an inline directory without names.
pub fn fresh(parent: InodeNr) -> [u8; IN_BLOCK_SIZE] {
    let mut in_block = [0; IN_BLOCK_SIZE];
    // Both fit in 60 bytes.
    let _ = set_parent(&mut in_block, parent);
    let _ = write_empty(first_part(&mut in_block), 0, IN_BLOCK_SIZE - PARENT_SIZE);
    in_block
}

/// The second part of an inline directory without names: `len_bytes` bytes with one unused entry,
/// or only zeroes if that is too short for an entry.
pub fn fresh_second(len_bytes: usize) -> Vec<u8> {
    let mut value = vec![0; len_bytes];
    let part = second_part(&mut value);
    let len = part.len();
    // The part is empty, or long enough for an entry.
    let _ = write_empty(part, 0, len);
    value
}

/// Inserts an entry into the first part that has space for it; returns the part (0 or 1) and the
/// offset there. `None`: the directory must be converted to blocks, see [`to_blocks`].
pub fn insert(
    in_block: &mut [u8],
    value: &mut [u8],
    form: AreaForm,
    entry: &Entry<'_>,
) -> Option<(u32, u32)> {
    let form = AreaForm { tail: false, ..form };
    let parts = [first_part(in_block), second_part(value)];
    (0..).zip(parts).find_map(|(part, area)| Some((part, insert_into(area, form, entry)?)))
}

/// The entries in use of both parts; each is read up to its first broken entry.
pub fn gather<'a>(in_block: &'a [u8], value: &'a [u8], form: AreaForm) -> Vec<Entry<'a>> {
    let mut entries = Vec::new();
    let first = in_block.get(PARENT_SIZE..).unwrap_or_default();
    let second = value.get(..part_len(value)).unwrap_or_default();
    for area in [first, second] {
        collect(DirCursor::new(area).hashed(form.hashed), form.hashed, &mut entries);
    }
    entries
}

/// Converts the directory to blocks: usually one, with `.`, `..` (the parent of `dir`) and all
/// entries.
pub fn to_blocks(in_block: &[u8], value: &[u8], format: &DirFormat, dir: &Directory) -> Rebuilt {
    rebuild(format, dir, 1, false, gather(in_block, value, dir.inline_form(format)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::tests::{directory, format};
    use crate::dir::{clear, gather as gather_blocks, remove, salvage};
    use floe_format::ext::inline_data::InlineData;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_fill_both_parts_and_move_to_a_block(
            lens in proptest::collection::vec(1usize..=60, 0..12), rest in 0usize..160, hashed: bool,
        ) {
            let dir = Directory { encrypted: hashed, casefolded: hashed, ..directory() };
            let format = format(1024, true);
            let form = dir.inline_form(&format);
            let (mut in_block, mut value) = (fresh(dir.parent), vec![0; rest]);
            let second = second_part(&mut value);
            if !second.is_empty() {
                let len = second.len();
                write_empty(second, 0, len).unwrap();
            }
            salvage(second_part(&mut value), form, 100);
            let mut there = Vec::new();
            for (at, len) in lens.iter().enumerate() {
                let name: Vec<u8> = format!("{at:02}").bytes().cycle().take(*len).collect();
                if there.contains(&name) {
                    continue;
                }
                let mut entry = Entry::new(InodeNr(at as u32 + 11), name.clone(), 1);
                entry.hash = hashed.then_some((at as u32 * 2, 1));
                if insert(&mut in_block, &mut value, form, &entry).is_some() {
                    there.push(name);
                }
            }
            there.sort();
            prop_assert_eq!(parent(&in_block), dir.parent);
            let names = |entries: Vec<Entry<'_>>| {
                let mut names: Vec<_> = entries.into_iter().map(|e| e.name.into_owned()).collect();
                names.sort();
                names
            };
            prop_assert_eq!(names(gather(&in_block, &value, form)), there.clone());
            // The reader in the format crate returns the same.
            let data = InlineData { in_block: &in_block, in_xattr: &value };
            let read = data.first_entries().hashed(hashed).map(Result::unwrap)
                .filter(|entry| entry.in_use()).count();
            prop_assert!(read <= there.len());
            let moved = to_blocks(&in_block, &value, &format, &dir);
            prop_assert!(!moved.indexed && moved.settled.is_empty());
            prop_assert_eq!(names(gather_blocks(&moved.content, &format, &dir)), there);
        }

        #[test]
        fn any_bytes_may_come(
            mut in_block in proptest::collection::vec(any::<u8>(), 0..70),
            mut value in proptest::collection::vec(any::<u8>(), 0..70), offset in 0u32..80,
        ) {
            let (format, dir) = (format(1024, true), directory());
            let form = dir.inline_form(&format);
            let _ = (parent(&in_block), gather(&in_block, &value, form).len());
            let _ = to_blocks(&in_block, &value, &format, &dir);
            let _ = set_parent(&mut in_block, InodeNr(3));
            let _ = insert(&mut in_block, &mut value, form, &Entry::new(InodeNr(5), &b"x"[..], 1));
            let _ = remove(first_part(&mut in_block), form, offset);
            let _ = clear(second_part(&mut value), offset);
            salvage(first_part(&mut in_block), form, 100);
            salvage(second_part(&mut value), form, 100);
        }
    }
}
