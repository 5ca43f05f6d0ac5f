//! A folder of this machine as a source.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, SeekFrom, lgetxattr, llistxattr, major, minor, seek};
use rustix::io::Errno;

use super::{Overrides, SourceError};
use crate::mkfs::tree::{
    Attributes, Body, ContentId, Contents, Extent, NodeId, Time, Tree, Xattr, XattrsId,
};

/// Attributes that say something of this machine rather than of the file: labels and signatures
/// that its kernel gave.
const OF_THE_HOST: [&[u8]; 3] = [b"security.selinux", b"security.ima", b"security.evm"];

/// A folder whose files fill a file system. All three times of a file become the time of its last
/// change, because the others differ from copy to copy.
#[derive(Clone, Debug)]
pub struct Folder {
    root: PathBuf,
}

/// Reads the files of a folder for the tree that was made of it.
#[derive(Clone, Copy, Debug)]
pub struct FolderContents<'a> {
    folder: &'a Folder,
    tree: &'a Tree,
}

impl Folder {
    /// Makes the tree of a folder and all below it; the folder itself becomes the root. Files of
    /// other file systems that are mounted there are part of it.
    ///
    /// # Errors
    /// Something cannot be read, or cannot be in a tree.
    pub fn scan(root: &Path, overrides: &Overrides) -> Result<(Self, Tree), SourceError> {
        let mut scan =
            Scan { overrides, tree: Tree::new(Attributes::root()), seen: HashMap::new() };
        let metadata = fs::metadata(root).map_err(failed(root))?;
        let attributes = scan.attributes(root, &metadata)?;
        let top = scan.tree.root();
        scan.tree.set_attributes(top, attributes);
        // No recursion: folders may be deeper than a stack.
        let mut open = vec![(top, root.to_owned())];
        while let Some((parent, folder)) = open.pop() {
            scan.folder(parent, &folder, &mut open)?;
        }
        Ok((Self { root: root.to_owned() }, scan.tree))
    }

    /// What reads the files of the tree that [`Folder::scan`] gave.
    pub fn contents<'a>(&'a self, tree: &'a Tree) -> FolderContents<'a> {
        FolderContents { folder: self, tree }
    }
}

impl Contents for FolderContents<'_> {
    fn read_at(&self, content: ContentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let node = self.tree.nth(content.0).ok_or(io::ErrorKind::NotFound)?;
        let path = self.tree.path(node);
        let path = self.folder.root.join(OsStr::from_bytes(path.get(1..).unwrap_or_default()));
        // The bits fit, being flags of open. A link that has taken the file's place is not it.
        let flags = OFlags::NOFOLLOW.bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        file.read_exact_at(into, offset)
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> SourceError + use<> {
    let path = path.to_owned();
    move |source| SourceError::Read { path, source }
}

/// A tree while it grows.
struct Scan<'o> {
    overrides: &'o Overrides,
    tree: Tree,
    /// Files with several links, by device and inode.
    seen: HashMap<(u64, u64), NodeId>,
}

impl Scan<'_> {
    /// Adds what is in one folder; its own folders are still to come.
    fn folder(
        &mut self,
        parent: NodeId,
        folder: &Path,
        open: &mut Vec<(NodeId, PathBuf)>,
    ) -> Result<(), SourceError> {
        for entry in fs::read_dir(folder).map_err(failed(folder))? {
            let entry = entry.map_err(failed(folder))?;
            let (path, name) = (entry.path(), entry.file_name());
            let metadata = entry.metadata().map_err(failed(&path))?;
            let wrong = |source| SourceError::Tree { path: path.clone(), source };
            let place = (metadata.dev(), metadata.ino());
            if let Some(known) = self.seen.get(&place) {
                self.tree.link_at(parent, name.as_bytes(), *known).map_err(wrong)?;
                continue;
            }
            let body = self.body(&path, &metadata)?;
            let attributes = self.attributes(&path, &metadata)?;
            let inserted = self.tree.insert(parent, name.as_bytes(), attributes, body);
            let node = inserted.map_err(wrong)?;
            if metadata.is_dir() {
                open.push((node, path));
            } else if metadata.nlink() > 1 {
                self.seen.insert(place, node);
            }
        }
        Ok(())
    }

    fn attributes(&mut self, path: &Path, metadata: &Metadata) -> Result<Attributes, SourceError> {
        let nanos = u32::try_from(metadata.mtime_nsec()).unwrap_or(0);
        let attributes = Attributes {
            mode: (metadata.mode() & 0o7777) as u16,
            uid: metadata.uid(),
            gid: metadata.gid(),
            xattrs: self.xattrs(path)?,
            ..Attributes::default()
        };
        Ok(self.overrides.of(attributes.at(Time { secs: metadata.mtime(), nanos })))
    }

    fn xattrs(&mut self, path: &Path) -> Result<XattrsId, SourceError> {
        if self.overrides.no_xattrs {
            return Ok(XattrsId::default());
        }
        let names = match sized(|into| llistxattr(path, into)) {
            Ok(names) => names,
            Err(Errno::OPNOTSUPP) => return Ok(XattrsId::default()),
            Err(errno) => return Err(failed(path)(errno.into())),
        };
        let names = names.split(|byte| *byte == 0);
        let mut xattrs = Vec::new();
        for name in names.filter(|name| !name.is_empty() && !OF_THE_HOST.contains(name)) {
            match sized(|into| lgetxattr(path, name, into)) {
                Ok(value) => xattrs.push(Xattr::new(name, value)),
                // Gone in the meantime.
                Err(Errno::NODATA) => {}
                Err(errno) => return Err(failed(path)(errno.into())),
            }
        }
        Ok(self.tree.keep_xattrs(xattrs))
    }

    fn body(&self, path: &Path, metadata: &Metadata) -> Result<Body, SourceError> {
        let (kind, number) = (metadata.file_type(), metadata.rdev());
        let (major, minor) = (major(number), minor(number));
        Ok(if kind.is_dir() {
            Body::Directory
        } else if kind.is_symlink() {
            let target = fs::read_link(path).map_err(failed(path))?;
            Body::Symlink(target.as_os_str().as_bytes().into())
        } else if kind.is_file() {
            // It will be the next node.
            let content = ContentId(self.tree.bound() as u64);
            if metadata.blocks() * 512 < metadata.size() {
                let extents = extents(path, metadata.size(), content).map_err(failed(path))?;
                Body::sparse(metadata.size(), extents)
            } else {
                Body::file(metadata.size(), content, 0)
            }
        } else if kind.is_char_device() {
            Body::CharDevice { major, minor }
        } else if kind.is_block_device() {
            Body::BlockDevice { major, minor }
        } else if kind.is_fifo() {
            Body::Fifo
        } else {
            Body::Socket
        })
    }
}

/// Calls what fills a buffer with one that is large enough.
fn sized(mut call: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    loop {
        let len = call(&mut [])?;
        if len == 0 {
            return Ok(Vec::new());
        }
        let mut bytes = vec![0; len];
        match call(&mut bytes) {
            Ok(len) => {
                bytes.truncate(len);
                return Ok(bytes);
            }
            // It has grown.
            Err(Errno::RANGE) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// The parts of a file that are not holes.
fn extents(path: &Path, size: u64, content: ContentId) -> io::Result<Vec<Extent>> {
    let file = File::open(path)?;
    let mut extents = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(&file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole is left.
            Err(Errno::NXIO) => break,
            // Holes cannot be asked for: all of it is data.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                return Ok(vec![Extent { at: 0, len: size, content, from: 0 }]);
            }
            Err(errno) => return Err(errno.into()),
        };
        let end = seek(&file, SeekFrom::Hole(start)).map_or(size, |end| end.min(size));
        if end <= start {
            break;
        }
        extents.push(Extent { at: start, len: end - start, content, from: start });
        at = end;
    }
    Ok(extents)
}
