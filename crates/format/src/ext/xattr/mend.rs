//! Attributes put right in place, and the wrong byte of a block found.

use super::{
    Chars, ENTRY_SIZE, INDEX_ACL_ACCESS, INDEX_ACL_DEFAULT, INDEX_USER, RawXattrEntry, XattrHeader,
    acl, block_checksum, entry_hash, padded,
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

/// Puts the [narrowest](acl::narrowest) ACL for `permissions` in the place of the unreadable access list at
/// byte `offset` of an area, if there is room for it; removes the list otherwise, and any default
/// list, of which the permissions of new files would follow. Returns whether it was put there.
pub fn mend_list(area: &mut [u8], offset: usize, permissions: u16) -> bool {
    let Some(raw) = area.get(offset..).and_then(|rest| rest.first_chunk()) else { return false };
    let mut raw = RawXattrEntry::decode(raw);
    let value = acl::narrowest(permissions);
    let room = area
        .get_mut(usize::from(raw.value_offs)..)
        .and_then(|rest| rest.get_mut(..padded(raw.value_size as usize)))
        .filter(|room| raw.name_index == INDEX_ACL_ACCESS && room.len() >= value.len());
    let Some(room) = room else {
        remove_entry(area, offset);
        return false;
    };
    room.fill(0);
    room[..value.len()].copy_from_slice(&value);
    // A few entries.
    raw.value_size = value.len() as u32;
    // Old kernels wrote no hash into inodes.
    if raw.hash != 0 {
        raw.hash = entry_hash(&[], &value, Chars::Unsigned);
    }
    if let Some(bytes) = area.get_mut(offset..).and_then(|rest| rest.first_chunk_mut()) {
        raw.encode_into(bytes);
    }
    true
}

/// Removes the entry at byte `offset`; values stay where they are. Entries behind it move up, as
/// far as they can be followed; the rest goes, too.
fn remove_entry(area: &mut [u8], offset: usize) {
    let end_of = |at: usize| {
        let rest = area.get(at..)?;
        let is_end = *rest.first_chunk()? == [0u8; 4];
        let len = ENTRY_SIZE + padded(usize::from(rest[0]));
        (!is_end && len + 4 <= rest.len()).then_some(at + len)
    };
    let Some(behind) = end_of(offset) else { return };
    let mut stop = behind;
    while let Some(end) = end_of(stop) {
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
