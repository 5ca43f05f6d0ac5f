//! Files that a system that does not know cubes has put into lots of other cubes: they get inodes in the cube of their names, and their
//! blocks move there, by the operation with which a mount does it, and through the journals (`moves.rs`).

use std::collections::{BTreeMap, BTreeSet};

use floe_check::Problem;
use floe_disk::journal::Journal;
use floe_disk::ops::{Caller, OpError, Step};
use floe_disk::recovery::recover;
use floe_disk::volume::Volume;
use floe_ext4::tx::Tx;
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, Timestamp};

use super::Made;
use crate::failure::Failure;
use crate::moves::Recording;
use crate::stage::Stage;

/// Blocks of the log that are reserved for a change; one that takes more waits for them when it joins its transaction.
const CREDITS: u32 = 192;

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
    let stays = || (Err(Failure::SeveralCubes), Vec::new());
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
            let caller = mover.caller;
            let moved =
                mover.run(|volume, tx, _| volume.move_inode_home(tx, &caller, *inode, names))?;
            made.push(match moved {
                Ok(new) => {
                    mover.has_moved = true;
                    (Ok(()), vec![format!("it is {new} now")])
                }
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

/// Lets something be moved, and leaves the file system as one that Floe has unmounted. Nothing is changed if nothing moved.
fn moved_by(
    stage: &Stage<'_>,
    inodes: &[InodeNr],
    run: impl FnOnce(&mut Mover<'_>) -> Result<Vec<Made>, Failure>,
) -> Vec<Made> {
    let Some(moves) = stage.moves() else {
        return inodes
            .iter()
            .map(|_| (Err(Failure::NotNow("nothing is moved")), Vec::new()))
            .collect();
    };
    let moved = moves.batch(stage.overlay, |device| {
        let mut mover = Mover::open(device, stage.now_seconds)?;
        mover.drop_fence()?;
        let made = run(&mut mover)?;
        let has_moved = mover.has_moved;
        if has_moved {
            mover.close()?;
        }
        Ok((made, has_moved))
    });
    moved.unwrap_or_else(|failure| {
        moves.refuse(failure.to_string());
        inodes.iter().map(|_| (Err(failure.again()), Vec::new())).collect()
    })
}

/// A file system that is changed through its journals.
struct Mover<'a> {
    volume: Volume,
    journal: Journal<&'a Recording<'a>>,
    caller: Caller,
    /// Blocks that were moved, since that was counted last.
    blocks: u64,
    has_moved: bool,
}

impl<'a> Mover<'a> {
    fn open(device: &'a Recording<'a>, now_seconds: i64) -> Result<Self, Failure> {
        let recovered = recover(&device).map_err(|error| Failure::together(&error))?;
        // Judged before the journal marks the file system as in need of recovery.
        let volume = Volume::open(&device).map_err(|error| Failure::together(&error))?;
        let seconds = u64::try_from(now_seconds).unwrap_or(0);
        let journal = Journal::open_dated(device, &recovered, seconds);
        let journal = journal.map_err(|error| Failure::together(&error))?;
        let now = Timestamp { seconds: now_seconds, nanoseconds: 0 };
        let caller = Caller::system(now);
        let mut mover = Self { volume, journal, caller, blocks: 0, has_moved: false };
        mover.must(|volume, tx, _| volume.begin_writing(tx, now))?;
        Ok(mover)
    }

    /// Runs an operation as a transaction; once more where only a commit gives free blocks back. The inner error: nothing of it is
    /// left.
    fn run<T>(
        &mut self,
        mut run: impl FnMut(&mut Volume, &mut dyn Tx, &Journal<&'a Recording<'a>>) -> Result<T, OpError>,
    ) -> Result<Result<T, OpError>, Failure> {
        let mut again = true;
        loop {
            let mut tx = self.journal.begin(CREDITS).map_err(|error| Failure::together(&error))?;
            match run(&mut self.volume, &mut tx, &self.journal) {
                Ok(value) => {
                    tx.finish().map_err(|error| Failure::together(&error))?;
                    return Ok(Ok(value));
                }
                Err(OpError::NoSpace) if again && self.volume.holds_back() => {
                    drop(tx);
                    self.make_durable()?;
                    again = false;
                }
                Err(error @ OpError::Stopped) => return Err(Failure::Operation(error)),
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// The same for what must not fail.
    fn must<T>(
        &mut self,
        run: impl FnMut(&mut Volume, &mut dyn Tx, &Journal<&'a Recording<'a>>) -> Result<T, OpError>,
    ) -> Result<T, Failure> {
        self.run(run)?.map_err(Failure::Operation)
    }

    /// Commits: what was freed may be used again.
    fn make_durable(&mut self) -> Result<(), Failure> {
        let epoch = self.volume.end_epoch();
        self.journal.sync().map_err(|error| Failure::together(&error))?;
        self.volume.durable(epoch);
        Ok(())
    }

    /// Gives back what a fence holds, and deletes it.
    fn drop_fence(&mut self) -> Result<(), Failure> {
        if !self.volume.has_fence() {
            return Ok(());
        }
        let caller = self.caller;
        let orphan = loop {
            if let Some(orphan) = self.must(|volume, tx, _| volume.take_fence_back(tx, &caller))? {
                break orphan;
            }
        };
        while self.must(|volume, tx, data| volume.finish_orphan(tx, data, &caller, orphan))?
            == Step::More
        {}
        Ok(())
    }

    /// Regions reserved, totals right, backups of descriptors renewed, and the journals empty.
    fn close(mut self) -> Result<(), Failure> {
        let (lots, now) = (self.volume.lots_to_reserve(), self.caller.time);
        // Freed blocks are free for good after that.
        self.make_durable()?;
        for &lot in &lots {
            self.must(|volume, tx, _| volume.reserve_lot(tx, now, lot))?;
        }
        self.make_durable()?;
        self.volume.back_up_descriptors(&self.journal, &lots)?;
        self.must(|volume, tx, _| volume.end_writing(tx, now))?;
        self.journal.close().map_err(|error| Failure::together(&error))?;
        Ok(())
    }

    /// Moves the blocks of an inode; the inner error: some stay, such as for want of room.
    fn home(&mut self, inode: InodeNr) -> Result<Result<(), OpError>, Failure> {
        let caller = self.caller;
        loop {
            let moved = self.run(|volume, tx, data| volume.move_home(tx, data, &caller, inode))?;
            match moved {
                Ok(moved) => {
                    self.blocks += moved.blocks;
                    self.has_moved |= moved.blocks > 0;
                    if moved.is_done {
                        return Ok(Ok(()));
                    }
                }
                Err(error) => return Ok(Err(error)),
            }
        }
    }
}
