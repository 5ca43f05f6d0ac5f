//! A mount of Floe's, for the commands that let programs use one.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use floe_testkit::{build, tool};
use tempfile::TempDir;

/// How often, and after which pause, a busy mount is unmounted again.
const MOST_RETRIES: u32 = 50;
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Kinds of file systems on which mounts are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Kind {
    /// As mke2fs makes them.
    Ext4,
    /// With quotas of users, groups and projects, whose limits count.
    Quota,
    /// Native ones, as Floe makes them.
    Native,
    /// Blocks of 1 KiB in clusters of 16, inline data.
    Bigalloc,
}

impl Kind {
    /// Makes a file system over all of a file.
    ///
    /// # Errors
    /// mke2fs or Floe fails.
    pub(crate) fn make(self, floe: &Path, image: &Path) -> Result<()> {
        match self {
            Self::Ext4 => build::mke2fs(image, &["-q", "-t", "ext4"]),
            Self::Quota => {
                let kinds = "quotatype=usrquota:grpquota:prjquota";
                build::mke2fs(image, &["-q", "-t", "ext4", "-O", "quota,project", "-E", kinds])
            }
            Self::Native => {
                let args = ["mkfs", "-q", "-F", "-t", "native"].map(OsStr::new);
                floe_says(floe, &[&args[..], &[image.as_os_str()]].concat()).map(|_| ())
            }
            Self::Bigalloc => {
                let features = ["-O", "bigalloc,inline_data", "-b", "1024", "-C", "16384"];
                build::mke2fs(image, &[&["-q", "-t", "ext4"][..], &features].concat())
            }
        }
    }

    /// Mount options, with those that let limits count.
    pub(crate) fn options(self, options: &str) -> String {
        match self {
            Self::Quota => format!("{options},usrquota,grpquota,prjquota"),
            _ => options.to_owned(),
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ext4 => "ext4",
            Self::Quota => "quota",
            Self::Native => "native",
            Self::Bigalloc => "bigalloc",
        })
    }
}

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
