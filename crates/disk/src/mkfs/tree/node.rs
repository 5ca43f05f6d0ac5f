//! The nodes of a tree.

use floe_format::ext::inode::{FileType, Timestamp};

use super::contents::ContentId;
use super::names::LinkId;
use super::xattrs::XattrsId;

/// A node of a tree: the root, or a file of any type with at least one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub(super) u32);

impl NodeId {
    /// Its index, below [`Tree::bound`](super::Tree::bound), for tables indexed by node.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The id that Linux gives to nobody: for `chown` it stands for "unchanged", and Linux refuses to change a file that has it.
pub const NOBODY: u32 = u32::MAX;

/// Owner, permissions, times and extended attributes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// Permissions with set-uid, set-gid and sticky; bits above 0o7777 are ignored.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last access.
    pub atime: Timestamp,
    /// Last change of the inode.
    pub ctime: Timestamp,
    /// Extended attributes ([`Tree::keep_xattrs`](super::Tree::keep_xattrs)).
    pub xattrs: XattrsId,
}

impl Attributes {
    /// A directory owned by root, with times 0 and without extended attributes.
    pub fn directory(mode: u16) -> Self {
        Self { mode, ..Self::default() }
    }

    /// A file owned by root, with times 0 and without extended attributes.
    pub fn file(mode: u16) -> Self {
        Self { mode, ..Self::default() }
    }

    /// The root directory as mke2fs makes it: owned by root, mode 0755.
    pub fn root() -> Self {
        Self::directory(0o755)
    }

    /// The same with all three times set.
    #[must_use]
    pub fn at(self, time: Timestamp) -> Self {
        Self { mtime: time, atime: time, ctime: time, ..self }
    }
}

/// A part of a file that has data; the rest is holes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte in the file.
    pub at: u64,
    /// Bytes, at least 1.
    pub len: u64,
    /// The content that holds them.
    pub content: ContentId,
    /// First byte in the content.
    pub from: u64,
}

/// The data of a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Data {
    /// All of it lies contiguously in one content.
    Whole {
        /// The content.
        content: ContentId,
        /// First byte in the content.
        from: u64,
    },
    /// Parts, in order, not overlapping and within the file; the rest is holes.
    Sparse(Box<[Extent]>),
}

/// The type of a file, with the data of that type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// A directory.
    Directory,
    /// A regular file.
    File {
        /// Bytes.
        size: u64,
        /// Its data.
        data: Data,
    },
    /// A symbolic link and its target, 1 to 4095 bytes.
    Symlink(Box<[u8]>),
    /// A character device.
    CharDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
}

impl Body {
    /// A file without holes: `size` bytes of a content, from byte `from` on.
    pub fn file(size: u64, content: ContentId, from: u64) -> Self {
        Self::File { size, data: Data::Whole { content, from } }
    }

    /// A file of `size` bytes with data only in `extents`. They are sorted, and clipped to the end
    /// of the file and by earlier extents; empty ones are dropped.
    pub fn sparse(size: u64, mut extents: Vec<Extent>) -> Self {
        extents.sort_by_key(|extent| extent.at);
        let mut end = 0;
        extents.retain_mut(|extent| {
            let cut = end.clamp(extent.at, extent.at.saturating_add(extent.len)) - extent.at;
            (extent.at, extent.from, extent.len) =
                (extent.at + cut, extent.from.saturating_add(cut), extent.len - cut);
            extent.len = extent.len.min(size.saturating_sub(extent.at));
            end = end.max(extent.at + extent.len);
            extent.len > 0
        });
        Self::File { size, data: Data::Sparse(extents.into()) }
    }

    /// An empty file.
    pub fn empty_file() -> Self {
        Self::sparse(0, Vec::new())
    }

    /// The type of the file.
    pub fn file_type(&self) -> FileType {
        match self {
            Self::Directory => FileType::Directory,
            Self::File { .. } => FileType::Regular,
            Self::Symlink(_) => FileType::Symlink,
            Self::CharDevice { .. } => FileType::CharDevice,
            Self::BlockDevice { .. } => FileType::BlockDevice,
            Self::Fifo => FileType::Fifo,
            Self::Socket => FileType::Socket,
        }
    }
}

/// A node: [`Attributes`], [`Body`], and its names.
#[derive(Debug)]
pub struct Node {
    seconds: [i64; 3],
    pub(super) body: Body,
    nanos: [u32; 3],
    uid: u32,
    gid: u32,
    xattrs: XattrsId,
    pub(super) links: u32,
    pub(super) children: u32,
    pub(super) first_child: Option<LinkId>,
    pub(super) last_link: Option<LinkId>,
    mode: u16,
}

impl Node {
    pub(super) fn new(attributes: Attributes, body: Body) -> Self {
        let mut node = Self {
            seconds: [0; 3],
            body,
            nanos: [0; 3],
            uid: 0,
            gid: 0,
            xattrs: XattrsId::default(),
            links: 0,
            children: 0,
            first_child: None,
            last_link: None,
            mode: 0,
        };
        node.set_attributes(attributes);
        node
    }

    pub(super) fn set_attributes(&mut self, attributes: Attributes) {
        let times = [attributes.mtime, attributes.atime, attributes.ctime];
        self.seconds = times.map(|time| time.seconds);
        self.nanos = times.map(|time| time.nanoseconds.min(999_999_999));
        self.mode = attributes.mode & 0o7777;
        (self.uid, self.gid) = (attributes.uid, attributes.gid);
        self.xattrs = attributes.xattrs;
    }

    /// Owner, permissions, times and extended attributes.
    pub fn attributes(&self) -> Attributes {
        let time = |at: usize| Timestamp { seconds: self.seconds[at], nanoseconds: self.nanos[at] };
        Attributes {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            mtime: time(0),
            atime: time(1),
            ctime: time(2),
            xattrs: self.xattrs,
        }
    }

    /// Type and permissions, as `i_mode` stores them.
    pub fn mode(&self) -> u16 {
        self.file_type().mode(self.mode)
    }

    /// The type of the file.
    pub fn file_type(&self) -> FileType {
        self.body.file_type()
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.body, Body::Directory)
    }

    /// The body.
    pub fn body(&self) -> &Body {
        &self.body
    }

    /// Bytes of a regular file or of a symbolic link's target; 0 for other types.
    pub fn size(&self) -> u64 {
        match &self.body {
            Body::File { size, .. } => *size,
            Body::Symlink(target) => target.len() as u64,
            _ => 0,
        }
    }

    /// Number of its names in the tree (hard links). The root has none.
    pub fn link_count(&self) -> u32 {
        self.links
    }

    /// Number of names in it; 0 if it is not a directory.
    pub(crate) fn child_count(&self) -> u32 {
        self.children
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_put_in_order_and_cut() {
        let part = |at, len, from| Extent { at, len, content: ContentId(1), from };
        let body = Body::sparse(
            100,
            vec![part(90, 20, 500), part(0, 10, 0), part(5, 10, 40), part(7, 2, 9)],
        );
        let Body::File { size: 100, data: Data::Sparse(extents) } = body else {
            panic!("{body:?}")
        };
        assert_eq!(&extents[..], [part(0, 10, 0), part(10, 5, 45), part(90, 10, 500)]);
        assert_eq!(Body::sparse(0, vec![part(0, 1, 0), part(u64::MAX, 5, 0)]), Body::empty_file());
    }

    #[test]
    fn a_node_takes_little_memory() {
        assert!(size_of::<Node>() <= 112, "{}", size_of::<Node>());
    }
}
