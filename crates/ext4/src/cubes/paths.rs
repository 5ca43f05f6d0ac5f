//! The paths of cubes' directories. A sub-superblock has that of its making, and a directory above may have another name by now.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use floe_format::InodeNr;
use floe_format::ext::inode::InodeFlags;
use floe_format::native::cube::{MOST_PATH_BYTES, SubSuperblock};

use crate::files::Files;

/// A sound directory.
struct Above {
    parent: InodeNr,
    by_name: BTreeMap<Vec<u8>, InodeNr>,
    by_inode: BTreeMap<InodeNr, Vec<u8>>,
}

/// The ways to the directories of cubes. Each directory above is read once: many cubes lie in one.
pub struct Paths<'f, 'd> {
    files: &'f Files<'d>,
    known: RefCell<BTreeMap<InodeNr, Option<Rc<Above>>>>,
}

impl<'f, 'd> Paths<'f, 'd> {
    /// The ways in a file system.
    pub fn of(files: &'f Files<'d>) -> Self {
        Self { files, known: RefCell::default() }
    }

    /// The path that leads to the directory of a cube, where that in its sub-superblock leads to nothing or elsewhere; `None` if it leads
    /// there, or if a directory above is damaged, so that nobody can tell. Never longer than 2,048 bytes.
    pub fn moved(&self, sub: &SubSuperblock) -> Option<Vec<u8>> {
        let top = InodeNr(sub.top_inode);
        let mut at = Some(InodeNr::ROOT);
        for name in sub.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let Some(directory) = at else { break };
            at = self.read(directory)?.by_name.get(name).copied();
        }
        if at == Some(top) {
            return None;
        }
        self.path_of(top).filter(|path| path.len() <= MOST_PATH_BYTES)
    }

    /// The path of a directory by `..` and the names above it.
    fn path_of(&self, directory: InodeNr) -> Option<Vec<u8>> {
        let (mut at, mut names) = (directory, Vec::new());
        while at != InodeNr::ROOT {
            let parent = self.read(at)?.parent;
            let name = self.read(parent)?.by_inode.get(&at)?.clone();
            names.push([b"/", name.as_slice()].concat());
            if names.len() > MOST_PATH_BYTES {
                // A circle.
                return None;
            }
            at = parent;
        }
        names.reverse();
        Some(names.concat())
    }

    fn read(&self, directory: InodeNr) -> Option<Rc<Above>> {
        if let Some(known) = self.known.borrow().get(&directory) {
            return known.clone();
        }
        let read = self.read_anew(directory).map(Rc::new);
        self.known.borrow_mut().insert(directory, read.clone());
        read
    }

    fn read_anew(&self, directory: InodeNr) -> Option<Above> {
        let node = self.files.node(directory).ok()?;
        let is_sound = node.checksum_ok && node.in_use() && node.is_directory();
        // Names in encrypted directories are no parts of a path.
        if !is_sound || node.flags().contains(InodeFlags::ENCRYPT) {
            return None;
        }
        let listing = self.files.list(&node).ok().filter(|listing| listing.faults.is_empty())?;
        let parent = listing.parent?;
        let (mut by_name, mut by_inode) = (BTreeMap::new(), BTreeMap::new());
        for entry in listing.entries {
            by_inode.insert(entry.inode, entry.name.clone());
            by_name.insert(entry.name, entry.inode);
        }
        Some(Above { parent, by_name, by_inode })
    }
}
