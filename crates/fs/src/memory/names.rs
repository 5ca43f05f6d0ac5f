//! Changes of names, made in memory.
//!
//! A change looks where its names lead without a lock, locks the stripes of these names and the inodes whose links or times
//! change, and looks again. Two changes of one directory in different stripes neither wait for each other nor share memory.

use floe_disk::ops::{NewInode, NewKind, RenameMode};
use floe_format::InodeNr;
use floe_sync::MutexGuard;

use super::attempt::{Attempt, Locked, Stop};
use super::lower::Lower;
use super::mnode::{Guarded, Mnode};
use super::record::{Action, BornKind, Record, Stamp};
use super::room::Cost;
use super::stripes::{Found, Stripes};
use crate::op::{Applied, Op, Place};
use crate::{FsError, Timestamp};

/// Links above which the disk judges: a directory's may stop being counted, a file's are at most 65,000.
const MOST_LINKS: u32 = 64_000;
/// Directories above each other; more are damage.
const MOST_LEVELS: usize = 10_000;

fn is_good_name(name: &[u8]) -> bool {
    let bad = name.iter().any(|byte| matches!(byte, b'/' | 0));
    !bad && !matches!(name, b"" | b"." | b"..") && name.len() <= 255
}

fn record(op: &Op<'_>, action: Action) -> Record {
    Record { uid: op.uid, gid: op.gid, time: op.time, action }
}

/// The stripe of a name.
fn at(stripes: &Stripes, place: &Place<'_>) -> (InodeNr, usize) {
    (place.directory, stripes.stripe(place.name))
}

/// An inode that a change locks.
struct Held<'s> {
    node: &'s Mnode,
    guarded: MutexGuard<'s, Guarded>,
}

/// Locks inodes, each once, in the order of their numbers.
fn hold<'s>(mut of: Vec<(InodeNr, &'s Mnode)>) -> Vec<Held<'s>> {
    of.sort_unstable_by_key(|(inode, _)| *inode);
    of.dedup_by_key(|(inode, _)| *inode);
    let lock = |(_, node): (InodeNr, &'s Mnode)| Held { node, guarded: node.lock() };
    of.into_iter().map(lock).collect()
}

/// The stamp of a change with these locks.
fn stamp<L: Lower>(attempt: &Attempt<'_, L>, locked: &Locked<'_>, held: &[Held<'_>]) -> Stamp {
    let lasts = locked.lasts().into_iter().chain(held.iter().map(|held| held.guarded.last));
    attempt.state.stamp(attempt.own.number, lasts)
}

/// An inode loses a name; a directory loses all. Returns whether it has none.
fn lose_name(node: &Mnode, time: Timestamp) -> bool {
    let mut status = node.status.read();
    status.links = if node.is_directory() { 0 } else { status.links.saturating_sub(1) };
    status.ctime = time;
    node.status.write(&status);
    status.links == 0
}

impl<'s, L: Lower> Attempt<'s, L> {
    pub(super) fn create(
        &mut self,
        op: &Op<'_>,
        place: &Place<'_>,
        new: &NewInode<'_>,
    ) -> Result<Applied, Stop> {
        let kind = BornKind::of(new.kind).ok_or(Stop::Pass)?;
        let (directory, names) = self.plain(place.directory)?;
        if !is_good_name(place.name) {
            return Err(Stop::Pass);
        }
        if names.find(place.name).is_some() {
            return Err(FsError::Exists.into());
        }
        let parent = directory.status.read();
        let is_directory = kind == BornKind::Directory;
        if is_directory {
            self.may_count(directory, names)?;
        }
        let block_bytes = self.fs.lower.block_bytes();
        if let NewKind::Symlink(target) = new.kind
            && (target.is_empty() || target.contains(&0) || target.len() >= block_bytes as usize)
        {
            return Err(Stop::Pass);
        }
        let reserved = {
            let _reading = self.fs.reading_below();
            let group = self.fs.facts.inodes_per_group;
            let taken = self.own.numbers.take(&self.fs.lower, group, place.directory, is_directory);
            taken.map_err(|_| Stop::Pass)?
        };
        let (permissions, umask) = (new.permissions, new.umask);
        let action = Action::Create { place: place.into(), kind, permissions, umask, reserved };
        let record = record(op, action);
        let inode = reserved.inode;
        if let Err(stop) = self.reserve(&Cost::of(&record)) {
            self.own.numbers.put_back(reserved);
            return Err(stop);
        }
        let stripe = at(names, place);
        let mut locked = Locked::lock(vec![(stripe, names)]);
        let gone = directory.status.read().links == 0;
        if gone || names.find(place.name).is_some() {
            self.own.numbers.put_back(reserved);
            let error = if gone { FsError::NotFound } else { FsError::Exists };
            return Err(error.into());
        }
        let stamp = stamp(self, &locked, &[]);
        let facts = &self.fs.facts;
        let node = Mnode::born(op, new, &parent, reserved, facts, block_bytes, stamp);
        // A number that memory still knows was freed on the disk a moment ago.
        if !names.has_cookie(place.name) || !self.state.nodes.insert(inode.0, node) {
            self.own.numbers.put_back(reserved);
            return Err(Stop::Pass);
        }
        locked.begin(stamp);
        let found = Found { inode, kind: Some(new.kind.file_type()) };
        let crowded = locked.inside(stripe).and_then(|inside| names.put(inside, place.name, found));
        names.touch(stripe.1, op.time, i32::from(is_directory));
        locked.end();
        self.note_name(place.directory, crowded);
        self.own.born += 1;
        self.own.push(stamp, record);
        Ok(Applied { created: Some(inode), nameless: None })
    }

    fn note_name(&mut self, directory: InodeNr, crowded: Option<bool>) {
        self.own.names += 1;
        if crowded == Some(true) {
            self.own.crowded.push(directory);
        }
    }

    /// Whether a directory's links may follow its subdirectories in memory.
    fn may_count(&self, directory: &Mnode, names: &Stripes) -> Result<(), Stop> {
        // Threads beside each other see the links of the last merge, and add at most so many as a log has changes.
        let few = 2..MOST_LINKS / 2;
        let fits = few.contains(&directory.status.read().links)
            || self.alone && (2..MOST_LINKS).contains(&directory.shown().links);
        match names.counted && fits {
            true => Ok(()),
            false if names.counted && !self.alone => Err(Stop::Alone),
            false => Err(Stop::Pass),
        }
    }

    pub(super) fn link(
        &mut self,
        op: &Op<'_>,
        inode: InodeNr,
        place: &Place<'_>,
    ) -> Result<Applied, Stop> {
        let (directory, names) = self.plain(place.directory)?;
        let node = self.node(inode)?;
        let fits = |node: &Mnode| (1..MOST_LINKS).contains(&node.status.read().links);
        let fit = !node.is_directory() && node.is_simple() && fits(node);
        if !fit || !is_good_name(place.name) {
            return Err(Stop::Pass);
        }
        if names.find(place.name).is_some() {
            return Err(FsError::Exists.into());
        }
        let record = record(op, Action::Link { inode, place: place.into() });
        self.reserve(&Cost::of(&record))?;
        let stripe = at(names, place);
        let mut locked = Locked::lock(vec![(stripe, names)]);
        let mut held = hold(vec![(inode, node)]);
        if directory.status.read().links == 0 {
            return Err(FsError::NotFound.into());
        }
        if names.find(place.name).is_some() {
            return Err(FsError::Exists.into());
        }
        if !fits(node) || !names.has_cookie(place.name) {
            return Err(Stop::Pass);
        }
        let stamp = stamp(self, &locked, &held);
        locked.begin(stamp);
        let mut status = node.status.read();
        (status.links, status.ctime) = (status.links + 1, op.time);
        node.status.write(&status);
        let found = Found { inode, kind: Some(status.kind) };
        let crowded = locked.inside(stripe).and_then(|inside| names.put(inside, place.name, found));
        names.touch(stripe.1, op.time, 0);
        held.iter_mut().for_each(|held| held.guarded.last = stamp);
        locked.end();
        self.note_name(place.directory, crowded);
        self.own.push(stamp, record);
        Ok(Applied::default())
    }

    /// What a name leads to that is to be taken away.
    fn victim(&self, names: &Stripes, place: &Place<'_>) -> Result<(InodeNr, &'s Mnode), Stop> {
        if !is_good_name(place.name) {
            return Err(Stop::Pass);
        }
        let found = names.find(place.name).ok_or(FsError::NotFound)?;
        let node = self.node(found.inode)?;
        if !node.is_simple() {
            return Err(Stop::Pass);
        }
        Ok((found.inode, node))
    }

    pub(super) fn unlink(&mut self, op: &Op<'_>, place: &Place<'_>) -> Result<Applied, Stop> {
        let (_, names) = self.plain(place.directory)?;
        loop {
            let (inode, node) = self.victim(names, place)?;
            if node.is_directory() {
                return Err(FsError::IsADirectory.into());
            }
            let stripe = at(names, place);
            let mut locked = Locked::lock(vec![(stripe, names)]);
            let mut held = hold(vec![(inode, node)]);
            if names.find(place.name).map(|found| found.inode) != Some(inode) {
                continue;
            }
            if node.status.read().links == 0 {
                return Err(Stop::Pass);
            }
            let stamp = stamp(self, &locked, &held);
            locked.begin(stamp);
            let gone = lose_name(node, op.time);
            names.take(place.name);
            names.touch(stripe.1, op.time, 0);
            held.iter_mut().for_each(|held| held.guarded.last = stamp);
            locked.end();
            self.own.push(stamp, record(op, Action::Unlink { inode, place: place.into() }));
            return Ok(Applied { created: None, nameless: gone.then_some(inode) });
        }
    }

    pub(super) fn remove_directory(
        &mut self,
        op: &Op<'_>,
        place: &Place<'_>,
    ) -> Result<Applied, Stop> {
        let (_, names) = self.plain(place.directory)?;
        loop {
            let (inode, node) = self.victim(names, place)?;
            if !node.is_directory() {
                return Err(FsError::NotADirectory.into());
            }
            let (_, inner) = self.plain(inode)?;
            if !inner.is_empty() {
                return Err(FsError::NotEmpty.into());
            }
            if !names.counted {
                return Err(Stop::Pass);
            }
            let stripe = at(names, place);
            // Nobody creates anything in it meanwhile.
            let mut stripes: Vec<_> = inner.all().map(|stripe| ((inode, stripe), inner)).collect();
            stripes.push((stripe, names));
            let mut locked = Locked::lock(stripes);
            let mut held = hold(vec![(inode, node)]);
            let same = names.find(place.name).map(|found| found.inode) == Some(inode);
            if !same || !inner.is_empty() || node.status.read().links == 0 {
                continue;
            }
            let stamp = stamp(self, &locked, &held);
            locked.begin(stamp);
            lose_name(node, op.time);
            names.take(place.name);
            names.touch(stripe.1, op.time, -1);
            held.iter_mut().for_each(|held| held.guarded.last = stamp);
            locked.end();
            self.own
                .push(stamp, record(op, Action::RemoveDirectory { inode, place: place.into() }));
            return Ok(Applied { created: None, nameless: Some(inode) });
        }
    }

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
        loop {
            let (inode, moved) = self.victim(from_names, from)?;
            let target = to_names.find(to.name);
            if target.is_some() && mode == RenameMode::NoReplace {
                return Err(FsError::Exists.into());
            }
            if target.map(|target| target.inode) == Some(inode) {
                // Two names of one inode both stay.
                return Ok(Applied::default());
            }
            let way = Way { from, to, from_names, to_names };
            // Into itself is another error than onto something else.
            let ancestors = self.above((inode, moved), &way)?;
            let replaced = match target {
                Some(_) => Some(self.replaced(to_names, to, moved.is_directory())?),
                None => None,
            };
            let moves = moved.is_directory() && from.directory != to.directory;
            if moves && !self.alone {
                return Err(Stop::Alone);
            }
            let moving = ((inode, moved), replaced, ancestors.into());
            if let Some(applied) = self.move_name(op, &way, moving)? {
                return Ok(applied);
            }
        }
    }

    /// What a rename replaces, if it may.
    fn replaced(
        &self,
        names: &Stripes,
        place: &Place<'_>,
        by_directory: bool,
    ) -> Result<(InodeNr, &'s Mnode), Stop> {
        let (inode, node) = self.victim(names, place)?;
        match (by_directory, node.is_directory()) {
            (true, false) => return Err(FsError::NotADirectory.into()),
            (false, true) => return Err(FsError::IsADirectory.into()),
            (false, false) => {}
            (true, true) => {
                if !self.plain(inode)?.1.is_empty() {
                    return Err(FsError::NotEmpty.into());
                }
                // Nobody creates anything in it meanwhile.
                if !self.alone {
                    return Err(Stop::Alone);
                }
            }
        }
        Ok((inode, node))
    }

    /// A directory and all above it up to the root.
    fn ancestors(&self, directory: InodeNr) -> Result<Vec<InodeNr>, Stop> {
        let mut all = vec![directory];
        let mut at = directory;
        while at != InodeNr::ROOT {
            at = self.node(at)?.stripes().ok_or_else(|| self.missing())?.parent();
            if all.len() > MOST_LEVELS {
                return Err(Stop::Pass);
            }
            all.push(at);
        }
        Ok(all)
    }

    /// The directories above the new place of a directory that gets another parent.
    fn above(&self, moved: (InodeNr, &Mnode), way: &Way<'_, '_>) -> Result<Vec<InodeNr>, Stop> {
        if !moved.1.is_directory() || way.from.directory == way.to.directory {
            return Ok(Vec::new());
        }
        // Parents change only while a thread is alone, so beside others the answer holds until this call ends.
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
        ((inode, moved), replaced, ancestors): Moving<'s>,
    ) -> Result<Option<Applied>, Stop> {
        let Way { from, to, from_names, to_names } = *way;
        let is_directory = moved.is_directory();
        if is_directory && !(from_names.counted && to_names.counted) {
            return Err(Stop::Pass);
        }
        let action = Action::Rename {
            moved: inode,
            replaced: replaced.map(|(inode, _)| inode),
            from: from.into(),
            to: to.into(),
            ancestors,
        };
        let record = record(op, action);
        self.reserve(&Cost::of(&record))?;
        let (source, target) = (at(from_names, from), at(to_names, to));
        let mut locked = Locked::lock(vec![(source, from_names), (target, to_names)]);
        let mut held = hold([(inode, moved)].into_iter().chain(replaced).collect());
        let leads =
            |names: &Stripes, place: &Place<'_>| names.find(place.name).map(|found| found.inode);
        if leads(from_names, from) != Some(inode)
            || leads(to_names, to) != replaced.map(|(inode, _)| inode)
        {
            return Ok(None);
        }
        let alive = held.iter().all(|held| held.node.status.read().links > 0);
        if !alive || replaced.is_none() && !to_names.has_cookie(to.name) {
            return Err(Stop::Pass);
        }
        if self.node(to.directory)?.status.read().links == 0 {
            return Err(FsError::NotFound.into());
        }
        let stamp = stamp(self, &locked, &held);
        locked.begin(stamp);
        let found = Found { inode, kind: Some(moved.kind) };
        let crowded = locked.inside(target).and_then(|inside| to_names.put(inside, to.name, found));
        from_names.take(from.name);
        let (fewer, more) = (i32::from(is_directory), i32::from(replaced.is_none()));
        from_names.touch(source.1, op.time, -fewer);
        to_names.touch(target.1, op.time, fewer * more);
        if let Some(stripes) = moved.stripes().filter(|_| from.directory != to.directory) {
            stripes.set_parent(to.directory);
        }
        let mut status = moved.status.read();
        status.ctime = op.time;
        moved.status.write(&status);
        let gone = replaced.filter(|(_, node)| lose_name(node, op.time));
        held.iter_mut().for_each(|held| held.guarded.last = stamp);
        locked.end();
        self.note_name(to.directory, crowded);
        self.own.push(stamp, record);
        Ok(Some(Applied { created: None, nameless: gone.map(|(inode, _)| inode) }))
    }
}

/// What a rename moves, what it replaces, and the directories above the new place of a directory that gets another parent.
type Moving<'s> = ((InodeNr, &'s Mnode), Option<(InodeNr, &'s Mnode)>, Box<[InodeNr]>);

/// The two ends of a rename.
#[derive(Clone, Copy)]
struct Way<'a, 's> {
    from: &'a Place<'a>,
    to: &'a Place<'a>,
    from_names: &'s Stripes,
    to_names: &'s Stripes,
}
