//! From a path to the disk in the file there.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::{BackingName, Format, ImageError, Qcow2, Vhd, Vhdx, detect, unpack, vhd};
use crate::{Caching, FileDevice, OpenError, ReadBlocks};

/// Images packed inside each other, at most.
const MOST_LAYERS: usize = 4;

/// How to open an image.
pub struct ImageOptions<'a> {
    /// The format of the file; `None`: detect it.
    pub format: Option<Format>,
    /// Folder for the content of packed files. It is kept in a file without a name while the device
    /// is open.
    pub scratch: PathBuf,
    /// How reads treat the page cache.
    pub caching: Caching,
    /// Called before a packed file is unpacked, which may take long.
    pub before_unpacking: &'a dyn Fn(Format),
}

/// A disk, and the formats found around it.
pub struct Opened {
    /// The disk.
    pub device: Box<dyn ReadBlocks>,
    /// The formats from the file inwards; just raw for a raw file or block device.
    pub layers: Vec<Format>,
    /// Bytes of a logical sector, if it is a block device that reports it.
    pub sector_bytes: Option<u32>,
}

/// Opens the disk in the file or block device at `path`, for reading.
///
/// # Errors
/// [`ImageError`] says why.
pub fn open(path: &Path, options: &ImageOptions<'_>) -> Result<Opened, ImageError> {
    Chain { options, seen: Vec::new() }.open(path, options.format)
}

/// Opens the disk in `file`, a copy of the file at `path`; relative backing file names are resolved
/// from `path`.
///
/// # Errors
/// [`ImageError`] says why.
pub fn open_file(
    file: FileDevice,
    path: &Path,
    options: &ImageOptions<'_>,
) -> Result<Opened, ImageError> {
    Chain { options, seen: Vec::new() }.disk_in(file, path, options.format)
}

/// The format of the file or block device at `path`.
///
/// # Errors
/// If it cannot be read, or is ambiguous.
pub fn format_of(path: &Path) -> Result<Format, ImageError> {
    detect(&FileDevice::open(path)?)
}

/// Bytes of the disk in a fixed VHD image, which starts at the image's first byte; `None` if `file`
/// is not one.
pub fn fixed_vhd_bytes(file: &dyn ReadBlocks) -> Option<u64> {
    vhd::fixed_bytes(file)
}

/// An image and its backing files.
struct Chain<'a> {
    options: &'a ImageOptions<'a>,
    /// Device and inode numbers of the images that refer to this one.
    seen: Vec<(u64, u64)>,
}

impl Chain<'_> {
    fn open(&mut self, path: &Path, given: Option<Format>) -> Result<Opened, ImageError> {
        self.disk_in(FileDevice::open(path)?, path, given)
    }

    fn disk_in(
        &mut self,
        file: FileDevice,
        path: &Path,
        given: Option<Format>,
    ) -> Result<Opened, ImageError> {
        let metadata = fs::metadata(path).map_err(|source| OpenError::new(path, source))?;
        let number = (metadata.dev(), metadata.ino());
        if self.seen.contains(&number) {
            return Err(ImageError::Damaged {
                format: Format::Qcow2,
                what: "it is its own backing file, perhaps by way of others".to_owned(),
            });
        }
        self.seen.push(number);
        let file = file
            .with_caching(self.options.caching)
            .map_err(|error| OpenError::of_caching(path, error))?;
        let sector_bytes = file.sector_bytes();
        let mut device: Box<dyn ReadBlocks> = Box::new(file);
        let mut layers = Vec::new();
        let mut format = given.map_or_else(|| detect(&device), Ok)?;
        loop {
            layers.push(format);
            device = match format {
                Format::Raw => device,
                Format::Qcow2 => Box::new(self.qcow2(path, device)?),
                Format::Vhd => Box::new(Vhd::open(device)?),
                Format::Vhdx => Box::new(Vhdx::open(device)?),
                Format::Gzip | Format::Zstd => {
                    (self.options.before_unpacking)(format);
                    Box::new(unpack::unpack(&device, format, &self.options.scratch)?)
                }
            };
            // Only unpacked content may be an image again: the disk inside an image is never one.
            if !format.is_packed() || layers.len() >= MOST_LAYERS {
                return Ok(Opened { device, layers, sector_bytes });
            }
            format = detect(&device)?;
            if format == Format::Raw {
                return Ok(Opened { device, layers, sector_bytes });
            }
        }
    }

    fn qcow2(&mut self, path: &Path, file: Box<dyn ReadBlocks>) -> Result<Qcow2, ImageError> {
        let mut image = Qcow2::open(file)?;
        if let Some(name) = image.backing_name() {
            let (below, format) = resolve(path, &name)?;
            let wrap =
                |source| ImageError::Backing { path: below.clone(), source: Box::new(source) };
            let opened = self.open(&below, format).map_err(wrap)?;
            image.set_backing(opened.device);
        }
        Ok(image)
    }
}

/// The path of a backing file, and its format if the image names it.
fn resolve(image: &Path, name: &BackingName) -> Result<(PathBuf, Option<Format>), ImageError> {
    let unsupported = |what| ImageError::Unsupported { format: Format::Qcow2, what };
    let format = match name.format.as_deref() {
        None => None,
        Some(b"raw" | b"host_device" | b"file") => Some(Format::Raw),
        Some(b"qcow2") => Some(Format::Qcow2),
        Some(b"vpc") => Some(Format::Vhd),
        Some(b"vhdx") => Some(Format::Vhdx),
        Some(other) => {
            let other = String::from_utf8_lossy(other).escape_debug().to_string();
            return Err(unsupported(format!("its backing file has the format \"{other}\"")));
        }
    };
    let plain = name.name.strip_prefix(b"file:").unwrap_or(&name.name);
    // Like QEMU: a colon before any slash ends the name of a protocol.
    let until_slash = plain.split(|&byte| byte == b'/').next().unwrap_or_default();
    if until_slash.contains(&b':') {
        let shown = String::from_utf8_lossy(&name.name).escape_debug().to_string();
        return Err(unsupported(format!(
            "a backing file that is no path ({shown}); convert it to a raw image, or attach it with \
             qemu-nbd"
        )));
    }
    let folder = image.parent().unwrap_or(Path::new(""));
    Ok((folder.join(OsStr::from_bytes(plain)), format))
}
