//! Files that a system that does not know cubes has put into lots of other cubes: their blocks move back, by the operation with which
//! a mount does it.

use floe_blockdev::{Overlay, ReadBlocks};
use floe_disk::ops::{Caller, OpError};
use floe_disk::volume::Volume;
use floe_ext4::tx::DirectTx;
use floe_format::InodeNr;
use floe_format::ext::inode::Timestamp;

use super::Made;
use crate::failure::Failure;
use crate::stage::Stage;

/// Moves the blocks of each inode. No other edit may be made in the same round: superblock and descriptors are changed in the
/// overlay. A file for which there is no room stays, in part where it was.
pub(super) fn move_all(stage: &Stage<'_>, inodes: &[InodeNr]) -> Vec<Made> {
    let mut made = Vec::with_capacity(inodes.len());
    let outcome = move_each(stage, inodes, &mut made);
    // The next examination judges all that is staged by then.
    let text = outcome.as_ref().err().map(Failure::to_string);
    if let Some(text) = text {
        let failed = || (Err(Failure::Together(text.clone())), Vec::new());
        made = inodes.iter().map(|_| failed()).collect();
    }
    made
}

fn move_each(stage: &Stage<'_>, inodes: &[InodeNr], made: &mut Vec<Made>) -> Result<(), Failure> {
    let now = Timestamp { seconds: stage.now_seconds, nanoseconds: 0 };
    let caller = Caller::system(now);
    let mut volume =
        Volume::open(stage.overlay).map_err(|error| Failure::Together(error.to_string()))?;
    // No log has to hold the changes.
    volume.limit_changes(usize::MAX);
    let tx = DirectTx::new(stage.overlay, volume.geometry().clone());
    let mut mover = Mover { volume, tx, data: stage.overlay, caller, blocks: 0 };
    mover.volume.drop_fence(&mut mover.tx, mover.data, &caller)?;
    mover.keep()?;
    let mut moved: Vec<Result<(), OpError>> = Vec::with_capacity(inodes.len());
    for &inode in inodes {
        moved.push(mover.home(inode)?);
    }
    // The room that some have left may do for others.
    while std::mem::take(&mut mover.blocks) > 0 {
        for (&inode, moved) in inodes.iter().zip(&mut moved).filter(|(_, moved)| moved.is_err()) {
            *moved = mover.home(inode)?;
        }
    }
    let Mover { mut volume, mut tx, .. } = mover;
    let lots = volume.lots_to_reserve();
    for &lot in &lots {
        volume.reserve_lot(&mut tx, now, lot)?;
    }
    volume.settle(&mut tx, now)?;
    tx.commit().map_err(OpError::Refused)?;
    volume.back_up_descriptors(stage.overlay, &lots)?;
    made.extend(moved.into_iter().map(|moved| (moved.map_err(Failure::Operation), Vec::new())));
    Ok(())
}

/// A file system that is written through an overlay.
struct Mover<'a> {
    volume: Volume,
    tx: DirectTx<'a, Overlay<&'a dyn ReadBlocks>>,
    data: &'a Overlay<&'a dyn ReadBlocks>,
    caller: Caller,
    /// Blocks that were moved.
    blocks: u64,
}

impl Mover<'_> {
    /// Puts what was changed into the overlay; what was freed may be used again.
    fn keep(&mut self) -> Result<(), OpError> {
        let epoch = self.volume.end_epoch();
        self.tx.commit()?;
        self.volume.durable(epoch);
        Ok(())
    }

    /// Moves the blocks of an inode; the inner error: some stay, such as for want of room.
    fn home(&mut self, inode: InodeNr) -> Result<Result<(), OpError>, OpError> {
        loop {
            let moved = self.volume.move_home(&mut self.tx, self.data, &self.caller, inode);
            self.keep()?;
            match moved {
                Ok(moved) => {
                    self.blocks += moved.blocks;
                    if moved.is_done {
                        return Ok(Ok(()));
                    }
                }
                Err(error) => return Ok(Err(error)),
            }
        }
    }
}
