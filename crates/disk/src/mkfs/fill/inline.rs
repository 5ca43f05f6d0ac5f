//! Files and directories stored in their inodes (feature `inline_data`): 60 bytes in `i_block`, the
//! rest in the attribute `system.data`. As in mke2fs, the root and lost+found have blocks; so have
//! long symbolic links and empty files.

use std::io;

use floe_ext4::dir::inline;
use floe_format::ext::dirent::needed_rec_len;
use floe_format::ext::inline_data::{ATTRIBUTE_NAME, IN_BLOCK_SIZE, PARENT_SIZE};
use floe_format::ext::inode::InodeFlags;
use floe_format::ext::xattr::{INDEX_SYSTEM, NewValue, NewXattr};
use floe_format::features::Incompat;

use super::data::read;
use super::{INLINE, TreePlan};
use crate::mkfs::inode::NewInode;
use crate::mkfs::tree::{Contents, NodeId};

/// `system.data` with the bytes that do not fit in `i_block`.
pub(super) fn attribute(value: &[u8]) -> NewXattr<'_> {
    NewXattr { name_index: INDEX_SYSTEM, name: ATTRIBUTE_NAME, value: NewValue::Here(value) }
}

/// The content of an inline file or directory.
struct Content {
    in_block: [u8; IN_BLOCK_SIZE],
    in_attribute: Vec<u8>,
}

impl TreePlan<'_> {
    /// Bytes of content that fit in the inode of the node at an index of the order, behind those in
    /// `i_block`; `None`: the node must have blocks.
    fn room_behind(&self, at: usize) -> Option<usize> {
        let own = usize::from(self.has_lost_found);
        if !self.plan.params.incompat(Incompat::INLINE_DATA) || at <= own {
            return None;
        }
        self.set_of(at)?.room_behind
    }

    /// Stores a regular file in its inode if it fits. Returns whether it did.
    pub(super) fn try_inline_file(&mut self, at: usize) -> bool {
        let size = self.tree.node(self.order[at]).size();
        let fits = size > 0
            && self.room_behind(at).is_some_and(|room| size <= (IN_BLOCK_SIZE + room) as u64);
        if fits {
            self.places[at].flags |= INLINE;
        }
        fits
    }

    /// Stores a directory in its inode if it fits. Returns whether it did. `needed`: bytes of its
    /// entries.
    pub(super) fn try_inline_directory(&mut self, at: usize, needed: usize) -> bool {
        let Some(room) = self.room_behind(at) else { return false };
        // Necessary but not sufficient, because entries are not split between the two parts.
        let fits = needed <= IN_BLOCK_SIZE - PARENT_SIZE + room
            && self.inline_directory(at).is_some_and(|content| content.in_attribute.len() <= room);
        if fits {
            self.places[at].flags |= INLINE;
        }
        fits
    }

    /// The content of an inline directory. `None`: an entry does not fit.
    fn inline_directory(&self, at: usize) -> Option<Content> {
        let node = self.order[at];
        let entries = self.entries(node);
        let dir = self.directory(at);
        let form = dir.inline_form(&self.plan.dir_format);
        let mut in_block = inline::fresh(dir.parent);
        let mut behind = Vec::new();
        for entry in &entries {
            if inline::insert(&mut in_block, &mut [], form, entry).is_none() {
                behind.push(entry);
            }
        }
        // As short as possible: the directory's size includes its length.
        let len = behind.iter().map(|entry| needed_rec_len(entry.name.len(), false) as usize);
        let mut in_attribute = inline::fresh_second(len.sum());
        for entry in behind {
            inline::insert(&mut in_block, &mut in_attribute, form, entry)?;
        }
        Some(Content { in_block, in_attribute })
    }

    fn inline_file(&self, node: NodeId, contents: &dyn Contents) -> io::Result<Content> {
        let node = self.tree.node(node);
        // It was found to fit in an inode.
        let mut bytes = vec![0; node.size() as usize];
        read(node, contents, 0, &mut bytes)?;
        let mut in_block = [0; IN_BLOCK_SIZE];
        let first = bytes.len().min(IN_BLOCK_SIZE);
        in_block[..first].copy_from_slice(&bytes[..first]);
        Ok(Content { in_block, in_attribute: bytes.split_off(first) })
    }

    /// Stores content in an inode, if it is inline.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn set_inline(
        &self,
        at: usize,
        contents: &dyn Contents,
        inode: &mut NewInode,
    ) -> io::Result<()> {
        let node = self.order[at];
        if self.places[at].flags & INLINE == 0 {
            return Ok(());
        }
        let is_directory = self.tree.node(node).is_directory();
        let content = if is_directory {
            let built = self.inline_directory(at);
            built.ok_or_else(|| io::Error::other("an inline directory no longer fits"))?
        } else {
            self.inline_file(node, contents)?
        };
        inode.block = content.in_block;
        inode.flags = InodeFlags::INLINE_DATA;
        if is_directory {
            inode.size = (IN_BLOCK_SIZE + content.in_attribute.len()) as u64;
        }
        if let Some(set) = self.set_of(at) {
            inode.xattrs = set.with_data(&content.in_attribute);
        }
        Ok(())
    }
}
