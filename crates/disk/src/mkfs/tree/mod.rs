//! The tree of files with which a new file system is filled.
//!
//! A *source* (a directory, a tar archive, an OCI image) makes a [`Tree`] and [`Contents`], which
//! reads the bytes of files. The tree holds names, attributes and sizes, but never file data. A
//! builder then plans the whole layout from the tree, and reads data while it writes, with several
//! threads.
//!
//! # How a source makes a tree
//!
//! ```
//! use floe_disk::mkfs::tree::{Attributes, Body, ContentId, Tree};
//!
//! let mut tree = Tree::new(Attributes::root());
//! let root = tree.root();
//! let etc = tree.insert(root, b"etc", Attributes::directory(0o755), Body::Directory)?;
//! let body = Body::file(12, ContentId(7), 0);
//! let motd = tree.insert(etc, b"motd", Attributes::file(0o644), body)?;
//! // A hard link is a second name of the same node.
//! tree.link_at(root, b"welcome", motd)?;
//! assert_eq!(tree.look_up_path(b"/etc/motd"), Some(motd));
//! assert_eq!(tree.node(motd).link_count(), 2);
//! # Ok::<(), floe_disk::mkfs::tree::TreeError>(())
//! ```
//!
//! The order in which a source inserts files does not matter: the builder numbers inodes and places
//! data in the order of [`Tree::ordered`], which depends on names alone.
//!
//! Every operation except listing takes constant time, so a directory of any number of names is
//! built and removed in linear time. Memory: about 110 bytes per node, 36 plus its length per name,
//! and about 5 per name in the hash table.

mod contents;
mod names;
mod node;
mod walk;
mod xattrs;

pub use contents::{ContentId, Contents, NoContents};
pub use floe_format::ext::inode::Timestamp;
pub use node::{Attributes, Body, Data, Extent, NOBODY, Node, NodeId};
pub use walk::{Child, Name};
pub use xattrs::{Xattr, XattrsId};

use names::{LinkId, Names};
use xattrs::XattrTable;

/// Longest name of a directory entry in bytes.
pub const MOST_NAME_BYTES: usize = 255;

/// Why a tree refuses a change. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The directory already has this name, which names the given node.
    #[error("the name exists")]
    Exists(NodeId),
    /// The parent is not a directory.
    #[error("not a directory")]
    NotADirectory,
    /// No such name.
    #[error("no such name")]
    NotFound,
    /// A directory with names in it cannot be unlinked; see [`Tree::remove`].
    #[error("the directory is not empty")]
    NotEmpty,
    /// A directory has exactly one name.
    #[error("a directory cannot have a second name")]
    DirectoryLink,
    /// Empty, `.`, `..`, longer than [`MOST_NAME_BYTES`], or with a slash or a NUL in it.
    #[error("the name cannot be one of a directory entry")]
    BadName,
    /// Nodes and names are counted with 32 bits.
    #[error("too many files for one tree")]
    TooMany,
}

/// A tree of files. See the [module](self).
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    names: Names,
    xattrs: XattrTable,
    /// Nodes with a name, and the root.
    live: u32,
}

impl Tree {
    /// A tree that consists of its root directory.
    pub fn new(root: Attributes) -> Self {
        let root = Node::new(root, Body::Directory);
        Self { nodes: vec![root], names: Names::default(), xattrs: XattrTable::default(), live: 1 }
    }

    /// The root directory.
    pub fn root(&self) -> NodeId {
        NodeId(0)
    }

    /// Number of nodes: the root and all nodes with a name.
    pub fn len(&self) -> usize {
        self.live as usize
    }

    /// Whether there is only the root.
    pub fn is_empty(&self) -> bool {
        self.live == 1
    }

    /// One more than the largest index of a [`NodeId`], for tables indexed by node. Nodes that lost
    /// their last name keep their index.
    pub fn bound(&self) -> usize {
        self.nodes.len()
    }

    /// A node. An id is valid only for the tree that returned it.
    ///
    /// # Panics
    /// If the id comes from another, larger tree.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    /// Replaces owner, permissions, times and attributes of a node. The type bits of the mode stay.
    pub fn set_attributes(&mut self, id: NodeId, attributes: Attributes) {
        self.nodes[id.0 as usize].set_attributes(attributes);
    }

    /// Stores a set of extended attributes, for [`Attributes::xattrs`]. Equal sets are stored once,
    /// whatever the order of their attributes.
    pub fn keep_xattrs(&mut self, xattrs: Vec<Xattr>) -> XattrsId {
        self.xattrs.keep(xattrs)
    }

    /// A set of extended attributes, sorted by name, with one attribute per name (the last one
    /// given).
    pub fn xattrs(&self, id: XattrsId) -> &[Xattr] {
        self.xattrs.get(id)
    }

    /// Adds a node with its first name.
    ///
    /// # Errors
    /// If the name is taken or invalid, the parent is not a directory, or there are too many nodes.
    pub fn insert(
        &mut self,
        parent: NodeId,
        name: &[u8],
        attributes: Attributes,
        body: Body,
    ) -> Result<NodeId, TreeError> {
        let id = NodeId(u32::try_from(self.nodes.len()).map_err(|_| TreeError::TooMany)?);
        self.check_free(parent, name)?;
        let link = self.names.add(parent, name, id)?;
        self.nodes.push(Node::new(attributes, body));
        self.attach(parent, id, link);
        self.live += 1;
        Ok(id)
    }

    /// Adds another name of a node (a hard link).
    ///
    /// # Errors
    /// Those of [`Tree::insert`], and [`TreeError::DirectoryLink`].
    pub fn link_at(&mut self, parent: NodeId, name: &[u8], node: NodeId) -> Result<(), TreeError> {
        if self.node(node).is_directory() {
            return Err(TreeError::DirectoryLink);
        }
        self.check_free(parent, name)?;
        let link = self.names.add(parent, name, node)?;
        self.attach(parent, node, link);
        Ok(())
    }

    /// Removes a name. A node that has lost its last name is removed, and its id becomes invalid.
    ///
    /// # Errors
    /// [`TreeError::NotFound`], or [`TreeError::NotEmpty`] for a directory that contains names.
    pub fn unlink(&mut self, parent: NodeId, name: &[u8]) -> Result<NodeId, TreeError> {
        let link = self.names.find(parent, name).ok_or(TreeError::NotFound)?;
        let node = self.names.node(link);
        if self.node(node).first_child.is_some() {
            return Err(TreeError::NotEmpty);
        }
        self.detach(link);
        Ok(node)
    }

    /// Removes a name, with everything below it if it names a directory.
    ///
    /// # Errors
    /// [`TreeError::NotFound`].
    pub fn remove(&mut self, parent: NodeId, name: &[u8]) -> Result<(), TreeError> {
        let link = self.names.find(parent, name).ok_or(TreeError::NotFound)?;
        self.clear(self.names.node(link));
        self.detach(link);
        Ok(())
    }

    /// Removes all names in a directory, with everything below (an opaque directory of OCI).
    pub fn clear(&mut self, directory: NodeId) {
        // No recursion, because trees may be deeper than the stack allows.
        let mut at = directory;
        loop {
            match self.node(at).first_child {
                Some(link) if self.node(self.names.node(link)).first_child.is_some() => {
                    at = self.names.node(link);
                }
                Some(link) => self.detach(link),
                None if at == directory => return,
                None => at = self.parent(at).unwrap_or(directory),
            }
        }
    }

    /// The node with this name in a directory.
    pub fn look_up(&self, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        self.names.find(parent, name).map(|link| self.names.node(link))
    }

    /// The node at a path from the root. Empty components and `.` are skipped. `..` and symbolic
    /// links are not followed: `None`.
    pub fn look_up_path(&self, path: &[u8]) -> Option<NodeId> {
        path.split(|&byte| byte == b'/')
            .filter(|part| !part.is_empty() && part != b".")
            .try_fold(self.root(), |at, part| self.look_up(at, part))
    }

    /// Checks that a name can be added to a directory.
    fn check_free(&self, parent: NodeId, name: &[u8]) -> Result<(), TreeError> {
        if !self.node(parent).is_directory() {
            return Err(TreeError::NotADirectory);
        }
        let bad = |byte: &u8| matches!(byte, b'/' | 0);
        if name.is_empty()
            || name.len() > MOST_NAME_BYTES
            || matches!(name, b"." | b"..")
            || name.iter().any(bad)
        {
            return Err(TreeError::BadName);
        }
        self.look_up(parent, name).map_or(Ok(()), |found| Err(TreeError::Exists(found)))
    }

    /// Links a new name into the lists of its parent and of its node.
    fn attach(&mut self, parent: NodeId, node: NodeId, link: LinkId) {
        let first = self.nodes[parent.0 as usize].first_child.replace(link);
        self.names.join_siblings(link, first);
        self.nodes[parent.0 as usize].children += 1;
        let own = &mut self.nodes[node.0 as usize];
        let last = own.last_link.replace(link);
        own.links += 1;
        self.names.join_links(link, last);
    }

    /// Undoes [`Tree::attach`] and removes the name, and the node if it was its last name.
    fn detach(&mut self, link: LinkId) {
        let (parent, node) = (self.names.parent(link), self.names.node(link));
        let siblings = self.names.leave_siblings(link);
        let above = &mut self.nodes[parent.0 as usize];
        above.children -= 1;
        if above.first_child == Some(link) {
            above.first_child = siblings;
        }
        let earlier = self.names.leave_links(link);
        let own = &mut self.nodes[node.0 as usize];
        own.links -= 1;
        if own.last_link == Some(link) {
            own.last_link = earlier;
        }
        if own.links == 0 {
            own.body = Body::Fifo;
            self.live -= 1;
        }
        self.names.forget(link);
    }
}

#[cfg(test)]
mod tests;
