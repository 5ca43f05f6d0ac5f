//! Images made and judged by the kernel, through loop mounts. Needs root; tests that cannot have
//! it say why and go on.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;

use crate::image::Image;
use crate::profile::Profile;
use crate::rng::Rng;
use crate::{build, load, tool};

/// A loop mount that is undone when the value goes.
#[derive(Debug)]
pub struct Mounted {
    folder: TempDir,
    mounted: bool,
}

impl Mounted {
    /// Mounts an image file with the options given (`""`: none but `loop`).
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

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Unmounts, so that the image file is complete.
    ///
    /// # Errors
    /// It is busy, or the kernel says no.
    pub fn unmount(mut self) -> Result<()> {
        self.mounted = false;
        unmount(self.folder.path())
    }
}

fn unmount(folder: &Path) -> Result<()> {
    let mut command = Command::new("umount");
    command.arg(folder);
    tool::run(&command, 60)?.expect("umount", &[0])?;
    Ok(())
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.mounted && unmount(self.folder.path()).is_err() {
            // Only after a failed test: let the mount go as soon as nobody uses it.
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

/// `FS_IOC_SHUTDOWN`: stops a file system at once, as if the power had failed.
const IOC_SHUTDOWN: &str = "0x8004587d";

/// An image that the kernel filled by a random load of `millis` milliseconds, unmounted cleanly.
///
/// Two runs with one seed give images of the same kind, but not the same bytes: threads race.
///
/// # Errors
/// The kernel does not mount the profile (its words), or a tool is missing.
pub fn loaded(profile: Profile, seed: u64, millis: u64) -> Result<Image> {
    let image = build::base(profile)?;
    let mounted = Mounted::new(image.path(), "nodev")?;
    under_load(mounted.path(), seed, || std::thread::sleep(Duration::from_millis(millis)));
    mounted.unmount()?;
    Ok(image)
}

/// Images of a file system whose power failed `count` times under load, at random moments: each
/// has a journal to be replayed. The kernel recovers between two failures.
///
/// # Errors
/// The kernel does not mount the profile, or `perl` (which makes the system call that fails the
/// power) is missing.
pub fn crashed(profile: Profile, seed: u64, count: usize) -> Result<Vec<Image>> {
    let image = build::base(profile)?;
    let mut rng = Rng::new(seed);
    let mut images = Vec::new();
    for _ in 0..count {
        let mounted = Mounted::new(image.path(), "nodev")?;
        let wait = Duration::from_millis(20 + rng.below(200));
        // Half of the time what is in memory of the journal gets written, half of the time not.
        let flags = if rng.chance(2) { 1 } else { 2 };
        let failed = under_load(mounted.path(), rng.next_u64(), || {
            std::thread::sleep(wait);
            shut_down(mounted.path(), flags)
        });
        mounted.unmount()?;
        failed?;
        images.push(image.copy()?);
    }
    Ok(images)
}

/// Runs `meanwhile` while four threads put load on `folder`.
fn under_load<T>(folder: &Path, seed: u64, meanwhile: impl FnOnce() -> T) -> T {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| load::run(folder, seed, 4, &stop));
        let result = meanwhile();
        stop.store(true, Ordering::Relaxed);
        result
    })
}

/// Stops a mounted file system without letting it write; `flags` 1 still writes the journal.
fn shut_down(folder: &Path, flags: u32) -> Result<()> {
    // Rust's safe interfaces have no such call, and this crate has no unsafe code.
    let script = format!(
        "open(my $d, '<', $ARGV[0]) or die $!; \
         my $f = pack('L', {flags}); ioctl($d, {IOC_SHUTDOWN}, $f) or die $!"
    );
    let mut command = Command::new("perl");
    command.args(["-e", &script]).arg(folder);
    tool::run(&command, 60)?.expect("perl", &[0])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use floe_format::features::Incompat;

    use super::*;
    use crate::oracle;

    #[test]
    fn loaded_images_are_clean_and_crashed_ones_recover() {
        if let Err(reason) = mount_available() {
            eprintln!("skipped: {reason}");
            return;
        }
        // Linux can deadlock under this load, and a machine on which it did fails here for ever.
        if std::env::var_os("FLOE_KERNEL_ROUNDS").is_none() {
            eprintln!("skipped: the load can deadlock Linux; set FLOE_KERNEL_ROUNDS to run it");
            return;
        }
        for profile in [Profile::Ext4K1, Profile::Ext2K1, Profile::FastCommit, Profile::OrphanFile]
        {
            let image = match loaded(profile, 1, 150) {
                Ok(image) => image,
                Err(refusal) => {
                    eprintln!("skipped {profile}: {refusal:#}");
                    continue;
                }
            };
            let verdict = oracle::e2fsck(&image).expect("e2fsck runs");
            assert!(verdict.clean(), "{profile}: {}", verdict.text);
            let used = |image: &Image| {
                crate::Volume::open(image)
                    .and_then(|volume| volume.used_inodes())
                    .map(|used| used.len())
            };
            let base = build::base(profile).expect("a clean image");
            assert!(used(&image).expect("clean") > used(&base).expect("clean") + 50, "no load");
            if profile == Profile::Ext2K1 {
                continue;
            }
            for image in crashed(profile, 2, 2).expect("as above") {
                let volume = crate::Volume::open(&image).expect("a superblock");
                assert!(volume.geometry.features.incompat.contains(Incompat::RECOVER), "{profile}");
                let (recovered, after) = oracle::e2fsck_repair(&image).expect("e2fsck runs");
                // The journal (0 or 1), and nothing that it does not heal.
                assert!(matches!(recovered.exit, Some(0 | 1)), "{profile}: {}", recovered.text);
                assert!(oracle::e2fsck(&after).expect("e2fsck runs").clean());
            }
        }
    }
}
