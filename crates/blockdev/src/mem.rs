//! A device in memory, for tests and small images.

use std::io;

use floe_sync::{Arc, RwLock};

use crate::{ReadBlocks, WriteBlocks, within};

/// Bytes that copies of a device share, and that a write to one of them copies.
const PIECE_BYTES: usize = 64 << 10;
static ZEROES: [u8; PIECE_BYTES] = [0; PIECE_BYTES];

/// A device in memory. A clone is another device with the same bytes: both share what neither of them has written since, so that
/// thousands of states of one device (after each possible crash, say) cost only their differences.
#[derive(Debug, Default)]
pub struct MemDevice {
    bytes: RwLock<Bytes>,
}

/// The bytes of a device in pieces of [`PIECE_BYTES`]; the last one may be shorter.
#[derive(Clone, Debug, Default)]
struct Bytes {
    len: usize,
    pieces: Vec<Arc<Vec<u8>>>,
}

impl Bytes {
    fn new(bytes: &[u8]) -> Self {
        let hole = Arc::new(ZEROES.to_vec());
        let shared = |piece: &[u8]| {
            let is_hole = piece == ZEROES.as_slice();
            if is_hole { Arc::clone(&hole) } else { Arc::new(piece.to_vec()) }
        };
        Self { len: bytes.len(), pieces: bytes.chunks(PIECE_BYTES).map(shared).collect() }
    }

    fn read(&self, start: usize, into: &mut [u8]) {
        let mut at = start;
        for part in split(start, into.len()) {
            let piece = &self.pieces[at / PIECE_BYTES];
            into[at - start..at - start + part]
                .copy_from_slice(&piece[at % PIECE_BYTES..at % PIECE_BYTES + part]);
            at += part;
        }
    }

    fn write(&mut self, start: usize, from: &[u8]) {
        let mut at = start;
        for part in split(start, from.len()) {
            let piece = Arc::make_mut(&mut self.pieces[at / PIECE_BYTES]);
            piece[at % PIECE_BYTES..at % PIECE_BYTES + part]
                .copy_from_slice(&from[at - start..at - start + part]);
            at += part;
        }
    }
}

/// Lengths of the parts of `len` bytes from `start` on that lie in one piece each.
fn split(start: usize, len: usize) -> impl Iterator<Item = usize> {
    let (mut at, end) = (start, start + len);
    std::iter::from_fn(move || {
        let part = (PIECE_BYTES - at % PIECE_BYTES).min(end - at);
        at += part;
        (part > 0).then_some(part)
    })
}

impl MemDevice {
    /// A device that holds `bytes`.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes: RwLock::new(Bytes::new(&bytes)) }
    }

    /// A copy of all bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let bytes = self.read();
        let mut all = Vec::with_capacity(bytes.len);
        bytes.pieces.iter().for_each(|piece| all.extend_from_slice(piece));
        all
    }

    /// Whether the device holds exactly these bytes: [`MemDevice::to_vec`] without the copy.
    pub fn holds(&self, wanted: &[u8]) -> bool {
        let bytes = self.read();
        let mut pairs = bytes.pieces.iter().zip(wanted.chunks(PIECE_BYTES));
        bytes.len == wanted.len() && pairs.all(|(piece, wanted)| piece.as_slice() == wanted)
    }

    fn read(&self) -> floe_sync::RwLockReadGuard<'_, Bytes> {
        // A poisoned lock means only that another thread panicked; bytes are never half written.
        self.bytes.read().unwrap_or_else(floe_sync::PoisonError::into_inner)
    }
}

impl Clone for MemDevice {
    fn clone(&self) -> Self {
        Self { bytes: RwLock::new(self.read().clone()) }
    }
}

impl ReadBlocks for MemDevice {
    fn size_bytes(&self) -> u64 {
        self.read().len as u64
    }

    fn read_at(&self, offset_bytes: u64, into: &mut [u8]) -> io::Result<()> {
        let bytes = self.read();
        within(bytes.len as u64, offset_bytes, into.len())?;
        // In range, so it fits a usize.
        bytes.read(offset_bytes as usize, into);
        Ok(())
    }
}

impl WriteBlocks for MemDevice {
    fn write_at(&self, offset_bytes: u64, from: &[u8]) -> io::Result<()> {
        let mut bytes = self.bytes.write().unwrap_or_else(floe_sync::PoisonError::into_inner);
        within(bytes.len as u64, offset_bytes, from.len())?;
        // In range, so it fits a usize.
        bytes.write(offset_bytes as usize, from);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    crate::device_contract!(
        writable MemDevice,
        |bytes: &[u8]| crate::MemDevice::new(bytes.to_vec())
    );

    use super::*;

    #[test]
    fn a_copy_keeps_its_bytes_when_the_other_is_written() {
        let mut bytes = vec![7; 3 * PIECE_BYTES + 5];
        bytes[PIECE_BYTES..2 * PIECE_BYTES].fill(0);
        let device = MemDevice::new(bytes.clone());
        let copy = device.clone();
        // Across two pieces; the last byte; a piece that is shared as a hole.
        for at in [PIECE_BYTES - 2, 3 * PIECE_BYTES + 1, PIECE_BYTES + 9] {
            device.write_at(at as u64, &[1, 2, 3, 4]).unwrap();
        }
        assert_eq!(copy.to_vec(), bytes);
        for at in [PIECE_BYTES - 2, 3 * PIECE_BYTES + 1, PIECE_BYTES + 9] {
            bytes[at..at + 4].copy_from_slice(&[1, 2, 3, 4]);
        }
        assert_eq!(device.to_vec(), bytes);
        copy.write_at(0, &[9]).unwrap();
        assert!(
            device.holds(&bytes) && !copy.holds(&bytes) && !device.holds(&bytes[..PIECE_BYTES])
        );
    }
}
