//! Common to the formats with tables: the mapping from a virtual disk to its file.

use std::io;
use std::ops::Range;

use crate::{ReadBlocks, within};

/// Where a range of a virtual disk is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Not stored: it reads as zeroes.
    Zeroes,
    /// In the image file, from this byte on.
    Stored(u64),
    /// Packed, in a cluster that this table entry describes.
    Packed(u64),
    /// In the backing image, at the same offset.
    Below,
}

/// A virtual disk with a table that maps its bytes.
pub(super) trait Layout: Send + Sync {
    /// Bytes of the virtual disk.
    fn virtual_bytes(&self) -> u64;

    /// The image file.
    fn file(&self) -> &dyn ReadBlocks;

    /// Unit in which the file is allocated, in bytes. Programs may truncate the last unit; the
    /// missing bytes read as zeroes.
    fn unit_bytes(&self) -> u64;

    /// The place of the byte at `offset_bytes` (inside the disk), and the number of bytes from
    /// there on that are contiguous: at least one, and preferably up to `wanted_bytes`.
    fn place(&self, offset_bytes: u64, wanted_bytes: u64) -> io::Result<(Place, u64)>;

    /// Reads from a packed cluster. `offset_bytes` is that of the virtual disk.
    fn read_packed(&self, _entry: u64, _offset_bytes: u64, _into: &mut [u8]) -> io::Result<()> {
        Err(damaged("a packed cluster in a format without any"))
    }

    /// The backing image, for [`Place::Below`].
    fn below(&self) -> Option<&dyn ReadBlocks> {
        None
    }
}

/// The error of an invalid table or cluster.
pub(super) fn damaged(what: impl Into<String>) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("the disk image is damaged: {}", what.into()),
    )
}

/// [`ReadBlocks::read_at`] of a virtual disk.
pub(super) fn read(disk: &impl Layout, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
    within(disk.virtual_bytes(), offset_bytes, into.len())?;
    let mut done = 0;
    while done < into.len() {
        let at = offset_bytes + done as u64;
        let rest = (into.len() - done) as u64;
        let (place, len) = disk.place(at, rest)?;
        // At most `rest`, which came from a usize.
        let part = &mut into[done..done + len.clamp(1, rest) as usize];
        done += part.len();
        match place {
            Place::Zeroes => part.fill(0),
            Place::Stored(from) => read_stored(disk, from, part)?,
            Place::Packed(entry) => disk.read_packed(entry, at, part)?,
            Place::Below => read_below(disk.below(), at, part)?,
        }
    }
    Ok(())
}

/// Reads stored bytes. Bytes missing from the last unit of the file read as zeroes.
fn read_stored(disk: &impl Layout, from: u64, into: &mut [u8]) -> io::Result<()> {
    let file = disk.file();
    let there = file.size_bytes().saturating_sub(from).min(into.len() as u64);
    let last = file.size_bytes().checked_next_multiple_of(disk.unit_bytes()).unwrap_or(u64::MAX);
    if from.checked_add(into.len() as u64).is_none_or(|end| end > last) {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            format!("the disk image is truncated: it has no data at byte {}", from.max(last)),
        ));
    }
    let (stored, missing) = into.split_at_mut(there as usize);
    missing.fill(0);
    if stored.is_empty() { Ok(()) } else { file.read_at(from, stored) }
}

/// Reads from the backing image. Bytes past its end read as zeroes.
fn read_below(below: Option<&dyn ReadBlocks>, from: u64, into: &mut [u8]) -> io::Result<()> {
    let there = below.map_or(0, |below| below.size_bytes()).saturating_sub(from);
    let (stored, missing) = into.split_at_mut(there.min(into.len() as u64) as usize);
    missing.fill(0);
    match below {
        Some(below) if !stored.is_empty() => below.read_at(from, stored),
        _ => Ok(()),
    }
}

/// [`ReadBlocks::is_hole`] of a virtual disk: whether the table alone says that the whole range is
/// zero.
pub(super) fn is_hole(disk: &impl Layout, offset_bytes: u64, len_bytes: u64) -> bool {
    let Some(end) = offset_bytes.checked_add(len_bytes) else { return false };
    if len_bytes == 0 || end > disk.virtual_bytes() {
        return false;
    }
    let mut at = offset_bytes;
    while at < end {
        let Ok((place, len)) = disk.place(at, end - at) else { return false };
        let part = at..at + len.clamp(1, end - at);
        let hole = match place {
            Place::Zeroes => true,
            Place::Stored(from) => disk.file().is_hole(from, part.end - part.start),
            Place::Packed(_) => false,
            Place::Below => is_hole_below(disk.below(), &part),
        };
        if !hole {
            return false;
        }
        at = part.end;
    }
    true
}

fn is_hole_below(below: Option<&dyn ReadBlocks>, part: &Range<u64>) -> bool {
    let Some(below) = below else { return true };
    let there = below.size_bytes().min(part.end);
    there <= part.start || below.is_hole(part.start, there - part.start)
}
