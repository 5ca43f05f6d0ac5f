//! The changes of a cube that do not end on the disk: the cube failed and drops them, or memory and disk differ.

use floe_format::InodeNr;

use super::losses::Losses;
use super::lower::Lower;
use super::table::Table;
use super::{MemFs, State, Turn};
use crate::FsError;
use crate::cubes::Fate;

/// Why memory and disk could not be compared.
#[derive(Debug)]
pub(super) enum Unsettled {
    /// They differ, in this inode: one of the two is wrong.
    Differs(InodeNr, String),
    Failed(FsError),
}

impl From<FsError> for Unsettled {
    fn from(error: FsError) -> Self {
        Self::Failed(error)
    }
}

impl State {
    /// Ends all changes: what memory has and what the disk has may differ for good.
    pub(super) fn end(&mut self, error: &FsError) -> FsError {
        let why = format!("changes that were accepted cannot be written: {error}");
        FsError::Ended(self.ended.get_or_insert(why).clone())
    }

    /// Forgets all inodes of a cube; the disk has what there is to know of them.
    pub(super) fn forget(&mut self, cube: u32) {
        if self.gates.as_ref().is_some_and(|gates| gates.has_cubes()) {
            let all = self.nodes.iter().map(|(inode, _)| InodeNr(inode));
            let own: Vec<InodeNr> = all.filter(|inode| self.cube_of(*inode) == cube).collect();
            own.into_iter().for_each(|inode| self.drop_node(inode));
            self.forget_queue(cube);
        } else {
            self.forget_all();
        }
    }

    /// The same for all cubes.
    pub(super) fn forget_all(&mut self) {
        self.nodes = Table::default();
        self.keep_nothing();
        for cube in self.queues.numbers() {
            self.forget_queue(cube);
        }
    }

    /// Forgets which inodes of a cube wait for a comparison or have content that waits: none of them is there any more.
    fn forget_queue(&self, cube: u32) {
        let mut pending = self.pending(cube);
        pending.dirty.clear();
        pending.unsettled.clear();
        (pending.room.pages, pending.room.files) = (0, 0);
        self.note_pressure(cube, &pending);
    }
}

impl<L: Lower> MemFs<L> {
    /// The end of what waits for a cube.
    pub(super) fn fate(&self, turn: &Turn<'_>) -> Fate {
        let fate = self.lower.gates().map_or(Fate::Written, |gates| gates.fate(turn.cube));
        // Whoever takes a cube away from its users wants it to be as they left it.
        if fate == Fate::Held && turn.is_taken { Fate::Written } else { fate }
    }

    /// Drops what waits for a cube that has failed, and all that memory has of it. It is as the disk has it from now on.
    pub(super) fn drop_waiting(&self, turn: &Turn<'_>) {
        let has_nothing = {
            let state = self.state();
            let pending = self.gather(&state, turn.cube);
            pending.is_empty() && pending.unsettled.is_empty()
        };
        if !has_nothing {
            let mut state = self.state_mut();
            state.pending(turn.cube).drop_all();
            state.forget(turn.cube);
        }
    }

    /// Memory and disk differ, or the disk takes nothing more: a cube fails by that alone, and is as the disk has it.
    pub(super) fn end_cube(
        &self,
        turn: &Turn<'_>,
        stop: Unsettled,
        mut losses: Losses,
    ) -> Result<(), FsError> {
        match stop {
            Unsettled::Differs(inode, what) if turn.cube > 0 => {
                self.lower.note_panic(turn.cube, &what);
                losses.add_times(inode, &FsError::Panicked { what });
                self.drop_waiting(turn);
                self.state_mut().late.add(losses);
                Ok(())
            }
            Unsettled::Differs(_, what) => Err(self.end(&FsError::Ended(what))),
            Unsettled::Failed(error) => Err(self.end(&error)),
        }
    }

    pub(super) fn end(&self, error: &FsError) -> FsError {
        self.state_mut().end(error)
    }
}
