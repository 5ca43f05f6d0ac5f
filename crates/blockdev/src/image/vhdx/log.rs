//! The log of a VHDX image: changes of tables and metadata that may not be in place yet. Floe
//! replays them into memory; the file stays as it is. Source: MS-VHDX, section 2.3.

use std::collections::BTreeMap;

use floe_format::layout::le;

use super::header::{self, LogPlace, damaged, unsupported};
use crate::image::ImageError;
use crate::{Overlay, ReadBlocks, WriteBlocks};

/// The unit of the log.
const SECTOR_BYTES: usize = 4096;
/// Bytes of a log, at most; programs make logs of 1 MiB.
const MOST_LOG_BYTES: u32 = 16 << 20;
/// Bytes that entries may set to zero, at most.
const MOST_ZERO_BYTES: u64 = 64 << 20;
const ENTRY_HEADER_BYTES: usize = 64;
const DESCRIPTOR_BYTES: usize = 32;

/// A change that an entry makes to the file.
#[derive(Clone, Debug)]
enum Change {
    Zero { offset_bytes: u64, len_bytes: u64 },
    Write { offset_bytes: u64, sector: Box<[u8; SECTOR_BYTES]> },
}

#[derive(Clone, Debug)]
struct Entry {
    sequence: u64,
    sectors: usize,
    /// Offset in the log of the oldest entry that was active when this one was written.
    tail: usize,
    /// Size of the file on stable storage when this entry was written, at least.
    flushed_bytes: u64,
    changes: Vec<Change>,
}

/// The image with its log replayed.
pub(super) fn replayed(file: Box<dyn ReadBlocks>) -> Result<Box<dyn ReadBlocks>, ImageError> {
    let place = header::log_place(&file)?;
    if place.id == [0; 16] {
        return Ok(file);
    }
    let log = read(&file, place)?;
    let entries = active(&log, &place.id)
        .ok_or_else(|| damaged("it was not closed, and its log is damaged"))?;
    let newest = entries.last().ok_or_else(|| damaged("its log is empty"))?;
    if newest.flushed_bytes > file.size_bytes() {
        return Err(damaged(format!(
            "it had {} bytes and now has {} (is it truncated?)",
            newest.flushed_bytes,
            file.size_bytes()
        )));
    }
    let overlay = Overlay::new(file, SECTOR_BYTES as u32);
    let mut zero_bytes = 0u64;
    for change in entries.iter().flat_map(|entry| &entry.changes) {
        match change {
            Change::Zero { offset_bytes, len_bytes } => {
                zero_bytes = zero_bytes.saturating_add(*len_bytes);
                if zero_bytes > MOST_ZERO_BYTES {
                    return Err(unsupported("its log zeroes more than 64 MiB"));
                }
                put(&overlay, *offset_bytes, &vec![0; *len_bytes as usize])?;
            }
            Change::Write { offset_bytes, sector } => put(&overlay, *offset_bytes, &sector[..])?,
        }
    }
    Ok(Box::new(overlay))
}

fn put(to: &impl WriteBlocks, offset_bytes: u64, from: &[u8]) -> Result<(), ImageError> {
    let inside = offset_bytes.checked_add(from.len() as u64);
    if inside.is_none_or(|end| end > to.size_bytes()) {
        return Err(unsupported(
            "changes in its log that make the file longer; have them replayed first (qemu-img check \
             -r all)",
        ));
    }
    Ok(to.write_at(offset_bytes, from)?)
}

fn read(file: &dyn ReadBlocks, place: LogPlace) -> Result<Vec<[u8; SECTOR_BYTES]>, ImageError> {
    if place.len_bytes > MOST_LOG_BYTES {
        return Err(unsupported(format!(
            "a log of {} MiB that is not empty ({} at most); have it replayed first (qemu-img check \
             -r all)",
            place.len_bytes >> 20,
            MOST_LOG_BYTES >> 20
        )));
    }
    let mut bytes = vec![0; place.len_bytes as usize];
    file.read_at(place.offset_bytes, &mut bytes)
        .map_err(|_| damaged("its log lies past the end of the file"))?;
    Ok(bytes.as_chunks::<SECTOR_BYTES>().0.to_vec())
}

/// The entries to replay, oldest first. A sequence is a run of valid entries with ascending numbers
/// whose last entry names a tail inside the run; the active sequence is the one with the highest
/// number.
fn active(log: &[[u8; SECTOR_BYTES]], id: &[u8; 16]) -> Option<Vec<Entry>> {
    let good: BTreeMap<usize, Entry> =
        (0..log.len()).filter_map(|at| Some((at, entry(log, at, id)?))).collect();
    let mut best: Option<Vec<usize>> = None;
    let newest = |run: &[usize]| run.last().and_then(|at| good.get(at)).map(|e| e.sequence);
    for &start in good.keys() {
        let run = run(&good, start, log.len());
        let tail = run.last().and_then(|at| good.get(at)).map(|entry| entry.tail);
        let Some(begin) = run.iter().position(|at| Some(at * SECTOR_BYTES) == tail) else {
            continue;
        };
        if best.as_ref().is_none_or(|best| newest(best) < newest(&run)) {
            best = Some(run[begin..].to_vec());
        }
    }
    best.map(|run| run.iter().filter_map(|at| good.get(at).cloned()).collect())
}

/// Valid entries that follow each other from `start` on, at most once around the log.
fn run(good: &BTreeMap<usize, Entry>, start: usize, log_sectors: usize) -> Vec<usize> {
    let mut run = Vec::new();
    let (mut at, mut sectors) = (start, 0);
    let mut expected = None;
    while let Some(entry) = good.get(&at) {
        sectors += entry.sectors;
        if expected.is_some_and(|sequence| sequence != entry.sequence) || sectors > log_sectors {
            break;
        }
        run.push(at);
        expected = entry.sequence.checked_add(1);
        at = (at + entry.sectors) % log_sectors;
    }
    run
}

/// The entry that starts at sector `at`, if it is valid.
fn entry(log: &[[u8; SECTOR_BYTES]], at: usize, id: &[u8; 16]) -> Option<Entry> {
    let head: &[u8; ENTRY_HEADER_BYTES] = log.get(at)?.first_chunk()?;
    if !head.starts_with(b"loge") || le::<[u8; 16], 32, 64>(head) != *id {
        return None;
    }
    let len = le::<u32, 8, 64>(head) as usize;
    let sectors = len / SECTOR_BYTES;
    if !len.is_multiple_of(SECTOR_BYTES) || sectors == 0 || sectors > log.len() {
        return None;
    }
    let bytes: Vec<u8> = (at..at + sectors).flat_map(|sector| log[sector % log.len()]).collect();
    if !header::is_signed(&bytes, b"loge") {
        return None;
    }
    let sequence = le::<u64, 16, 64>(head);
    let count = le::<u32, 24, 64>(head) as usize;
    let described = ENTRY_HEADER_BYTES.checked_add(count.checked_mul(DESCRIPTOR_BYTES)?)?;
    let descriptors = bytes.get(ENTRY_HEADER_BYTES..described)?.as_chunks::<DESCRIPTOR_BYTES>().0;
    let mut data = bytes.get(described.next_multiple_of(SECTOR_BYTES)..)?.chunks(SECTOR_BYTES);
    let changes: Option<Vec<Change>> =
        descriptors.iter().map(|descriptor| change(descriptor, sequence, &mut data)).collect();
    Some(Entry {
        sequence,
        sectors,
        tail: le::<u32, 12, 64>(head) as usize,
        flushed_bytes: le::<u64, 48, 64>(head),
        changes: changes?,
    })
}

fn change<'a>(
    descriptor: &[u8; DESCRIPTOR_BYTES],
    sequence: u64,
    data: &mut impl Iterator<Item = &'a [u8]>,
) -> Option<Change> {
    let offset_bytes = le::<u64, 16, 32>(descriptor);
    if le::<u64, 24, 32>(descriptor) != sequence || !offset_bytes.is_multiple_of(4096) {
        return None;
    }
    match &le::<[u8; 4], 0, 32>(descriptor) {
        b"zero" => Some(Change::Zero { offset_bytes, len_bytes: le::<u64, 8, 32>(descriptor) }),
        b"desc" => {
            let stored: &[u8; SECTOR_BYTES] = data.next()?.first_chunk()?;
            let (high, low) =
                (le::<u32, 4, SECTOR_BYTES>(stored), le::<u32, 4092, SECTOR_BYTES>(stored));
            let written = u64::from(high) << 32 | u64::from(low);
            if !stored.starts_with(b"data") || written != sequence {
                return None;
            }
            // The descriptor holds the first eight bytes and the last four.
            let mut sector = Box::new(*stored);
            sector[..8].copy_from_slice(&descriptor[8..16]);
            sector[4092..].copy_from_slice(&descriptor[4..8]);
            Some(Change::Write { offset_bytes, sector })
        }
        _ => None,
    }
}
