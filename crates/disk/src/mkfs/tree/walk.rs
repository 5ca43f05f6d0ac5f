//! Lists a tree in a fixed order.

use std::collections::HashSet;

use super::node::NodeId;
use super::xattrs::{Xattr, XattrsId};
use super::{LinkId, Tree};

/// A name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Child<'t> {
    /// The name.
    pub name: &'t [u8],
    /// The node that it names.
    pub node: NodeId,
}

/// A name of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name<'t> {
    /// The directory that contains it.
    pub parent: NodeId,
    /// The name.
    pub name: &'t [u8],
}

impl Tree {
    /// The names in a directory, sorted by bytes. Empty if the node is not a directory.
    pub fn children(&self, directory: NodeId) -> Vec<Child<'_>> {
        let mut children = Vec::with_capacity(self.node(directory).children as usize);
        let mut next = self.node(directory).first_child;
        while let Some(link) = next {
            children.push(Child { name: self.names.name(link), node: self.names.node(link) });
            next = self.names.next_sibling(link);
        }
        children.sort_unstable();
        children
    }

    /// The names of a node, the latest first. Empty for the root.
    pub fn links_of(&self, node: NodeId) -> impl Iterator<Item = Name<'_>> {
        let mut next = self.node(node).last_link;
        std::iter::from_fn(move || {
            let link: LinkId = next?;
            next = self.names.earlier(link);
            Some(Name { parent: self.names.parent(link), name: self.names.name(link) })
        })
    }

    /// The latest name of a node. `None` for the root.
    pub(crate) fn link_of(&self, node: NodeId) -> Option<Name<'_>> {
        self.links_of(node).next()
    }

    /// The directory that contains a node's name (`Tree::link_of`); `None` for the root.
    pub fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.link_of(node).map(|name| name.parent)
    }

    /// A path of a node from the root, such as `/etc/motd`; `/` for the root itself.
    pub fn path(&self, node: NodeId) -> Vec<u8> {
        let mut parts = Vec::new();
        let mut at = node;
        while let Some(Name { parent, name }) = self.link_of(at) {
            parts.push(name);
            at = parent;
        }
        if parts.is_empty() {
            return b"/".to_vec();
        }
        parts.iter().rev().flat_map(|part| [b"/", *part]).flatten().copied().collect()
    }

    /// Every node once, in an order that depends on names alone: the root, then for each directory
    /// its children sorted by name (except those already listed under another name), then its
    /// subdirectories in the same way. Parents come before their children.
    pub fn ordered(&self) -> Vec<NodeId> {
        let mut order = Vec::with_capacity(self.len());
        // Only nodes with several names can occur again.
        let mut seen = HashSet::new();
        order.push(self.root());
        let mut open = vec![self.root()];
        while let Some(directory) = open.pop() {
            let first = open.len();
            for Child { node, .. } in self.children(directory) {
                if self.node(node).links > 1 && !seen.insert(node) {
                    continue;
                }
                order.push(node);
                if self.node(node).children > 0 {
                    open.push(node);
                }
            }
            open[first..].reverse();
        }
        order
    }

    /// Number of stored sets of extended attributes, including the empty one: the bound of
    /// [`XattrsId::index`].
    pub(crate) fn xattr_sets(&self) -> usize {
        self.xattrs.len()
    }

    /// The set of extended attributes of a node.
    pub(crate) fn xattrs_of(&self, node: NodeId) -> XattrsId {
        self.node(node).attributes().xattrs
    }

    /// All stored sets of extended attributes, by [`XattrsId::index`]; the first is empty.
    pub(crate) fn all_xattrs(&self) -> impl Iterator<Item = &[Xattr]> {
        (0..self.xattr_sets()).map(|at| self.xattrs.at(at))
    }

    /// Bytes of the largest file.
    pub(crate) fn largest_file(&self) -> u64 {
        self.nodes.iter().map(super::Node::size).max().unwrap_or(0)
    }

    /// An estimate of the blocks of the tree: files as if without holes, and directories with few
    /// names per block; values of attributes that are longer than a block.
    pub fn data_blocks(&self, block_size: u32) -> u64 {
        let size = u64::from(block_size.max(1));
        let of = |node: &super::Node| {
            node.size().div_ceil(size) + u64::from(node.child_count()) * 272 / size + 1
        };
        let values = self.all_xattrs().flatten().map(|one| one.value.len() as u64 / size);
        self.nodes.iter().map(of).chain(values).sum()
    }
}
