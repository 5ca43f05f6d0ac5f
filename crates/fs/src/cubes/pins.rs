//! Directories above cubes (directory indirection, IceFS section 4.1.3): the path of each cube is kept in memory, so that the cube
//! is found although every directory above it is destroyed. Consulted only where the directories themselves do not answer.

use std::collections::BTreeMap;

use floe_format::InodeNr;
use floe_format::ext::inode::{FileType, InodeFlags, Timestamp};
use floe_sync::atomic::Ordering;
use floe_sync::{Arc, PoisonError};

use super::Gates;
use crate::{Attributes, Listed};

/// The first number of directories that only stand for destroyed ones; no file system has so many inodes.
const FIRST_STAND_IN: u32 = 0xffff_0000;

/// The names that lead to cubes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pins {
    /// The inode of each name in a directory on the way to a cube.
    names: BTreeMap<(InodeNr, Vec<u8>), InodeNr>,
    /// The parent of each such directory.
    parents: BTreeMap<InodeNr, InodeNr>,
    stand_ins: u32,
    /// The directory of each cube that is known.
    tops: BTreeMap<u32, InodeNr>,
    /// The path of each cube to which the one in its sub-superblock does not lead.
    pub(crate) moved: BTreeMap<u32, Vec<u8>>,
    /// How many renames of directories above cubes were made before all of this was read.
    pub(crate) as_of: u64,
}

impl Pins {
    /// No names yet; so many renames were noted before.
    pub(crate) fn as_of(renames: u64) -> Self {
        Self { as_of: renames, ..Self::default() }
    }

    /// Pins the path of a cube whose directory is `top`. `find` finds a sound directory by its name in another one. Where a sound
    /// path leads to something else, the cube was moved with a directory above it, and is found by its new path alone.
    pub(crate) fn add(
        &mut self,
        path: &[u8],
        top: InodeNr,
        find: &dyn Fn(InodeNr, &[u8]) -> Option<InodeNr>,
    ) {
        let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).peekable();
        let mut at = InodeNr::ROOT;
        self.parents.insert(at, at);
        while let Some(name) = names.next() {
            let known = self.names.get(&(at, name.to_vec())).copied();
            let found = known.or_else(|| find(at, name));
            if names.peek().is_none() {
                if found.is_none_or(|found| found == top) {
                    self.names.insert((at, name.to_vec()), top);
                }
                return;
            }
            let next = found.unwrap_or_else(|| {
                self.stand_ins += 1;
                InodeNr(FIRST_STAND_IN + self.stand_ins)
            });
            self.names.insert((at, name.to_vec()), next);
            self.parents.insert(next, at);
            at = next;
        }
    }

    /// Notes the directory of a cube.
    pub(crate) fn note_top(&mut self, cube: u32, top: InodeNr) {
        self.tops.insert(cube, top);
    }

    /// Whether an inode is the directory of a cube. In a cube whose directory is unknown, each could be.
    pub(crate) fn may_be_top(&self, cube: u32, inode: InodeNr) -> bool {
        cube > 0 && self.tops.get(&cube).is_none_or(|top| *top == inode)
    }

    /// The inode that a name on the way to a cube leads to.
    pub(crate) fn find(&self, directory: InodeNr, name: &[u8]) -> Option<InodeNr> {
        match name {
            b"." => self.is_above(directory).then_some(directory),
            b".." => self.parents.get(&directory).copied(),
            _ => self.names.get(&(directory, name.to_vec())).copied(),
        }
    }

    /// Whether another name of a directory, or another parent, changes the path of a cube.
    pub(crate) fn leads_to_cubes(&self, directory: InodeNr) -> bool {
        self.is_above(directory) || self.tops.values().any(|top| *top == directory)
    }

    /// Whether a directory is on the way to a cube.
    pub(crate) fn is_above(&self, directory: InodeNr) -> bool {
        self.parents.contains_key(&directory)
    }

    /// Hands the names in such a directory to `take`.
    pub(crate) fn list(
        &self,
        directory: InodeNr,
        cookie: u64,
        take: &mut dyn FnMut(Listed<'_>) -> bool,
    ) {
        let parent = self.parents.get(&directory).copied().unwrap_or(InodeNr::ROOT);
        let kind = Some(FileType::Directory);
        let own = self.names.range((directory, Vec::new())..);
        let own = own.take_while(|((at, _), _)| *at == directory);
        let own = own.map(|((_, name), inode)| (&name[..], *inode));
        let all = [(&b"."[..], directory), (b"..", parent)].into_iter().chain(own);
        for (cookie, (name, inode)) in (1..).zip(all).filter(|(at, _)| *at > cookie) {
            if !take(Listed { inode, kind, name, cookie }) {
                return;
            }
        }
    }
}

impl Gates {
    /// Sets the directories above cubes, unless newer ones are known.
    pub(crate) fn set_pins(&self, new: Pins) {
        let mut pins = self.pins.write().unwrap_or_else(PoisonError::into_inner);
        if pins.as_of <= new.as_of {
            *pins = Arc::new(new);
        }
    }

    /// Notes that directories get other names or parents.
    pub(crate) fn note_renamed(&self, mut directories: impl Iterator<Item = InodeNr>) {
        if self.has_cubes() && directories.any(|directory| self.pins().leads_to_cubes(directory)) {
            self.note_renames();
        }
    }

    /// Notes that any directory may have another name or parent.
    pub(crate) fn note_renames(&self) {
        self.renames.fetch_add(1, Ordering::AcqRel);
    }

    /// How many renames were noted. Those of changes that are under way may be missing.
    pub(crate) fn renames(&self) -> u64 {
        self.renames.load(Ordering::Acquire)
    }

    /// Keeps the path of a cube. `find` as for [`Pins::add`].
    pub(crate) fn pin(
        &self,
        cube: u32,
        path: &[u8],
        top: InodeNr,
        find: &dyn Fn(InodeNr, &[u8]) -> Option<InodeNr>,
    ) {
        let mut pins = self.pins.write().unwrap_or_else(PoisonError::into_inner);
        let pins = Arc::make_mut(&mut pins);
        pins.note_top(cube, top);
        pins.add(path, top, find);
    }

    /// The directories above cubes.
    pub(crate) fn pins(&self) -> Arc<Pins> {
        Arc::clone(&self.pins.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Whether a number is that of a directory that stands for a destroyed one.
pub(crate) const fn is_stand_in(inode: InodeNr) -> bool {
    inode.0 >= FIRST_STAND_IN
}

/// The attributes of a directory that is destroyed: root's, only to be read.
pub(crate) const fn stand_in(inode: InodeNr) -> Attributes {
    let time = Timestamp { seconds: 0, nanoseconds: 0 };
    Attributes {
        inode,
        generation: 0,
        kind: FileType::Directory,
        permissions: 0o555,
        links: 1,
        uid: 0,
        gid: 0,
        size_bytes: 4096,
        sectors: 8,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: None,
        device: None,
        flags: InodeFlags::empty(),
        project: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_leads_to_its_cube_over_destroyed_directories() {
        let mut pins = Pins::default();
        let find = |at: InodeNr, name: &[u8]| match (at.0, name) {
            (2, b"home") => Some(InodeNr(12)),
            (12, b"moved") => Some(InodeNr(99)),
            _ => None,
        };
        pins.add(b"/home/bob/cube", InodeNr(500), &find);
        pins.add(b"/home/bob/other", InodeNr(600), &find);
        pins.add(b"/home/moved", InodeNr(700), &find);
        let bob = pins.find(InodeNr(12), b"bob").unwrap();
        assert!(is_stand_in(bob) && pins.is_above(bob) && pins.is_above(InodeNr::ROOT));
        assert_eq!(pins.find(InodeNr::ROOT, b"home"), Some(InodeNr(12)));
        assert_eq!(pins.find(bob, b"cube"), Some(InodeNr(500)));
        assert_eq!(pins.find(bob, b".."), Some(InodeNr(12)));
        assert_eq!(pins.find(InodeNr(12), b"moved"), None);
        let mut names = Vec::new();
        pins.list(bob, 1, &mut |listed| {
            names.push(listed.name.to_vec());
            true
        });
        assert_eq!(names, [&b".."[..], b"cube", b"other"]);
    }
}
