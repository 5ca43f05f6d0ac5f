//! Inodes that hold values of attributes (feature ea_inode): made, read, counted and deleted.
//!
//! As in Linux, their content is metadata: it goes through the journal, so that a value is there with the attribute that leads to
//! it, or not at all. One that loses its last user is deleted with the change that takes it away; where that change has no room
//! for its blocks, it is an orphan, and [`Volume::unused_values`] names it to those who finish orphans.

use floe_ext4::map::file;
use floe_ext4::tx::Tx;
use floe_format::ext::inode::{FileType, InodeFlags, OwnedInode, TimeField};
use floe_format::ext::xattr::XattrArea;
use floe_format::ext::xattr::value_inode::{self, MOST_VALUE_BYTES, is_of_lustre};
use floe_format::features::Incompat;
use floe_format::{BlockNr, InodeNr, LogicalBlock};

use super::attributes::{DAMAGED, Held, Stored, Value};
use super::credits::Reach;
use super::staged::Op;
use super::{OpError, Step};
use crate::volume::Volume;

impl Volume {
    /// Orphans that operations left since the last call: values without users, which nobody has open. Whoever runs operations
    /// finishes them with [`Volume::finish_orphan`], so that their space comes back.
    pub fn unused_values(&mut self) -> Vec<InodeNr> {
        std::mem::take(&mut self.orphans.unused_values)
    }
}

impl Op<'_> {
    /// Whether values may lie in inodes of their own.
    pub(super) fn has_value_inodes(&self) -> bool {
        self.volume.geometry().features.incompat.contains(Incompat::EA_INODE)
    }

    /// Whether a value lies in an inode of its own even if a block of attributes had room for it.
    pub(super) fn is_large(&self, value: &[u8]) -> bool {
        let block = self.volume.geometry().block_size as usize;
        self.has_value_inodes() && value_inode::is_large(block, value.len())
    }

    /// Stores a value in an inode of its own, which has one user.
    pub(super) fn new_value(&mut self, owner: &OwnedInode, value: &[u8]) -> Result<Value, OpError> {
        if value.len() > MOST_VALUE_BYTES {
            return Err(OpError::NoRoom);
        }
        // Blocks of a table that was never written, and those of the value.
        self.reach = Reach::Steps;
        let generation = self.volume.draw();
        let space = &mut self.volume.fs.space;
        let number = space.free_inode(&mut self.tx, owner.number, false, generation)?;
        space.take_inode(&mut self.tx, number, false)?;
        self.weigh_new(number);
        let size = self.volume.geometry().inode_size as usize;
        let inode = OwnedInode::new(number, size, self.extra_isize());
        let mut inode = inode.ok_or(super::content::DAMAGED)?;
        inode.base.generation = generation;
        inode.base.links_count = 1;
        inode.base.mode = FileType::Regular.mode(0o600);
        inode.set_owner(owner.uid(), owner.gid());
        inode.set_flags(InodeFlags::EA_INODE, true);
        self.touch(&mut inode, &[TimeField::Modification, TimeField::Creation]);
        let hash = value_inode::value_hash(self.volume.superblock().seed(), value);
        value_inode::set_stored_hash(&mut inode.base, hash);
        value_inode::set_refcount(&mut inode.base, 1);
        self.empty_map(&mut inode);
        self.store_value(&mut inode, value)?;
        self.put(&mut inode)?;
        // At most 65,536.
        let size_bytes = value.len() as u32;
        Ok(Value::Inode(Held { inode: number, size_bytes, hash, is_counted: true }))
    }

    fn store_value(&mut self, inode: &mut OwnedInode, value: &[u8]) -> Result<(), OpError> {
        let size = self.volume.geometry().block_size as usize;
        let mut parts = value.chunks(size).peekable();
        let mut at = 0;
        while parts.len() > 0 {
            let run = self.allocate(inode, LogicalBlock(at), parts.len() as u64)?;
            self.map_run(inode, LogicalBlock(at), run, false)?;
            let blocks = run.start.0..run.end().0;
            for (block, part) in blocks.zip(parts.by_ref().take(run.len_blocks as usize)) {
                let bytes = self.tx.zeroed(BlockNr(block))?;
                bytes.get_mut(..part.len()).ok_or(DAMAGED)?.copy_from_slice(part);
            }
            at += run.len_blocks;
        }
        inode.set_size_bytes(value.len() as u64);
        Ok(())
    }

    /// The bytes of a value, which must have the hash that its inode says, unless an old Lustre wrote it.
    pub(super) fn bytes_of(
        &mut self,
        owner: &OwnedInode,
        value: &Value,
    ) -> Result<Vec<u8>, OpError> {
        let held = match value {
            Value::Here(value) => return Ok(value.clone()),
            Value::Inode(held) => held,
        };
        let holder = self.inode(held.inode)?;
        let (size, wanted) = (self.volume.geometry().block_size as usize, held.size_bytes as usize);
        if wanted > MOST_VALUE_BYTES || holder.size_bytes() != u64::from(held.size_bytes) {
            return Err(DAMAGED);
        }
        let mut bytes = Vec::with_capacity(wanted.next_multiple_of(size));
        for at in 0..wanted.div_ceil(size) as u64 {
            let extent =
                file::look(&self.volume.fs, &holder).find(&mut self.tx, LogicalBlock(at))?;
            let extent = extent.ok_or(DAMAGED)?;
            let block = BlockNr(extent.run.start.0 + (at - extent.logical.0));
            bytes.extend_from_slice(&self.tx.block(block)?);
        }
        bytes.truncate(wanted);
        let hash = value_inode::value_hash(self.volume.superblock().seed(), &bytes);
        let owner = (owner.number, owner.base.generation);
        let is_sound = hash == held.hash || is_of_lustre(&holder.base, owner);
        if is_sound { Ok(bytes) } else { Err(DAMAGED) }
    }

    /// Counts users of a value; without any it is deleted.
    pub(super) fn count_value(&mut self, value: Held, change: i64) -> Result<(), OpError> {
        let mut inode = self.inode(value.inode)?;
        let bit64 = self.volume.geometry().features.incompat.contains(Incompat::BIT64);
        let has_attributes =
            XattrArea::of_inode(inode.attributes()).is_some() || inode.file_acl(bit64).0 != 0;
        if !inode.flags().contains(InodeFlags::EA_INODE) || has_attributes {
            return Err(DAMAGED);
        }
        // Those of an old Lustre have times where others count.
        let users = if value.is_counted { value_inode::refcount(&inode.base) } else { 1 };
        let users = users.saturating_add_signed(change);
        value_inode::set_refcount(&mut inode.base, users);
        if users > 0 {
            return self.put(&mut inode);
        }
        inode.base.links_count = 0;
        if !self.is_half_full() && self.delete(&mut inode)? == Step::Done {
            return Ok(());
        }
        if !self.counts_usage() {
            // Linux refuses an orphan with this flag at a mount and records an error of the file system; without it, it deletes the orphan.
            // Its blocks were logged all the same. Where usage is counted, the flag says that its blocks are not.
            inode.set_flags(InodeFlags::EA_INODE, false);
            inode.set_flags(InodeFlags::JOURNAL_DATA, true);
        }
        self.add_orphan(&mut inode)?;
        self.put(&mut inode)?;
        self.unused_values.push(value.inode);
        Ok(())
    }

    /// Values in inodes of their own to which the attributes of an inode lead: each counts as an inode of its owner. None where
    /// attributes are damaged.
    pub(super) fn count_of_values(&mut self, inode: &OwnedInode) -> u64 {
        if !self.has_value_inodes() {
            return 0;
        }
        let count = |area: Option<XattrArea<'_>>| {
            let entries = area.into_iter().flat_map(|area| area.entries());
            entries.filter(|one| one.is_ok_and(|one| one.value_inode.is_some())).count() as u64
        };
        let inner = count(XattrArea::of_inode(inode.attributes()));
        let block = self.attribute_block(inode).ok().flatten();
        let bytes = block.and_then(|block| self.tx.block(block).ok());
        inner + bytes.map_or(0, |bytes| count(XattrArea::of_block(&bytes)))
    }

    /// Blocks that `i_blocks` counts for values in inodes of their own: whole clusters of each.
    pub(super) fn value_blocks<'s>(&self, all: impl Iterator<Item = &'s Stored>) -> i64 {
        let geo = self.volume.geometry();
        let cluster_bytes = u64::from(geo.block_size) << geo.cluster_bits;
        let clusters = all.map(|one| match one.value {
            Value::Inode(held) => u64::from(held.size_bytes).div_ceil(cluster_bytes),
            Value::Here(_) => 0,
        });
        (clusters.sum::<u64>() << geo.cluster_bits).cast_signed()
    }
}
