//! VHD images, fixed and dynamic, for reading. Source: Microsoft's "Virtual Hard Disk Image Format
//! Specification" 1.0.
//!
//! A footer of 512 bytes ends the file. A fixed image has the disk before it; a dynamic image has
//! blocks, each behind a bitmap of its sectors, and a table with the offset of each block. The
//! bitmaps are not read: sectors that were never written are zero in the block, too. A read follows
//! one link, so it cannot loop.

use std::io;

use floe_format::layout::be;

use super::place::{self, Layout, Place};
use super::{Format, ImageError};
use crate::ReadBlocks;

pub(super) const MAGIC: &[u8; 8] = b"conectix";
const FOOTER_BYTES: usize = 512;
const HEADER_BYTES: usize = 1024;
const SECTOR_BYTES: u64 = 512;
/// A table entry whose block is not allocated.
const UNUSED: u32 = u32::MAX;
/// Table entries, at most: 2 TiB in blocks of 512 KiB; the format's limit is 2040 GiB.
const MOST_BLOCKS: u64 = 4 << 20;

/// The kind of image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fixed,
    Dynamic,
    Differencing,
}

/// The fields of a footer that Floe uses.
#[derive(Clone, Copy, Debug)]
struct Footer {
    kind: Kind,
    header_offset_bytes: u64,
    disk_bytes: u64,
}

/// The ones' complement of the sum of all bytes except the checksum field.
fn checksum(bytes: &[u8], field: usize) -> u32 {
    let own = field..field + 4;
    let others = bytes.iter().enumerate().filter(|(at, _)| !own.contains(at));
    !others.map(|(_, &byte)| u32::from(byte)).fold(0, u32::wrapping_add)
}

impl Footer {
    /// `None` if this is not a valid footer.
    fn decode(bytes: &[u8; FOOTER_BYTES]) -> Option<Self> {
        if !bytes.starts_with(MAGIC) || be::<u32, 64, FOOTER_BYTES>(bytes) != checksum(bytes, 64) {
            return None;
        }
        let kind = match be::<u32, 60, FOOTER_BYTES>(bytes) {
            2 => Kind::Fixed,
            3 => Kind::Dynamic,
            4 => Kind::Differencing,
            _ => return None,
        };
        Some(Self {
            kind,
            header_offset_bytes: be::<u64, 16, FOOTER_BYTES>(bytes),
            disk_bytes: be::<u64, 48, FOOTER_BYTES>(bytes),
        })
    }

    /// The footer, or its copy at the start of the file (which a fixed image does not have).
    fn read(file: &dyn ReadBlocks) -> Option<Self> {
        let at = |offset: u64| {
            let mut bytes = [0; FOOTER_BYTES];
            file.read_at(offset, &mut bytes).ok()?;
            Self::decode(&bytes)
        };
        let end = file.size_bytes().checked_sub(FOOTER_BYTES as u64)?;
        at(end).or_else(|| at(0).filter(|footer| footer.kind != Kind::Fixed))
    }
}

/// Whether `file` is a VHD image: it has a valid footer, or starts like the copy of one.
pub(super) fn is_one(file: &dyn ReadBlocks, head: &[u8]) -> bool {
    head.starts_with(MAGIC) || Footer::read(file).is_some()
}

/// Bytes of the disk in a fixed image, which starts at byte 0 of the file. `None` for any other.
pub(super) fn fixed_bytes(file: &dyn ReadBlocks) -> Option<u64> {
    let footer = Footer::read(file).filter(|footer| footer.kind == Kind::Fixed)?;
    Some(footer.disk_bytes.min(file.size_bytes() - FOOTER_BYTES as u64))
}

/// A VHD image as the disk that is in it.
pub struct Vhd {
    file: Box<dyn ReadBlocks>,
    disk_bytes: u64,
    /// `None`: fixed.
    blocks: Option<Blocks>,
}

struct Blocks {
    block_bytes: u64,
    /// Bytes of the bitmap in front of a block.
    bitmap_bytes: u64,
    /// Sectors of the file at which blocks start.
    table: Vec<u32>,
}

fn damaged(what: impl Into<String>) -> ImageError {
    ImageError::Damaged { format: Format::Vhd, what: what.into() }
}

impl Vhd {
    /// Opens the image in `file`.
    ///
    /// # Errors
    /// Damage, or a differencing image.
    pub fn open(file: Box<dyn ReadBlocks>) -> Result<Self, ImageError> {
        let footer = Footer::read(&file)
            .ok_or_else(|| damaged("its footer and the copy at its start are both damaged"))?;
        let disk_bytes = footer.disk_bytes;
        match footer.kind {
            Kind::Fixed => {
                let there = file.size_bytes() - FOOTER_BYTES as u64;
                if disk_bytes > there {
                    return Err(damaged(format!(
                        "the disk has {disk_bytes} bytes, but the file holds only {there}"
                    )));
                }
                Ok(Self { file, disk_bytes, blocks: None })
            }
            Kind::Dynamic => {
                let blocks = Blocks::read(&file, &footer)?;
                Ok(Self { file, disk_bytes, blocks: Some(blocks) })
            }
            Kind::Differencing => Err(ImageError::Unsupported {
                format: Format::Vhd,
                what: "a parent image (it is a differencing disk); merge it into its parent, or \
                       convert it to a raw image"
                    .to_owned(),
            }),
        }
    }
}

impl Blocks {
    fn read(file: &dyn ReadBlocks, footer: &Footer) -> Result<Self, ImageError> {
        let mut header = [0; HEADER_BYTES];
        file.read_at(footer.header_offset_bytes, &mut header)
            .map_err(|_| damaged("the header of its table lies past the end of the file"))?;
        if !header.starts_with(b"cxsparse")
            || be::<u32, 36, HEADER_BYTES>(&header) != checksum(&header, 36)
        {
            return Err(damaged("the header of its table is damaged"));
        }
        let table_offset_bytes = be::<u64, 16, HEADER_BYTES>(&header);
        let entries = u64::from(be::<u32, 28, HEADER_BYTES>(&header));
        let block_bytes = u64::from(be::<u32, 32, HEADER_BYTES>(&header));
        if !block_bytes.is_power_of_two() || block_bytes < SECTOR_BYTES {
            return Err(damaged(format!("blocks of {block_bytes} bytes")));
        }
        let needed = footer.disk_bytes.div_ceil(block_bytes);
        if needed > entries || needed > MOST_BLOCKS {
            return Err(damaged(format!(
                "a table of {entries} blocks, but the disk needs {needed}"
            )));
        }
        let len = needed * 4;
        // Checked before memory for it is allocated.
        if table_offset_bytes.checked_add(len).is_none_or(|end| end > file.size_bytes()) {
            return Err(damaged("its table passes the end of the file (is it truncated?)"));
        }
        let mut bytes = vec![0; len as usize];
        file.read_at(table_offset_bytes, &mut bytes)?;
        let number = |bytes: &[u8]| bytes.first_chunk().map_or(UNUSED, |b| u32::from_be_bytes(*b));
        Ok(Self {
            block_bytes,
            bitmap_bytes: (block_bytes / SECTOR_BYTES).div_ceil(8).next_multiple_of(SECTOR_BYTES),
            table: bytes.chunks_exact(4).map(number).collect(),
        })
    }
}

impl Layout for Vhd {
    fn virtual_bytes(&self) -> u64 {
        self.disk_bytes
    }

    fn file(&self) -> &dyn ReadBlocks {
        &self.file
    }

    fn unit_bytes(&self) -> u64 {
        SECTOR_BYTES
    }

    fn place(&self, offset_bytes: u64, _wanted_bytes: u64) -> io::Result<(Place, u64)> {
        let Some(blocks) = &self.blocks else {
            return Ok((Place::Stored(offset_bytes), self.disk_bytes - offset_bytes));
        };
        let within = offset_bytes % blocks.block_bytes;
        let entry = usize::try_from(offset_bytes / blocks.block_bytes)
            .ok()
            .and_then(|block| blocks.table.get(block))
            .ok_or_else(|| place::damaged("its table is too short for the disk"))?;
        let place = if *entry == UNUSED {
            Place::Zeroes
        } else {
            // At most 2^41 and 2^32, so the sum cannot overflow.
            Place::Stored(u64::from(*entry) * SECTOR_BYTES + blocks.bitmap_bytes + within)
        };
        Ok((place, blocks.block_bytes - within))
    }
}

impl ReadBlocks for Vhd {
    fn size_bytes(&self) -> u64 {
        self.disk_bytes
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        place::read(self, offset_bytes, into)
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        place::is_hole(self, offset_bytes, len_bytes)
    }
}
