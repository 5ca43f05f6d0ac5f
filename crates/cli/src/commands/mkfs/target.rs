//! The device or file for a new file system.

use std::fs::{self, File, OpenOptions};
use std::io::{IsTerminal, Seek, SeekFrom, stdin, stdout};
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use floe_blockdev::{
    FileDevice, IDENTIFY_BYTES, ReadBlocks, Use, Window, WritableFile, identify, uses_of_part,
};
use floe_format::ext::superblock::{MAGIC, OFFSET_BYTES, Superblock};
use floe_repair::multi_mount;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::input::device::Source;

/// A block device or image file, which may not exist yet.
pub(super) struct Target {
    path: PathBuf,
    exists: bool,
    pub(super) is_block_device: bool,
    /// Final size of the device or file in bytes.
    whole_bytes: u64,
    /// Bytes after the offset.
    pub(super) usable_bytes: u64,
    offset: u64,
}

impl Target {
    /// Inspects a path without writing.
    pub(super) fn look_at(path: &Path, wanted: Option<u64>, offset: u64) -> anyhow::Result<Self> {
        let name = path.display();
        let mut target = Self {
            path: path.to_owned(),
            exists: false,
            is_block_device: false,
            whole_bytes: 0,
            usable_bytes: 0,
            offset,
        };
        match fs::metadata(path) {
            Ok(metadata) if metadata.is_file() || metadata.file_type().is_block_device() => {
                target.exists = true;
                target.is_block_device = metadata.file_type().is_block_device();
                let mut file = File::open(path).with_context(|| format!("cannot open {name}"))?;
                target.whole_bytes = file.seek(SeekFrom::End(0))?;
            }
            Ok(_) => bail!("{name} is neither a block device nor a file"),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| name.to_string()),
        }
        let end = match wanted {
            Some(bytes) => offset.checked_add(bytes).context("SIZE is too large")?,
            None if target.exists => target.whole_bytes,
            None => bail!("{name} does not exist; give a SIZE to make an image file"),
        };
        if target.is_block_device && end > target.whole_bytes {
            bail!("{name} has {} bytes, but {end} are needed", target.whole_bytes);
        }
        target.whole_bytes = target.whole_bytes.max(end);
        target.usable_bytes =
            end.checked_sub(offset).context("the device ends before the offset")?;
        Ok(target)
    }

    /// Refuses a device in use (unless forced twice) or with content (unless forced).
    pub(super) fn refuse_if_used(&self, force: u8, as_mke2fs: bool) -> anyhow::Result<()> {
        if !self.exists {
            return Ok(());
        }
        let name = self.path.display();
        let uses = uses_of_part(&self.path, self.bytes())?;
        if force < 2
            && let Some(found) = uses.iter().find(|found| !matches!(found, Use::Loop { .. }))
        {
            bail!("{name} is {found}; no file system is made there (-F twice forces it)");
        }
        if force < 2 && multi_mount::is_protected(&FileDevice::open(&self.path)?, self.offset) {
            // Opened for the caches that are passed by; nothing is written.
            let device = WritableFile::open_exclusive_part(&self.path, self.bytes())?;
            let source = Source { offset: self.offset, ..Source::whole(&self.path) };
            match self.offset {
                0 => source.mind_other_machines(&device)?,
                at => source.mind_other_machines(&Window::new(device, at, None)?)?,
            }
        }
        // mke2fs asks on a terminal, and proceeds in scripts.
        let asks = !as_mke2fs || (stdin().is_terminal() && stdout().is_terminal());
        if force == 0
            && asks
            && self.offset == 0
            && let Some(content) = self.content()?
        {
            bail!("{name} holds {content}; nothing was written (-F overwrites it)");
        }
        Ok(())
    }

    /// Its content, as a noun phrase; `None`: nothing recognised.
    fn content(&self) -> anyhow::Result<Option<String>> {
        let device = FileDevice::open(&self.path)?;
        let mut head = vec![0; IDENTIFY_BYTES.min(device.size_bytes() as usize)];
        device.read_at(0, &mut head).with_context(|| self.path.display().to_string())?;
        let superblock = head
            .get(OFFSET_BYTES as usize..)
            .and_then(|rest| rest.first_chunk())
            .map(Superblock::decode);
        if let Some(superblock) = superblock.filter(|superblock| superblock.magic == MAGIC) {
            let label = superblock.label();
            let label =
                if label.is_empty() { String::new() } else { format!(" labelled \"{label}\"") };
            return Ok(Some(format!("an ext file system{label}")));
        }
        // A new image file, a wiped disk, erased flash memory: there is nothing to lose.
        if head.iter().all(|byte| *byte == 0) || head.iter().all(|byte| *byte == 0xff) {
            return Ok(None);
        }
        Ok(identify(&head).map(|content| content.name.to_owned()))
    }

    /// The bytes of the device or file that may be written.
    fn bytes(&self) -> Range<u64> {
        self.offset..self.offset.saturating_add(self.usable_bytes)
    }

    /// Opens it exclusively for writing; creates or extends an image file.
    pub(super) fn open(&self) -> anyhow::Result<WritableFile> {
        if !self.exists {
            // The claim below excludes whoever opens the new file first.
            WritableFile::create(&self.path, 0)?;
        }
        let mut file = WritableFile::open_exclusive_part(&self.path, self.bytes())?;
        if !self.is_block_device {
            // A limit (`ulimit -f`), or a host without sparse files of this size.
            let grown = file.grow(self.whole_bytes);
            let grown = grown.with_context(|| self.path.display().to_string());
            grown.map_err(|error| if self.exists { error } else { self.give_up(error) })?;
        }
        Ok(file)
    }

    /// The error of a run that ended before the file system was whole. An image file that it made is removed; what was there before has no
    /// superblock now, so that nobody takes it for a file system.
    pub(super) fn give_up(&self, error: anyhow::Error) -> anyhow::Error {
        let name = self.path.display();
        if self.exists {
            return error.context(format!("{name} holds no file system now"));
        }
        match fs::remove_file(&self.path) {
            Ok(()) => error.context(format!("{name} was not finished, and was removed")),
            Err(_) => error.context(format!("{name} was not finished, and holds no file system")),
        }
    }

    /// Discards the first bytes, so that they read as zeroes. `false`: not supported here, and
    /// nothing changed.
    pub(super) fn discard(&self, bytes: u64) -> anyhow::Result<bool> {
        if !self.exists {
            return Ok(true);
        }
        let file = OpenOptions::new().write(true).open(&self.path)?;
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match fallocate(&file, how, self.offset, bytes) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::NODEV | Errno::INVAL) => Ok(false),
            Err(errno) => bail!("{}: cannot discard: {errno}", self.path.display()),
        }
    }
}
