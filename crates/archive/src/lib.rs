//! Tar archives: ustar, PAX and GNU, read where they lie and written as PAX.
//!
//! [`Reader`] reads headers only and says where in the archive the bytes of each file are, so that a
//! plain archive needs no copy. It trusts nothing: numbers are checked, headers may not be larger than
//! [`MOST_HEADER_BYTES`], and no archive can make it loop. The `tar` crate was not taken because it
//! reads neither the sparse formats of PAX nor attributes of libarchive.
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

/// Bytes of a header and unit of everything in an archive.
pub const BLOCK_BYTES: u64 = 512;
/// Bytes of the extended headers of one file, or of its map of holes, at most.
pub const MOST_HEADER_BYTES: u64 = 16 << 20;

/// An archive that can be read at any byte.
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

/// What an entry is.
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

/// One file of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path as stored: it may begin with `/` or `./`, hold `..`, or end with `/`.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Target of a link; empty for all others.
    pub link: Vec<u8>,
    /// Permissions: 0 to 0o7777.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the data.
    pub mtime: Timestamp,
    /// Last access, where the archive has it. Not written.
    pub atime: Option<Timestamp>,
    /// Last change of the inode, where the archive has it. Not written.
    pub ctime: Option<Timestamp>,
    /// Bytes of a regular file, holes included; 0 for all others.
    pub size: u64,
    /// The bytes that are stored, ascending and not overlapping; the rest are zeroes.
    pub parts: Vec<Part>,
    /// Major and minor number of a device.
    pub device: (u32, u32),
    /// Extended attributes by name, sorted, each once; access lists as system calls have them.
    pub attributes: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Entry {
    /// An entry with a path and a type, and zeroes for everything else.
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

/// Why an archive cannot be read on.
#[derive(Debug, thiserror::Error)]
#[error("at byte {offset_bytes} of the archive: {fault}")]
pub struct ArchiveError {
    /// Byte of the header that was being read.
    pub offset_bytes: u64,
    /// What is wrong.
    pub fault: ArchiveFault,
}

/// What is wrong with an archive.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveFault {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Read(#[from] io::Error),
    /// A header whose checksum is wrong: damage, or no archive at all.
    #[error("there is no tar header (its checksum is wrong)")]
    Checksum,
    /// The archive ends inside a header or a file.
    #[error("the archive is cut off")]
    Truncated,
    /// A number that is none, or too large.
    #[error("{0} is not a number that can be used")]
    Number(&'static str),
    /// Extended headers that make no sense.
    #[error("the extended header is damaged")]
    Extended,
    /// Headers of one file that are larger than [`MOST_HEADER_BYTES`].
    #[error("the headers of one file are larger than {MOST_HEADER_BYTES} bytes")]
    TooLarge,
    /// A map of holes that makes no sense.
    #[error("the map of a sparse file is damaged")]
    Sparse,
    /// An access list that makes no sense, or that names users who cannot be known here.
    #[error("the access list {0:?} cannot be used: users and groups must be numbers")]
    AccessList(String),
    /// A type that cannot be unpacked: a part of a file from several volumes, for example.
    #[error("entries of type {0:?} are not supported")]
    Kind(char),
}
