//! Applies the entries of an archive to a tree in order: as a whole archive, or as a layer over
//! others.

use std::collections::BTreeMap;

use floe_archive::{Entry, Kind};

use crate::mkfs::tree::{Attributes, Body, ContentId, Extent, NodeId, Tree, TreeError, Xattr};

use super::path::names;
use super::path_walk::PathWalk;
use super::{SourceError, shown};

/// Prefix of whiteouts in layers.
const WHITEOUT: &[u8] = b".wh.";
/// Prefix of the files that old tools kept for themselves, which are not part of a layer.
const WHITEOUT_OWN: &[u8] = b".wh..wh.";
/// Marks a directory as opaque: it hides the content of lower layers.
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Applies the entries of one archive.
pub(super) struct Applier<'t> {
    tree: &'t mut Tree,
    is_layer: bool,
    /// Indexed by [`NodeId::index`]: nodes that this layer made or passed through. Later nodes are
    /// missing.
    touched: Vec<bool>,
    /// Hard links whose target does not exist yet: path and target. Sorted by path, so that the
    /// result is deterministic.
    waiting: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl<'t> Applier<'t> {
    pub(super) fn new(tree: &'t mut Tree, is_layer: bool) -> Self {
        Self { tree, is_layer, touched: Vec::new(), waiting: BTreeMap::new() }
    }

    /// Applies an entry whose bytes lie in `content`.
    pub(super) fn add(&mut self, entry: Entry, content: ContentId) -> Result<(), SourceError> {
        let all = names(&entry.path)?;
        let Some((&name, parents)) = all.split_last() else {
            // The root itself.
            if entry.kind != Kind::Directory {
                let why = "only a directory can be the root";
                let path = match &entry.path[..] {
                    b"" => "an entry without a path".to_owned(),
                    path => shown(path),
                };
                return Err(SourceError::Path { path, why });
            }
            let attributes = self.attributes(&entry);
            self.tree.set_attributes(self.tree.root(), attributes);
            return Ok(());
        };
        let is_own = |name: &&[u8]| name.starts_with(WHITEOUT_OWN) && *name != OPAQUE;
        if self.is_layer && all.iter().any(is_own) {
            return Ok(());
        }
        if self.is_layer && name.starts_with(WHITEOUT) {
            return self.whiteout(parents, name, &entry.path);
        }
        let parent = self.directory(parents, &entry.path)?;
        let key = all.join(&b'/');
        self.waiting.remove(&key);
        if entry.kind == Kind::HardLink {
            if !self.link(parent, name, &entry)? {
                self.waiting.insert(key, entry.link);
            }
            return Ok(());
        }
        self.put(parent, name, &entry, content)
    }

    /// Finishes the archive: makes the hard links whose targets came later.
    pub(super) fn finish(&mut self) -> Result<(), SourceError> {
        // A link may wait for another waiting link.
        while !self.waiting.is_empty() {
            let before = self.waiting.len();
            for (path, target) in std::mem::take(&mut self.waiting) {
                let entry = Entry { link: target, ..Entry::new(&path, Kind::HardLink) };
                let all = names(&path)?;
                let Some((&name, parents)) = all.split_last() else { continue };
                let parent = self.directory(parents, &path)?;
                if !self.link(parent, name, &entry)? {
                    self.waiting.insert(path, entry.link);
                }
            }
            if self.waiting.len() == before {
                break;
            }
        }
        match self.waiting.first_key_value() {
            Some((path, target)) => {
                Err(SourceError::LostLink { path: shown(path), target: shown(target) })
            }
            None => Ok(()),
        }
    }

    fn touch(&mut self, node: NodeId) {
        if self.touched.len() <= node.index() {
            self.touched.resize(node.index() + 1, false);
        }
        self.touched[node.index()] = true;
    }

    fn is_touched(&self, node: NodeId) -> bool {
        self.touched.get(node.index()).copied().unwrap_or(false)
    }

    /// The directory at a path; missing directories are made. Symbolic links in the path are
    /// followed inside the tree, where `..` of the root is the root.
    fn directory(&mut self, parents: &[&[u8]], path: &[u8]) -> Result<NodeId, SourceError> {
        let refused = |why| SourceError::Path { path: shown(path), why };
        let mut walk = PathWalk::new(self.tree.root(), parents);
        while let Some(name) = walk.next_name() {
            let Some(found) = self.tree.look_up(walk.here(), &name) else {
                let attributes = Attributes::directory(0o755);
                let made = self.tree.insert(walk.here(), &name, attributes, Body::Directory);
                let made = made.map_err(|error| tree_error(path, error))?;
                self.touch(made);
                walk.enter(made);
                continue;
            };
            match self.tree.node(found).body() {
                Body::Directory => {
                    self.touch(found);
                    walk.enter(found);
                }
                Body::Symlink(target) => {
                    if !walk.follow(target) {
                        return Err(refused("goes through too many symbolic links"));
                    }
                }
                _ => return Err(refused("goes through something that is not a directory")),
            }
        }
        Ok(walk.here())
    }

    /// Makes a hard link; `false` if its target does not exist.
    fn link(&mut self, parent: NodeId, name: &[u8], entry: &Entry) -> Result<bool, SourceError> {
        let all = names(&entry.link)?;
        let Some(target) = self.find(&all) else { return Ok(false) };
        if self.tree.look_up(parent, name) == Some(target) {
            return Ok(true);
        }
        if self.tree.node(target).is_directory() {
            return Err(tree_error(&entry.path, TreeError::DirectoryLink));
        }
        self.clear_name(parent, name);
        self.tree.link_at(parent, name, target).map_err(|error| tree_error(&entry.path, error))?;
        self.touch(target);
        Ok(true)
    }

    /// The node at a path. Symbolic links in its directory part are followed, as for the paths of
    /// entries.
    fn find(&self, all: &[&[u8]]) -> Option<NodeId> {
        let mut walk = PathWalk::new(self.tree.root(), all);
        while let Some(name) = walk.next_name() {
            let found = self.tree.look_up(walk.here(), &name)?;
            match self.tree.node(found).body() {
                Body::Symlink(target) if !walk.is_at_end() => {
                    if !walk.follow(target) {
                        return None;
                    }
                }
                _ => walk.enter(found),
            }
        }
        Some(walk.here())
    }

    /// Removes any node with this name.
    fn clear_name(&mut self, parent: NodeId, name: &[u8]) {
        // An unused name is fine.
        let _ = self.tree.remove(parent, name);
    }

    fn put(
        &mut self,
        parent: NodeId,
        name: &[u8],
        entry: &Entry,
        content: ContentId,
    ) -> Result<(), SourceError> {
        let attributes = self.attributes(entry);
        if let Some(found) = self.tree.look_up(parent, name) {
            let merges = entry.kind == Kind::Directory && self.tree.node(found).is_directory();
            if merges {
                self.tree.set_attributes(found, attributes);
                self.touch(found);
                return Ok(());
            }
            self.clear_name(parent, name);
        }
        let body = body(entry, content)?;
        let node = self.tree.insert(parent, name, attributes, body);
        let node = node.map_err(|error| tree_error(&entry.path, error))?;
        self.touch(node);
        Ok(())
    }

    /// Applies a whiteout: removes content of lower layers, never of this layer.
    fn whiteout(&mut self, parents: &[&[u8]], name: &[u8], path: &[u8]) -> Result<(), SourceError> {
        if name == OPAQUE {
            let directory = self.directory(parents, path)?;
            self.purge(directory);
            return Ok(());
        }
        let hidden = &name[WHITEOUT.len()..];
        let parent = self.directory(parents, path)?;
        match self.tree.look_up(parent, hidden) {
            Some(node) if !self.is_touched(node) => self.clear_name(parent, hidden),
            Some(node) if self.tree.node(node).is_directory() => self.purge(node),
            _ => {}
        }
        Ok(())
    }

    /// Removes everything below a directory that this layer did not add.
    fn purge(&mut self, directory: NodeId) {
        let mut open = vec![directory];
        while let Some(directory) = open.pop() {
            let children = self.tree.children(directory);
            let children: Vec<(Vec<u8>, NodeId)> =
                children.iter().map(|child| (child.name.to_vec(), child.node)).collect();
            for (name, node) in children {
                if !self.is_touched(node) {
                    self.clear_name(directory, &name);
                } else if self.tree.node(node).is_directory() {
                    open.push(node);
                }
            }
        }
    }

    fn attributes(&mut self, entry: &Entry) -> Attributes {
        let attributes = &entry.attributes;
        let xattrs = attributes.iter().map(|(name, value)| Xattr::new(&name[..], &value[..]));
        let xattrs = self.tree.keep_xattrs(xattrs.collect());
        // Access and inode change times depend on when an archive was made, not on its files.
        Attributes {
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            xattrs,
            ..Attributes::default()
        }
        .at(entry.mtime)
    }
}

/// Message for a device that [`device_fits`] rejects.
pub(super) const DEVICE_TOO_LARGE: &str =
    "its device number does not fit an inode: 12 bits for the major and 20 for the minor number";

/// Whether an inode can store a device number.
pub(super) const fn device_fits(major: u32, minor: u32) -> bool {
    major < 1 << 12 && minor < 1 << 20
}

fn body(entry: &Entry, content: ContentId) -> Result<Body, SourceError> {
    let (major, minor) = entry.device;
    Ok(match entry.kind {
        Kind::CharDevice | Kind::BlockDevice if !device_fits(major, minor) => {
            return Err(SourceError::Path { path: shown(&entry.path), why: DEVICE_TOO_LARGE });
        }
        Kind::Directory => Body::Directory,
        Kind::SymbolicLink => {
            if entry.link.is_empty() || entry.link.contains(&0) {
                let why = "is a symbolic link without a usable target";
                return Err(SourceError::Path { path: shown(&entry.path), why });
            }
            Body::Symlink(entry.link.clone().into())
        }
        Kind::CharDevice => Body::CharDevice { major, minor },
        Kind::BlockDevice => Body::BlockDevice { major, minor },
        Kind::Fifo => Body::Fifo,
        // Hard links were handled before.
        Kind::File | Kind::HardLink => {
            let extent = |part: &floe_archive::Part| Extent {
                at: part.at,
                len: part.len,
                content,
                from: part.from,
            };
            match &entry.parts[..] {
                [part] if part.at == 0 && part.len == entry.size => {
                    Body::file(entry.size, content, part.from)
                }
                parts => Body::sparse(entry.size, parts.iter().map(extent).collect()),
            }
        }
    })
}

fn tree_error(path: &[u8], source: TreeError) -> SourceError {
    SourceError::Tree { path: shown(path), source }
}
