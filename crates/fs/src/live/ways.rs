//! The ways to the directories of cubes: kept in memory, and read again only after a directory above them got another name or parent.

use std::cell::RefCell;
use std::collections::BTreeMap;

use floe_blockdev::WriteBlocks;
use floe_disk::ops::Caller;
use floe_ext4::cubes::Paths;
use floe_ext4::files::Follow;
use floe_format::InodeNr;
use floe_format::ext::inode::FileType;
use floe_format::native::cube::SubSuperblock;
use floe_sync::Arc;

use super::Live;
use crate::Directory;
use crate::cubes::pins::Pins;
use crate::store::{Store, find_in};

impl<D: WriteBlocks> Live<'_, '_, D> {
    /// Keeps the ways to cubes, and reads each directory above them once: many cubes lie in one.
    pub(super) fn pin(&self, subs: &[SubSuperblock]) {
        let as_of = {
            // Renames are counted and made while others are kept away from the work: those that are counted can be read.
            let _work = self.work();
            self.gates.renames()
        };
        let read = RefCell::new(BTreeMap::new());
        let listed = |directory: InodeNr, look: &dyn Fn(&Directory) -> Option<InodeNr>| {
            let mut read = read.borrow_mut();
            let listing =
                read.entry(directory).or_insert_with(|| self.image.read_directory(directory).ok());
            look(listing.as_ref()?)
        };
        let find = |directory: InodeNr, name: &[u8]| {
            listed(directory, &|listing| self.directory_named(listing, directory, name))
        };
        // Not by a name with other case, which is an older one.
        let exact = |directory: InodeNr, name: &[u8]| {
            listed(directory, &|listing| {
                listing.find(name).filter(|found| *found.name == *name).map(|found| found.inode)
            })
        };
        let paths = Paths::of(self.image.files());
        let mut pins = Pins::as_of(as_of);
        for sub in subs {
            let top = InodeNr(sub.top_inode);
            pins.note_top(sub.cube, top);
            let mut names = sub.path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
            let stored = names.try_fold(InodeNr::ROOT, &exact);
            let moved = (stored != Some(top)).then(|| paths.moved(sub)).flatten();
            pins.add(moved.as_deref().unwrap_or(&sub.path), top, &find);
            pins.moved.extend(moved.map(|path| (sub.cube, path)));
        }
        self.gates.set_pins(pins);
    }

    /// The ways to cubes, as they are now.
    pub(super) fn ways(&self) -> Arc<Pins> {
        if self.gates.pins().as_of != self.gates.renames() {
            self.pin(&self.subs(None));
        }
        self.gates.pins()
    }

    /// The sound directory that a name in another one leads to.
    pub(super) fn directory_named(
        &self,
        listing: &Directory,
        directory: InodeNr,
        name: &[u8],
    ) -> Option<InodeNr> {
        let inode = find_in(listing, directory, name).ok()??;
        let found = self.image.attributes(inode).ok()?;
        (found.kind == FileType::Directory && found.links > 0).then_some(inode)
    }

    /// The directory of a cube changed below the kernel.
    pub(super) fn note_stale_top(&self, cube: u32) {
        let Ok(sub) = self.sub(cube) else { return };
        if let Some((parent, name)) = self.place_of(&sub) {
            self.gates.note_stale(parent, name);
        }
    }

    /// The directory and the name of a cube's directory, by its path.
    fn place_of(&self, sub: &SubSuperblock) -> Option<(InodeNr, Vec<u8>)> {
        let ways = self.ways();
        let path = ways.moved.get(&sub.cube).unwrap_or(&sub.path);
        let path = path.strip_suffix(b"/").unwrap_or(path);
        let at = path.iter().rposition(|byte| *byte == b'/')?;
        let parent = self.image.files().lookup(&path[..at.max(1)], Follow::Last).ok()?;
        Some((parent.number, path[at + 1..].to_vec()))
    }

    /// Brings the sub-superblocks up to date, before writing ends. They are hints.
    pub(super) fn renew_cubes(&self, now: crate::Timestamp) {
        let (ways, caller) = (self.ways(), Caller::system(now));
        let _ = self.run_once(|volume, tx| volume.renew_cubes(tx, &caller, &ways.moved));
    }
}
