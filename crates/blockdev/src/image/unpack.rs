//! gzip and zstd files: unpacked once into a temporary file without a name, with holes for zeroes.
//!
//! Neither format has random access, and a check reads all over a disk, so the content is kept: it
//! takes one pass at the speed of the decoder, and space for the content without its zeroes in the
//! folder for temporary files. (Decoder states at many offsets would need less, 32 KiB each, but
//! each scattered read would then unpack about a megabyte.) The file has no name, so it disappears
//! with the process.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::gzip::Members;
use super::zstd::Frames;
use super::{Format, ImageError};
use crate::{FileDevice, ReadBlocks};

/// Bytes unpacked at once.
const PIECE_BYTES: usize = 1 << 20;
/// Zeroes are left out in units of this: the block size of most file systems.
const HOLE_BYTES: usize = 4096;
/// Bytes left free for others in the folder for temporary files.
const SPARED_BYTES: u64 = 64 << 20;

/// Unpacks `file`, in format `format`, into a file without a name in `folder`.
pub(super) fn unpack(
    file: &dyn ReadBlocks,
    format: Format,
    folder: &Path,
) -> Result<FileDevice, ImageError> {
    let source = BufReader::with_capacity(PIECE_BYTES, Reader { file, at: 0 });
    let scratch = |source| ImageError::Scratch { folder: folder.to_owned(), source };
    let target = tempfile::tempfile_in(folder).map_err(scratch)?;
    let size_bytes = copy(unpacked(format, source), &target).map_err(|failure| match failure {
        Failure::Read(error) if is_damage(&error) => {
            ImageError::Damaged { format, what: format!("it cannot be unpacked: {error}") }
        }
        Failure::Read(source) => ImageError::Read { source },
        Failure::Write(source) => scratch(source),
    })?;
    target.set_len(size_bytes).map_err(scratch)?;
    FileDevice::of_file(target).map_err(scratch)
}

/// The content of `packed`: of [`Format::Gzip`], or otherwise of [`Format::Zstd`], with any number of members or frames.
///
/// Nothing limits how much comes out; take only as much as there may be.
pub fn unpacked<'a>(format: Format, packed: impl BufRead + 'a) -> Box<dyn Read + 'a> {
    match format {
        Format::Gzip => Box::new(Members::new(packed)),
        _ => Box::new(Frames::new(packed)),
    }
}

/// Whether the decoder returned the error, not the system.
fn is_damage(error: &io::Error) -> bool {
    error.raw_os_error().is_none()
}

enum Failure {
    Read(io::Error),
    Write(io::Error),
}

/// Copies to the end, leaving holes for zeroes; returns the number of bytes of the content.
fn copy(mut from: impl Read, to: &File) -> Result<u64, Failure> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut size_bytes = 0u64;
    let mut unchecked_bytes = SPARED_BYTES;
    loop {
        let mut len = 0;
        while len < piece.len() {
            match from.read(&mut piece[len..]) {
                Ok(0) => break,
                Ok(read) => len += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::Read(error)),
            }
        }
        if unchecked_bytes >= SPARED_BYTES {
            leave_room(to).map_err(Failure::Write)?;
            unchecked_bytes = 0;
        }
        unchecked_bytes += write(to, size_bytes, &piece[..len]).map_err(Failure::Write)?;
        size_bytes += len as u64;
        if len < piece.len() {
            return Ok(size_bytes);
        }
    }
}

/// Writes the pieces that are not zero; returns how many bytes it wrote.
fn write(to: &File, offset_bytes: u64, piece: &[u8]) -> io::Result<u64> {
    let is_zero = |part: &[u8]| part.iter().all(|&byte| byte == 0);
    let mut written = 0;
    let mut start = 0;
    while start < piece.len() {
        let rest = &piece[start..];
        let blocks = |zero: bool| {
            rest.chunks(HOLE_BYTES).take_while(|part| is_zero(part) == zero).map(<[u8]>::len).sum()
        };
        let zeroes: usize = blocks(true);
        if zeroes > 0 {
            start += zeroes;
            continue;
        }
        let len: usize = blocks(false);
        to.write_all_at(&rest[..len], offset_bytes + start as u64)?;
        start += len;
        written += len as u64;
    }
    Ok(written)
}

/// Fails rather than filling the folder for temporary files, which other programs need.
fn leave_room(file: &File) -> io::Result<()> {
    let system = rustix::fs::fstatvfs(file)?;
    // tmpfs without a limit may report 0 blocks.
    let free_bytes = system.f_bavail.saturating_mul(system.f_frsize);
    if system.f_blocks > 0 && free_bytes < 2 * SPARED_BYTES {
        return Err(io::Error::new(io::ErrorKind::StorageFull, "less than 128 MiB are free"));
    }
    Ok(())
}

/// A device as a stream.
struct Reader<'a> {
    file: &'a dyn ReadBlocks,
    at: u64,
}

impl Read for Reader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let rest = self.file.size_bytes().saturating_sub(self.at);
        let len = rest.min(into.len() as u64) as usize;
        self.file.read_at(self.at, &mut into[..len])?;
        self.at += len as u64;
        Ok(len)
    }
}
