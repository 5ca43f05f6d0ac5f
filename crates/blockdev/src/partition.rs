//! Partitions of a disk image: GPT and MBR, with logical partitions.
//!
//! Own code rather than a crate: the tables are small, and the reader must be total on hostile
//! bytes, read through [`ReadBlocks`], and know both kinds. Sources: the UEFI specification (GPT),
//! and the layout of MBR entries as PC firmware and Linux read them. Partitions have the numbers
//! that Linux gives them.

use std::collections::BTreeSet;
use std::fmt;
use std::io;

use crate::{ReadBlocks, Window};

/// Sector sizes that a table may count in, most likely first.
const SECTOR_SIZES: [u32; 2] = [512, 4096];
/// Bytes of a GPT's entries that are read, at most; the usual table has 16 KiB.
const MOST_TABLE_BYTES: u64 = 4 << 20;
/// Logical partitions that are followed, at most: a longer chain is a loop or garbage.
const MOST_LOGICAL: u32 = 256;

/// The kind of partition table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// GUID partition table.
    Gpt,
    /// PC ("DOS") partition table in the first sector.
    Mbr,
}

/// The type that a partition declares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionKind {
    /// The type GUID, in its byte order on the disk.
    Gpt([u8; 16]),
    /// The type byte.
    Mbr(u8),
}

/// One partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Its number, from 1; logical partitions of an MBR begin at 5.
    pub number: u32,
    /// First byte, from the start of the disk.
    pub start_bytes: u64,
    /// Length in bytes. May pass the end of a truncated image.
    pub len_bytes: u64,
    /// Its declared type.
    pub kind: PartitionKind,
    /// Its name, if it has one (GPT alone).
    pub name: String,
}

/// A disk's partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionTable {
    /// The kind of table.
    pub scheme: Scheme,
    /// Bytes of a sector, in which the table counts.
    pub sector_bytes: u32,
    /// Sorted by number. Unused entries are left out.
    pub partitions: Vec<Partition>,
}

/// Why a partition cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PartitionError {
    /// Neither kind of table is there.
    #[error("there is no partition table")]
    NoTable,
    /// A GPT is there, but both copies are damaged.
    #[error("the GPT and its backup are both damaged; repair it first, or use --offset")]
    DamagedGpt,
    /// The table has no such partition.
    #[error("there is no partition {number}; {}", listed(.table))]
    NoSuchPartition {
        /// The number asked for.
        number: u32,
        /// The table.
        table: PartitionTable,
    },
    /// The partition only holds other partitions.
    #[error("partition {number} is an extended one, which only holds others; {}", listed(.table))]
    Extended {
        /// The number asked for.
        number: u32,
        /// The table.
        table: PartitionTable,
    },
    /// The partition begins past the end: the image is truncated, or the table is wrong.
    #[error(
        "partition {number} begins at byte {start_bytes}, but the device has only {size_bytes}"
    )]
    PastEnd {
        /// The number asked for.
        number: u32,
        /// Where the partition begins.
        start_bytes: u64,
        /// Bytes of the device.
        size_bytes: u64,
    },
    /// The table could not be read.
    #[error("cannot read the partition table: {0}")]
    Read(#[from] io::Error),
}

fn listed(table: &PartitionTable) -> String {
    if table.partitions.is_empty() {
        return "the table is empty".to_owned();
    }
    let each: Vec<String> = table.partitions.iter().map(ToString::to_string).collect();
    format!("there are: {}", each.join("; "))
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, start_bytes, len_bytes, .. } = self;
        write!(f, "{number} ({}", self.kind)?;
        if !self.name.is_empty() {
            // The disk chose the name: let no control characters reach the terminal.
            write!(f, " \"{}\"", self.name.escape_debug())?;
        }
        write!(f, ", {} MiB at byte {start_bytes})", len_bytes >> 20)
    }
}

impl fmt::Display for PartitionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mbr(0x83) => f.write_str("Linux"),
            Self::Mbr(0x82) => f.write_str("Linux swap"),
            Self::Mbr(0x8e) => f.write_str("Linux LVM"),
            Self::Mbr(0xfd) => f.write_str("Linux RAID"),
            Self::Mbr(0xef) => f.write_str("EFI system"),
            Self::Mbr(0x07) => f.write_str("NTFS or exFAT"),
            Self::Mbr(0x01 | 0x04 | 0x06 | 0x0b | 0x0c | 0x0e) => f.write_str("FAT"),
            Self::Mbr(kind) if is_extended(*kind) => f.write_str("extended"),
            Self::Mbr(kind) => write!(f, "type {kind:#04x}"),
            Self::Gpt(guid) => f.write_str(gpt_kind(guid).unwrap_or("other type")),
        }
    }
}

/// A name for a common partition type. The first four bytes of its GUID (little-endian on the disk)
/// identify it well enough for a message.
fn gpt_kind(guid: &[u8; 16]) -> Option<&'static str> {
    Some(match u32::from_le_bytes(*guid.first_chunk()?) {
        0x0fc6_3daf => "Linux",
        0x4f68_bce3 => "Linux root, x86-64",
        0xb921_b045 => "Linux root, ARM64",
        0x933a_c7e1 => "Linux home",
        0x0657_fd6d => "Linux swap",
        0xe6d6_d379 => "Linux LVM",
        0xa19d_880f => "Linux RAID",
        0xc12a_7328 => "EFI system",
        0x2168_6148 => "BIOS boot",
        0xebd0_a0a2 => "Microsoft basic data",
        _ => return None,
    })
}

const fn is_extended(kind: u8) -> bool {
    matches!(kind, 0x05 | 0x0f | 0x85)
}

impl PartitionTable {
    /// Reads the table of `device`. `sector_bytes` is the device's own sector size, if known;
    /// without it the usual sizes are tried.
    ///
    /// # Errors
    /// [`PartitionError::NoTable`], [`PartitionError::DamagedGpt`], or an error of reading.
    pub fn read<D: ReadBlocks + ?Sized>(
        device: &D,
        sector_bytes: Option<u32>,
    ) -> Result<Self, PartitionError> {
        let given = sector_bytes.filter(|bytes| (512..=1 << 16).contains(bytes));
        let sizes: Vec<u32> = given.map_or_else(|| SECTOR_SIZES.to_vec(), |bytes| vec![bytes]);
        let mut first = [0; 512];
        if device.size_bytes() < 512 {
            return Err(PartitionError::NoTable);
        }
        device.read_at(0, &mut first)?;
        // A GPT without a protective MBR is a remnant of earlier use: the MBR counts, as for Linux.
        if !is_plain_mbr(&first) {
            let mut gpt_seen = is_protective(&first);
            for &sector_bytes in &sizes {
                let last = (device.size_bytes() / u64::from(sector_bytes)).saturating_sub(1);
                for sector in [1, last] {
                    match gpt(device, sector_bytes, sector)? {
                        Gpt::Good(table) => return Ok(table),
                        Gpt::Damaged => gpt_seen = true,
                        Gpt::Absent => {}
                    }
                }
            }
            let error = if gpt_seen { PartitionError::DamagedGpt } else { PartitionError::NoTable };
            return Err(error);
        }
        // In the device's own sectors, or 512 bytes, which most images use.
        mbr(device, given.unwrap_or(512), &first)
    }

    /// The partition of that number.
    pub fn get(&self, number: u32) -> Option<&Partition> {
        self.partitions.iter().find(|partition| partition.number == number)
    }

    /// Partition `number` of `device` as a device. If it passes the end of the device, it is
    /// truncated there.
    ///
    /// # Errors
    /// If there is no such partition, or it is an extended one, or it begins past the end.
    pub fn open<D: ReadBlocks>(self, device: D, number: u32) -> Result<Window<D>, PartitionError> {
        let Some(found) = self.get(number) else {
            return Err(PartitionError::NoSuchPartition { number, table: self });
        };
        if matches!(found.kind, PartitionKind::Mbr(kind) if is_extended(kind)) {
            return Err(PartitionError::Extended { number, table: self });
        }
        let (start_bytes, size_bytes) = (found.start_bytes, device.size_bytes());
        Window::new(device, start_bytes, Some(found.len_bytes))
            .map_err(|_| PartitionError::PastEnd { number, start_bytes, size_bytes })
    }
}

/// Bytes of `array` at `offset`, for a little-endian number; zeroes past its end.
fn le<const N: usize>(array: &[u8], offset: usize) -> [u8; N] {
    array.get(offset..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
}

enum Gpt {
    Good(PartitionTable),
    Damaged,
    Absent,
}

/// The GPT whose header is in `sector`.
fn gpt<D: ReadBlocks + ?Sized>(device: &D, sector_bytes: u32, sector: u64) -> io::Result<Gpt> {
    let sector_len = u64::from(sector_bytes);
    let mut header = vec![0; sector_bytes as usize];
    let place = sector.checked_mul(sector_len);
    let end = place.and_then(|place| place.checked_add(sector_len));
    let (Some(place), true) = (place, end.is_some_and(|end| end <= device.size_bytes())) else {
        return Ok(Gpt::Absent);
    };
    device.read_at(place, &mut header)?;
    if !header.starts_with(b"EFI PART") {
        return Ok(Gpt::Absent);
    }
    let header_len = u32::from_le_bytes(le(&header, 12)) as usize;
    let header_crc = u32::from_le_bytes(le(&header, 16));
    if !(92..=header.len()).contains(&header_len) {
        return Ok(Gpt::Damaged);
    }
    // The checksum field counts as zero.
    header[16..20].fill(0);
    if crc32fast::hash(&header[..header_len]) != header_crc {
        return Ok(Gpt::Damaged);
    }
    let entries_at = u64::from_le_bytes(le(&header, 72)).checked_mul(sector_len);
    let count = u64::from(u32::from_le_bytes(le(&header, 80)));
    let entry_len = u32::from_le_bytes(le(&header, 84));
    let entries_crc = u32::from_le_bytes(le(&header, 88));
    let table_len = count * u64::from(entry_len);
    let end = entries_at.and_then(|at| at.checked_add(table_len));
    let inside = end.is_some_and(|end| end <= device.size_bytes());
    let (Some(entries_at), true) = (entries_at, inside && table_len <= MOST_TABLE_BYTES) else {
        return Ok(Gpt::Damaged);
    };
    if !(128..=4096).contains(&entry_len) {
        return Ok(Gpt::Damaged);
    }
    // At most MOST_TABLE_BYTES.
    let mut entries = vec![0; table_len as usize];
    device.read_at(entries_at, &mut entries)?;
    if crc32fast::hash(&entries) != entries_crc {
        return Ok(Gpt::Damaged);
    }
    let entries = (1..).zip(entries.chunks_exact(entry_len as usize));
    let partitions = entries.filter_map(|(nr, entry)| gpt_entry(nr, entry, sector_len)).collect();
    Ok(Gpt::Good(PartitionTable { scheme: Scheme::Gpt, sector_bytes, partitions }))
}

/// `None` for an unused or invalid entry.
fn gpt_entry(number: u32, entry: &[u8], sector_len: u64) -> Option<Partition> {
    let kind: [u8; 16] = le(entry, 0);
    let first = u64::from_le_bytes(le(entry, 32));
    // The last LBA is inclusive.
    let last = u64::from_le_bytes(le(entry, 40));
    if kind == [0; 16] || last < first {
        return None;
    }
    let name = entry.get(56..128)?.chunks_exact(2).map(|unit| u16::from_le_bytes(le(unit, 0)));
    let name = char::decode_utf16(name.take_while(|&unit| unit != 0));
    Some(Partition {
        number,
        start_bytes: first.checked_mul(sector_len)?,
        len_bytes: (last - first).checked_add(1)?.checked_mul(sector_len)?,
        kind: PartitionKind::Gpt(kind),
        name: name.map(|unit| unit.unwrap_or(char::REPLACEMENT_CHARACTER)).collect(),
    })
}

/// One of the four entries in an MBR, or in an EBR of an extended partition.
#[derive(Clone, Copy, Debug)]
struct MbrEntry {
    kind: u8,
    start_sectors: u64,
    len_sectors: u64,
}

impl MbrEntry {
    const fn is_used(&self) -> bool {
        self.kind != 0 && self.len_sectors != 0
    }

    fn partition(&self, number: u32, base_sectors: u64, sector_len: u64) -> Option<Partition> {
        Some(Partition {
            number,
            start_bytes: base_sectors.checked_add(self.start_sectors)?.checked_mul(sector_len)?,
            len_bytes: self.len_sectors.checked_mul(sector_len)?,
            kind: PartitionKind::Mbr(self.kind),
            name: String::new(),
        })
    }
}

/// The entries, or `None` if the sector is not signed or an entry is neither active nor inactive.
fn mbr_entries(sector: &[u8; 512]) -> Option<[MbrEntry; 4]> {
    if sector[510..] != [0x55, 0xaa] {
        return None;
    }
    let entry = |index: usize| {
        let at = 446 + 16 * index;
        MbrEntry {
            kind: sector[at + 4],
            start_sectors: u64::from(u32::from_le_bytes(le(sector, at + 8))),
            len_sectors: u64::from(u32::from_le_bytes(le(sector, at + 12))),
        }
    };
    let sane = (0..4).all(|index| matches!(sector[446 + 16 * index], 0 | 0x80));
    sane.then(|| std::array::from_fn(entry))
}

/// Whether a first sector is a partition table (and not the boot sector of a file system, which has
/// the same signature) that is not a protective MBR.
pub(crate) fn is_plain_mbr(sector: &[u8; 512]) -> bool {
    let used = |entries: [MbrEntry; 4]| entries.iter().any(MbrEntry::is_used);
    mbr_entries(sector).is_some_and(used) && !is_protective(sector)
}

/// Whether the MBR is protective: it only guards a GPT.
fn is_protective(sector: &[u8; 512]) -> bool {
    mbr_entries(sector).is_some_and(|entries| entries.iter().any(|entry| entry.kind == 0xee))
}

fn mbr<D: ReadBlocks + ?Sized>(
    device: &D,
    sector_bytes: u32,
    first: &[u8; 512],
) -> Result<PartitionTable, PartitionError> {
    let entries = mbr_entries(first).ok_or(PartitionError::NoTable)?;
    let sector_len = u64::from(sector_bytes);
    let mut partitions = Vec::new();
    let mut next_logical = 5;
    for (number, entry) in (1..).zip(entries).filter(|(_, entry)| entry.is_used()) {
        partitions.extend(entry.partition(number, 0, sector_len));
        if is_extended(entry.kind) {
            logical(device, sector_len, entry.start_sectors, &mut next_logical, &mut partitions)?;
        }
    }
    partitions.sort_by_key(|partition| partition.number);
    Ok(PartitionTable { scheme: Scheme::Mbr, sector_bytes, partitions })
}

/// Follows the chain of EBRs in an extended partition. Their data entries are relative to their own
/// sector, their links to the start of the extended partition. Stops without an error at an invalid
/// link.
fn logical<D: ReadBlocks + ?Sized>(
    device: &D,
    sector_len: u64,
    extended_sectors: u64,
    next_number: &mut u32,
    partitions: &mut Vec<Partition>,
) -> io::Result<()> {
    let mut seen = BTreeSet::new();
    let mut here = extended_sectors;
    while seen.insert(here) && *next_number < 5 + MOST_LOGICAL && seen.len() < 1024 {
        // Both are below 2^34 and 2^16.
        let place = here * sector_len;
        if place.saturating_add(512) > device.size_bytes() {
            break;
        }
        let mut sector = [0; 512];
        device.read_at(place, &mut sector)?;
        let Some(entries) = mbr_entries(&sector) else { break };
        let mut link = None;
        for entry in entries.iter().filter(|entry| entry.is_used()) {
            if is_extended(entry.kind) {
                link = link.or(Some(extended_sectors + entry.start_sectors));
            } else if let Some(found) = entry.partition(*next_number, here, sector_len) {
                partitions.push(found);
                *next_number += 1;
            }
        }
        let Some(next) = link else { break };
        here = next;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
