//! Files that a system that does not know cubes has put into lots of other cubes: they get inodes in the cube of their names, and their
//! blocks move there, by the operation with which a mount does it.

use std::collections::{BTreeMap, BTreeSet};

use floe_blockdev::{Overlay, ReadBlocks};
use floe_check::Problem;
use floe_disk::ops::{Caller, OpError};
use floe_disk::volume::Volume;
use floe_ext4::tx::DirectTx;
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, Timestamp};

use super::Made;
use crate::failure::Failure;
use crate::stage::Stage;

/// A name: its directory, and its bytes.
type Name = (InodeNr, Vec<u8>);

/// Moves the blocks of each inode. No other edit may be made in the same round: superblock and descriptors are changed in the
/// overlay. A file for which there is no room stays, in part where it was.
pub(super) fn move_all(stage: &Stage<'_>, inodes: &[InodeNr]) -> Vec<Made> {
    moved_by(stage, inodes, |mover| {
        let mut moved: Vec<Result<(), OpError>> = Vec::with_capacity(inodes.len());
        for &inode in inodes {
            moved.push(mover.home(inode)?);
        }
        // The room that some have left may do for others.
        while std::mem::take(&mut mover.blocks) > 0 {
            let left = inodes.iter().zip(&mut moved).filter(|(_, moved)| moved.is_err());
            for (&inode, moved) in left {
                *moved = mover.home(inode)?;
            }
        }
        Ok(moved.into_iter().map(|moved| (moved.map_err(Failure::Operation), Vec::new())).collect())
    })
}

/// Gives each inode another number, in the cube of its names, if those are in one cube. As [`move_all`].
pub(super) fn move_inodes(stage: &Stage<'_>, inodes: &[InodeNr]) -> Vec<Made> {
    let names = names_of(stage, inodes);
    let stays = || (Err(Failure::NotNow("it has names in several cubes")), Vec::new());
    if names.iter().all(Option::is_none) {
        return names.iter().map(|_| stays()).collect();
    }
    moved_by(stage, inodes, |mover| {
        let mut made = Vec::with_capacity(inodes.len());
        for (inode, names) in inodes.iter().zip(&names) {
            let Some(names) = names else {
                made.push(stays());
                continue;
            };
            let (tx, caller) = (&mut mover.tx, &mover.caller);
            let moved = mover.volume.move_inode_home(tx, caller, *inode, names);
            mover.keep()?;
            made.push(match moved {
                Ok(new) => (Ok(()), vec![format!("it is {new} now")]),
                Err(error) => (Err(Failure::Operation(error)), Vec::new()),
            });
        }
        Ok(made)
    })
}

/// All names of each inode; `None` if it has others than those that lead to it from one other cube, or if one of the directories is to
/// move, too.
fn names_of(stage: &Stage<'_>, inodes: &[InodeNr]) -> Vec<Option<Vec<Name>>> {
    let moving: BTreeSet<InodeNr> = inodes.iter().copied().collect();
    let (mut cubes, mut entangled) = (BTreeMap::<InodeNr, BTreeSet<u32>>::new(), BTreeSet::new());
    for problem in &stage.evidence.report.found {
        if let Problem::CubeEntangledName { dir, inode_named, cube, .. } = problem
            && moving.contains(inode_named)
        {
            cubes.entry(*inode_named).or_default().insert(*cube);
            entangled.insert((*dir, *inode_named));
        }
    }
    let files = stage.files();
    let dirs: BTreeSet<InodeNr> = entangled.iter().map(|(dir, _)| *dir).collect();
    let mut names: BTreeMap<InodeNr, Vec<Name>> = BTreeMap::new();
    for dir in dirs.difference(&moving) {
        let listing = files.node(*dir).and_then(|node| files.list(&node));
        for entry in listing.into_iter().flat_map(|listing| listing.entries) {
            // A name in the cube of the inode keeps it there.
            if entangled.contains(&(*dir, entry.inode)) && !matches!(&entry.name[..], b"." | b"..")
            {
                names.entry(entry.inode).or_default().push((*dir, entry.name.clone()));
            }
        }
    }
    let all_of = |inode: &InodeNr| {
        let names = names.remove(inode)?;
        let base = stage.read_inode(*inode).ok()?.base;
        let is_directory = FileType::of_mode(base.mode) == Some(FileType::Directory);
        let links = if is_directory { 1 } else { usize::from(base.links_count) };
        let is_one = cubes.get(inode).is_some_and(|cubes| cubes.len() == 1);
        (is_one && names.len() == links).then_some(names)
    };
    inodes.iter().map(all_of).collect()
}

/// Lets something be moved, and leaves the file system as one that Floe has written.
fn moved_by(
    stage: &Stage<'_>,
    inodes: &[InodeNr],
    run: impl FnOnce(&mut Mover<'_>) -> Result<Vec<Made>, OpError>,
) -> Vec<Made> {
    let moved = Mover::open(stage).and_then(|mut mover| {
        mover.volume.drop_fence(&mut mover.tx, mover.data, &mover.caller)?;
        mover.keep()?;
        let made = run(&mut mover)?;
        mover.close()?;
        Ok(made)
    });
    // The next examination judges all that is staged by then.
    moved.unwrap_or_else(|failure| {
        let text = failure.to_string();
        let failed = |_: &InodeNr| (Err(Failure::Together(text.clone())), Vec::new());
        inodes.iter().map(failed).collect()
    })
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

impl<'a> Mover<'a> {
    fn open(stage: &Stage<'a>) -> Result<Self, Failure> {
        let now = Timestamp { seconds: stage.now_seconds, nanoseconds: 0 };
        let mut volume =
            Volume::open(stage.overlay).map_err(|error| Failure::Together(error.to_string()))?;
        // No log has to hold the changes.
        volume.limit_changes(usize::MAX);
        let tx = DirectTx::new(stage.overlay, volume.geometry().clone());
        Ok(Self { volume, tx, data: stage.overlay, caller: Caller::system(now), blocks: 0 })
    }

    /// Regions reserved, totals right, and backups of descriptors renewed.
    fn close(mut self) -> Result<(), Failure> {
        let (lots, now) = (self.volume.lots_to_reserve(), self.caller.time);
        for &lot in &lots {
            self.volume.reserve_lot(&mut self.tx, now, lot)?;
        }
        self.volume.settle(&mut self.tx, now)?;
        self.tx.commit().map_err(OpError::Refused)?;
        self.volume.back_up_descriptors(self.data, &lots)?;
        Ok(())
    }

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
