//! Which bitmaps are believed: those that agree with their descriptor and with the file system's own blocks. A bitmap whose
//! damage has a right checksum would hand out what is in use; Linux, too, takes nothing from such a group.

use floe_ext4::group::metadata_runs;
use floe_ext4::tx::Refusal;
use floe_format::GroupNr;
use floe_format::ext::bitmap;

use super::Pool;

const BLOCKS: Refusal = Refusal::Damaged("a block bitmap, which contradicts its group,");
const INODES: Refusal = Refusal::Damaged("an inode bitmap, which contradicts its group,");

impl Pool {
    /// A group with a bitmap by which something that was released had been free before.
    pub(crate) const fn contradicted(&self) -> Option<GroupNr> {
        self.held.contradicted()
    }

    /// Refuses the block bitmap of a group if it has another number of free clusters than the descriptor, or if metadata of
    /// the group are free in it.
    ///
    /// # Errors
    /// [`Refusal::Damaged`].
    pub(super) fn refuse_unsound_blocks(
        &self,
        group: GroupNr,
        bytes: &[u8],
    ) -> Result<(), Refusal> {
        let (geo, desc) = (self.groups.geometry(), self.groups.desc(group)?);
        let clusters = geo.clusters_of(group);
        if clusters - bitmap::count(bytes, 0..clusters) != desc.free_blocks_count {
            return Err(BLOCKS);
        }
        let home = geo.blocks_of(group);
        for run in metadata_runs(geo, group, &desc) {
            let (start, end) = (run.start.max(home.start).0, run.end().min(home.end()).0);
            // With flex_bg, metadata of the group may lie in others.
            if start < end {
                // Inside the group, so the differences fit.
                let first = ((start - home.start.0) >> geo.cluster_bits) as u32;
                let last = ((end - 1 - home.start.0) >> geo.cluster_bits) as u32;
                if bitmap::first_clear(bytes, first..last + 1).is_some() {
                    return Err(BLOCKS);
                }
            }
        }
        Ok(())
    }

    /// Refuses the inode bitmap of a group if it has another number of free inodes than the descriptor, or marks one as used
    /// in the part of the table that was never written (`bg_itable_unused`), which is zeroed before it is used.
    ///
    /// # Errors
    /// [`Refusal::Damaged`].
    pub(super) fn refuse_unsound_inodes(
        &self,
        group: GroupNr,
        bytes: &[u8],
    ) -> Result<(), Refusal> {
        let (geo, desc) = (self.groups.geometry(), self.groups.desc(group)?);
        let inodes = geo.inodes_per_group;
        let hidden = match geo.features.group_desc_csum() && !desc.inode_uninit() {
            true => desc.itable_unused,
            false => 0,
        };
        let written = inodes.checked_sub(hidden).ok_or(INODES)?;
        let free = inodes - bitmap::count(bytes, 0..inodes);
        if free != desc.free_inodes_count || bitmap::first_set(bytes, written..inodes).is_some() {
            return Err(INODES);
        }
        Ok(())
    }
}
