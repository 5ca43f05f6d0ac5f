//! Small numbers, in runs of one value or packed in bits: levels, and indices into a dictionary.

use super::{ParquetError, damaged};

/// The run that is being read.
enum Run {
    Same {
        value: u32,
        left: u64,
    },
    /// The place of the next number, in bits.
    Packed {
        bit: u64,
        left: u64,
    },
}

/// Numbers of up to 32 bits each.
pub(super) struct Hybrid<'a> {
    bytes: &'a [u8],
    at: usize,
    width: u32,
    run: Run,
}

impl<'a> Hybrid<'a> {
    /// Numbers of `width` bits in `bytes`.
    pub(super) fn new(bytes: &'a [u8], width: u8) -> Result<Self, ParquetError> {
        if width > 32 {
            return damaged(format!("numbers of {width} bits"));
        }
        Ok(Self { bytes, at: 0, width: width.into(), run: Run::Same { value: 0, left: 0 } })
    }

    pub(super) fn next(&mut self) -> Result<u32, ParquetError> {
        loop {
            match &mut self.run {
                Run::Same { left: 0, .. } | Run::Packed { left: 0, .. } => self.next_run()?,
                Run::Same { value, left } => {
                    *left -= 1;
                    return Ok(*value);
                }
                Run::Packed { bit, left } => {
                    *left -= 1;
                    let start = *bit;
                    *bit += u64::from(self.width);
                    return self.bits(start);
                }
            }
        }
    }

    /// Each run has a byte at least, so this ends.
    fn next_run(&mut self) -> Result<(), ParquetError> {
        let mut head = 0_u64;
        for shift in (0..).step_by(7) {
            let byte = self.bytes.get(self.at).copied();
            let Some(byte) = byte.filter(|_| shift < 35) else {
                return damaged("a page has too few values");
            };
            self.at += 1;
            head |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let count = head >> 1;
        if head & 1 == 1 {
            let bit = self.at as u64 * 8;
            let len = usize::try_from(count * u64::from(self.width)).unwrap_or(usize::MAX);
            self.at = self.at.saturating_add(len);
            self.run = Run::Packed { bit, left: count * 8 };
            return Ok(());
        }
        let len = self.width.div_ceil(8) as usize;
        let Some(bytes) = self.bytes.get(self.at..).and_then(|rest| rest.get(..len)) else {
            return damaged("a page has too few values");
        };
        self.at += len;
        let value = bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
        self.run = Run::Same { value, left: count };
        Ok(())
    }

    /// The number at a bit. The last run may be shorter than it says, if nobody asks for the rest.
    fn bits(&self, start: u64) -> Result<u32, ParquetError> {
        let mut value = 0_u64;
        let (first, shift) = ((start / 8) as usize, start % 8);
        let len = (shift + u64::from(self.width)).div_ceil(8) as usize;
        let Some(bytes) = self.bytes.get(first..).and_then(|rest| rest.get(..len)) else {
            return damaged("a page has too few values");
        };
        for (at, byte) in bytes.iter().enumerate() {
            value |= u64::from(*byte) << (8 * at);
        }
        Ok((value >> shift & ((1 << self.width) - 1)) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_and_packed_numbers_are_read() {
        // Five times 4, then eight numbers of three bits: 0 to 7 (the example of the format's specification).
        let bytes = [10, 4, 3, 0b1000_1000, 0b1100_0110, 0b1111_1010];
        let mut numbers = Hybrid::new(&bytes, 3).unwrap();
        let read: Vec<_> = (0..13).map(|_| numbers.next().unwrap()).collect();
        assert_eq!(read, [4, 4, 4, 4, 4, 0, 1, 2, 3, 4, 5, 6, 7]);
        assert!(numbers.next().is_err());
        // No bits at all: a dictionary of one.
        let mut numbers = Hybrid::new(&[6], 0).unwrap();
        assert_eq!([(); 3].map(|()| numbers.next().unwrap()), [0; 3]);
        assert!(numbers.next().is_err());
        let wide = [2, 1, 2, 3, 4];
        assert_eq!(Hybrid::new(&wide, 32).unwrap().next().unwrap(), 0x0403_0201);
        assert!(Hybrid::new(&wide[..4], 32).unwrap().next().is_err());
        assert!(Hybrid::new(&[0xff; 9], 7).unwrap().next().is_err());
        assert!(Hybrid::new(&[], 33).is_err());
    }
}
