//! Renames, made in memory.
//!
//! A directory that gets another parent must not come to lie below itself. Parents change under one lock, so the chain above
//! the new place stays what it is until the rename is done. Nothing else waits for that lock.

use floe_disk::ops::RenameMode;
use floe_format::InodeNr;
use floe_sync::MutexGuard;

use super::attempt::{Attempt, MOST_LEVELS, Stop};
use super::locks::{Held, Locked, hold};
use super::lower::Lower;
use super::mnode::Mnode;
use super::names::{is_good_name, record, stamp};
use super::record::{Action, OwnedWay, Record, Stamp};
use super::room::Cost;
use super::stripes::{Found, Key, Seen, Sort, Stripes};
use crate::FsError;
use crate::op::{Applied, Op, Place};

/// The inode that a rename moves, and the one that it replaces.
struct Moved<'s> {
    seen: Seen<'s>,
    inode: InodeNr,
    node: &'s Mnode,
    /// The name that leads to it, and what it is.
    replaced: Option<(Seen<'s>, &'s Mnode)>,
    /// The directories above the new place of a directory that gets another parent.
    ancestors: Box<[InodeNr]>,
    /// The lock of those who give a directory another parent.
    moving: Option<MutexGuard<'s, Stamp>>,
}

impl Moved<'_> {
    fn is_directory(&self) -> bool {
        self.node.is_directory()
    }

    fn record(&self, op: &Op<'_>, way: &Way<'_, '_>) -> Record {
        let action = Action::Rename {
            moved: self.inode,
            replaced: self.replaced.map(|(seen, _)| seen.found.inode),
            way: Box::new(OwnedWay { from: way.from.into(), to: way.to.into() }),
            ancestors: self.ancestors.clone(),
        };
        record(op, action)
    }
}

/// The two ends of a rename.
#[derive(Clone, Copy)]
struct Way<'a, 's> {
    from: &'a Place<'a>,
    to: &'a Place<'a>,
    from_names: &'s Stripes,
    to_names: &'s Stripes,
    from_key: Key<'a>,
    to_key: Key<'a>,
}

impl<'s, L: Lower> Attempt<'s, L> {
    pub(super) fn rename(
        &mut self,
        op: &Op<'_>,
        from: &Place<'_>,
        to: &Place<'_>,
        mode: RenameMode,
    ) -> Result<Applied, Stop> {
        if !matches!(mode, RenameMode::Replace | RenameMode::NoReplace) || !is_good_name(to.name) {
            return Err(Stop::Pass);
        }
        let (from_names, to_names) = (self.plain(from.directory)?.1, self.plain(to.directory)?.1);
        if !self.is_one_cube(from.directory, to.directory) && is_good_name(from.name) {
            return Err(FsError::CrossProject.into());
        }
        let (from_key, to_key) = (from_names.key(from.name), to_names.key(to.name));
        let way = Way { from, to, from_names, to_names, from_key, to_key };
        loop {
            if let Some(answer) = self.known(&way, mode) {
                return answer;
            }
            let (seen, node) = self.victim((from.directory, from_names), (from.name, from_key))?;
            let inode = seen.found.inode;
            let moves = node.is_directory() && from.directory != to.directory;
            if moves && self.sort(to_names, to_key) == Some(Sort::Other) {
                // Refused without a look at the other, but for another reason if it would come to lie below itself.
                self.above((inode, node), &way)?;
                return Err(FsError::NotADirectory.into());
            }
            let target = to_names.find(to_key);
            if target.is_some() && mode == RenameMode::NoReplace {
                return Err(FsError::Exists.into());
            }
            if target.map(|target| target.inode) == Some(inode) {
                // Two names of one inode both stay.
                return Ok(Applied::default());
            }
            if moves
                && let Ok((_, onto)) = self.victim((to.directory, to_names), (to.name, to_key))
                && !onto.is_directory()
            {
                // Refused without the lock, but for another reason if it would come to lie below itself.
                self.above((inode, node), &way)?;
                return Err(FsError::NotADirectory.into());
            }
            let moving = moves.then(|| self.fs.moving());
            // Into itself is another error than onto something else.
            let ancestors = if moves { self.above((inode, node), &way)? } else { Vec::new() };
            let replaced = match target {
                Some(_) => Some(self.replaced(&way, node.is_directory())?),
                None => None,
            };
            let moved = Moved { seen, inode, node, replaced, ancestors: ancestors.into(), moving };
            if let Some(applied) = self.move_name(op, &way, moved)? {
                return Ok(applied);
            }
        }
    }

    /// The answer of a rename that changes nothing, as far as the sorts of its names tell, without a look at where they lead.
    fn known(&self, way: &Way<'_, '_>, mode: RenameMode) -> Option<Result<Applied, Stop>> {
        let from = self.sort(way.from_names, way.from_key).filter(|_| is_good_name(way.from.name));
        let from = from.filter(|sort| *sort != Sort::Any)?;
        if mode == RenameMode::NoReplace {
            let taken = way.to_names.has(way.to_key);
            return taken.then(|| Err(FsError::Exists.into()));
        }
        if (way.from.directory, way.from.name) == (way.to.directory, way.to.name) {
            return Some(Ok(Applied::default()));
        }
        let within = way.from.directory == way.to.directory;
        match (from, self.sort(way.to_names, way.to_key)?) {
            // In another directory it may come to lie below itself, which is another error.
            (Sort::Directory, Sort::Other) if within => Some(Err(FsError::NotADirectory.into())),
            (Sort::Other, Sort::Directory) => Some(Err(FsError::IsADirectory.into())),
            _ => None,
        }
    }

    /// The inode that a rename replaces, if it may.
    fn replaced(
        &self,
        way: &Way<'_, 's>,
        by_directory: bool,
    ) -> Result<(Seen<'s>, &'s Mnode), Stop> {
        let (seen, node) =
            self.victim((way.to.directory, way.to_names), (way.to.name, way.to_key))?;
        match (by_directory, node.is_directory()) {
            (true, false) => Err(FsError::NotADirectory.into()),
            (false, true) => Err(FsError::IsADirectory.into()),
            (true, true) if !self.plain(seen.found.inode)?.1.is_empty() => {
                Err(FsError::NotEmpty.into())
            }
            _ => Ok((seen, node)),
        }
    }

    /// A directory and all above it up to that of its cube: nothing moves out of a cube, so those above do not count.
    fn ancestors(&self, directory: InodeNr) -> Result<Vec<InodeNr>, Stop> {
        let mut all = vec![directory];
        let mut at = directory;
        while at != InodeNr::ROOT {
            at = self.node(at)?.stripes().ok_or_else(|| self.missing())?.parent();
            if !self.is_one_cube(at, directory) {
                break;
            }
            if all.len() > MOST_LEVELS {
                return Err(Stop::Pass);
            }
            all.push(at);
        }
        Ok(all)
    }

    /// The directories above the new place of a directory that gets another parent.
    fn above(&self, moved: (InodeNr, &Mnode), way: &Way<'_, '_>) -> Result<Vec<InodeNr>, Stop> {
        let directory = self.node(way.to.directory)?;
        self.may_count(directory, way.to_names)?;
        moved.1.stripes().ok_or_else(|| self.missing())?;
        let above = self.ancestors(way.to.directory)?;
        if above.contains(&moved.0) || !way.from_names.counted {
            return Err(Stop::Pass);
        }
        // The new directory is visited as such.
        Ok(above.into_iter().filter(|one| *one != way.to.directory).collect())
    }

    /// Moves a name; `None` if others were faster.
    fn move_name(
        &mut self,
        op: &Op<'_>,
        way: &Way<'_, 's>,
        mut moved: Moved<'s>,
    ) -> Result<Option<Applied>, Stop> {
        let Way { from, to, from_names, to_names, from_key, to_key } = *way;
        let (inode, node, replaced) = (moved.inode, moved.node, moved.replaced);
        let is_directory = moved.is_directory();
        if is_directory && !(from_names.counted && to_names.counted) {
            return Err(Stop::Pass);
        }
        let record = moved.record(op, way);
        self.reserve_name((to.directory, self.node(to.directory)?), &Cost::of(&record))?;
        let source = from_names.spot(from.directory, from_key).ok_or(FsError::NotFound)?;
        let target = to_names.spot(to.directory, to_key).ok_or(FsError::NotFound)?;
        let replaced_node = replaced.map(|(seen, node)| (seen.found.inode, node));
        let inner = replaced_node.and_then(|(inode, node)| Some((inode, node.stripes()?)));
        // Nobody creates anything in a directory that is replaced: its stripes are locked, or it gets none.
        let bare = inner.filter(|(_, inner)| inner.is_bare());
        let mut locked = match inner {
            Some((inode, inner)) if bare.is_none() => {
                Locked::all(inner.spots(inode).chain([source, target]).collect())
            }
            _ => Locked::two(source, target),
        };
        // A file that moves keeps its number of names, and those of its changes that count them need no order with this one.
        let itself = is_directory.then_some((inode, node));
        let mut held = match (itself, replaced_node) {
            (None, Some((_, node))) => vec![Held::departing(node)],
            (itself, replaced) => hold(itself.into_iter().chain(replaced).collect()),
        };
        let room = target.room(to_key);
        let same = match replaced {
            Some((seen, _)) => seen.is_still(),
            None => !room.is_some_and(|room| room.leads()),
        };
        let still = same && moved.seen.is_still();
        if !still || inner.is_some_and(|(_, inner)| !inner.is_empty()) {
            return Ok(None);
        }
        let alive = !node.status.is_gone() && held.iter().all(|held| !held.node.status.is_gone());
        let Some(room) = room.filter(|_| alive) else { return Err(Stop::Pass) };
        if self.node(to.directory)?.status.is_gone() {
            return Err(FsError::NotFound.into());
        }
        if bare.is_some_and(|(_, inner)| !inner.seal()) {
            return Ok(None);
        }
        let last_move = moved.moving.as_ref().map(|last| **last);
        let born = inner.map(|(_, inner)| inner.born);
        let stamp = stamp(self, &mut locked, &held, last_move.max(born));
        if let Some(last) = &mut moved.moving {
            **last = stamp;
        }
        locked.begin(stamp);
        let found = Found { inode, kind: Some(node.kind) };
        locked.begin_names(&source);
        let crowded = self.put(&mut locked, (&target, room), to_key, (found, Sort::of(node)));
        self.lose(&mut locked, &source, &moved.seen);
        let (fewer, more) = (i32::from(is_directory), i32::from(replaced.is_none()));
        source.touch(op.time, -fewer);
        target.touch(op.time, fewer * more);
        if let Some(stripes) = node.stripes().filter(|_| from.directory != to.directory) {
            stripes.set_parent(to.directory);
        }
        node.note_move(op.time);
        held.iter_mut().for_each(|held| held.note(stamp));
        let gone = replaced_node.filter(|(_, node)| {
            let held = held.iter_mut().find(|held| std::ptr::eq(held.node, *node));
            held.is_some_and(|held| held.lose_name(stamp, op.time))
        });
        self.push(to.directory, stamp, record);
        locked.end();
        drop(held);
        self.note_name(to.directory, crowded);
        Ok(Some(Applied { created: None, nameless: gone.map(|(inode, _)| inode) }))
    }
}
