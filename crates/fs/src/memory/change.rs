//! Changes of attributes and content, made in memory.

use floe_disk::ops::Change;
use floe_format::InodeNr;

use super::attempt::{Attempt, Stop};
use super::content::PAGE_BYTES;
use super::lower::Lower;
use super::record::{Action, Record};
use crate::Attributes;
use crate::op::{Applied, Op};

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
        if change.flags.is_some() || change.project.is_some() {
            return Err(Stop::Pass);
        }
        let node = self.node(inode)?;
        if !node.is_simple() {
            return Err(Stop::Pass);
        }
        if node.is_directory() && !self.alone {
            // Changes of names take effect on its attributes, too.
            return Err(Stop::Alone);
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
            self.reserve_pages(1)?;
        }
        let mut guarded = node.lock();
        let mut now = node.status.read();
        if let Some(size) = size_bytes {
            let pages = guarded.content.resize(size, now.size_bytes);
            self.own.pages_gone += pages;
            now.size_bytes = size;
            (now.mtime, now.ctime) = (op.time, op.time);
            now.sectors = node.sectors(&guarded, size, self.fs.cluster_bytes());
            self.own.note_content(inode);
        }
        if *change == Change::default() {
            node.status.write(&now);
            return Ok(Applied::default());
        }
        if let Some(stripes) = node.stripes() {
            // The thread is alone. From now on the inode has all that the stripes had.
            now = node.shown();
            stripes.forget_changes();
        }
        set(&mut now, change);
        now.ctime = op.time;
        node.status.write(&now);
        let action = Action::Change { inode, change: *change };
        let record = Record { uid: op.uid, gid: op.gid, time: op.time, action };
        // Nothing that concerns the inode happened since its last change, if that is the last of this slot, too.
        if self.own.last_of(guarded.last).is_some_and(|last| join(last, &record)) {
            return Ok(Applied::default());
        }
        let lasts = node.stripes().map(|stripes| stripes.born).into_iter().chain([guarded.last]);
        let stamp = self.state.stamp(self.own.number, lasts);
        guarded.last = stamp;
        self.own.push(stamp, record);
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
        // As many as it can touch.
        self.reserve_pages(bytes.len() as u64 / PAGE_BYTES + 2)?;
        let below = |at: u64, into: &mut [u8]| {
            let _reading = self.fs.reading_below();
            self.fs.lower.read(inode, at, into)
        };
        let mut guarded = node.lock();
        let mut now = node.status.read();
        let pages = guarded.content.write(offset_bytes, bytes, now.size_bytes, &below)?;
        now.size_bytes = now.size_bytes.max(end);
        (now.mtime, now.ctime) = (op.time, op.time);
        now.sectors = node.sectors(&guarded, now.size_bytes, self.fs.cluster_bytes());
        node.status.write(&now);
        self.own.pages += pages;
        if let Some(room) = &mut self.own.room {
            room.pages += pages;
        }
        self.own.note_content(inode);
        Ok(Applied::default())
    }
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
