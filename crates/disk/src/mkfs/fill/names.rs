//! Directories and slow symbolic links: their blocks and contents.

use floe_ext4::dir::{Directory, Entry, Rebuilt, rebuild};
use floe_format::InodeNr;
use floe_format::ext::dirent::needed_rec_len;
use floe_format::ext::inode::FileType;
use floe_format::features::RoCompat;

use super::{LOST_FOUND_NAME, MOST_LINKS, SUBDIRECTORIES, TreePlan};
use crate::mkfs::native::home_entry;
use crate::mkfs::params::PlanError;
use crate::mkfs::system::{LOST_FOUND, lost_found_blocks};
use crate::mkfs::tree::NodeId;

/// Limit for counting subdirectories: more than any link count can store.
const MOST_COUNTED: u32 = (1 << 24) - 1;

impl<'t> TreePlan<'t> {
    /// Whether the node at an index of the order is the real lost+found.
    fn is_lost_found(&self, at: usize) -> bool {
        at == 1 && self.has_lost_found
    }

    /// The directory of the node at an index of the order, for its blocks.
    pub(super) fn directory(&self, at: usize) -> Directory {
        let inode = self.number_at(at);
        let parent = self.tree.parent(self.order[at]);
        let parent = parent.map_or(inode, |parent| InodeNr(self.numbers[parent.index()]));
        Directory { inode, parent, generation: 0, encrypted: false, casefolded: false }
    }

    /// The entries of a directory, without `.` and `..`.
    pub(super) fn entries(&self, node: NodeId) -> Vec<Entry<'t>> {
        let tree: &'t _ = self.tree;
        let children = tree.children(node).into_iter();
        let mut entries: Vec<Entry<'t>> = children
            .map(|child| {
                let inode = InodeNr(self.numbers[child.node.index()]);
                Entry::new(inode, child.name, tree.node(child.node).file_type() as u8)
            })
            .collect();
        if node == tree.root() && !self.has_lost_found {
            entries.push(Entry::new(LOST_FOUND, LOST_FOUND_NAME, FileType::Directory as u8));
        }
        if node == tree.root() {
            entries.extend(home_entry(&self.plan));
        }
        entries
    }

    /// The blocks of the directory at an index of the order.
    pub(super) fn directory_content(&self, at: usize) -> Rebuilt {
        let node = self.order[at];
        let entries = self.entries(node);
        let lost_found = self.is_lost_found(at);
        let size_blocks = if lost_found { lost_found_blocks(&self.plan) } else { 2 };
        let dir = self.directory(at);
        rebuild(&self.plan.dir_format, &dir, size_blocks, lost_found, entries)
    }

    /// Number of blocks of the directory at an index of the order (0: inline), and whether it has
    /// an index.
    pub(super) fn directory_blocks(&mut self, at: usize) -> Result<(u32, bool), PlanError> {
        let node = self.order[at];
        let (mut needed, mut subdirectories) = (0, 0u32);
        for child in self.tree.children(node) {
            needed += needed_rec_len(child.name.len(), false) as usize;
            subdirectories += u32::from(self.tree.node(child.node).is_directory());
        }
        if node == self.tree.root() && !self.has_lost_found {
            needed += needed_rec_len(LOST_FOUND_NAME.len(), false) as usize;
            subdirectories += 1;
        }
        if node == self.tree.root()
            && let Some(entry) = home_entry(&self.plan)
        {
            needed += needed_rec_len(entry.name.len(), false) as usize;
            subdirectories += 1;
        }
        self.places[at].flags |= subdirectories.min(MOST_COUNTED) << SUBDIRECTORIES;
        if self.try_inline_directory(at, needed) {
            return Ok((0, false));
        }
        let form = self.directory(at).form(&self.plan.dir_format);
        // The two dots take 12 bytes each.
        if !self.is_lost_found(at) && needed + 24 <= form.end(self.plan.dir_format.block_size) {
            return Ok((1, false));
        }
        let built = self.directory_content(at);
        if built.needs_large_dir {
            return Err(self.refuse(node, "this many names need the feature large_dir"));
        }
        if !built.settled.is_empty() {
            return Err(self.refuse(node, "two of its names are equal in this file system"));
        }
        let is_counted = built.indexed && self.plan.params.ro_compat(RoCompat::DIR_NLINK);
        if subdirectories + 2 > MOST_LINKS && !is_counted {
            let why = "more than 64998 subdirectories need the features dir_nlink and dir_index";
            return Err(self.refuse(node, why));
        }
        let blocks = built.content.len() / self.plan.dir_format.block_size;
        Ok((u32::try_from(blocks).unwrap_or(u32::MAX), built.indexed))
    }
}
