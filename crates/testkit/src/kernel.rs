//! Loop mounts, for the running kernel's verdict on an image. They need root; tests without it
//! print the reason and pass.
//!
//! For single mounts with little load: Linux was seen to deadlock under load. Load belongs in the
//! guests of `cargo xtask kernel-load`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::image::Image;
use crate::profile::Profile;
use crate::{build, tool};

/// A loop mount that is unmounted on drop.
#[derive(Debug)]
pub struct Mounted {
    folder: TempDir,
    mounted: bool,
}

impl Mounted {
    /// Mounts an image file with the given options (`""`: only `loop`).
    ///
    /// # Errors
    /// The kernel's refusal, in the words of `mount`.
    pub fn new(image: &Path, options: &str) -> Result<Self> {
        let folder = tool::scratch("floe-mount-")?;
        let options =
            if options.is_empty() { "loop".to_owned() } else { format!("loop,{options}") };
        let mut command = Command::new("mount");
        command.args(["-t", "ext4", "-o", &options]).arg(image).arg(folder.path());
        tool::run(&command, 60)?.expect("mount", &[0])?;
        Ok(Self { folder, mounted: true })
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Unmounts, so that the image file is complete.
    ///
    /// # Errors
    /// The mount is busy, or another error of the kernel.
    pub fn unmount(mut self) -> Result<()> {
        self.mounted = false;
        unmount(self.folder.path())
    }
}

/// How often, and after which pause, a busy mount is unmounted again.
const MOST_RETRIES: u32 = 50;
const RETRY_AFTER: Duration = Duration::from_millis(100);

fn unmount(folder: &Path) -> Result<()> {
    let mut command = Command::new("umount");
    command.arg(folder);
    let mut done = tool::run(&command, 60)?;
    // A child that another thread starts holds the open files of this process, and so the mount, until
    // its exec.
    for _ in 0..MOST_RETRIES {
        if !done.text.contains("busy") {
            break;
        }
        std::thread::sleep(RETRY_AFTER);
        done = tool::run(&command, 60)?;
    }
    done.expect("umount", &[0])?;
    Ok(())
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mounted && unmount(self.folder.path()).is_err() {
            // Reached only after a failed test: detach as soon as the mount is unused.
            let _ = Command::new("umount").arg("-l").arg(self.folder.path()).status();
        }
    }
}

/// Whether images can be loop-mounted here.
///
/// # Errors
/// The reason why not, for the message of a skipped test.
pub fn mount_available() -> Result<(), String> {
    let probe = || -> Result<()> {
        let image = build::empty(Profile::Ext2K1)?;
        let mounted = Mounted::new(image.path(), "ro")?;
        if fs::read_dir(mounted.path()).context("reading the mounted folder")?.count() == 0 {
            bail!("the mounted image looks empty");
        }
        mounted.unmount()
    };
    probe().map_err(|error| format!("cannot loop-mount: {error:#}"))
}

/// The kernel's verdict: mounts a copy read-only with the given options and walks it. `Ok(Err(..))`
/// is the kernel's refusal or an error of the walk; `Ok(Ok(..))` the number of entries.
///
/// # Errors
/// The image cannot be copied.
pub fn verdict(image: &Image, options: &str) -> Result<Result<u64, String>> {
    let copy = image.copy()?;
    let mounted = match Mounted::new(copy.path(), options) {
        Ok(mounted) => mounted,
        Err(refusal) => return Ok(Err(format!("{refusal:#}"))),
    };
    let walked = walk(mounted.path());
    mounted.unmount().context("unmounting after reading")?;
    Ok(walked.map_err(|error| error.to_string()))
}

/// Counts the entries below a folder; reads every file and link target.
fn walk(folder: &Path) -> std::io::Result<u64> {
    let mut entries = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        entries += 1;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            entries += walk(&entry.path())?;
        } else if kind.is_symlink() {
            fs::read_link(entry.path())?;
        } else if kind.is_file() {
            std::io::copy(&mut fs::File::open(entry.path())?, &mut std::io::sink())?;
        }
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_mounts_a_base_image() {
        if let Err(reason) = mount_available() {
            eprintln!("skipped: {reason}");
            return;
        }
        let image = build::base(Profile::Ext4).expect("a clean image");
        let entries = verdict(&image, "ro").expect("copied").expect("the kernel takes it");
        assert!(entries > 250, "{entries}");
    }
}
