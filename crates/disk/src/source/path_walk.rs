//! Following a path through a tree of files, symbolic links included.

use crate::mkfs::tree::NodeId;

/// Symbolic links that are followed on the way to a file, at most: as many as by Linux.
const MOST_LINKS: u32 = 40;

/// How far a path was followed. Links are followed inside the tree, whose root is also the parent of the root.
pub(super) struct PathWalk {
    /// Names still to come, the next one last.
    rest: Vec<Vec<u8>>,
    root: NodeId,
    /// The nodes on the way, below the root.
    trail: Vec<NodeId>,
    links: u32,
}

impl PathWalk {
    /// The names of a path that begins at the root.
    pub(super) fn new(root: NodeId, names: &[&[u8]]) -> Self {
        let rest = names.iter().rev().map(|name| name.to_vec()).collect();
        Self { rest, root, trail: Vec::new(), links: 0 }
    }

    /// The next name to be looked up in [`PathWalk::here`]; `None` at the end of the path.
    pub(super) fn next_name(&mut self) -> Option<Vec<u8>> {
        loop {
            let name = self.rest.pop()?;
            if name != b".." {
                return Some(name);
            }
            self.trail.pop();
        }
    }

    /// The node that the path led to so far.
    pub(super) fn here(&self) -> NodeId {
        self.trail.last().copied().unwrap_or(self.root)
    }

    /// Whether no name is left.
    pub(super) fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Goes on to a node.
    pub(super) fn enter(&mut self, node: NodeId) {
        self.trail.push(node);
    }

    /// Goes on along the target of a symbolic link; `false` if there were too many of them.
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
