//! Refuses outputs that lie on a mount of the very image that is read: each write could overwrite
//! deleted or lost content of it.
//!
//! This concerns commands that copy content. Reports of `floe check` may lie there, because a check
//! of a mounted system (`--online`) has no other place for them.

use std::fs::File;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use floe_blockdev::mount_over;
use rustix::fs::{FileType, OFlags};

use super::device::Source;
use crate::exit::Ended;

impl Source {
    /// Refuses an output file or folder, existing or not, on a mount of this image.
    ///
    /// # Errors
    /// A usage error that names the mount.
    pub(crate) fn refuse_own_mount(&self, option: &str, output: &Path) -> anyhow::Result<()> {
        let output = std::path::absolute(output)?;
        // A file that does not exist is created in the nearest folder that does.
        let Some(nearest) = output.ancestors().find_map(opened) else { return Ok(()) };
        self.refuse(&format!("{option} {}", output.display()), nearest)
    }

    /// The same for standard output, if it is a file.
    ///
    /// # Errors
    /// A usage error that names the mount.
    pub(crate) fn refuse_own_mount_of_stdout(&self) -> anyhow::Result<()> {
        let out = io::stdout();
        let mode = rustix::fs::fstat(&out).map(|found| FileType::from_raw_mode(found.st_mode));
        match mode {
            Ok(FileType::RegularFile) => self.refuse("standard output", out),
            _ => Ok(()),
        }
    }

    fn refuse(&self, what: &str, output: impl AsFd) -> anyhow::Result<()> {
        // A device that cannot be read, or without such a partition, is reported when it is opened.
        let bytes = self.bytes_used().unwrap_or(0..u64::MAX);
        let mount = mount_over(output, &self.device, bytes);
        // So is one that cannot be found.
        let Some(mount) = mount.ok().flatten() else { return Ok(()) };
        let (name, mount) = (self.name(), mount.display());
        Err(Ended::usage(format!(
            "{what}: this is on {mount}, which is a mount of {name} itself. Copies there could \
             overwrite what is lost in it. Choose a place on another device. Nothing was looked at \
             or changed"
        )))
    }
}

/// Opens a name without the right to read.
fn opened(path: &Path) -> Option<File> {
    let flags = OFlags::PATH.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(flags).open(path).ok()
}
