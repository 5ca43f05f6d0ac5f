//! A mount of Floe's, for the commands that let programs use one.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use floe_testkit::tool;
use tempfile::TempDir;

/// How often, and after which pause, a busy mount is unmounted again.
const MOST_RETRIES: u32 = 50;
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// A mount of Floe's. Dropping it, after a failure, detaches it.
#[derive(Debug)]
pub(crate) struct Mounted {
    floe: PathBuf,
    folder: TempDir,
    /// Messages of the mount, for example why it is read-only.
    pub(crate) said: String,
}

impl Mounted {
    /// Mounts an image with a list of options.
    ///
    /// # Errors
    /// Floe refuses, in its words.
    pub(crate) fn new(floe: &Path, image: &Path, options: &str) -> Result<Self> {
        let folder = tool::scratch("floe-suite-")?;
        let place = folder.path().as_os_str();
        let args = [OsStr::new("mount"), image.as_os_str(), place, "-o".as_ref(), options.as_ref()];
        let said = floe_says(floe, &args)?;
        Ok(Self { floe: floe.to_owned(), folder, said })
    }

    /// The mount point.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Unmounts, and waits until the image is complete.
    ///
    /// # Errors
    /// The mount stays busy, or Floe could not write the last changes.
    pub(crate) fn unmount(&self) -> Result<()> {
        let args = [OsStr::new("umount"), self.path().as_os_str()];
        for _ in 0..MOST_RETRIES {
            match floe_says(&self.floe, &args) {
                Err(error) if error.to_string().contains("busy") => {
                    std::thread::sleep(RETRY_AFTER);
                }
                other => return other.map(|_| ()),
            }
        }
        bail!("the mount stays busy")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Does nothing to a mount that has ended.
        let _ = Command::new("umount").arg("-l").arg(self.path()).output();
    }
}

/// Runs Floe; its messages.
fn floe_says(floe: &Path, args: &[&OsStr]) -> Result<String> {
    let output = Command::new(floe).args(args).output().context("starting floe")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        bail!("floe: {} {said}", output.status);
    }
    Ok(said)
}
