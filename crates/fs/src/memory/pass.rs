//! Changes that the disk makes at once, and the end of inodes.

use floe_format::InodeNr;
use floe_format::ext::inode::InodeFlags;
use floe_sync::OnceLock;

use super::content::Content;
use super::follow::{follow, will_move};
use super::losses::Losses;
use super::lower::Lower;
use super::mnode::{Mnode, Names};
use super::quotas::{Owner, Quotas};
use super::record::{Action, Record};
use super::{Changing, MemFs, State};
use crate::op::{Applied, Op, OpKind, Place};
use crate::{Change, FsError, Timestamp, now};

/// Blocks that a change may take besides its content: names, maps, attributes.
const BLOCKS_PER_CHANGE: u64 = 64;

/// How often a flush is tried beside changes of others before they have to wait.
const MOST_TURNS: u32 = 3;

impl<L: Lower> MemFs<L> {
    /// Lets the disk make a change at once, behind all on which it depends.
    pub(super) fn pass(&self, op: &Op<'_>) -> Result<Applied, FsError> {
        let whole = self.is_limited() || matches!(op.kind, OpKind::Rename { .. }) || {
            let blocks = blocks_of(&op.kind, self.lower.block_bytes());
            !self.state().pending().room.has(blocks, 1)
        };
        let mut turns = 0;
        loop {
            if whole {
                self.flush_all()?;
            }
            let turn = self.flushing();
            let concerned = {
                let mut state = self.state_mut();
                state.evict(&self.limits);
                self.concerned(&mut state, &op.kind)
            };
            self.flush_of(&turn, concerned)?;
            let mut state = self.state_mut();
            state.judge()?;
            let concerned = self.concerned(&mut state, &op.kind);
            // Others may have changed something since.
            let is_written = |inode: &InodeNr| {
                !state.pending().log.concerns(*inode)
                    && !state.get(*inode).is_some_and(Mnode::is_dirty)
            };
            let is_all = match (self.is_limited(), whole) {
                (true, _) => state.pending().is_empty(),
                (false, true) => state.pending().log.len() == 0,
                (false, false) => true,
            };
            if concerned.iter().all(is_written) && is_all {
                return self.make(&mut state, op, &concerned);
            }
            if turns >= MOST_TURNS {
                self.write_alone(&mut state, Losses::default())?;
                return self.make(&mut state, op, &concerned);
            }
            turns += 1;
        }
    }

    fn make(
        &self,
        state: &mut Changing<'_>,
        op: &Op<'_>,
        concerned: &[InodeNr],
    ) -> Result<Applied, FsError> {
        let _changing = self.changing_below();
        // Numbers that nobody took are free for this one, too.
        state.give_back(&self.lower);
        // Limits are judged as the disk has them.
        let (world, slots) = state.0.parts();
        world.accounts.end_leases(slots);
        let moved = will_move(state, &op.kind);
        let done = self.lower.apply(op);
        if let Ok(applied) = &done {
            follow(state, &op.kind, applied, moved);
        }
        let created = done.as_ref().ok().and_then(|applied| applied.created);
        for inode in concerned.iter().copied().chain(created) {
            if self.facts.quotas != Quotas::None
                && let Ok(found) = self.lower.attributes(inode)
            {
                state.accounts.note(Owner::of(&found));
            }
            self.refresh(state, inode);
        }
        state.pending().room.note(self.lower.space());
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
            OpKind::Link { inode, place } => {
                // The name that follows says its type.
                let _ = self.load(state, *inode);
                [self.named(state, place), vec![*inode]].concat()
            }
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
        let named = names.and_then(|names| names.find(place.name));
        [place.directory].into_iter().chain(named.map(|found| found.inode)).collect()
    }

    /// Reads an inode anew that the disk has changed.
    fn refresh(&self, state: &mut State, inode: InodeNr) {
        let Some(node) = state.nodes.get_mut(inode.0) else { return };
        match self.lower.attributes(inode) {
            Ok(attributes) => {
                // An empty directory that folds case from now on compares its names in another way.
                let folded = node.flags.symmetric_difference(attributes.flags);
                let keeps =
                    |names: &Names| names.is_whole() && !folded.contains(InodeFlags::CASEFOLD);
                let before = node.name_count();
                state.kept.pages = state.kept.pages.saturating_sub(node.content.kept_pages());
                let names = node.names.take().filter(keeps);
                *node = Mnode::loaded(attributes);
                if let Some(names) = names {
                    node.names = OnceLock::from(names);
                    node.set(&attributes);
                }
                let after = node.name_count();
                state.kept.names = (state.kept.names + after).saturating_sub(before);
            }
            // The next one who asks finds out why.
            Err(_) => state.drop_node(inode),
        }
        state.pending().unsettled.remove(&inode);
    }

    /// Lets an inode go that has no name and that nobody uses.
    pub(super) fn let_go(&self, state: &mut Changing<'_>, inode: InodeNr) -> Result<(), FsError> {
        if self.is_immediate() {
            let _changing = self.changing_below();
            state.drop_node(inode);
            let done = self.lower.release(inode);
            state.pending().room.note(self.lower.space());
            return done;
        }
        state.judge()?;
        let (mut pages, mut kept, mut free) = (0, 0, false);
        if let Some(node) = state.nodes.get_mut(inode.0) {
            if node.content.has_begun() || node.is_dirty() {
                (pages, kept) = (node.content.counted_pages(), node.content.kept_pages());
                node.content = Content::new(node.disk_bytes());
            }
            free = node.is_unborn() && !node.is_in_flight();
        }
        state.kept.pages = state.kept.pages.saturating_sub(kept);
        let mut pending = state.pending();
        pending.forget_content(inode, pages);
        if free && pending.absorb(state, inode) {
            drop(pending);
            state.drop_node(inode);
            return Ok(());
        }
        let action = Action::Release { inode };
        let record = Record { uid: 0, gid: 0, time: now(), action };
        pending.take(state, &record);
        pending.log.push(record);
        Ok(())
    }

    /// Sets the time of the last access. Where changes wait, it does, too: the next flush finds that memory and disk differ in
    /// it. An inode that memory does not have keeps its time.
    pub(super) fn accessed(&self, inode: InodeNr, time: Timestamp) -> Result<(), FsError> {
        if !self.is_immediate() {
            let state = self.state();
            state.judge()?;
            let Some(node) = state.get(inode) else { return Ok(()) };
            let guarded = node.lock();
            node.status.change(|status| status.atime = time);
            drop(guarded);
            state.pending().unsettled.insert(inode);
            return Ok(());
        }
        let mut state = self.state_mut();
        state.judge()?;
        let _changing = self.changing_below();
        let file = self.lower.attributes(inode)?;
        let change = Change { accessed: Some(time), ..Change::default() };
        let kind = OpKind::Change { inode, size_bytes: None, change };
        let done = self.lower.apply(&Op { uid: 0, gid: 0, time: file.ctime, kind });
        self.refresh(&mut state, inode);
        done.map(|_| ())
    }

    /// Lets the disk have some of what waits, if too much does.
    pub(super) fn relieve(&self) -> Result<(), FsError> {
        if self.state().parts().1.is_full(self.share) {
            drop(self.state_mut());
        }
        self.flush_until(1)
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
