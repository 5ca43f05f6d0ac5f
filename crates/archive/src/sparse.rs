//! Maps of sparse files, in the four forms that GNU tar has written.

use crate::header::SIZE;
use crate::{Archive, ArchiveFault, BLOCK_BYTES, MOST_HEADER_BYTES, Part, number};

/// Bytes of an entry in the old form: offset and length, 12 digits each.
const OLD_ENTRY: usize = 24;
/// Entries in a continuation block of an old map; the byte behind them says whether another block
/// follows.
const OLD_ENTRIES: usize = 21;

/// Data ranges of a file: offset and length.
pub(crate) type Map = Vec<(u64, u64)>;

/// Reads the entries of an old map; an empty entry ends it, or marks the end of the file.
fn old_entries(bytes: &[u8], map: &mut Map) -> Option<()> {
    for entry in bytes.chunks_exact(OLD_ENTRY) {
        let (offset, len) = entry.split_at(OLD_ENTRY / 2);
        let number = |field| number::field(field).and_then(|value| u64::try_from(value).ok());
        map.push((number(offset)?, number(len)?));
    }
    Some(())
}

/// The map of an entry of type `S`, whose header has the first entries, and the offset behind the
/// map.
pub(crate) fn old(
    archive: &(impl Archive + ?Sized),
    first: &[u8],
    mut more: bool,
    mut at: u64,
) -> Result<(Map, u64), ArchiveFault> {
    let mut map = Map::new();
    let start = at;
    old_entries(first, &mut map).ok_or(ArchiveFault::Sparse)?;
    while more {
        let mut block = [0; SIZE];
        if at - start >= MOST_HEADER_BYTES {
            return Err(ArchiveFault::TooLarge);
        }
        read(archive, at, &mut block)?;
        at += BLOCK_BYTES;
        let entries = OLD_ENTRIES * OLD_ENTRY;
        old_entries(&block[..entries], &mut map).ok_or(ArchiveFault::Sparse)?;
        more = block[entries] != 0;
    }
    Ok((map, at))
}

/// The map of form 0.1: numbers separated by commas.
pub(crate) fn listed(text: &[u8]) -> Option<Map> {
    if text.is_empty() {
        return Some(Map::new());
    }
    let numbers: Option<Vec<u64>> = text.split(|&byte| byte == b',').map(number::decimal).collect();
    let numbers = numbers?;
    let pairs = numbers.chunks_exact(2);
    pairs.remainder().is_empty().then(|| pairs.map(|pair| (pair[0], pair[1])).collect())
}

/// The map of form 1.0, stored before the data: the number of entries, then the entries, one number
/// a line, padded to a block. Also returns the offset behind it.
pub(crate) fn stored(
    archive: &(impl Archive + ?Sized),
    start: u64,
    stored_bytes: u64,
) -> Result<(Map, u64), ArchiveFault> {
    let mut block = [0; SIZE];
    let mut at = start;
    let mut text = Vec::new();
    let mut numbers = Vec::new();
    let mut wanted = None;
    loop {
        if wanted.is_some_and(|wanted| numbers.len() as u64 >= wanted) {
            break;
        }
        if at - start >= stored_bytes || at - start >= MOST_HEADER_BYTES {
            return Err(ArchiveFault::Sparse);
        }
        read(archive, at, &mut block)?;
        at += BLOCK_BYTES;
        for &byte in &block {
            if byte != b'\n' {
                text.push(byte);
                continue;
            }
            let number = number::decimal(&text).ok_or(ArchiveFault::Sparse)?;
            text.clear();
            match wanted {
                None => wanted = Some(number.checked_mul(2).ok_or(ArchiveFault::Sparse)?),
                Some(_) => numbers.push(number),
            }
            if wanted == Some(numbers.len() as u64) {
                break;
            }
        }
    }
    Ok((numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect(), at))
}

/// The places in the archive of the data ranges of a map, from offset `from` on. The map must be
/// ascending, end inside the file, and contain no more bytes than are stored.
pub(crate) fn place(map: &Map, size: u64, from: u64, stored_bytes: u64) -> Option<Vec<Part>> {
    let (mut parts, mut end, mut taken) = (Vec::new(), 0, 0u64);
    for &(at, len) in map {
        let stop = at.checked_add(len).filter(|&stop| stop <= size)?;
        if len == 0 {
            continue;
        }
        if at < end {
            return None;
        }
        end = stop;
        parts.push(Part { at, len, from: from.checked_add(taken)? });
        taken = taken.checked_add(len).filter(|&taken| taken <= stored_bytes)?;
    }
    Some(parts)
}

/// Reads bytes that the archive must contain.
pub(crate) fn read(
    archive: &(impl Archive + ?Sized),
    at: u64,
    into: &mut [u8],
) -> Result<(), ArchiveFault> {
    archive.read_at(at, into).map_err(|error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => ArchiveFault::Truncated,
        _ => ArchiveFault::Read(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_must_fit() {
        let part = |at, len, from| Part { at, len, from };
        let map = vec![(0, 512), (4096, 100), (9000, 0)];
        let parts = place(&map, 9000, 1024, 612).unwrap();
        assert_eq!(parts, [part(0, 512, 1024), part(4096, 100, 1536)]);
        assert_eq!(place(&map, 9000, 1024, 611), None);
        assert_eq!(place(&map, 8999, 1024, 612), None);
        assert_eq!(place(&vec![(512, 512), (0, 10)], 9000, 0, 9000), None);
        assert_eq!(place(&vec![(u64::MAX, 2)], u64::MAX, 0, 9000), None);
    }

    #[test]
    fn lists_are_pairs() {
        assert_eq!(listed(b"0,512,4096,7"), Some(vec![(0, 512), (4096, 7)]));
        assert_eq!(listed(b""), Some(vec![]));
        assert_eq!(listed(b"0,512,4096"), None);
        assert_eq!(listed(b"0,x"), None);
    }
}
