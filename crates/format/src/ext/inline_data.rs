//! Inline data: the content of a small file or directory in `i_block`, and what does not fit there
//! in the attribute `system.data`.

use crate::InodeNr;
use crate::ext::dirent::DirCursor;
use crate::ext::inode::Inode;
use crate::ext::xattr::{INDEX_SYSTEM, XattrArea};

/// Bytes in `i_block` (`EXT4_MIN_INLINE_DATA_SIZE`).
pub const IN_BLOCK_SIZE: usize = 60;
/// Bytes of the parent's inode number in front of an inline directory's entries.
pub const PARENT_SIZE: usize = 4;
/// Name of the attribute, behind `system.`.
pub const ATTRIBUTE_NAME: &[u8] = b"data";

/// The two parts of inline data.
#[derive(Clone, Copy, Debug)]
pub struct InlineData<'a> {
    /// The 60 bytes of `i_block`.
    pub in_block: &'a [u8],
    /// The value of `system.data`, which continues them; empty in most.
    pub in_xattr: &'a [u8],
}

impl<'a> InlineData<'a> {
    /// The inline data of an inode, whatever its flags say; `None` if it has no usable
    /// `system.data` attribute in its own body, without which nothing is inline. (A value that
    /// lies in another inode is not usable.)
    pub fn of(inode: &Inode<'a>) -> Option<Self> {
        let area = XattrArea::of_inode(inode.xattr_area())?;
        let entry = area.find(INDEX_SYSTEM, ATTRIBUTE_NAME)?;
        Some(Self { in_block: inode.raw.get(0x28..0x64)?, in_xattr: area.value(&entry)? })
    }

    /// Bytes that both parts hold.
    #[inline]
    pub fn capacity_bytes(&self) -> usize {
        self.in_block.len() + self.in_xattr.len()
    }

    /// The content of a file of `size_bytes`, in its two parts; both are shorter if the data are.
    pub fn content(&self, size_bytes: u64) -> [&'a [u8]; 2] {
        let size = usize::try_from(size_bytes).unwrap_or(usize::MAX);
        let first = self.in_block.get(..size).unwrap_or(self.in_block);
        let rest = size.saturating_sub(first.len());
        [first, self.in_xattr.get(..rest).unwrap_or(self.in_xattr)]
    }

    /// The inode of `..` of a directory: the first 4 bytes. `.` is implied.
    #[inline]
    pub fn parent(&self) -> InodeNr {
        InodeNr(crate::layout::le32_at(self.in_block, 0).unwrap_or(0))
    }

    /// The entries of a directory's first pseudo-block: 56 bytes of `i_block`. Offsets count from
    /// the start of `i_block`, so the first entry is at 4.
    #[inline]
    pub fn first_entries(&self) -> DirCursor<'a> {
        DirCursor::new(self.in_block).starting_at(PARENT_SIZE)
    }

    /// The entries of a directory's second pseudo-block, the attribute's value; none if it is
    /// empty. Offsets count from its start.
    #[inline]
    pub fn second_entries(&self) -> DirCursor<'a> {
        DirCursor::new(self.in_xattr)
    }
}

/// The fault in the size of an inline directory (problem `inline-directory-size-bad`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InlineDirSize {
    /// Nothing.
    Good,
    /// Not a multiple of 4.
    Unaligned,
    /// Between 61 and 71 bytes: the second pseudo-block is too short for any entry.
    SecondTooShort,
}

/// Judges the size of an inline directory in bytes.
pub fn judge_dir_size(size_bytes: u64) -> InlineDirSize {
    match size_bytes {
        61..=71 => InlineDirSize::SecondTooShort,
        _ if size_bytes.is_multiple_of(4) => InlineDirSize::Good,
        _ => InlineDirSize::Unaligned,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext::dirent::write_entry;

    #[test]
    fn an_inline_directory_has_two_parts() {
        let (mut in_block, mut in_xattr) = ([0; 60], [0; 24]);
        in_block[..4].copy_from_slice(&2u32.to_le_bytes());
        write_entry(&mut in_block[4..], InodeNr(12), 56, b"first", 1, 4096).unwrap();
        write_entry(&mut in_xattr, InodeNr(13), 24, b"second", 2, 4096).unwrap();
        let data = InlineData { in_block: &in_block, in_xattr: &in_xattr };
        assert_eq!(data.parent(), InodeNr::ROOT);
        assert_eq!(data.capacity_bytes(), 84);
        let first: Vec<_> = data.first_entries().map(Result::unwrap).collect();
        assert_eq!((first.len(), first[0].offset, first[0].name), (1, 4, &b"first"[..]));
        let second: Vec<_> = data.second_entries().map(Result::unwrap).collect();
        assert_eq!((second.len(), second[0].offset, second[0].name), (1, 0, &b"second"[..]));
        let empty = InlineData { in_block: &in_block, in_xattr: &[] };
        assert_eq!(empty.second_entries().count(), 0);
    }

    #[test]
    fn content_is_cut_to_the_size() {
        let (in_block, in_xattr) = ([1; 60], [2; 8]);
        let data = InlineData { in_block: &in_block, in_xattr: &in_xattr };
        assert_eq!(data.content(10).map(<[u8]>::len), [10, 0]);
        assert_eq!(data.content(64).map(<[u8]>::len), [60, 4]);
        assert_eq!(data.content(u64::MAX).map(<[u8]>::len), [60, 8]);
    }

    #[test]
    fn sizes_of_directories() {
        assert_eq!(judge_dir_size(60), InlineDirSize::Good);
        assert_eq!(judge_dir_size(64), InlineDirSize::SecondTooShort);
        assert_eq!(judge_dir_size(72), InlineDirSize::Good);
        assert_eq!(judge_dir_size(73), InlineDirSize::Unaligned);
    }
}
