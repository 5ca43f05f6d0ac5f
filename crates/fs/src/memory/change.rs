//! Changes of attributes and content, made in memory.

use floe_disk::ops::Change;
use floe_format::InodeNr;

use super::content::PAGE_BYTES;
use super::lower::Lower;
use super::record::{Action, Record};
use super::{MemFs, State};
use crate::op::{Applied, Op};
use crate::{Attributes, FsError};

/// Sizes that any map of extents reaches; the disk judges larger ones.
const MOST_BYTES: u64 = 1 << 40;

type Deferred = Result<Option<Applied>, FsError>;

impl<L: Lower> MemFs<L> {
    pub(super) fn change(
        &self,
        state: &mut State,
        op: &Op<'_>,
        inode: InodeNr,
        size_bytes: Option<u64>,
        change: &Change,
    ) -> Deferred {
        if change.flags.is_some() || change.project.is_some() || self.load(state, inode).is_err() {
            return Ok(None);
        }
        if change.permissions.is_some() && !self.is_without_list(state, inode) {
            return Ok(None);
        }
        let Some(node) = state.nodes.get_mut(&inode) else { return Ok(None) };
        if !node.is_simple() {
            return Ok(None);
        }
        if let Some(size) = size_bytes {
            if size > MOST_BYTES || !node.may_keep_content() {
                return Ok(None);
            }
            // A cut block has to be zeroed behind the cut, a new size needs at most a map.
            if !state.room.has_for_pages(1) {
                return Ok(None);
            }
            let pages = node.content.resize(size, node.attributes.size_bytes);
            let attributes = &mut node.attributes;
            attributes.size_bytes = size;
            (attributes.mtime, attributes.ctime) = (op.time, op.time);
            state.note_content(inode, -pages.cast_signed());
            state.unsettled.insert(inode);
        }
        if *change == Change::default() {
            return Ok(Some(Applied::default()));
        }
        let Some(node) = state.nodes.get_mut(&inode) else { return Ok(None) };
        set(&mut node.attributes, change);
        node.attributes.ctime = op.time;
        let action = Action::Change { inode, change: *change };
        let record = Record { uid: op.uid, gid: op.gid, time: op.time, action };
        if !join(state, inode, &record) {
            state.push(record);
        }
        Ok(Some(Applied::default()))
    }

    /// Whether an inode has no access list, which would have to follow its permissions.
    fn is_without_list(&self, state: &mut State, inode: InodeNr) -> bool {
        self.load_lists(state, inode).is_ok_and(|lists| !lists.access)
    }

    pub(super) fn write(
        &self,
        state: &mut State,
        op: &Op<'_>,
        inode: InodeNr,
        offset_bytes: u64,
        bytes: &[u8],
    ) -> Deferred {
        let end = offset_bytes.saturating_add(bytes.len() as u64);
        if bytes.is_empty() || end > MOST_BYTES || self.load(state, inode).is_err() {
            return Ok(None);
        }
        // As many as it can touch.
        let most_pages = bytes.len() as u64 / PAGE_BYTES + 2;
        if !state.room.has_for_pages(most_pages) {
            return Ok(None);
        }
        let Some(node) = state.nodes.get_mut(&inode) else { return Ok(None) };
        if !node.may_keep_content() {
            return Ok(None);
        }
        let below = |at: u64, into: &mut [u8]| {
            let _reading = self.reading_below();
            self.lower.read(inode, at, into)
        };
        let size = node.attributes.size_bytes;
        let pages = node.content.write(offset_bytes, bytes, size, &below)?;
        let attributes = &mut node.attributes;
        attributes.size_bytes = size.max(end);
        (attributes.mtime, attributes.ctime) = (op.time, op.time);
        state.note_content(inode, pages.cast_signed());
        state.unsettled.insert(inode);
        Ok(Some(Applied::default()))
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

/// Adds a change to the last record of the same inode, if that is a change as well: nothing that concerns the inode happened
/// in between.
fn join(state: &mut State, inode: InodeNr, record: &Record) -> bool {
    let Action::Change { change, .. } = &record.action else { return false };
    let last = state.log.of_mnode(inode).next_back();
    let Some(last) = last.and_then(|stamp| state.log.get_mut(stamp)) else { return false };
    let Action::Change { inode: same, change: earlier } = &mut last.action else { return false };
    if *same != inode {
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
