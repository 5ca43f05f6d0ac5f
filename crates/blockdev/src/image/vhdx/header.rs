//! The headers of a VHDX image, its region table and its metadata. Source: Microsoft's open
//! specification MS-VHDX.

use floe_format::crc::crc32c;
use floe_format::layout::le;

use crate::ReadBlocks;
use crate::image::{Format, ImageError};

pub(in crate::image) const MAGIC: &[u8; 8] = b"vhdxfile";
const HEADER_OFFSETS: [u64; 2] = [64 << 10, 128 << 10];
const HEADER_BYTES: usize = 4096;
const TABLE_OFFSETS: [u64; 2] = [192 << 10, 256 << 10];
const TABLE_BYTES: usize = 64 << 10;
/// Regions and metadata items are aligned to this.
const MIB: u64 = 1 << 20;
/// Entries of the region table and of the metadata table, at most.
const MOST_ENTRIES: usize = 2047;
/// The format's own limit.
const MOST_DISK_BYTES: u64 = 64 << 40;

/// The stored bytes of a GUID, from its written form.
const fn guid(a: u32, b: u16, c: u16, d: [u8; 8]) -> [u8; 16] {
    let (a, b, c) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes());
    [a[0], a[1], a[2], a[3], b[0], b[1], c[0], c[1], d[0], d[1], d[2], d[3], d[4], d[5], d[6], d[7]]
}

const BLOCK_TABLE: [u8; 16] =
    guid(0x2dc2_7766, 0xf623, 0x4200, [0x9d, 0x64, 0x11, 0x5e, 0x9b, 0xfd, 0x4a, 0x08]);
const METADATA: [u8; 16] =
    guid(0x8b7c_a206, 0x4790, 0x4b9a, [0xb8, 0xfe, 0x57, 0x5f, 0x05, 0x0f, 0x88, 0x6e]);
const FILE_PARAMETERS: [u8; 16] =
    guid(0xcaa1_6737, 0xfa36, 0x4d43, [0xb3, 0xb6, 0x33, 0xf0, 0xaa, 0x44, 0xe7, 0x6b]);
const DISK_SIZE: [u8; 16] =
    guid(0x2fa5_4224, 0xcd1b, 0x4876, [0xb2, 0x11, 0x5d, 0xbe, 0xd8, 0x3b, 0xf4, 0xb8]);
const DISK_ID: [u8; 16] =
    guid(0xbeca_12ab, 0xb2e6, 0x4523, [0x93, 0xef, 0xc3, 0x09, 0xe0, 0x00, 0xc7, 0x46]);
const LOGICAL_SECTOR: [u8; 16] =
    guid(0x8141_bf1d, 0xa96f, 0x4709, [0xba, 0x47, 0xf2, 0x33, 0xa8, 0xfa, 0xab, 0x5f]);
const PHYSICAL_SECTOR: [u8; 16] =
    guid(0xcda3_48c7, 0x445d, 0x4471, [0x9c, 0xc9, 0xe9, 0x88, 0x52, 0x51, 0xc5, 0x56]);
const PARENT: [u8; 16] =
    guid(0xa8d3_5f2d, 0xb30b, 0x454d, [0xab, 0xf7, 0xd3, 0xd8, 0x48, 0x34, 0xab, 0x0c]);

pub(super) fn damaged(what: impl Into<String>) -> ImageError {
    ImageError::Damaged { format: Format::Vhdx, what: what.into() }
}

pub(super) fn unsupported(what: impl Into<String>) -> ImageError {
    ImageError::Unsupported { format: Format::Vhdx, what: what.into() }
}

/// The log's place, and the id that its active entries carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogPlace {
    pub(super) offset_bytes: u64,
    pub(super) len_bytes: u32,
    /// Zero: the log is empty.
    pub(super) id: [u8; 16],
}

/// Finds the log, from the newer of the two headers.
pub(super) fn log_place(file: &dyn ReadBlocks) -> Result<LogPlace, ImageError> {
    let mut best: Option<(u64, LogPlace)> = None;
    for offset in HEADER_OFFSETS {
        let mut bytes = [0; HEADER_BYTES];
        if file.read_at(offset, &mut bytes).is_err() || !is_signed(&bytes, b"head") {
            continue;
        }
        let sequence = le::<u64, 8, HEADER_BYTES>(&bytes);
        if best.is_some_and(|(other, _)| other >= sequence) {
            continue;
        }
        let version = le::<u16, 66, HEADER_BYTES>(&bytes);
        if version != 1 {
            return Err(unsupported(format!("version {version} of the format")));
        }
        let place = LogPlace {
            offset_bytes: le::<u64, 72, HEADER_BYTES>(&bytes),
            len_bytes: le::<u32, 68, HEADER_BYTES>(&bytes),
            id: le::<[u8; 16], 48, HEADER_BYTES>(&bytes),
        };
        best = Some((sequence, place));
    }
    best.map(|(_, place)| place).ok_or_else(|| damaged("both its headers are damaged"))
}

/// Whether `bytes` have a signature and a valid checksum (at byte 4; its field counts as zero).
pub(super) fn is_signed(bytes: &[u8], signature: &[u8; 4]) -> bool {
    let Some((head, rest)) = bytes.split_first_chunk::<8>() else { return false };
    let counted = [&signature[..], &[0; 4]].concat();
    let counted = !crc32c(crc32c(u32::MAX, &counted), rest);
    head.starts_with(signature) && le::<u32, 4, 8>(head) == counted
}

/// The virtual disk, as the metadata describe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Disk {
    pub(super) disk_bytes: u64,
    pub(super) block_bytes: u64,
    /// Data blocks per chunk: behind each chunk, the table has an entry for a sector bitmap.
    pub(super) chunk_blocks: u64,
    pub(super) table_offset_bytes: u64,
    pub(super) table_entries: u64,
}

/// A region of the file.
#[derive(Clone, Copy, Debug)]
struct Region {
    offset_bytes: u64,
    len_bytes: u32,
}

/// Reads the region table and the metadata of an image whose log is empty or was replayed.
pub(super) fn disk(file: &dyn ReadBlocks) -> Result<Disk, ImageError> {
    let (table, metadata) = regions(file)?;
    let items = items(file, metadata)?;
    let number32 = |item: Option<Region>, what: &str| -> Result<u32, ImageError> {
        let mut bytes = [0; 4];
        read_item(file, item, what, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    };
    let mut parameters = [0; 8];
    read_item(file, items.parameters, "block size", &mut parameters)?;
    let block_bytes = u64::from(le::<u32, 0, 8>(&parameters));
    if le::<u32, 4, 8>(&parameters) & 2 != 0 {
        return Err(unsupported(
            "a parent image (it is a differencing disk); merge it into its parent, or convert it to \
             a raw image",
        ));
    }
    if !block_bytes.is_power_of_two() || !(MIB..=256 * MIB).contains(&block_bytes) {
        return Err(damaged(format!("blocks of {block_bytes} bytes")));
    }
    let mut size = [0; 8];
    read_item(file, items.disk_size, "disk size", &mut size)?;
    let disk_bytes = u64::from_le_bytes(size);
    if disk_bytes > MOST_DISK_BYTES {
        return Err(damaged(format!("a disk of {disk_bytes} bytes")));
    }
    let sector_bytes = number32(items.logical_sector, "sector size")?;
    if ![512, 4096].contains(&sector_bytes) {
        return Err(damaged(format!("sectors of {sector_bytes} bytes")));
    }
    let chunk_blocks = (1 << 23) * u64::from(sector_bytes) / block_bytes;
    let blocks = disk_bytes.div_ceil(block_bytes);
    let entries = blocks + blocks.saturating_sub(1) / chunk_blocks;
    let len = entries * 8;
    let end = table.offset_bytes.checked_add(len);
    if len > u64::from(table.len_bytes) || end.is_none_or(|end| end > file.size_bytes()) {
        return Err(damaged("its block allocation table is too short for the disk"));
    }
    Ok(Disk {
        disk_bytes,
        block_bytes,
        chunk_blocks,
        table_offset_bytes: table.offset_bytes,
        table_entries: entries,
    })
}

/// Entries of 32 bytes, each starting with a GUID.
fn entries(table: &[u8], start: usize, count: usize) -> impl Iterator<Item = &[u8; 32]> {
    table.get(start..).unwrap_or_default().as_chunks::<32>().0.iter().take(count)
}

/// The block allocation table and the metadata region.
fn regions(file: &dyn ReadBlocks) -> Result<(Region, Region), ImageError> {
    let mut bytes = vec![0; TABLE_BYTES];
    let good = TABLE_OFFSETS
        .iter()
        .any(|&at| file.read_at(at, &mut bytes).is_ok() && is_signed(&bytes, b"regi"));
    let head = bytes.first_chunk::<16>().filter(|_| good);
    let head = head.ok_or_else(|| damaged("both its region tables are damaged"))?;
    let count = le::<u32, 8, 16>(head) as usize;
    if count > MOST_ENTRIES {
        return Err(damaged(format!("a region table of {count} entries")));
    }
    let (mut table, mut metadata) = (None, None);
    for entry in entries(&bytes, 16, count) {
        let region =
            Region { offset_bytes: le::<u64, 16, 32>(entry), len_bytes: le::<u32, 24, 32>(entry) };
        match le::<[u8; 16], 0, 32>(entry) {
            BLOCK_TABLE => table = Some(region),
            METADATA => metadata = Some(region),
            _ if le::<u32, 28, 32>(entry) & 1 == 0 => {}
            other => {
                return Err(unsupported(format!("an unknown required region {}", hex(&other))));
            }
        }
    }
    let missing = |what| damaged(format!("it has no {what}"));
    Ok((
        table.ok_or_else(|| missing("block allocation table"))?,
        metadata.ok_or_else(|| missing("metadata"))?,
    ))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[derive(Default)]
struct Items {
    parameters: Option<Region>,
    disk_size: Option<Region>,
    logical_sector: Option<Region>,
}

fn items(file: &dyn ReadBlocks, metadata: Region) -> Result<Items, ImageError> {
    let mut bytes = vec![0; TABLE_BYTES];
    file.read_at(metadata.offset_bytes, &mut bytes)
        .map_err(|_| damaged("its metadata lie past the end of the file"))?;
    let head = bytes.first_chunk::<16>().filter(|head| head.starts_with(b"metadata"));
    let head = head.ok_or_else(|| damaged("its metadata are damaged"))?;
    let count = usize::from(le::<u16, 10, 16>(head));
    if count > MOST_ENTRIES {
        return Err(damaged(format!("{count} metadata items")));
    }
    let mut items = Items::default();
    for entry in entries(&bytes, 32, count) {
        let (offset, len_bytes) = (le::<u32, 16, 32>(entry), le::<u32, 20, 32>(entry));
        let is_inside = offset.checked_add(len_bytes).is_some_and(|end| end <= metadata.len_bytes);
        let offset_bytes = metadata.offset_bytes.checked_add(u64::from(offset));
        let region = offset_bytes
            .filter(|_| is_inside)
            .map(|offset_bytes| Region { offset_bytes, len_bytes });
        match le::<[u8; 16], 0, 32>(entry) {
            FILE_PARAMETERS => items.parameters = region,
            DISK_SIZE => items.disk_size = region,
            LOGICAL_SECTOR => items.logical_sector = region,
            // The file parameters already say whether there is a parent.
            DISK_ID | PHYSICAL_SECTOR | PARENT => {}
            _ if le::<u32, 24, 32>(entry) & 4 == 0 => {}
            other => {
                return Err(unsupported(format!(
                    "an unknown required metadata item {}",
                    hex(&other)
                )));
            }
        }
    }
    Ok(items)
}

fn read_item(
    file: &dyn ReadBlocks,
    item: Option<Region>,
    what: &str,
    into: &mut [u8],
) -> Result<(), ImageError> {
    let item = item.filter(|item| item.len_bytes as usize >= into.len());
    let item = item.ok_or_else(|| damaged(format!("its metadata lack the {what}")))?;
    file.read_at(item.offset_bytes, into)
        .map_err(|_| damaged(format!("the {what} lies past the end of the file")))
}
