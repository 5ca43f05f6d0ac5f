//! How evidence is written down, to go on with another day (`checkpoint`): small numbers in few bytes,
//! columns of rows as differences, nothing that depends on this machine.
//!
//! Each kind of evidence implements [`Saved`] in its own file, with all its fields named, so that a new
//! one cannot be forgotten. Loading believes nothing: it never panics, and needs memory in proportion
//! to the bytes that were read.

mod frames;
mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read, Write};

use floe_exec::Accumulator;
use floe_format::{BlockNr, Geometry, GroupNr, InodeNr, LogicalBlock};

use frames::{FrameReader, FrameWriter};

/// A value that can be saved and restored.
pub trait Saved: Sized {
    /// Writes it.
    fn save(&self, to: &mut Encoder<'_>);

    /// Reads it.
    ///
    /// # Errors
    /// See [`Fault`].
    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault>;

    /// Reads another one and merges it into this one. Evidence with long lists reads them to where they stay.
    ///
    /// # Errors
    /// See [`Fault`]. This one is of no use then.
    fn load_more(&mut self, from: &mut Decoder<'_>) -> Result<(), Fault>
    where
        Self: Accumulator,
    {
        self.merge(Self::load(from)?);
        Ok(())
    }
}

/// Why nothing could be loaded.
#[derive(Debug)]
pub enum Fault {
    /// The bytes end too early: whoever wrote them was cut off.
    Cut,
    /// The bytes are not those that were written, or are none of ours.
    Damaged,
    /// They could not be read.
    Read(io::Error),
}

/// Bounds of the numbers of one file system: places outside it are not believed.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Clusters, counted from the first data block.
    pub clusters: u64,
    /// Inodes.
    pub inodes: u32,
    /// Groups.
    pub groups: u32,
}

impl Bounds {
    /// The limits of a file system.
    pub fn of(geometry: &Geometry) -> Self {
        Self {
            clusters: geometry.clusters_count(),
            inodes: geometry.inodes_count,
            groups: geometry.group_count,
        }
    }
}

/// Writes values, and reports errors at the end.
pub struct Encoder<'w> {
    frames: FrameWriter<'w>,
}

impl<'w> Encoder<'w> {
    /// Writes to `out`; `chain` is what the record before ended with.
    pub fn new(out: &'w mut dyn Write, chain: u128) -> Self {
        Self { frames: FrameWriter::new(out, chain) }
    }

    /// Writes a number: 1 byte below 128, at most 10.
    #[inline]
    pub fn put(&mut self, number: u64) {
        let mut rest = number;
        while rest >= 0x80 {
            self.frames.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        self.frames.push(rest as u8);
    }

    /// Writes how far a number is from another one: few bytes if they are near each other.
    #[inline]
    pub(crate) fn put_step(&mut self, last: &mut u64, number: u64) {
        self.put(coded_step(number.wrapping_sub(*last)));
        *last = number;
    }

    /// Writes bytes as they are; the reader must know how many.
    pub fn put_bytes(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.frames.push(byte));
    }

    /// Writes values many of which are the same as those before them: as runs, or one by one if that
    /// is less.
    pub(crate) fn put_values(&mut self, values: &[u64]) {
        let runs = values.chunk_by(|left, right| left == right).count();
        self.put(values.len() as u64);
        if runs * 2 < values.len() {
            self.put(1);
            for run in values.chunk_by(|left, right| left == right) {
                self.put(run[0]);
                self.put(run.len() as u64);
            }
        } else {
            self.put(0);
            values.iter().for_each(|&value| self.put(value));
        }
    }

    /// Ends the record; comes back with its place in the chain.
    ///
    /// # Errors
    /// The first error.
    pub fn finish(self) -> io::Result<u128> {
        self.frames.finish()
    }
}

/// A step as a number that is small if the step is, up or down.
#[inline]
const fn coded_step(step: u64) -> u64 {
    let step = step.cast_signed();
    ((step << 1) ^ (step >> 63)).cast_unsigned()
}

/// The step that [`coded_step`] made a number of.
#[inline]
const fn decoded_step(coded: u64) -> u64 {
    ((coded >> 1).cast_signed() ^ -(coded & 1).cast_signed()).cast_unsigned()
}

/// Reads values of one record after the other.
pub struct Decoder<'r> {
    frames: FrameReader<'r>,
    /// Places outside the file system are damage.
    pub bounds: Bounds,
    texts: BTreeSet<&'static str>,
}

/// Texts of findings that differ, at most: they are those that stand in this program.
const MOST_TEXTS: usize = 1024;
/// Bytes of a text or of a name, at most.
const MOST_TEXT_BYTES: u64 = 1024;
/// Elements for which room is made before they are seen, at most. (Room that is not used takes no memory.)
const ROOM: u64 = 1 << 16;

impl<'r> Decoder<'r> {
    /// Reads from `source`; the first record follows what ended with `chain`.
    pub fn new(source: &'r mut dyn Read, chain: u128, bounds: Bounds) -> Self {
        Self { frames: FrameReader::new(source, chain), bounds, texts: BTreeSet::new() }
    }

    /// Begins a record; `false` if there is none any more.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn begin(&mut self) -> Result<bool, Fault> {
        self.frames.begin()
    }

    /// Ends a record, of which all must have been read. Comes back with the chain and with the number
    /// of bytes from the first record to the end of this one.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn end(&mut self) -> Result<(u128, u64), Fault> {
        self.frames.end()
    }

    /// Reads a number.
    ///
    /// # Errors
    /// See [`Fault`].
    #[inline]
    pub fn number(&mut self) -> Result<u64, Fault> {
        // Most numbers are small.
        let first = self.frames.byte()?;
        if first < 0x80 {
            return Ok(first.into());
        }
        let second = self.frames.byte()?;
        let number = u64::from(first & 0x7f) | u64::from(second & 0x7f) << 7;
        if second < 0x80 { Ok(number) } else { self.long_number(number) }
    }

    /// The rest of a number, behind its first two bytes.
    fn long_number(&mut self, mut number: u64) -> Result<u64, Fault> {
        for shift in (14..64).step_by(7) {
            let byte = self.frames.byte()?;
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part {
                return Err(Fault::Damaged);
            }
            number |= part << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Fault::Damaged)
    }

    /// Reads a number that must fit a smaller type.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn small<T: TryFrom<u64>>(&mut self) -> Result<T, Fault> {
        T::try_from(self.number()?).map_err(|_| Fault::Damaged)
    }

    /// Reads a number below a bound.
    ///
    /// # Errors
    /// See [`Fault`].
    #[inline]
    pub fn below(&mut self, bound: u64) -> Result<u64, Fault> {
        self.number()
            .and_then(|number| if number < bound { Ok(number) } else { Err(Fault::Damaged) })
    }

    /// Reads what `Encoder::put_step` wrote.
    ///
    /// # Errors
    /// See [`Fault`].
    #[inline]
    pub fn step(&mut self, last: &mut u64) -> Result<u64, Fault> {
        *last = last.wrapping_add(decoded_step(self.number()?));
        Ok(*last)
    }

    /// Reads bytes as they are.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn bytes<const N: usize>(&mut self) -> Result<[u8; N], Fault> {
        let mut bytes = [0; N];
        for byte in &mut bytes {
            *byte = self.frames.byte()?;
        }
        Ok(bytes)
    }

    /// Bytes of a text.
    ///
    /// # Errors
    /// See [`Fault`].
    pub(crate) fn text_bytes(&mut self) -> Result<Vec<u8>, Fault> {
        let len = self.below(MOST_TEXT_BYTES + 1)?;
        (0..len).map(|_| self.frames.byte()).collect()
    }

    /// Reads values, `most` at most.
    ///
    /// # Errors
    /// See [`Fault`].
    pub fn values<T: Copy + TryFrom<u64>>(&mut self, most: usize) -> Result<Vec<T>, Fault> {
        let len = self.below((most as u64).saturating_add(1))?;
        // At most `most`.
        let len = len as usize;
        let mut values = Vec::with_capacity(believed(len as u64));
        if self.below(2)? == 0 {
            for _ in 0..len {
                values.push(self.small()?);
            }
            return Ok(values);
        }
        while values.len() < len {
            let value: T = self.small()?;
            let run = self.below((len - values.len()) as u64 + 1)?;
            if run == 0 {
                return Err(Fault::Damaged);
            }
            values.resize(values.len() + run as usize, value);
        }
        Ok(values)
    }
}

/// How many of `len` elements room is made for before they are seen.
fn believed(len: u64) -> usize {
    len.min(ROOM) as usize
}

/// A cell of a row, if it fits.
pub fn cell<T: TryFrom<u64>>(cell: u64) -> Option<T> {
    T::try_from(cell).ok()
}

macro_rules! saved_numbers {
    ($($ty:ty),*) => {$(
        impl Saved for $ty {
            fn save(&self, to: &mut Encoder<'_>) {
                to.put(u64::from(*self));
            }
            fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
                from.small()
            }
        }
    )*};
}
saved_numbers!(u8, u16, u32, u64);

macro_rules! saved_places {
    ($($ty:ident),*) => {$(
        impl Saved for $ty {
            fn save(&self, to: &mut Encoder<'_>) {
                self.0.save(to);
            }
            fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
                Saved::load(from).map(Self)
            }
        }
    )*};
}
saved_places!(BlockNr, InodeNr, GroupNr, LogicalBlock);

impl Saved for i64 {
    fn save(&self, to: &mut Encoder<'_>) {
        to.put_step(&mut 0, self.cast_unsigned());
    }
    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        from.step(&mut 0).map(u64::cast_signed)
    }
}

impl Saved for u128 {
    fn save(&self, to: &mut Encoder<'_>) {
        to.put_bytes(&self.to_le_bytes());
    }
    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        from.bytes().map(Self::from_le_bytes)
    }
}

impl Saved for bool {
    fn save(&self, to: &mut Encoder<'_>) {
        to.put(u64::from(*self));
    }
    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        from.below(2).map(|number| number == 1)
    }
}

impl<const N: usize> Saved for [u8; N] {
    fn save(&self, to: &mut Encoder<'_>) {
        to.put_bytes(self);
    }
    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        from.bytes()
    }
}

impl<T: Saved> Saved for Option<T> {
    fn save(&self, to: &mut Encoder<'_>) {
        self.is_some().save(to);
        if let Some(value) = self {
            value.save(to);
        }
    }
    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        if bool::load(from)? { T::load(from).map(Some) } else { Ok(None) }
    }
}

impl<A: Saved, B: Saved> Saved for (A, B) {
    fn save(&self, to: &mut Encoder<'_>) {
        self.0.save(to);
        self.1.save(to);
    }
    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        Ok((A::load(from)?, B::load(from)?))
    }
}

impl<T: Saved> Saved for Vec<T> {
    fn save(&self, to: &mut Encoder<'_>) {
        to.put(self.len() as u64);
        self.iter().for_each(|element| element.save(to));
    }
    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let len = from.number()?;
        let mut all = Vec::with_capacity(believed(len));
        for _ in 0..len {
            all.push(T::load(from)?);
        }
        Ok(all)
    }
}

impl Saved for BTreeMap<InodeNr, u64> {
    fn save(&self, to: &mut Encoder<'_>) {
        to.put_rows(self.iter().map(|(inode, count)| [u64::from(inode.0), *count]));
    }
    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let rows = from.rows(|[inode, count]| Some((InodeNr(cell(inode)?), count)))?;
        Ok(rows.into_iter().collect())
    }
}

impl Saved for String {
    fn save(&self, to: &mut Encoder<'_>) {
        put_text(to, self.as_bytes());
    }
    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        Self::from_utf8(from.text_bytes()?).map_err(|_| Fault::Damaged)
    }
}

/// Writes bytes of a text.
pub(crate) fn put_text(to: &mut Encoder<'_>, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MOST_TEXT_BYTES as usize)];
    to.put(bytes.len() as u64);
    to.put_bytes(bytes);
}

/// A text that stands in the program. Read again it takes a little memory that is never given back,
/// once for each text; there are few.
impl Saved for &'static str {
    fn save(&self, to: &mut Encoder<'_>) {
        put_text(to, self.as_bytes());
    }
    fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
        let text = String::load(from)?;
        if let Some(known) = from.texts.get(text.as_str()) {
            return Ok(known);
        }
        if from.texts.len() >= MOST_TEXTS {
            return Err(Fault::Damaged);
        }
        let text: &'static str = Box::leak(text.into_boxed_str());
        from.texts.insert(text);
        Ok(text)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fmt::Debug;

    use proptest::prelude::*;

    use super::*;

    /// Bounds of a file system that is large enough for tests.
    pub(crate) const BOUNDS: Bounds =
        Bounds { clusters: 1 << 40, inodes: u32::MAX, groups: 1 << 20 };

    /// The bytes of a value, as one record.
    pub(crate) fn bytes_of<T: Saved>(value: &T) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes, 0);
        value.save(&mut encoder);
        encoder.finish().unwrap();
        bytes
    }

    /// The value that bytes stand for.
    pub(crate) fn of_bytes<T: Saved>(mut bytes: &[u8], bounds: Bounds) -> Result<T, Fault> {
        let mut decoder = Decoder::new(&mut bytes, 0, bounds);
        if !decoder.begin()? {
            return Err(Fault::Cut);
        }
        let value = T::load(&mut decoder)?;
        decoder.end()?;
        Ok(value)
    }

    /// A value after it was saved and restored.
    pub(crate) fn again<T: Saved>(value: &T) -> T {
        of_bytes(&bytes_of(value), BOUNDS).unwrap()
    }

    /// An observation of a value, which must be the same after it was saved and restored; and of two read one behind the
    /// other, which must be that of two that were merged.
    pub(crate) fn same<T: Saved + Accumulator, O: PartialEq + Debug>(
        value: T,
        see: impl Fn(T) -> O,
    ) -> O {
        let bytes = bytes_of(&value);
        let (mut merged, mut behind) = (again(&value), again(&value));
        merged.merge(again(&value));
        let mut bytes = &bytes[..];
        let mut decoder = Decoder::new(&mut bytes, 0, BOUNDS);
        assert!(decoder.begin().unwrap());
        behind.load_more(&mut decoder).unwrap();
        decoder.end().unwrap();
        assert_eq!(see(merged), see(behind), "to be read behind another one changes it");
        let saved = see(again(&value));
        let own = see(value);
        assert_eq!(own, saved, "to be written and read changes it");
        own
    }

    fn keeps<T: Saved + PartialEq + Debug>(value: T) -> Result<(), TestCaseError> {
        prop_assert_eq!(again(&value), value);
        Ok(())
    }

    proptest! {
        #[test]
        fn numbers_and_texts_come_back(
            (large, signed, huge) in (any::<u64>(), any::<i64>(), any::<u128>()),
            (small, flag, byte) in (any::<u32>(), any::<Option<bool>>(), any::<u8>()),
            list in proptest::collection::vec(any::<(u16, u64)>(), 0..50),
            name in proptest::collection::vec(any::<u8>(), 0..256),
            text in ".{0,40}",
        ) {
            keeps(large)?;
            keeps(signed)?;
            keeps(huge)?;
            keeps(small)?;
            keeps(flag)?;
            keeps(byte)?;
            keeps(list)?;
            keeps(crate::problem::Name::new(&name))?;
            keeps(text)?;
        }

        #[test]
        fn rows_and_values_come_back(
            rows in proptest::collection::vec(any::<[u64; 3]>(), 0..50),
            values in proptest::collection::vec(
                prop_oneof![5 => Just(1u64), 1 => any::<u64>()], 0..300),
        ) {
            #[derive(Debug, PartialEq)]
            struct Both(Vec<[u64; 3]>, Vec<u64>);
            impl Saved for Both {
                fn save(&self, to: &mut Encoder<'_>) {
                    to.put_rows(self.0.iter().copied());
                    to.put_values(&self.1);
                }
                fn load(from: &mut Decoder<'_>) -> Result<Self, Fault> {
                    Ok(Self(from.rows(Some)?, from.values(300)?))
                }
            }
            keeps(Both(rows, values))?;
        }
    }

    #[test]
    fn what_is_too_large_is_refused() {
        let bytes = bytes_of(&(u64::from(u32::MAX) + 1));
        assert!(matches!(of_bytes::<u32>(&bytes, BOUNDS), Err(Fault::Damaged)));
        // A list that says to be endless, with nothing behind it.
        let bytes = bytes_of(&u64::MAX);
        assert!(matches!(of_bytes::<Vec<u64>>(&bytes, BOUNDS), Err(Fault::Damaged)));
        // More in the record than is wanted.
        let bytes = bytes_of(&(1u64, 2u64));
        assert!(matches!(of_bytes::<u64>(&bytes, BOUNDS), Err(Fault::Damaged)));
    }
}
