//! Attempts at a change in memory: by a thread beside others, by one that is alone, or not at all, so that the disk makes
//! it.

use floe_disk::ops::SetMode;
use floe_format::InodeNr;

use super::bring::Wanted;
use super::extended::Extended;
use super::lower::Lower;
use super::mnode::Mnode;
use super::own::{Own, OwnPart};
use super::record::{Record, Stamp};
use super::room::{Cost, Room};
use super::stripes::Stripes;
use super::{MemFs, State};
use crate::FsError;
use crate::op::{Applied, Op, OpKind, Place};

/// Why a change is not made in memory here and now.
#[derive(Debug)]
pub(super) enum Stop {
    /// The disk makes it.
    Pass,
    /// Memory lacks something that only a thread that is alone can fetch or change.
    Alone,
    /// Memory lacks content, which is to be read outside.
    Bring(Wanted),
    /// It is refused.
    Refused(FsError),
}

impl From<FsError> for Stop {
    fn from(error: FsError) -> Self {
        Self::Refused(error)
    }
}

/// The context of a thread that makes a change in memory.
pub(super) struct Attempt<'s, L> {
    pub(super) fs: &'s MemFs<L>,
    pub(super) state: &'s State,
    pub(super) own: &'s mut Own,
    /// No other thread is inside.
    pub(super) alone: bool,
    /// Content was read outside; what is still missing is read here.
    pub(super) brought: bool,
}

/// Directories above each other; more are damage.
pub(super) const MOST_LEVELS: usize = 10_000;

impl<L: Lower> MemFs<L> {
    /// Makes a change in memory; `None` if the disk must make it at once.
    pub(super) fn defer(&self, op: &Op<'_>) -> Result<Option<Applied>, FsError> {
        let beside = |brought: bool| {
            let mut inside = self.state();
            let (state, own) = inside.parts();
            state.judge()?;
            Ok::<_, FsError>(Attempt { fs: self, state, own, alone: false, brought }.make(op))
        };
        let mut done = beside(false)?;
        if let Err(Stop::Bring(wanted)) = &done {
            self.bring(wanted);
            done = beside(true)?;
        }
        let done = match done {
            Err(Stop::Alone) => self.defer_alone(op)?,
            done => done,
        };
        match done {
            Ok(applied) => Ok(Some(applied)),
            Err(Stop::Refused(error)) => Err(error),
            Err(Stop::Pass | Stop::Alone | Stop::Bring(_)) => Ok(None),
        }
    }

    fn defer_alone(&self, op: &Op<'_>) -> Result<Result<Applied, Stop>, FsError> {
        let mut changing = self.state_mut();
        changing.judge()?;
        changing.evict(&self.limits);
        if self.prepare(&mut changing, op).is_none() {
            return Ok(Err(Stop::Pass));
        }
        changing.refill();
        let cube = self.cube_of(op.kind.home());
        if changing.pending(cube).room.is_unknown() {
            changing.pending(cube).room.note(self.lower.room_in(cube));
        }
        let done = {
            let (state, mut slots) = changing.0.parts();
            let Some(own) = slots.first_mut() else { return Ok(Err(Stop::Pass)) };
            Attempt { fs: self, state, own, alone: true, brought: true }.make(op)
        };
        self.merge(&mut changing.0);
        Ok(done)
    }

    /// Lets memory have all inodes and names that a change looks at; `None` if one cannot be read.
    fn prepare(&self, state: &mut State, op: &Op<'_>) -> Option<()> {
        match &op.kind {
            OpKind::Create { place, .. } => self.prepare_place(state, place, false),
            OpKind::Link { inode, place } => {
                self.load(state, *inode).ok()?;
                self.prepare_place(state, place, false)
            }
            OpKind::Unlink(place) | OpKind::RemoveDirectory(place) => {
                self.prepare_place(state, place, true)
            }
            OpKind::Rename { from, to, .. } => {
                self.prepare_place(state, from, true)?;
                self.prepare_place(state, to, true)?;
                let mut at = to.directory;
                for _ in 0..MOST_LEVELS {
                    // Those above the directory of a cube do not count.
                    if at == InodeNr::ROOT || state.cube_of(at) != state.cube_of(to.directory) {
                        return Some(());
                    }
                    self.load_names(state, at).ok()?;
                    at = state.get(at)?.stripes()?.parent();
                }
                None
            }
            OpKind::Change { inode, .. } | OpKind::Write { inode, .. } => {
                self.load(state, *inode).ok()?;
                self.load_lists(state, *inode).ok().map(drop)
            }
            OpKind::SetAttribute { inode, name, .. } | OpKind::RemoveAttribute { inode, name } => {
                self.load_extended(state, *inode).ok()?;
                let extended = state.node(*inode).ok()?.extended.get_mut();
                if let Some(extended) = extended.filter(|extended| extended.is_long(name)) {
                    **extended = Extended::of(&extended.list());
                }
                Some(())
            }
            _ => None,
        }
    }

    /// A directory, and perhaps what a name in it leads to.
    fn prepare_place(&self, state: &mut State, place: &Place<'_>, child: bool) -> Option<()> {
        self.load(state, place.directory).ok().filter(|node| node.is_directory())?;
        self.load_names(state, place.directory).ok()?;
        self.load_lists(state, place.directory).ok()?;
        let names = state.get(place.directory)?.stripes()?;
        let found = names.find(names.key(place.name)).filter(|_| child);
        let Some(found) = found else { return Some(()) };
        if self.load(state, found.inode).ok()?.is_directory() {
            self.load_names(state, found.inode).ok()?;
            self.load_lists(state, found.inode).ok()?;
        }
        Some(())
    }
}

impl<'s, L: Lower> Attempt<'s, L> {
    fn make(mut self, op: &Op<'_>) -> Result<Applied, Stop> {
        match &op.kind {
            OpKind::Create { place, new } => self.create(op, place, new),
            OpKind::Link { inode, place } => self.link(op, *inode, place),
            OpKind::Unlink(place) => self.unlink(op, place),
            OpKind::RemoveDirectory(place) => self.remove_directory(op, place),
            OpKind::Rename { from, to, mode } => self.rename(op, from, to, *mode),
            OpKind::Change { inode, size_bytes, change } => {
                self.change(op, *inode, *size_bytes, change)
            }
            OpKind::Write { inode, offset_bytes, bytes } => {
                self.write(op, *inode, *offset_bytes, bytes)
            }
            OpKind::SetAttribute { inode, name, value, mode } => {
                self.set_attribute(op, *inode, name, Some(value), *mode)
            }
            OpKind::RemoveAttribute { inode, name } => {
                self.set_attribute(op, *inode, name, None, SetMode::Replace)
            }
            OpKind::CreateUnnamed { .. } | OpKind::Range { .. } => Err(Stop::Pass),
        }
    }

    /// How to go on if something is not in memory: a thread that is alone has loaded all that can be read.
    pub(super) const fn missing(&self) -> Stop {
        if self.alone { Stop::Pass } else { Stop::Alone }
    }

    /// An inode in memory.
    pub(super) fn node(&self, inode: InodeNr) -> Result<&'s Mnode, Stop> {
        self.state.get(inode).ok_or_else(|| self.missing())
    }

    /// A directory whose changes memory knows all effects of.
    pub(super) fn plain(&self, directory: InodeNr) -> Result<(&'s Mnode, &'s Stripes), Stop> {
        let node = self.node(directory)?;
        if !node.is_directory() || !node.is_simple() {
            return Err(Stop::Pass);
        }
        if node.status.is_gone() || node.names.get().is_some_and(|_| node.stripes().is_none()) {
            return Err(Stop::Pass);
        }
        let stripes = node.stripes().ok_or_else(|| self.missing())?;
        // An index of two levels, half full, takes blocks with this many bytes at least.
        let block = u64::from(self.fs.lower.block_bytes());
        let room = self.own.parts.known(self.state.cube_of(directory));
        let room = room.and_then(|part| part.room.as_ref());
        let own = room.map_or(0, |room| room.waiting_name_bytes(directory));
        let waiting = node.name_bytes() + own;
        let grown = node.status.length.size().saturating_add(4 * waiting);
        if grown > (block / 8).saturating_mul(block / 8).saturating_mul(block) / 8 {
            return Err(Stop::Pass);
        }
        let lists = node.lists.get().ok_or_else(|| self.missing())?;
        if lists.default { Err(Stop::Pass) } else { Ok((node, stripes)) }
    }

    /// Whether two inodes lie in one cube. A change that concerns several is made by the disk at once.
    pub(super) fn is_one_cube(&self, one: InodeNr, other: InodeNr) -> bool {
        self.state.cube_of(one) == self.state.cube_of(other)
    }

    /// The space that this slot has in the cube of an inode.
    pub(super) fn part(&mut self, inode: InodeNr) -> &mut OwnPart {
        self.own.parts.of(self.state.cube_of(inode))
    }

    /// Logs a change in the cube of an inode for which there is room. The caller still has the locks by which it is ordered, so
    /// that a change that is merged never depends on one that is not logged yet.
    pub(super) fn push(&mut self, home: InodeNr, stamp: Stamp, record: Record) {
        let cube = self.state.cube_of(home);
        self.own.take(cube, &record);
        self.own.last = self.own.last.max(stamp);
        self.fs.logs.enter().parts().1.of(cube).records.push((stamp, record));
    }

    /// Notes that the content of a file changed.
    pub(super) fn note_content(&mut self, inode: InodeNr) {
        let mut logs = self.fs.logs.enter();
        let changed = &mut logs.parts().1.of(self.state.cube_of(inode)).changed;
        if changed.last() != Some(&inode) {
            changed.push(inode);
            self.own.logged += 1;
        }
    }

    /// Reserves space for a change in the cube of an inode.
    pub(super) fn reserve(&mut self, home: InodeNr, cost: &Cost) -> Result<(), Stop> {
        let sizes = self.state.sizes;
        let blocks = sizes.to_lease(cost.most_blocks(self.fs.lower.block_bytes()));
        self.reserve_by(home, (blocks, cost.inodes()), |room| room.has_for(sizes, cost))
    }

    /// The same for so many pages of a file.
    pub(super) fn reserve_pages(&mut self, file: InodeNr, pages: u64) -> Result<(), Stop> {
        let sizes = self.state.sizes;
        let needed = (sizes.blocks_for_pages(pages), 0);
        self.reserve_by(file, needed, |room| room.has_for_pages(sizes, pages))
    }

    fn reserve_by(
        &mut self,
        home: InodeNr,
        needed: (u64, u64),
        fits: impl Fn(&Room) -> bool,
    ) -> Result<(), Stop> {
        let (state, cube) = (self.state, self.state.cube_of(home));
        let left = || state.pending(cube).room.left(state.sizes);
        let needed = if self.alone { left() } else { needed };
        match self.own.lease(state, cube, needed, fits) {
            true => Ok(()),
            false if self.alone => Err(Stop::Pass),
            false => Err(Stop::Alone),
        }
    }
}
