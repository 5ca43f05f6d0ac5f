//! Names in memory follow a change that the disk made at once: a directory is read once, however many of its names change
//! that way.

use floe_disk::ops::RenameMode;
use floe_format::InodeNr;
use floe_sync::Arc;

use super::State;
use super::mnode::Names;
use super::stripes::{Found, Sort, Stripes};
use crate::directory::Entry;
use crate::op::{Applied, OpKind, Place};

/// The targets of the two names of a rename before it, as far as memory has them.
#[derive(Clone, Copy, Default)]
pub(super) struct Targets {
    from: Option<Found>,
    to: Option<Found>,
}

/// The targets of names that a change moves.
pub(super) fn will_move(state: &State, kind: &OpKind<'_>) -> Targets {
    let OpKind::Rename { from, to, .. } = kind else { return Targets::default() };
    let find = |place: &Place<'_>| state.get(place.directory)?.names.get()?.find(place.name);
    Targets { from: find(from), to: find(to) }
}

/// Lets the names in memory follow a change that the disk made.
pub(super) fn follow(state: &mut State, kind: &OpKind<'_>, applied: &Applied, before: Targets) {
    match kind {
        OpKind::Create { place, new } => {
            if let Some(inode) = applied.created {
                state.drop_node(inode);
                lead(state, place, Found { inode, kind: Some(new.kind.file_type()) });
            }
        }
        OpKind::CreateUnnamed { .. } => {
            if let Some(inode) = applied.created {
                state.drop_node(inode);
            }
        }
        OpKind::Link { inode, place } => match state.get(*inode).map(|node| node.kind) {
            Some(kind) => lead(state, place, Found { inode: *inode, kind: Some(kind) }),
            None => forget_names(state, place.directory),
        },
        OpKind::Unlink(place) | OpKind::RemoveDirectory(place) => lose(state, place),
        OpKind::Rename { from, to, mode } => rename(state, from, to, *mode, before),
        OpKind::Change { .. }
        | OpKind::Write { .. }
        | OpKind::Range { .. }
        | OpKind::SetAttribute { .. }
        | OpKind::RemoveAttribute { .. } => {}
    }
}

fn rename(state: &mut State, from: &Place<'_>, to: &Place<'_>, mode: RenameMode, before: Targets) {
    let Some(moved) = before.from else {
        // It may be a directory, which has another parent now. All was flushed.
        let all: Vec<u32> = state.nodes.iter().map(|(inode, _)| inode).collect();
        return all.into_iter().for_each(|inode| forget_names(state, InodeNr(inode)));
    };
    match (mode, before.to) {
        // Two names of one inode both stay.
        (_, Some(target)) if target.inode == moved.inode => return,
        (RenameMode::Exchange, Some(other)) => {
            lead(state, from, other);
            enter(state, other.inode, from.directory);
        }
        // The number of what is left in its place is not known.
        (RenameMode::Whiteout, _) => forget_names(state, from.directory),
        _ => lose(state, from),
    }
    lead(state, to, moved);
    enter(state, moved.inode, to.directory);
}

/// Lets a name lead to an inode.
fn lead(state: &mut State, place: &Place<'_>, found: Found) {
    change_names(state, place.directory, |names| match names {
        Names::Plain(names) => lead_plain(names, place, found),
        Names::Odd(names) => {
            let Found { inode, kind } = found;
            Arc::make_mut(names).lead(Entry { inode, kind, name: place.name.into() })
        }
    });
}

fn lead_plain(names: &mut Stripes, place: &Place<'_>, found: Found) -> bool {
    let crowded = {
        let key = names.key(place.name);
        let Some(spot) = names.spot(place.directory, key) else { return false };
        let mut inside = spot.lock();
        let Some(room) = spot.room(key) else { return false };
        spot.put(&mut inside, room, key, (found, Sort::Any, 0))
    };
    if crowded {
        // Nobody merges for a change that passes, and chains that grow on would be searched name by name.
        names.rebuild();
    }
    true
}

/// Lets a name lead nowhere.
fn lose(state: &mut State, place: &Place<'_>) {
    change_names(state, place.directory, |names| match names {
        Names::Plain(names) => names.take(names.key(place.name)).is_some(),
        Names::Odd(names) => Arc::make_mut(names).remove(place.name).is_some(),
    });
}

/// Lets `..` of a directory lead to another one; nothing for what is none.
fn enter(state: &mut State, inode: InodeNr, parent: InodeNr) {
    match state.nodes.get_mut(inode.0).and_then(|node| node.names.get_mut()) {
        Some(Names::Plain(names)) => names.set_parent(parent),
        Some(Names::Odd(names)) => Arc::make_mut(names).set_parent(parent),
        None => {}
    }
}

/// Changes the names of a directory, if memory has them; forgets them where `change` says that it cannot be done.
fn change_names(state: &mut State, directory: InodeNr, change: impl FnOnce(&mut Names) -> bool) {
    let Some(node) = state.nodes.get_mut(directory.0) else { return };
    let before = node.name_count();
    let done = node.names.get_mut().is_none_or(|names| names.is_whole() && change(names));
    let after = node.name_count();
    state.kept.names = (state.kept.names + after).saturating_sub(before);
    if !done {
        forget_names(state, directory);
    }
}

fn forget_names(state: &mut State, directory: InodeNr) {
    if let Some(node) = state.nodes.get_mut(directory.0) {
        let shown = node.shown();
        state.kept.names = state.kept.names.saturating_sub(node.name_count());
        // The stripes' share of the attributes stays.
        node.set(&shown);
        node.names.take();
    }
}

#[cfg(all(test, not(feature = "shuttle")))]
mod tests {
    use floe_disk::ops::NewInode;

    use super::super::mnode::Mnode;
    use super::super::{Limits, MemFs, NullDisk};
    use super::*;
    use crate::op::Op;
    use crate::store::Store;
    use crate::{FsError, Timestamp};

    fn apply(memory: &MemFs<NullDisk>, kind: OpKind<'_>) -> Result<Option<InodeNr>, FsError> {
        let op = Op { uid: 0, gid: 0, time: Timestamp::default(), kind };
        Ok(memory.apply(&op)?.created)
    }

    fn place(name: &str) -> Place<'_> {
        Place { directory: InodeNr::ROOT, name: name.as_bytes() }
    }

    /// Names of the longest chain of the root directory, and names in it.
    fn chains(memory: &MemFs<NullDisk>) -> (usize, usize) {
        let state = memory.state_mut();
        let names = state.get(InodeNr::ROOT).and_then(Mnode::stripes).expect("it is in memory");
        let mut all = 0;
        names.each_behind(0, &mut |_, _, _| {
            all += 1;
            true
        });
        (names.longest_chain(), all)
    }

    /// A look-up costs the same however many names came by changes that the disk made at once, or came and went.
    #[test]
    fn chains_stay_short_where_all_changes_pass() {
        let limits = Limits { immediate: true, ..Limits::default() };
        let memory = MemFs::new(NullDisk::new(100_000, 1 << 30), limits);
        for number in 0..20_000 {
            let (name, new) = (number.to_string(), NewInode::regular(0o644));
            apply(&memory, OpKind::Create { place: place(&name), new }).expect("room");
        }
        let (longest, all) = chains(&memory);
        assert_eq!(all, 20_000);
        assert!(longest <= 24, "{longest} names in a chain");
        for number in 0..20_000 {
            let (old, new) = (number.to_string(), format!("new {number}"));
            let (from, to) = (place(&old), place(&new));
            apply(&memory, OpKind::Rename { from, to, mode: RenameMode::Replace }).expect("room");
        }
        let (longest, all) = chains(&memory);
        assert_eq!(all, 20_000);
        assert!(longest <= 24, "{longest} names in a chain, after renames");
    }
}
