//! Files that a repair leaves in the cubes into which another system has put them, each with the reason and what ends it.

use std::collections::BTreeMap;

use floe_check::{Problem, Report};
use floe_format::InodeNr;
use floe_format::native::identity::Identity;

use super::untangle::entangles;
use super::{Repair, Session};
use crate::deed::Reason;
use crate::failure::Hindrance;
use crate::moves::{Left, Stays};

/// A file that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileLeft {
    /// The file.
    pub inode: InodeNr,
    /// Its path, or that of a directory that names it, as bytes.
    pub path: Option<(Vec<u8>, Place)>,
    /// Why, and what ends it.
    pub why: Stays,
}

/// A path that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The file's.
    Own,
    /// A directory with a name of it.
    Directory,
}

fn stays(problem: &Problem, reason: &Reason, hindrance: Option<Hindrance>) -> Stays {
    match (reason, problem) {
        (Reason::Failed(_), _) if hindrance == Some(Hindrance::SeveralCubes) => Stays::SeveralCubes,
        (Reason::Failed(_), _) if hindrance == Some(Hindrance::NoRoom) => Stays::NoRoom,
        (Reason::Refused, Problem::CubeEntangledBlocks { .. }) => Stays::NextMount,
        (Reason::Refused, _) => Stays::Refused,
        (reason, _) => Stays::Because(reason.describe()),
    }
}

impl Session<'_> {
    /// Notes why files stay in other cubes; returns whether any do.
    pub(super) fn note_left(&self, after: &Report) -> bool {
        let entangled = after.found.iter().filter(|problem| entangles(problem));
        let left = |problem: &Problem| {
            let reason = self.reason(problem);
            let failed = self.attempts.failures.get(problem);
            let why = stays(problem, &reason, failed.and_then(|failed| failed.hindrance));
            let is_tried = matches!(reason, Reason::Failed(_));
            Left { problem: problem.clone(), why, is_tried }
        };
        let left: Vec<Left> = entangled.map(left).collect();
        let any = self.couples.is_possible() && !left.is_empty();
        self.couples.moves.leave(left);
        any
    }
}

impl Repair<'_> {
    /// The files that stay in other cubes, in the order of their numbers. Not those that an earlier mount or repair has left, and
    /// that nobody tried to move now.
    pub fn files_left(&self) -> Vec<FileLeft> {
        let is_known = Identity::knows_couples(&self.after.superblock);
        let mut files: BTreeMap<InodeNr, FileLeft> = BTreeMap::new();
        for Left { problem, why, is_tried } in &self.moves.left {
            if is_known && !is_tried {
                continue;
            }
            let (inode, dir) = match problem {
                Problem::CubeEntangledName { inode_named, dir, .. } => (*inode_named, Some(*dir)),
                problem => (problem.inode().unwrap_or(InodeNr(0)), None),
            };
            let paths = [&self.before.paths, &self.after.paths];
            let of = |inode: &InodeNr| paths.iter().find_map(|paths| paths.get(inode)).cloned();
            let own = of(&inode).map(|path| (path, Place::Own));
            let path = own.or_else(|| Some((of(&dir?)?, Place::Directory)));
            let left = FileLeft { inode, path, why: why.clone() };
            match files.get_mut(&inode) {
                // A name that stays keeps the blocks of the file from a cube of its own.
                Some(known) if left.why == Stays::SeveralCubes => *known = left,
                Some(_) => {}
                None => drop(files.insert(inode, left)),
            }
        }
        files.into_values().collect()
    }

    /// Bytes that moves of files write through the journals.
    pub fn bytes_of_moves(&self) -> u64 {
        self.moves.writes.as_ref().map_or(0, |moves| moves.written_bytes())
    }
}
