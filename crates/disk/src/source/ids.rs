//! Changes owners and times of a whole tree.

use std::collections::HashMap;
use std::str::FromStr;

use crate::mkfs::RootOptions;
use crate::mkfs::tree::{NOBODY, NodeId, Timestamp, Tree, XattrsId};

use super::lists::{self, Fault, Id};

/// A mapping of ranges of user or group ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdMap {
    /// Each range: first id, first id after mapping, length.
    ranges: Vec<(u32, u32, u32)>,
}

/// An invalid mapping.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not FROM:TO:COUNT, with several of them separated by commas")]
pub struct IdMapError(String);

impl FromStr for IdMap {
    type Err = IdMapError;

    /// Parses `FROM:TO:COUNT`, several separated by commas.
    fn from_str(text: &str) -> Result<Self, IdMapError> {
        let fault = || IdMapError(text.to_owned());
        let mut ranges: Vec<(u32, u32, u32)> = Vec::new();
        for range in text.split(',') {
            let numbers: Result<Vec<u32>, _> = range.split(':').map(str::parse).collect();
            let [from, to, count] = numbers.map_err(|_| fault())?[..] else { return Err(fault()) };
            let fits = count > 0 && from.checked_add(count - 1).is_some();
            let overlaps = ranges
                .iter()
                .any(|&(other, _, len)| from <= other + (len - 1) && other <= from + (count - 1));
            if !fits || to.checked_add(count - 1).is_none() || overlaps {
                return Err(fault());
            }
            ranges.push((from, to, count));
        }
        Ok(Self { ranges })
    }
}

impl IdMap {
    fn apply(&self, id: u32) -> Option<u32> {
        if self.ranges.is_empty() {
            return Some(id);
        }
        self.ranges.iter().find_map(|&(from, to, count)| {
            let offset = id.checked_sub(from).filter(|offset| *offset < count)?;
            Some(to + offset)
        })
    }
}

/// The changes for every file of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// User and group for all files. As chown, it leaves access lists alone.
    pub owner: Option<(u32, u32)>,
    /// The mapping of users: owners, those in access lists, and roots of capabilities. A user outside all ranges is an error.
    pub users: IdMap,
    /// The mapping of groups.
    pub groups: IdMap,
    /// Later times become this one, as `SOURCE_DATE_EPOCH` demands.
    pub latest: Option<Timestamp>,
    /// Attributes of the root directory, after all other changes.
    pub root: RootOptions,
}

/// An owner that a file cannot get.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnerError {
    /// No range of the map has it.
    #[error("{path}: {kind} {id}{place} is in no range of the map")]
    Unmapped {
        /// Path of the file, escaped for printing.
        path: String,
        /// "user" or "group".
        kind: &'static str,
        /// The id.
        id: u32,
        /// The attribute that has it, in words with a blank before them; empty for an owner.
        place: &'static str,
    },
    /// An access list would have two entries for one user or group.
    #[error("{path}: two {kind}s of its access list become {kind} {id}")]
    Merged {
        /// Path of the file, escaped for printing.
        path: String,
        /// "user" or "group".
        kind: &'static str,
        /// The id after mapping.
        id: u32,
    },
    /// It is [`NOBODY`].
    #[error(
        "{path}: {kind} {NOBODY} is no owner: Linux could not change the file (--owner and the maps give others)"
    )]
    Nobody {
        /// Path of the file, escaped for printing.
        path: String,
        /// "user" or "group".
        kind: &'static str,
    },
}

impl Changes {
    /// Applies the changes to every file.
    ///
    /// # Errors
    /// If a user or group is outside all ranges, or [`NOBODY`], or two of an access list become one.
    pub fn apply(&self, tree: &mut Tree) -> Result<(), OwnerError> {
        let mut sets = HashMap::new();
        for node in tree.ordered() {
            let mut attributes = tree.node(node).attributes();
            if let Some((uid, gid)) = self.owner {
                (attributes.uid, attributes.gid) = (uid, gid);
            }
            let path = || super::shown(&tree.path(node));
            let mapped = |map: &IdMap, kind, id| match map.apply(id) {
                Some(NOBODY) => Err(OwnerError::Nobody { path: path(), kind }),
                Some(mapped) => Ok(mapped),
                None => Err(OwnerError::Unmapped { path: path(), kind, id, place: "" }),
            };
            attributes.uid = mapped(&self.users, "user", attributes.uid)?;
            attributes.gid = mapped(&self.groups, "group", attributes.gid)?;
            attributes.xattrs = self.mapped_set(tree, node, attributes.xattrs, &mut sets)?;
            if let Some(latest) = self.latest {
                attributes.mtime = attributes.mtime.min(latest);
                attributes.atime = attributes.atime.min(latest);
                attributes.ctime = attributes.ctime.min(latest);
            }
            tree.set_attributes(node, attributes);
        }
        let RootOptions { owner, mode } = self.root;
        let mut attributes = tree.node(tree.root()).attributes();
        (attributes.uid, attributes.gid) = owner.unwrap_or((attributes.uid, attributes.gid));
        if let Some(mode) = mode {
            attributes.mode = mode;
            attributes.xattrs = lists::list_after_chmod(tree, &attributes);
        }
        tree.set_attributes(tree.root(), attributes);
        Ok(())
    }

    /// The attributes of a node with mapped numbers. `sets` remembers those of others, because most sets are shared.
    fn mapped_set(
        &self,
        tree: &mut Tree,
        node: NodeId,
        set: XattrsId,
        sets: &mut HashMap<XattrsId, XattrsId>,
    ) -> Result<XattrsId, OwnerError> {
        if let Some(known) = sets.get(&set) {
            return Ok(*known);
        }
        let map = |id| match id {
            Id::User(id) => self.users.apply(id),
            Id::Group(id) => self.groups.apply(id),
        };
        let named = |id| match id {
            Id::User(id) => ("user", id),
            Id::Group(id) => ("group", id),
        };
        let is_mapped = [&self.users, &self.groups].iter().any(|map| !map.ranges.is_empty());
        let mapped = match is_mapped.then(|| lists::with_ids(tree.xattrs(set), &map)) {
            None => set,
            Some(Ok(xattrs)) => tree.keep_xattrs(xattrs),
            Some(Err(fault)) => {
                let path = super::shown(&tree.path(node));
                return Err(match fault {
                    Fault::Unmapped(id, place) => {
                        let (kind, id) = named(id);
                        OwnerError::Unmapped { path, kind, id, place }
                    }
                    Fault::Merged(id) => {
                        let (kind, id) = named(id);
                        OwnerError::Merged { path, kind, id }
                    }
                });
            }
        };
        sets.insert(set, mapped);
        Ok(mapped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mkfs::tree::{Attributes, Body};

    #[test]
    fn maps_are_ranges() {
        let map: IdMap = "0:100000:1000,1000:0:1".parse().unwrap();
        assert_eq!(map.apply(0), Some(100_000));
        assert_eq!(map.apply(999), Some(100_999));
        assert_eq!(map.apply(1000), Some(0));
        assert_eq!(map.apply(1001), None);
        assert_eq!(IdMap::default().apply(7), Some(7));
        for text in
            ["", "1:2", "0:0:0", "4294967295:0:2", "0:4294967295:2", "0:5:10,9:0:1", "a:b:c"]
        {
            assert!(text.parse::<IdMap>().is_err(), "{text}");
        }
    }

    #[test]
    fn owners_and_times_change() {
        let time = |secs| Timestamp { seconds: secs, nanoseconds: 5 };
        let mut tree = Tree::new(Attributes::root());
        let old = Attributes { uid: 7, gid: 8, ..Attributes::file(0o600) }.at(time(100));
        let file = tree.insert(tree.root(), b"file", old, Body::empty_file()).unwrap();
        let changes = Changes {
            latest: Some(time(50)),
            users: "0:10:8".parse().unwrap(),
            ..Changes::default()
        };
        changes.apply(&mut tree).unwrap();
        let attributes = tree.node(file).attributes();
        assert_eq!((attributes.uid, attributes.gid, attributes.mtime), (17, 8, time(50)));
        let error = changes.apply(&mut tree).unwrap_err();
        assert_eq!(error.to_string(), "/: user 10 is in no range of the map");
        let nobody = Changes { owner: Some((1, NOBODY)), ..Changes::default() };
        let error = nobody.apply(&mut tree).unwrap_err().to_string();
        assert!(error.starts_with("/: group 4294967295 is no owner"), "{error}");
        let owner = Changes { owner: Some((1, 2)), ..Changes::default() };
        owner.apply(&mut tree).unwrap();
        assert_eq!(tree.node(tree.root()).attributes().gid, 2);
        let root = RootOptions { owner: Some((5, 6)), mode: None };
        Changes { root, ..owner.clone() }.apply(&mut tree).unwrap();
        let root = RootOptions { owner: None, mode: Some(0o1777) };
        let attributes = tree.node(tree.root()).attributes();
        assert_eq!((attributes.uid, attributes.gid, attributes.mode), (5, 6, 0o755));
        Changes { root, ..Changes::default() }.apply(&mut tree).unwrap();
        let attributes = tree.node(tree.root()).attributes();
        assert_eq!((attributes.uid, attributes.gid, attributes.mode), (5, 6, 0o1777));
        assert_eq!(tree.node(file).attributes().uid, 1);
    }
}
