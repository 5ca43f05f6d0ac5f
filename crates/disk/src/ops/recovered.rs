//! Finishes the orphans of a file system whose journal was replayed, before anybody mounts it.

use std::collections::BTreeSet;

use floe_blockdev::WriteBlocks;
use floe_ext4::tx::{DirectTx, Refusal};
use floe_format::ext::inode::Timestamp;
use floe_format::{GroupNr, InodeNr};

use super::{Caller, OpError, Step};
use crate::volume::{OpenError, Volume};

/// Why orphans were not finished. Some of the changes may have been written to the device by then.
#[derive(Debug, thiserror::Error)]
pub enum UnfinishedOrphans {
    /// The file system cannot be changed.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The list or the superblock cannot be read or changed.
    #[error(transparent)]
    List(#[from] OpError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] Refusal),
    /// This orphan cannot be deleted or cut.
    #[error("{inode}: {source}")]
    Orphan {
        /// The orphan.
        inode: InodeNr,
        /// The reason.
        source: OpError,
    },
    /// An orphan has blocks that are free by this bitmap, or the bitmap is damaged.
    #[error("the bitmaps of {0} contradict an orphan")]
    Bitmap(GroupNr),
    /// A list is damaged, or names an inode that cannot be in it.
    #[error("the list of orphans is damaged")]
    Lists,
}

/// Finishes each orphan of the list and of the orphan file as a mount does: deletes those without a name, cuts the others to their
/// size, and settles bitmaps, quotas and totals. `device` is the file system after recovery; as nothing is put into a journal, it is
/// an overlay, to be written as a whole or dropped.
///
/// # Errors
/// [`UnfinishedOrphans`]: something is damaged, and a check is due.
pub fn finish_orphans<D: WriteBlocks>(device: &D, now: Timestamp) -> Result<(), UnfinishedOrphans> {
    let mut volume = Volume::open_recovered(device)?;
    let mut tx = DirectTx::new(device, volume.geometry().clone());
    let caller = Caller::system(now);
    volume.op(&mut tx, &caller, |op| op.read_orphans())?;
    if !volume.orphans.strays.is_empty() || !volume.orphans.damaged.is_empty() {
        return Err(UnfinishedOrphans::Lists);
    }
    let mut met = BTreeSet::new();
    loop {
        // Values of attributes whose last user is deleted become orphans.
        let mut orphans = volume.orphans();
        orphans.extend(volume.unused_values());
        orphans.retain(|inode| met.insert(*inode));
        if orphans.is_empty() {
            break;
        }
        for inode in orphans {
            let failed = |source| UnfinishedOrphans::Orphan { inode, source };
            while volume.finish_orphan(&mut tx, device, &caller, inode).map_err(failed)?
                == Step::More
            {}
        }
    }
    if let Some(group) = volume.fs.space.contradicted().or(volume.damaged_groups().first().copied())
    {
        return Err(UnfinishedOrphans::Bitmap(group));
    }
    volume.op(&mut tx, &caller, |op| op.settle(now, true))?;
    Ok(tx.commit()?)
}
