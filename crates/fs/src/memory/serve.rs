//! The file system in memory as a store: reads, and who makes a change.

use std::collections::BTreeSet;

use floe_ext4::files::Attribute;
use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags};
use floe_sync::Arc;

use super::losses::{Handle, Losses};
use super::lower::{Above, Lower};
use super::mnode::Names;
use super::quotas::Quotas;
use super::stripes::Found;
use super::{MemFs, State};
use crate::cubes::{CubeCall, Gates};
use crate::directory::Entry;
use crate::op::{Applied, Op};
use crate::store::{SeekFor, Space, Store, find_in, list_dots, list_of};
use crate::{Attributes, Directory, FsError, Listed, Timestamp};

impl<L: Lower> Store for MemFs<L> {
    fn attributes(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        if let Some(node) = self.state().get(inode) {
            return Ok(node.shown());
        }
        let mut state = self.state_mut();
        state.evict(&self.limits);
        Ok(self.load(&mut state, inode)?.shown())
    }

    fn permissions(&self, inode: InodeNr) -> Result<Attributes, FsError> {
        if let Some(node) = self.state().get(inode) {
            return Ok(node.status.who());
        }
        self.attributes(inode)
    }

    fn directory(&self, inode: InodeNr) -> Result<Arc<Directory>, FsError> {
        self.with_names(inode, |names| match names {
            Names::Odd(names) => Ok(Arc::clone(names)),
            Names::Plain(stripes) => {
                let mut names = Directory::new(self.facts.hash, false, stripes.parent());
                stripes.each_behind(0, &mut |_, name, found| {
                    let Found { inode, kind } = found;
                    names.insert(Entry { inode, kind, name: name.into() })
                });
                Ok(Arc::new(names))
            }
        })
    }

    fn find(&self, directory: InodeNr, name: &[u8]) -> Result<Option<InodeNr>, FsError> {
        self.with_names(directory, |names| match names {
            Names::Plain(stripes) => Ok(stripes.find(stripes.key(name)).map(|found| found.inode)),
            Names::Odd(names) => find_in(names, directory, name),
        })
    }

    fn parent(&self, directory: InodeNr) -> Result<InodeNr, FsError> {
        self.with_names(directory, |names| match names {
            Names::Plain(stripes) => Ok(stripes.parent()),
            Names::Odd(names) => Ok(names.parent()),
        })
    }

    fn list(
        &self,
        directory: InodeNr,
        cookie: u64,
        take: &mut dyn FnMut(Listed<'_>) -> bool,
    ) -> Result<(), FsError> {
        self.with_names(directory, |names| match names {
            Names::Odd(names) => list_of(names, directory, cookie, take),
            Names::Plain(stripes) => {
                if list_dots(directory, stripes.parent(), cookie, take) {
                    stripes.each_behind(cookie, &mut |cookie, name, found| {
                        let Found { inode, kind } = found;
                        take(Listed { inode, kind, name, cookie })
                    });
                }
                Ok(())
            }
        })
    }

    fn takes_many(&self) -> bool {
        !self.is_immediate()
    }

    fn read(&self, inode: InodeNr, offset_bytes: u64, into: &mut [u8]) -> Result<usize, FsError> {
        let mut inside = self.state();
        let end = offset_bytes.saturating_add(into.len() as u64);
        let mut outside = None;
        if let Some(wanted) = inside.wanted(inode, offset_bytes..end) {
            drop(inside);
            outside = self.read_outside(&wanted);
            inside = self.state();
        }
        let (state, own) = inside.parts();
        state.late.judge(inode)?;
        let below = |at: u64, into: &mut [u8]| {
            let _reading = self.reading_below();
            self.lower.read(inode, at, into)
        };
        let Some(node) = state.get(inode) else { return below(offset_bytes, into) };
        if node.is_directory() {
            return Err(FsError::IsADirectory);
        }
        if !node.may_keep_content() {
            return match node.kind {
                // Something new has no content that the disk would know.
                FileType::Regular if offset_bytes >= node.status.length.size() => Ok(0),
                FileType::Regular => below(offset_bytes, into),
                _ => Err(FsError::Invalid),
            };
        }
        let length = &node.status.length;
        let below = |at: u64, into: &mut [u8]| {
            let copied = outside.as_ref().and_then(|outside| outside.copy(state, length, at, into));
            match copied.unwrap_or(0) {
                len if len == into.len() => Ok(len),
                len => Ok(len + below(at + len as u64, &mut into[len..])?),
            }
        };
        let (len, kept) = node.content.read(length, offset_bytes, into, &below)?;
        own.kept_pages += kept;
        let many = own.keeps_many(self.share);
        drop(inside);
        if many {
            self.state_mut().evict(&self.limits);
        }
        Ok(len)
    }

    fn seek(&self, inode: InodeNr, offset_bytes: u64, what: SeekFor) -> Result<u64, FsError> {
        let state = self.state();
        state.late.judge(inode)?;
        let below = |at: u64, what: SeekFor| {
            let _reading = self.reading_below();
            self.lower.seek(inode, at, what)
        };
        match state.get(inode) {
            Some(node) if node.may_keep_content() => {
                node.content.seek(&node.status.length, offset_bytes, what, &below)
            }
            Some(node) if node.kind != FileType::Regular => Err(FsError::Invalid),
            Some(node) if offset_bytes >= node.status.length.size() => Err(FsError::PastEnd),
            _ => below(offset_bytes, what),
        }
    }

    fn target(&self, inode: InodeNr) -> Result<Vec<u8>, FsError> {
        let state = self.state();
        state.late.judge(inode)?;
        let node = state.get(inode);
        if let Some(target) = node.and_then(|node| node.target.as_ref()) {
            return Ok(target.to_vec());
        }
        if node.is_some_and(|node| node.kind != FileType::Symlink) {
            return Err(FsError::Invalid);
        }
        let _reading = self.reading_below();
        self.lower.target(inode)
    }

    fn extended_attributes(&self, inode: InodeNr) -> Result<Vec<Attribute>, FsError> {
        let state = self.state();
        state.late.judge(inode)?;
        match state.get(inode) {
            Some(node) if node.extended.get().is_some() => {
                Ok(node.extended.get().map(|extended| extended.list()).unwrap_or_default())
            }
            // Something new that has any was asked for them, or passed.
            Some(node) if node.is_own => Ok(Vec::new()),
            _ => {
                let _reading = self.reading_below();
                self.lower.extended_attributes(inode)
            }
        }
    }

    fn extended_attribute_names(&self, inode: InodeNr) -> Result<Vec<Vec<u8>>, FsError> {
        {
            let state = self.state();
            state.late.judge(inode)?;
            let node = state.get(inode);
            if node.is_none_or(|node| !node.is_own && node.extended.get().is_none()) {
                let _reading = self.reading_below();
                return self.lower.extended_attribute_names(inode);
            }
        }
        Ok(self.extended_attributes(inode)?.into_iter().map(|attribute| attribute.name).collect())
    }

    fn extended_attribute(&self, inode: InodeNr, name: &[u8]) -> Result<Option<Vec<u8>>, FsError> {
        let state = self.state();
        state.late.judge(inode)?;
        match state.get(inode) {
            Some(node) if node.extended.get().is_some() => {
                let found = node.extended.get().and_then(|extended| extended.get(name));
                Ok(found.map(<[u8]>::to_vec))
            }
            Some(node) if node.is_own => Ok(None),
            _ => {
                let _reading = self.reading_below();
                self.lower.extended_attribute(inode, name)
            }
        }
    }

    fn space(&self) -> Space {
        let state = self.state_mut();
        let space = self.lower.space();
        state.queues.numbers().fold(space, |space, cube| without_waiting(&state, cube, space))
    }

    fn block_bytes(&self) -> u32 {
        self.lower.block_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.lower.is_read_only()
    }

    fn kept_time(&self, time: Timestamp) -> Timestamp {
        self.lower.kept_time(time)
    }

    fn apply(&self, op: &Op<'_>) -> Result<Applied, FsError> {
        let cube = self.cube_of(op.kind.home());
        if !self.is_immediate_in(cube)
            && let Some(applied) = self.defer(op)?
        {
            self.relieve(cube)?;
            return Ok(applied);
        }
        self.pass(op)
    }

    fn release(&self, inode: InodeNr) -> Result<(), FsError> {
        self.let_go(&mut self.state_mut(), inode)
    }

    fn release_all(&self, inodes: &[InodeNr]) -> Vec<(InodeNr, FsError)> {
        // Others wait once for all of them.
        let mut state = self.state_mut();
        let mut release = |inode: &InodeNr| Some((*inode, self.let_go(&mut state, *inode).err()?));
        inodes.iter().filter_map(&mut release).collect()
    }

    fn sync(&self) -> Result<(), FsError> {
        self.write_all()?;
        if self.state().late.is_told() {
            return Ok(());
        }
        self.state_mut().late.report_all()
    }

    fn why_ended(&self) -> Option<String> {
        self.lower.why_ended()
    }

    fn sync_for_good(&self) -> Result<(), FsError> {
        self.write_all()?;
        self.state().late.say_unknown()
    }

    fn sync_inode(&self, inode: InodeNr) -> Result<(), FsError> {
        let cube = self.cube_of(inode);
        if self.lower.gates().is_none_or(|gates| !gates.ignores_fsync(cube)) {
            return self.sync_together(cube, inode);
        }
        self.lower.sync_inode(inode)
    }

    fn open(&self) -> Handle {
        let mut state = self.state();
        let (state, own) = state.parts();
        own.opened += 1;
        state.late.handle(own.number, own.opened)
    }

    fn late_error(&self, inode: InodeNr, of: Option<Handle>, closes: bool) -> Result<(), FsError> {
        if self.is_immediate() || !self.state().late.concern(inode) {
            return Ok(());
        }
        self.state_mut().late.report(inode, of, closes)
    }

    fn note_access(&self, inode: InodeNr, time: Timestamp) -> Result<(), FsError> {
        self.accessed(inode, time)
    }

    fn tend(&self) -> Result<(), FsError> {
        self.flush_some()
    }

    fn gates(&self) -> Option<&Gates> {
        self.lower.gates()
    }

    fn is_named(&self, inode: InodeNr, directory: InodeNr, name: Option<&[u8]>) -> bool {
        self.lower.is_named(inode, directory, name)
    }

    fn note_damage(&self, error: &FsError) {
        self.lower.note_damage(error);
    }

    fn note_panic(&self, cube: u32, what: &str) {
        self.lower.note_panic(cube, what);
    }

    fn cube_call(&self, call: &CubeCall<'_>) -> Result<Vec<u8>, FsError> {
        if call.changed_directory().is_none() {
            return self.lower.cube_call(call);
        }
        self.flush_all()?;
        // Lots and inodes get other owners, so nothing waits meanwhile, and nothing is kept.
        let all: BTreeSet<u32> = self.queues.numbers().collect();
        let held = self.turns(&all);
        let mut state = self.state_mut();
        state.judge()?;
        for turn in &held {
            self.write_alone(&mut state, turn, Losses::default())?;
        }
        state.give_back(&self.lower);
        let answer = {
            let _changing = self.changing_below(InodeNr::ROOT);
            self.lower.let_grow(true);
            let answer = self.lower.cube_call(call);
            self.lower.let_grow(false);
            answer
        };
        state.forget_all();
        for cube in self.queues.numbers() {
            state.pending(cube).room.note(self.lower.room_in(cube));
        }
        answer
    }

    fn trim(&self, bytes: std::ops::Range<u64>, least_bytes: u64) -> Result<u64, FsError> {
        // Nothing that is used changes, so readers go on.
        let _reading = self.reading_below();
        self.lower.trim(bytes, least_bytes)
    }

    fn space_of(&self, inode: InodeNr) -> Option<Space> {
        let is_limited = |of: Attributes| of.flags.contains(InodeFlags::PROJINHERIT);
        if self.facts.quotas == Quotas::Enforced && self.attributes(inode).is_ok_and(is_limited) {
            // Changes count for a project when they reach the disk. If they cannot, the space is told anyway.
            let _ = self.flush_all();
        }
        let space = self.lower.space_of(inode)?;
        Some(without_waiting(&self.state_mut(), self.cube_of(inode), space))
    }

    fn tend_cubes(&self) -> Vec<u32> {
        let forget = |cube| {
            let mut state = self.state_mut();
            state.forget(cube);
            state.pending(cube).room.note(self.lower.room_in(cube));
        };
        let settle = |cube| {
            self.flush_all_of(cube, true)?;
            // A repair may use numbers that nobody took.
            self.state_mut().give_back(&self.lower);
            Ok(())
        };
        self.lower.tend_cubes_below(&Above { settle: &settle, forget: &forget })
    }
}

/// Space as programs see it: what waits for a cube is taken.
fn without_waiting(state: &State, cube: u32, space: Space) -> Space {
    let room = &state.pending(cube).room;
    let reserved = room.reserved_blocks(state.sizes);
    Space {
        free_blocks: space.free_blocks.saturating_sub(reserved),
        available_blocks: space.available_blocks.saturating_sub(reserved),
        free_inodes: space.free_inodes.saturating_sub(room.reserved_inodes()),
        ..space
    }
}
