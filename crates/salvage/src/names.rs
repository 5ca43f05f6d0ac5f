//! The entries of directories, from directories in use and from single blocks.

use floe_exec::{Accumulator, append};
use floe_ext4::files::{FileMap, Files};
use floe_ext4::map::walk::has_map;
use floe_format::ext::dirent::DirCursor;
use floe_format::ext::inode::FileType;
use floe_format::{BlockRun, InodeNr};

use crate::inventory::is_loss;
use crate::scan::entries_end;

/// An entry of a directory, with a usable name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Name {
    pub(crate) inode: InodeNr,
    pub(crate) name: Vec<u8>,
    pub(crate) file_type: Option<FileType>,
}

/// The usable entries of a directory block, without `.` and `..`, up to the first damaged one.
pub(crate) fn names_in(block: &[u8], inodes_count: u32) -> Vec<Name> {
    let entries = DirCursor::new(block).ending_at(entries_end(block)).map_while(Result::ok);
    entries
        .filter(|entry| {
            entry.in_use()
                && entry.inode.0 <= inodes_count
                && !entry.name.is_empty()
                && !entry.is_dot_or_dotdot()
                && !entry.name.iter().any(|byte| matches!(byte, b'/' | 0))
        })
        .map(|entry| Name {
            inode: entry.inode,
            name: entry.name.to_vec(),
            file_type: FileType::of_entry(entry.file_type),
        })
        .collect()
}

/// Facts from the entries of directories in use.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// Inodes named, 4 bytes an entry.
    pub(crate) named: Vec<InodeNr>,
    /// Lost inodes that are named, with the type and the directory.
    pub(crate) lost: Vec<(InodeNr, Option<FileType>, InodeNr)>,
    /// Directories and their `..`.
    pub(crate) parents: Vec<(InodeNr, InodeNr)>,
    /// Blocks of directories, 16 bytes an extent.
    pub(crate) blocks: Vec<BlockRun>,
    /// Directories with damage, and whether entries are lost.
    pub(crate) damaged: Vec<(InodeNr, bool)>,
}

impl Accumulator for Listed {
    fn merge(&mut self, other: Self) {
        let Self { named, lost, parents, blocks, damaged } = other;
        append(&mut self.named, named);
        append(&mut self.lost, lost);
        append(&mut self.parents, parents);
        append(&mut self.blocks, blocks);
        append(&mut self.damaged, damaged);
    }
}

impl Listed {
    /// Sorts everything, so that results do not depend on the number of threads.
    pub(crate) fn settle(&mut self) {
        self.named.sort_unstable();
        self.lost.sort_unstable();
        self.parents.sort_unstable();
        self.blocks.sort_unstable();
        self.damaged.sort_unstable();
    }

    /// Lists a directory in use.
    pub(crate) fn take(
        &mut self,
        files: &Files<'_>,
        directory: InodeNr,
        is_live: &dyn Fn(InodeNr) -> bool,
    ) {
        let Ok(node) = files.node(directory) else { return };
        let Ok(listing) = files.list(&node) else { return };
        let has_blocks = has_map(&node.inode().base);
        let map = if has_blocks { files.map(&node) } else { FileMap::default() };
        // A directory has no holes, and begins with `.` and `..`.
        let mapped: u64 = map.extents.iter().map(|extent| extent.run.len_blocks).sum();
        let size_bytes = mapped.saturating_mul(u64::from(files.geometry().block_size));
        let is_short = has_blocks && size_bytes < node.size_bytes() || listing.parent.is_none();
        let loses = is_short || listing.faults.iter().any(is_loss);
        if loses || !listing.faults.is_empty() {
            self.damaged.push((directory, loses));
        }
        self.blocks.extend(map.extents.iter().map(|extent| extent.run));
        self.parents.extend(listing.parent.map(|parent| (directory, parent)));
        for entry in listing.entries {
            if is_live(entry.inode) {
                self.named.push(entry.inode);
            } else {
                self.lost.push((entry.inode, entry.file_type, directory));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use floe_format::BlockNr;

    use super::*;

    floe_exec::accumulator_laws!(
        Listed,
        1u32..9,
        |all: &mut Listed, item: u32| {
            let inode = InodeNr(item);
            all.named.push(inode);
            all.lost.push((inode, None, inode));
            all.parents.push((inode, inode));
            all.blocks.push(BlockRun::new(BlockNr(1), u64::from(item)));
            all.damaged.push((inode, item > 4));
        },
        |mut all: Listed| {
            all.settle();
            format!("{all:?}")
        }
    );

    #[test]
    fn names_that_no_program_could_use_are_left_out() {
        let mut block = vec![0; 1024];
        let names = [&b"good"[..], b"..", b"a/b", b"a\0b", b"."];
        let mut at = 0;
        for name in names {
            let rec_len = if name == b"." { 1024 - at as u32 } else { 16 };
            let record = &mut block[at..];
            floe_format::ext::dirent::write_entry(record, InodeNr(12), rec_len, name, 1, 1024)
                .unwrap();
            at += 16;
        }
        let found = names_in(&block, 100);
        assert_eq!(found.iter().map(|name| &name.name[..]).collect::<Vec<_>>(), [b"good"]);
        assert_eq!(names_in(&block, 11), []);
    }
}
