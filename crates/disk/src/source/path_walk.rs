//! Resolves a path in a tree, including symbolic links.

use crate::mkfs::tree::NodeId;

/// Symbolic links followed in one path, at most, as in Linux.
const MOST_LINKS: u32 = 40;

/// The state of resolving a path. Links are followed inside the tree, where `..` of the root is the
/// root.
pub(super) struct PathWalk {
    /// Remaining names, the next one last.
    rest: Vec<Vec<u8>>,
    root: NodeId,
    /// The nodes of the path so far, below the root.
    trail: Vec<NodeId>,
    links: u32,
}

impl PathWalk {
    /// Starts with the names of a path from the root.
    pub(super) fn new(root: NodeId, names: &[&[u8]]) -> Self {
        let rest = names.iter().rev().map(|name| name.to_vec()).collect();
        Self { rest, root, trail: Vec::new(), links: 0 }
    }

    /// The next name to look up in [`PathWalk::here`]; `None` at the end of the path.
    pub(super) fn next_name(&mut self) -> Option<Vec<u8>> {
        loop {
            let name = self.rest.pop()?;
            if name != b".." {
                return Some(name);
            }
            self.trail.pop();
        }
    }

    /// The node reached so far.
    pub(super) fn here(&self) -> NodeId {
        self.trail.last().copied().unwrap_or(self.root)
    }

    /// Whether no name remains.
    pub(super) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Descends into a node.
    pub(super) fn enter(&mut self, node: NodeId) {
        self.trail.push(node);
    }

    /// Continues with the target of a symbolic link; `false` if there were too many.
    pub(super) fn follow(&mut self, target: &[u8]) -> bool {
        self.links += 1;
        if self.links > MOST_LINKS {
            return false;
        }
        if target.starts_with(b"/") {
            self.trail.clear();
        }
        let names = target.split(|&byte| byte == b'/');
        let names = names.filter(|name| !matches!(*name, b"" | b"."));
        let at = self.rest.len();
        self.rest.extend(names.map(<[u8]>::to_vec));
        self.rest[at..].reverse();
        true
    }
}
