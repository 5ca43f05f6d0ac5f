//! Changes that the disk makes at once, and the end of inodes.

use floe_disk::ops::RenameMode;
use floe_format::InodeNr;
use floe_format::ext::inode::InodeFlags;
use floe_sync::Arc;

use super::absorb::{absorb, directories};
use super::lower::Lower;
use super::mnode::Mnode;
use super::record::{Action, Record};
use super::room::Cost;
use super::{MemFs, State};
use crate::directory::Entry;
use crate::op::{Applied, Op, OpKind, Place};
use crate::{Directory, FsError, now};

/// Blocks that a change may take besides its content: names, maps, attributes.
const BLOCKS_PER_CHANGE: u64 = 64;

impl<L: Lower> MemFs<L> {
    /// Lets the disk make a change at once, behind all on which it depends.
    pub(super) fn pass(&self, op: &Op<'_>) -> Result<Applied, FsError> {
        let whole = matches!(op.kind, OpKind::Rename { .. })
            || !self.state().room.has(blocks_of(&op.kind, self.lower.block_bytes()), 1);
        loop {
            if whole {
                self.flush_all()?;
            }
            let turn = self.flushing();
            let concerned = self.concerned(&mut self.state_mut(), &op.kind);
            self.flush_of(&turn, concerned)?;
            let mut state = self.state_mut();
            state.judge()?;
            let concerned = self.concerned(&mut state, &op.kind);
            // Others may have changed something since.
            let is_written = |inode: &InodeNr| {
                let node = state.nodes.get(inode);
                !state.log.concerns(*inode) && node.is_none_or(|node| !node.content.is_dirty())
            };
            if concerned.iter().all(is_written) && (!whole || state.log.len() == 0) {
                return self.make(&mut state, op, &concerned);
            }
        }
    }

    fn make(
        &self,
        state: &mut State,
        op: &Op<'_>,
        concerned: &[InodeNr],
    ) -> Result<Applied, FsError> {
        let _changing = self.changing_below();
        // Numbers that nobody took are free for this one, too.
        state.numbers.give_back(&self.lower);
        state.returned.drain(..).for_each(|inode| self.lower.give_back(inode));
        let moved = will_move(state, &op.kind);
        let done = self.lower.apply(op);
        if let Ok(applied) = &done {
            follow(state, &op.kind, applied, moved);
        }
        let created = done.as_ref().ok().and_then(|applied| applied.created);
        for inode in concerned.iter().copied().chain(created) {
            self.refresh(state, inode);
        }
        state.room.note(self.lower.space());
        done
    }

    /// The inodes that a change reads or changes.
    fn concerned(&self, state: &mut State, kind: &OpKind<'_>) -> Vec<InodeNr> {
        match kind {
            OpKind::Create { place, .. }
            | OpKind::Unlink(place)
            | OpKind::RemoveDirectory(place) => self.named(state, place),
            OpKind::Rename { from, to, .. } => {
                [self.named(state, from), self.named(state, to)].concat()
            }
            OpKind::Link { inode, place } => [self.named(state, place), vec![*inode]].concat(),
            OpKind::CreateUnnamed { directory: inode, .. }
            | OpKind::Change { inode, .. }
            | OpKind::Write { inode, .. }
            | OpKind::Range { inode, .. }
            | OpKind::SetAttribute { inode, .. }
            | OpKind::RemoveAttribute { inode, .. } => vec![*inode],
        }
    }

    /// A directory, and what a name in it leads to.
    fn named(&self, state: &mut State, place: &Place<'_>) -> Vec<InodeNr> {
        let names = self.load_names(state, place.directory).ok();
        let named = names.and_then(|names| names.find(place.name).map(|entry| entry.inode));
        [place.directory].into_iter().chain(named).collect()
    }

    /// Reads an inode anew that the disk has changed.
    fn refresh(&self, state: &mut State, inode: InodeNr) {
        let Some(node) = state.nodes.get_mut(&inode) else { return };
        match self.lower.attributes(inode) {
            Ok(attributes) => {
                // An empty directory that folds case from now on compares its names in another way.
                let folded = node.attributes.flags.symmetric_difference(attributes.flags);
                let keeps = |names: &Arc<Directory>| {
                    !names.folds() && !folded.contains(InodeFlags::CASEFOLD)
                };
                let names = node.names.take();
                let kept = names.as_ref().filter(|names| keeps(names)).map(Arc::clone);
                let gone = if kept.is_some() { None } else { names };
                state.names -= gone.map_or(0, |names| names.len() + 1).min(state.names);
                *node = Mnode { names: kept, ..Mnode::loaded(attributes) };
            }
            // The next one who asks finds out why.
            Err(_) => state.drop_node(inode),
        }
        state.unsettled.remove(&inode);
    }

    /// Lets an inode go that has no name and that nobody uses.
    pub(super) fn let_go(&self, inode: InodeNr) -> Result<(), FsError> {
        if self.facts.immediate.is_some() {
            let mut state = self.state_mut();
            let _changing = self.changing_below();
            state.drop_node(inode);
            let done = self.lower.release(inode);
            state.room.note(self.lower.space());
            return done;
        }
        let mut state = self.state_mut();
        state.judge()?;
        if let Some(node) = state.nodes.get_mut(&inode) {
            let pages = node.content.page_count();
            node.content = super::content::Content::on_disk();
            state.note_content(inode, -pages.cast_signed());
        }
        let free = state.nodes.get(&inode).is_some_and(|node| node.unborn && !node.in_flight);
        let absorbed = if free { absorb(&mut state.log, inode) } else { Vec::new() };
        if absorbed.is_empty() {
            let action = Action::Release { inode };
            state.push(Record { uid: 0, gid: 0, time: now(), action });
            return Ok(());
        }
        for record in &absorbed {
            state.room.release(&Cost::of(record));
        }
        let directories = directories(&absorbed, inode);
        state.unsettled.extend(directories);
        state.unsettled.remove(&inode);
        state.drop_node(inode);
        state.returned.push(inode);
        Ok(())
    }

    /// Lets the disk have some of what waits, if too much does.
    pub(super) fn relieve(&self) -> Result<(), FsError> {
        while self.is_pressed(1) {
            self.flush_oldest(&self.flushing())?;
        }
        Ok(())
    }
}

/// Blocks that a change may take.
fn blocks_of(kind: &OpKind<'_>, block_bytes: u32) -> u64 {
    let bytes = match kind {
        OpKind::Write { bytes, .. } => bytes.len() as u64,
        OpKind::Range { bytes, .. } => bytes.end.saturating_sub(bytes.start),
        OpKind::SetAttribute { value, .. } => value.len() as u64,
        _ => 0,
    };
    // Twice: its map takes less.
    2 * bytes.div_ceil(u64::from(block_bytes)) + BLOCKS_PER_CHANGE
}

/// The entry that a rename moves, if its directory is in memory.
fn will_move(state: &State, kind: &OpKind<'_>) -> Option<Entry> {
    let OpKind::Rename { from, .. } = kind else { return None };
    state.nodes.get(&from.directory)?.names.as_ref()?.find(from.name).cloned()
}

/// Lets the names in memory follow a change that the disk made.
fn follow(state: &mut State, kind: &OpKind<'_>, applied: &Applied, moved: Option<Entry>) {
    match kind {
        OpKind::Create { place, new } => {
            if let Some(inode) = applied.created {
                state.drop_node(inode);
                let kind = Some(new.kind.file_type());
                gain(state, place, Entry { inode, kind, name: place.name.into() });
            }
        }
        OpKind::CreateUnnamed { .. } => {
            if let Some(inode) = applied.created {
                state.drop_node(inode);
            }
        }
        OpKind::Link { inode, place } => {
            let kind = state.nodes.get(inode).map(|node| node.attributes.kind);
            let entry = Entry { inode: *inode, kind, name: place.name.into() };
            if kind.is_some() {
                gain(state, place, entry);
            } else {
                forget_names(state, place.directory);
            }
        }
        OpKind::Unlink(place) | OpKind::RemoveDirectory(place) => lose(state, place),
        OpKind::Rename { from, to, mode } => {
            let simple = matches!(mode, RenameMode::Replace | RenameMode::NoReplace);
            let target = state.nodes.get(&to.directory).and_then(|node| node.names.as_ref());
            let target = target.and_then(|names| names.find(to.name)).map(|entry| entry.inode);
            match moved.filter(|_| simple) {
                // Two names of one inode both stay.
                Some(entry) if target == Some(entry.inode) => {
                    forget_names(state, from.directory);
                    forget_names(state, to.directory);
                }
                Some(entry) => {
                    // Its `..` may lead elsewhere.
                    forget_names(state, entry.inode);
                    lose(state, from);
                    lose(state, to);
                    gain(state, to, Entry { name: to.name.into(), ..entry });
                }
                // What changed places may be directories, with other parents now. All was flushed.
                None => {
                    let all: Vec<InodeNr> = state.nodes.keys().copied().collect();
                    all.into_iter().for_each(|inode| forget_names(state, inode));
                }
            }
        }
        OpKind::Change { .. }
        | OpKind::Write { .. }
        | OpKind::Range { .. }
        | OpKind::SetAttribute { .. }
        | OpKind::RemoveAttribute { .. } => {}
    }
}

fn gain(state: &mut State, place: &Place<'_>, entry: Entry) {
    let plain = is_plain(state, place.directory);
    if !plain || !state.add_name(place.directory, entry).unwrap_or(false) {
        forget_names(state, place.directory);
    }
}

fn lose(state: &mut State, place: &Place<'_>) {
    if !is_plain(state, place.directory) || state.take_name(place).is_err() {
        forget_names(state, place.directory);
    }
}

/// Whether names of a directory are in memory and compared byte by byte. Where case does not count, the disk says which
/// spelling is the stored one.
fn is_plain(state: &State, directory: InodeNr) -> bool {
    let names = state.nodes.get(&directory).and_then(|node| node.names.as_ref());
    names.is_some_and(|names| !names.folds() && names.damage().is_none())
}

fn forget_names(state: &mut State, directory: InodeNr) {
    if let Some(node) = state.nodes.get_mut(&directory)
        && let Some(names) = node.names.take()
    {
        state.names = state.names.saturating_sub(names.len() + 1);
    }
}
