//! Reads the entries of an archive in order.

use std::io;

use crate::extended::Extended;
use crate::header::{Block, Header, SIZE};
use crate::pax::{self, Record};
use crate::sparse::{self, Map, read};
use crate::{
    Archive, ArchiveError, ArchiveFault, BLOCK_BYTES, Entry, Kind, MOST_HEADER_BYTES, Part,
    Timestamp, acl,
};

/// Bytes read at once behind the end.
const PIECE_BYTES: usize = 1 << 16;
/// Bytes of global headers kept, at most, because they are scanned for each file.
const MOST_GLOBAL_BYTES: usize = 1 << 20;

/// Reads the headers of an archive. After an error there are no more entries.
pub struct Reader<'a, A: ?Sized> {
    archive: &'a A,
    at: u64,
    /// Records of global headers, one per key.
    globals: Vec<Record>,
    done: bool,
    has_end: bool,
}

/// Extended headers before an entry.
#[derive(Default)]
struct Pending {
    records: Vec<Record>,
    /// From GNU's `L` and `K` headers.
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    bytes: u64,
    /// Whether they belong to a file, and not only to the archive.
    wait: bool,
}

impl<'a, A: Archive + ?Sized> Reader<'a, A> {
    /// A reader at the first byte.
    pub fn new(archive: &'a A) -> Self {
        Self { archive, at: 0, globals: Vec::new(), done: false, has_end: false }
    }

    /// The next entry; `None` at the end: a block of zeroes, or the last byte.
    ///
    /// # Errors
    /// If the archive is damaged, truncated, or uses an unsupported feature.
    pub fn next_entry(&mut self) -> Result<Option<Entry>, ArchiveError> {
        if self.done {
            return Ok(None);
        }
        let result = self.read_entry();
        self.done = !matches!(result, Ok(Some(_)));
        result.map_err(|fault| ArchiveError { offset_bytes: self.at, fault })
    }

    /// Whether the block of zeroes was read that ends an archive. An archive without one may be cut off.
    pub const fn has_end(&self) -> bool {
        self.has_end
    }

    /// Whether anything but zeroes follows the end of the archive, once it was read: another archive, or what is none.
    ///
    /// # Errors
    /// If that cannot be read.
    pub fn holds_more(&self) -> io::Result<bool> {
        let (mut at, size) = (self.at, self.archive.size_bytes());
        let mut piece = vec![0; PIECE_BYTES];
        while at < size {
            let len = (size - at).min(piece.len() as u64) as usize;
            self.archive.read_at(at, &mut piece[..len])?;
            if piece[..len].iter().any(|&byte| byte != 0) {
                return Ok(true);
            }
            at += len as u64;
        }
        Ok(false)
    }

    fn read_entry(&mut self) -> Result<Option<Entry>, ArchiveFault> {
        let mut pending = Pending::default();
        loop {
            if self.at == self.archive.size_bytes() {
                return if pending.wait { Err(ArchiveFault::Truncated) } else { Ok(None) };
            }
            let mut block = [0; SIZE];
            read(self.archive, self.at, &mut block)?;
            let header = match Header::read(&block) {
                Block::Header(header) => header,
                Block::End => {
                    self.has_end = true;
                    if self.at == 0 && self.holds_more()? {
                        return Err(ArchiveFault::Zeroes);
                    }
                    return if pending.wait { Err(ArchiveFault::Fileless) } else { Ok(None) };
                }
                Block::Broken => return Err(ArchiveFault::Checksum),
            };
            pending.wait |= matches!(header.kind(), b'L' | b'K' | b'x' | b'X');
            match header.kind() {
                b'L' => pending.path = Some(without_zero(self.content(&header, &mut pending)?)),
                b'K' => pending.link = Some(without_zero(self.content(&header, &mut pending)?)),
                b'x' | b'X' => {
                    let bytes = self.content(&header, &mut pending)?;
                    let records = pax::records(&bytes).ok_or(ArchiveFault::Extended)?;
                    pending.records.extend(records);
                }
                b'g' => {
                    let bytes = self.content(&header, &mut pending)?;
                    self.keep_globals(pax::records(&bytes).ok_or(ArchiveFault::Extended)?)?;
                }
                // A volume label.
                b'V' => {
                    let len = stored_bytes(header.size(), None)?;
                    self.at = self.behind(self.at + BLOCK_BYTES, len)?;
                }
                _ => return self.finish(&header, pending).map(Some),
            }
        }
    }

    /// The bytes behind a header. They count towards the limit of this entry's headers.
    fn content(
        &mut self,
        header: &Header<'_>,
        pending: &mut Pending,
    ) -> Result<Vec<u8>, ArchiveFault> {
        let len = stored_bytes(header.size(), None)?;
        pending.bytes = pending.bytes.saturating_add(len).saturating_add(BLOCK_BYTES);
        if pending.bytes > MOST_HEADER_BYTES {
            return Err(ArchiveFault::TooLarge);
        }
        let start = self.at + BLOCK_BYTES;
        let next = self.behind(start, len)?;
        // Limited above.
        let mut bytes = vec![0; len as usize];
        read(self.archive, start, &mut bytes)?;
        self.at = next;
        Ok(bytes)
    }

    fn keep_globals(&mut self, records: Vec<Record>) -> Result<(), ArchiveFault> {
        for (key, value) in records {
            self.globals.retain(|(known, _)| *known != key);
            self.globals.push((key, value));
        }
        let bytes: usize = self.globals.iter().map(|(key, value)| key.len() + value.len()).sum();
        if bytes > MOST_GLOBAL_BYTES { Err(ArchiveFault::TooLarge) } else { Ok(()) }
    }

    /// Offset of the header behind `len` bytes from `start` on. An archive that ends inside the padding was cut off: whatever
    /// followed is lost.
    fn behind(&self, start: u64, len: u64) -> Result<u64, ArchiveFault> {
        let size = self.archive.size_bytes();
        let end = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(BLOCK_BYTES));
        end.filter(|&end| end <= size).ok_or(ArchiveFault::Truncated)
    }

    fn finish(&mut self, header: &Header<'_>, pending: Pending) -> Result<Entry, ArchiveFault> {
        let mut extended = Extended::of(self.globals.iter().chain(&pending.records))?;
        let path = extended.path.take().or(pending.path).unwrap_or_else(|| header.path());
        if let Some(list) = extended.odd_list {
            return Err(ArchiveFault::AccessList { path: shown(&path), list });
        }
        let kind = kind_of(header.kind(), &path)?;
        let mut entry = Entry::new(&path, kind);
        if matches!(kind, Kind::HardLink | Kind::SymbolicLink) {
            entry.link = extended.link.take().or(pending.link).unwrap_or_else(|| header.link());
        }
        let number = |stored: Option<i64>, better: Option<u64>, field: &'static str| {
            let value = better.or_else(|| stored.and_then(|value| u64::try_from(value).ok()));
            value.and_then(|value| u32::try_from(value).ok()).ok_or(ArchiveFault::Number(field))
        };
        let mode = header.mode().ok_or(ArchiveFault::Number("mode"))?;
        // Only mode bits.
        entry.mode = (mode & 0o7777) as u16;
        entry.uid = number(header.uid(), extended.uid, "uid")?;
        entry.gid = number(header.gid(), extended.gid, "gid")?;
        let stored = header.mtime().map(|seconds| Timestamp { seconds, nanoseconds: 0 });
        entry.mtime = extended.mtime.or(stored).ok_or(ArchiveFault::Number("mtime"))?;
        (entry.atime, entry.ctime) = (extended.atime, extended.ctime);
        if matches!(kind, Kind::CharDevice | Kind::BlockDevice) {
            let stored = header.device();
            let major = number(stored.map(|device| device.0), extended.major, "devmajor")?;
            entry.device =
                (major, number(stored.map(|device| device.1), extended.minor, "devminor")?);
        }
        entry.attributes = extended.attributes();
        acl::settle(&mut entry);
        let stored_bytes = stored_bytes(header.size(), extended.size)?;
        self.place(header, &extended, stored_bytes, &mut entry)?;
        Ok(entry)
    }

    /// Locates the bytes of an entry, and advances behind them.
    fn place(
        &mut self,
        header: &Header<'_>,
        extended: &Extended,
        stored: u64,
        entry: &mut Entry,
    ) -> Result<(), ArchiveFault> {
        let start = self.at + BLOCK_BYTES;
        if entry.kind != Kind::File {
            // Some programs set a size here, but store nothing.
            let is_empty = stored == 0 || header.kind() != b'D' && self.is_header(start);
            self.at = if is_empty { start } else { self.behind(start, stored)? };
            return Ok(());
        }
        let (map, size, from): (Option<Map>, u64, u64) = if header.kind() == b'S' {
            let (first, more, size) = header.sparse();
            let (map, from) = sparse::old(self.archive, first, more, start)?;
            let size = size.and_then(|size| u64::try_from(size).ok());
            (Some(map), size.ok_or(ArchiveFault::Number("realsize"))?, from)
        } else if extended.sparse.has_stored_map()? {
            let (map, from) = sparse::stored(self.archive, start, stored)?;
            (Some(map), extended.sparse.size.ok_or(ArchiveFault::Sparse)?, from)
        } else if let Some(map) = &extended.sparse.map {
            (Some(map.clone()), extended.sparse.size.ok_or(ArchiveFault::Sparse)?, start)
        } else if extended.sparse.size.is_some_and(|size| size != stored) {
            return Err(ArchiveFault::Sparse);
        } else {
            (None, stored, start)
        };
        // The map of form 1.0 counts as stored bytes; that of the old form does not.
        let begin = if header.kind() == b'S' { from } else { start };
        let next = self.behind(begin, stored)?;
        entry.size = size;
        entry.parts = match map {
            Some(map) => {
                let data_bytes = stored.saturating_sub(from - begin);
                sparse::place(&map, size, from, data_bytes).ok_or(ArchiveFault::Sparse)?
            }
            None if size > 0 => vec![Part { at: 0, len: size, from }],
            None => Vec::new(),
        };
        if let Some(name) = &extended.sparse.name {
            entry.path.clone_from(name);
        }
        self.at = next;
        Ok(())
    }

    /// Whether a header, or the end of the archive, lies at an offset.
    fn is_header(&self, at: u64) -> bool {
        let mut block = [0; SIZE];
        at >= self.archive.size_bytes()
            || self.archive.read_at(at, &mut block).is_ok()
                && !matches!(Header::read(&block), Block::Broken)
    }
}

/// Number of bytes stored behind a header.
fn stored_bytes(stored: Option<i64>, better: Option<u64>) -> Result<u64, ArchiveFault> {
    let stored = stored.and_then(|size| u64::try_from(size).ok());
    better.or(stored).ok_or(ArchiveFault::Number("size"))
}

/// A path for messages.
fn shown(path: &[u8]) -> String {
    String::from_utf8_lossy(path).escape_debug().to_string()
}

fn without_zero(mut bytes: Vec<u8>) -> Vec<u8> {
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    bytes.truncate(len);
    bytes
}

fn kind_of(flag: u8, path: &[u8]) -> Result<Kind, ArchiveFault> {
    Ok(match flag {
        b'1' => Kind::HardLink,
        b'2' => Kind::SymbolicLink,
        b'3' => Kind::CharDevice,
        b'4' => Kind::BlockDevice,
        b'5' | b'D' => Kind::Directory,
        b'6' => Kind::Fifo,
        b'S' => Kind::File,
        b'A'..=b'Z' => return Err(ArchiveFault::Kind(char::from(flag))),
        // Before ustar, only the name marked a directory.
        _ if path.ends_with(b"/") => Kind::Directory,
        // Contiguous files, and types that POSIX may add.
        _ => Kind::File,
    })
}
