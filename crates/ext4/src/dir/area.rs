//! Edits of single entries.

use floe_format::InodeNr;
use floe_format::ext::casefold;
use floe_format::ext::dirent::{
    DirCursor, HEADER_SIZE, MAX_NAME_LEN, decode_rec_len, encode_rec_len, write_entry,
    write_entry_hash,
};
use floe_format::layout::{le16_at, le32_at};

use super::{AreaForm, Entry};

/// Replaces a byte that a name must not contain.
const REPLACEMENT: u8 = b'.';

/// Inserts an entry where there is space: over an unused entry, or behind an entry whose record is
/// longer than its name needs. Returns its offset. `None` if there is no such place, or the entry
/// has no name or no inode.
pub fn insert(area: &mut [u8], form: AreaForm, entry: &Entry<'_>) -> Option<u32> {
    let name: &[u8] = &entry.name;
    if entry.inode.0 == 0 || name.is_empty() || name.len() > MAX_NAME_LEN {
        return None;
    }
    let wanted = form.needed(name);
    let size = area.len();
    let (at, used, rec_len) = DirCursor::new(area)
        .ending_at(form.end(size))
        .hashed(form.hashed)
        .map_while(Result::ok)
        .map(|old| {
            let used = if old.in_use() { form.needed(old.name).max(form.least()) } else { 0 };
            (old.offset as usize, used, old.rec_len as usize)
        })
        .find(|(_, used, rec_len)| rec_len.saturating_sub(*used) >= wanted)?;
    let rest = u32::try_from(rec_len - used).ok()?;
    encode_rec_len(rest, size)?;
    if used > 0 {
        set_rec_len(area, at, used)?;
    }
    let file_type = if form.filetype { entry.file_type } else { 0 };
    let record = area.get_mut(at + used..at + rec_len)?;
    write_entry(record, entry.inode, rest, name, file_type, size)?;
    if form.hashed {
        write_entry_hash(record, name.len(), entry.hash.unwrap_or((0, 0)))?;
    }
    u32::try_from(at + used).ok()
}

/// Makes the entry at an offset an unused one. Its length and name stay.
pub fn clear(area: &mut [u8], offset: u32) -> Option<()> {
    set_inode(area, offset, InodeNr(0))
}

/// Removes an entry by merging its record into the one before. The first entry of an area becomes
/// an unused one. `None` if no entry starts at this offset.
pub fn remove(area: &mut [u8], form: AreaForm, offset: u32) -> Option<()> {
    let mut before = None;
    let found = DirCursor::new(area)
        .ending_at(form.end(area.len()))
        .hashed(form.hashed)
        .map_while(Result::ok)
        .find_map(|entry| {
            if entry.offset == offset {
                return Some(entry.rec_len);
            }
            before = Some(entry.offset);
            None
        })?;
    match before {
        Some(before) => {
            let whole = (offset - before).checked_add(found)?;
            set_rec_len(area, before as usize, whole as usize)
        }
        None => clear(area, offset),
    }
}

/// Makes the entry at an offset name another inode.
pub fn set_inode(area: &mut [u8], offset: u32, inode: InodeNr) -> Option<()> {
    header(area, offset)?.get_mut(..4)?.copy_from_slice(&inode.0.to_le_bytes());
    Some(())
}

/// Sets the type byte of the entry at an offset.
pub fn set_type(area: &mut [u8], offset: u32, file_type: u8) -> Option<()> {
    *header(area, offset)?.get_mut(7)? = file_type;
    Some(())
}

/// Replaces slashes and zero bytes in the name of the entry at an offset by dots
/// (`dirent-name-illegal-char`).
pub fn replace_illegal_bytes(area: &mut [u8], offset: u32) -> Option<()> {
    name_mut(area, offset)?
        .iter_mut()
        .filter(|byte| matches!(byte, b'/' | 0))
        .for_each(|byte| *byte = REPLACEMENT);
    Some(())
}

/// Replaces the name of the entry at an offset, from its first invalid character on, by dots, up to
/// a zero byte if there is one (`casefold-name-invalid-encoding`).
pub fn replace_invalid_text(area: &mut [u8], offset: u32) -> Option<()> {
    let name = name_mut(area, offset)?;
    if let Err(casefold::InvalidAt(at)) = casefold::validate(name) {
        name.get_mut(at..)?
            .iter_mut()
            .take_while(|byte| **byte != 0)
            .for_each(|byte| *byte = REPLACEMENT);
    }
    Some(())
}

/// Makes the last entry end at the end of the area, before any tail (`last-dirent-length-wrong`).
/// `None` if the entries cannot be followed.
pub fn close(area: &mut [u8], form: AreaForm) -> Option<()> {
    let end = form.end(area.len());
    let whole = |at| rec_len_at(area, at).filter(|len| *len >= HEADER_SIZE);
    let (mut at, mut len) = (0, whole(0)?);
    while at + len < end
        && let Some(next) = whole(at + len)
    {
        (at, len) = (at + len, next);
    }
    set_rec_len(area, at, end.checked_sub(at)?)
}

/// The name of the entry at an offset; `None` if it does not lie inside the area.
fn name_mut(area: &mut [u8], offset: u32) -> Option<&mut [u8]> {
    let start = (offset as usize).checked_add(HEADER_SIZE)?;
    let len = usize::from(*area.get(start - 2)?);
    area.get_mut(start..start + len)
}

fn header(area: &mut [u8], offset: u32) -> Option<&mut [u8]> {
    let at = offset as usize;
    area.get_mut(at..at.checked_add(HEADER_SIZE)?)
}

/// The `rec_len` of the entry at an offset.
pub(super) fn rec_len_at(area: &[u8], at: usize) -> Option<usize> {
    let stored = le16_at(area, at.checked_add(4)?)?;
    Some(decode_rec_len(stored, area.len()) as usize)
}

/// Stores the `rec_len` of the entry at an offset.
pub(super) fn set_rec_len(area: &mut [u8], at: usize, rec_len: usize) -> Option<()> {
    let stored = encode_rec_len(u32::try_from(rec_len).ok()?, area.len())?;
    area.get_mut(at.checked_add(4)?..at.checked_add(6)?)?.copy_from_slice(&stored.to_le_bytes());
    Some(())
}

/// Whether the entry at an offset has the name `name`.
pub(super) fn is_named(area: &[u8], at: usize, name: &[u8]) -> bool {
    let len = area.get(at.saturating_add(6)).copied().map(usize::from);
    let start = at.saturating_add(HEADER_SIZE);
    len == Some(name.len()) && area.get(start..start.saturating_add(name.len())) == Some(name)
}

/// The inode that the entry at an offset names.
pub(super) fn inode_at(area: &[u8], at: usize) -> Option<InodeNr> {
    le32_at(area, at).map(InodeNr)
}

/// Makes what starts at byte `at` an unused entry of `rec_len` bytes.
pub(super) fn write_empty(area: &mut [u8], at: usize, rec_len: usize) -> Option<()> {
    let size = area.len();
    let rec_len = u32::try_from(rec_len).ok()?;
    write_entry(area.get_mut(at..)?, InodeNr(0), rec_len, b"", 0, size)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::salvage;
    use proptest::prelude::*;

    const FORM: AreaForm = AreaForm { tail: true, hashed: false, filetype: true };

    fn names(area: &[u8], form: AreaForm) -> Vec<Vec<u8>> {
        DirCursor::new(area)
            .ending_at(form.end(area.len()))
            .hashed(form.hashed)
            .map(Result::unwrap)
            .filter(|entry| entry.in_use())
            .map(|entry| entry.name.to_vec())
            .collect()
    }

    fn empty(size: usize, form: AreaForm) -> Vec<u8> {
        let mut area = vec![0; size];
        let end = form.end(size);
        write_empty(&mut area, 0, end).unwrap();
        area
    }

    proptest! {
        /// Inserted entries are found and can be removed in any order; inserting into a full area
        /// returns `None` and changes nothing.
        #[test]
        fn entries_come_and_go(
            lens in proptest::collection::vec(1usize..=255, 1..40),
            size in prop_oneof![Just(56usize), Just(160), Just(1024), Just(4096), Just(65536)],
            tail: bool, hashed: bool, seed: u64,
        ) {
            let form = AreaForm { tail, hashed, filetype: true };
            let mut area = empty(size, form);
            let mut there: Vec<Vec<u8>> = Vec::new();
            for (at, len) in lens.iter().enumerate() {
                let name: Vec<u8> = format!("{at:03}").bytes().cycle().take(*len).collect();
                if there.contains(&name) {
                    continue;
                }
                let mut entry = Entry::new(InodeNr(at as u32 + 11), name.clone(), 1);
                entry.hash = Some((at as u32, 7));
                let before = area.clone();
                if let Some(offset) = insert(&mut area, form, &entry) {
                    prop_assert!(is_named(&area, offset as usize, &name));
                    there.push(name);
                } else {
                    prop_assert_eq!(&before, &area);
                    let free = form.end(size) - there.iter().map(|n| form.needed(n)).sum::<usize>();
                    prop_assert!(free < form.needed(&name) || !there.is_empty());
                }
                let mut wanted = there.clone();
                let mut have = names(&area, form);
                wanted.sort();
                have.sort();
                prop_assert_eq!(wanted, have);
            }
            let mut order = seed;
            while !there.is_empty() {
                order = order.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let entries: Vec<_> = DirCursor::new(&area).ending_at(form.end(size)).hashed(hashed)
                    .map(Result::unwrap).filter(|e| e.in_use())
                    .map(|e| (e.offset, e.name.to_vec())).collect();
                let (offset, name) = entries[(order >> 33) as usize % entries.len()].clone();
                if order & (1 << 40) == 0 {
                    remove(&mut area, form, offset).unwrap();
                } else {
                    clear(&mut area, offset).unwrap();
                }
                there.retain(|one| *one != name);
                let (mut wanted, mut have) = (there.clone(), names(&area, form));
                wanted.sort();
                have.sort();
                prop_assert_eq!(wanted, have);
            }
        }

        /// No bytes and no offset cause a panic, and a valid chain stays valid.
        #[test]
        fn any_bytes_may_come(
            bytes in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(12)], 0..300),
            offset in prop_oneof![0u32..320, any::<u32>()],
            tail: bool, hashed: bool, whole: bool,
        ) {
            let form = AreaForm { tail, hashed, filetype: true };
            let mut area = bytes;
            if whole {
                area.truncate(area.len() / 4 * 4);
                salvage(&mut area, form, 100);
            }
            let is_whole = |area: &[u8]| {
                DirCursor::new(area).ending_at(form.end(area.len())).hashed(form.hashed).all(|e| e.is_ok())
            };
            let was_whole = is_whole(&area);
            let entry = Entry::new(InodeNr(5), &b"a name that is long"[..], 1);
            let offset_of_entry = DirCursor::new(&area).ending_at(form.end(area.len()))
                .map_while(Result::ok).map(|entry| entry.offset).last();
            for offset in [Some(offset), offset_of_entry].into_iter().flatten() {
                let mut copy = area.clone();
                let _ = remove(&mut copy, form, offset);
                let _ = insert(&mut copy, form, &entry);
                prop_assert!(!was_whole || is_whole(&copy));
                let _ = (clear(&mut copy, offset), set_type(&mut copy, offset, 2));
                let _ = set_inode(&mut copy, offset, InodeNr(7));
                let _ = replace_illegal_bytes(&mut copy, offset);
                let _ = replace_invalid_text(&mut copy, offset);
            }
            if close(&mut area, form).is_some() && was_whole {
                prop_assert!(is_whole(&area));
            }
        }
    }

    #[test]
    fn bytes_of_names_are_replaced() {
        let mut area = empty(1024, FORM);
        let add = |area: &mut Vec<u8>, name: &[u8]| {
            insert(area, FORM, &Entry::new(InodeNr(11), name.to_vec(), 1)).unwrap()
        };
        let slash = add(&mut area, b"a/b\0c");
        let text = add(&mut area, b"ok\xff\xfe\0more\xff");
        replace_illegal_bytes(&mut area, slash).unwrap();
        replace_invalid_text(&mut area, text).unwrap();
        assert_eq!(names(&area, FORM), [&b"a.b.c"[..], b"ok..\0more\xff"]);
    }

    #[test]
    fn a_short_chain_is_closed() {
        for form in [FORM, AreaForm { tail: false, ..FORM }] {
            let mut area = empty(1024, form);
            insert(&mut area, form, &Entry::new(InodeNr(11), &b"one"[..], 1)).unwrap();
            set_rec_len(&mut area, 0, 1020).unwrap();
            close(&mut area, form).unwrap();
            assert_eq!(rec_len_at(&area, 0), Some(form.end(1024)));
            set_rec_len(&mut area, 0, 0).unwrap();
            assert_eq!(close(&mut area, form), None);
        }
    }
}
