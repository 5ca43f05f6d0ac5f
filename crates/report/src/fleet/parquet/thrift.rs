//! Thrift's compact protocol, as far as the structures of Parquet need it: fields are looked at one by one, and skipped
//! unless the caller takes them, so that nothing is kept that nobody asked for.

/// Structures and lists inside each other, at most. Parquet's own go to six.
const MOST_DEPTH: u32 = 32;

/// Why bytes cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bad {
    /// They end too early.
    Short,
    /// They are no such structure.
    Wrong,
}

type Result<T> = std::result::Result<T, Bad>;

/// The type of a field or an element, a number of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind(u8);

impl Kind {
    const TRUE: Self = Self(1);
    const FALSE: Self = Self(2);
    const BYTE: Self = Self(3);
    const DOUBLE: Self = Self(7);
    const BINARY: Self = Self(8);
    const LIST: Self = Self(9);
    const SET: Self = Self(10);
    const MAP: Self = Self(11);
    const STRUCT: Self = Self(12);
    const UUID: Self = Self(13);

    /// The value of a field that is a boolean, which its type holds.
    pub(super) fn truth(self) -> Result<bool> {
        match self {
            Self::TRUE => Ok(true),
            Self::FALSE => Ok(false),
            _ => Err(Bad::Wrong),
        }
    }
}

/// Bytes being read.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: u32,
}

impl<'a> Reader<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, depth: 0 }
    }

    /// Bytes read so far.
    pub(super) const fn position(&self) -> usize {
        self.at
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let taken = self.bytes.get(self.at..).and_then(|rest| rest.get(..len));
        let taken = taken.ok_or(Bad::Short)?;
        self.at += len;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Bad::Wrong)
    }

    fn zigzag(&mut self) -> Result<i64> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    /// An integer of 16, 32 or 64 bits.
    pub(super) fn int(&mut self, kind: Kind) -> Result<i64> {
        if (4..=6).contains(&kind.0) { self.zigzag() } else { Err(Bad::Wrong) }
    }

    /// Bytes or a text.
    pub(super) fn binary(&mut self, kind: Kind) -> Result<&'a [u8]> {
        if kind != Kind::BINARY {
            return Err(Bad::Wrong);
        }
        let len = self.varint()?;
        self.take(usize::try_from(len).map_err(|_| Bad::Short)?)
    }

    /// Reads a structure that is a field: see [`Self::fields`].
    pub(super) fn structure(
        &mut self,
        kind: Kind,
        take: impl FnMut(&mut Self, i16, Kind) -> Result<bool>,
    ) -> Result<()> {
        if kind == Kind::STRUCT { self.fields(take) } else { Err(Bad::Wrong) }
    }

    /// Reads a structure: calls `take` with the number and the type of each field. It reads the field, or returns false.
    pub(super) fn fields(
        &mut self,
        mut take: impl FnMut(&mut Self, i16, Kind) -> Result<bool>,
    ) -> Result<()> {
        self.deeper(|this| {
            let mut id = 0_i16;
            loop {
                let head = this.byte()?;
                if head == 0 {
                    return Ok(());
                }
                id = match head >> 4 {
                    0 => i16::try_from(this.zigzag()?).map_err(|_| Bad::Wrong)?,
                    step => id.checked_add(i16::from(step)).ok_or(Bad::Wrong)?,
                };
                let kind = Kind(head & 15);
                if !take(this, id, kind)? {
                    this.skip(kind)?;
                }
            }
        })
    }

    /// Reads a list of structures: calls `each` for every one, which reads it by [`Self::fields`].
    pub(super) fn structures(
        &mut self,
        kind: Kind,
        mut each: impl FnMut(&mut Self) -> Result<()>,
    ) -> Result<()> {
        if kind != Kind::LIST {
            return Err(Bad::Wrong);
        }
        let (count, of) = self.list()?;
        if count > 0 && of != Kind::STRUCT {
            return Err(Bad::Wrong);
        }
        (0..count).try_for_each(|_| each(self))
    }

    /// The head of a list. Each element has a byte at least, so that a count cannot promise more than there is.
    fn list(&mut self) -> Result<(usize, Kind)> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.varint()?,
            count => u64::from(count),
        };
        Ok((self.plausible(count)?, Kind(head & 15)))
    }

    fn plausible(&self, count: u64) -> Result<usize> {
        let count = usize::try_from(count).map_err(|_| Bad::Short)?;
        if count > self.bytes.len() - self.at { Err(Bad::Short) } else { Ok(count) }
    }

    fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth == MOST_DEPTH {
            return Err(Bad::Wrong);
        }
        self.depth += 1;
        let done = work(self);
        self.depth -= 1;
        done
    }

    fn skip(&mut self, kind: Kind) -> Result<()> {
        match kind {
            // A field's value is in its type.
            Kind::TRUE | Kind::FALSE => Ok(()),
            _ => self.skip_element(kind),
        }
    }

    fn skip_element(&mut self, kind: Kind) -> Result<()> {
        match kind {
            Kind::TRUE | Kind::FALSE | Kind::BYTE => self.take(1).map(drop),
            Kind::DOUBLE => self.take(8).map(drop),
            Kind::UUID => self.take(16).map(drop),
            Kind::BINARY => self.binary(kind).map(drop),
            Kind::STRUCT => self.fields(|_, _, _| Ok(false)),
            Kind::LIST | Kind::SET => self.deeper(|this| {
                let (count, of) = this.list()?;
                (0..count).try_for_each(|_| this.skip_element(of))
            }),
            Kind::MAP => self.deeper(Self::skip_map),
            _ => self.int(kind).map(drop),
        }
    }

    fn skip_map(&mut self) -> Result<()> {
        let count = self.varint()?;
        let count = self.plausible(count)?;
        let kinds = if count > 0 { self.byte()? } else { 0 };
        (0..count).try_for_each(|_| {
            self.skip_element(Kind(kinds >> 4))?;
            self.skip_element(Kind(kinds & 15))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_taken_or_skipped() {
        // 1: i32 -3; 3: list of 2 bytes; 4: true; 20 (long form): binary "ab".
        let bytes = [0x15, 5, 0x29, 0x23, 7, 8, 0x11, 0x08, 40, 2, b'a', b'b', 0];
        let mut found = (0, false, Vec::new());
        let mut reader = Reader::new(&bytes);
        let read = reader.fields(|of, id, kind| {
            match id {
                1 => found.0 = of.int(kind)?,
                4 => found.1 = kind.truth()?,
                20 => found.2 = of.binary(kind)?.to_vec(),
                _ => return Ok(false),
            }
            Ok(true)
        });
        assert_eq!((read, reader.position()), (Ok(()), bytes.len()));
        assert_eq!(found, (-3, true, b"ab".to_vec()));
        for len in 0..bytes.len() {
            let read = Reader::new(&bytes[..len]).fields(|_, _, _| Ok(false));
            assert_eq!(read, Err(Bad::Short), "{len}");
        }
    }

    #[test]
    fn counts_and_depths_that_cannot_be_are_refused() {
        let skip = |bytes: &[u8]| Reader::new(bytes).fields(|_, _, _| Ok(false));
        // A list of 2^34 bytes; a structure in a structure, and so on.
        assert_eq!(skip(&[0x19, 0xf3, 0xff, 0xff, 0xff, 0xff, 0x3f, 0]), Err(Bad::Short));
        assert_eq!(skip(&[0x1c; 100_000]), Err(Bad::Wrong));
        assert_eq!(skip(&[0x19; 100_000]), Err(Bad::Wrong));
        assert_eq!(skip(&[0x1e, 0]), Err(Bad::Wrong));
        assert_eq!(skip(&[[0x16; 1].as_slice(), &[0xff; 20]].concat()), Err(Bad::Wrong));
    }
}
