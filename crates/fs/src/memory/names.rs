//! Changes of names, made in memory.
//!
//! A change looks where its names lead without a lock, locks the stripes of these names and the inodes whose links or times
//! change, and looks again. Two changes of one directory in different stripes neither wait for each other nor share memory.

use floe_disk::ops::{NewInode, NewKind};
use floe_format::InodeNr;

use super::attempt::{Attempt, Stop};
use super::chains::Room;
use super::departures::NAMES_PER_DEPARTURES;
use super::locks::{Held, Locked};
use super::lower::Lower;
use super::mnode::{Mnode, NAMES_PER_DIRECTORY, SETGID};
use super::quotas::{Owner, Quotas};
use super::record::{Action, BornKind, Record, Stamp};
use super::room::Cost;
use super::stripes::{Found, Key, Seen, Sort, Spot, Stripes};
use crate::op::{Applied, Op, Place};
use crate::{Attributes, FsError};

/// Links above which the disk judges: a directory's may stop being counted, a file's are at most 65,000.
const MOST_LINKS: u32 = 64_000;

pub(super) fn is_good_name(name: &[u8]) -> bool {
    let bad = name.iter().any(|byte| matches!(byte, b'/' | 0));
    !bad && !matches!(name, b"" | b"." | b"..") && name.len() <= 255
}

pub(super) fn record(op: &Op<'_>, action: Action) -> Record {
    Record { uid: op.uid, gid: op.gid, time: op.time, action }
}

/// The stamp of a change with these locks.
pub(super) fn stamp<L: Lower>(
    attempt: &Attempt<'_, L>,
    locked: &mut Locked<'_>,
    held: &[Held<'_>],
    more: Option<Stamp>,
) -> Stamp {
    let lasts = [locked.last(), attempt.own.last].into_iter();
    let lasts = lasts.chain(held.iter().map(Held::last)).chain(more);
    attempt.state.stamp(attempt.own.number, lasts)
}

/// The owner of something new in a directory.
fn owner_of_new(op: &Op<'_>, parent: &Attributes) -> Owner {
    let inherits = parent.permissions & SETGID != 0;
    Owner([op.uid, if inherits { parent.gid } else { op.gid }, 0])
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
        let key = names.key(place.name);
        if names.has(key) {
            return Err(FsError::Exists.into());
        }
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
            let reading = || self.fs.reading_below();
            let group = self.fs.facts.inodes_per_group;
            let numbers = &mut self.own.numbers;
            let near = (place.directory, is_directory);
            numbers.take(&self.fs.lower, group, near, reading).map_err(|_| Stop::Pass)?
        };
        let (permissions, umask, inode) = (new.permissions, new.umask, reserved.inode);
        let action = Action::Create { place: place.into(), kind, permissions, umask, reserved };
        let record = record(op, action);
        let (cost, owner) = (Cost::of(&record), owner_of_new(op, &directory.status.who()));
        let charged = self
            .charge_new(owner, &cost)
            .and_then(|()| self.reserve_name((place.directory, directory), &cost));
        if let Err(stop) = charged {
            self.own.numbers.put_back(reserved);
            return Err(stop);
        }
        let Some(spot) = names.spot(place.directory, key) else {
            self.own.numbers.put_back(reserved);
            return Err(FsError::NotFound.into());
        };
        let mut locked = Locked::one(spot);
        // As they are now: a change of them locks all stripes.
        let parent = directory.status.who();
        let (gone, room) = (parent.links == 0, spot.room(key));
        if gone || room.is_some_and(|room| room.leads()) {
            self.own.numbers.put_back(reserved);
            let error = if gone { FsError::NotFound } else { FsError::Exists };
            return Err(error.into());
        }
        if self.fs.facts.quotas != Quotas::None && owner_of_new(op, &parent) != owner {
            self.own.numbers.put_back(reserved);
            return Err(Stop::Pass);
        }
        let stamp = stamp(self, &mut locked, &[], None);
        let facts = &self.fs.facts;
        let node = Mnode::born(op, new, &parent, reserved, facts, block_bytes, stamp);
        let led = (Found { inode, kind: Some(node.kind) }, Sort::of(&node));
        // A number that memory still knows was freed on the disk a moment ago.
        let Some(room) = room.filter(|_| self.state.nodes.insert(inode.0, node)) else {
            self.own.numbers.put_back(reserved);
            return Err(Stop::Pass);
        };
        locked.begin(stamp);
        let crowded = self.put(&mut locked, (&spot, room), key, led);
        spot.touch(op.time, i32::from(is_directory));
        self.push(place.directory, stamp, record);
        locked.end();
        self.note_name(place.directory, crowded);
        self.own.born += 1;
        self.own.names += if is_directory { NAMES_PER_DIRECTORY } else { 0 };
        Ok(Applied { created: Some(inode), nameless: None })
    }

    /// Reserves space for a change that gives a name in a directory.
    pub(super) fn reserve_name(
        &mut self,
        (directory, node): (InodeNr, &Mnode),
        cost: &Cost,
    ) -> Result<(), Stop> {
        self.charge_blocks(node, cost.directory_blocks(self.fs.lower.block_bytes()))?;
        self.reserve(directory, cost)
    }

    /// Lets a name lead to an inode of this sort. Returns whether its chain is long now.
    pub(super) fn put(
        &self,
        locked: &mut Locked<'_>,
        (spot, room): (&Spot<'_>, Room<'_>),
        key: Key<'_>,
        (found, sort): (Found, Sort),
    ) -> Option<bool> {
        if !room.leads() {
            locked.begin_names(spot);
        }
        let flagged = self.state.epochs.flagged;
        locked.inside(spot).map(|inside| spot.put(inside, room, key, (found, sort, flagged)))
    }

    /// The sort of inode that a name leads to, as far as it is known without a look at it; `None` if it leads nowhere.
    pub(super) fn sort(&self, names: &Stripes, key: Key<'_>) -> Option<Sort> {
        names.sort(key, self.state.epochs.flagged)
    }

    /// Lets a name that was found lead nowhere.
    pub(super) fn lose(&self, locked: &mut Locked<'_>, spot: &Spot<'_>, seen: &Seen<'_>) {
        locked.begin_names(spot);
        locked.inside(spot).into_iter().for_each(|inside| seen.lose(inside));
    }

    pub(super) fn note_name(&mut self, directory: InodeNr, crowded: Option<bool>) {
        self.own.names += 1;
        if crowded == Some(true) {
            self.own.crowded.push(directory);
        }
    }

    /// Whether a directory's links may follow its subdirectories in memory.
    pub(super) fn may_count(&self, directory: &Mnode, names: &Stripes) -> Result<(), Stop> {
        // Threads beside each other see the links of the last merge, and add at most so many as a log has changes.
        let few = 2..MOST_LINKS / 2;
        let fits = few.contains(&directory.status.links())
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
        let fits = |node: &Mnode| (1..MOST_LINKS).contains(&node.status.links());
        // The disk says why a cube has no names of another.
        let fit = !node.is_directory() && node.is_simple();
        let fit = fit && self.is_one_cube(inode, place.directory);
        if !fit || !is_good_name(place.name) {
            return Err(Stop::Pass);
        }
        let key = names.key(place.name);
        if names.has(key) {
            return Err(FsError::Exists.into());
        }
        // Later, because other calls change the number.
        if !fits(node) {
            return Err(Stop::Pass);
        }
        let record = record(op, Action::Link { inode, place: place.into() });
        self.reserve_name((place.directory, directory), &Cost::of(&record))?;
        let spot = names.spot(place.directory, key).ok_or(FsError::NotFound)?;
        let mut locked = Locked::one(spot);
        let mut held = Held::lock(node);
        if directory.status.is_gone() {
            return Err(FsError::NotFound.into());
        }
        let room = spot.room(key);
        if room.is_some_and(|room| room.leads()) {
            return Err(FsError::Exists.into());
        }
        let room = room.filter(|_| fits(node)).ok_or(Stop::Pass)?;
        let stamp = stamp(self, &mut locked, std::slice::from_ref(&held), None);
        locked.begin(stamp);
        node.status.count_links(|links| links + 1, op.time);
        let found = Found { inode, kind: Some(node.kind) };
        let crowded = self.put(&mut locked, (&spot, room), key, (found, Sort::of(node)));
        spot.touch(op.time, 0);
        held.note(stamp);
        if node.begin_departures(stamp) {
            self.own.names += NAMES_PER_DEPARTURES;
        }
        self.push(place.directory, stamp, record);
        locked.end();
        drop(held);
        self.note_name(place.directory, crowded);
        Ok(Applied::default())
    }

    /// The inode behind a name that is to be removed.
    pub(super) fn victim(
        &self,
        (directory, names): (InodeNr, &'s Stripes),
        (name, key): (&[u8], Key<'_>),
    ) -> Result<(Seen<'s>, &'s Mnode), Stop> {
        if !is_good_name(name) {
            return Err(Stop::Pass);
        }
        let seen = names.see(key).ok_or(FsError::NotFound)?;
        let node = self.node(seen.found.inode)?;
        // The directory of a cube stays where it is, which the disk says.
        if !node.is_simple() || !self.is_one_cube(seen.found.inode, directory) {
            return Err(Stop::Pass);
        }
        Ok((seen, node))
    }

    pub(super) fn unlink(&mut self, op: &Op<'_>, place: &Place<'_>) -> Result<Applied, Stop> {
        let (_, names) = self.plain(place.directory)?;
        let key = names.key(place.name);
        loop {
            if is_good_name(place.name) && self.sort(names, key) == Some(Sort::Directory) {
                return Err(FsError::IsADirectory.into());
            }
            let (seen, node) = self.victim((place.directory, names), (place.name, key))?;
            let inode = seen.found.inode;
            if node.is_directory() {
                return Err(FsError::IsADirectory.into());
            }
            let spot = names.spot(place.directory, key).ok_or(FsError::NotFound)?;
            let mut locked = Locked::one(spot);
            let mut held = Held::departing(node);
            if !seen.is_still() {
                continue;
            }
            if node.status.is_gone() {
                return Err(Stop::Pass);
            }
            let stamp = stamp(self, &mut locked, std::slice::from_ref(&held), None);
            locked.begin(stamp);
            let gone = held.lose_name(stamp, op.time);
            self.lose(&mut locked, &spot, &seen);
            spot.touch(op.time, 0);
            self.push(
                place.directory,
                stamp,
                record(op, Action::Unlink { inode, place: place.into() }),
            );
            locked.end();
            return Ok(Applied { created: None, nameless: gone.then_some(inode) });
        }
    }

    pub(super) fn remove_directory(
        &mut self,
        op: &Op<'_>,
        place: &Place<'_>,
    ) -> Result<Applied, Stop> {
        let (_, names) = self.plain(place.directory)?;
        let key = names.key(place.name);
        loop {
            if is_good_name(place.name) && self.sort(names, key) == Some(Sort::Other) {
                return Err(FsError::NotADirectory.into());
            }
            let (seen, node) = self.victim((place.directory, names), (place.name, key))?;
            let inode = seen.found.inode;
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
            let spot = names.spot(place.directory, key).ok_or(FsError::NotFound)?;
            // Nobody creates anything in it meanwhile: its stripes are locked, or it gets none.
            let bare = inner.is_bare();
            let mut locked = match bare {
                true => Locked::one(spot),
                false => Locked::all(inner.spots(inode).chain([spot]).collect()),
            };
            let mut held = Held::lock(node);
            if !seen.is_still()
                || !inner.is_empty()
                || node.status.is_gone()
                || bare && !inner.seal()
            {
                continue;
            }
            let held_now = std::slice::from_ref(&held);
            let stamp = stamp(self, &mut locked, held_now, Some(inner.born));
            locked.begin(stamp);
            held.lose_name(stamp, op.time);
            self.lose(&mut locked, &spot, &seen);
            spot.touch(op.time, -1);
            self.push(
                place.directory,
                stamp,
                record(op, Action::RemoveDirectory { inode, place: place.into() }),
            );
            locked.end();
            return Ok(Applied { created: None, nameless: Some(inode) });
        }
    }
}
