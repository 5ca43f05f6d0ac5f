//! qcow2 images (versions 2 and 3), for reading. Source: "The QCOW2 image format", QEMU's
//! documentation (`docs/interop/qcow2.txt`).
//!
//! Two levels of tables map the disk: an entry of the first (L1) names a cluster of entries of the
//! second (L2), each of which describes a cluster of the disk. L1 is kept in memory; L2 tables and
//! unpacked clusters are cached within the budgets below. Reference counts and internal snapshots
//! are not read. A read follows exactly two links, so tables that point at each other cannot cause
//! a loop.

use std::io;

use super::cache::{Cache, Piece};
use super::place::{self, Layout, Place, damaged};
use super::{Format, ImageError};
use crate::ReadBlocks;

mod header;
mod packed;

use header::Header;

/// Budget for cached L2 tables: one of 64 KiB maps 512 MiB of the disk.
const TABLES_BYTES: usize = 32 << 20;
/// Budget for cached unpacked clusters.
const UNPACKED_BYTES: usize = 16 << 20;
/// Entries of L1, at most: 32 MiB, as in QEMU.
const MOST_L1_ENTRIES: u32 = 4 << 20;

/// Bits 9 to 55 of an entry: an offset in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const IS_PACKED: u64 = 1 << 62;
const IS_ZERO: u64 = 1;
/// Subclusters that an extended entry describes.
const SUBCLUSTERS: u32 = 32;

/// A qcow2 image as the disk that is in it.
pub struct Qcow2 {
    file: Box<dyn ReadBlocks>,
    header: Header,
    l1: Vec<u64>,
    backing: Option<Box<dyn ReadBlocks>>,
    tables: Cache<u64>,
    unpacked: Cache<u8>,
}

/// The backing file that an image names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackingName {
    /// The name as it is stored: relative to the folder of the image.
    pub name: Vec<u8>,
    /// The name of its format, if the image gives it.
    pub format: Option<Vec<u8>>,
}

impl Qcow2 {
    /// Opens the image in `file`. If it names a backing file, attach that with
    /// [`Qcow2::set_backing`]; otherwise clusters that this image lacks read as zeroes.
    ///
    /// # Errors
    /// Damage, and required features that Floe does not know.
    pub fn open(file: Box<dyn ReadBlocks>) -> Result<Self, ImageError> {
        let header = header::read(&file)?;
        let l1 = read_l1(&file, &header)?;
        let cluster_bytes = 1 << header.cluster_bits;
        Ok(Self {
            file,
            header,
            l1,
            backing: None,
            tables: Cache::new(TABLES_BYTES, cluster_bytes),
            unpacked: Cache::new(UNPACKED_BYTES, cluster_bytes),
        })
    }

    /// The backing file that the image names.
    pub(crate) fn backing_name(&self) -> Option<BackingName> {
        let (name, format) = self.header.backing.clone()?;
        Some(BackingName { name, format })
    }

    /// Attaches the backing image, from which clusters that this image lacks are read.
    pub(crate) fn set_backing(&mut self, backing: Box<dyn ReadBlocks>) {
        self.backing = Some(backing);
    }

    fn cluster_bytes(&self) -> u64 {
        1 << self.header.cluster_bits
    }

    /// 64-bit words per L2 entry.
    const fn words(&self) -> usize {
        if self.header.extended_l2 { 2 } else { 1 }
    }

    /// The L2 table with index `table` in L1; `None` if it is not allocated.
    fn table(&self, table: u64) -> io::Result<Option<Piece<u64>>> {
        let entry = usize::try_from(table).ok().and_then(|table| self.l1.get(table));
        let entry = entry.ok_or_else(|| damaged("its L1 table is too short for the disk"))?;
        let offset = entry & OFFSET;
        if offset == 0 {
            return Ok(None);
        }
        self.aligned(offset, "a L2 table")?;
        let load = || {
            let mut bytes = vec![0; self.cluster_bytes() as usize];
            self.file.read_at(offset, &mut bytes)?;
            Ok(numbers(&bytes).collect())
        };
        self.tables.get(offset, load).map(Some)
    }

    fn aligned(&self, offset_bytes: u64, what: &str) -> io::Result<()> {
        if offset_bytes.is_multiple_of(self.cluster_bytes()) {
            Ok(())
        } else {
            Err(damaged(format!(
                "{what} at byte {offset_bytes}, which is not the start of a cluster"
            )))
        }
    }

    /// The place of the cluster (or subcluster) that contains `within`, and the bytes of the
    /// cluster that share this place.
    fn of_entry(
        &self,
        entry: &[u64],
        within_cluster: u64,
    ) -> io::Result<(Place, std::ops::Range<u64>)> {
        let whole = 0..self.cluster_bytes();
        let (first, bitmap) = match *entry {
            [first] => (first, None),
            [first, bitmap] => (first, Some(bitmap)),
            _ => return Err(damaged("an L2 table ends inside an entry")),
        };
        if first & IS_PACKED != 0 {
            return Ok((Place::Packed(first), whole));
        }
        let offset = first & OFFSET;
        if let Some(bitmap) = bitmap {
            return self.of_subcluster(offset, bitmap, within_cluster);
        }
        if first & IS_ZERO != 0 {
            if self.header.version < 3 {
                return Err(damaged("a zero cluster, which version 2 does not allow"));
            }
            return Ok((Place::Zeroes, whole));
        }
        if offset == 0 {
            return Ok((Place::Below, whole));
        }
        self.aligned(offset, "a cluster")?;
        Ok((Place::Stored(offset + within_cluster), whole))
    }

    fn of_subcluster(
        &self,
        offset: u64,
        bitmap: u64,
        within_cluster: u64,
    ) -> io::Result<(Place, std::ops::Range<u64>)> {
        let part_bytes = self.cluster_bytes() / u64::from(SUBCLUSTERS);
        let part = within_cluster / part_bytes;
        let range = part * part_bytes..(part + 1) * part_bytes;
        let (stored, zero) = (bitmap >> part & 1 != 0, bitmap >> (part + 32) & 1 != 0);
        match (stored, zero) {
            (true, true) => Err(damaged("a subcluster that is both stored and zero")),
            (false, true) => Ok((Place::Zeroes, range)),
            (false, false) => Ok((Place::Below, range)),
            (true, false) if offset == 0 => Err(damaged("a stored subcluster without an offset")),
            (true, false) => {
                self.aligned(offset, "a cluster")?;
                Ok((Place::Stored(offset + within_cluster), range))
            }
        }
    }
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let number = |bytes: &[u8]| bytes.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    bytes.chunks_exact(8).map(number)
}

fn read_l1(file: &dyn ReadBlocks, header: &Header) -> Result<Vec<u64>, ImageError> {
    let broken = |what: String| ImageError::Damaged { format: Format::Qcow2, what };
    if header.l1_entries > MOST_L1_ENTRIES {
        return Err(broken(format!("an L1 table of {} entries", header.l1_entries)));
    }
    let entry_bits = if header.extended_l2 { 4 } else { 3 };
    let covered_bits = 2 * header.cluster_bits - entry_bits;
    let needed = header.virtual_bytes.div_ceil(1 << covered_bits);
    if needed > u64::from(header.l1_entries) {
        return Err(broken(format!(
            "an L1 table of {} entries, but the disk needs {needed}",
            header.l1_entries
        )));
    }
    let len = needed * 8;
    // Checked before memory for it is allocated.
    if header.l1_offset_bytes.checked_add(len).is_none_or(|end| end > file.size_bytes()) {
        return Err(broken(
            "its L1 table passes the end of the file (is it truncated?)".to_owned(),
        ));
    }
    let mut bytes = vec![0; len as usize];
    file.read_at(header.l1_offset_bytes, &mut bytes)?;
    Ok(numbers(&bytes).collect())
}

impl Layout for Qcow2 {
    fn virtual_bytes(&self) -> u64 {
        self.header.virtual_bytes
    }

    fn file(&self) -> &dyn ReadBlocks {
        &self.file
    }

    fn unit_bytes(&self) -> u64 {
        self.cluster_bytes()
    }

    fn place(&self, offset_bytes: u64, wanted_bytes: u64) -> io::Result<(Place, u64)> {
        let words = self.words();
        let entries = (self.cluster_bytes() / 8 / words as u64).max(1);
        let cluster = offset_bytes >> self.header.cluster_bits;
        let (table, first) = (cluster / entries, cluster % entries);
        let within_cluster = offset_bytes % self.cluster_bytes();
        let in_table = (entries - first) * self.cluster_bytes() - within_cluster;
        let Some(table) = self.table(table)? else { return Ok((Place::Below, in_table)) };
        let entry = |index: u64| {
            let start = index as usize * words;
            table.get(start..start + words).unwrap_or_default()
        };
        let (found, range) = self.of_entry(entry(first), within_cluster)?;
        let mut len = range.end - within_cluster;
        // Following clusters that are contiguous in the file are read with this one.
        let mut next = first * self.cluster_bytes() + range.end;
        while len < wanted_bytes.min(in_table) {
            let (index, within) = (next / self.cluster_bytes(), next % self.cluster_bytes());
            let Ok((other, range)) = self.of_entry(entry(index), within) else { break };
            let goes_on = match (found, other) {
                (Place::Stored(from), Place::Stored(other)) => from.checked_add(len) == Some(other),
                (Place::Packed(_), _) => false,
                _ => found == other,
            };
            if !goes_on {
                break;
            }
            len += range.end - within;
            next += range.end - within;
        }
        Ok((found, len))
    }

    fn read_packed(&self, entry: u64, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        let load = || {
            packed::unpack(&self.file, self.header.packing, self.header.cluster_bits, entry)
                .map(Into::into)
        };
        let cluster = self.unpacked.get(entry, load)?;
        let start = (offset_bytes % self.cluster_bytes()) as usize;
        let from = cluster.get(start..start + into.len());
        into.copy_from_slice(from.ok_or_else(|| damaged("a packed cluster is too short"))?);
        Ok(())
    }

    fn below(&self) -> Option<&dyn ReadBlocks> {
        self.backing.as_deref()
    }
}

impl ReadBlocks for Qcow2 {
    fn size_bytes(&self) -> u64 {
        self.header.virtual_bytes
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        place::read(self, offset_bytes, into)
    }

    fn is_hole(&self, offset_bytes: u64, len_bytes: u64) -> bool {
        place::is_hole(self, offset_bytes, len_bytes)
    }
}
