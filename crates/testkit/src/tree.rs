//! The content of a file system: every path, with everything a user would miss.
//!
//! Read by two independent methods: by testkit's own small reader, which needs no privileges and
//! sees encrypted names as stored, and through a mount, as the kernel sees it. Only trees read by
//! the same method are comparable: names and attributes may look different.

mod mounted;
mod stored;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use floe_format::InodeNr;
use floe_format::ext::inode::FileType;

pub use mounted::mounted;
pub use stored::stored;

/// All paths from the root `/`, as bytes.
pub type Tree = BTreeMap<Vec<u8>, Node>;

/// The object at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its type; `None` if invalid.
    pub kind: Option<FileType>,
    /// Paths with the same number are hard links.
    pub inode: InodeNr,
    /// Size of a file or a link target in bytes; 0 for other types.
    pub size_bytes: u64,
    /// Digest of a file's content, a link target or a device number; empty for other types. If
    /// unreadable, a message that says so.
    pub content: String,
    /// For regular files: digests of all chunks of [`PIECE_BYTES`] bytes that are not all zero, by
    /// byte offset.
    pub pieces: Pieces,
    /// Permissions.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Extended attributes and their values.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Node {
    /// The reason why content or attributes are unreadable, if so.
    pub fn unreadable(&self) -> Option<String> {
        if self.content.starts_with(UNREADABLE) {
            return Some(self.content.clone());
        }
        // No real attribute has an empty name, so that key holds the error.
        let why = self.xattrs.get(&Vec::new())?;
        Some(format!("attributes: {}", String::from_utf8_lossy(why)))
    }

    /// Identity of the object for a user, regardless of its path.
    pub fn identity(&self) -> (Option<FileType>, u64, &str) {
        (self.kind, self.size_bytes, &self.content)
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == Some(FileType::Directory)
    }
}

/// Prefix of the content of an unreadable object.
pub const UNREADABLE: &str = "cannot be read";

/// Digests of the chunks of a file, by byte offset.
pub type Pieces = BTreeMap<u64, u64>;

/// Bytes per digested chunk: the smallest block size.
pub const PIECE_BYTES: usize = 1024;

/// A digest of a file's content that does not distinguish holes from written zeroes.
#[derive(Default)]
struct Digest {
    whole: DefaultHasher,
    pieces: Pieces,
}

impl Digest {
    /// Adds `bytes`, located at `offset_bytes`, a multiple of [`PIECE_BYTES`]. Chunks must arrive
    /// in order.
    fn add(&mut self, offset_bytes: u64, bytes: &[u8]) {
        for (at, piece) in (0u64..).zip(bytes.chunks(PIECE_BYTES)) {
            if *piece == [0; PIECE_BYTES][..piece.len()] {
                continue;
            }
            let mut whole = [0; PIECE_BYTES];
            whole[..piece.len()].copy_from_slice(piece);
            let offset_bytes = offset_bytes + at * PIECE_BYTES as u64;
            self.whole.write(&offset_bytes.to_le_bytes());
            self.whole.write(&whole);
            let mut piece = DefaultHasher::default();
            piece.write(&whole);
            self.pieces.insert(offset_bytes, piece.finish());
        }
    }

    fn text(&self) -> String {
        format!("{:016x}", self.whole.finish())
    }
}

/// The digest of a content that is known as a whole, as it stands in [`Node::content`].
pub fn digest(bytes: &[u8]) -> String {
    let mut digest = Digest::default();
    digest.add(0, bytes);
    digest.text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Profile, build, kernel, tool};

    #[test]
    fn holes_are_zeroes() {
        let mut sparse = Digest::default();
        sparse.add(4096, &[1, 2, 3]);
        let mut whole = vec![0; 4099];
        whole[4096..].copy_from_slice(&[1, 2, 3]);
        assert_eq!(sparse.text(), digest(&whole));
        assert_ne!(sparse.text(), digest(&[1, 2, 3]));
    }

    /// The kernel and the small reader return the same files.
    #[test]
    fn both_ways_of_reading_agree() {
        if let Err(reason) = tool::available().and_then(|()| kernel::mount_available()) {
            eprintln!("skipped: {reason}");
            return;
        }
        // Mounts are slow, so only some profiles are tested.
        let profiles = [
            Profile::Ext2K1,
            Profile::Ext2Rev0,
            Profile::Ext4,
            Profile::NoExtents,
            Profile::InlineEaInode,
            Profile::Bigalloc,
            Profile::Quota,
        ];
        for profile in profiles {
            let image = build::base(profile).expect("a clean image");
            let stored = stored(&image).expect("a clean image");
            let mount = kernel::Mounted::new(image.path(), "ro,noload").expect("a clean image");
            let mounted = mounted(mount.path()).expect("a clean image");
            mount.unmount().expect("nobody uses it");
            // Names and attributes of ACLs look different; contents, owners and links must match.
            let plain = |tree: &Tree| -> Vec<_> {
                let mut nodes: Vec<_> = tree
                    .values()
                    .map(|node| {
                        let (kind, size, content) = node.identity();
                        let content = content.to_owned();
                        let owner = (node.uid, node.gid, node.permissions);
                        (node.inode, kind, size, content, owner, node.xattrs.len())
                    })
                    .collect();
                nodes.sort();
                nodes
            };
            assert!(stored.len() > 20, "{profile}: {}", stored.len());
            let (stored, mounted) = (plain(&stored), plain(&mounted));
            for (ours, theirs) in stored.iter().zip(&mounted) {
                assert_eq!(ours, theirs, "{profile}");
            }
            assert_eq!(stored.len(), mounted.len(), "{profile}");
        }
    }
}
