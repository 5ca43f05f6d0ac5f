//! The changes of a cube that do not end on the disk: the cube failed and drops them, or memory and disk differ.

use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};

use super::losses::Losses;
use super::lower::Lower;
use super::table::Table;
use super::{MemFs, State, Turn};
use crate::cubes::Fate;
use crate::{Attributes, FsError};

/// Why memory and disk could not be compared.
#[derive(Debug)]
pub(super) enum Unsettled {
    /// They differ, in this inode: one of the two is wrong.
    Differs(InodeNr, String),
    Failed(FsError),
}

/// The fields that memory and disk have to agree about and do not, as a sentence. Memory does not follow how directories grow, nor what maps
/// take; times are settled.
pub(super) fn difference(memory: &Attributes, disk: &Attributes) -> Option<String> {
    let fields = |one: &Attributes| {
        let size = if one.kind == FileType::Directory { 0 } else { one.size_bytes };
        let flags = one.flags.difference(InodeFlags::INDEX).bits();
        let numbers = [one.generation, one.links, one.uid, one.gid, one.project, flags];
        let [generation, links, owner, group, project, flags] = numbers.map(u64::from);
        [
            ("type", one.kind as u64),
            ("mode", one.permissions.into()),
            ("generation", generation),
            ("link count", links),
            ("owner", owner),
            ("group", group),
            ("project", project),
            ("size in bytes", size),
            ("flags", flags),
        ]
    };
    let both = fields(memory).into_iter().zip(fields(disk));
    let mut differ = both.filter(|(memory, disk)| memory != disk).peekable();
    differ.peek()?;
    let shown = |field: &str, value: u64| match field {
        "mode" => format!("{value:04o}"),
        "flags" => format!("{value:#x}"),
        _ => value.to_string(),
    };
    let one = |((field, memory), (_, disk))| {
        let [memory, disk] = [memory, disk].map(|value| shown(field, value));
        format!("the {field} is {memory} in memory and {disk} on the disk")
    };
    let all: Vec<String> = differ.map(one).collect();
    Some(format!("memory and disk differ in {}: {}", memory.inode, all.join(", ")))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_told_by_field() {
        let now = crate::Timestamp { seconds: 0, nanoseconds: 0 };
        let one = Attributes {
            inode: InodeNr(12),
            generation: 7,
            kind: FileType::Regular,
            permissions: 0o644,
            links: 1,
            uid: 0,
            gid: 0,
            size_bytes: 5,
            sectors: 8,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: None,
            device: None,
            flags: InodeFlags::EXTENTS,
            project: 0,
        };
        let other = Attributes { permissions: 0o4755, size_bytes: 9, sectors: 0, ..one };
        assert_eq!(difference(&one, &Attributes { sectors: 16, ..one }), None);
        let told = difference(&one, &other).unwrap();
        let fields = "the mode is 0644 in memory and 4755 on the disk, the size in bytes is 5 in memory and 9 on the disk";
        assert_eq!(told, format!("memory and disk differ in inode 12: {fields}"));
    }
}
