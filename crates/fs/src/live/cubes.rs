//! Cubes of a native file system: made, changed and removed, each in one transaction; and what follows on a failure of one.

use std::collections::BTreeSet;

use floe_blockdev::WriteBlocks;
use floe_disk::ops::{Caller, NewCube};
use floe_disk::volume::Volume;
use floe_ext4::cubes::stored;
use floe_ext4::files::{Files, printable};
use floe_format::InodeNr;
use floe_format::native::cube::{JournalMode, Policies, Recovery, State, SubSuperblock};
use floe_format::native::identity::Identity;
use floe_sync::Arc;

use super::{Live, Work};
use crate::cubes::{CubeCall, Gates, Job, Mode, Settings, Which};
use crate::disk::Disk;
use crate::faults::Fault;
use crate::store::{Space, Store};
use crate::{FsError, now};

impl<D: WriteBlocks> Live<'_, '_, D> {
    /// Makes a cube in one transaction; returns its number. See [`Volume::create_cube`](floe_disk::volume::Volume::create_cube).
    ///
    /// # Errors
    /// Nothing was changed then.
    pub fn create_cube(&self, caller: &Caller, new: &NewCube<'_>) -> Result<u32, FsError> {
        let cube = self.make_cube(caller, new)?;
        self.sync_all()?;
        Ok(cube)
    }

    /// The same, without making it durable: for a file system that nobody uses yet.
    ///
    /// # Errors
    /// As [`Live::create_cube`].
    pub fn make_cube(&self, caller: &Caller, new: &NewCube<'_>) -> Result<u32, FsError> {
        let cube = self.run(new.parent, |volume, tx| volume.create_cube(tx, caller, new))?;
        self.gates.know(cube, new.policies, false);
        if let Some(top) = self.work().volume.top_of_cube(cube) {
            let find = |directory, name: &[u8]| match (directory, name) {
                (directory, name) if directory == new.parent && name == new.name => Some(top),
                _ => {
                    let listing = self.image.read_directory(directory).ok()?;
                    self.directory_named(&listing, directory, name)
                }
            };
            self.gates.pin(cube, new.path, top, &find);
        }
        Ok(cube)
    }

    /// Blocks that the journal of a new cube has at most; `None` without a free lot.
    pub fn most_cube_journal(&self) -> Option<u64> {
        self.work().volume.most_cube_journal()
    }

    /// Changes how a cube is to behave, in one transaction.
    ///
    /// # Errors
    /// Nothing was changed then.
    pub fn set_cube(&self, caller: &Caller, cube: u32, policies: Policies) -> Result<(), FsError> {
        let logs_data = |mode| mode == JournalMode::Data;
        let logged = logs_data(self.sub(cube)?.policies.journal_mode);
        if !logged || logs_data(policies.journal_mode) {
            return self.change_policies(caller, cube, policies);
        }
        if matches!(self.gates.state(cube).0, Mode::Checked | Mode::Away) {
            return Err(FsError::CubeBusy { cube });
        }
        // Content that was logged goes home before any is written past the log.
        self.gates.take(cube, Mode::Checked)?;
        let changed = self.change_policies(caller, cube, policies).and_then(|()| {
            let Disk::Journaled(journal) = self.disk else { return Ok(()) };
            journal.checkpoint().map_err(|error| FsError::Ended(error.to_string()))
        });
        self.gates.bring_back(cube, false);
        changed
    }

    fn change_policies(
        &self,
        caller: &Caller,
        cube: u32,
        policies: Policies,
    ) -> Result<(), FsError> {
        self.run(InodeNr::ROOT, |volume, tx| volume.set_cube(tx, caller, cube, policies))?;
        self.gates.know(cube, policies, false);
        self.sync_all()
    }

    /// Removes a cube in one transaction; `place` is the directory and name of its directory, which must be empty. Without it
    /// the directory stays, with all its files, in the root cube.
    ///
    /// # Errors
    /// Nothing was changed then.
    pub fn remove_cube(
        &self,
        caller: &Caller,
        cube: u32,
        place: Option<(InodeNr, &[u8])>,
    ) -> Result<(), FsError> {
        let mut made = Vec::new();
        let removed = self.run(InodeNr::ROOT, |volume, tx| {
            let before: BTreeSet<InodeNr> = volume.orphans().into_iter().collect();
            let removed = volume.remove_cube(tx, caller, cube, place)?;
            // All others are files that somebody has open.
            made = volume.orphans().into_iter().filter(|at| !before.contains(at)).collect();
            Ok(removed)
        })?;
        // Its journal is deleted when nothing of it is needed any more.
        self.sync_all()?;
        if removed.is_none_or(|removed| removed.last) {
            self.finish_orphans(made, caller.time)?;
        }
        self.gates.forget(cube);
        self.pin(&self.subs(None));
        self.sync_all()
    }

    fn sync_all(&self) -> Result<(), FsError> {
        self.make_durable()
    }

    /// Lets the gates know all cubes.
    pub(super) fn learn_cubes(&self) {
        self.tell_owners(&self.work());
        let subs = self.subs(None);
        if let Disk::Journaled(journal) = self.disk {
            for (cube, why) in journal.waiting_cubes() {
                self.gates.shut(cube, why);
            }
        }
        for sub in &subs {
            self.gates.know(sub.cube, sub.policies, sub.state == State::Failed);
            self.queue_recovery(sub.cube);
        }
        self.pin(&subs);
    }

    /// Tells the gates who owns lots.
    pub(super) fn tell_owners(&self, work: &Work) {
        let own = Identity::of(work.volume.superblock());
        let own_files =
            own.map_or([0; 3], |own| [own.home_inode, own.super_inode, own.fence_inode]);
        self.gates.set_bounds(own_files, work.volume.is_coupled());
        self.gates.set_owners(&work.volume.lot_owners());
    }

    /// The sub-superblocks of all cubes, or of one.
    pub(super) fn subs(&self, only: Option<u32>) -> Vec<SubSuperblock> {
        let files = self.image.files();
        let (geometry, groups) = (files.geometry(), files.groups());
        let superblock = self.work().volume.superblock().clone();
        if Identity::of(&superblock).is_none() {
            return Vec::new();
        }
        let read = stored(self.disk, &superblock, geometry, groups, only);
        read.into_values().collect()
    }

    pub(super) fn sub(&self, cube: u32) -> Result<SubSuperblock, FsError> {
        self.subs(Some(cube)).pop().ok_or(FsError::NotFound)
    }

    /// Records a failure of a cube, and does what its policy wants. Cubes that are coupled with it fail, too.
    pub(super) fn fail_cube(&self, cube: u32, why: String) {
        if !self.fail_alone(cube, why) {
            return;
        }
        let why = format!("it shares files with cube {cube}, which failed");
        for other in self.gates.coupled_with(cube) {
            if other == 0 {
                let (inode, what) =
                    (InodeNr(0), format!("cube {cube}, which shares files with it,"));
                self.meet(&FsError::Damaged { inode, what, fault: Fault::DAMAGE });
            } else {
                self.fail_alone(other, why.clone());
            }
        }
    }

    /// Lets a cube fail; `false` if it has failed before.
    fn fail_alone(&self, cube: u32, why: String) -> bool {
        match self.gates.fail(cube, why.clone()) {
            None => return false,
            Some(Mode::Failed) => self.drop_changes(cube, &why),
            Some(_) => {}
        }
        // If it cannot be recorded, the next mount meets the failure again.
        let _ = self.note_state(cube, State::Failed);
        self.queue_recovery(cube);
        true
    }

    /// Records entries in lists of orphans that name something of another cube. They stay there for `floe repair`.
    pub(super) fn meet_stray_orphans(&self) {
        let strays = self.work().volume.stray_orphans().to_vec();
        for (cube, inode) in strays {
            let what = format!("a list of orphans names {inode}, which belongs to another cube");
            match cube {
                0 => {
                    let inode = InodeNr(0);
                    self.meet(&FsError::Damaged { inode, what, fault: Fault::DAMAGE });
                }
                cube => self.fail_cube(cube, what),
            }
        }
        let damaged = self.work().volume.damaged_orphans().to_vec();
        for cube in damaged {
            self.fail_cube(cube, "the list of its orphans is damaged".to_owned());
        }
    }

    /// Drops changes of a cube that are not durable: nothing of it is written from now on, and whoever waits for its journal is
    /// told. Only a journal of its own can end alone; a repair at once needs it.
    fn drop_changes(&self, cube: u32, why: &str) {
        let Disk::Journaled(journal) = self.disk else { return };
        if self.gates.recovery(cube) != Recovery::Online {
            // If the device fails meanwhile, all ends, which every call says.
            let _ = journal.abandon_cube(cube, why);
        }
    }

    /// Records that cubes have failed that wait for a repair, for whoever asks while nobody uses them.
    pub(super) fn note_waiting(&self) {
        let Disk::Journaled(journal) = self.disk else { return };
        for (cube, _) in journal.waiting_cubes() {
            if self.sub(cube).is_ok_and(|sub| sub.state != State::Failed) {
                // The log says so, too.
                let _ = self.note_state(cube, State::Failed);
            }
        }
    }

    fn queue_recovery(&self, cube: u32) {
        let may = self.gates.has_failed(cube) && !self.gates.waits(cube);
        if may && self.gates.recovery(cube) == Recovery::Online {
            self.gates.add_job(Job { cube, repairs: true, undo: None });
        }
    }

    /// Answers a call about cubes.
    pub(super) fn cube_call(&self, call: &CubeCall<'_>) -> Result<Vec<u8>, FsError> {
        let caller = Caller::system(now());
        match call {
            CubeCall::List => {
                let numbers: Vec<String> =
                    self.subs(None).iter().map(|sub| sub.cube.to_string()).collect();
                Ok(numbers.join(" ").into_bytes())
            }
            CubeCall::MostJournal => {
                let most = self.most_cube_journal().ok_or(FsError::NoAttribute)?;
                Ok(most.to_string().into_bytes())
            }
            CubeCall::Number(cube) => Ok(self.describe(&self.sub(*cube)?).into_bytes()),
            CubeCall::Show(inode) => {
                Ok(self.describe(&self.sub(self.cube_of(*inode)?)?).into_bytes())
            }
            CubeCall::Create { parent, name, settings } => {
                let cube = self.create_named(&caller, *parent, name, *settings)?;
                Ok(cube.to_string().into_bytes())
            }
            CubeCall::Set(_, Settings { journal_blocks: Some(_), .. }) => Err(FsError::Invalid),
            CubeCall::Set(inode, settings) => {
                let sub = self.sub(self.cube_of(*inode)?)?;
                let policies = settings.over(sub.policies, self.block_bytes());
                self.set_cube(&caller, sub.cube, policies)?;
                Ok(Vec::new())
            }
            CubeCall::Remove { parent, name, keep_files } => {
                let top = self.find(*parent, name)?.ok_or(FsError::NotFound)?;
                let cube = self.cube_of(top)?;
                if self.sub(cube)?.top_inode != top.0 {
                    return Err(FsError::NotFound);
                }
                let place = (!keep_files).then_some((*parent, *name));
                self.remove_cube(&caller, cube, place)?;
                self.gates.note_stale(*parent, name.to_vec());
                Ok(Vec::new())
            }
            CubeCall::Check { cube, repairs, undo } => {
                let cube = self.which(*cube)?;
                self.gates.add_job(Job { cube, repairs: *repairs, undo: undo.clone() });
                Ok(Vec::new())
            }
            CubeCall::Fence => {
                self.ask_for_fence();
                Ok(Vec::new())
            }
            CubeCall::Report(cube) => {
                Ok(self.gates.report(self.which(*cube)?).unwrap_or_default().into_bytes())
            }
        }
    }

    fn which(&self, cube: Which) -> Result<u32, FsError> {
        match cube {
            Which::Of(inode) => self.cube_of(inode),
            Which::Number(number) => Ok(self.sub(number)?.cube),
        }
    }

    fn cube_of(&self, inode: InodeNr) -> Result<u32, FsError> {
        let cube = self.gates.of_inode(inode);
        if cube == 0 { Err(FsError::NoAttribute) } else { Ok(cube) }
    }

    fn create_named(
        &self,
        caller: &Caller,
        parent: InodeNr,
        name: &[u8],
        settings: Settings,
    ) -> Result<u32, FsError> {
        let mut path = self.path_of(parent)?;
        path.push(b'/');
        path.extend_from_slice(name);
        let policies = settings.over(Policies::default(), self.block_bytes());
        let journal_blocks = settings.journal_blocks.unwrap_or(0);
        let path = &path[..];
        let new = NewCube { parent, name, path, permissions: 0o755, journal_blocks, policies };
        let cube = self.create_cube(caller, &new)?;
        self.gates.note_stale(parent, name.to_vec());
        Ok(cube)
    }

    /// The path of a directory; empty for the root.
    ///
    /// # Errors
    /// A directory above it cannot be read, or the path is longer than that of a cube may be.
    pub fn path_of(&self, directory: InodeNr) -> Result<Vec<u8>, FsError> {
        let (mut at, mut parts) = (directory, Vec::<Vec<u8>>::new());
        while at != InodeNr::ROOT {
            let parent = self.directory(at)?.parent();
            let names = self.directory(parent)?;
            let name = names.behind(0).map(|(_, entry)| entry).find(|entry| entry.inode == at);
            let name = name.ok_or(FsError::NotFound)?;
            parts.push([b"/", &name.name[..]].concat());
            if parts.len() > floe_format::native::cube::MOST_PATH_BYTES {
                return Err(FsError::NameTooLong);
            }
            at = parent;
        }
        parts.reverse();
        Ok(parts.concat())
    }

    /// A cube in words: `key=value`, apart by tabs.
    fn describe(&self, sub: &SubSuperblock) -> String {
        let work = self.work();
        let [blocks, free, inodes, free_inodes] = work.volume.room_of_cube(sub.cube);
        let owners = work.volume.lot_owners();
        drop(work);
        let lots = owners.iter().filter(|(_, owner)| **owner == sub.cube);
        let lots: Vec<String> = lots.map(|(lot, _)| lot.to_string()).collect();
        let block = u64::from(self.block_bytes());
        let (mode, why) = self.gates.state(sub.cube);
        let mut text = format!(
            "cube={}\tpath={}\tinode={}\tlots={}\tsize_bytes={}\tfree_bytes={}\tinodes={inodes}\t\
             free_inodes={free_inodes}\tjournal_blocks={}\tmax_size_bytes={}\ton_error={}\trecovery={}\tmode={}\t\
             journal_mode={}\tfsync={}",
            sub.cube,
            printable(self.ways().moved.get(&sub.cube).unwrap_or(&sub.path)),
            sub.top_inode,
            lots.join(","),
            blocks * block,
            free * block,
            sub.journal.blocks,
            sub.policies.limit_blocks * block,
            sub.policies.on_error.name(),
            sub.policies.recovery.name(),
            mode.name(),
            sub.policies.journal_mode.name(),
            sub.policies.fsync_mode.name(),
        );
        let others = self.gates.coupled_with(sub.cube);
        if !others.is_empty() {
            let others: Vec<String> = others.iter().map(u32::to_string).collect();
            text.push_str(&format!("\tcoupled={}", others.join(",")));
        }
        if let Some(why) = why {
            text.push_str("\twhy=");
            text.push_str(&why.replace(['\t', '\n'], " "));
        }
        text
    }

    /// Sizes of the cube of an inode: its limit, as far as the file system has room for it.
    pub(super) fn space_of_cube(&self, inode: InodeNr) -> Option<Space> {
        let cube = self.gates.of_inode(inode);
        let limit = if cube == 0 { 0 } else { self.sub(cube).ok()?.policies.limit_blocks };
        if limit == 0 {
            return None;
        }
        let all = Store::space(self);
        let work = self.work();
        let [blocks, free, inodes, free_inodes] = work.volume.room_of_cube(cube);
        let lot = work.volume.lot_blocks().max(1);
        drop(work);
        // It grows by whole lots.
        let limit = (limit / lot * lot).max(blocks);
        let free_blocks = (free + (limit - blocks)).min(all.free_blocks);
        let more = (limit - blocks) / lot * (inodes / (blocks / lot).max(1));
        Some(Space {
            blocks: limit,
            free_blocks,
            available_blocks: free_blocks.min(all.available_blocks),
            inodes: inodes + more,
            free_inodes: (free_inodes + more).min(all.free_inodes),
            ..all
        })
    }

    /// The gates of the cubes.
    pub fn gates(&self) -> &Gates {
        &self.gates
    }
}

/// The gates of a volume, by which its files are read from now on.
pub(super) fn gates_of(volume: &Volume, files: &Files<'_>) -> Arc<Gates> {
    let gates = Arc::new(Gates::new(volume.lot_groups(), volume.geometry()));
    files.keep_within(Arc::<Gates>::clone(&gates));
    gates
}
