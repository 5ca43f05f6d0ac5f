//! Access to the bytes of files.

use std::io;

/// The id of a content that a source can read. The source defines its meaning: a source of tar
/// archives may use one id for the whole archive and offsets in it, one of directories the index of
/// the node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentId(pub u64);

/// Reads the bytes of files while a file system is written, from several threads at a time.
///
/// An implementation may borrow the [`Tree`](super::Tree) that it belongs to, for paths.
pub trait Contents: Sync {
    /// Fills all of `into` from byte `offset` of a content.
    ///
    /// # Errors
    /// Any error of reading; [`io::ErrorKind::UnexpectedEof`] if the content ends too early, for
    /// example because a file shrank since the tree was made. The error should name the file.
    fn read_at(&self, content: ContentId, offset: u64, into: &mut [u8]) -> io::Result<()>;
}

/// The contents of a tree without file data.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoContents;

impl Contents for NoContents {
    fn read_at(&self, content: ContentId, _offset: u64, _into: &mut [u8]) -> io::Result<()> {
        Err(io::Error::new(io::ErrorKind::NotFound, format!("no content {}", content.0)))
    }
}
