//! What a file system holds: every path, with what a user would miss if a repair lost it.
//!
//! Read in two ways that share nothing: by testkit's own small reader, which needs no rights and
//! sees encrypted names as they are stored, and through a mount, as the kernel sees it. Trees are
//! compared only with trees that were read the same way: names and attributes may look different.

mod mounted;
mod stored;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use floe_format::InodeNr;
use floe_format::ext::inode::FileType;

pub use mounted::mounted;
pub use stored::stored;

/// All paths below and with the root `/`, as bytes.
pub type Tree = BTreeMap<Vec<u8>, Node>;

/// An object that a path leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its type; `None` for an undefined one.
    pub kind: Option<FileType>,
    /// Paths with the same number are hard links.
    pub inode: InodeNr,
    /// Bytes of a file or of a link's target; 0 for everything else.
    pub size_bytes: u64,
    /// A digest of the content of a file, of a link's target or of a device's number; empty for
    /// everything else. What cannot be read is said in words.
    pub content: String,
    /// Of a regular file: a digest of each piece of [`PIECE_BYTES`] bytes that is not all zeroes, by
    /// its offset in bytes.
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
    /// Why the content or the attributes cannot be read; `None` if they can.
    pub fn unreadable(&self) -> Option<String> {
        if self.content.starts_with(UNREADABLE) {
            return Some(self.content.clone());
        }
        // No attribute has an empty name.
        let why = self.xattrs.get(&Vec::new())?;
        Some(format!("attributes: {}", String::from_utf8_lossy(why)))
    }

    /// What makes two objects the same to a user, wherever they are.
    pub fn identity(&self) -> (Option<FileType>, u64, &str) {
        (self.kind, self.size_bytes, &self.content)
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == Some(FileType::Directory)
    }
}

/// What the content begins with of an object that cannot be read.
pub const UNREADABLE: &str = "cannot be read";

/// Digests of the pieces of a file, by their offsets in bytes.
pub type Pieces = BTreeMap<u64, u64>;

/// Bytes of the pieces that a digest is made of: no block is smaller.
pub const PIECE_BYTES: usize = 1024;

/// A digest of a file's content that holes and written zeroes do not change.
#[derive(Default)]
struct Digest {
    whole: DefaultHasher,
    pieces: Pieces,
}

impl Digest {
    /// Goes on with `bytes`, which lie at `offset_bytes`, a multiple of [`PIECE_BYTES`]. Pieces must
    /// come in order.
    fn add(&mut self, offset_bytes: u64, bytes: &[u8]) {
        for (at, piece) in (0u64..).zip(bytes.chunks(PIECE_BYTES)) {
            if piece.iter().all(|&byte| byte == 0) {
                continue;
            }
            let mut whole = [0; PIECE_BYTES];
            whole[..piece.len()].copy_from_slice(piece);
            let offset_bytes = offset_bytes + at * PIECE_BYTES as u64;
            self.whole.write_u64(offset_bytes);
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

    /// The kernel and the small reader see the same files.
    #[test]
    fn both_ways_of_reading_agree() {
        if let Err(reason) = tool::available().and_then(|()| kernel::mount_available()) {
            eprintln!("skipped: {reason}");
            return;
        }
        // A mount takes long, so not every profile has one.
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
            // Names and attributes of ACLs look different; contents, owners and links do not.
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
