//! Attributes put right in place, and the wrong byte of a block found.

use super::{
    Chars, ENTRY_SIZE, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, INDEX_USER, RawXattrEntry, XattrHeader,
    acl, acl_order, block_checksum, entry_hash, padded,
};
use crate::BlockNr;
use crate::crc::{Seed, backwards_over_zeroes};

/// Mends the name of the attribute at byte `offset` of an area, which has no other fault: a name is
/// cut at a zero byte, and an attribute filed as an access list although it has a name goes to those
/// of users. An attribute without a name is removed, as are those behind it that cannot be followed.
pub fn mend_name(area: &mut [u8], offset: usize) {
    let Some(raw) = area.get(offset..).and_then(|rest| rest.first_chunk()) else { return };
    let mut raw = RawXattrEntry::decode(raw);
    let len = usize::from(raw.name_len);
    let name = area.get(offset + ENTRY_SIZE..).and_then(|rest| rest.get(..len)).unwrap_or(&[]);
    let before_zero = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    let is_list = matches!(raw.name_index, INDEX_ACL_ACCESS | INDEX_ACL_DEFAULT);
    if before_zero == len && (!is_list || len == 0) {
        return;
    }
    let value = area.get(usize::from(raw.value_offs)..).unwrap_or(&[]);
    let value = value.get(..raw.value_size as usize).unwrap_or(&[]);
    let hash_of = |len: usize| entry_hash(name.get(..len).unwrap_or(name), value, Chars::Unsigned);
    // The hash may prove where the name ends, and thereby where the next entry begins.
    let least = usize::from(!is_list);
    let proved = (least..=before_zero).rev().find(|&len| raw.hash != 0 && raw.hash == hash_of(len));
    let kept = proved.unwrap_or(before_zero);
    if proved.is_none() && (kept == 0 || padded(kept) != padded(len)) {
        remove_entry(area, offset);
        return;
    }
    let hash = hash_of(kept);
    if is_list && kept > 0 {
        raw.name_index = INDEX_USER;
    }
    // Not longer than it was.
    raw.name_len = kept as u8;
    // Old kernels wrote no hash into inodes.
    if kept < len && raw.hash != 0 && raw.value_inum == 0 {
        raw.hash = hash;
    }
    if let Some(bytes) = area.get_mut(offset..).and_then(|rest| rest.first_chunk_mut()) {
        raw.encode_into(bytes);
    }
}

/// The result of mending an access list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MendedList {
    /// The permissions, nine bits, that go with it.
    pub permissions: u16,
    /// There was no room for a list in its place.
    pub is_removed: bool,
}

/// Puts a list that Linux reads as it is meant in the place of the one at byte `offset` of an area whose
/// entries begin at byte `first`:
/// what the [order](acl_order) of its entries allows, or the [narrowest](acl::narrowest) if they are
/// unreadable. It gives nobody more than `permissions` and the list gave before. An unreadable default list is
/// removed, as is a list without room for another. `elsewhere` is the value of a list that lies in an inode of its own; the new one
/// lies here.
pub fn mend_list(
    area: &mut [u8],
    first: usize,
    offset: usize,
    permissions: u16,
    elsewhere: &[u8],
) -> MendedList {
    let permissions = permissions & 0o777;
    let untouched = MendedList { permissions, is_removed: false };
    let Some(raw) = area.get(offset..).and_then(|rest| rest.first_chunk()) else {
        return untouched;
    };
    let raw = RawXattrEntry::decode(raw);
    let is_access = raw.name_index == INDEX_ACL_ACCESS;
    let here = area.get(usize::from(raw.value_offs)..).unwrap_or(&[]);
    let here = here.get(..raw.value_size as usize).unwrap_or(&[]);
    let value = if raw.value_inum == 0 { here } else { elsewhere };
    let entries = acl::decode(value).ok().filter(|_| acl::is_readable(value));
    let (list, with_list) = match (&entries, is_access) {
        (Some(entries), true) => {
            let (list, permissions) = acl_order::mended_access(entries, permissions);
            (Some(acl::encode(&list)), permissions)
        }
        (Some(entries), false) => {
            (Some(acl::encode(&acl_order::mended_default(entries))), permissions)
        }
        // Linux refused everybody but the owner, whatever the list said of them.
        (None, true) => (Some(acl::narrowest(permissions & 0o700)), permissions & 0o700),
        (None, false) => (None, permissions),
    };
    if list.is_some_and(|list| put_value(area, first, offset, &list)) {
        return MendedList { permissions: with_list, is_removed: false };
    }
    remove_entry(area, offset);
    // Without a list the bits of the group, which were those of the mask, are given to the group.
    let left = if is_access { permissions & 0o700 } else { permissions };
    MendedList { permissions: left, is_removed: true }
}

/// Gives the nameless attribute at byte `offset` another value: in the place of the old one, or in free space
/// below all values. Returns whether there was room.
fn put_value(area: &mut [u8], first: usize, offset: usize, value: &[u8]) -> bool {
    let entry_at = |area: &[u8], at: usize| {
        let raw = area.get(at..).and_then(|rest| rest.first_chunk());
        raw.map(RawXattrEntry::decode)
    };
    let Some(mut raw) = entry_at(area, offset) else { return false };
    let old = usize::from(raw.value_offs);
    let old = match raw.value_inum {
        0 => old..old.saturating_add(padded(raw.value_size as usize)),
        _ => 0..0,
    };
    if old.end > area.len() {
        return false;
    }
    let (mut at, mut lowest) = (first, area.len() & !3);
    while let (Some(end), Some(entry)) = (end_of_entry(area, at), entry_at(area, at)) {
        if entry.value_inum == 0 && entry.value_size > 0 {
            lowest = lowest.min(usize::from(entry.value_offs) & !3);
        }
        at = end;
    }
    let place = if old.len() >= value.len() {
        old.start
    } else {
        let is_whole = area.get(at..).and_then(|rest| rest.first_chunk()) == Some(&[0u8; 4]);
        match lowest.checked_sub(padded(value.len())) {
            Some(place) if is_whole && place >= at + 4 => place,
            _ => return false,
        }
    };
    area[old].fill(0);
    area[place..place + value.len()].copy_from_slice(value);
    // An area has at most 65,536 bytes, and a list far fewer.
    (raw.value_offs, raw.value_size) = (place as u16, value.len() as u32);
    raw.value_inum = 0;
    // Old kernels wrote no hash into inodes.
    if raw.hash != 0 {
        raw.hash = entry_hash(&[], value, Chars::Unsigned);
    }
    if let Some(bytes) = area.get_mut(offset..).and_then(|rest| rest.first_chunk_mut()) {
        raw.encode_into(bytes);
    }
    true
}

/// The end of the entry at a byte of an area; `None` at the end marker, and for an entry that leaves no
/// room for one.
fn end_of_entry(area: &[u8], at: usize) -> Option<usize> {
    let rest = area.get(at..)?;
    let is_end = *rest.first_chunk()? == [0u8; 4];
    let len = ENTRY_SIZE + padded(usize::from(rest[0]));
    (!is_end && len + 4 <= rest.len()).then_some(at + len)
}

/// Removes the entry at byte `offset`; values stay where they are. Entries behind it move up, as
/// far as they can be followed; the rest goes, too.
fn remove_entry(area: &mut [u8], offset: usize) {
    let Some(behind) = end_of_entry(area, offset) else { return };
    let mut stop = behind;
    while let Some(end) = end_of_entry(area, stop) {
        stop = end;
    }
    let is_whole = area.get(stop..).and_then(|rest| rest.first_chunk()) == Some(&[0u8; 4]);
    let moved = if is_whole { stop } else { behind };
    area.copy_within(behind..moved, offset);
    area[offset + moved - behind..stop].fill(0);
    if !is_whole {
        area[offset..offset + 4].fill(0);
    }
}

/// The only byte of an attribute block whose change makes the checksum right: its offset, and the
/// bits to flip. `None` if the checksum is right, if the stored checksum itself may be the wrong
/// byte, or if no byte or several explain it.
///
/// CRC32C is linear: a wrong byte changes the checksum by what remains of its wrong bits after all
/// later bytes, so running the difference backwards reveals them. A block that is wrong in another
/// way looks like this with a probability of 255 times its bytes in 2^32: 6e-5 at 1 KiB.
pub fn flipped_byte(seed: Seed, block_nr: BlockNr, block: &[u8]) -> Option<(usize, u8)> {
    let stored = XattrHeader::decode(block.first_chunk()?).checksum;
    let mut difference = stored ^ block_checksum(seed, block_nr, block);
    if difference.to_le_bytes().iter().filter(|byte| **byte != 0).count() < 2 {
        return None;
    }
    let mut found = None;
    for at in (0..block.len()).rev() {
        difference = backwards_over_zeroes(difference, 1);
        let bits = u8::try_from(difference).ok().filter(|_| !(0x10..0x14).contains(&at));
        if let Some(bits) = bits
            && found.replace((at, bits)).is_some()
        {
            return None;
        }
    }
    found
}
