//! Sets of extended attributes, each stored once: most files of a tree share the same label.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

/// An extended attribute.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xattr {
    /// Its full name, such as `user.comment`, `security.capability` or `system.posix_acl_access`.
    pub name: Box<[u8]>,
    /// Its value, as `getxattr` returns it: ACLs in the form of the system call, not the on-disk
    /// form.
    pub value: Box<[u8]>,
}

impl Xattr {
    /// An attribute with this name and value.
    pub fn new(name: impl Into<Box<[u8]>>, value: impl Into<Box<[u8]>>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// The id of a set of extended attributes; the default is the empty set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct XattrsId(u32);

impl XattrsId {
    /// Whether the set is empty.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its index among the sets of the tree, for tables indexed by set; 0 is the empty set.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// All sets of a tree except the empty one. The set at index `n` has id `n + 1`.
#[derive(Debug, Default)]
pub(super) struct XattrTable {
    sets: Vec<Box<[Xattr]>>,
    table: HashTable<XattrsId>,
    /// Seeded randomly, as in [`Names`](super::names::Names).
    hasher: RandomState,
}

impl XattrTable {
    /// The id of a set, which is stored if it is new. Sorts it; if a name occurs several times, the
    /// last one stays.
    pub(super) fn keep(&mut self, mut xattrs: Vec<Xattr>) -> XattrsId {
        // A stable sort keeps the last of equal names last; that one is kept.
        xattrs.sort_by(|a, b| b.name.cmp(&a.name));
        xattrs.reverse();
        xattrs.dedup_by(|later, kept| later.name == kept.name);
        if xattrs.is_empty() {
            return XattrsId::default();
        }
        let hash = self.hasher.hash_one(&xattrs[..]);
        let same = |id: &XattrsId| *set_of(&self.sets, *id) == xattrs[..];
        if let Some(known) = self.table.find(hash, same) {
            return *known;
        }
        self.sets.push(xattrs.into());
        // Nodes are counted with 32 bits, and no node needs two sets at once; a source that
        // discards four billion sets has run out of memory before.
        let id = XattrsId(u32::try_from(self.sets.len()).unwrap_or(u32::MAX));
        let (sets, hasher) = (&self.sets, &self.hasher);
        self.table.insert_unique(hash, id, |id| hasher.hash_one(set_of(sets, *id)));
        id
    }

    /// A set, sorted by name.
    pub(super) fn get(&self, id: XattrsId) -> &[Xattr] {
        set_of(&self.sets, id)
    }

    /// The set at an index.
    pub(super) fn at(&self, index: usize) -> &[Xattr] {
        index.checked_sub(1).and_then(|at| self.sets.get(at)).map_or(&[], |set| set)
    }

    /// Number of sets, including the empty one.
    pub(super) fn len(&self) -> usize {
        self.sets.len() + 1
    }
}

fn set_of(sets: &[Box<[Xattr]>], id: XattrsId) -> &[Xattr] {
    id.index().checked_sub(1).and_then(|at| sets.get(at)).map_or(&[], |set| set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sets_are_kept_once() {
        let xattr = |name: &str, value: &str| Xattr::new(name.as_bytes(), value.as_bytes());
        let mut table = XattrTable::default();
        assert!(table.keep(Vec::new()).is_empty());
        let one = table.keep(vec![xattr("user.b", "2"), xattr("user.a", "1")]);
        let same =
            table.keep(vec![xattr("user.a", "0"), xattr("user.b", "2"), xattr("user.a", "1")]);
        assert_eq!((one, table.len()), (same, 2));
        assert_eq!(table.get(one), [xattr("user.a", "1"), xattr("user.b", "2")]);
        assert_ne!(table.keep(vec![xattr("user.a", "1")]), one);
        assert!(table.get(XattrsId::default()).is_empty());
    }
}
