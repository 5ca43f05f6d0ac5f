//! Reads another ext2, ext3 or ext4 file system, opened by `floe_check::view`.

use std::collections::HashMap;
use std::io;

use floe_ext4::files::{Files, Node, SegmentKind, Step, Visit};
use floe_format::InodeNr;
use floe_format::ext::inode::FileType;

use crate::mkfs::tree::{Attributes, Body, ContentId, Contents, Extent, NodeId, Tree, Xattr};

use super::{Loaded, SourceError, shown};

/// Reads everything in a file system, with all three times. A content is an inode number.
///
/// # Errors
/// [`SourceError::Damaged`] if anything cannot be read, because a copy with holes in place of data
/// would be worse than none. `floe export` and `floe cp` read the intact rest.
pub fn image<'f, 'd>(files: &'f Files<'d>) -> Result<Loaded<ImageContents<'f, 'd>>, SourceError> {
    let root = files.node(InodeNr::ROOT).map_err(|error| damaged(b"/", error))?;
    let mut loader = Loader { files, tree: Tree::new(Attributes::root()), links: HashMap::new() };
    let mut trail: Vec<NodeId> = Vec::new();
    for step in files.walk(root).without_own() {
        match step {
            Step::Visit(visit) => loader.add(&visit, &mut trail)?,
            Step::Leave { .. } => {
                trail.pop();
            }
            Step::Faults { path, faults } => {
                if let Some(fault) = faults.into_iter().next() {
                    return Err(damaged(&path, fault));
                }
            }
            Step::Lost { path, error } => return Err(damaged(&path, error)),
            Step::Again { path, inode } => {
                return Err(damaged(&path, format!("directory {inode} has a second name")));
            }
        }
    }
    let mut tree = loader.tree;
    drop_lost_and_found(&mut tree);
    Ok(Loaded { tree, contents: ImageContents { files }, doubt: None })
}

/// Removes lost+found if it is as mke2fs makes it: every new file system gets its own.
fn drop_lost_and_found(tree: &mut Tree) {
    const NAME: &[u8] = b"lost+found";
    let Some(found) = tree.look_up(tree.root(), NAME).map(|node| tree.node(node)) else { return };
    let attributes = found.attributes();
    let plain = attributes.mode == 0o700 && (attributes.uid, attributes.gid) == (0, 0);
    if found.is_directory() && found.child_count() == 0 && plain && attributes.xattrs.is_empty() {
        // It was just found.
        let _ = tree.remove(tree.root(), NAME);
    }
}

struct Loader<'f, 'd> {
    files: &'f Files<'d>,
    tree: Tree,
    /// Files with several names.
    links: HashMap<InodeNr, NodeId>,
}

impl Loader<'_, '_> {
    fn add(&mut self, visit: &Visit, trail: &mut Vec<NodeId>) -> Result<(), SourceError> {
        let Visit { path, node } = visit;
        if let Some(fault) = node.faults().into_iter().next() {
            return Err(damaged(path, fault));
        }
        let attributes = self.attributes(path, node)?;
        let Some(&parent) = trail.last() else {
            let root = self.tree.root();
            self.tree.set_attributes(root, attributes);
            trail.push(root);
            return Ok(());
        };
        let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
        let refused = |source| SourceError::Tree { path: shown(path), source };
        if let Some(&first) = self.links.get(&node.number) {
            return self.tree.link_at(parent, name, first).map_err(refused);
        }
        let body = self.body(path, node)?;
        let new = self.tree.insert(parent, name, attributes, body).map_err(refused)?;
        if node.is_directory() {
            trail.push(new);
        } else if node.links() > 1 {
            self.links.insert(node.number, new);
        }
        Ok(())
    }

    fn attributes(&mut self, path: &[u8], node: &Node) -> Result<Attributes, SourceError> {
        let (attributes, faults) = self.files.attributes(node);
        if let Some(fault) = faults.into_iter().next() {
            return Err(damaged(path, fault));
        }
        let xattrs = attributes.into_iter().map(|one| Xattr::new(one.name, one.value));
        let xattrs = self.tree.keep_xattrs(xattrs.collect());
        Ok(Attributes {
            mode: node.permissions(),
            uid: node.uid(),
            gid: node.gid(),
            mtime: node.mtime(),
            atime: node.atime(),
            ctime: node.ctime(),
            xattrs,
        })
    }

    fn body(&self, path: &[u8], node: &Node) -> Result<Body, SourceError> {
        let (major, minor) = node.device_number().unwrap_or((0, 0));
        Ok(match node.file_type() {
            Some(FileType::Directory) => Body::Directory,
            Some(FileType::Symlink) => {
                let (target, faults) =
                    self.files.target(node).map_err(|error| damaged(path, error))?;
                if let Some(fault) = faults.into_iter().next() {
                    return Err(damaged(path, fault));
                }
                Body::Symlink(target.into())
            }
            Some(FileType::CharDevice) => Body::CharDevice { major, minor },
            Some(FileType::BlockDevice) => Body::BlockDevice { major, minor },
            Some(FileType::Fifo) => Body::Fifo,
            Some(FileType::Socket) => Body::Socket,
            Some(FileType::Regular) => self.file(path, node)?,
            None => return Err(damaged(path, "it has no known type")),
        })
    }

    fn file(&self, path: &[u8], node: &Node) -> Result<Body, SourceError> {
        let (stored, faults) = self.files.content(node).map_err(|error| damaged(path, error))?;
        if let Some(fault) = faults.into_iter().next() {
            return Err(damaged(path, fault));
        }
        let content = ContentId(u64::from(node.number.0));
        let data = stored.segments().filter(|segment| segment.kind == SegmentKind::Data);
        let extents = data.map(|segment| Extent {
            at: segment.offset_bytes,
            len: segment.len_bytes,
            content,
            from: segment.offset_bytes,
        });
        Ok(Body::sparse(stored.size_bytes(), extents.collect()))
    }
}

fn damaged(path: &[u8], why: impl std::fmt::Display) -> SourceError {
    SourceError::Damaged { path: format!("/{}", shown(path)), why: why.to_string() }
}

/// Reads the files of the image.
pub struct ImageContents<'f, 'd> {
    files: &'f Files<'d>,
}

impl Contents for ImageContents<'_, '_> {
    fn read_at(&self, content: ContentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let number = InodeNr(u32::try_from(content.0).unwrap_or(0));
        let node = self.files.node(number).map_err(io::Error::other)?;
        let (stored, mut faults) = self.files.content(&node).map_err(io::Error::other)?;
        let len = stored.read_at(offset, into, &mut faults);
        match faults.into_iter().next() {
            Some(fault) => Err(io::Error::other(format!("{number}: {fault}"))),
            None if len < into.len() => Err(io::ErrorKind::UnexpectedEof.into()),
            None => Ok(()),
        }
    }
}
