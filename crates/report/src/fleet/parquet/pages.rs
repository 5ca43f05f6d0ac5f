//! The pages of a column in one row group, and the values in them.

use std::io::Read;

use floe_blockdev::image::{Format, unpacked};

use super::footer::{Chunk, Packing};
use super::hybrid::Hybrid;
use super::thrift::{Bad, Kind, Reader};
use super::{ParquetError, Source, Text, damaged, snappy};

/// Bytes of a page, packed and unpacked, at most. Spark's have a megabyte, unless single values are longer.
const MOST_PAGE_BYTES: usize = 128 << 20;
/// Bytes of a page's header: it is first looked for in the smaller number. Some programs write a page's least and
/// greatest value there.
const HEADER_BYTES: usize = 1 << 10;
const MOST_HEADER_BYTES: usize = 16 << 20;

/// Encodings of values and levels, numbers of the format.
const PLAIN: i64 = 0;
const PLAIN_DICTIONARY: i64 = 2;
const RLE: i64 = 3;
const RLE_DICTIONARY: i64 = 8;

/// A page's header.
#[derive(Default)]
struct Header {
    kind: i64,
    size: i64,
    packed: i64,
    crc: Option<u32>,
    values: i64,
    encoding: i64,
    /// How levels of version 1 are written.
    levels: i64,
    /// Bytes of repetition and definition levels in version 2.
    level_bytes: (i64, i64),
    is_packed: bool,
}

/// The pages of a column in one row group.
pub(super) struct Pages<'f, S: ?Sized> {
    source: &'f S,
    packing: Packing,
    optional: bool,
    at: u64,
    end: u64,
    rows_left: u64,
    /// The values of the page at hand, with levels before them in version 1.
    body: Vec<u8>,
    /// The levels of the page at hand in version 2.
    levels: Vec<u8>,
    dictionary: Option<Dictionary>,
}

/// Values that pages name by their number.
struct Dictionary {
    bytes: Vec<u8>,
    /// First byte and length of each.
    places: Vec<(u32, u32)>,
}

/// A page of values.
pub(super) struct Page<'p> {
    left: u64,
    levels: Option<Hybrid<'p>>,
    values: Values<'p>,
}

enum Values<'p> {
    Plain(&'p [u8]),
    Named { indices: Hybrid<'p>, dictionary: &'p Dictionary, last: Option<u32> },
}

impl<'f, S: Source + ?Sized> Pages<'f, S> {
    pub(super) fn new(source: &'f S, chunk: &Chunk, optional: bool) -> Self {
        Self {
            source,
            packing: chunk.packing,
            optional,
            at: chunk.start,
            end: chunk.start + chunk.len_bytes,
            rows_left: chunk.rows,
            body: Vec::new(),
            levels: Vec::new(),
            dictionary: None,
        }
    }

    /// The next page of values; `None` after that with the last row.
    pub(super) fn next_page(&mut self) -> Result<Option<Page<'_>>, ParquetError> {
        while self.rows_left > 0 {
            if self.at >= self.end {
                return damaged("it has fewer values than rows");
            }
            let header = self.header()?;
            let packed = self.packed(&header)?;
            match header.kind {
                0 | 3 => return self.values(&header, packed).map(Some),
                // A page of an index, which no program writes.
                1 => {}
                2 => self.read_dictionary(&header, &packed)?,
                kind => return damaged(format!("a page of the unknown type {kind}")),
            }
        }
        Ok(None)
    }

    /// Reads a header, and goes behind it.
    fn header(&mut self) -> Result<Header, ParquetError> {
        let mut len = HEADER_BYTES;
        loop {
            let there = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
            let mut bytes = vec![0; len.min(there)];
            self.source.read_exact_at(&mut bytes, self.at)?;
            let mut reader = Reader::new(&bytes);
            match header(&mut reader) {
                Ok(header) => {
                    self.at += reader.position() as u64;
                    return Ok(header);
                }
                Err(Bad::Short) if len < there.min(MOST_HEADER_BYTES) => len <<= 7,
                Err(_) => return damaged("the header of a page cannot be read"),
            }
        }
    }

    /// Reads a page as it lies in the file, and goes behind it.
    fn packed(&mut self, header: &Header) -> Result<Vec<u8>, ParquetError> {
        let len = page_bytes(header.packed)?;
        if len as u64 > self.end - self.at {
            return damaged("a page is longer than its column");
        }
        let mut packed = vec![0; len];
        self.source.read_exact_at(&mut packed, self.at)?;
        self.at += len as u64;
        if header.crc.is_some_and(|crc| crc != crc32fast::hash(&packed)) {
            return damaged("the checksum of a page is wrong");
        }
        Ok(packed)
    }

    fn read_dictionary(&mut self, header: &Header, packed: &[u8]) -> Result<(), ParquetError> {
        if self.dictionary.is_some() {
            return damaged("a column has two dictionaries");
        }
        if !matches!(header.encoding, PLAIN | PLAIN_DICTIONARY) {
            return damaged("its dictionary has an unknown encoding");
        }
        let bytes = unpack(self.packing, packed, page_bytes(header.size)?)?;
        let (mut rest, mut places) = (&bytes[..], Vec::new());
        while !rest.is_empty() {
            let value = plain(&mut rest)?;
            // A page is shorter than 4 GiB.
            places.push(((bytes.len() - rest.len() - value.len()) as u32, value.len() as u32));
        }
        if usize::try_from(header.values) != Ok(places.len()) {
            return damaged("its dictionary has another number of values than it says");
        }
        self.dictionary = Some(Dictionary { bytes, places });
        Ok(())
    }

    /// A page of values from its bytes in the file.
    fn values(&mut self, header: &Header, packed: Vec<u8>) -> Result<Page<'_>, ParquetError> {
        // The format counts the values of a page in 31 bits.
        let left = u64::from(u32::try_from(header.values).unwrap_or(u32::MAX));
        if left > self.rows_left {
            return damaged("it has more values than rows");
        }
        let size = page_bytes(header.size)?;
        self.rows_left -= left;
        let (levels, values) = if header.kind == 3 {
            self.split(header, packed, size)?;
            (&self.levels[..], &self.body[..])
        } else {
            self.body = unpack(self.packing, &packed, size)?;
            if self.optional {
                leading_levels(header, &self.body)?
            } else {
                (&[][..], &self.body[..])
            }
        };
        let levels = if self.optional { Some(Hybrid::new(levels, 1)?) } else { None };
        let values = match (header.encoding, values.split_first()) {
            // A page where no row has a value.
            (_, None) | (PLAIN, _) => Values::Plain(values),
            (PLAIN_DICTIONARY | RLE_DICTIONARY, Some((width, indices))) => {
                let Some(dictionary) = &self.dictionary else {
                    return damaged("a page names values of a dictionary that is not there");
                };
                let indices = Hybrid::new(indices, *width)?;
                Values::Named { indices, dictionary, last: None }
            }
            (encoding, _) => {
                let what = format!("a page with the encoding {encoding} (of version 2)");
                return Err(ParquetError::Unsupported(what));
            }
        };
        Ok(Page { left, levels, values })
    }

    /// Splits levels and values of a page of version 2, whose levels are not packed.
    fn split(
        &mut self,
        header: &Header,
        mut packed: Vec<u8>,
        size: usize,
    ) -> Result<(), ParquetError> {
        let (repetition, definition) = header.level_bytes;
        let len = usize::try_from(definition).ok();
        let len = len.filter(|len| repetition == 0 && *len <= packed.len().min(size));
        let Some(len) = len else { return damaged("a page has levels that cannot be") };
        let body = packed.split_off(len);
        let packing = if header.is_packed { self.packing } else { Packing::None };
        self.body = unpack(packing, &body, size - len)?;
        self.levels = packed;
        Ok(())
    }
}

/// Splits the levels of a page of version 1 from its values.
fn leading_levels<'p>(
    header: &Header,
    body: &'p [u8],
) -> Result<(&'p [u8], &'p [u8]), ParquetError> {
    if header.levels != RLE {
        return Err(ParquetError::Unsupported("the encoding of its levels".to_owned()));
    }
    let mut rest = body;
    Ok((plain(&mut rest)?, rest))
}

/// A value behind its length; goes behind it.
fn plain<'p>(rest: &mut &'p [u8]) -> Result<&'p [u8], ParquetError> {
    let split = rest.split_first_chunk::<4>().and_then(|(len, behind)| {
        behind.split_at_checked(usize::try_from(u32::from_le_bytes(*len)).ok()?)
    });
    let Some((value, behind)) = split else { return damaged("a value is longer than its page") };
    *rest = behind;
    Ok(value)
}

fn page_bytes(len: i64) -> Result<usize, ParquetError> {
    match usize::try_from(len) {
        Ok(len) if len <= MOST_PAGE_BYTES => Ok(len),
        Ok(len) => {
            let limit = MOST_PAGE_BYTES >> 20;
            let what = format!("a page of {} MiB ({limit} at most)", len >> 20);
            Err(ParquetError::Unsupported(what))
        }
        Err(_) => damaged("a page has a negative length"),
    }
}

/// Unpacks a page of `size` bytes. Memory grows with what comes out, not with what `size` promises.
fn unpack(packing: Packing, packed: &[u8], size: usize) -> Result<Vec<u8>, ParquetError> {
    let format = match packing {
        // No row has a value.
        _ if size == 0 => return Ok(Vec::new()),
        Packing::None if packed.len() == size => return Ok(packed.to_vec()),
        Packing::None => return damaged("a page has another length than it says"),
        Packing::Snappy => {
            let bytes = snappy::unpack(packed, size);
            return bytes.map_or_else(|| damaged("a page cannot be unpacked"), Ok);
        }
        Packing::Gzip => Format::Gzip,
        Packing::Zstd => Format::Zstd,
    };
    let mut bytes = Vec::new();
    match unpacked(format, packed).take(size as u64 + 1).read_to_end(&mut bytes) {
        Ok(len) if len == size => Ok(bytes),
        Ok(_) => damaged("a page has another length than it says"),
        Err(error) => damaged(format!("a page cannot be unpacked: {error}")),
    }
}

fn header(of: &mut Reader<'_>) -> Result<Header, Bad> {
    let mut header = Header { is_packed: true, kind: -1, ..Header::default() };
    of.fields(|of, id, kind| {
        match id {
            1 => header.kind = of.int(kind)?,
            2 => header.size = of.int(kind)?,
            3 => header.packed = of.int(kind)?,
            // 32 bits, whose sign means nothing.
            4 => header.crc = Some(of.int(kind)? as u32),
            5 => of.structure(kind, |of, id, kind| version_1(of, id, kind, &mut header))?,
            7 => of.structure(kind, |of, id, kind| version_1(of, id, kind, &mut header))?,
            8 => of.structure(kind, |of, id, kind| version_2(of, id, kind, &mut header))?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(header)
}

/// A field about a page of version 1, or a dictionary.
fn version_1(of: &mut Reader<'_>, id: i16, kind: Kind, header: &mut Header) -> Result<bool, Bad> {
    match id {
        1 => header.values = of.int(kind)?,
        2 => header.encoding = of.int(kind)?,
        // A dictionary's third field says whether it is sorted.
        3 if header.kind == 0 => header.levels = of.int(kind)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// A field about a page of version 2.
fn version_2(of: &mut Reader<'_>, id: i16, kind: Kind, header: &mut Header) -> Result<bool, Bad> {
    match id {
        1 => header.values = of.int(kind)?,
        4 => header.encoding = of.int(kind)?,
        5 => header.level_bytes.1 = of.int(kind)?,
        6 => header.level_bytes.0 = of.int(kind)?,
        7 => header.is_packed = kind.truth()?,
        _ => return Ok(false),
    }
    Ok(true)
}

impl<'p> Page<'p> {
    /// The value of the next row; `None` at the end.
    pub(super) fn next_row(&mut self) -> Result<Option<Text<'p>>, ParquetError> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        if let Some(levels) = &mut self.levels
            && levels.next()? == 0
        {
            return Ok(Some(Text::None));
        }
        Ok(Some(match &mut self.values {
            Values::Plain(rest) => Text::Some(plain(rest)?),
            Values::Named { indices, dictionary, last } => {
                let index = indices.next()?;
                let value = dictionary.value(index)?;
                if last.replace(index) == Some(index) { Text::Again } else { Text::Some(value) }
            }
        }))
    }
}

impl Dictionary {
    fn value(&self, at: u32) -> Result<&[u8], ParquetError> {
        match self.places.get(at as usize) {
            Some(&(start, len)) => Ok(&self.bytes[start as usize..][..len as usize]),
            None => damaged("a page names a value that its dictionary does not have"),
        }
    }
}
