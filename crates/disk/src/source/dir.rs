//! Reads a directory of this system.
//!
//! All three times of a file are set to its modification time, because the others depend on when
//! the tree was copied, and the same tree must give the same file system as a directory and as an
//! archive.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, SeekFrom, lgetxattr, llistxattr, major, minor, openat, seek};
use rustix::io::Errno;

use crate::mkfs::tree::{
    Attributes, Body, ContentId, Contents, Extent, NodeId, Timestamp, Tree, Xattr, XattrsId,
};

use super::{BoxedContents, Loaded, SourceError, shown};

/// Bytes of the largest list of attributes, and of the largest value, in Linux.
const MOST_XATTR_BYTES: usize = 1 << 16;

/// Reads everything below a directory, with hard links, holes and attributes. Labels and hashes
/// that belong to this system (SELinux, Smack, IMA, EVM, overlayfs) are omitted.
///
/// # Errors
/// [`SourceError::Read`] if anything cannot be read. Nothing is omitted silently.
pub fn directory(root: &Path) -> Result<Loaded<BoxedContents>, SourceError> {
    let metadata = fs::metadata(root).map_err(|source| read_error(root, source))?;
    if !metadata.is_dir() {
        return Err(read_error(root, io::ErrorKind::NotADirectory.into()));
    }
    let mut tree = Tree::new(Attributes::root());
    let mut room = Room::new();
    let xattrs = room.xattrs(root, &mut tree).map_err(|source| read_error(root, source))?;
    tree.set_attributes(tree.root(), attributes(&metadata, xattrs));
    let mut loader = Loader { tree, room, files: Files::default(), links: HashMap::new() };
    let mut folders = vec![(root.to_owned(), loader.tree.root())];
    while let Some((folder, node)) = folders.pop() {
        loader.folder(&folder, node, &mut folders)?;
    }
    let contents = DirContents { files: loader.files };
    Ok(Loaded { tree: loader.tree, contents: Box::new(contents), doubt: None })
}

struct Loader {
    tree: Tree,
    room: Room,
    /// Indexed by content.
    files: Files,
    /// Files with several names, by device and inode.
    links: HashMap<(u64, u64), NodeId>,
}

impl Loader {
    fn folder(
        &mut self,
        folder: &Path,
        parent: NodeId,
        folders: &mut Vec<(PathBuf, NodeId)>,
    ) -> Result<(), SourceError> {
        self.files.folders.push(folder.into());
        let at = Short::of(folder).map_err(|source| read_error(folder, source))?;
        let entries = fs::read_dir(&at.path).map_err(|source| read_error(folder, source))?;
        for entry in entries {
            let entry = entry.map_err(|source| read_error(folder, source))?;
            let (path, short) = (folder.join(entry.file_name()), entry.path());
            let metadata = entry.metadata().map_err(|source| read_error(&path, source))?;
            let name = entry.file_name();
            let refused =
                |source| SourceError::Tree { path: shown(path.as_os_str().as_bytes()), source };
            let several = metadata.nlink() > 1 && !metadata.is_dir();
            let identity = (metadata.dev(), metadata.ino());
            if let Some(&node) = self.links.get(&identity).filter(|_| several) {
                self.tree.link_at(parent, name.as_bytes(), node).map_err(refused)?;
                continue;
            }
            let failed = |source| read_error(&path, source);
            let body = self.body(&short, &metadata).map_err(failed)?;
            let xattrs = self.room.xattrs(&short, &mut self.tree).map_err(failed)?;
            let attributes = attributes(&metadata, xattrs);
            let inserted = self.tree.insert(parent, name.as_bytes(), attributes, body);
            let node = inserted.map_err(refused)?;
            if several {
                self.links.insert(identity, node);
            }
            if metadata.is_dir() {
                folders.push((path, node));
            }
        }
        Ok(())
    }

    fn body(&mut self, path: &Path, metadata: &Metadata) -> io::Result<Body> {
        let kind = metadata.file_type();
        let device = metadata.rdev();
        let (major, minor) = (major(device), minor(device));
        if kind.is_file() {
            return self.file(path, metadata);
        }
        Ok(if kind.is_dir() {
            Body::Directory
        } else if kind.is_symlink() {
            let target = fs::read_link(path)?;
            Body::Symlink(target.into_os_string().into_vec().into())
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

    fn file(&mut self, path: &Path, metadata: &Metadata) -> io::Result<Body> {
        let content = self.files.add(path.file_name().unwrap_or_default());
        let size = metadata.len();
        // Only files with holes take fewer blocks than their size (or very small ones, whose holes
        // do not matter).
        if metadata.blocks() * 512 >= size {
            return Ok(Body::file(size, content, 0));
        }
        let parts = data_parts(&open(path)?, size)?;
        let extent = |(at, len)| Extent { at, len, content, from: at };
        Ok(Body::sparse(size, parts.into_iter().map(extent).collect()))
    }
}

/// A path that the system takes. It takes no more than 4,096 bytes, but folders may lie deeper: then the path leads through a descriptor
/// of a folder on the way.
struct Short {
    path: PathBuf,
    /// Open as long as the path is used.
    _folder: Option<OwnedFd>,
}

impl Short {
    /// Leaves room for a name behind the path, and for the descriptor's before it.
    const MOST_BYTES: usize = 3500;

    fn of(path: &Path) -> io::Result<Self> {
        if path.as_os_str().len() <= Self::MOST_BYTES {
            return Ok(Self { path: path.to_owned(), _folder: None });
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let (mut folder, mut rest) = (None::<OwnedFd>, PathBuf::new());
        for part in path.components() {
            if rest.as_os_str().len() + part.as_os_str().len() >= Self::MOST_BYTES {
                let above = folder.as_ref().map_or(CWD, AsFd::as_fd);
                folder = Some(openat(above, &rest, flags, Mode::empty())?);
                rest = PathBuf::new();
            }
            rest.push(part);
        }
        let number = folder.as_ref().map(AsRawFd::as_raw_fd);
        let path = number.map_or(rest.clone(), |number| {
            PathBuf::from(format!("/proc/self/fd/{number}")).join(rest)
        });
        Ok(Self { path, _folder: folder })
    }
}

/// The data ranges of a file, without holes.
fn data_parts(file: &File, size: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut parts = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL) => return Ok(vec![(0, size)]),
            Err(error) => return Err(error.into()),
        };
        let end = seek(file, SeekFrom::Hole(start))?.min(size);
        if start >= end {
            break;
        }
        parts.push((start, end - start));
        at = end;
    }
    Ok(parts)
}

/// Opens a regular file that was listed before. Fails if a symbolic link has replaced it, and does
/// not block if a pipe has.
fn open(path: &Path) -> io::Result<File> {
    // Linux's flags fit an i32.
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        let changed = "is no longer a regular file";
        return Err(io::Error::new(io::ErrorKind::InvalidData, changed));
    }
    Ok(file)
}

fn attributes(metadata: &Metadata, xattrs: XattrsId) -> Attributes {
    // Below a billion, as the kernel guarantees.
    let nanos = u32::try_from(metadata.mtime_nsec()).unwrap_or(0);
    let attributes = Attributes {
        // Only permission bits.
        mode: (metadata.mode() & 0o7777) as u16,
        uid: metadata.uid(),
        gid: metadata.gid(),
        xattrs,
        ..Attributes::default()
    };
    attributes.at(Timestamp { seconds: metadata.mtime(), nanoseconds: nanos })
}

/// Buffers for names and for a value, reused for every file.
struct Room {
    names: Vec<u8>,
    value: Vec<u8>,
}

impl Room {
    fn new() -> Self {
        Self { names: vec![0; MOST_XATTR_BYTES], value: vec![0; MOST_XATTR_BYTES] }
    }

    fn xattrs(&mut self, path: &Path, tree: &mut Tree) -> io::Result<XattrsId> {
        let len = match llistxattr(path, &mut self.names[..]) {
            Ok(0) | Err(Errno::OPNOTSUPP) => return Ok(XattrsId::default()),
            Ok(len) => len,
            Err(errno) => return Err(errno.into()),
        };
        let mut found = Vec::new();
        for name in self.names[..len].split(|&byte| byte == 0).filter(|name| is_kept(name)) {
            match lgetxattr(path, OsStr::from_bytes(name), &mut self.value[..]) {
                Ok(len) => found.push(Xattr::new(name, &self.value[..len])),
                // It was removed, or is visible only to privileged processes.
                Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(tree.keep_xattrs(found))
    }
}

/// Whether an attribute belongs to the file rather than to the system it lies on.
fn is_kept(name: &[u8]) -> bool {
    let kept = [&b"user."[..], b"trusted.", b"security.", b"system.posix_acl_"];
    let dropped = [
        &b"security.selinux"[..],
        b"security.SMACK64",
        b"security.ima",
        b"security.evm",
        b"trusted.overlay.",
    ];
    let begins = |list: &[&[u8]]| list.iter().any(|prefix| name.starts_with(prefix));
    begins(&kept) && !begins(&dropped)
}

fn read_error(path: &Path, source: io::Error) -> SourceError {
    SourceError::Read { path: path.to_owned(), source }
}

/// The paths of files, with few bytes for each, because there may be millions.
#[derive(Default)]
struct Files {
    folders: Vec<Box<Path>>,
    /// All names, concatenated.
    names: Vec<u8>,
    places: Vec<Place>,
}

struct Place {
    /// First byte of the name.
    start: u64,
    folder: u32,
    len: u8,
}

impl Files {
    /// Adds a file of the folder added last.
    fn add(&mut self, name: &OsStr) -> ContentId {
        let start = self.names.len() as u64;
        self.names.extend(name.as_bytes());
        // A tree has fewer than 2^32 folders, and a name at most 255 bytes.
        let folder = self.folders.len().saturating_sub(1) as u32;
        self.places.push(Place { start, folder, len: name.len().min(255) as u8 });
        ContentId(self.places.len() as u64 - 1)
    }

    fn path(&self, content: ContentId) -> Option<PathBuf> {
        let place = self.places.get(usize::try_from(content.0).ok()?)?;
        let start = usize::try_from(place.start).ok()?;
        let name = self.names.get(start..start + usize::from(place.len))?;
        Some(self.folders.get(place.folder as usize)?.join(OsStr::from_bytes(name)))
    }
}

struct DirContents {
    files: Files,
}

impl Contents for DirContents {
    fn read_at(&self, content: ContentId, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let path = self.files.path(content).ok_or(io::ErrorKind::NotFound)?;
        Short::of(&path)
            .and_then(|at| open(&at.path))
            .and_then(|file| file.read_exact_at(into, offset))
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::is_kept;

    #[test]
    fn labels_of_this_system_stay_here() {
        for name in ["user.a", "security.capability", "trusted.x", "system.posix_acl_default"] {
            assert!(is_kept(name.as_bytes()), "{name}");
        }
        for name in [
            "security.selinux",
            "security.SMACK64EXEC",
            "security.ima",
            "security.evm",
            "trusted.overlay.opaque",
            "system.nfs4_acl",
            "btrfs.compression",
        ] {
            assert!(!is_kept(name.as_bytes()), "{name}");
        }
    }
}
