//! Sources for the tree of a new file system: a directory, a tar archive, an OCI image, or another
//! ext4 image.
//!
//! A source fills a [`Tree`] and keeps the state it needs to read contents later. No source needs
//! root.

mod apply;
mod dir;
mod ids;
mod image;
mod lists;
mod mtree;
mod oci;
mod path;
mod path_walk;
mod spool;
mod tar;

use std::io;
use std::path::PathBuf;

use floe_archive::ArchiveError;

use crate::mkfs::tree::{Contents, Tree, TreeError};

pub use dir::directory;
pub use ids::{Changes, IdMap, OwnerError};
pub use image::{ImageContents, image};
pub use mtree::{MtreeError, apply_mtree};
pub use oci::oci;
pub use spool::{Spooled, standard_input};
pub use tar::tar;

/// A tree and its contents.
pub struct Loaded<C> {
    /// The tree.
    pub tree: Tree,
    /// Reads the contents.
    pub contents: C,
    /// A sentence on why the source may be incomplete.
    pub doubt: Option<String>,
}

/// Reads contents of a source that holds everything it needs.
pub type BoxedContents = Box<dyn Contents + Send>;

/// Why a source cannot be used. Nothing was written.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A file or directory cannot be read.
    #[error("{}: {source}", .path.display())]
    Read {
        /// Its path on this system.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A packed archive cannot be unpacked, or standard input cannot be kept.
    #[error("{}: {source}", .path.display())]
    Unpack {
        /// The archive.
        path: PathBuf,
        /// The error.
        source: floe_blockdev::image::ImageError,
    },
    /// An archive is packed by a program whose format is not known here.
    #[error(
        "{}: it is packed by {by}, which Floe does not unpack: {program} -dc FILE | floe mkfs --from -",
        .path.display()
    )]
    Packed {
        /// The archive.
        path: PathBuf,
        /// The program that made it.
        by: &'static str,
        /// A program that unpacks it.
        program: &'static str,
    },
    /// An archive is damaged.
    #[error("{}: {source}", .path.display())]
    Archive {
        /// The archive.
        path: PathBuf,
        /// The fault and its offset.
        source: ArchiveError,
    },
    /// A path of an archive would leave the root, or passes through something that is not a
    /// directory.
    #[error("{path}: {why}")]
    Path {
        /// The path, escaped for printing.
        path: String,
        /// The fault.
        why: &'static str,
    },
    /// A hard link whose target does not exist.
    #[error("{path}: its hard link leads to {target}, which does not exist")]
    LostLink {
        /// The path, escaped for printing.
        path: String,
        /// The target, escaped for printing.
        target: String,
    },
    /// A name that no directory can contain, or too many files.
    #[error("{path}: {source}")]
    Tree {
        /// The path, escaped for printing.
        path: String,
        /// The error of the tree.
        source: TreeError,
    },
    /// An OCI image that is incomplete or damaged.
    #[error("{}: {why}", .path.display())]
    Oci {
        /// The damaged file.
        path: PathBuf,
        /// The fault.
        why: String,
    },
    /// A part of an ext4 image is damaged, so that a copy would be incomplete.
    #[error("{path}: {why}")]
    Damaged {
        /// The path in the image, escaped for printing.
        path: String,
        /// The fault.
        why: String,
    },
}

/// A path, escaped for messages.
fn shown(path: &[u8]) -> String {
    floe_ext4::files::printable(path)
}
