//! Disk images in other formats than raw bytes, each as the disk that is in it. All of them are for
//! reading alone.
//!
//! [`open`] looks what a file is and stacks what is needed: the file, the format in it, its backing
//! files, and once more if an unpacked file holds an image. What stands in the headers of an image
//! is checked once; what stands in its tables is checked when it is used. Whatever is in a file,
//! there is an answer or an error.

use std::fmt;
use std::io;
use std::path::PathBuf;

use floe_format::layout::le;

use crate::{OpenError, ReadBlocks};

mod cache;
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
pub use vhd::Vhd;
pub use vhdx::Vhdx;

/// How a disk is stored in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// Byte for byte; every block device is this.
    Raw,
    /// QEMU's own format, versions 2 and 3.
    Qcow2,
    /// Virtual PC and old Hyper-V, fixed or dynamic.
    Vhd,
    /// Hyper-V.
    Vhdx,
    /// Anything, packed by gzip.
    Gzip,
    /// Anything, packed by zstd.
    Zstd,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Raw, Self::Qcow2, Self::Vhd, Self::Vhdx, Self::Gzip, Self::Zstd];

    /// The name of the format, for a person and for `--format`.
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

    /// Whether the content has to be unpacked to be read.
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
        /// What the system said.
        #[from]
        source: io::Error,
    },
    /// The image is one, but not a good one.
    #[error("the {format} image is damaged: {what}")]
    Damaged {
        /// Which format it seems to be.
        format: Format,
        /// What is wrong with it.
        what: String,
    },
    /// It uses something that is not known here; reading it all the same could be wrong.
    #[error("the {format} image has what cannot be read here: {what}")]
    Unsupported {
        /// Which format it is.
        format: Format,
        /// What it uses, and what to do instead.
        what: String,
    },
    /// The backing file, or one below it, cannot be used.
    #[error("backing file {}", .path.display())]
    Backing {
        /// The backing file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<ImageError>,
    },
    /// It could be an image in a format or a file system with such bytes in front.
    #[error(
        "it begins like a {format} image, but there is an ext superblock in its place, too; say what \
         it is with --format raw or --format {format}"
    )]
    Ambiguous {
        /// The format.
        format: Format,
    },
    /// The unpacked content cannot be kept.
    #[error(
        "cannot keep the unpacked content in {}; name a folder with more room in TMPDIR",
        .folder.display()
    )]
    Scratch {
        /// The folder for temporary files.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// What the first and last bytes of `file` say it is. Only looks: it may be damaged all the same. Where
/// the first ones cannot be read, it is a disk, whose file system may have other superblocks; an image in
/// another format could not be opened without them anyway.
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
    } else if head.starts_with(b"\x1f\x8b\x08") {
        Format::Gzip
    } else if head.starts_with(&zstd::MAGIC) {
        Format::Zstd
    } else if vhd::is_one(file, head) {
        Format::Vhd
    } else {
        return Ok(Format::Raw);
    };
    // Whoever writes to a disk can write a header of an image to its start. It must not decide what
    // is judged. (A fixed VHD image does begin with its disk.)
    if looks_like_ext(head) && fixed_vhd_bytes(file).is_none() {
        return Err(ImageError::Ambiguous { format });
    }
    Ok(format)
}

/// A superblock where an ext file system has it: the magic, a size of blocks, some blocks and
/// inodes.
fn looks_like_ext(head: &[u8]) -> bool {
    let Some(superblock) = head.get(1024..).and_then(|rest| rest.first_chunk::<64>()) else {
        return false;
    };
    le::<u16, 56, 64>(superblock) == 0xef53
        && le::<u32, 24, 64>(superblock) <= 6
        && le::<u32, 0, 64>(superblock) != 0
        && le::<u32, 4, 64>(superblock) != 0
}
