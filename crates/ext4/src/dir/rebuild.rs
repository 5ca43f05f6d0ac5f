//! Rebuilds a whole directory.

use floe_format::ext::dirhash::DirHash;

use super::index::{self, Indexed};
use super::leaves::Packer;
use super::names::{self, Settled};
use super::seal::{empty_block, first_block};
use super::{DirFormat, Directory, Entry};

/// A rebuilt directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    /// All blocks in order, with their checksums.
    pub content: Vec<u8>,
    /// Whether block 0 is the root of an index: the inode's INDEX_FL must say the same.
    pub indexed: bool,
    /// Whether the index is so deep that the file system needs large_dir.
    pub needs_large_dir: bool,
    /// Entries that were dropped or renamed, sorted by their old names.
    pub settled: Vec<Settled>,
}

/// Builds the blocks of a directory from its entries, without `.` and `..`. The order of the
/// entries matters only for names of one inode that differ in case alone: the first of them stays.
///
/// `size_blocks` is the previous size: a directory of one block gets no index. lost+found
/// (`lost_found`) never gets one and never shrinks.
pub fn rebuild(
    format: &DirFormat,
    dir: &Directory,
    size_blocks: u64,
    lost_found: bool,
    entries: Vec<Entry<'_>>,
) -> Rebuilt {
    let (entries, settled) = names::settle(dir, entries);
    let mut rebuilt =
        Rebuilt { content: Vec::new(), indexed: false, needs_large_dir: false, settled };
    let may_be_indexed = format.dir_index && !lost_found && size_blocks >= 2;
    if may_be_indexed && !fits_one_block(format, dir, &entries) {
        let mut hashed: Vec<(DirHash, Entry<'_>)> =
            entries.into_iter().map(|entry| (index::hash_of(format, dir, &entry), entry)).collect();
        // Entries are already sorted by name, which stays the order among equal hashes.
        hashed.sort_by_key(|(hash, _)| *hash);
        if let Some(Indexed { content, needs_large_dir }) = index::build(format, dir, &hashed) {
            return Rebuilt { content, indexed: true, needs_large_dir, ..rebuilt };
        }
        // More names than any index can hold: a linear search still finds them.
        let entries = hashed.into_iter().map(|(_, entry)| entry).collect();
        rebuilt.content = linear(format, dir, entries);
        return rebuilt;
    }
    rebuilt.content = linear(format, dir, entries);
    if lost_found {
        let blocks = usize::try_from(size_blocks).unwrap_or(0);
        for _ in rebuilt.content.len() / format.block_size.max(1)..blocks {
            rebuilt.content.extend(empty_block(format, dir));
        }
    }
    rebuilt
}

/// Whether one linear block holds all entries, `.` and `..` included.
fn fits_one_block(format: &DirFormat, dir: &Directory, entries: &[Entry<'_>]) -> bool {
    let form = dir.form(format);
    let needed: usize = entries.iter().map(|entry| form.needed(&entry.name)).sum();
    let dots = form.needed(b".") + form.needed(b"..");
    needed + dots <= form.end(format.block_size)
}

/// Linear blocks: `.`, `..`, and the entries sorted by inode, which is the disk order of the
/// inodes.
fn linear(format: &DirFormat, dir: &Directory, mut entries: Vec<Entry<'_>>) -> Vec<u8> {
    if entries.is_empty() {
        return first_block(format, dir);
    }
    entries.sort_by(|one, other| (one.inode, &one.name).cmp(&(other.inode, &other.name)));
    let mut packer = Packer::new(format, dir, Vec::new(), 0);
    packer.add(dir.inode, &Entry::new(dir.inode, &b"."[..], format.dir_type()));
    packer.add(dir.parent, &Entry::new(dir.parent, &b".."[..], format.dir_type()));
    for entry in &entries {
        packer.add(entry.inode, entry);
    }
    packer.finish()
}
