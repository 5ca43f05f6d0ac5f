//! Dependencies between the journals of a native file system, behind the fields of a commit block.
//!
//! jbd2 covers the whole commit block with its checksum and otherwise leaves the bytes behind the first 60 alone. Big-endian,
//! as all of the journal.

use crate::ext::jbd2::be32_at;

/// Byte of the commit block at which the list begins.
pub const OFFSET: usize = 64;
/// "Fdep" in the order of the bytes.
pub const MAGIC: u32 = u32::from_be_bytes(*b"Fdep");

const HEADER_BYTES: usize = 8;
const ENTRY_BYTES: usize = 8;

/// A transaction of another journal without which this one does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dependency {
    /// Inode of the other journal; 8: the file system's own.
    pub journal_inode: u32,
    /// Number of the transaction in its log.
    pub sequence: u32,
}

/// Dependencies that fit into a commit block.
pub const fn most(block_bytes: usize) -> usize {
    block_bytes.saturating_sub(OFFSET + HEADER_BYTES) / ENTRY_BYTES
}

/// Writes dependencies into a commit block, whose checksum is the caller's to compute. Nothing is written without any, and
/// those that do not fit are left out.
pub fn put(block: &mut [u8], dependencies: &[Dependency]) {
    let count = dependencies.len().min(most(block.len()));
    if count == 0 {
        return;
    }
    let Some(place) = block.get_mut(OFFSET..OFFSET + HEADER_BYTES + count * ENTRY_BYTES) else {
        return;
    };
    let words = dependencies[..count].iter().flat_map(|one| [one.journal_inode, one.sequence]);
    // At most 8,183 entries in a block of 64 KiB.
    let words = [MAGIC, count as u32].into_iter().chain(words);
    for (place, word) in place.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *place = word.to_be_bytes();
    }
}

/// The dependencies in a commit block; none where there is no list.
pub fn of(block: &[u8]) -> Vec<Dependency> {
    let word = |at: usize| be32_at(block, at);
    if word(OFFSET) != Some(MAGIC) {
        return Vec::new();
    }
    let count = word(OFFSET + 4).map_or(0, |count| count as usize).min(most(block.len()));
    let entry = |index: usize| {
        let at = OFFSET + HEADER_BYTES + index * ENTRY_BYTES;
        Some(Dependency { journal_inode: word(at)?, sequence: word(at + 4)? })
    };
    (0..count).filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn dependencies_survive(pairs in proptest::collection::vec(any::<(u32, u32)>(), 0..600)) {
            let all: Vec<Dependency> = pairs
                .into_iter()
                .map(|(journal_inode, sequence)| Dependency { journal_inode, sequence })
                .collect();
            let mut block = vec![0; 4096];
            put(&mut block, &all);
            let kept = all.len().min(503);
            prop_assert_eq!(of(&block), all[..kept].to_vec());
            prop_assert!(block[..OFFSET].iter().all(|byte| *byte == 0));
        }

        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut block = bytes;
            if let Some(place) = block.get_mut(OFFSET..OFFSET + 4) {
                place.copy_from_slice(&MAGIC.to_be_bytes());
            }
            prop_assert!(of(&block).len() <= most(block.len()));
        }
    }
}
