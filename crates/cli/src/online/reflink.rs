//! Snapshots by reflink: a clone of an image file that shares its blocks (XFS, Btrfs).
//!
//! The clone has no name and disappears with the process. Later writes to the image use new space;
//! nothing is copied.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow};
use floe_blockdev::{FileDevice, Window};
use rustix::io::Errno;

use super::freeze::Freeze;
use super::teardown::Teardown;
use super::{About, Backing, Mounted, Snapshot};
use crate::input::clock::now_seconds;
use crate::input::device::Source;
use crate::terminal::signals;

/// A snapshot of a mounted file system on a loop device.
pub(super) fn of_loop(
    mounted: &Mounted,
    backing: &Backing,
    limit: Duration,
) -> anyhow::Result<Snapshot> {
    signals::end_at_once("the check is not complete; nothing was written")?;
    let clone = Clone::new(&backing.file)?;
    // Once before writers are blocked: to test whether it works, and to write back dirty data.
    clone.make()?;
    let freeze = Freeze::new(&mounted.point, limit)?;
    let made = clone.make();
    let about = mounted.about("reflink", Some(freeze.thaw()?));
    made?;
    let window = Window::new(clone.device()?, backing.offset_bytes, backing.len_bytes)
        .with_context(|| backing.file.display().to_string())?;
    Ok(Snapshot {
        about,
        device: Box::new(window),
        teardown: Teardown::nothing(),
        verdict_counts: Box::new(|| Ok(())),
    })
}

/// A snapshot of the image file of a running virtual machine. The machine is not stopped: the clone
/// is the state after a power failure, and its journal is replayed in memory.
pub(super) fn of_image(source: &Source, path: &Path) -> anyhow::Result<Snapshot> {
    signals::end_at_once("the check is not complete; nothing was written")?;
    let clone = Clone::new(path)?;
    clone.make()?;
    let about = About {
        target: path.to_owned(),
        method: "reflink",
        taken_seconds: now_seconds(),
        frozen: None,
    };
    let device = source.open_copy(clone.device()?)?;
    Ok(Snapshot {
        about,
        device,
        teardown: Teardown::nothing(),
        verdict_counts: Box::new(|| Ok(())),
    })
}

/// An image file, and an unnamed file in the same folder.
struct Clone<'a> {
    path: &'a Path,
    from: File,
    to: File,
}

impl<'a> Clone<'a> {
    fn new(path: &'a Path) -> anyhow::Result<Self> {
        let from = File::open(path).with_context(|| path.display().to_string())?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        let to = tempfile::tempfile_in(folder).with_context(|| {
            format!("cannot make a file for the snapshot in {}", folder.display())
        })?;
        Ok(Self { path, from, to })
    }

    /// Makes the second file an atomic clone of the first.
    fn make(&self) -> anyhow::Result<()> {
        rustix::fs::ioctl_ficlone(&self.to, &self.from).map_err(|errno| {
            let file = self.path.display();
            match errno {
                Errno::OPNOTSUPP | Errno::NOTTY | Errno::INVAL | Errno::XDEV | Errno::NOSYS => {
                    anyhow!(
                        "{file} cannot be cloned: its file system has no reflinks (XFS and Btrfs \
                     have). Nothing was checked; see docs/online.md for alternatives"
                    )
                }
                errno => anyhow!("{file} cannot be cloned: {errno}"),
            }
        })
    }

    fn device(self) -> anyhow::Result<FileDevice> {
        FileDevice::of_file(self.to).context("cannot read the snapshot")
    }
}
