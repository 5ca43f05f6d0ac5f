//! Linux as a judge: mounts images read-only and for writing, and stats and reads every file. It
//! runs in a guest (`guest`), with many images per boot, because an image may hang the kernel.

mod inside;

use std::path::Path;

use anyhow::{Context, Result};
use floe_testkit::image::Contents;
use floe_testkit::{Image, Profile, build};

use crate::guest::{Kernel, Machine, Root, Running};
use crate::kernel_load;

pub use inside::{Args as GuestArgs, run as inside};

/// Modules needed in addition to `kernel_load::MODULES`.
const MODULES: &[&str] = &["loop"];
const MEMORY_MIB: u32 = 320;
/// Times that a guest is booted which stops before it is ready, as on a very busy machine.
const BOOTS: u32 = 3;
/// Images per boot.
pub const BATCH: usize = 48;
/// Alignment of the images in the disk of a batch, in bytes.
const ALIGN_BYTES: u64 = 1 << 20;

/// Linux's verdict on an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Opinion {
    /// Refusals and error messages; empty if there are none.
    pub complaints: Vec<String>,
}

impl Opinion {
    /// Whether Linux mounts the image and reads all files.
    pub fn is_content(&self) -> bool {
        self.complaints.is_empty()
    }
}

/// A bootable Linux for judging images.
pub struct LinuxJudge {
    machine: Machine,
}

impl LinuxJudge {
    /// Finds a kernel: `named`, that in FLOE_GUEST_KERNEL, User Mode Linux, or one in `/boot`.
    ///
    /// # Errors
    /// There is none, or it cannot be started; the message tells how to install one.
    pub fn find(named: Option<&Path>) -> Result<Self> {
        let kernel = Kernel::fastest(named)
            .context("no Linux to judge images (Debian: apt install user-mode-linux)")?;
        let mut root = Root::new(&std::env::current_exe().context("finding this program")?)?;
        let losetup = ["/usr/sbin/losetup", "/sbin/losetup"].map(Path::new);
        let losetup = losetup.into_iter().find(|path| path.exists());
        root.program("sbin/losetup", losetup.context("no losetup (Debian: apt install mount)")?)?;
        let modules = [kernel_load::MODULES, MODULES].concat();
        Ok(Self { machine: Machine::new(&kernel, root, &modules, MEMORY_MIB)? })
    }

    /// Linux's verdict on each image. The images are copied, and stay unchanged.
    ///
    /// # Errors
    /// The guest cannot be started. If an image ends or hangs the guest, its verdict says so.
    pub fn judge(&self, images: &[&Path]) -> Result<Vec<Opinion>> {
        let mut opinions = Vec::with_capacity(images.len());
        while opinions.len() < images.len() {
            let rest = &images[opinions.len()..];
            let batch = &rest[..rest.len().min(BATCH)];
            let judged = self.judge_batch(batch)?;
            anyhow::ensure!(!judged.is_empty(), "the guest judged nothing");
            opinions.extend(judged);
        }
        Ok(opinions)
    }

    /// A guest that waits for the images on `disk`.
    fn ready(&self, disk: &Path, order: &[String]) -> Result<Running> {
        let boot = || {
            let mut guest = self.machine.boot(&[disk], order)?;
            guest.wait_for("ready").map(|_| guest)
        };
        (1..BOOTS).find_map(|_| boot().ok()).map_or_else(boot, Ok)
    }

    /// Verdicts on the first images of a batch: all, or up to the one that ended the guest.
    fn judge_batch(&self, images: &[&Path]) -> Result<Vec<Opinion>> {
        let (disk, places) = disk_of(images)?;
        // As one word, because a kernel accepts few parameters.
        let places: Vec<String> =
            places.iter().map(|(start, len)| format!("{start}:{len}")).collect();
        let order = vec!["guest-judge".to_owned(), format!("--images={}", places.join(","))];
        let mut guest = self.ready(disk.path(), &order)?;
        let mut opinions = Vec::new();
        for _ in images {
            let ended = guest.wait_for("judged");
            let (messages, said) = guest.heard();
            let mut opinion = Opinion { complaints: said };
            opinion.complaints.extend(messages.into_iter().filter(|line| is_complaint(line)));
            let lost = ended.is_err();
            if let Err(error) = ended {
                let last = format!("{error:#}");
                opinion.complaints.push(format!("the guest ended: {}", one_line(&last)));
            }
            opinions.push(opinion);
            if lost {
                return Ok(opinions);
            }
        }
        // The verdicts are complete, so ignore further output.
        drop(guest);
        Ok(opinions)
    }
}

/// The end of a long text, on one line.
fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let from = line.char_indices().rev().nth(200).map_or(0, |(at, _)| at);
    line[from..].to_owned()
}

/// Whether a kernel message reports an inconsistent file system.
fn is_complaint(line: &str) -> bool {
    ["EXT4-fs error", "JBD2: Error", "BUG:", "WARNING:", "Cannot turn on quotas"]
        .iter()
        .any(|mark| line.contains(mark))
}

/// A disk with all images, and their locations: first byte and length.
fn disk_of(images: &[&Path]) -> Result<(Image, Vec<(u64, u64)>)> {
    let mut places = Vec::new();
    let mut end = 0u64;
    let mut all = Vec::new();
    for path in images {
        let contents = Contents::read(path)?;
        places.push((end, contents.size_bytes()));
        end += contents.size_bytes().next_multiple_of(ALIGN_BYTES);
        all.push(contents);
    }
    let disk = Image::empty(end)?;
    for (contents, (start, _)) in all.iter().zip(&places) {
        contents.write_at(&disk, *start)?;
    }
    Ok((disk, places))
}

/// Linux's verdict on an undamaged image of each profile: profiles that it does not support are
/// excluded.
pub fn known_profiles(judge: &LinuxJudge, profiles: &[Profile]) -> Result<Vec<Profile>> {
    let images: Vec<Image> =
        profiles.iter().map(|&profile| build::base(profile)).collect::<Result<_>>()?;
    let paths: Vec<&Path> = images.iter().map(Image::path).collect();
    let opinions = judge.judge(&paths)?;
    let mut known = Vec::new();
    for (&profile, opinion) in profiles.iter().zip(opinions) {
        if opinion.is_content() {
            known.push(profile);
        } else {
            println!("Linux is not asked about {profile}: {}", opinion.complaints.join("; "));
        }
    }
    Ok(known)
}
