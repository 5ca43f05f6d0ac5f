//! The first process of the judge's guest: mounts each image and reads all files.

use std::ffi::{CString, OsStr};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use floe_testkit::tree;
use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::guest::disk;
use crate::guest::inside::{self, one_line, say};

const LOOP: &str = "/dev/loop0";
const FOLDER: &str = "/mnt";
/// Maximum number of unreadable files to list.
const NAMED: usize = 4;

/// Options of the guest's program.
#[derive(clap::Args)]
pub struct Args {
    /// Locations of the images on the first disk: first byte, a colon, length
    #[arg(long, required = true, value_delimiter = ',')]
    images: Vec<String>,
}

/// Judges all images. Returns only outside of a guest, where there is nothing to shut down.
pub fn run(args: &Args) -> Result<()> {
    inside::run("linux-fields", || judge_all(args))
}

fn judge_all(args: &Args) -> Result<()> {
    say("ready");
    for image in &args.images {
        let (start, len) = image.split_once(':').context("START:BYTES")?;
        attach(start, len)?;
        for (word, flags) in [("ro", MountFlags::RDONLY), ("rw", MountFlags::empty())] {
            if let Err(error) = judge(flags) {
                say(&format!("complaint {word}: {}", one_line(&error)));
            }
        }
        losetup(&["-d", LOOP])?;
        say("judged");
    }
    Ok(())
}

fn attach(start: &str, len: &str) -> Result<()> {
    let disk = disk(0).display().to_string();
    losetup(&["-o", start, "--sizelimit", len, LOOP, &disk])
}

fn losetup(args: &[&str]) -> Result<()> {
    let output = Command::new("/sbin/losetup").args(args).output().context("starting losetup")?;
    ensure!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// Mounts the image, reads everything, writes and removes a file, and unmounts it.
fn judge(flags: MountFlags) -> Result<()> {
    let none = CString::default();
    mount(LOOP, FOLDER, "ext4", flags | MountFlags::NODEV, Some(none.as_c_str()))
        .context("does not mount")?;
    let seen = look();
    let written =
        if flags.contains(MountFlags::RDONLY) { Ok(()) } else { write(Path::new(FOLDER)) };
    unmount(FOLDER, UnmountFlags::empty()).context("does not unmount")?;
    seen?;
    written.context("writing a file")
}

fn look() -> Result<()> {
    let tree = tree::mounted(Path::new(FOLDER))?;
    let unreadable: Vec<String> = tree
        .iter()
        .filter(|(path, _)| !is_encrypted(path))
        .filter_map(|(path, node)| {
            let why = node.unreadable()?;
            Some(format!("{}: {why}", String::from_utf8_lossy(path)))
        })
        .take(NAMED)
        .collect();
    ensure!(unreadable.is_empty(), "{}", unreadable.join(", "));
    Ok(())
}

/// Whether a file is encrypted: a kernel built without encryption opens none, whatever is in it.
fn is_encrypted(path: &[u8]) -> bool {
    let path = [FOLDER.as_bytes(), path].concat();
    let flags = AtFlags::SYMLINK_NOFOLLOW;
    statx(CWD, OsStr::from_bytes(&path), flags, StatxFlags::BASIC_STATS)
        .is_ok_and(|known| known.stx_attributes.contains(StatxAttributes::ENCRYPTED))
}

fn write(folder: &Path) -> Result<()> {
    let path = folder.join(".floe-probe");
    let written = fs::write(&path, "written by a judge").and_then(|()| fs::remove_file(&path));
    match written.map_err(|error| (error.kind(), error)) {
        // A lack of space is no damage, and neither is a root that is immutable or append-only.
        Ok(()) | Err((ErrorKind::StorageFull | ErrorKind::PermissionDenied, _)) => Ok(()),
        Err((_, error)) => Err(error.into()),
    }
}
