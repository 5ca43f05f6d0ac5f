//! Disk images in formats other than raw bytes, each presented as the disk that it contains. All
//! are read-only.
//!
//! [`open`] detects the format of a file and stacks the devices it needs: the file, the format, its
//! backing files, and once more if an unpacked file holds an image. The fields of an image's header
//! are validated once, table entries whenever they are used. Any file gives bytes or an error.

use std::fmt;
use std::io;
use std::path::PathBuf;

use floe_format::layout::le;

use crate::{OpenError, ReadBlocks};

mod cache;
mod gzip;
#[cfg(test)]
mod made;
mod open;
mod place;
mod qcow2;
#[cfg(test)]
mod tests;
mod unpack;
mod vhd;
mod vhdx;
mod zstd;

pub use open::{ImageOptions, Opened, fixed_vhd_bytes, format_of, open, open_file};
pub use qcow2::{BackingName, Qcow2};
pub use unpack::unpacked;
pub use vhd::Vhd;
pub use vhdx::Vhdx;

/// How a disk is stored in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Byte for byte; block devices are always raw.
    Raw,
    /// QEMU's own format, versions 2 and 3.
    Qcow2,
    /// Virtual PC and old Hyper-V, fixed or dynamic.
    Vhd,
    /// Hyper-V.
    Vhdx,
    /// Any content, packed by gzip.
    Gzip,
    /// Any content, packed by zstd.
    Zstd,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Raw, Self::Qcow2, Self::Vhd, Self::Vhdx, Self::Gzip, Self::Zstd];

    /// The name of the format, in messages and for `--format`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Vhd => "vhd",
            Self::Vhdx => "vhdx",
            Self::Gzip => "gzip",
            Self::Zstd => "zstd",
        }
    }

    /// Whether the content must be unpacked before it can be read.
    pub const fn is_packed(self) -> bool {
        matches!(self, Self::Gzip | Self::Zstd)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why an image cannot be read. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The file cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The file cannot be read.
    #[error("cannot read the image")]
    Read {
        /// The system's error.
        #[from]
        source: io::Error,
    },
    /// The image is damaged.
    #[error("the {format} image is damaged: {what}")]
    Damaged {
        /// The format that it seems to have.
        format: Format,
        /// The damage.
        what: String,
    },
    /// It uses a feature that Floe does not know; reading it without that feature could return
    /// wrong bytes.
    #[error("this {format} image cannot be read: {what}")]
    Unsupported {
        /// Its format.
        format: Format,
        /// The feature, and what to do instead.
        what: String,
    },
    /// The backing file, or one below it, cannot be used.
    #[error("backing file {}", .path.display())]
    Backing {
        /// The backing file.
        path: PathBuf,
        /// Its fault.
        source: Box<ImageError>,
    },
    /// The file may be an image in a format, or a file system whose first bytes look like one.
    #[error(
        "it begins like a {format} image, but there is an ext superblock in its place, too; say what \
         it is with --format raw or --format {format}"
    )]
    Ambiguous {
        /// The format.
        format: Format,
    },
    /// There is no room for the unpacked content.
    #[error(
        "cannot keep the unpacked content in {}; name a folder with more room in TMPDIR",
        .folder.display()
    )]
    Scratch {
        /// The folder for temporary files.
        folder: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

/// The format of `file`, detected from its first and last bytes; the image may be damaged
/// nevertheless. If the first bytes cannot be read, the file counts as raw, because a file system
/// may have backup superblocks, and an image in another format could not be opened without its
/// header anyway.
fn detect(file: &dyn ReadBlocks) -> Result<Format, ImageError> {
    let mut head = [0; 2048];
    let there = file.size_bytes().min(head.len() as u64) as usize;
    if file.read_at(0, &mut head[..there]).is_err() {
        return Ok(Format::Raw);
    }
    let head = &head[..there];
    let format = if head.starts_with(b"QFI\xfb") {
        Format::Qcow2
    } else if head.starts_with(vhdx::header::MAGIC) {
        Format::Vhdx
    } else if let Ok(Some(packing)) = packing_of(file) {
        packing
    } else if vhd::is_one(file, head) {
        Format::Vhd
    } else {
        return Ok(Format::Raw);
    };
    // A user who can write to a raw disk can write an image header to its start. That must not
    // decide what Floe checks. (A fixed VHD image does begin with its disk.)
    if looks_like_ext(head) && fixed_vhd_bytes(file).is_none() {
        return Err(ImageError::Ambiguous { format });
    }
    Ok(format)
}

/// The format in which a file is packed; `None` if it is not, or in an unknown one.
///
/// # Errors
/// If its first bytes cannot be read.
pub fn packing_of(file: &dyn ReadBlocks) -> io::Result<Option<Format>> {
    let mut magic = [0; 3];
    let there = file.size_bytes().min(magic.len() as u64) as usize;
    file.read_at(0, &mut magic[..there])?;
    if magic == *b"\x1f\x8b\x08" {
        return Ok(Some(Format::Gzip));
    }
    Ok(zstd::is_one(file)?.then_some(Format::Zstd))
}

/// Whether an ext superblock is plausible at its offset: the magic, a valid block size, and
/// non-zero counts of blocks and inodes.
fn looks_like_ext(head: &[u8]) -> bool {
    let Some(superblock) = head.get(1024..).and_then(|rest| rest.first_chunk::<64>()) else {
        return false;
    };
    le::<u16, 56, 64>(superblock) == 0xef53
        && le::<u32, 24, 64>(superblock) <= 6
        && le::<u32, 0, 64>(superblock) != 0
        && le::<u32, 4, 64>(superblock) != 0
}
