//! Tar archives: reads ustar, PAX and GNU archives in place, and writes PAX.
//!
//! [`Reader`] reads headers only and returns the offsets of each file's bytes, so that a plain
//! archive needs no copy. It trusts nothing: numbers are validated, headers are limited to
//! `MOST_HEADER_BYTES`, and no archive can make it loop. The `tar` crate was not chosen because
//! it reads neither the sparse formats of PAX nor libarchive's attributes.
//!
//! ```
//! use floe_archive::{Entry, Kind, Reader, Writer};
//!
//! let mut writer = Writer::new(Vec::new());
//! writer.append(&Entry { mode: 0o644, size: 5, ..Entry::new(b"hello", Kind::File) })?;
//! std::io::Write::write_all(&mut writer, b"world")?;
//! let archive = writer.finish()?;
//!
//! let mut reader = Reader::new(&archive[..]);
//! let entry = reader.next_entry().unwrap().unwrap();
//! assert_eq!((&entry.path[..], entry.size), (&b"hello"[..], 5));
//! let part = entry.parts[0];
//! assert_eq!(&archive[part.from as usize..][..part.len as usize], b"world");
//! assert!(reader.next_entry().unwrap().is_none());
//! # Ok::<(), std::io::Error>(())
//! ```

#![warn(clippy::print_stderr, clippy::print_stdout)] // messages are the program's

mod acl;
mod extended;
mod header;
mod number;
mod pax;
mod reader;
mod sparse;
mod writer;

use std::io;

pub use floe_format::ext::inode::Timestamp;
pub use reader::Reader;
pub use writer::Writer;

/// Bytes of a header, and the unit of everything in an archive.
pub const BLOCK_BYTES: u64 = 512;
/// Bytes of the extended headers of one file, or of its map of holes, at most.
pub(crate) const MOST_HEADER_BYTES: u64 = 16 << 20;

/// An archive with random access.
pub trait Archive {
    /// Bytes of the archive.
    fn size_bytes(&self) -> u64;

    /// Fills `into` with the bytes from `offset_bytes` on.
    ///
    /// # Errors
    /// `UnexpectedEof` past the end, or the system's error.
    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()>;
}

impl Archive for [u8] {
    fn size_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset_bytes).unwrap_or(usize::MAX);
        let end = start.saturating_add(into.len());
        let part = self.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(part);
        Ok(())
    }
}

/// The type of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file, sparse or not.
    File,
    /// Another name of an earlier (or, in odd archives, later) entry: [`Entry::link`].
    HardLink,
    /// A symbolic link to [`Entry::link`].
    SymbolicLink,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
    /// A directory.
    Directory,
    /// A FIFO.
    Fifo,
}

/// Bytes of a file that are stored in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// First byte in the file.
    pub at: u64,
    /// Bytes; at least 1.
    pub len: u64,
    /// First byte in the archive. Ignored when written.
    pub from: u64,
}

/// One entry of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path as stored: it may start with `/` or `./`, contain `..`, or end with `/`.
    pub path: Vec<u8>,
    /// Its type.
    pub kind: Kind,
    /// Target of a link; empty for other types.
    pub link: Vec<u8>,
    /// Permissions: 0 to 0o7777.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last access, if the archive has it. Not written.
    pub atime: Option<Timestamp>,
    /// Last change of the inode, if the archive has it. Not written.
    pub ctime: Option<Timestamp>,
    /// Bytes of a regular file, including holes; 0 for other types.
    pub size: u64,
    /// The stored parts, ascending and not overlapping; the rest is zeroes.
    pub parts: Vec<Part>,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Extended attributes, sorted by name, each once; ACLs in the form of system calls.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Entry {
    /// An entry with a path and a type, and zeroes in all other fields.
    pub fn new(path: &[u8], kind: Kind) -> Self {
        Self {
            path: path.to_vec(),
            kind,
            link: Vec::new(),
            mode: 0,
            uid: 0,
            gid: 0,
            mtime: Timestamp::default(),
            atime: None,
            ctime: None,
            size: 0,
            parts: Vec::new(),
            device: (0, 0),
            attributes: Vec::new(),
        }
    }
}

/// Why reading an archive stopped.
#[derive(Debug, thiserror::Error)]
#[error("at byte {offset_bytes} of the archive: {fault}")]
pub struct ArchiveError {
    /// Byte of the header that was being read.
    pub offset_bytes: u64,
    /// The fault.
    pub fault: ArchiveFault,
}

/// The fault of an archive.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveFault {
    /// A read error.
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    /// A header with a wrong checksum: damage, or not an archive.
    #[error("there is no tar header (its checksum is wrong)")]
    Checksum,
    /// Not a single byte, as from a pipe whose writer failed.
    #[error("it is empty: even an archive without files has blocks that end it")]
    Empty,
    /// Zeroes, which end an archive, and then something else, as an image of a file system begins.
    #[error(
        "it begins with zeroes, but is no archive: other bytes follow. An image of a file system is read by its name \
         (image:FILE)"
    )]
    Zeroes,
    /// An extended header is the last one.
    #[error("the file of an extended header is missing")]
    Fileless,
    /// The archive ends inside a header or a file.
    #[error("the archive is truncated")]
    Truncated,
    /// A field that is not a number, or one out of range.
    #[error("{0} is not a valid number")]
    Number(&'static str),
    /// Invalid extended headers.
    #[error("the extended header is damaged")]
    Extended,
    /// Headers of one file that exceed `MOST_HEADER_BYTES`.
    #[error("the headers of one file are larger than {MOST_HEADER_BYTES} bytes")]
    TooLarge,
    /// An invalid map of holes.
    #[error("the map of a sparse file is damaged")]
    Sparse,
    /// A form of sparse files that did not exist when this was written.
    #[error("sparse files of form {major}.{minor} are not supported")]
    SparseForm {
        /// The first number of the form.
        major: u64,
        /// The second one.
        minor: u64,
    },
    /// An access control list that is none, or one with user names that cannot be resolved here.
    #[error("{path}: the access list {list:?} cannot be used: users and groups must be numbers")]
    AccessList {
        /// The path of the entry, escaped for printing.
        path: String,
        /// The list.
        list: String,
    },
    /// An unsupported type, for example a part of a file in a multi-volume archive.
    #[error("entries of type {0:?} are not supported")]
    Kind(char),
}
