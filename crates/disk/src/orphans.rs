//! The orphans of a volume, as its operations know them.

use std::collections::HashMap;
use std::hash::Hash;

use floe_format::{BlockNr, InodeNr};

/// Neighbours of an orphan in a list that goes through inodes; 0: there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Link {
    /// The cube whose list it is; 0: the list that begins in the superblock.
    pub(crate) list: u32,
    pub(crate) before: InodeNr,
    pub(crate) next: InodeNr,
}

/// All orphans, and where each is noted.
#[derive(Debug, Default)]
pub(crate) struct Orphans {
    /// Whatever loses its last name is deleted at once instead.
    pub(crate) avoids: bool,
    /// The first orphan of each list.
    heads: HashMap<u32, InodeNr>,
    links: HashMap<InodeNr, Link>,
    /// Those of the file and of cubes: block of `blocks`, and slot in it.
    slots: HashMap<InodeNr, (usize, usize)>,
    /// Blocks of the orphan file, and those of cubes.
    blocks: Vec<Place>,
    /// Entries that name an inode of another cube, with the cube whose block it is: no orphans.
    pub(crate) strays: Vec<(u32, InodeNr)>,
    /// Cubes whose list is damaged.
    pub(crate) damaged: Vec<u32>,
    /// Those that held values of attributes and nobody was told yet.
    pub(crate) unused_values: Vec<InodeNr>,
    /// The changes of the operation that runs, as it was before them: it costs no more where there are many orphans.
    undo: Vec<Undo>,
}

/// A block that lists orphans.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) block: BlockNr,
    /// The cube whose orphans it lists; 0: all that have no block of their own.
    pub(crate) cube: u32,
    /// Where its checksum starts; `None` without metadata_csum.
    pub(crate) seed: Option<u32>,
    /// Free slots, but for the one that begins a list.
    pub(crate) free: usize,
}

#[derive(Debug)]
enum Undo {
    Head(u32, Option<InodeNr>),
    Link(InodeNr, Option<Link>),
    Slot(InodeNr, Option<(usize, usize)>),
    /// A block was added.
    Block,
    All(Box<Orphans>),
}

impl Orphans {
    pub(crate) fn all(&self) -> Vec<InodeNr> {
        let mut all: Vec<InodeNr> = self.links.keys().chain(self.slots.keys()).copied().collect();
        all.sort_unstable();
        all
    }

    pub(crate) fn contains(&self, inode: InodeNr) -> bool {
        self.slots.contains_key(&inode) || self.links.contains_key(&inode)
    }

    /// Whether the orphan file lists none. Those in blocks of cubes are another matter: the flag of the file does not speak of them.
    pub(crate) fn file_is_empty(&self) -> bool {
        let is_in_file = |at: &usize| self.blocks.get(*at).is_some_and(|place| place.cube == 0);
        !self.slots.values().any(|(at, _)| is_in_file(at))
    }

    /// Those that blocks of a cube list.
    pub(crate) fn of_cube(&self, cube: u32) -> Vec<InodeNr> {
        let is_own = |at: usize| self.blocks.get(at).is_some_and(|place| place.cube == cube);
        let slots = self.slots.iter().filter(|(_, (at, _))| is_own(*at)).map(|(inode, _)| *inode);
        let links =
            self.links.iter().filter(|(_, link)| link.list == cube).map(|(inode, _)| *inode);
        let mut all: Vec<InodeNr> = slots.chain(links).collect();
        all.sort_unstable();
        all
    }

    /// An operation begins.
    pub(crate) fn begin(&mut self) {
        self.undo.clear();
    }

    /// It failed: all is as it was before.
    pub(crate) fn roll_back(&mut self) {
        while let Some(undo) = self.undo.pop() {
            match undo {
                Undo::Head(list, head) => drop(put(&mut self.heads, list, head)),
                Undo::Link(inode, link) => drop(put(&mut self.links, inode, link)),
                Undo::Slot(inode, slot) => drop(self.place_slot(inode, slot)),
                Undo::Block => drop(self.blocks.pop()),
                Undo::All(before) => *self = *before,
            }
        }
    }

    /// All orphans are others from now on. Those before know what else is to be undone.
    pub(crate) fn replace(&mut self, new: Self) {
        let before = std::mem::replace(self, new);
        self.undo = vec![Undo::All(Box::new(before))];
    }

    pub(crate) fn head(&self, list: u32) -> InodeNr {
        self.heads.get(&list).copied().unwrap_or_default()
    }

    pub(crate) fn set_head(&mut self, list: u32, head: InodeNr) {
        let before = put(&mut self.heads, list, (head.0 != 0).then_some(head));
        self.undo.push(Undo::Head(list, before));
    }

    pub(crate) fn link(&self, inode: InodeNr) -> Option<Link> {
        self.links.get(&inode).copied()
    }

    pub(crate) fn set_link(&mut self, inode: InodeNr, link: Option<Link>) {
        let before = put(&mut self.links, inode, link);
        self.undo.push(Undo::Link(inode, before));
    }

    /// Notes a list as it is on the disk.
    pub(crate) fn set_list(&mut self, list: u32, orphans: &[InodeNr]) {
        self.set_head(list, orphans.first().copied().unwrap_or_default());
        let at = |at: Option<usize>| at.and_then(|at| orphans.get(at)).copied().unwrap_or_default();
        for (number, inode) in orphans.iter().enumerate() {
            let (before, next) = (at(number.checked_sub(1)), at(Some(number + 1)));
            self.set_link(*inode, Some(Link { list, before, next }));
        }
    }

    pub(crate) fn slot(&self, inode: InodeNr) -> Option<(usize, usize)> {
        self.slots.get(&inode).copied()
    }

    pub(crate) fn set_slot(&mut self, inode: InodeNr, slot: Option<(usize, usize)>) {
        let before = self.place_slot(inode, slot);
        self.undo.push(Undo::Slot(inode, before));
    }

    fn place_slot(
        &mut self,
        inode: InodeNr,
        slot: Option<(usize, usize)>,
    ) -> Option<(usize, usize)> {
        let before = put(&mut self.slots, inode, slot);
        if let Some(place) = before.and_then(|(at, _)| self.blocks.get_mut(at)) {
            place.free += 1;
        }
        if let Some(place) = slot.and_then(|(at, _)| self.blocks.get_mut(at)) {
            place.free = place.free.saturating_sub(1);
        }
        before
    }

    pub(crate) fn place(&self, at: usize) -> Option<Place> {
        self.blocks.get(at).copied()
    }

    /// Adds a block without orphans; returns its number.
    pub(crate) fn add_block(&mut self, place: Place) -> usize {
        self.blocks.push(place);
        self.undo.push(Undo::Block);
        self.blocks.len() - 1
    }

    /// The blocks of a cube, or those of the orphan file (0).
    pub(crate) fn blocks_of(&self, cube: u32) -> impl Iterator<Item = (usize, &Place)> {
        self.blocks.iter().enumerate().filter(move |(_, place)| place.cube == cube)
    }

    /// The same orphans, for an operation that changes blocks.
    pub(crate) fn copy(&self) -> Self {
        Self {
            avoids: self.avoids,
            heads: self.heads.clone(),
            links: self.links.clone(),
            slots: self.slots.clone(),
            blocks: self.blocks.clone(),
            strays: self.strays.clone(),
            damaged: self.damaged.clone(),
            unused_values: self.unused_values.clone(),
            undo: Vec::new(),
        }
    }

    /// Forgets the block of a cube that is removed, which lists none any more.
    pub(crate) fn forget_cube(&mut self, cube: u32) {
        let mut new = self.copy();
        // Numbers of blocks stay.
        let own = new.blocks.iter_mut().filter(|place| place.cube == cube);
        own.for_each(|place| *place = Place { cube: u32::MAX, free: 0, ..*place });
        self.replace(new);
    }
}

/// Sets a value, or removes it; returns the one before.
fn put<K: Eq + Hash, V>(map: &mut HashMap<K, V>, key: K, value: Option<V>) -> Option<V> {
    match value {
        Some(value) => map.insert(key, value),
        None => map.remove(&key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever an operation changes is as before when it fails.
    #[test]
    fn an_operation_that_fails_leaves_orphans_as_they_were() {
        let mut orphans = Orphans::default();
        let place = Place { block: BlockNr(7), cube: 0, seed: None, free: 3 };
        orphans.add_block(place);
        orphans.set_slot(InodeNr(11), Some((0, 0)));
        orphans.set_list(1, &[12, 13, 14].map(InodeNr));
        orphans.begin();
        let known = |orphans: &Orphans| {
            let links = [12, 13, 14, 15].map(|inode| orphans.link(InodeNr(inode)));
            let free: Vec<usize> = orphans.blocks.iter().map(|place| place.free).collect();
            (orphans.all(), orphans.head(1), links, orphans.slot(InodeNr(11)), free)
        };
        let before = known(&orphans);
        orphans.set_slot(InodeNr(11), None);
        orphans.set_link(InodeNr(13), None);
        orphans.set_head(1, InodeNr(15));
        orphans.forget_cube(0);
        orphans.add_block(place);
        orphans.set_slot(InodeNr(16), Some((1, 2)));
        assert_ne!(known(&orphans), before);
        orphans.roll_back();
        assert_eq!(known(&orphans), before);
    }
}
