//! Writes PAX archives: ustar headers, with extended headers only where those are insufficient.

use std::io::{self, Write};

use floe_format::ext::xattr::acl::{ACCESS, DEFAULT};

use crate::header::{SIZE, sum};
use crate::{BLOCK_BYTES, Entry, Kind, acl, number, pax};

/// The largest numbers of seven and of eleven octal digits.
const MOST_SEVEN: u64 = 0o777_7777;
const MOST_ELEVEN: u64 = 0o777_7777_7777;
/// Bytes of a name in a header.
const NAME: usize = 100;

/// Writes an archive. Equal entries give equal bytes.
pub struct Writer<W: Write> {
    target: W,
    /// Bytes of the current entry still to be written, and padding after them.
    open_bytes: u64,
    padding: u64,
}

impl<W: Write> Writer<W> {
    /// A writer of an empty archive.
    pub fn new(target: W) -> Self {
        Self { target, open_bytes: 0, padding: 0 }
    }

    /// Starts an entry. For a file, the caller must then write exactly [`Entry::size`] bytes.
    ///
    /// # Errors
    /// If the last entry is incomplete, or writing fails.
    pub fn append(&mut self, entry: &Entry) -> io::Result<()> {
        let size = if entry.kind == Kind::File { entry.size } else { 0 };
        let records = records(entry, size);
        self.begin(entry, &records, &entry.path, size)
    }

    /// Starts a sparse file. The caller must then write the bytes of [`Entry::parts`] in order
    /// (GNU's form 1.0, which bsdtar reads, too).
    ///
    /// # Errors
    /// Those of [`Writer::append`].
    pub fn append_sparse(&mut self, entry: &Entry) -> io::Result<()> {
        // An empty last part marks the end of the file.
        let mut map = format!("{}\n", entry.parts.len() + 1);
        let mut data_bytes = 0;
        for part in &entry.parts {
            map.push_str(&format!("{}\n{}\n", part.at, part.len));
            data_bytes += part.len;
        }
        map.push_str(&format!("{}\n0\n", entry.size));
        let mut map = map.into_bytes();
        map.resize(map.len().next_multiple_of(SIZE), 0);
        let size = map.len() as u64 + data_bytes;
        let short = [b"GNUSparseFile.0/", base_name(&entry.path)].concat();
        let mut records = records(&Entry { path: short.clone(), ..entry.clone() }, size);
        let real = entry.size.to_string();
        let fields: [(&[u8], &[u8]); 4] = [
            (b"GNU.sparse.major", b"1"),
            (b"GNU.sparse.minor", b"0"),
            (b"GNU.sparse.name", &entry.path),
            (b"GNU.sparse.realsize", real.as_bytes()),
        ];
        for (key, value) in fields {
            pax::push(&mut records, key, value);
        }
        self.begin(entry, &records, &short, size)?;
        self.write_all(&map)
    }

    fn begin(&mut self, entry: &Entry, records: &[u8], path: &[u8], size: u64) -> io::Result<()> {
        self.close()?;
        if !records.is_empty() {
            let name = [b"PaxHeaders/", base_name(path)].concat();
            let own = Entry { mode: 0o644, mtime: entry.mtime, ..Entry::new(&name, Kind::File) };
            self.header(&own, &name, b'x', records.len() as u64)?;
            self.write_all(records)?;
            self.close()?;
        }
        let flag = match entry.kind {
            Kind::File => b'0',
            Kind::HardLink => b'1',
            Kind::SymbolicLink => b'2',
            Kind::CharDevice => b'3',
            Kind::BlockDevice => b'4',
            Kind::Directory => b'5',
            Kind::Fifo => b'6',
        };
        self.header(entry, path, flag, size)
    }

    fn header(&mut self, entry: &Entry, path: &[u8], flag: u8, size: u64) -> io::Result<()> {
        let mut header = [0; SIZE];
        let mut text = |at: usize, bytes: &[u8]| {
            header[at..at + bytes.len()].copy_from_slice(bytes);
        };
        let octal = |value: u64, digits: usize| format!("{value:0digits$o}").into_bytes();
        text(0, &path[..path.len().min(NAME)]);
        text(100, &octal(u64::from(entry.mode), 7));
        text(108, &octal(u64::from(entry.uid).min(MOST_SEVEN), 7));
        text(116, &octal(u64::from(entry.gid).min(MOST_SEVEN), 7));
        text(124, &octal(size.min(MOST_ELEVEN), 11));
        let seconds = u64::try_from(entry.mtime.seconds).unwrap_or(0);
        text(136, &octal(seconds.min(MOST_ELEVEN), 11));
        text(156, &[flag]);
        text(157, &entry.link[..entry.link.len().min(NAME)]);
        text(257, b"ustar\x0000");
        text(329, &octal(u64::from(entry.device.0).min(MOST_SEVEN), 7));
        text(337, &octal(u64::from(entry.device.1).min(MOST_SEVEN), 7));
        let checksum = format!("{:06o}\0 ", sum(&header));
        header[148..156].copy_from_slice(checksum.as_bytes());
        self.target.write_all(&header)?;
        self.open_bytes = size;
        self.padding = size.next_multiple_of(BLOCK_BYTES) - size;
        Ok(())
    }

    /// Pads to a whole block.
    fn close(&mut self) -> io::Result<()> {
        if self.open_bytes > 0 {
            let missing = format!("{} bytes of the entry before are missing", self.open_bytes);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, missing));
        }
        // Less than a block.
        let padding = std::mem::take(&mut self.padding) as usize;
        self.target.write_all(&[0; SIZE][..padding])
    }

    /// Ends the archive with two blocks of zeroes. Returns the target.
    ///
    /// # Errors
    /// Those of [`Writer::append`].
    pub fn finish(mut self) -> io::Result<W> {
        self.close()?;
        self.target.write_all(&[0; 2 * SIZE])?;
        self.target.flush()?;
        Ok(self.target)
    }
}

impl<W: Write> Write for Writer<W> {
    /// Writes bytes of the current entry.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.open_bytes {
            let more = "more bytes than the size of the entry";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, more));
        }
        let len = self.target.write(bytes)?;
        self.open_bytes -= len as u64;
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.target.flush()
    }
}

/// The records of all fields that a ustar header cannot store.
fn records(entry: &Entry, size: u64) -> Vec<u8> {
    let mut records = Vec::new();
    let is_text = |bytes: &[u8]| std::str::from_utf8(bytes).is_ok();
    let (path, link) = (&entry.path, &entry.link);
    if path.len() > NAME && !is_text(path) || link.len() > NAME && !is_text(link) {
        pax::push(&mut records, b"hdrcharset", b"BINARY");
    }
    for (key, value) in [(&b"path"[..], path), (b"linkpath", link)] {
        if value.len() > NAME {
            pax::push(&mut records, key, value);
        }
    }
    let numbers = [
        (&b"size"[..], size, MOST_ELEVEN),
        (b"uid", u64::from(entry.uid), MOST_SEVEN),
        (b"gid", u64::from(entry.gid), MOST_SEVEN),
        (b"SCHILY.devmajor", u64::from(entry.device.0), MOST_SEVEN),
        (b"SCHILY.devminor", u64::from(entry.device.1), MOST_SEVEN),
    ];
    for (key, value, most) in numbers {
        if value > most {
            pax::push(&mut records, key, value.to_string().as_bytes());
        }
    }
    let seconds = u64::try_from(entry.mtime.seconds);
    if entry.mtime.nanoseconds != 0
        || seconds.is_ok_and(|seconds| seconds > MOST_ELEVEN)
        || seconds.is_err()
    {
        pax::push(&mut records, b"mtime", number::time_text(entry.mtime).as_bytes());
    }
    for (name, value) in &entry.attributes {
        let list = match &name[..] {
            ACCESS => Some(&b"SCHILY.acl.access"[..]),
            DEFAULT => Some(&b"SCHILY.acl.default"[..]),
            _ => None,
        };
        match list.and_then(|key| Some((key, acl::to_text(value)?))) {
            Some((key, text)) => pax::push(&mut records, key, text.as_bytes()),
            None => {
                let key = [b"SCHILY.xattr.", &escape(name)[..]].concat();
                pax::push(&mut records, &key, value);
            }
        }
    }
    records
}

/// The name of an attribute, with `=` and `%` escaped as in GNU tar.
fn escape(name: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(name.len());
    for &byte in name {
        match byte {
            b'=' => escaped.extend(b"%3D"),
            b'%' => escaped.extend(b"%25"),
            byte => escaped.push(byte),
        }
    }
    escaped
}

/// The last component of a path.
fn base_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').find(|name| !name.is_empty()).unwrap_or(b"root")
}
