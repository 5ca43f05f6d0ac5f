//! Reads one column of texts from a Parquet file, such as the documents in the results of `floe_spark.check`. Source: the
//! format's specification (parquet-format 2.11) and Thrift's compact protocol.
//!
//! Reads files as Spark, parquet-java, Arrow and DuckDB write them by default: data pages of both versions, plain or with a
//! dictionary, uncompressed or packed by Snappy, gzip or zstd. The file is not trusted: whatever it holds gives rows or an
//! error, and no size that it states is allocated before as many bytes were seen.

mod footer;
mod hybrid;
#[cfg(test)]
pub(in crate::fleet) mod made;
mod pages;
mod snappy;
#[cfg(test)]
mod tests;
mod thrift;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use footer::Footer;
use pages::Pages;

/// The bytes at both ends of a file.
pub const MAGIC: [u8; 4] = *b"PAR1";

/// Bytes that can be read anywhere: a file, or a slice in tests.
pub trait Source {
    /// How many there are.
    ///
    /// # Errors
    /// Those of the system.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Fills `into` from `at`.
    ///
    /// # Errors
    /// `UnexpectedEof` behind the end, and those of the system.
    fn read_exact_at(&self, into: &mut [u8], at: u64) -> io::Result<()>;
}

impl Source for File {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, into, at)
    }
}

impl Source for [u8] {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_exact_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        let from = usize::try_from(at).ok().and_then(|at| self.get(at..));
        let from = from.and_then(|from| from.get(..into.len()));
        into.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Why rows cannot be read.
#[derive(Debug)]
pub enum ParquetError {
    /// The system cannot read the file.
    Read(io::Error),
    /// The file contradicts itself or its format; says how.
    Damaged(String),
    /// The file is beyond this reader; says why.
    Unsupported(String),
    /// The column is not there.
    NoColumn(String),
}

impl std::error::Error for ParquetError {}

impl std::fmt::Display for ParquetError {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Read(error) => write!(to, "cannot read it: {error}"),
            Self::Damaged(what) => write!(to, "the Parquet file is damaged: {what}"),
            Self::Unsupported(what) => write!(
                to,
                "this Parquet file cannot be read, because of {what}; write it with the defaults of Spark or pyarrow"
            ),
            Self::NoColumn(name) => write!(
                to,
                "the Parquet file has no column of texts `{name}`; name the folder `images` of floe_spark.check"
            ),
        }
    }
}

impl From<io::Error> for ParquetError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => Self::Damaged("it is shorter than it says".to_owned()),
            _ => Self::Read(error),
        }
    }
}

fn damaged<T>(what: impl Into<String>) -> Result<T, ParquetError> {
    Err(ParquetError::Damaged(what.into()))
}

/// The value of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Text<'p> {
    Some(&'p [u8]),
    /// That of the last row that had one. Few bytes can say this billions of times.
    Again,
    None,
}

/// Calls `each` with the value of the column `name` in every row, in their order.
///
/// # Errors
/// Those of `each`, and [`ParquetError`], also if fewer rows can be read than the file says it has.
pub(super) fn texts<E: From<ParquetError>>(
    source: &(impl Source + ?Sized),
    name: &str,
    mut each: impl FnMut(Text<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let footer = Footer::read(source, name)?;
    for chunk in &footer.chunks {
        let mut pages = Pages::new(source, chunk, footer.optional);
        while let Some(mut page) = pages.next_page()? {
            while let Some(row) = page.next_row()? {
                each(row)?;
            }
        }
    }
    Ok(())
}
