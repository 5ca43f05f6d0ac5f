//! Changes that the disk makes at once, and the end of inodes.

use std::collections::BTreeSet;

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
use crate::cubes::Gates;
use crate::op::{Applied, Op, OpKind, Place};
use crate::{Change, FsError, Timestamp, now};

/// Blocks that a change may take besides its content: names, maps, attributes.
const BLOCKS_PER_CHANGE: u64 = 64;

/// How often a flush is tried beside changes of others before they have to wait.
const MOST_TURNS: u32 = 3;

impl<L: Lower> MemFs<L> {
    /// Lets the disk make a change at once, behind all on which it depends.
    pub(super) fn pass(&self, op: &Op<'_>) -> Result<Applied, FsError> {
        let home = self.cube_of(op.kind.home());
        let needed_blocks = blocks_of(&op.kind, self.lower.block_bytes());
        let (whole, needs_lot) = self.needs(home, op, needed_blocks);
        let mut cubes = BTreeSet::from([home]);
        // A cube that is full takes a lot of the root cube, of which changes may count on each block.
        cubes.extend(needs_lot.then_some(0));
        let mut turns = 0;
        loop {
            if self.is_limited() {
                cubes.extend(self.queues.numbers());
            }
            if whole {
                cubes.iter().try_for_each(|cube| self.flush_all_of(*cube, false))?;
            }
            let held = self.turns(&cubes);
            let concerned = {
                let mut state = self.state_mut();
                state.evict(&self.limits);
                self.concerned(&mut state, &op.kind)
            };
            let of_others = concerned.iter().map(|inode| self.cube_of(*inode));
            let before = cubes.len();
            cubes.extend(of_others);
            if cubes.len() > before {
                continue;
            }
            for turn in &held {
                let own = concerned.iter().filter(|inode| self.cube_of(**inode) == turn.cube);
                self.flush_of(turn, own.copied())?;
            }
            let mut state = self.state_mut();
            state.judge()?;
            let concerned = self.concerned(&mut state, &op.kind);
            // Others may have changed something since.
            let is_written = |inode: &InodeNr| {
                !state.pending(state.cube_of(*inode)).log.concerns(*inode)
                    && !state.get(*inode).is_some_and(Mnode::is_dirty)
            };
            let is_all = cubes.iter().all(|cube| match (self.is_limited(), whole) {
                (true, _) => state.pending(*cube).is_empty(),
                (false, true) => state.pending(*cube).log.len() == 0,
                (false, false) => true,
            });
            if concerned.iter().all(is_written) && is_all {
                return self.make(&mut state, op, &concerned, needed_blocks);
            }
            if turns >= MOST_TURNS {
                for turn in &held {
                    self.write_alone(&mut state, turn, Losses::default())?;
                }
                return self.make(&mut state, op, &concerned, needed_blocks);
            }
            turns += 1;
        }
    }

    /// Whether a change of a cube needs space that may be reserved for others that wait there, and whether a lot of the root cube
    /// may be needed that is reserved there.
    fn needs(&self, home: u32, op: &Op<'_>, blocks: u64) -> (bool, bool) {
        let state = self.state();
        let has = |cube: u32, blocks| state.pending(cube).room.has(state.sizes, blocks, 1);
        let is_full = !has(home, blocks);
        let whole = self.is_limited() || matches!(op.kind, OpKind::Rename { .. }) || is_full;
        (whole, home > 0 && is_full && !has(0, self.lot().0 + blocks))
    }

    /// Blocks and inodes of a whole lot.
    fn lot(&self) -> (u64, u64) {
        self.lower.gates().map_or((0, 0), Gates::lot)
    }

    /// Whether a cube may take lots for a change of so many blocks: no change of the root cube that waits counts on them.
    fn may_grow(&self, state: &State, blocks: u64) -> bool {
        let lot = self.lot();
        let pending = state.pending(0);
        let (left, left_inodes) = pending.room.left(state.sizes);
        self.is_immediate()
            || pending.log.len() == 0 && pending.room.pages <= 0
            || left >= lot.0 + blocks && left_inodes >= lot.1 * (1 + blocks / lot.0.max(1))
    }

    fn make(
        &self,
        state: &mut Changing<'_>,
        op: &Op<'_>,
        concerned: &[InodeNr],
        needed_blocks: u64,
    ) -> Result<Applied, FsError> {
        let _changing = self.changing_below(op.kind.home());
        // Numbers that nobody took are free for this one, too.
        state.give_back(&self.lower);
        // Limits are judged as the disk has them.
        let (world, slots) = state.0.parts();
        world.accounts.end_leases(slots);
        let moved = will_move(state, &op.kind);
        if let OpKind::Change { change: Change { flags: Some(_), .. }, .. } = op.kind {
            state.epochs.flagged = state.epochs.flagged.wrapping_add(1);
        }
        self.lower.let_grow(self.may_grow(state, needed_blocks));
        let done = self.lower.apply(op);
        self.lower.let_grow(false);
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
        self.note_rooms(state, concerned);
        done
    }

    /// Notes what is free in the cubes of inodes that changed, and in the root cube, whose lots a cube may have taken.
    fn note_rooms(&self, state: &State, changed: &[InodeNr]) {
        let mut cubes = BTreeSet::from([0]);
        cubes.extend(changed.iter().map(|inode| self.cube_of(*inode)));
        for cube in cubes {
            state.pending(cube).room.note(self.lower.room_in(cube));
        }
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
        state.pending(state.cube_of(inode)).unsettled.remove(&inode);
    }

    /// Lets an inode go that has no name and that nobody uses.
    pub(super) fn let_go(&self, state: &mut Changing<'_>, inode: InodeNr) -> Result<(), FsError> {
        if self.is_immediate() {
            let _changing = self.changing_below(inode);
            state.drop_node(inode);
            let done = self.lower.release(inode);
            self.note_rooms(state, &[inode]);
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
        let mut pending = state.pending(self.cube_of(inode));
        pending.forget_content(inode, pages);
        if free && pending.absorb(state, inode) {
            drop(pending);
            state.drop_node(inode);
            return Ok(());
        }
        pending.drop_unseen(state, inode);
        let action = Action::Release { inode };
        let record = Record { uid: 0, gid: 0, time: now(), action };
        pending.take(state, &record);
        pending.log.push(record);
        pending.deletions.add(inode);
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
            state.pending(state.cube_of(inode)).unsettled.insert(inode);
            return Ok(());
        }
        let mut state = self.state_mut();
        state.judge()?;
        let _changing = self.changing_below(inode);
        let file = self.lower.attributes(inode)?;
        let change = Change { accessed: Some(time), ..Change::default() };
        let kind = OpKind::Change { inode, size_bytes: None, change };
        let done = self.lower.apply(&Op { uid: 0, gid: 0, time: file.ctime, kind });
        self.refresh(&mut state, inode);
        done.map(|_| ())
    }

    /// Lets the disk have some of what waits for a cube, if too much does.
    pub(super) fn relieve(&self, cube: u32) -> Result<(), FsError> {
        if self.state().parts().1.is_full(self.share) {
            drop(self.state_mut());
        }
        self.flush_until(cube, 1)
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
