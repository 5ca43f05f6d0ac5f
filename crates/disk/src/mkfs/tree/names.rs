//! The names of a tree: directory entries in an arena, indexed by parent and name.

use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU32;

use hashbrown::HashTable;

use super::TreeError;
use super::node::NodeId;

/// The id of a name in the arena. Non-zero, so that `Option` takes no extra space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkId(NonZeroU32);

impl LinkId {
    fn at(index: usize) -> Option<Self> {
        u32::try_from(index).ok().and_then(|index| NonZeroU32::new(index.checked_add(1)?)).map(Self)
    }

    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

/// A name, and its links in two lists: names of the same parent, and names of the same node.
#[derive(Debug)]
struct Link {
    parent: NodeId,
    node: NodeId,
    /// Start and length in the buffer that holds the bytes of all names.
    start: u32,
    next_sibling: Option<LinkId>,
    previous_sibling: Option<LinkId>,
    /// The next and the previous name given to the same node.
    later: Option<LinkId>,
    earlier: Option<LinkId>,
    len: u8,
}

/// All names of a tree.
#[derive(Default)]
pub(super) struct Names {
    links: Vec<Link>,
    bytes: Vec<u8>,
    table: HashTable<LinkId>,
    /// Seeded randomly, because names may come from a hostile archive. Nothing iterates over the
    /// table.
    hasher: RandomState,
    /// Head of the free list of removed names, linked by `next_sibling`.
    free: Option<LinkId>,
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Names").field("links", &self.links.len()).finish_non_exhaustive()
    }
}

fn hash(hasher: &RandomState, parent: NodeId, name: &[u8]) -> u64 {
    hasher.hash_one((parent, name))
}

impl Names {
    fn link(&self, id: LinkId) -> &Link {
        &self.links[id.index()]
    }

    fn link_mut(&mut self, id: LinkId) -> &mut Link {
        &mut self.links[id.index()]
    }

    /// The bytes of a name.
    pub(super) fn name(&self, id: LinkId) -> &[u8] {
        name_of(&self.links, &self.bytes, id)
    }

    /// The directory that contains a name.
    pub(super) fn parent(&self, id: LinkId) -> NodeId {
        self.link(id).parent
    }

    /// The node that a name names.
    pub(super) fn node(&self, id: LinkId) -> NodeId {
        self.link(id).node
    }

    /// The next name in the unordered list of the same directory.
    pub(super) fn next_sibling(&self, id: LinkId) -> Option<LinkId> {
        self.link(id).next_sibling
    }

    /// The previous name given to the same node.
    pub(super) fn earlier(&self, id: LinkId) -> Option<LinkId> {
        self.link(id).earlier
    }

    /// Finds a name in a directory.
    pub(super) fn find(&self, parent: NodeId, name: &[u8]) -> Option<LinkId> {
        let same = |id: &LinkId| self.parent(*id) == parent && self.name(*id) == name;
        self.table.find(hash(&self.hasher, parent, name), same).copied()
    }

    /// Adds a new name of 1 to 255 bytes, in no list yet.
    pub(super) fn add(
        &mut self,
        parent: NodeId,
        name: &[u8],
        node: NodeId,
    ) -> Result<LinkId, TreeError> {
        let start = u32::try_from(self.bytes.len()).map_err(|_| TreeError::TooMany)?;
        let len = u8::try_from(name.len()).map_err(|_| TreeError::BadName)?;
        let link = Link {
            parent,
            node,
            start,
            next_sibling: None,
            previous_sibling: None,
            later: None,
            earlier: None,
            len,
        };
        let id = match self.free {
            Some(free) => {
                self.free = self.link(free).next_sibling;
                *self.link_mut(free) = link;
                free
            }
            None => {
                let id = LinkId::at(self.links.len()).ok_or(TreeError::TooMany)?;
                self.links.push(link);
                id
            }
        };
        self.bytes.extend_from_slice(name);
        let (links, bytes, hasher) = (&self.links, &self.bytes, &self.hasher);
        let rehash =
            |id: &LinkId| hash(hasher, links[id.index()].parent, name_of(links, bytes, *id));
        self.table.insert_unique(hash(hasher, parent, name), id, rehash);
        Ok(id)
    }

    /// Removes a name that is in no list any more. Its bytes stay in the buffer.
    pub(super) fn forget(&mut self, id: LinkId) {
        let hash = hash(&self.hasher, self.parent(id), self.name(id));
        if let Ok(entry) = self.table.find_entry(hash, |other| *other == id) {
            entry.remove();
        }
        let free = self.free.replace(id);
        self.link_mut(id).next_sibling = free;
    }

    /// Inserts a name at the head of its directory's list.
    pub(super) fn join_siblings(&mut self, id: LinkId, first: Option<LinkId>) {
        self.link_mut(id).next_sibling = first;
        if let Some(first) = first {
            self.link_mut(first).previous_sibling = Some(id);
        }
    }

    /// Removes a name from the list of its directory; returns the next one.
    pub(super) fn leave_siblings(&mut self, id: LinkId) -> Option<LinkId> {
        let Link { next_sibling, previous_sibling, .. } = *self.link(id);
        if let Some(next) = next_sibling {
            self.link_mut(next).previous_sibling = previous_sibling;
        }
        if let Some(previous) = previous_sibling {
            self.link_mut(previous).next_sibling = next_sibling;
        }
        next_sibling
    }

    /// Appends a name to the list of its node.
    pub(super) fn join_links(&mut self, id: LinkId, last: Option<LinkId>) {
        self.link_mut(id).earlier = last;
        if let Some(last) = last {
            self.link_mut(last).later = Some(id);
        }
    }

    /// Removes a name from the list of its node; returns the previous one.
    pub(super) fn leave_links(&mut self, id: LinkId) -> Option<LinkId> {
        let Link { later, earlier, .. } = *self.link(id);
        if let Some(later) = later {
            self.link_mut(later).earlier = earlier;
        }
        if let Some(earlier) = earlier {
            self.link_mut(earlier).later = later;
        }
        earlier
    }
}

fn name_of<'a>(links: &[Link], bytes: &'a [u8], id: LinkId) -> &'a [u8] {
    let Link { start, len, .. } = links[id.index()];
    &bytes[start as usize..start as usize + usize::from(len)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_takes_little_memory() {
        assert!(size_of::<Link>() <= 32, "{}", size_of::<Link>());
    }
}
