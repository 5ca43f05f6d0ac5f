//! Collects the entries of a directory that is to be rebuilt.

use std::borrow::Cow;

use floe_format::ext::dirent::{DirCursor, TailState, tail_state};

use super::{DirFormat, Directory, Entry};

/// The entries in use of all blocks of a directory, without `.` and `..`. Index blocks have none. A
/// block is read up to its first broken entry, so repair it first ([`salvage`](super::salvage)). A
/// checksum tail is not an entry, and may be missing.
pub fn gather<'a>(content: &'a [u8], format: &DirFormat, dir: &Directory) -> Vec<Entry<'a>> {
    let mut entries = Vec::new();
    for block in content.chunks(format.block_size.max(1)) {
        // Index nodes look like one unused entry, and the index root lies inside the record of
        // `..`.
        let cursor = DirCursor::new(block).hashed(dir.hashed());
        let with_tail = format.seed.is_some() && tail_state(block) == TailState::Present;
        let cursor = if with_tail { cursor.without_tail() } else { cursor };
        collect(cursor, dir.hashed(), &mut entries);
    }
    entries
}

/// Adds the entries in use that a cursor yields, without `.` and `..`.
pub(super) fn collect<'a>(cursor: DirCursor<'a>, hashed: bool, into: &mut Vec<Entry<'a>>) {
    let used = cursor
        .map_while(Result::ok)
        .filter(|entry| entry.in_use() && !entry.is_dot_or_dotdot() && !entry.name.is_empty());
    into.extend(used.map(|entry| Entry {
        inode: entry.inode,
        name: Cow::Borrowed(entry.name),
        file_type: entry.file_type,
        hash: if hashed { entry.stored_hash() } else { None },
    }));
}
