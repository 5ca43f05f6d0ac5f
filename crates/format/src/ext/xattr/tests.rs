use super::*;
use proptest::prelude::*;

/// An area as in an inode, with values laid out from its end.
fn area_of(entries: &[(u8, &[u8], &[u8])], len: usize) -> Vec<u8> {
    let mut area = vec![0; len];
    area[..4].copy_from_slice(&MAGIC.to_le_bytes());
    let (mut at, mut end) = (4, len);
    for (name_index, name, value) in entries {
        end -= padded(value.len());
        area[end..end + value.len()].copy_from_slice(value);
        let raw = RawXattrEntry {
            name_len: name.len() as u8,
            name_index: *name_index,
            value_offs: (end - 4) as u16,
            value_inum: 0,
            value_size: value.len() as u32,
            hash: entry_hash(name, value, Chars::Unsigned),
        };
        raw.encode_into(area[at..].first_chunk_mut().unwrap());
        area[at + 16..at + 16 + name.len()].copy_from_slice(name);
        at += 16 + padded(name.len());
    }
    area
}

#[test]
fn entries_and_values_come_back() {
    let area = area_of(&[(1, b"colour", b"green"), (6, b"selinux", b"x"), (1, b"empty", b"")], 96);
    let area = XattrArea::of_inode(&area).unwrap();
    assert_eq!(area.check(), Ok(3));
    let entry = area.find(6, b"selinux").unwrap();
    assert_eq!(area.value(&entry), Some(&b"x"[..]));
    assert_eq!(full_name(entry.name_index, entry.name), "security.selinux");
    let entry = area.find(1, b"empty").unwrap();
    assert_eq!(area.value(&entry), Some(&b""[..]));
    assert!(area.find(1, b"selinux").is_none());
}

#[test]
fn no_magic_means_no_attributes() {
    assert!(XattrArea::of_inode(&[0; 92]).is_none());
    assert!(XattrArea::of_inode(&[]).is_none());
    assert!(XattrArea::of_block(&[0; 31]).is_none());
}

/// The result of checking an area after one byte of it was changed.
fn after(change: impl Fn(&mut [u8])) -> Result<u32, XattrFault> {
    let mut area = area_of(&[(1, b"abcd", b"12345678"), (1, b"efgh", b"1234")], 96);
    change(&mut area);
    XattrArea::of_inode(&area).unwrap().check()
}

#[test]
fn each_fault_names_its_entry() {
    assert_eq!(after(|_| ()), Ok(2));
    let fault = |index, offset, kind| Err(XattrFault { index, offset, kind });
    // Entries start at bytes 4 and 24 of the inode's area: 0 and 20 behind the magic.
    assert_eq!(after(|area| area[24] = 200), fault(1, 20, XattrFaultKind::EntryPastEnd));
    assert_eq!(after(|area| area[24 + 2] = 91), fault(1, 20, XattrFaultKind::ValuePastEnd));
    assert_eq!(after(|area| area[24 + 11] = 1), fault(1, 20, XattrFaultKind::ValuePastEnd));
    assert_eq!(after(|area| area[24 + 2] = 84), fault(0, 0, XattrFaultKind::Overlap));
    assert_eq!(after(|area| area[24 + 2] = 40), fault(1, 20, XattrFaultKind::Overlap));
    assert_eq!(after(|area| area[24 + 2] = 44), Ok(2));
}

#[test]
fn a_missing_end_marker_is_a_fault() {
    let area = area_of(&[(1, &[b'a'; 76], b"")], 4 + 16 + 76);
    let fault = XattrArea::of_inode(&area).unwrap().check().unwrap_err();
    assert_eq!(fault, XattrFault { index: 1, offset: 92, kind: XattrFaultKind::EntryPastEnd });
}

#[test]
fn signed_and_unsigned_hashes_differ_for_high_bytes_only() {
    let both = |name: &[u8]| [Chars::Unsigned, Chars::Signed].map(|c| entry_hash(name, b"v", c));
    let [unsigned, signed] = both(b"plain");
    assert_eq!(unsigned, signed);
    let [unsigned, signed] = both("f\u{e4}rbe".as_bytes());
    assert_ne!(unsigned, signed);
}

#[test]
fn a_block_without_all_hashes_has_none() {
    assert_eq!(block_hash([1, 0, 2]), 0);
    assert_eq!(block_hash([1, 2]), 0x0001_0000 ^ 2);
    assert_eq!(block_hash([]), 0);
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), magic: bool) {
        let mut bytes = bytes;
        if magic && bytes.len() >= 4 {
            bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        }
        for area in [XattrArea::of_inode(&bytes), XattrArea::of_block(&bytes)].into_iter().flatten() {
            let _ = area.check();
            for entry in area.entries().flatten() {
                let _ = (area.value(&entry), full_name(entry.name_index, entry.name));
            }
        }
        let _ = block_checksum_ok(Seed(0), BlockNr(1), &bytes);
        if let Ok(entries) = acl::decode(&bytes) {
            prop_assert_eq!(acl::decode(&acl::encode(&entries)).unwrap(), entries);
        }
    }
}

/// Whether the second of two attributes counts as having its value in the area, after a change of
/// it.
fn second_is_here(change: impl Fn(&mut [u8])) -> bool {
    let mut area = area_of(&[(1, b"abcd", b"12345678"), (1, b"efgh", b"1234")], 96);
    area[24 + VALUE_INUM_AT] = 77;
    change(&mut area);
    let area = XattrArea::of_inode(&area).unwrap();
    let second = area.entries().nth(1).unwrap().unwrap();
    area.has_value_here(&second)
}

#[test]
fn a_value_tells_that_it_is_not_in_an_inode() {
    assert!(second_is_here(|_| ()));
    assert!(!second_is_here(|area| area[24 + VALUE_INUM_AT] = 0), "no value inode is named");
    assert!(!second_is_here(|area| area[24 + VALUE_SIZE_AT] = 200), "no room");
    assert!(!second_is_here(|area| area[24 + 12] ^= 1), "another hash");
    let place = |area: &mut [u8], value_offs: u16| {
        area[24 + 2..24 + 4].copy_from_slice(&value_offs.to_le_bytes());
    };
    assert!(!second_is_here(|area| place(area, 4)), "over the entries");
    // Linux writes no hash for a value in an inode body, but one for values in inodes of their own,
    // whose offset is 0.
    let no_hash = |area: &mut [u8]| area[24 + 12..24 + 16].fill(0);
    assert!(second_is_here(no_hash));
    assert!(!second_is_here(|area| {
        no_hash(area);
        place(area, 0);
    }));
}

#[test]
fn a_block_has_hashes() {
    let area = area_of(&[(1, b"abcd", b"12345678")], 96);
    let mut block = vec![0; 128];
    block[XattrHeader::SIZE..].copy_from_slice(&area[..96]);
    // Copies the entry to where an inode has its magic; in a block, offsets count from its start.
    block.copy_within(XattrHeader::SIZE + 4..XattrHeader::SIZE + 24, XattrHeader::SIZE);
    let value_offs = 128 - 8u16;
    block[XattrHeader::SIZE + 2..XattrHeader::SIZE + 4].copy_from_slice(&value_offs.to_le_bytes());
    block[XattrHeader::SIZE + 20..XattrHeader::SIZE + 24].fill(0);
    block[XattrHeader::SIZE + VALUE_INUM_AT] = 77;
    let is_here = |block: &[u8]| {
        let area = XattrArea::of_block(block).unwrap();
        area.has_value_here(&area.entries().next().unwrap().unwrap())
    };
    assert!(is_here(&block));
    block[XattrHeader::SIZE + 12..XattrHeader::SIZE + 16].fill(0);
    assert!(!is_here(&block));
}

/// A block with attributes, as a group of 64 KiB blocks at most has it, and its checksum.
fn sealed_block(len: usize) -> Vec<u8> {
    let mut block: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
    block[..4].copy_from_slice(&MAGIC.to_le_bytes());
    write_block_checksum(Seed(7), BlockNr(99), &mut block);
    block
}

#[test]
fn each_wrong_byte_of_a_block_is_found() {
    let right = sealed_block(1024);
    assert_eq!(flipped_byte(Seed(7), BlockNr(99), &right), None);
    for at in (0..1024).filter(|at| !(0x10..0x14).contains(at)) {
        for bits in [1, 3, 0x80, 0xff] {
            let mut block = right.clone();
            block[at] ^= bits;
            assert_eq!(flipped_byte(Seed(7), BlockNr(99), &block), Some((at, bits)), "byte {at}");
        }
    }
}

#[test]
fn a_wrong_checksum_and_two_wrong_bytes_are_no_wrong_byte() {
    for len in [1024, 4096] {
        let right = sealed_block(len);
        for at in 0x10..0x14 {
            let mut block = right.clone();
            block[at] ^= 0x55;
            assert_eq!(flipped_byte(Seed(7), BlockNr(99), &block), None);
        }
        for (one, other) in [(0x20, 0x21), (0x33, len - 1), (len - 9, len - 2)] {
            let mut block = right.clone();
            block[one] ^= 1;
            block[other] ^= 4;
            assert_eq!(flipped_byte(Seed(7), BlockNr(99), &block), None);
        }
    }
    assert_eq!(flipped_byte(Seed(7), BlockNr(99), &[1; 16]), None);
}

/// The entries of an area as in an inode, with their values, after the entry at `offset` was mended.
fn mended(area: &[u8], offset: usize) -> Vec<(u8, Vec<u8>, Vec<u8>)> {
    let mut area = area.to_vec();
    mend_name(&mut area[4..], offset);
    let area = XattrArea::of_inode(&area).unwrap();
    area.check().unwrap();
    let entry = |entry: Result<XattrEntry<'_>, XattrFault>| {
        let entry = entry.unwrap();
        let value = area.value(&entry).unwrap();
        assert_eq!(entry.hash, entry_hash(entry.name, value, Chars::Unsigned));
        (entry.name_index, entry.name.to_vec(), value.to_vec())
    };
    area.entries().map(entry).collect()
}

#[test]
fn names_are_mended_and_nothing_else_is_lost() {
    let of = |index: u8, name: &[u8], value: &[u8]| (index, name.to_vec(), value.to_vec());
    let (one, last) = (of(1, b"colour", b"green"), of(6, b"selinux", b"x"));
    let with = |middle: (u8, &[u8])| {
        area_of(
            &[(1, b"colour", b"green"), (middle.0, middle.1, b"1234"), (6, b"selinux", b"x")],
            160,
        )
    };
    // The second entry begins behind one of 16 bytes and a name of 8.
    type Named = (u8, &'static [u8]);
    let cases: [(u8, &'static [u8], Option<Named>); 6] = [
        (1, b"abcd", Some((1, b"abcd"))),
        (1, b"ab\0d", Some((1, b"ab"))),
        (1, b"\0bcd", None),
        // Cut, it would end elsewhere.
        (1, b"ab\0defg", None),
        (2, b"abcd", Some((1, b"abcd"))),
        (2, b"", Some((2, b""))),
    ];
    for (index, name, expected) in cases {
        let mut all = vec![one.clone()];
        all.extend(expected.map(|(index, name)| of(index, name, b"1234")));
        all.push(last.clone());
        assert_eq!(mended(&with((index, name)), 24), all, "{name:?}");
    }
    // The hash of an access list without a name is that of one with zeroes for a name: its length is
    // wrong, and so is the place of the next entry.
    let mut area = with((2, b""));
    area[4 + 24] = 12;
    let list = of(2, b"", b"1234");
    assert_eq!(mended(&area, 24), [one.clone(), list, last]);
    // Entries behind it that cannot be followed go with it.
    let mut area = with((1, b"\0bcd"));
    area[4 + 24 + 20] = 250;
    assert_eq!(mended(&area, 24), [one]);
}

proptest! {
    #[test]
    fn any_area_survives_a_mended_name(
        mut area in proptest::collection::vec(any::<u8>(), 0..200),
        offset in 0usize..220,
    ) {
        mend_name(&mut area, offset);
    }
}

#[test]
fn linux_reads_only_whole_lists() {
    let whole = acl::narrowest(0o751);
    assert_eq!(
        acl::decode(&whole).unwrap().iter().map(|entry| entry.permissions).collect::<Vec<_>>(),
        [7, 0, 5, 1]
    );
    assert!(acl::is_readable(&whole) && acl::is_readable(&[]) && acl::is_readable(&whole[..16]));
    for len in 1..whole.len() {
        assert_eq!(acl::is_readable(&whole[..len]), len % 4 == 0, "{len} bytes");
    }
    // Five short entries: the length says four and half a long one.
    let five = [&whole[..], &whole[4..8]].concat();
    assert!(acl::decode(&five).is_ok() && !acl::is_readable(&five));
    let mut other = whole;
    other[0] = 2;
    assert!(!acl::is_readable(&other));
}

/// The access list in an area after it was mended, and the result.
fn mended_list(area: &mut [u8], index: u8, permissions: u16) -> (Option<Vec<u8>>, MendedList) {
    let offset = XattrArea::of_inode(area).unwrap().find(index, b"").unwrap().offset;
    let mended = mend_list(&mut area[IBODY_HEADER_SIZE..], 0, offset, permissions, &[]);
    let area = XattrArea::of_inode(area).unwrap();
    area.check().unwrap();
    let kept = area.find(INDEX_USER, b"a").unwrap();
    assert_eq!(area.value(&kept), Some(&b"kept"[..]));
    (area.find(index, b"").map(|entry| area.value(&entry).unwrap().to_vec()), mended)
}

#[test]
fn a_list_is_replaced_where_there_is_room_and_default_lists_go() {
    let narrowest = acl::narrowest(0o600);
    for (name_index, value_size, len, stays) in [
        (INDEX_ACL_ACCESS, 28, 96, true),
        // In free space.
        (INDEX_ACL_ACCESS, 16, 96, true),
        (INDEX_ACL_ACCESS, 16, 68, false),
        (INDEX_ACL_DEFAULT, 28, 96, false),
    ] {
        let value = vec![0xee; value_size];
        let mut area = area_of(&[(name_index, b"", &value), (INDEX_USER, b"a", b"kept")], len);
        let (list, mended) = mended_list(&mut area, name_index, 0o640);
        assert_eq!(list, stays.then(|| narrowest.clone()));
        let is_access = name_index == INDEX_ACL_ACCESS;
        // Nobody could use the file but its owner.
        let permissions = if is_access { 0o600 } else { 0o640 };
        assert_eq!(mended, MendedList { permissions, is_removed: !stays });
    }
}

#[test]
fn a_list_out_of_order_is_mended_as_far_as_there_is_room() {
    use acl::AclWho::{Mask, Other, Owner, OwningGroup, User};
    let list = |entries: &[(acl::AclWho, u16)]| -> Vec<u8> {
        let entry = |&(who, permissions): &_| acl::AclEntry { who, permissions };
        acl::encode(&entries.iter().map(entry).collect::<Vec<_>>())
    };
    let late = list(&[(Owner, 6), (Other, 4), (OwningGroup, 4)]);
    let whole = list(&[(Owner, 6), (OwningGroup, 0), (Mask, 4), (Other, 4)]);
    let unmasked = list(&[(Owner, 6), (OwningGroup, 4), (Mask, 4), (User(7), 6), (Other, 4)]);
    let masked = list(&[(Owner, 6), (User(7), 4), (OwningGroup, 4), (Mask, 4), (Other, 4)]);
    let none: Vec<u8> = Vec::new();
    for (value, len, expected, permissions) in [
        (&late, 96, &whole, 0o644),
        (&late, 68, &none, 0o600),
        // As long as it was.
        (&unmasked, 80, &masked, 0o644),
    ] {
        let mut area = area_of(&[(INDEX_ACL_ACCESS, b"", value), (INDEX_USER, b"a", b"kept")], len);
        let (list, mended) = mended_list(&mut area, INDEX_ACL_ACCESS, 0o644);
        assert_eq!(list.unwrap_or_default(), *expected);
        assert_eq!(mended, MendedList { permissions, is_removed: expected.is_empty() });
    }
    // A default list keeps the permissions of its directory.
    let mut area = area_of(&[(INDEX_ACL_DEFAULT, b"", &late), (INDEX_USER, b"a", b"kept")], 96);
    let (list_left, mended) = mended_list(&mut area, INDEX_ACL_DEFAULT, 0o755);
    assert_eq!(list_left, Some(list(&[(Owner, 6), (OwningGroup, 0), (Other, 4)])));
    assert_eq!(mended, MendedList { permissions: 0o755, is_removed: false });
}

proptest! {
    #[test]
    fn any_area_survives_a_mended_list(
        mut area in proptest::collection::vec(any::<u8>(), 0..200),
        first in prop_oneof![Just(0usize), Just(32)],
        offset in 0usize..220,
    ) {
        mend_list(&mut area, first, offset, 0o644, &[7; 30]);
    }
}
