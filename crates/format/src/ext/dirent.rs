//! Linear directory blocks: entries that fill the block, and the checksum tail behind them.
//!
//! The cursor judges only what it needs to go on: where the next entry starts. Whether an inode
//! number, a name or a type makes sense is the checker's question.

use crate::InodeNr;
use crate::crc::crc32c;

/// Bytes of an entry before its name.
pub const HEADER_SIZE: usize = 8;
/// Bytes of the shortest entry: header and a name of 1 to 4 bytes.
pub const MIN_REC_LEN: u32 = 12;
/// Longest name in bytes.
pub const MAX_NAME_LEN: usize = 255;
/// Bytes of hash and minor hash behind the padded name of an entry in a directory that is both
/// encrypted and casefolded (`struct ext4_dir_entry_hash`).
pub(crate) const ENTRY_HASH_SIZE: usize = 8;
/// Bytes of the checksum tail (`struct ext4_dir_entry_tail`).
pub const TAIL_SIZE: usize = 12;
/// `det_reserved_ft`: the type byte that marks a checksum tail.
pub(crate) const TAIL_FILE_TYPE: u8 = 0xde;

layout! {
    /// The start of an entry (`struct ext4_dir_entry_2`); the name follows.
    pub struct DirEntryHeader[8] little {
        /// The inode; 0: the entry is unused.
        0x00 inode: u32,
        /// Bytes to the next entry, as stored: see [`decode_rec_len`].
        0x04 rec_len: u16,
        /// Bytes of the name.
        0x06 name_len: u8,
        /// Type as in [`crate::ext::inode::FileType`]; 0 without the filetype feature.
        0x07 file_type: u8,
    }
}

layout! {
    /// The checksum tail: the last 12 bytes of a block, in the form of an unused entry.
    pub struct DirTail[12] little {
        /// Where an entry has its inode: 0.
        0x00 reserved_zero1: u32,
        /// Where an entry has its length: 12.
        0x04 rec_len: u16,
        /// Where an entry has its name length: 0.
        0x06 reserved_zero2: u8,
        /// Where an entry has its type: 0xDE.
        0x07 reserved_ft: u8,
        /// crc32c of the block before the tail.
        0x08 checksum: u32,
    }
}

impl Default for DirTail {
    fn default() -> Self {
        Self {
            reserved_zero1: 0,
            rec_len: 12,
            reserved_zero2: 0,
            reserved_ft: TAIL_FILE_TYPE,
            checksum: 0,
        }
    }
}

impl DirTail {
    /// The tail in the last 12 bytes of a block, or `None` if they are not one. The chain of the
    /// entries before it is not followed; see [`tail_state`].
    #[inline]
    pub fn of(block: &[u8]) -> Option<Self> {
        let tail = Self::decode(block.last_chunk()?);
        tail.is_tail().then_some(tail)
    }

    /// Whether all fields but the checksum are those of a tail.
    #[inline]
    pub(crate) fn is_tail(&self) -> bool {
        self.reserved_zero1 == 0
            && usize::from(self.rec_len) == TAIL_SIZE
            && self.reserved_zero2 == 0
            && self.reserved_ft == TAIL_FILE_TYPE
    }

    /// The checksum that the tail of a block should carry: crc32c of all bytes before the tail.
    /// `inode_seed` comes from [`crate::crc::Seed::of_inode`] of the directory.
    #[inline]
    pub fn compute_checksum(inode_seed: u32, block: &[u8]) -> u32 {
        crc32c(inode_seed, &block[..block.len().saturating_sub(TAIL_SIZE)])
    }

    /// Whether a block ends with a tail whose checksum fits; `None` if it has no tail.
    #[inline]
    pub fn checksum_ok(inode_seed: u32, block: &[u8]) -> Option<bool> {
        Self::of(block).map(|tail| tail.checksum == Self::compute_checksum(inode_seed, block))
    }

    /// Writes a tail with the right checksum over the last 12 bytes of a block. Blocks shorter
    /// than a tail are left alone.
    pub fn write(inode_seed: u32, block: &mut [u8]) {
        let checksum = Self::compute_checksum(inode_seed, block);
        if let Some(bytes) = block.last_chunk_mut() {
            Self { checksum, ..Self::default() }.encode_into(bytes);
        }
    }
}

/// Where the chain of entries in a block ends, relative to its checksum tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TailState {
    /// The chain ends exactly at a tail.
    Present,
    /// The chain leads past the place of the tail, or no tail is there (problem
    /// `dir-block-checksum-tail-missing`).
    Missing,
    /// The chain breaks before the place of the tail. The block is damaged, and it is unknown whether
    /// it has a tail (problem `dirent-structure-corrupt`).
    ChainBroken,
}

/// Follows the entries of a block to the place of its tail. Like e2fsck, accepts any `rec_len` of
/// at least 8 that is a multiple of 4.
pub fn tail_state(block: &[u8]) -> TailState {
    let Some(top) = block.len().checked_sub(TAIL_SIZE) else { return TailState::Missing };
    let mut at = 0;
    while at < top {
        // `at` is before the tail's place, so 12 bytes are there; a block has at most 64 KiB.
        let rec_len = usize::from(u16::from_le_bytes([block[at + 4], block[at + 5]]));
        if rec_len < HEADER_SIZE || !rec_len.is_multiple_of(4) {
            return TailState::ChainBroken;
        }
        at += rec_len;
    }
    match at {
        _ if at > block.len() => TailState::ChainBroken,
        _ if at == top && DirTail::of(block).is_some() => TailState::Present,
        _ => TailState::Missing,
    }
}

/// The length of an entry from its stored form (`ext4_rec_len_from_disk`): in blocks of 64 KiB,
/// 65535 and 0 stand for the whole block and the low two bits for the high ones.
#[inline]
pub fn decode_rec_len(stored: u16, block_size: usize) -> u32 {
    if block_size < 65536 {
        return u32::from(stored);
    }
    match stored {
        0 | u16::MAX => u32::try_from(block_size).unwrap_or(65536),
        _ => u32::from(stored & 0xfffc) | u32::from(stored & 3) << 16,
    }
}

/// The stored form of an entry's length (`ext4_rec_len_to_disk`); `None` if it is longer than the
/// block or not a multiple of 4.
pub fn encode_rec_len(rec_len: u32, block_size: usize) -> Option<u16> {
    if !rec_len.is_multiple_of(4) || rec_len as usize > block_size {
        return None;
    }
    // Only the whole of a 64 KiB block does not fit into 16 bits.
    Some(u16::try_from(rec_len).unwrap_or(u16::MAX))
}

/// Bytes that an entry with a name of `name_len` bytes needs (`ext4_dir_rec_len`); `hashed` in
/// directories that are both encrypted and casefolded, except for `.` and `..`.
#[inline]
pub const fn needed_rec_len(name_len: usize, hashed: bool) -> u32 {
    let hash_bytes = if hashed { ENTRY_HASH_SIZE } else { 0 };
    // A name has at most 255 bytes in every use; longer ones only saturate.
    let bytes = (HEADER_SIZE + name_len + hash_bytes + 3) & !3;
    if bytes > u32::MAX as usize { u32::MAX } else { bytes as u32 }
}

/// An entry whose record lies inside the block and has room for its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Byte of the block at which it starts.
    pub offset: u32,
    /// The inode; 0: unused.
    pub inode: InodeNr,
    /// Bytes to the next entry.
    pub rec_len: u32,
    /// The type byte, unjudged.
    pub file_type: u8,
    /// The name, without padding: 0 to 255 bytes.
    pub name: &'a [u8],
    /// The record from its first byte to the next entry.
    pub record: &'a [u8],
}

impl DirEntry<'_> {
    /// Whether the entry is in use.
    #[inline]
    pub fn in_use(&self) -> bool {
        self.inode.0 != 0
    }

    /// Whether the name is `.` or `..`.
    #[inline]
    pub fn is_dot_or_dotdot(&self) -> bool {
        matches!(self.name, b"." | b"..")
    }

    /// Hash and minor hash stored behind the padded name (encrypted and casefolded directories);
    /// `None` if the record ends before.
    pub fn stored_hash(&self) -> Option<(u32, u32)> {
        let at = (HEADER_SIZE + self.name.len() + 3) & !3;
        let hash = crate::layout::le32_at(self.record, at)?;
        let minor_hash = crate::layout::le32_at(self.record, at + 4)?;
        Some((hash, minor_hash))
    }
}

/// The point at which the entries of a block cannot be followed any further, and why (problem
/// `dirent-structure-corrupt`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirFault {
    /// Byte of the block at which the broken entry starts.
    pub offset: u32,
    /// Its length, decoded; 0 if not even a header fits.
    pub rec_len: u32,
    /// Its fault.
    pub kind: DirFaultKind,
}

/// The fault of a broken entry: the first of these that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirFaultKind {
    /// Less than 8 bytes are left for its header.
    HeaderPastEnd,
    /// Shorter than 12 bytes.
    TooSmall,
    /// Not a multiple of 4.
    Unaligned,
    /// Ends past the usable end of the block.
    PastEnd,
    /// Too short for its name (and its hash, where entries have one).
    NameDoesNotFit,
}

impl DirFaultKind {
    /// The fault in words, to follow "it".
    pub const fn words(self) -> &'static str {
        match self {
            Self::HeaderPastEnd => "begins too near the end of the block",
            Self::TooSmall => "is shorter than 12 bytes",
            Self::Unaligned => "does not end at a multiple of 4 bytes",
            Self::PastEnd => "ends past the end of the block",
            Self::NameDoesNotFit => "is too short for its name",
        }
    }
}

/// Walks over the entries of a block, unused ones included, without allocating.
///
/// Yields entries until the usable end, or one fault and then nothing. Every step advances by at
/// least 12 bytes, so hostile blocks cannot hold it.
#[derive(Clone, Debug)]
pub struct DirCursor<'a> {
    block: &'a [u8],
    /// Length of the block for [`decode_rec_len`]; differs from `block.len()` in pseudo-blocks.
    block_size: usize,
    at: usize,
    end: usize,
    hashed: bool,
}

impl<'a> DirCursor<'a> {
    /// A cursor over a whole block without a checksum tail.
    #[inline]
    pub fn new(block: &'a [u8]) -> Self {
        Self { block, block_size: block.len(), at: 0, end: block.len(), hashed: false }
    }

    /// Stops before the checksum tail (leaf and linear blocks with metadata_csum that have one).
    #[inline]
    pub fn without_tail(self) -> Self {
        let end = self.block.len().saturating_sub(TAIL_SIZE);
        self.ending_at(end)
    }

    /// Stops at byte `end`, or at the end of the block if that comes first.
    #[inline]
    pub fn ending_at(mut self, end: usize) -> Self {
        self.end = end.min(self.block.len());
        self
    }

    /// Starts at byte `start`.
    #[inline]
    pub fn starting_at(mut self, start: usize) -> Self {
        self.at = start;
        self
    }

    /// Sets whether entries carry a hash (encrypted and casefolded directories), which makes them
    /// 8 bytes longer; `.` and `..` never do.
    #[inline]
    pub fn hashed(mut self, hashed: bool) -> Self {
        self.hashed = hashed;
        self
    }

    /// The byte of the next entry; the usable end once all are read. After a fault: the usable end.
    #[inline]
    pub fn offset(&self) -> usize {
        self.at
    }

    #[cold]
    fn fault(&mut self, rec_len: u32, kind: DirFaultKind) -> DirFault {
        let offset = u32::try_from(self.at).unwrap_or(u32::MAX);
        self.at = self.end;
        DirFault { offset, rec_len, kind }
    }

    #[cold]
    fn judge(&mut self, header: &DirEntryHeader, rec_len: u32) -> DirFault {
        let kind = if rec_len < MIN_REC_LEN {
            DirFaultKind::TooSmall
        } else if !rec_len.is_multiple_of(4) {
            DirFaultKind::Unaligned
        } else if rec_len as usize > self.end - self.at {
            DirFaultKind::PastEnd
        } else {
            debug_assert!(needed_rec_len(usize::from(header.name_len), self.hashed) > rec_len);
            DirFaultKind::NameDoesNotFit
        };
        self.fault(rec_len, kind)
    }
}

impl<'a> Iterator for DirCursor<'a> {
    type Item = Result<DirEntry<'a>, DirFault>;

    // Called once for each entry of a file system. Without inlining, the result is returned through
    // memory.
    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let rest = &self.block[self.at..self.end];
        let Some(bytes) = rest.first_chunk() else {
            return Some(Err(self.fault(0, DirFaultKind::HeaderPastEnd)));
        };
        let header = DirEntryHeader::decode(bytes);
        let rec_len = decode_rec_len(header.rec_len, self.block_size);
        let name_end = HEADER_SIZE + usize::from(header.name_len);
        let record = rest.get(..rec_len as usize);
        let (Some(record), true) = (record, rec_len >= MIN_REC_LEN && rec_len.is_multiple_of(4))
        else {
            return Some(Err(self.judge(&header, rec_len)));
        };
        let Some(name) = record.get(HEADER_SIZE..name_end) else {
            return Some(Err(self.judge(&header, rec_len)));
        };
        if self.hashed
            && needed_rec_len(name.len(), true) > rec_len
            && !matches!(name, b"." | b"..")
        {
            return Some(Err(self.judge(&header, rec_len)));
        }
        // Inside a block of at most 64 KiB.
        let offset = self.at as u32;
        self.at += rec_len as usize;
        Some(Ok(DirEntry {
            offset,
            inode: InodeNr(header.inode),
            rec_len,
            file_type: header.file_type,
            name,
            record,
        }))
    }
}

impl std::iter::FusedIterator for DirCursor<'_> {}

/// Writes an entry over the start of `record` (the padding of the name is zeroed; bytes behind it
/// stay). `rec_len` is what the entry spans, `block_size` the length of its block. `None`, and
/// nothing written, if the name is longer than 255 bytes or does not fit into `rec_len` or
/// `record`, or if `rec_len` cannot be stored.
pub fn write_entry(
    record: &mut [u8],
    inode: InodeNr,
    rec_len: u32,
    name: &[u8],
    file_type: u8,
    block_size: usize,
) -> Option<()> {
    let needed = needed_rec_len(name.len(), false);
    if rec_len < needed.max(MIN_REC_LEN) {
        return None;
    }
    let header = DirEntryHeader {
        inode: inode.0,
        rec_len: encode_rec_len(rec_len, block_size)?,
        name_len: u8::try_from(name.len()).ok()?,
        file_type,
    };
    let into = record.get_mut(..needed as usize)?;
    let (head, rest) = into.split_first_chunk_mut()?;
    header.encode_into(head);
    rest.fill(0);
    rest[..name.len()].copy_from_slice(name);
    Some(())
}

/// Writes hash and minor hash behind the padded name of an entry of `name_len` bytes that starts
/// `record`. `None`, and nothing written, if `record` ends before.
pub fn write_entry_hash(record: &mut [u8], name_len: usize, hash: (u32, u32)) -> Option<()> {
    let at = (HEADER_SIZE + name_len + 3) & !3;
    let (first, second) = record.get_mut(at..at + ENTRY_HASH_SIZE)?.split_at_mut(4);
    first.copy_from_slice(&hash.0.to_le_bytes());
    second.copy_from_slice(&hash.1.to_le_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_hash_comes_back() {
        for name in [&b"a"[..], b"four", b"a longer name that is encrypted", &[7; 255]] {
            let rec_len = needed_rec_len(name.len(), true);
            let mut block = vec![0xaa; rec_len as usize];
            write_entry(&mut block, InodeNr(12), rec_len, name, 1, 1024).unwrap();
            write_entry_hash(&mut block, name.len(), (0x1234_5678, 9)).unwrap();
            let entry = DirCursor::new(&block).hashed(true).next().unwrap().unwrap();
            assert_eq!(entry.stored_hash(), Some((0x1234_5678, 9)));
            assert_eq!(entry.name, name);
            block.pop();
            let before = block.clone();
            assert_eq!(write_entry_hash(&mut block, name.len(), (1, 1)), None);
            assert_eq!(block, before);
        }
    }

    fn block_of(names: &[&[u8]], size: usize) -> Vec<u8> {
        let mut block = vec![0; size];
        let mut at = 0;
        for (index, name) in names.iter().enumerate() {
            let last = index + 1 == names.len();
            let rec_len = if last { (size - at) as u32 } else { needed_rec_len(name.len(), false) };
            let inode = InodeNr(index as u32 + 11);
            write_entry(&mut block[at..], inode, rec_len, name, 1, size).unwrap();
            at += rec_len as usize;
        }
        block
    }

    #[test]
    fn entries_come_back_in_order() {
        for size in [1024, 4096, 65536] {
            let block = block_of(&[b".", b"..", b"lost+found", &[0xff; 255], b"x"], size);
            let read: Vec<_> = DirCursor::new(&block).map(Result::unwrap).collect();
            let names: Vec<_> = read.iter().map(|entry| entry.name.len()).collect();
            assert_eq!(names, [1, 2, 10, 255, 1]);
            assert_eq!(read[4].inode, InodeNr(15));
            assert_eq!(read[4].offset + read[4].rec_len, size as u32);
        }
    }

    #[test]
    fn a_64k_block_with_one_entry_stores_65535() {
        assert_eq!(encode_rec_len(65536, 65536), Some(u16::MAX));
        assert_eq!(decode_rec_len(u16::MAX, 65536), 65536);
        assert_eq!(decode_rec_len(0, 65536), 65536);
        assert_eq!(decode_rec_len(0xfff4, 65536), 65524);
        assert_eq!(encode_rec_len(1028, 1024), None);
        assert_eq!(encode_rec_len(10, 1024), None);
    }

    /// Sets the length of the second entry and returns the fault that the cursor reports.
    fn verdict(rec_len: u16, name_len: u8, hashed: bool) -> Option<DirFaultKind> {
        let mut block = block_of(&[b".", b"abcde", b"rest"], 1024);
        block[12 + 4..12 + 6].copy_from_slice(&rec_len.to_le_bytes());
        block[12 + 6] = name_len;
        let read: Vec<_> = DirCursor::new(&block).hashed(hashed).take(2).collect();
        read[1].err().map(|fault| {
            assert_eq!((fault.offset, fault.rec_len), (12, u32::from(rec_len)));
            fault.kind
        })
    }

    #[test]
    fn each_fault_is_named() {
        assert_eq!(verdict(16, 5, false), None);
        assert_eq!(verdict(8, 5, false), Some(DirFaultKind::TooSmall));
        assert_eq!(verdict(0, 5, false), Some(DirFaultKind::TooSmall));
        assert_eq!(verdict(18, 5, false), Some(DirFaultKind::Unaligned));
        assert_eq!(verdict(1016, 5, false), Some(DirFaultKind::PastEnd));
        assert_eq!(verdict(1012, 5, false), None);
        assert_eq!(verdict(16, 9, false), Some(DirFaultKind::NameDoesNotFit));
        assert_eq!(verdict(16, 8, false), None);
        assert_eq!(verdict(16, 5, true), Some(DirFaultKind::NameDoesNotFit));
        assert_eq!(verdict(24, 5, true), None);
        let mut header_cut = DirCursor::new(&[0; 1024]).starting_at(1020);
        assert_eq!(header_cut.next().unwrap().unwrap_err().kind, DirFaultKind::HeaderPastEnd);
        assert_eq!(header_cut.next(), None);
    }

    #[test]
    fn a_tail_is_found_written_and_judged() {
        let mut block = block_of(&[b".", b".."], 1024 - TAIL_SIZE);
        block.resize(1024, 0);
        assert_eq!(tail_state(&block), TailState::Missing);
        DirTail::write(7, &mut block);
        assert_eq!(tail_state(&block), TailState::Present);
        assert_eq!(DirTail::checksum_ok(7, &block), Some(true));
        assert_eq!(DirTail::checksum_ok(8, &block), Some(false));
        assert_eq!(DirCursor::new(&block).without_tail().count(), 2);
        assert_eq!(DirCursor::new(&block).count(), 3);
        block[4] = 6;
        assert_eq!(tail_state(&block), TailState::ChainBroken);
        assert_eq!(tail_state(&[]), TailState::Missing);
        assert_eq!(tail_state(&block_of(&[b"x"], 1024)), TailState::Missing);
    }

    #[test]
    fn stored_hashes_are_behind_the_padded_name() {
        let mut block = vec![0; 1024];
        write_entry(&mut block, InodeNr(12), 1024, b"abcde", 1, 1024).unwrap();
        block[16..24].copy_from_slice(&[1, 0, 0, 0, 2, 0, 0, 0]);
        let entry = DirCursor::new(&block).next().unwrap().unwrap();
        assert_eq!(entry.stored_hash(), Some((1, 2)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_cursor_loop_or_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..2048),
            small in any::<bool>(),
            hashed in any::<bool>(),
        ) {
            let mut bytes = bytes;
            if small {
                // Plausible lengths reach further into the block.
                bytes.chunks_mut(12).filter(|chunk| chunk.len() > 6).for_each(|chunk| {
                    chunk[5] = 0;
                    chunk[4] &= 0x3c;
                });
            }
            let mut next_offset = 0;
            for entry in DirCursor::new(&bytes).hashed(hashed) {
                let Ok(entry) = entry else { break };
                prop_assert_eq!(entry.offset, next_offset);
                next_offset = entry.offset + entry.rec_len;
                prop_assert!(next_offset as usize <= bytes.len());
            }
            let _ = (tail_state(&bytes), DirTail::checksum_ok(0, &bytes));
        }

        #[test]
        fn lengths_survive_encoding(units in 0u32..=16384, large in any::<bool>()) {
            let block_size = if large { 65536 } else { 4096 };
            let rec_len = units * 4;
            match encode_rec_len(rec_len, block_size) {
                None => prop_assert!(rec_len as usize > block_size),
                // 0 stands for the whole block where blocks have 64 KiB.
                Some(0) if large => {}
                Some(stored) => prop_assert_eq!(decode_rec_len(stored, block_size), rec_len),
            }
        }
    }
}
