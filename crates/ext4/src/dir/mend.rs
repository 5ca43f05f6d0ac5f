//! Repairs a broken directory block step by step: the checker does so on a copy in memory in order
//! to read on, and a repair does the same on the disk, so that the entries behind the break count
//! as they will after the repair.
//!
//! The rules are those of the problem table (`dirent-structure-corrupt`): an entry of 8 bytes is
//! squeezed out, an overlong but plausible entry is shortened, one of plausible length is merged
//! into the entry before it; otherwise the rest of the block is lost. Before giving up the rest,
//! one more rule applies: if valid entries up to the very end follow directly behind the name of an
//! entry with an impossible length, that entry gets the length that its name needs.

use floe_format::ext::dirent::{
    DirCursor, DirEntryHeader, HEADER_SIZE, MIN_REC_LEN, decode_rec_len, encode_rec_len,
};

/// Repairs the entry at offset `at` of a block whose entries end at `end`; `previous` is the offset
/// of the entry before it. Returns the offset at which to read on. Nothing outside the block's
/// first `end` bytes changes, and each step either advances or shortens the rest.
pub fn mend(
    block: &mut [u8],
    at: usize,
    end: usize,
    previous: Option<usize>,
    inodes_count: u32,
) -> usize {
    let block_size = block.len();
    let end = end.min(block_size);
    let left = end.saturating_sub(at);
    let Some(header) = header_at(block, at, end) else {
        return give_up(block, at, end, previous);
    };
    let rec_len = decode_rec_len(header.rec_len, block_size) as usize;
    if rec_len == HEADER_SIZE && left >= HEADER_SIZE + MIN_REC_LEN as usize {
        block.copy_within(at + HEADER_SIZE..end, at);
        block[end - HEADER_SIZE..end].fill(0);
        return at;
    }
    let is_possible = rec_len != 0 && rec_len.is_multiple_of(4) && rec_len <= left;
    if !is_possible
        && let Some(len) = length_by_what_follows(block, at, end, &header, inodes_count)
        && set_rec_len(block, at, len)
    {
        return at;
    }
    let name_end = HEADER_SIZE + usize::from(header.name_len);
    let name_is_whole =
        block.get(at + HEADER_SIZE..at + name_end).is_some_and(|name| !name.contains(&0));
    if rec_len > left
        && left > HEADER_SIZE
        && left.is_multiple_of(4)
        && name_end <= left
        && name_is_whole
        && header.inode <= inodes_count
        && set_rec_len(block, at, left)
    {
        return at;
    }
    if is_possible && let Some(previous) = previous {
        let so_far = at - previous;
        if set_rec_len(block, previous, so_far + rec_len) {
            return at + rec_len;
        }
    }
    give_up(block, at, end, previous)
}

/// The length of the entry at offset `at` that its name needs, if plausible entries, at least one
/// of them in use, follow from there to the end.
fn length_by_what_follows(
    block: &[u8],
    at: usize,
    end: usize,
    header: &DirEntryHeader,
    inodes_count: u32,
) -> Option<usize> {
    let could_be = |inode: u32, name: &[u8]| {
        inode <= inodes_count && !name.is_empty() && !name.iter().any(|byte| b"\0/".contains(byte))
    };
    let name_end = HEADER_SIZE + usize::from(header.name_len);
    let len = name_end.next_multiple_of(4);
    let name = block.get(at + HEADER_SIZE..at + name_end)?;
    if header.inode == 0 || !could_be(header.inode, name) || at + len >= end {
        return None;
    }
    let mut in_use = false;
    for entry in DirCursor::new(block).ending_at(end).starting_at(at + len) {
        let entry = entry.ok()?;
        if entry.in_use() {
            in_use = true;
            could_be(entry.inode.0, entry.name).then_some(())?;
        }
    }
    in_use.then_some(len)
}

/// Merges the rest of the block into the entry before, or makes it one empty entry.
fn give_up(block: &mut [u8], at: usize, end: usize, previous: Option<usize>) -> usize {
    if let Some(previous) = previous {
        set_rec_len(block, previous, end - previous);
        return end;
    }
    if let Some(bytes) = block.get_mut(at..end).and_then(<[u8]>::first_chunk_mut) {
        DirEntryHeader { inode: 0, rec_len: 0, name_len: 0, file_type: 0 }.encode_into(bytes);
        if set_rec_len(block, at, end - at) {
            return at;
        }
    }
    end
}

fn header_at(block: &[u8], at: usize, end: usize) -> Option<DirEntryHeader> {
    block.get(at..end)?.first_chunk().map(DirEntryHeader::decode)
}

/// Stores a length. `false`, and nothing changed, if it cannot be stored.
fn set_rec_len(block: &mut [u8], at: usize, rec_len: usize) -> bool {
    let stored = u32::try_from(rec_len).ok().and_then(|len| encode_rec_len(len, block.len()));
    let Some((stored, into)) = stored.zip(block.get_mut(at + 4..at + 6)) else { return false };
    into.copy_from_slice(&stored.to_le_bytes());
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use floe_format::InodeNr;
    use floe_format::ext::dirent::write_entry;
    use proptest::prelude::*;

    fn names(block: &[u8], end: usize) -> Vec<Vec<u8>> {
        DirCursor::new(block)
            .ending_at(end)
            .map_while(Result::ok)
            .filter(|entry| entry.in_use())
            .map(|entry| entry.name.to_vec())
            .collect()
    }

    fn block(lens: [u32; 4]) -> Vec<u8> {
        let mut block = vec![0; 1024];
        let mut at = 0;
        for (index, len) in lens.into_iter().enumerate() {
            let name = [b'a' + index as u8; 3];
            write_entry(&mut block[at..], InodeNr(12 + index as u32), len, &name, 1, 1024).unwrap();
            at += len as usize;
        }
        block
    }

    #[test]
    fn an_entry_of_8_bytes_is_squeezed_out() {
        let mut whole = block([12, 12, 12, 988]);
        whole.copy_within(12..1016, 20);
        whole[12..20].copy_from_slice(&[0, 0, 0, 0, 8, 0, 0, 0]);
        assert_eq!(mend(&mut whole, 12, 1024, Some(0), 100), 12);
        assert_eq!(names(&whole, 1024)[..3], [b"aaa", b"bbb", b"ccc"]);
    }

    #[test]
    fn an_overlong_last_entry_is_cut() {
        let mut whole = block([12, 12, 12, 988]);
        assert_eq!(mend(&mut whole, 36, 1012, Some(24), 100), 36);
        assert_eq!(names(&whole, 1012).len(), 4);
    }

    #[test]
    fn a_bad_name_length_loses_only_that_entry() {
        let mut whole = block([12, 12, 12, 988]);
        whole[12 + 6] = 200;
        assert_eq!(mend(&mut whole, 12, 1024, Some(0), 100), 24);
        assert_eq!(names(&whole, 1024), [b"aaa", b"ccc", b"ddd"]);
    }

    #[test]
    fn garbage_loses_the_rest() {
        let mut whole = block([12, 12, 12, 988]);
        whole[12 + 4] = 13;
        whole[24 + 4] = 13;
        assert_eq!(mend(&mut whole, 12, 1024, Some(0), 100), 1024);
        assert_eq!(names(&whole, 1024), [b"aaa"]);
    }

    #[test]
    fn an_impossible_length_is_told_by_what_follows() {
        // 0, not aligned, and past the end.
        for bad in [0, 13, 0x800c] {
            let mut whole = block([12, 12, 12, 988]);
            whole[12 + 4..12 + 6].copy_from_slice(&u16::to_le_bytes(bad));
            assert_eq!(mend(&mut whole, 12, 1024, Some(0), 100), 12);
            assert_eq!(names(&whole, 1024), [b"aaa", b"bbb", b"ccc", b"ddd"], "{bad}");
        }
        // All entries up to the very end must be plausible.
        for (at, byte) in [(24 + 8, b'/'), (36 + 4, 0), (36, 101)] {
            let mut whole = block([12, 12, 12, 988]);
            whole[12 + 4] = 0;
            whole[at] = byte;
            assert_eq!(mend(&mut whole, 12, 1024, Some(0), 100), 1024);
            assert_eq!(names(&whole, 1024), [b"aaa"], "{at}");
        }
        // Nothing follows the last entry, so its length cannot be derived.
        let mut whole = block([12, 12, 12, 988]);
        whole[36 + 4..36 + 6].fill(0);
        assert_eq!(mend(&mut whole, 36, 1024, Some(24), 100), 1024);
        assert_eq!(names(&whole, 1024).len(), 3);
    }

    proptest! {
        /// Repairing any bytes terminates and leaves a chain that can be followed.
        #[test]
        fn every_block_ends_up_whole(
            mut block in proptest::collection::vec(prop_oneof![any::<u8>(), Just(0), Just(8), Just(12)], 64..200),
            cut in 0usize..20,
        ) {
            let len = block.len() / 4 * 4;
            block.truncate(len);
            let end = (len - cut / 4 * 4).max(12);
            let (mut at, mut previous, mut steps) = (0, None, 0);
            loop {
                let mut cursor = DirCursor::new(&block).ending_at(end).starting_at(at);
                let mut fault = None;
                for item in cursor.by_ref() {
                    match item {
                        Ok(entry) => previous = Some(entry.offset as usize),
                        Err(broken) => fault = Some(broken),
                    }
                }
                let Some(fault) = fault else { break };
                at = mend(&mut block, fault.offset as usize, end, previous, 100);
                steps += 1;
                prop_assert!(steps < 500);
            }
            let clean = DirCursor::new(&block).ending_at(end).all(|item| item.is_ok());
            prop_assert!(clean);
        }
    }
}
