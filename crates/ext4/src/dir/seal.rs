//! Checksums of directory blocks, and blocks without names.

use floe_format::ext::dirent::{DirTail, TailState, tail_state};
use floe_format::ext::htree;

use super::area::write_empty;
use super::{DirFormat, Directory, dots};

/// The place of a block's checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sealed {
    /// The file system has no metadata checksums.
    NotNeeded,
    /// It was written into the tail of a linear block or leaf.
    Leaf,
    /// It was written into the tail of an index block.
    Index,
    /// The block has no space for a checksum: the directory must be rebuilt.
    NoRoom,
}

/// Updates the checksum of an edited block: in the tail behind its entries if it has one, else in
/// the tail of an index block. For `inode_seed`, see [`Directory::inode_seed`].
pub fn seal(block: &mut [u8], inode_seed: Option<u32>) -> Sealed {
    let Some(seed) = inode_seed else { return Sealed::NotNeeded };
    // First of all: a root that was a leaf before may still have bytes of its tail, as Linux leaves them.
    if htree::DxBlock::detect(block).is_some() {
        return htree::write_checksum(seed, block).map_or(Sealed::NoRoom, |()| Sealed::Index);
    }
    match DirTail::of(block) {
        Some(_) => {
            DirTail::write(seed, block);
            Sealed::Leaf
        }
        None => Sealed::NoRoom,
    }
}

/// Whether the checksum of a block fits, wherever it is. A block without one does not fit. For
/// `inode_seed`, see [`Directory::inode_seed`].
pub fn checksum_fits(block: &[u8], inode_seed: u32) -> bool {
    match (tail_state(block), htree::DxBlock::detect(block)) {
        (TailState::Present, _) => DirTail::checksum_ok(inode_seed, block).unwrap_or(false),
        (_, Some((_, index))) => index.checksum_ok(inode_seed),
        _ => false,
    }
}

/// Finishes a linear block: its tail with the checksum, if the file system has metadata checksums.
pub(super) fn end_leaf(block: &mut [u8], inode_seed: Option<u32>) {
    if let Some(seed) = inode_seed {
        DirTail::write(seed, block);
    }
}

/// The block of a directory without names: `.` and `..`, with its checksum.
pub fn first_block(format: &DirFormat, dir: &Directory) -> Vec<u8> {
    let mut block = vec![0; format.block_size];
    let form = dir.form(format);
    let end = form.end(block.len());
    // A block has at least 1 KiB, so both fit.
    let _ = write_empty(&mut block, 0, end)
        .and_then(|()| dots::write_dot(&mut block, form, dir.inode))
        .and_then(|()| dots::write_dotdot(&mut block, form, dir.parent));
    end_leaf(&mut block, dir.inode_seed(format));
    block
}

/// A block without names that is not the first one: a single unused entry, with its checksum.
pub fn empty_block(format: &DirFormat, dir: &Directory) -> Vec<u8> {
    let mut block = vec![0; format.block_size];
    let end = dir.form(format).end(block.len());
    let _ = write_empty(&mut block, 0, end);
    end_leaf(&mut block, dir.inode_seed(format));
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dir::tests::{directory, format};
    use floe_format::InodeNr;
    use floe_format::ext::dirent::{DirCursor, TailState, tail_state};

    #[test]
    fn new_blocks_are_whole() {
        for size in [1024, 2048, 4096, 65536] {
            for csum in [false, true] {
                let (format, dir) = (format(size, csum), directory());
                let end = dir.form(&format).end(size);
                for (block, names) in [
                    (first_block(&format, &dir), vec![&b"."[..], b".."]),
                    (empty_block(&format, &dir), vec![&b""[..]]),
                ] {
                    let read: Vec<_> =
                        DirCursor::new(&block).ending_at(end).map(Result::unwrap).collect();
                    assert_eq!(read.iter().map(|e| e.name).collect::<Vec<_>>(), names);
                    assert_eq!(tail_state(&block) == TailState::Present, csum);
                    let seed = dir.inode_seed(&format).unwrap_or(0);
                    assert_eq!(DirTail::checksum_ok(seed, &block).unwrap_or(false), csum);
                    let mut edited = block.clone();
                    edited[0] ^= 1;
                    let sealed = seal(&mut edited, dir.inode_seed(&format));
                    assert_eq!(sealed, if csum { Sealed::Leaf } else { Sealed::NotNeeded });
                    assert_eq!(DirTail::checksum_ok(seed, &edited).unwrap_or(false), csum);
                }
                let block = first_block(&format, &dir);
                let inodes: Vec<_> =
                    DirCursor::new(&block).ending_at(end).map(|e| e.unwrap().inode).collect();
                assert_eq!(inodes, [dir.inode, dir.parent]);
            }
        }
    }

    /// Linux makes a root of a directory's first block, and leaves what its tail had beside the checksum of the root.
    #[test]
    fn a_root_with_the_tail_of_a_leaf_is_sealed_as_a_root() {
        let (format, dir) = (format(4096, true), directory());
        let seed = dir.inode_seed(&format);
        let mut block = first_block(&format, &dir);
        // The second entry spans the rest.
        block[16..18].copy_from_slice(&4084u16.to_le_bytes());
        block[24 + 5] = htree::ROOT_INFO_LENGTH;
        let limit = htree::expected_limit(4096, htree::ROOT_COUNT_OFFSET, true);
        block[32..34].copy_from_slice(&limit.to_le_bytes());
        block[34] = 1;
        assert!(DirTail::of(&block).is_some());
        assert_eq!(seal(&mut block, seed), Sealed::Index);
        assert!(DirTail::of(&block).is_some() && checksum_fits(&block, seed.unwrap()));
    }

    #[test]
    fn a_block_without_a_tail_is_not_sealed() {
        let (with, without) = (format(1024, true), format(1024, false));
        let dir = directory();
        let mut block = first_block(&without, &dir);
        // A second entry, so that it is not an index root.
        let form = dir.form(&without);
        let entry = crate::dir::Entry::new(InodeNr(11), &b"name"[..], 1);
        crate::dir::insert(&mut block, form, &entry).unwrap();
        let before = block.clone();
        assert_eq!(seal(&mut block, dir.inode_seed(&with)), Sealed::NoRoom);
        assert_eq!(block, before);
        for len in [0, 7, 12, 24] {
            let _ = seal(&mut vec![0; len], Some(1));
        }
    }
}
