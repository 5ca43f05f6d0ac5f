//! The first process of the guest: puts a device with a bad block on each disk, and checks, repairs
//! and undoes its file system.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::guest::disk;
use crate::guest::inside::{self, say};

const BLOCK_BYTES: u64 = 4096;
const SECTOR_BYTES: u64 = 512;
/// Exit code bits: damage is left, or an operational error occurred.
const UNCLEAN: i32 = 4 | 8;
const UNDO: &str = "/undo";

/// Options of the guest's program.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The bad block of each disk that is repaired without permission to overwrite
    #[arg(long)]
    block: Vec<u64>,
    /// The bad block of the last disk, a directory block, which is given up
    #[arg(long)]
    given_up: u64,
}

/// Runs all tests. Returns only outside of a guest, where there is nothing to shut down.
pub(crate) fn run(args: &Args) -> Result<()> {
    inside::run("faulty-device", || all(args))
}

fn all(args: &Args) -> Result<()> {
    for (at, &block) in args.block.iter().enumerate() {
        let device = Dust::new(at, block)?;
        let told = left(&device).with_context(|| format!("disk {at}, block {block}"))?;
        say(&format!("left {told}"));
    }
    let device = Dust::new(args.block.len(), args.given_up)?;
    say(&format!("given up {}", given_up(&device)?));
    say("done");
    Ok(())
}

/// The repair leaves the block; once it is readable again, another repair loses nothing.
fn left(device: &Dust) -> Result<String> {
    let before = device.raw_block()?;
    device.ensure_unreadable()?;
    let check = floe(&["check", &device.path])?;
    let repair = floe(&["repair", "--yes", &device.path])?;
    // A bitmap can be recreated elsewhere.
    let mended = repair.code & UNCLEAN == 0;
    ensure!(check.code & UNCLEAN != 0, "a check ends with {}: {}", check.code, check.said);
    ensure!(
        mended || repair.said.contains("ddrescue"),
        "the output gives no advice: {}",
        repair.said
    );
    device.ensure_unreadable().context("after the repair")?;
    device.message("disable")?;
    ensure!(device.read()? == before, "the block was overwritten");
    let again = floe(&["repair", "--yes", &device.path])?;
    ensure!(
        again.code & !1 == 0,
        "the repair of the readable device ends with {}: {}",
        again.code,
        again.said
    );
    let check = floe(&["check", &device.path])?;
    ensure!(
        check.code == 0,
        "the check of the readable device ends with {}: {}",
        check.code,
        check.said
    );
    Ok(format!("repair ends with {}, and with {} once the block is back", repair.code, again.code))
}

/// With permission the block is overwritten, and undo reports it.
fn given_up(device: &Dust) -> Result<String> {
    device.ensure_unreadable()?;
    let (path, undo) = (&*device.path, UNDO);
    let repair = floe(&["repair", "--yes", "--overwrite-unreadable", "--undo", undo, path])?;
    ensure!(repair.code == 1, "the repair ends with {}: {}", repair.code, repair.said);
    let check = floe(&["check", path])?;
    ensure!(check.code == 0, "the check ends with {}: {}", check.code, check.said);
    let undone = floe(&["undo", undo, path])?;
    let named = undone.said.contains(&format!("block {}", device.bad_block));
    ensure!(undone.code == 4 && named, "undoing ends with {}: {}", undone.code, undone.said);
    Ok("with permission: repaired, and undo reports that the block is not restored".to_owned())
}

/// A disk with a bad block.
struct Dust {
    path: String,
    name: String,
    bad_block: u64,
}

impl Dust {
    fn new(at: usize, bad_block: u64) -> Result<Self> {
        let (below, name) = (disk(at), format!("dust{at}"));
        let size_bytes = fs::File::open(&below)
            .and_then(|mut file| std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)))
            .with_context(|| below.display().to_string())?;
        let sectors = size_bytes / SECTOR_BYTES;
        let table = format!("0 {sectors} dust {} 0 {BLOCK_BYTES}", below.display());
        dmsetup(&["create", &name, "--table", &table])?;
        let device = Self { path: format!("/dev/mapper/{name}"), name, bad_block };
        device.message(&format!("addbadblock {bad_block}"))?;
        device.message("enable")?;
        Ok(device)
    }

    fn message(&self, text: &str) -> Result<()> {
        let mut args = vec!["message", &self.name, "0"];
        args.extend(text.split(' '));
        dmsetup(&args)
    }

    fn ensure_unreadable(&self) -> Result<()> {
        let read = self.read();
        let code = read.as_ref().err().and_then(std::io::Error::raw_os_error);
        ensure!(code.is_some(), "block {} can be read", self.bad_block);
        Ok(())
    }

    fn read(&self) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        let file = fs::File::open(&self.path)?;
        file.read_exact_at(&mut bytes, self.bad_block * BLOCK_BYTES)?;
        Ok(bytes)
    }

    /// The content of the bad block, for the test only: the block is bad again afterwards.
    fn raw_block(&self) -> Result<Vec<u8>> {
        self.message("disable")?;
        let bytes = self.read().with_context(|| format!("block {}", self.bad_block));
        // It must not stay in the page cache.
        let flushed = fs::OpenOptions::new().read(true).open(&self.path)?;
        rustix::fs::fadvise(&flushed, 0, None, rustix::fs::Advice::DontNeed)?;
        drop(flushed);
        self.message("enable")?;
        bytes
    }
}

/// Result of a run of Floe.
struct Ran {
    code: i32,
    said: String,
}

fn floe(args: &[&str]) -> Result<Ran> {
    let output = Command::new("/bin/floe").args(args).output().context("starting floe")?;
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    let code = output.status.code().with_context(|| format!("floe {args:?}: {}", output.status))?;
    Ok(Ran { code, said: said.concat() })
}

fn dmsetup(args: &[&str]) -> Result<()> {
    // There is no udev to create device nodes.
    let output = Command::new(Path::new("/sbin/dmsetup"))
        .args(["--noudevsync", "--noudevrules"])
        .args(args)
        .env("DM_DISABLE_UDEV", "1")
        .output()
        .context("starting dmsetup")?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(output.status.success(), "dmsetup {args:?}: {said}");
    Ok(())
}
