//! The footer: where the pages of a column are.

use super::thrift::{Bad, Kind, Reader};
use super::{MAGIC, ParquetError, Source, damaged};

/// Bytes of a footer, at most. It has some hundred bytes for each column of each row group.
const MOST_BYTES: u64 = 64 << 20;

/// How pages are packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Packing {
    None,
    Snappy,
    Gzip,
    Zstd,
}

/// A column's pages in one row group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) packing: Packing,
    /// The place of the pages: its first byte, and how many.
    pub(super) start: u64,
    pub(super) len_bytes: u64,
    pub(super) rows: u64,
}

/// Where the values of a column are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Footer {
    /// Whether rows may have no value.
    pub(super) optional: bool,
    /// By row group.
    pub(super) chunks: Vec<Chunk>,
}

/// An element of the schema, which is a tree written from its root, each node before those below it.
#[derive(Default)]
struct Element<'a> {
    name: &'a [u8],
    kind: Option<i64>,
    repetition: i64,
    children: i64,
}

/// Type and repetition, numbers of the format.
const BYTE_ARRAY: i64 = 6;
const OPTIONAL: i64 = 1;
const REPEATED: i64 = 2;

impl Footer {
    /// Finds the column `name` of a file.
    pub(super) fn read(source: &(impl Source + ?Sized), name: &str) -> Result<Self, ParquetError> {
        let len = source.len_bytes()?;
        let mut ends = [[0; 8]; 2];
        if len < 12 {
            return damaged("it is too short");
        }
        source.read_exact_at(&mut ends[0][..4], 0)?;
        source.read_exact_at(&mut ends[1], len - 8)?;
        match ends[1].split_last_chunk::<4>() {
            Some((_, &MAGIC)) if ends[0][..4] == MAGIC => {}
            Some((_, b"PARE")) => {
                return Err(ParquetError::Unsupported("its encryption".to_owned()));
            }
            _ => return damaged("it is truncated: it does not end with PAR1"),
        }
        let [a, b, c, d, ..] = ends[1];
        let footer = u64::from(u32::from_le_bytes([a, b, c, d]));
        if footer > MOST_BYTES {
            return Err(ParquetError::Unsupported(format!("its footer of {} MiB", footer >> 20)));
        }
        let Some(end) = (len - 8).checked_sub(footer).filter(|end| *end >= 4) else {
            return damaged("its footer is longer than the file");
        };
        // Not more than the file has.
        let mut bytes = vec![0; footer as usize];
        source.read_exact_at(&mut bytes, end)?;
        Self::decode(&bytes, name, end)
    }

    /// Decodes a footer; pages lie before `end`.
    fn decode(bytes: &[u8], name: &str, end: u64) -> Result<Self, ParquetError> {
        let (mut place, mut schema) = (Place::default(), false);
        let read = Reader::new(bytes).fields(|of, id, kind| {
            if id == 2 {
                schema = true;
                of.structures(kind, |of| place.add(element(of)?, name))?;
            }
            Ok(id == 2)
        });
        if read.is_err() || !schema || !place.left.is_empty() {
            return damaged("its schema cannot be read");
        }
        let Some((column, optional)) = place.found else {
            return Err(ParquetError::NoColumn(name.to_owned()));
        };
        let mut groups = Vec::new();
        let read = Reader::new(bytes).fields(|of, id, kind| {
            if id == 4 {
                of.structures(kind, |of| {
                    groups.push(group(of, column)?);
                    Ok(())
                })?;
            }
            Ok(id == 4)
        });
        if read.is_err() {
            return damaged("its row groups cannot be read");
        }
        let chunks: Result<_, _> = groups.into_iter().map(|raw| raw.judged(end)).collect();
        Ok(Self { optional, chunks: chunks? })
    }
}

fn element<'a>(of: &mut Reader<'a>) -> Result<Element<'a>, Bad> {
    let mut element = Element::default();
    of.fields(|of, id, kind| {
        match id {
            1 => element.kind = Some(of.int(kind)?),
            3 => element.repetition = of.int(kind)?,
            4 => element.name = of.binary(kind)?,
            5 => element.children = of.int(kind)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(element)
}

/// The place of a column in the tree of the schema, as far as it was read.
#[derive(Default)]
struct Place {
    /// Columns so far.
    columns: usize,
    /// How many nodes are to come below each node of the way from the root.
    left: Vec<i64>,
    root: bool,
    /// The number of the column, and whether its values are optional.
    found: Option<(usize, bool)>,
}

impl Place {
    fn add(&mut self, element: Element<'_>, name: &str) -> Result<(), Bad> {
        if !self.root {
            self.root = true;
            self.left.extend((element.children > 0).then_some(element.children));
            return Ok(());
        }
        let at_top = self.left.len() == 1;
        *self.left.last_mut().ok_or(Bad::Wrong)? -= 1;
        if element.children > 0 {
            self.left.push(element.children);
        } else {
            let fits = element.kind == Some(BYTE_ARRAY) && element.repetition != REPEATED;
            if at_top && fits && element.name == name.as_bytes() && self.found.is_none() {
                self.found = Some((self.columns, element.repetition == OPTIONAL));
            }
            self.columns += 1;
        }
        while self.left.last() == Some(&0) {
            self.left.pop();
        }
        Ok(())
    }
}

/// A chunk as the footer describes it.
#[derive(Default)]
struct Raw {
    codec: Option<i64>,
    values: i64,
    len: i64,
    data: i64,
    dictionary: Option<i64>,
    elsewhere: bool,
    encrypted: bool,
    rows: i64,
}

/// Reads a row group: the chunk of its column number `column`.
fn group(of: &mut Reader<'_>, column: usize) -> Result<Raw, Bad> {
    let (mut raw, mut rows) = (Raw::default(), 0);
    of.fields(|of, id, kind| {
        match id {
            1 => {
                let mut at = 0;
                of.structures(kind, |of| {
                    let read = chunk(of)?;
                    if at == column {
                        raw = read;
                    }
                    at += 1;
                    Ok(())
                })?;
            }
            3 => rows = of.int(kind)?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    raw.rows = rows;
    Ok(raw)
}

fn chunk(of: &mut Reader<'_>) -> Result<Raw, Bad> {
    let mut raw = Raw::default();
    of.fields(|of, id, kind| {
        match id {
            1 => raw.elsewhere = !of.binary(kind)?.is_empty(),
            3 => of.structure(kind, |of, id, kind| described(of, id, kind, &mut raw))?,
            8 => {
                raw.encrypted = true;
                return Ok(false);
            }
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(raw)
}

/// A field of the description of a chunk.
fn described(of: &mut Reader<'_>, id: i16, kind: Kind, raw: &mut Raw) -> Result<bool, Bad> {
    match id {
        4 => raw.codec = Some(of.int(kind)?),
        5 => raw.values = of.int(kind)?,
        7 => raw.len = of.int(kind)?,
        9 => raw.data = of.int(kind)?,
        11 => raw.dictionary = Some(of.int(kind)?),
        _ => return Ok(false),
    }
    Ok(true)
}

impl Raw {
    /// The chunk, if it can be; pages lie before `end`.
    fn judged(self, end: u64) -> Result<Chunk, ParquetError> {
        let unsupported = |what: &str| Err(ParquetError::Unsupported(what.to_owned()));
        if self.encrypted {
            return unsupported("its encryption");
        }
        if self.elsewhere {
            return unsupported("columns in other files");
        }
        let packing = match self.codec {
            Some(0) => Packing::None,
            Some(1) => Packing::Snappy,
            Some(2) => Packing::Gzip,
            Some(6) => Packing::Zstd,
            Some(3) => return unsupported("its codec LZO"),
            Some(4) => return unsupported("its codec Brotli"),
            Some(5 | 7) => return unsupported("its codec LZ4"),
            Some(codec) => return unsupported(&format!("its codec {codec}")),
            None => return damaged("a row group does not have all columns"),
        };
        if (self.rows, self.values) == (0, 0) {
            return Ok(Chunk { packing, start: 0, len_bytes: 0, rows: 0 });
        }
        // A dictionary lies first; some programs write 0 for none.
        let first = self.dictionary.filter(|at| (4..self.data).contains(at)).unwrap_or(self.data);
        let place = || {
            let (start, len) = (u64::try_from(first).ok()?, u64::try_from(self.len).ok()?);
            (start >= 4 && start.checked_add(len)? <= end).then_some((start, len))
        };
        let Some((start, len_bytes)) = place() else {
            return damaged("a column lies outside of the file");
        };
        match u64::try_from(self.rows) {
            Ok(rows) if self.rows == self.values => Ok(Chunk { packing, start, len_bytes, rows }),
            _ => damaged("a row group contradicts itself about its rows"),
        }
    }
}
