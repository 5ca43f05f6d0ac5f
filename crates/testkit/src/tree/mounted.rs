//! Reads a tree through a mount.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use floe_format::InodeNr;
use floe_format::ext::inode::FileType;
use rustix::fs::{SeekFrom, lgetxattr, llistxattr, major, minor, seek};

use super::{Digest, Node, PIECE_BYTES, Pieces, Tree, UNREADABLE, digest};

/// Bytes per read; a multiple of a chunk.
const CHUNK_BYTES: usize = 64 * PIECE_BYTES;

/// The tree below `folder`, the mount point.
///
/// # Errors
/// The root cannot be read. Read errors of other objects are stored in their nodes.
pub fn mounted(folder: &Path) -> Result<Tree> {
    let mut tree = Tree::new();
    tree.insert(b"/".to_vec(), node(folder)?);
    let mut folders = vec![Vec::new()];
    while let Some(path) = folders.pop() {
        let place = folder.join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(&path)));
        let read = fs::read_dir(&place).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
        let entries = match read {
            Ok(entries) => entries,
            Err(error) => {
                let path = if path.is_empty() { b"/".to_vec() } else { path };
                if let Some(node) = tree.get_mut(&path) {
                    node.content = format!("{UNREADABLE}: {error}");
                }
                continue;
            }
        };
        for entry in entries {
            let path = [&path[..], b"/", entry.file_name().as_bytes()].concat();
            let node = node(&entry.path())?;
            if node.is_dir() {
                folders.push(path.clone());
            }
            tree.insert(path, node);
        }
    }
    Ok(tree)
}

fn node(path: &Path) -> Result<Node> {
    let metadata =
        fs::symlink_metadata(path).with_context(|| format!("looking at {}", path.display()))?;
    let mode = u16::try_from(metadata.mode()).unwrap_or(0);
    let kind = FileType::of_mode(mode);
    let no_pieces = |text: String| (text, Pieces::new());
    let (size_bytes, content) = match kind {
        Some(FileType::Regular) => (metadata.len(), file(path, metadata.len())),
        Some(FileType::Symlink) => {
            let target = fs::read_link(path);
            let digest = |target: PathBuf| no_pieces(digest(target.as_os_str().as_bytes()));
            (metadata.len(), target.map(digest))
        }
        Some(FileType::CharDevice | FileType::BlockDevice) => {
            let number = metadata.rdev();
            (0, Ok(no_pieces(format!("{}:{}", major(number), minor(number)))))
        }
        _ => (0, Ok(Default::default())),
    };
    let (content, pieces) =
        content.unwrap_or_else(|error| no_pieces(format!("{UNREADABLE}: {error}")));
    Ok(Node {
        kind,
        inode: InodeNr(u32::try_from(metadata.ino())?),
        size_bytes,
        content,
        pieces,
        permissions: mode & 0o7777,
        uid: metadata.uid(),
        gid: metadata.gid(),
        xattrs: xattrs(path)
            .unwrap_or_else(|error| BTreeMap::from([(Vec::new(), error.to_string().into())])),
    })
}

/// The digest of a file, and those of its chunks; holes are not read.
fn file(path: &Path, size_bytes: u64) -> io::Result<(String, Pieces)> {
    let file = File::open(path)?;
    let mut digest = Digest::default();
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut at = 0;
    while at < size_bytes {
        let data = match seek(&file, SeekFrom::Data(at)) {
            Ok(data) => data,
            // Linux answers so behind the data of a file in its inode that is longer than these.
            Err(rustix::io::Errno::NXIO | rustix::io::Errno::NOENT) => break,
            Err(error) => return Err(error.into()),
        };
        let end = match seek(&file, SeekFrom::Hole(data)) {
            Ok(hole) => hole.min(size_bytes),
            Err(rustix::io::Errno::NOENT) => size_bytes,
            Err(error) => return Err(error.into()),
        };
        at = data - data % PIECE_BYTES as u64;
        while at < end {
            let wanted =
                usize::try_from((size_bytes - at).min(CHUNK_BYTES as u64)).unwrap_or(CHUNK_BYTES);
            file.read_exact_at(&mut buffer[..wanted], at)?;
            digest.add(at, &buffer[..wanted]);
            at += wanted as u64;
        }
    }
    Ok((digest.text(), digest.pieces))
}

fn xattrs(path: &Path) -> io::Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut names = vec![0; 1 << 16];
    let len = llistxattr(path, &mut names[..])?;
    let mut found = BTreeMap::new();
    let mut value = vec![0; 1 << 16];
    for name in names[..len].split(|&byte| byte == 0).filter(|name| !name.is_empty()) {
        let len = lgetxattr(path, name, &mut value[..])?;
        let stored = if len > 4096 { digest(&value[..len]).into() } else { value[..len].to_vec() };
        found.insert(name.to_vec(), stored);
    }
    Ok(found)
}
