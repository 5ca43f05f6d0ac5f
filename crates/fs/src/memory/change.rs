//! Changes of attributes and content, made in memory.

use floe_disk::ops::{Change, SetMode};
use floe_format::InodeNr;
use floe_format::ext::inode::FileType;

use super::attempt::{Attempt, Stop};
use super::content::{Brought, Write};
use super::locks::{Held, Locked};
use super::lower::Lower;
use super::names::{record, stamp};
use super::pages::PAGE_BYTES;
use super::quotas::Quotas;
use super::record::{Action, Record, Stamp};
use super::room::Cost;
use crate::op::{Applied, Op};
use crate::{Attributes, FsError};

/// Sizes that any map of extents reaches; the disk judges larger ones.
const MOST_BYTES: u64 = 1 << 40;

impl<L: Lower> Attempt<'_, L> {
    pub(super) fn change(
        &mut self,
        op: &Op<'_>,
        inode: InodeNr,
        size_bytes: Option<u64>,
        change: &Change,
    ) -> Result<Applied, Stop> {
        let owner = change.uid.is_some() || change.gid.is_some();
        let moves_usage = owner && self.fs.facts.quotas != Quotas::None;
        if change.flags.is_some() || change.project.is_some() || moves_usage {
            return Err(Stop::Pass);
        }
        let node = self.node(inode)?;
        if !node.is_simple() {
            return Err(Stop::Pass);
        }
        if change.permissions.is_some() {
            match node.lists.get() {
                None if !self.alone => return Err(Stop::Alone),
                // An access list would have to follow the permissions.
                Some(lists) if !lists.access => {}
                _ => return Err(Stop::Pass),
            }
        }
        if let Some(size) = size_bytes {
            if size > MOST_BYTES || !node.may_keep_content() {
                return Err(Stop::Pass);
            }
            // A cut block has to be zeroed behind the cut, a new size needs at most a map.
            self.charge_blocks(node, self.state.sizes.blocks_for_pages(1))?;
            self.reserve_pages(inode, 1)?;
        }
        if let Some(size) = size_bytes {
            let mut resized = node.content.lock();
            let gone = node.content.resize(&node.status.length, size, &mut resized);
            node.content.begin().touch(0, op.time);
            self.part(inode).pages -= gone.cast_signed();
            self.note_content(inode);
        }
        if size_bytes.is_some() && *change == Change::default() {
            return Ok(Applied::default());
        }
        // Changes of names take effect on a directory's attributes, too, and its children on theirs.
        let mut locked = node.lock_names(inode);
        let mut held = Held::lock(node);
        let mut now = node.folded();
        set(&mut now, change);
        now.ctime = op.time;
        let action = Action::Change { inode, change: Box::new(*change) };
        let record = Record { uid: op.uid, gid: op.gid, time: op.time, action };
        let last = held.last();
        // Nothing that concerns the inode happened since its last change, if that is the last of this slot, too.
        if !node.is_directory() && self.join_last((inode, last), &record) {
            node.fold(&now);
            return Ok(Applied::default());
        }
        let stamp = stamp(self, &mut locked, std::slice::from_ref(&held), None);
        locked.begin(stamp);
        node.fold(&now);
        held.note(stamp);
        self.push(inode, stamp, record);
        locked.end();
        Ok(Applied::default())
    }

    pub(super) fn write(
        &mut self,
        op: &Op<'_>,
        inode: InodeNr,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Result<Applied, Stop> {
        let end = offset_bytes.saturating_add(bytes.len() as u64);
        if bytes.is_empty() || end > MOST_BYTES {
            return Err(Stop::Pass);
        }
        let node = self.node(inode)?;
        if !node.may_keep_content() {
            return Err(Stop::Pass);
        }
        if !self.brought
            && let Some(wanted) = self.state.wanted_by(&op.kind)
        {
            return Err(Stop::Bring(wanted));
        }
        // As many as it can touch.
        let most_pages = bytes.len() as u64 / PAGE_BYTES + 2;
        self.charge_blocks(node, self.state.sizes.blocks_for_pages(most_pages))?;
        self.reserve_pages(inode, most_pages)?;
        let below = |at: u64, into: &mut [u8]| {
            let _reading = self.fs.reading_below();
            self.fs.lower.read(inode, at, into)
        };
        let length = &node.status.length;
        let write = Write { offset_bytes, bytes, grows: false, disk_bytes: node.disk_bytes() };
        let mut brought = Brought::default();
        // A write inside the file locks its pages alone.
        let mut done = false;
        if end <= length.size() {
            (done, brought) = node.content.write(length, write, &below)?;
        }
        if !done {
            let mut resized = node.content.lock();
            let write = Write { grows: true, ..write };
            let (_, more) = node.content.write(length, write, &below)?;
            (brought.dirty, brought.kept) = (brought.dirty + more.dirty, brought.kept + more.kept);
            let (size, valid) = length.get();
            if end > size {
                resized.resized = true;
                length.set(end, valid);
            }
        }
        node.content.begin().touch(offset_bytes / PAGE_BYTES, op.time);
        self.own.kept_pages += brought.kept;
        let part = self.part(inode);
        part.pages += brought.dirty.cast_signed();
        if let Some(room) = &mut part.room {
            room.pages += brought.dirty.cast_signed();
        }
        self.note_content(inode);
        Ok(Applied::default())
    }

    /// Sets an extended attribute, or removes it.
    pub(super) fn set_attribute(
        &mut self,
        op: &Op<'_>,
        inode: InodeNr,
        name: &[u8],
        value: Option<&[u8]>,
        mode: SetMode,
    ) -> Result<Applied, Stop> {
        let node = self.node(inode)?;
        if !node.is_simple() || !may_wait(name, node.kind) {
            return Err(Stop::Pass);
        }
        let extended = match node.extended.get() {
            Some(extended) => extended,
            None if node.is_own && value.is_none() => return Err(FsError::NoAttribute.into()),
            // Something new that has any passed.
            None if node.is_own => node.extended.get_or_init(Box::default),
            None => return Err(self.missing()),
        };
        let (owned, owned_value) = (name.into(), value.map(Into::into));
        let action = Action::SetAttribute { inode, name: owned, value: owned_value };
        let record = record(op, action);
        let cost = Cost::of(&record);
        self.charge_blocks(node, cost.own_blocks())?;
        self.reserve(inode, &cost)?;
        let mut held = Held::lock(node);
        match (mode, extended.get(name).is_some()) {
            (SetMode::Create, true) => return Err(FsError::Exists.into()),
            (SetMode::Replace, false) => return Err(FsError::NoAttribute.into()),
            _ => {}
        }
        let room = self.fs.lower.block_bytes() as usize - ROOM_OF_HEADER;
        let fits = value.is_none_or(|value| extended.block_bytes_with(name, value.len()) <= room);
        if !fits || node.status.is_gone() {
            return Err(Stop::Pass);
        }
        if extended.is_long(name) {
            return Err(self.missing());
        }
        let none = &mut Locked::default();
        let stamp = stamp(self, none, std::slice::from_ref(&held), None);
        extended.set(name, value);
        node.status.change(|status| status.ctime = op.time);
        held.note(stamp);
        self.push(inode, stamp, record);
        Ok(Applied::default())
    }

    /// Adds a change to the last one of this slot, if that has this stamp and is of the same kind.
    fn join_last(&self, (inode, stamp): (InodeNr, Stamp), record: &Record) -> bool {
        let mut logs = self.fs.logs.enter();
        let last = logs
            .parts()
            .1
            .of(self.state.cube_of(inode))
            .records
            .last_mut()
            .filter(|(last, _)| *last == stamp);
        last.is_some_and(|(_, last)| join(last, record))
    }
}

/// Bytes of a block of attributes that its header and its end take, rather too many.
const ROOM_OF_HEADER: usize = 64;

/// Whether memory knows all effects of a change of an attribute: access lists change permissions, and only files and
/// directories may have attributes of users.
fn may_wait(name: &[u8], kind: FileType) -> bool {
    let plain = matches!(kind, FileType::Regular | FileType::Directory);
    let rest = [&b"user."[..], b"trusted.", b"security."]
        .iter()
        .find_map(|prefix| name.strip_prefix(*prefix));
    plain && rest.is_some_and(|rest| (1..=255).contains(&rest.len()))
}

fn set(attributes: &mut Attributes, change: &Change) {
    if let Some(permissions) = change.permissions {
        attributes.permissions = permissions & 0o7777;
    }
    attributes.uid = change.uid.unwrap_or(attributes.uid);
    attributes.gid = change.gid.unwrap_or(attributes.gid);
    attributes.atime = change.accessed.unwrap_or(attributes.atime);
    attributes.mtime = change.modified.unwrap_or(attributes.mtime);
}

/// Adds a change to one of the same inode; `false` if that is none.
fn join(last: &mut Record, record: &Record) -> bool {
    let Action::Change { inode, change } = &record.action else { return false };
    let Action::Change { inode: same, change: earlier } = &mut last.action else { return false };
    if same != inode {
        return false;
    }
    earlier.permissions = change.permissions.or(earlier.permissions);
    earlier.uid = change.uid.or(earlier.uid);
    earlier.gid = change.gid.or(earlier.gid);
    earlier.accessed = change.accessed.or(earlier.accessed);
    earlier.modified = change.modified.or(earlier.modified);
    last.time = record.time;
    true
}
