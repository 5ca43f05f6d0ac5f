//! Bytes that tell whether they are whole: a record is written as frames, each with a hash over itself
//! and all that came before it.
//!
//! A frame: a word of 32 bits (the length of the payload, and in the highest bit whether it is the last
//! of its record), the payload, and 16 bytes of SipHash-2-4 of the hash before, the word and the
//! payload. Numbers have their low byte first. So a record that was cut off, a changed byte and a piece
//! that belongs elsewhere are all seen before anything is believed, frame by frame. The hash has no
//! secret key: it is against accidents, not against somebody who may write the file.

use std::hash::Hasher;
use std::io::{self, Read, Write};

use siphasher::sip128::{Hasher128, SipHasher24};

use crate::saved::Fault;

/// Bytes of a payload, at most.
const FRAME_BYTES: usize = 256 << 10;
/// The mark of the last frame of a record.
const LAST: u32 = 1 << 31;
/// Bytes of a frame besides its payload.
const AROUND_BYTES: u64 = 4 + 16;

fn link(chain: u128, word: u32, payload: &[u8]) -> u128 {
    let mut hasher = SipHasher24::new_with_key(b"floe checkpoint ");
    hasher.write(&chain.to_le_bytes());
    hasher.write(&word.to_le_bytes());
    hasher.write(payload);
    hasher.finish128().as_u128()
}

/// Writes one record.
pub(super) struct FrameWriter<'w> {
    out: &'w mut dyn Write,
    payload: Vec<u8>,
    chain: u128,
    /// The first error; nothing is written after it.
    failed: Option<io::Error>,
}

impl<'w> FrameWriter<'w> {
    pub(super) fn new(out: &'w mut dyn Write, chain: u128) -> Self {
        Self { out, payload: Vec::new(), chain, failed: None }
    }

    #[inline]
    pub(super) fn push(&mut self, byte: u8) {
        if self.payload.len() == FRAME_BYTES {
            self.write_frame(0);
        }
        self.payload.push(byte);
    }

    fn write_frame(&mut self, mark: u32) {
        // At most FRAME_BYTES.
        let word = self.payload.len() as u32 | mark;
        self.chain = link(self.chain, word, &self.payload);
        if self.failed.is_none() {
            let parts = [&word.to_le_bytes()[..], &self.payload, &self.chain.to_le_bytes()];
            let written = parts.into_iter().try_for_each(|part| self.out.write_all(part));
            self.failed = written.err();
        }
        self.payload.clear();
    }

    /// Ends the record.
    pub(super) fn finish(mut self) -> io::Result<u128> {
        self.write_frame(LAST);
        self.failed.map_or(Ok(self.chain), Err)
    }
}

/// Reads records.
pub(super) struct FrameReader<'r> {
    source: &'r mut dyn Read,
    payload: Vec<u8>,
    /// Bytes of the payload that were handed out.
    taken: usize,
    /// Whether the frame at hand is the last one of its record.
    last: bool,
    chain: u128,
    /// Bytes of all frames so far.
    read_bytes: u64,
}

impl<'r> FrameReader<'r> {
    pub(super) fn new(source: &'r mut dyn Read, chain: u128) -> Self {
        Self { source, payload: Vec::new(), taken: 0, last: true, chain, read_bytes: 0 }
    }

    pub(super) fn begin(&mut self) -> Result<bool, Fault> {
        let mut word = [0; 4];
        let got = fill(self.source, &mut word)?;
        if got == 0 {
            return Ok(false);
        }
        self.read_frame(word, got)?;
        Ok(true)
    }

    fn read_frame(&mut self, word: [u8; 4], got: usize) -> Result<(), Fault> {
        if got < word.len() {
            return Err(Fault::Cut);
        }
        let word = u32::from_le_bytes(word);
        let len = (word & !LAST) as usize;
        if len > FRAME_BYTES {
            return Err(Fault::Damaged);
        }
        self.payload.clear();
        let mut chain = [0; 16];
        let got = (&mut *self.source).take(len as u64).read_to_end(&mut self.payload);
        if got.map_err(Fault::Read)? < len || fill(self.source, &mut chain)? < 16 {
            return Err(Fault::Cut);
        }
        let expected = link(self.chain, word, &self.payload);
        if u128::from_le_bytes(chain) != expected {
            return Err(Fault::Damaged);
        }
        (self.chain, self.taken, self.last) = (expected, 0, word & LAST != 0);
        self.read_bytes += AROUND_BYTES + len as u64;
        Ok(())
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, Fault> {
        match self.payload.get(self.taken) {
            Some(&byte) => {
                self.taken += 1;
                Ok(byte)
            }
            None => self.byte_of_next_frame(),
        }
    }

    #[cold]
    fn byte_of_next_frame(&mut self) -> Result<u8, Fault> {
        while self.taken >= self.payload.len() {
            if self.last {
                // Less in the record than there should be.
                return Err(Fault::Damaged);
            }
            let mut word = [0; 4];
            let got = fill(self.source, &mut word)?;
            self.read_frame(word, got)?;
        }
        self.taken += 1;
        self.payload.get(self.taken - 1).copied().ok_or(Fault::Damaged)
    }

    pub(super) fn end(&mut self) -> Result<(u128, u64), Fault> {
        if !self.last || self.taken < self.payload.len() {
            return Err(Fault::Damaged);
        }
        Ok((self.chain, self.read_bytes))
    }
}

/// Reads as many bytes as there are; comes back with their number.
fn fill(source: &mut dyn Read, into: &mut [u8]) -> Result<usize, Fault> {
    let mut got = 0;
    while got < into.len() {
        match source.read(&mut into[got..]) {
            Ok(0) => break,
            Ok(more) => got += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Fault::Read(error)),
        }
    }
    Ok(got)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::saved::tests::{BOUNDS, bytes_of, of_bytes};
    use crate::saved::{Decoder, Encoder, Fault, Saved};

    /// A record of some numbers, long enough for several frames if there are many.
    fn numbers(len: u64) -> Vec<u64> {
        (0..len).map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect()
    }

    #[test]
    fn long_records_have_several_frames() {
        let list = numbers(100_000);
        let bytes = bytes_of(&list);
        assert!(bytes.len() > 3 * FRAME_BYTES);
        assert_eq!(of_bytes::<Vec<u64>>(&bytes, BOUNDS).unwrap(), list);
        for cut in [0, 3, 4, FRAME_BYTES + 19, FRAME_BYTES + 20, FRAME_BYTES + 21, bytes.len() - 1]
        {
            let loaded = of_bytes::<Vec<u64>>(&bytes[..cut], BOUNDS);
            assert!(matches!(loaded, Err(Fault::Cut)), "{cut}: {loaded:?}");
        }
    }

    #[test]
    fn a_whole_record_before_a_cut_one_is_kept() {
        let mut bytes = Vec::new();
        let mut chain = 7;
        for record in [numbers(3), numbers(40_000)] {
            let mut encoder = Encoder::new(&mut bytes, chain);
            record.save(&mut encoder);
            chain = encoder.finish().unwrap();
        }
        let first = bytes_of(&numbers(3)).len();
        let mut cut = &bytes[..bytes.len() - 1];
        let mut decoder = Decoder::new(&mut cut, 7, BOUNDS);
        assert!(decoder.begin().unwrap());
        assert_eq!(Vec::<u64>::load(&mut decoder).unwrap(), numbers(3));
        assert_eq!(decoder.end().unwrap().1, first as u64);
        assert!(decoder.begin().unwrap());
        assert!(matches!(Vec::<u64>::load(&mut decoder), Err(Fault::Cut)));
        // The second one by itself follows nothing that it knows.
        let mut alone = &bytes[first..];
        assert!(matches!(Decoder::new(&mut alone, 7, BOUNDS).begin(), Err(Fault::Damaged)));
    }

    proptest! {
        #[test]
        fn any_changed_byte_is_seen(len in 0u64..50, at in any::<prop::sample::Index>(), by in 1u8..) {
            let mut bytes = bytes_of(&numbers(len));
            let at = at.index(bytes.len());
            bytes[at] ^= by;
            prop_assert!(of_bytes::<Vec<u64>>(&bytes, BOUNDS).is_err());
        }
    }
}
