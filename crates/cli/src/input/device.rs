//! Opens the device or image given on the command line, or a part of it, after verifying that it is
//! not in use.

use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use floe_blockdev::image::{self, Format, ImageError, ImageOptions, Opened};
use floe_blockdev::{
    Access, Caching, Claim, FileDevice, NoHoles, PartitionTable, ReadBlocks, Use, Window,
    WritableFile, WriteBlocks, uses_of_part,
};
use floe_check::open::WhichSuperblock;
use floe_format::BlockNr;
use floe_repair::multi_mount;
use floe_sync::thread;

use crate::exit::Ended;
use crate::input::files::InputPath;
use crate::input::format_messages;
use crate::input::size::bytes;
use crate::message::message;
use crate::terminal::shell;

/// Location of a file system. Common to all commands that open one.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Source {
    /// Block device or image file
    pub(crate) device: InputPath,
    /// Byte offset of the file system on the device (units K, M, G and T)
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = bytes)]
    pub(crate) offset: u64,
    /// Partition of a disk or image with the file system (GPT or MBR)
    #[arg(long, value_name = "N", conflicts_with = "offset")]
    pub(crate) partition: Option<u32>,
    /// Format of the device or file; by default detected
    #[arg(long, value_name = "FORMAT", value_parser = image_format())]
    pub(crate) format: Option<Format>,
    /// Use the superblock in this block (a backup)
    #[arg(long, short = 'b', value_name = "BLOCK")]
    pub(crate) superblock: Option<u64>,
    /// Block size in bytes, if the superblock is unusable
    #[arg(long, short = 'B', value_name = "BYTES", value_parser = block_size)]
    pub(crate) block_size: Option<u32>,
    /// How reads use the page cache; an option of commands that read much.
    #[arg(skip)]
    pub(crate) caching: Caching,
    /// Whether to read the holes of a sparse file.
    #[arg(skip)]
    pub(crate) read_holes: bool,
}

/// A path for printing: a newline in it would end the line that scripts read, and ESC commands a terminal. Bytes that
/// are not UTF-8 are told as numbers, so that reports on two such files have two names.
pub(crate) fn shown(path: &Path) -> String {
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        for char in chunk.valid().chars() {
            match char.is_control() {
                true => text.extend(char.escape_default()),
                false => text.push(char),
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

/// Parses a block size: a power of two from 1024 to 65536, optionally with a unit (4K).
pub(crate) fn block_size(text: &str) -> Result<u32, String> {
    let size = u32::try_from(bytes(text)?).ok();
    let possible = size.filter(|size| (1024..=65536).contains(size) && size.is_power_of_two());
    possible.ok_or_else(|| "must be a power of two from 1024 to 65536".to_owned())
}

/// The image formats, by name.
pub(crate) fn image_format() -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(Format::ALL.map(Format::name)).map(|name| {
        // The parser accepts only the names above, so the default is unreachable.
        Format::ALL.into_iter().find(|format| format.name() == name).unwrap_or(Format::Raw)
    })
}

/// How to treat a device that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InUse {
    /// Refuse to check.
    Refuse,
    /// Refuse to repair.
    RefuseRepair,
    /// Refuse to mount for writing.
    RefuseMount,
    /// Continue with a warning.
    Warn,
    /// Read files with a warning.
    WarnReader,
    /// The same for a reader that claims the device next, which reports a lock as an error.
    WarnClaimant,
}

impl Source {
    /// The superblock that the user wants.
    pub(crate) fn which(&self) -> WhichSuperblock {
        WhichSuperblock { block: self.superblock.map(BlockNr), block_size: self.block_size }
    }

    /// A device given on e2fsck's command line.
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

    /// The options that locate the file system on the device, quoted for a shell, each followed by
    /// a space.
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

    /// The command that undoes the changes saved in `file`, quoted for a shell.
    pub(crate) fn undo_command(&self, file: &Path) -> String {
        // The undo file contains the byte offset of the file system.
        let format = self.format.map(|format| format!("--format {} ", format.name()));
        let (file, device) = (shell::quoted_path(file), shell::quoted_path(&self.device));
        format!("floe undo {}{file} {device}", format.unwrap_or_default())
    }

    /// The command that applies a saved plan, quoted for a shell.
    pub(crate) fn apply_command(&self, plan: &Path) -> String {
        let (options, plan) = (self.place_options(), shell::quoted_path(plan));
        format!("floe repair --apply-plan {plan} {options}{}", shell::quoted_path(&self.device))
    }

    /// The path as the user gave it, escaped for printing.
    pub(crate) fn name(&self) -> String {
        shown(&self.device)
    }

    /// Opens the device for reading, limited to the offset or partition. For images in other
    /// formats opens the disk inside.
    pub(crate) fn open(&self) -> anyhow::Result<Box<dyn ReadBlocks>> {
        self.part(|options| image::open(&self.device, options))
    }

    /// The same for `file`, a copy of the named file.
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
            before_unpacking: &|format| format_messages::tell_unpacking(&self.name(), format),
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

    /// Adds the name of the image to an error, unless it has it already.
    fn explain(&self, error: ImageError) -> anyhow::Error {
        match error {
            ImageError::Open(error) => error.into(),
            error => anyhow::Error::from(error).context(self.name()),
        }
    }

    /// Refuses to write to an image in its own format. Returns the size of the raw disk in a fixed
    /// VHD image, which can be written.
    pub(crate) fn refuse_image(&self) -> anyhow::Result<Option<u64>> {
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
            bail!(format_messages::no_repair(&self.device, format, self.partition));
        }
        Ok(fixed_bytes)
    }

    /// Opens the device for reading and writing, limited to the offset or partition, and claims it
    /// exclusively, unless it is `shared` with the system as its root. Also returns the byte offset
    /// on the whole device.
    pub(crate) fn open_for_writing(
        &self,
        shared: bool,
    ) -> anyhow::Result<(Box<dyn WriteBlocks>, u64)> {
        let fixed_bytes = self.refuse_image()?;
        let bytes = self.bytes_used()?;
        let file = match shared {
            true => WritableFile::open(&self.device)?,
            false => WritableFile::open_exclusive_part(&self.device, bytes.clone())?,
        };
        if self.partition.is_none() && self.offset == 0 && fixed_bytes.is_none() {
            return Ok((Box::new(file), 0));
        }
        // The whole file, or a fixed VHD image without its footer.
        let file = Window::new(file, 0, fixed_bytes).with_context(|| self.name())?;
        let len_bytes = self.partition.map(|_| bytes.end - bytes.start);
        let window = Window::new(file, bytes.start, len_bytes).with_context(|| self.name())?;
        let offset_bytes = window.offset_bytes();
        Ok((Box::new(window), offset_bytes))
    }

    /// As [`Self::open_for_writing`], unless another machine has the file system mounted.
    pub(crate) fn open_alone(&self) -> anyhow::Result<(Box<dyn WriteBlocks>, u64)> {
        let (device, offset_bytes) = self.open_for_writing(false)?;
        self.mind_other_machines(&*device)?;
        Ok((device, offset_bytes))
    }

    /// Refuses a device whose file system another machine has mounted (multiple-mount protection). Waits for that, and says so, unless
    /// its block says that nobody has.
    pub(crate) fn mind_other_machines(&self, device: &dyn WriteBlocks) -> anyhow::Result<()> {
        let name = self.name();
        let sizes = match self.block_size {
            Some(bytes) => vec![u64::from(bytes)],
            None => (10..=16).map(|shift| 1 << shift).collect(),
        };
        let block = self.superblock.unwrap_or(0);
        let named: Vec<u64> = sizes.into_iter().map(|bytes| block.saturating_mul(bytes)).collect();
        let active = multi_mount::active(device, &named, &mut |time| {
            message!(
                "floe: {name}: another machine may have it mounted (multiple-mount protection); waiting {} seconds to see",
                time.as_secs()
            );
            thread::sleep(time);
        });
        match active {
            Some(problem) => Err(Ended::failed(format!(
                "{name}: {} ({problem}): another machine has it mounted. Writing to it would destroy it; end that use \
                 first. Nothing was written",
                problem.row().id
            ))),
            None => Ok(()),
        }
    }

    /// Claims the bytes of the file system for reading: writers are kept out until the claim is
    /// dropped.
    pub(crate) fn claim_for_reading(&self) -> anyhow::Result<Claim> {
        Ok(Claim::new(&self.device, self.bytes_used()?, Access::Reading)?)
    }

    /// The bytes of the device or file that the partition or offset leads to, as far as they are
    /// known; `u64::MAX` stands for the end. All of an image in another format is used.
    pub(super) fn bytes_used(&self) -> anyhow::Result<Range<u64>> {
        let format = match self.format {
            Some(format) => format,
            None => image::format_of(&self.device).map_err(|error| self.explain(error))?,
        };
        if !matches!(format, Format::Raw | Format::Vhd) {
            return Ok(0..u64::MAX);
        }
        let Some(number) = self.partition else {
            // A fixed VHD image has its footer at the end, which nobody else has reason to write.
            return Ok(self.offset..u64::MAX);
        };
        let reader = FileDevice::open(&self.device)?;
        let raw_bytes = match format {
            Format::Vhd => image::fixed_vhd_bytes(&reader),
            _ => Some(reader.size_bytes()),
        };
        // All of a growing image is used.
        let Some(raw_bytes) = raw_bytes else { return Ok(0..u64::MAX) };
        let sector_bytes = reader.sector_bytes();
        let disk = Window::new(reader, 0, Some(raw_bytes)).with_context(|| self.name())?;
        let table = PartitionTable::read(&disk, sector_bytes).with_context(|| self.name())?;
        let part = table.open(disk, number).with_context(|| self.name())?;
        Ok(part.offset_bytes()..part.offset_bytes() + part.size_bytes())
    }

    /// The ways in which the part of the device is in use.
    pub(crate) fn users(&self) -> anyhow::Result<Vec<Use>> {
        // A device that cannot be read, or without such a partition, is reported when it is opened.
        let bytes = self.bytes_used().unwrap_or(0..u64::MAX);
        Ok(uses_of_part(&self.device, bytes)?)
    }

    /// Refuses a device that another program may write to, or prints a warning. Returns whether it
    /// is in use.
    pub(crate) fn mind_users(&self, in_use: InUse) -> anyhow::Result<bool> {
        let uses = self.users()?;
        let matters = |found: &&Use| match in_use {
            // Even a reader would see it change.
            InUse::RefuseRepair | InUse::RefuseMount => !matches!(found, Use::Loop { .. }),
            InUse::Refuse | InUse::Warn | InUse::WarnReader => found.may_write(),
            InUse::WarnClaimant => found.may_write() && **found != Use::Locked,
        };
        let Some(found) = uses.iter().find(matters) else { return Ok(false) };
        let name = self.name();
        match in_use {
            InUse::Refuse => bail!(
                "{name} is {found}. It changes during the check, which would report false damage.\n  {}",
                instead(found)
            ),
            InUse::RefuseRepair => bail!(
                "{name} is {found}. Repairing a file system in use destroys data. Unmount it first. \
                 Nothing was looked at or changed"
            ),
            InUse::RefuseMount if *found == Use::Locked => {
                bail!(
                    "{name} is {found}. Two writers would destroy the file system; end that use first"
                )
            }
            InUse::RefuseMount => bail!(
                "{name} is {found}. Two users that write to one file system destroy it. Mount it read-only (-o \
                 ro), or end the other use"
            ),
            InUse::Warn => {
                message!(
                    "floe: warning: {name} is {found}. It changes during the check, so findings \
                     may be false."
                );
                Ok(true)
            }
            InUse::WarnReader | InUse::WarnClaimant => {
                message!(
                    "floe: warning: {name} is {found}. It changes while it is read, so files may be inconsistent or \
                     lack changes that are not yet written."
                );
                Ok(true)
            }
        }
    }
}

/// Advice for reading a device that is in use.
fn instead(found: &Use) -> String {
    let force = "`floe check --force` checks anyway";
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
    fn printed_paths_command_no_terminal() {
        let path = Path::new("a b/\u{e4}\n\u{1b}[2J\\n");
        assert_eq!(shown(path), "a b/\u{e4}\\n\\u{1b}[2J\\n");
        // Two files that only these bytes tell apart are two in a report.
        let bytes = std::ffi::OsStr::from_bytes;
        let names = [&b"a\xff.img"[..], b"a\xfe\xe4.img"].map(|name| shown(Path::new(bytes(name))));
        assert_eq!(names, ["a\\xff.img", "a\\xfe\\xe4.img"]);
    }

    #[test]
    fn block_sizes_are_powers_of_two_in_range() {
        assert_eq!(block_size("4096"), Ok(4096));
        assert_eq!(block_size("4k"), Ok(4096));
        for text in ["0", "512", "131072", "4097", "-1", "128K", "4M"] {
            assert!(block_size(text).is_err(), "{text}");
        }
    }
}
