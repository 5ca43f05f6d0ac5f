//! The entries of a directory: linear, with an index, or inline.
//!
//! Leaves are read in the order of the file. Interior blocks of an index hold no entries, so a
//! damaged index hides none.

use std::collections::HashSet;

use floe_format::ext::casefold;
use floe_format::ext::dirent::DirCursor;
use floe_format::ext::inline_data::InlineData;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use super::{FileFault, Files, FilesError, Node, printable};
use crate::dir::checksum_fits;

/// An entry that names a child.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryEntry {
    /// The inode it names.
    pub inode: InodeNr,
    /// The type that the entry states; `None` where entries have none.
    pub file_type: Option<FileType>,
    /// The name: not empty, without `/` and zero bytes, neither `.` nor `..`. In an encrypted
    /// directory: the encrypted name in base64 (URL alphabet, no padding).
    pub name: Vec<u8>,
}

/// The entries of a directory.
#[derive(Debug, Default)]
pub struct Listing {
    /// Entries in use, without `.` and `..`, in the order of the disk.
    pub entries: Vec<DirectoryEntry>,
    /// The inode that `..` names; `None` if there is no such entry.
    pub parent: Option<InodeNr>,
    /// Parts that could not be read.
    pub faults: Vec<FileFault>,
}

impl Listing {
    /// Sorts the entries by the bytes of their names. If several have one name, the first one of the directory stays, which is
    /// the one that a path leads to, so that nothing is written through another one, such as a symbolic link.
    pub fn sort(&mut self) {
        self.entries.sort_by(|one, other| one.name.cmp(&other.name));
        let faults = &mut self.faults;
        self.entries.dedup_by(|next, first| {
            let same = next.name == first.name;
            if same {
                faults.push(FileFault::NameTwice { name: next.name.clone(), inode: next.inode });
            }
            same
        });
    }

    fn take(&mut self, cursor: DirCursor<'_>, logical: LogicalBlock, dir: Kind) {
        for entry in cursor.hashed(dir.hashed) {
            let entry = match entry {
                Ok(entry) => entry,
                Err(fault) => {
                    let offset_bytes = fault.offset;
                    self.faults.push(FileFault::DirectoryDamaged { logical, offset_bytes });
                    return;
                }
            };
            if entry.in_use() && entry.name == b".." {
                self.parent = self.parent.or(Some(entry.inode));
            }
            if !entry.in_use() || entry.is_dot_or_dotdot() {
                continue;
            }
            let impossible = entry.name.is_empty()
                || !dir.encrypted && entry.name.iter().any(|byte| matches!(byte, b'/' | 0));
            if impossible {
                let (inode, name) = (entry.inode, printable(entry.name));
                self.faults.push(FileFault::ImpossibleName { inode, name });
                continue;
            }
            let name = if dir.encrypted { base64url(entry.name) } else { entry.name.to_vec() };
            let file_type = FileType::of_entry(entry.file_type);
            self.entries.push(DirectoryEntry { inode: entry.inode, file_type, name });
        }
    }
}

/// The properties of a directory that matter for reading its entries.
#[derive(Clone, Copy)]
struct Kind {
    encrypted: bool,
    hashed: bool,
}

impl Files<'_> {
    /// All entries of a directory.
    ///
    /// # Errors
    /// [`FilesError::NotADirectory`].
    pub fn list(&self, node: &Node) -> Result<Listing, FilesError> {
        if !node.is_directory() {
            return Err(FilesError::NotADirectory { path: node.number.to_string() });
        }
        let flags = node.flags();
        let kind = Kind {
            encrypted: flags.contains(InodeFlags::ENCRYPT),
            hashed: flags.contains(InodeFlags::ENCRYPT | InodeFlags::CASEFOLD),
        };
        let mut listing = Listing::default();
        if flags.contains(InodeFlags::INLINE_DATA) {
            match InlineData::of(&node.inode()) {
                Some(inline) => {
                    let parent = crate::dir::inline::parent(&node.inode().base.block);
                    listing.parent = Some(parent).filter(|parent| parent.0 != 0);
                    listing.take(inline.first_entries(), LogicalBlock(0), kind);
                    listing.take(inline.second_entries(), LogicalBlock(1), kind);
                }
                None => listing.faults.push(FileFault::InlineDamaged),
            }
            return Ok(listing);
        }
        self.list_blocks(node, kind, &mut listing);
        Ok(listing)
    }

    fn list_blocks(&self, node: &Node, kind: Kind, listing: &mut Listing) {
        let map = self.map(node);
        listing.faults.extend(map.faults);
        let block_size = u64::from(self.geometry.block_size);
        let blocks = node.size_bytes().div_ceil(block_size);
        let mut seen = HashSet::new();
        for extent in &map.extents {
            if extent.unwritten {
                let (logical, offset_bytes) = (extent.logical, 0);
                listing.faults.push(FileFault::DirectoryDamaged { logical, offset_bytes });
                continue;
            }
            for offset in 0..extent.run.len_blocks {
                let logical = LogicalBlock(extent.logical.0 + offset);
                let block = BlockNr(extent.run.start.0 + offset);
                // Blocks past the end of the directory hold nothing. A block mapped twice is
                // damage, and could give a small image any number of entries.
                if logical.0 >= blocks {
                    return;
                }
                if !seen.insert(block) {
                    listing.faults.push(FileFault::DirectoryDamaged { logical, offset_bytes: 0 });
                    continue;
                }
                match self.block(block) {
                    Ok(bytes) => {
                        let right = self.judge_sum(node, logical, &bytes, listing);
                        if right || !self.refuses_damaged_names {
                            listing.take(DirCursor::new(&bytes), logical, kind);
                        }
                    }
                    Err(source) => {
                        listing.faults.push(FileFault::DirectoryUnreadable { logical, source });
                    }
                }
            }
        }
    }

    /// Verifies the checksum of a directory block, leaf or index; `false` if it is wrong, which is listed.
    fn judge_sum(
        &self,
        node: &Node,
        logical: LogicalBlock,
        bytes: &[u8],
        listing: &mut Listing,
    ) -> bool {
        let right = !self.checksums() || checksum_fits(bytes, self.seed_of(node));
        if !right {
            listing.faults.push(FileFault::DirectoryChecksum { logical });
        }
        right
    }

    /// The inode of a name in a directory. Names match byte for byte, or in folded form in a
    /// casefolded directory.
    pub(super) fn find(&self, node: &Node, name: &[u8]) -> Result<Option<InodeNr>, FilesError> {
        let entries = self.list(node)?.entries;
        let exact = entries.iter().find(|entry| entry.name == name);
        let folded = || {
            let folds = node.flags().contains(InodeFlags::CASEFOLD);
            let same = |entry: &&DirectoryEntry| casefold::same_name(&entry.name, name);
            if folds { entries.iter().find(same) } else { None }
        };
        Ok(exact.or_else(folded).map(|entry| entry.inode))
    }
}

/// Bytes in base64 with the alphabet for URLs and file names, without padding.
fn base64url(bytes: &[u8]) -> Vec<u8> {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    let mut text = Vec::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let byte = |at: usize| u32::from(part.get(at).copied().unwrap_or(0));
        let word = byte(0) << 16 | byte(1) << 8 | byte(2);
        let letters = (0..=part.len()).map(|at| LETTERS[(word >> (18 - 6 * at) & 63) as usize]);
        text.extend(letters);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::base64url;

    #[test]
    fn encrypted_names_become_names() {
        assert_eq!(base64url(b""), b"");
        assert_eq!(base64url(b"f"), b"Zg");
        assert_eq!(base64url(b"fo"), b"Zm8");
        assert_eq!(base64url(b"foo"), b"Zm9v");
        assert_eq!(base64url(&[0xfb, 0xff, 0xfe, 0x2f, 0]), b"-__-LwA");
    }
}
