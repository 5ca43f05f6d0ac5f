//! Space that the project of a directory leaves, as Linux's `ext4_statfs_project` tells it.

use floe_blockdev::WriteBlocks;
use floe_format::InodeNr;
use floe_format::ext::inode::InodeFlags;
use floe_format::ext::quota::QuotaKind;

use super::Live;
use crate::store::{Space, Store};

impl<D: WriteBlocks> Live<'_, '_, D> {
    /// Sizes of the project that a directory hands on, if limits of it count.
    pub(super) fn space_of_project(&self, inode: InodeNr) -> Option<Space> {
        let of = Store::attributes(self, inode).ok()?;
        if !of.flags.contains(InodeFlags::PROJINHERIT) {
            return None;
        }
        let quota =
            self.run(inode, |volume, tx| volume.quota_of(tx, QuotaKind::Project, of.project));
        let (quota, all) = (quota.ok()??, Store::space(self));
        let mut space = all;
        let block_bytes = u64::from(all.block_bytes).max(1);
        if let Some(limit) = quota.bytes.1 {
            space.blocks = all.blocks.min(limit / block_bytes);
            let free = space.blocks.saturating_sub(quota.bytes.0 / block_bytes);
            space.free_blocks = free;
            space.available_blocks = free;
        }
        if let Some(limit) = quota.inodes.1 {
            space.inodes = all.inodes.min(limit);
            space.free_inodes = space.inodes.saturating_sub(quota.inodes.0);
        }
        Some(space)
    }
}
