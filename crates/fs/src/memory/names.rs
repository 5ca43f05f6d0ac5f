//! Changes of names, made in memory.

use floe_disk::ops::{NewInode, NewKind, RenameMode};
use floe_format::InodeNr;
use floe_sync::Arc;

use super::lower::Lower;
use super::mnode::Mnode;
use super::record::{Action, BornKind, Record};
use super::room::Cost;
use super::{MemFs, State};
use crate::directory::Entry;
use crate::op::{Applied, Op, Place};
use crate::{Directory, FsError, Timestamp};

/// Links above which the disk judges: a directory's may stop being counted, a file's are at most 65,000.
const MOST_LINKS: u32 = 64_000;
/// Directories above each other; more are damage.
const MOST_LEVELS: usize = 10_000;

type Deferred = Result<Option<Applied>, FsError>;

fn is_good_name(name: &[u8]) -> bool {
    let bad = name.iter().any(|byte| matches!(byte, b'/' | 0));
    !bad && !matches!(name, b"" | b"." | b"..") && name.len() <= 255
}

fn record(op: &Op<'_>, action: Action) -> Record {
    Record { uid: op.uid, gid: op.gid, time: op.time, action }
}

impl State {
    fn node(&mut self, inode: InodeNr) -> Result<&mut Mnode, FsError> {
        self.nodes.get_mut(&inode).ok_or(FsError::NotFound)
    }

    fn change_names<T>(
        &mut self,
        directory: InodeNr,
        change: impl FnOnce(&mut Directory) -> T,
    ) -> Result<T, FsError> {
        let names = self.node(directory)?.names.as_mut().ok_or(FsError::NotFound)?;
        let before = names.len();
        let names = Arc::make_mut(names);
        let value = change(names);
        let after = names.len();
        self.names = self.names.saturating_sub(before) + after;
        Ok(value)
    }

    /// Gives a directory a name; `false` if memory cannot keep it.
    pub(super) fn add_name(&mut self, directory: InodeNr, entry: Entry) -> Result<bool, FsError> {
        self.change_names(directory, |names| names.insert(entry))
    }

    pub(super) fn take_name(&mut self, place: &Place<'_>) -> Result<Option<Entry>, FsError> {
        self.change_names(place.directory, |names| names.remove(place.name))
    }

    /// The names of a directory changed.
    fn touch_directory(&mut self, inode: InodeNr, time: Timestamp) -> Result<(), FsError> {
        let attributes = &mut self.node(inode)?.attributes;
        (attributes.mtime, attributes.ctime) = (time, time);
        Ok(())
    }

    /// An inode loses a name; a directory loses all. Returns whether it has none.
    fn lose_name(&mut self, inode: InodeNr, time: Timestamp) -> Result<bool, FsError> {
        let node = self.node(inode)?;
        let is_directory = node.is_directory();
        let attributes = &mut node.attributes;
        attributes.links = if is_directory { 0 } else { attributes.links.saturating_sub(1) };
        attributes.ctime = time;
        Ok(attributes.links == 0)
    }

    fn count_subdirectory(&mut self, inode: InodeNr, more: bool) -> Result<(), FsError> {
        let links = &mut self.node(inode)?.attributes.links;
        *links = if more { *links + 1 } else { *links - 1 };
        Ok(())
    }
}

impl<L: Lower> MemFs<L> {
    /// The names of a directory whose changes memory knows all effects of; `None` for any other.
    fn plain_names(
        &self,
        state: &mut State,
        directory: InodeNr,
    ) -> Result<Option<Arc<Directory>>, FsError> {
        if self.load(state, directory).is_err() {
            return Ok(None);
        }
        let node = state.node(directory)?;
        let fit = node.is_directory() && node.attributes.links > 0 && node.is_simple();
        let size_bytes = node.attributes.size_bytes;
        if !fit {
            return Ok(None);
        }
        let Ok(names) = self.load_names(state, directory) else { return Ok(None) };
        if names.folds() || names.damage().is_some() {
            return Ok(None);
        }
        // An index of two levels, half full, takes blocks with this many bytes at least.
        let block = u64::from(self.lower.block_bytes());
        let grown = size_bytes.saturating_add(4 * state.room.waiting_name_bytes(directory));
        if grown > (block / 8).saturating_mul(block / 8).saturating_mul(block) / 8 {
            return Ok(None);
        }
        let Ok(lists) = self.load_lists(state, directory) else { return Ok(None) };
        Ok((!lists.default).then_some(names))
    }

    pub(super) fn create(
        &self,
        state: &mut State,
        op: &Op<'_>,
        place: &Place<'_>,
        new: &NewInode<'_>,
    ) -> Deferred {
        let Some(kind) = BornKind::of(new.kind) else { return Ok(None) };
        let Some(names) = self.plain_names(state, place.directory)? else { return Ok(None) };
        if !is_good_name(place.name) {
            return Ok(None);
        }
        if names.find(place.name).is_some() {
            return Err(FsError::Exists);
        }
        drop(names);
        let parent = state.node(place.directory)?.attributes;
        let is_directory = kind == BornKind::Directory;
        if is_directory && !(2..MOST_LINKS).contains(&parent.links) {
            return Ok(None);
        }
        if let NewKind::Symlink(target) = new.kind
            && (target.is_empty()
                || target.contains(&0)
                || target.len() >= self.lower.block_bytes() as usize)
        {
            return Ok(None);
        }
        let Ok(reserved) = ({
            let _reading = self.reading_below();
            let group = self.facts.inodes_per_group;
            state.numbers.take(&self.lower, group, place.directory, is_directory)
        }) else {
            return Ok(None);
        };
        let action = Action::Create {
            place: place.into(),
            kind,
            permissions: new.permissions,
            umask: new.umask,
            reserved,
        };
        let record = record(op, action);
        let entry = Entry {
            inode: reserved.inode,
            kind: Some(new.kind.file_type()),
            name: place.name.into(),
        };
        // A number that memory still knows was freed on the disk a moment ago.
        let fits = state.room.has_for(&Cost::of(&record))
            && !state.nodes.contains_key(&reserved.inode)
            && state.add_name(place.directory, entry)?;
        if !fits {
            state.returned.push(reserved.inode);
            return Ok(None);
        }
        let block_bytes = self.lower.block_bytes();
        let node = Mnode::born(op, new, &parent, reserved, &self.facts, block_bytes);
        state.nodes.insert(reserved.inode, node);
        if is_directory {
            state.count_subdirectory(place.directory, true)?;
        }
        state.touch_directory(place.directory, op.time)?;
        state.push(record);
        Ok(Some(Applied { created: Some(reserved.inode), nameless: None }))
    }

    pub(super) fn link(
        &self,
        state: &mut State,
        op: &Op<'_>,
        inode: InodeNr,
        place: &Place<'_>,
    ) -> Deferred {
        let Some(names) = self.plain_names(state, place.directory)? else { return Ok(None) };
        if self.load(state, inode).is_err() {
            return Ok(None);
        }
        let node = state.node(inode)?;
        let links = node.attributes.links;
        let fit = !node.is_directory() && node.is_simple() && (1..MOST_LINKS).contains(&links);
        if !fit || !is_good_name(place.name) {
            return Ok(None);
        }
        if names.find(place.name).is_some() {
            return Err(FsError::Exists);
        }
        drop(names);
        let kind = Some(node.attributes.kind);
        let record = record(op, Action::Link { inode, place: place.into() });
        let entry = Entry { inode, kind, name: place.name.into() };
        let fits =
            state.room.has_for(&Cost::of(&record)) && state.add_name(place.directory, entry)?;
        if !fits {
            return Ok(None);
        }
        let attributes = &mut state.node(inode)?.attributes;
        attributes.links += 1;
        attributes.ctime = op.time;
        state.touch_directory(place.directory, op.time)?;
        state.push(record);
        Ok(Some(Applied::default()))
    }

    pub(super) fn unlink(&self, state: &mut State, op: &Op<'_>, place: &Place<'_>) -> Deferred {
        let Some(inode) = self.victim(state, place)? else { return Ok(None) };
        if state.node(inode)?.is_directory() {
            return Err(FsError::IsADirectory);
        }
        state.take_name(place)?;
        state.touch_directory(place.directory, op.time)?;
        let gone = state.lose_name(inode, op.time)?;
        state.push(record(op, Action::Unlink { inode, place: place.into() }));
        Ok(Some(Applied { created: None, nameless: gone.then_some(inode) }))
    }

    pub(super) fn remove_directory(
        &self,
        state: &mut State,
        op: &Op<'_>,
        place: &Place<'_>,
    ) -> Deferred {
        let Some(inode) = self.victim(state, place)? else { return Ok(None) };
        if !state.node(inode)?.is_directory() {
            return Err(FsError::NotADirectory);
        }
        let Some(names) = self.plain_names(state, inode)? else { return Ok(None) };
        if !names.is_empty() {
            return Err(FsError::NotEmpty);
        }
        if state.node(place.directory)?.attributes.links <= 2 {
            return Ok(None);
        }
        state.take_name(place)?;
        state.touch_directory(place.directory, op.time)?;
        state.count_subdirectory(place.directory, false)?;
        state.lose_name(inode, op.time)?;
        state.push(record(op, Action::RemoveDirectory { inode, place: place.into() }));
        Ok(Some(Applied { created: None, nameless: Some(inode) }))
    }

    /// What a name leads to that is to be taken away, loaded; `None` if the disk must judge.
    fn victim(&self, state: &mut State, place: &Place<'_>) -> Result<Option<InodeNr>, FsError> {
        let Some(names) = self.plain_names(state, place.directory)? else { return Ok(None) };
        if !is_good_name(place.name) {
            return Ok(None);
        }
        let inode = names.find(place.name).ok_or(FsError::NotFound)?.inode;
        if self.load(state, inode).is_err() {
            return Ok(None);
        }
        let node = state.node(inode)?;
        Ok((node.is_simple() && node.attributes.links > 0).then_some(inode))
    }

    pub(super) fn rename(
        &self,
        state: &mut State,
        op: &Op<'_>,
        from: &Place<'_>,
        to: &Place<'_>,
        mode: RenameMode,
    ) -> Deferred {
        if !matches!(mode, RenameMode::Replace | RenameMode::NoReplace) || !is_good_name(to.name) {
            return Ok(None);
        }
        let Some(moved) = self.victim(state, from)? else { return Ok(None) };
        let Some(names) = self.plain_names(state, to.directory)? else { return Ok(None) };
        let replaced = names.find(to.name).map(|entry| entry.inode);
        drop(names);
        if replaced.is_some() && mode == RenameMode::NoReplace {
            return Err(FsError::Exists);
        }
        if replaced == Some(moved) {
            // Two names of one inode both stay.
            return Ok(Some(Applied::default()));
        }
        let is_directory = state.node(moved)?.is_directory();
        let mut ancestors = Vec::new();
        if is_directory && from.directory != to.directory {
            if self.load_names(state, moved).is_err() {
                return Ok(None);
            }
            let links = state.node(to.directory)?.attributes.links;
            let above = self.ancestors(state, to.directory)?;
            let counted = (2..MOST_LINKS).contains(&links)
                && state.node(from.directory)?.attributes.links > 2;
            match above {
                Some(above) if counted && !above.contains(&moved) => ancestors = above,
                _ => return Ok(None),
            }
        }
        if let Some(replaced) = replaced
            && !self.may_replace(state, to, replaced, is_directory)?
        {
            return Ok(None);
        }
        // The new directory is visited as such.
        let ancestors = ancestors.into_iter().filter(|one| *one != to.directory).collect();
        let action =
            Action::Rename { moved, replaced, from: from.into(), to: to.into(), ancestors };
        let record = record(op, action);
        if !state.room.has_for(&Cost::of(&record)) {
            return Ok(None);
        }
        self.move_name(state, op, (from, to), (moved, replaced), record)
    }

    /// Whether a rename may replace an inode, as far as memory judges: `false` if the disk must.
    fn may_replace(
        &self,
        state: &mut State,
        to: &Place<'_>,
        replaced: InodeNr,
        by_directory: bool,
    ) -> Result<bool, FsError> {
        if self.victim(state, to)? != Some(replaced) {
            return Ok(false);
        }
        match (by_directory, state.node(replaced)?.is_directory()) {
            (true, false) => return Err(FsError::NotADirectory),
            (false, true) => return Err(FsError::IsADirectory),
            (false, false) => return Ok(true),
            (true, true) => {}
        }
        let Some(names) = self.plain_names(state, replaced)? else { return Ok(false) };
        if names.is_empty() { Ok(true) } else { Err(FsError::NotEmpty) }
    }

    /// A directory and all above it up to the root; `None` if one cannot be read.
    fn ancestors(
        &self,
        state: &mut State,
        directory: InodeNr,
    ) -> Result<Option<Vec<InodeNr>>, FsError> {
        let mut all = vec![directory];
        let mut at = directory;
        while at != InodeNr::ROOT {
            let Ok(names) = self.load_names(state, at) else { return Ok(None) };
            at = names.parent();
            if all.len() > MOST_LEVELS {
                return Ok(None);
            }
            all.push(at);
        }
        Ok(Some(all))
    }

    fn move_name(
        &self,
        state: &mut State,
        op: &Op<'_>,
        (from, to): (&Place<'_>, &Place<'_>),
        (moved, replaced): (InodeNr, Option<InodeNr>),
        record: Record,
    ) -> Deferred {
        let is_directory = state.node(moved)?.is_directory();
        let kind = Some(state.node(moved)?.attributes.kind);
        if replaced.is_some() {
            state.take_name(to)?;
        }
        let entry = Entry { inode: moved, kind, name: to.name.into() };
        if !state.add_name(to.directory, entry)? {
            if let Some(inode) = replaced {
                // There was room for the name that went.
                let kind = Some(state.node(inode)?.attributes.kind);
                state.add_name(to.directory, Entry { inode, kind, name: to.name.into() })?;
            }
            return Ok(None);
        }
        state.take_name(from)?;
        if is_directory && from.directory != to.directory {
            let moving = Arc::make_mut(self.loaded_names(state, moved)?);
            moving.set_parent(to.directory);
            state.count_subdirectory(from.directory, false)?;
            if replaced.is_none() {
                state.count_subdirectory(to.directory, true)?;
            }
        } else if is_directory && replaced.is_some() {
            state.count_subdirectory(from.directory, false)?;
        }
        state.touch_directory(from.directory, op.time)?;
        state.touch_directory(to.directory, op.time)?;
        state.node(moved)?.attributes.ctime = op.time;
        let gone = match replaced {
            Some(replaced) => state.lose_name(replaced, op.time)?,
            None => false,
        };
        state.push(record);
        Ok(Some(Applied { created: None, nameless: replaced.filter(|_| gone) }))
    }

    fn loaded_names<'s>(
        &self,
        state: &'s mut State,
        directory: InodeNr,
    ) -> Result<&'s mut Arc<Directory>, FsError> {
        self.load_names(state, directory)?;
        state.node(directory)?.names.as_mut().ok_or(FsError::NotFound)
    }
}
