//! Attribute blocks that orphans share with others, and values in inodes of their own, whose attributes go with orphans that are
//! released.

use std::collections::{BTreeMap, BTreeSet};

use floe_format::ext::inode::InodeFlags;
use floe_format::ext::xattr::value_inode::{refcount, set_refcount};
use floe_format::ext::xattr::{XattrArea, XattrHeader};
use floe_format::features::Incompat;
use floe_format::{BlockNr, InodeNr};

use super::xattrs;
use crate::edit::AttributeBlockEdit;
use crate::failure::Failure;
use crate::stage::{InodeImage, Stage};

/// Uses of values that orphans give up.
#[derive(Debug, Default)]
pub(super) struct OrphanValues {
    /// Uses that are left, of each value that lost one.
    left: BTreeMap<InodeNr, u64>,
    /// Orphans that were released.
    released: BTreeSet<InodeNr>,
}

impl OrphanValues {
    /// Gives up the values of an orphan that is released, as Linux does: those that nothing else uses are released with it
    /// (e2fsck leaves them unattached).
    pub(super) fn release(
        &mut self,
        stage: &mut Stage<'_>,
        orphan: &InodeImage,
    ) -> Result<(), Failure> {
        self.released.insert(orphan.number);
        self.leave_block(stage, orphan)?;
        if !stage.geometry.features.incompat.contains(Incompat::EA_INODE) {
            return Ok(());
        }
        let inside = orphan.attributes_offset().and_then(|at| orphan.raw.get(at..));
        let mut values = inside.and_then(XattrArea::of_inode).map_or_else(Vec::new, values_of);
        if let Some(block) = self.block_given_up(stage, orphan) {
            let bytes = stage.read_block(block)?;
            values.extend(XattrArea::of_block(&bytes).map_or_else(Vec::new, values_of));
        }
        values.into_iter().try_for_each(|value| self.give_up(stage, value))
    }

    /// The attribute block of an inode, if it was the last one that used it.
    fn block_given_up(&self, stage: &Stage<'_>, orphan: &InodeImage) -> Option<BlockNr> {
        let (block, users, left) = self.users(stage, orphan)?;
        (users > 0 && left == 0).then_some(block)
    }

    /// The attribute block of an inode, how many inodes used it, and how many do still.
    fn users(&self, stage: &Stage<'_>, orphan: &InodeImage) -> Option<(BlockNr, u32, u32)> {
        let block = stage.attribute_block(orphan);
        // In order of blocks; one that is not sound is not among them.
        let uses = &stage.evidence.attributes.block_uses;
        let behind = uses.get(uses.partition_point(|one| one.block < block)..)?;
        let users = behind.chunk_by(|one, next| one.block == next.block).next()?;
        let is_own = users.first().is_some_and(|one| one.block == block);
        let left = users.iter().filter(|one| !self.released.contains(&one.inode)).count();
        // Each inode uses one block, and their numbers have 32 bits.
        is_own.then_some((block, users.len() as u32, left as u32))
    }

    /// Counts an orphan no longer among those that share its attribute block, where the count was right: otherwise it is a finding of
    /// its own.
    fn leave_block(&self, stage: &mut Stage<'_>, orphan: &InodeImage) -> Result<(), Failure> {
        let Some((block, _, left)) = self.users(stage, orphan).filter(|(.., left)| *left > 0)
        else {
            return Ok(());
        };
        let bytes = stage.read_block(block)?;
        let stored = bytes.first_chunk().map(|head| XattrHeader::decode(head).refcount);
        if stored != Some(left + 1) || !xattrs::is_sound(stage, block, &bytes) {
            return Ok(());
        }
        xattrs::apply(stage, block, AttributeBlockEdit::References(left))
    }

    fn give_up(&mut self, stage: &mut Stage<'_>, value: InodeNr) -> Result<(), Failure> {
        // One that no sound attribute uses is none.
        let Some(uses) = stage.evidence.attributes.ea_references.get(&value) else { return Ok(()) };
        let left = self.left.entry(value).or_insert(*uses);
        let before = *left;
        *left = before.saturating_sub(1);
        let mut holder = stage.read_inode(value)?;
        if !holder.flags().contains(InodeFlags::EA_INODE) {
            return Ok(());
        }
        if *left == 0 {
            holder.base.dtime = stage.now32();
            holder.base.flags = 0;
            holder.base.mode = 0;
            holder.base.links_count = 0;
        } else if refcount(&holder.base) == before {
            set_refcount(&mut holder.base, *left);
        }
        stage.write_inode(&holder)
    }
}

/// The inodes with values that attributes name.
fn values_of(area: XattrArea<'_>) -> Vec<InodeNr> {
    area.entries().map_while(Result::ok).filter_map(|entry| entry.value_inode).collect()
}
