//! The files on the command line: distinguishes inputs from outputs, and protects them from
//! accidental overwriting.
//!
//! Every option that names a file has one of two types, [`InputPath`] or [`OutputPath`] (a test
//! walks through the command line). All files of a command are judged together before the first of
//! them is opened: an output must not be an input, another output, a block device, or a file that
//! Floe did not create.

#[cfg(any(test, feature = "generate"))]
use std::any::TypeId;
use std::ffi::OsString;
use std::ops::Deref;
use std::path::{Path, PathBuf};

use clap::builder::{MapValueParser, PathBufValueParser, TypedValueParser, ValueParserFactory};

mod identity;
mod judge;
mod named;
mod ours;
#[cfg(test)]
mod tests;
mod written;

pub(crate) use judge::{Judged, Refused, is_same, is_standard_output, refuse_same};
pub(crate) use named::Files;
pub(crate) use ours::{FLEET_METRICS_HEAD, HTML_HEAD, METRICS_HEAD, SHARD_KEY_HEAD};
pub(crate) use written::replace;

/// Whether an option names a file.
#[cfg(any(test, feature = "generate"))]
pub(crate) fn names_file(option: &clap::Arg) -> bool {
    let kind = option.get_value_parser().type_id();
    kind == TypeId::of::<InputPath>() || kind == TypeId::of::<OutputPath>()
}

/// A path on the command line: the common part of both types.
macro_rules! path_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub(crate) struct $name(PathBuf);

        impl Deref for $name {
            type Target = Path;

            fn deref(&self) -> &Path {
                &self.0
            }
        }

        impl AsRef<Path> for $name {
            fn as_ref(&self) -> &Path {
                &self.0
            }
        }

        impl<P: Into<OsString>> From<P> for $name {
            fn from(path: P) -> Self {
                Self(PathBuf::from(path.into()))
            }
        }

        impl ValueParserFactory for $name {
            type Parser = MapValueParser<PathBufValueParser, fn(PathBuf) -> Self>;

            fn value_parser() -> Self::Parser {
                PathBufValueParser::new().map($name)
            }
        }
    };
}

/// Parses a place that is no path alone, or where a file may not exist yet; it is never empty.
pub(crate) fn not_empty() -> MapValueParser<PathBufValueParser, fn(PathBuf) -> OsString> {
    PathBufValueParser::new().map(PathBuf::into_os_string)
}

path_type! {
    /// An input, or a file repaired in place: a device, an image, a journal, a saved plan.
    InputPath
}
path_type! {
    /// A file that a command creates or replaces: a report, metrics, an undo file, a plan, a
    /// checkpoint.
    OutputPath
}
