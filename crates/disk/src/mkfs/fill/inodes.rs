//! The inodes of a tree.

use floe_ext4::map::block_map::{self, MappedRun};
use floe_ext4::map::extent_tree::{self, NodeForm};
use floe_format::ext::inode::{FileType, InodeFlags, device_block};
use floe_format::features::Incompat;
use floe_format::native::backpointer::{Backpointer, FLAG_SEVERAL};
use floe_format::{BlockNr, BlockRun, InodeNr, LogicalBlock};

use super::data::FAST_SYMLINK;
use super::{INDEXED, MAPPED, MOST_LINKS, SUBDIRECTORIES, TreePlan};
use crate::mkfs::inode::NewInode;
use crate::mkfs::map::extents_of;
use crate::mkfs::tree::Body;

impl TreePlan<'_> {
    /// The inode of the node at an index of the order.
    pub(super) fn inode(&self, at: usize) -> NewInode {
        let node = self.tree.node(self.order[at]);
        let attributes = node.attributes();
        let place = self.places[at];
        let mut inode = NewInode::new(node.mode(), self.plan.time());
        (inode.uid, inode.gid) = (attributes.uid, attributes.gid);
        (inode.mtime, inode.atime, inode.ctime) =
            (attributes.mtime, attributes.atime, attributes.ctime);
        inode.size = node.size();
        inode.links = node.link_count().min(MOST_LINKS) as u16;
        inode.blocks = self.blocks_of(at);
        inode.backpointer = self.backpointer(at);
        if let Some(block) = self.attribute_blocks.get(&(at as u32)) {
            inode.file_acl = *block;
        }
        if let Some(set) = self.set_of(at) {
            inode.xattrs.clone_from(&set.in_inode);
        }
        match node.body() {
            Body::Directory => {
                inode.size = u64::from(place.blocks) * u64::from(self.plan.geometry.block_size);
                let links = 2 + (place.flags >> SUBDIRECTORIES);
                // 1: more links than the field can count (dir_nlink).
                inode.links = if links > MOST_LINKS { 1 } else { links as u16 };
                if place.flags & INDEXED != 0 {
                    inode.flags |= InodeFlags::INDEX;
                }
                self.set_map(at, &mut inode);
            }
            Body::File { .. } => self.set_map(at, &mut inode),
            Body::Symlink(target) if target.len() <= FAST_SYMLINK => {
                inode.block[..target.len()].copy_from_slice(target);
            }
            Body::Symlink(_) => self.set_map(at, &mut inode),
            Body::CharDevice { major, minor } | Body::BlockDevice { major, minor } => {
                inode.block = device_block(*major, *minor);
            }
            Body::Fifo | Body::Socket => {}
        }
        inode
    }

    /// The backpointer of the node at an index of the order, from its latest name. The root has none.
    fn backpointer(&self, at: usize) -> Option<Backpointer> {
        let node = self.order[at];
        let name = self.tree.link_of(node)?;
        let parent = InodeNr(self.numbers[name.parent.index()]);
        let several = self.tree.node(node).link_count() > 1;
        let flags = if several { FLAG_SEVERAL } else { 0 };
        Some(Backpointer { flags, ..Backpointer::new(parent, name.name) })
    }

    /// `i_block` of a file with blocks.
    fn set_map(&self, at: usize, inode: &mut NewInode) {
        let place = self.places[at];
        let extents = self.plan.params.incompat(Incompat::EXTENTS);
        if extents {
            inode.flags |= InodeFlags::EXTENTS;
        }
        if place.flags & MAPPED != 0 {
            if let Some(mapped) = self.mapped.get(&(at as u32)) {
                inode.block = mapped.root;
            }
            return;
        }
        let run = BlockRun::new(BlockNr(place.start), u64::from(place.blocks));
        let runs = [MappedRun { logical: LogicalBlock(0), run }];
        let runs = if place.blocks == 0 { &[][..] } else { &runs };
        let block_size = self.plan.geometry.block_size;
        let built = if extents {
            let form = NodeForm { block_size, inode_seed: None, owner_hint: 0 };
            extent_tree::build(&extents_of(runs), form, &[])
        } else {
            block_map::build(runs, self.plan.geometry.indirect(), self.number_at(at), &[])
        };
        // A single run that needs no mapping blocks, as was found when it was placed.
        if let Ok(built) = built {
            inode.block = built.root;
        }
    }

    /// Whether `write` fills the blocks of a node from the tree.
    pub(super) fn has_blocks(&self, at: usize) -> bool {
        self.places[at].blocks > 0
    }

    /// All runs of a file's data.
    pub(super) fn runs_of(&self, at: usize) -> Vec<MappedRun> {
        let place = self.places[at];
        if place.flags & MAPPED != 0 {
            return self.mapped.get(&(at as u32)).map(|one| one.runs.clone()).unwrap_or_default();
        }
        let run = BlockRun::new(BlockNr(place.start), u64::from(place.blocks));
        vec![MappedRun { logical: LogicalBlock(0), run }]
    }

    pub(super) fn file_type(&self, at: usize) -> FileType {
        self.tree.node(self.order[at]).file_type()
    }
}
