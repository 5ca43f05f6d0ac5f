//! Opening what the command line names: a device or image, a part of it, not in use.

use std::path::Path;

use anyhow::{Context, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use floe_blockdev::image::{self, Format, ImageError, ImageOptions, Opened};
use floe_blockdev::{
    Caching, FileDevice, NoHoles, PartitionTable, ReadBlocks, Use, Window, WritableFile,
    WriteBlocks, uses_of,
};

use crate::files::InputPath;
use crate::size::bytes;
use crate::{not_raw, shell};

/// Where a file system is. Common to all commands that look at one.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Source {
    /// Block device or image file
    pub(crate) device: InputPath,
    /// The file system begins this many bytes into the device (K, M, G and T are units)
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = bytes)]
    pub(crate) offset: u64,
    /// The file system is in this partition of a disk or image (GPT or MBR)
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    pub(crate) partition: Option<u32>,
    /// The device or file is in this format; found out by its first bytes if not given
    #[arg(long, value_name = "FORMAT", value_parser = image_format())]
    pub(crate) format: Option<Format>,
    /// Use the superblock in this block (a backup)
    #[arg(long, short = 'b', value_name = "BLOCK")]
    pub(crate) superblock: Option<u64>,
    /// Bytes of a block, if the superblock cannot say
    #[arg(long, short = 'B', value_name = "BYTES", value_parser = block_size)]
    pub(crate) block_size: Option<u32>,
    /// What reads have to do with the page cache; an option of commands that only read much.
    #[arg(skip)]
    pub(crate) caching: Caching,
    /// Whether holes of a sparse file are read as all else.
    #[arg(skip)]
    pub(crate) read_holes: bool,
}

/// A block size: a power of two from 1024 to 65536, perhaps with a unit (4K).
pub(crate) fn block_size(text: &str) -> Result<u32, String> {
    let size = u32::try_from(bytes(text)?).ok();
    let possible = size.filter(|size| (1024..=65536).contains(size) && size.is_power_of_two());
    possible.ok_or_else(|| "must be a power of two from 1024 to 65536".to_owned())
}

/// The formats of images, by name.
pub(crate) fn image_format() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::ALL.map(Format::name)).map(|name| {
        // One of the names above, so the default is never taken.
        Format::ALL.into_iter().find(|format| format.name() == name).unwrap_or(Format::Raw)
    })
}

/// What to do about a device that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InUse {
    /// Refuse to check.
    Refuse,
    /// Refuse to repair.
    RefuseRepair,
    /// Refuse to mount for writing.
    RefuseMount,
    /// Go on with a warning.
    Warn,
    /// Read files with a warning.
    WarnReader,
}

impl Source {
    /// A device named by e2fsck's command line.
    pub(crate) fn whole(device: &Path) -> Self {
        Self {
            device: InputPath::from(device),
            offset: 0,
            partition: None,
            format: None,
            superblock: None,
            block_size: None,
            caching: Caching::Shared,
            read_holes: false,
        }
    }

    /// The options that say where the file system is, as a shell takes them, each with a space behind it.
    pub(crate) fn place_options(&self) -> String {
        let mut options = String::new();
        let mut add = |name: &str, value: Option<String>| {
            let words = value.map(|value| format!("--{name} {value} "));
            options.extend(words);
        };
        add("format", self.format.map(|format| format.name().to_owned()));
        add("partition", self.partition.map(|number| number.to_string()));
        add("offset", Some(self.offset).filter(|&offset| offset != 0).map(|at| at.to_string()));
        add("superblock", self.superblock.map(|block| block.to_string()));
        add("block-size", self.block_size.map(|bytes| bytes.to_string()));
        options
    }

    /// The command that undoes what `file` saved, as a shell takes it.
    pub(crate) fn undo_command(&self, file: &Path) -> String {
        // The file itself says at which byte of the device the file system begins.
        let format = self.format.map(|format| format!("--format {} ", format.name()));
        let (file, device) = (shell::quoted_path(file), shell::quoted_path(&self.device));
        format!("floe undo {}{file} {device}", format.unwrap_or_default())
    }

    /// The command that makes a repair that was saved as a plan, as a shell takes it.
    pub(crate) fn apply_command(&self, plan: &Path) -> String {
        let (options, plan) = (self.place_options(), shell::quoted_path(plan));
        format!("floe repair --apply-plan {plan} {options}{}", shell::quoted_path(&self.device))
    }

    /// The path as the user gave it, safe to print.
    pub(crate) fn name(&self) -> String {
        self.device.to_string_lossy().into_owned()
    }

    /// Opens the device for reading, cut to the offset or partition. Images in other formats are the
    /// disks in them.
    pub(crate) fn open(&self) -> anyhow::Result<Box<dyn ReadBlocks>> {
        self.part(|options| image::open(&self.device, options))
    }

    /// Likewise, in `file`, which is a copy of the file that is named.
    pub(crate) fn open_copy(&self, file: FileDevice) -> anyhow::Result<Box<dyn ReadBlocks>> {
        self.part(|options| image::open_file(file, &self.device, options))
    }

    fn part(
        &self,
        open: impl FnOnce(&ImageOptions<'_>) -> Result<Opened, ImageError>,
    ) -> anyhow::Result<Box<dyn ReadBlocks>> {
        let device = self.believing_part(open)?;
        Ok(if self.read_holes { Box::new(NoHoles(device)) } else { device })
    }

    fn believing_part(
        &self,
        open: impl FnOnce(&ImageOptions<'_>) -> Result<Opened, ImageError>,
    ) -> anyhow::Result<Box<dyn ReadBlocks>> {
        let options = ImageOptions {
            format: self.format,
            scratch: std::env::temp_dir(),
            caching: self.caching,
            before_unpacking: &|format| not_raw::tell_unpacking(&self.name(), format),
        };
        let opened = open(&options).map_err(|error| self.explain(error))?;
        let device = opened.device;
        if let Some(number) = self.partition {
            let table =
                PartitionTable::read(&device, opened.sector_bytes).with_context(|| self.name())?;
            return Ok(Box::new(table.open(device, number).with_context(|| self.name())?));
        }
        if self.offset == 0 {
            return Ok(device);
        }
        Ok(Box::new(Window::new(device, self.offset, None).with_context(|| self.name())?))
    }

    /// An error with the name of the image, which those of opening have already.
    fn explain(&self, error: ImageError) -> anyhow::Error {
        match error {
            ImageError::Open(error) => error.into(),
            error => anyhow::Error::from(error).context(self.name()),
        }
    }

    /// Refuses to write to an image that has a format of its own. What is said of a fixed VHD image:
    /// how many of its bytes are the disk, as they are.
    fn refuse_image(&self) -> anyhow::Result<Option<u64>> {
        let format = match self.format {
            Some(format) => format,
            None => image::format_of(&self.device).map_err(|error| self.explain(error))?,
        };
        if format == Format::Raw {
            return Ok(None);
        }
        let fixed_bytes = if format == Format::Vhd {
            image::fixed_vhd_bytes(&FileDevice::open(&self.device)?)
        } else {
            None
        };
        if fixed_bytes.is_none() {
            bail!(not_raw::no_repair(&self.device, format, self.partition));
        }
        Ok(fixed_bytes)
    }

    /// Opens the device for reading and writing, cut to the offset or partition, and claims it,
    /// unless it is `shared` with the system, whose root is on it. Also says at which byte of the
    /// whole device that begins.
    pub(crate) fn open_for_writing(
        &self,
        shared: bool,
    ) -> anyhow::Result<(Box<dyn WriteBlocks>, u64)> {
        let fixed_bytes = self.refuse_image()?;
        let file = match shared {
            true => WritableFile::open(&self.device)?,
            false => WritableFile::open_exclusive(&self.device)?,
        };
        if self.partition.is_none() && self.offset == 0 && fixed_bytes.is_none() {
            return Ok((Box::new(file), 0));
        }
        // All of the file, or all but the footer of a fixed VHD image.
        let file = Window::new(file, 0, fixed_bytes).with_context(|| self.name())?;
        let window = if let Some(number) = self.partition {
            let reader = FileDevice::open(&self.device)?;
            let table =
                PartitionTable::read(&file, reader.sector_bytes()).with_context(|| self.name())?;
            table.open(file, number).with_context(|| self.name())?
        } else {
            Window::new(file, self.offset, None).with_context(|| self.name())?
        };
        let offset_bytes = window.offset_bytes();
        Ok((Box::new(window), offset_bytes))
    }

    /// Refuses a device that somebody may write to, or warns of it on standard error. Returns
    /// whether it is in use.
    pub(crate) fn mind_users(&self, in_use: InUse) -> anyhow::Result<bool> {
        let uses = uses_of(&self.device)?;
        let matters = |found: &&Use| match in_use {
            // Whoever only reads would see it change.
            InUse::RefuseRepair | InUse::RefuseMount => !matches!(found, Use::Loop { .. }),
            InUse::Refuse | InUse::Warn | InUse::WarnReader => found.may_write(),
        };
        let Some(found) = uses.iter().find(matters) else { return Ok(false) };
        let name = self.name();
        match in_use {
            InUse::Refuse => bail!(
                "{name} is {found}. It changes while it is read, so a check would find damage \
                 that is none.\n  {}",
                instead(found)
            ),
            InUse::RefuseRepair => bail!(
                "{name} is {found}. A repair beneath a file system in use destroys what is in it. \
                 Unmount it first. Nothing was looked at or changed"
            ),
            InUse::RefuseMount => bail!(
                "{name} is {found}. Two users that write to one file system destroy it. Mount it read-only (-o \
                 ro), or end the other use"
            ),
            InUse::Warn => {
                eprintln!(
                    "floe: warning: {name} is {found}. It changes while it is read: what is \
                     found need not be damage."
                );
                Ok(true)
            }
            InUse::WarnReader => {
                eprintln!(
                    "floe: warning: {name} is {found}. It changes while it is read: files may be torn."
                );
                Ok(true)
            }
        }
    }
}

/// What to do about a device in use that was to be looked at.
fn instead(found: &Use) -> String {
    let force = "`floe check --force` looks all the same";
    match found {
        Use::Mounted { mount_point, .. } => format!(
            "Unmount it, or check a snapshot of it: floe check --online {}; {force}",
            shell::quoted_path(mount_point)
        ),
        Use::VirtualMachine => {
            format!(
                "Shut the machine down, or check a snapshot: floe check --online IMAGE; {force}"
            )
        }
        _ => format!("Free it, or check a snapshot of it (docs/online.md); {force}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_are_powers_of_two_in_range() {
        assert_eq!(block_size("4096"), Ok(4096));
        assert_eq!(block_size("4k"), Ok(4096));
        for text in ["0", "512", "131072", "4097", "-1", "128K", "4M"] {
            assert!(block_size(text).is_err(), "{text}");
        }
    }
}
